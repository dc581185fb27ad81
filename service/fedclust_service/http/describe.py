"""How a route is described in ``openapi.json``: bodies, answers and the problems it may give.

Bodies are read raw (see :mod:`bodies`), so FastAPI cannot see their models: each route names them
here, and :mod:`openapi` adds the schemas.
"""

from __future__ import annotations

from typing import Any, TypedDict

from fastapi import Response
from pydantic import BaseModel

from fedclust.wire.problems import CATALOGUE
from fedclust.wire.problems import CONTENT_TYPE as PROBLEM

JSON = "application/json"
Content = dict[str, Any]


class Described(TypedDict):
    """Keyword arguments of a route's decorator."""

    response_class: type[Response]
    response_model: None
    responses: dict[int | str, dict[str, Any]]
    openapi_extra: dict[str, Any]


def ref(model: type[BaseModel]) -> Content:
    """Return a reference to a model's schema; :func:`openapi.build` replaces it by the name."""
    return {"$ref": f"#/components/schemas/{model.__name__}"}


def page_of(model: type[BaseModel]) -> Content:
    """Return the schema of a page of a list."""
    return {
        "type": "object",
        "required": ["items", "next"],
        "additionalProperties": False,
        "properties": {
            "items": {"type": "array", "items": ref(model)},
            "next": {
                "anyOf": [{"type": "string"}, {"type": "null"}],
                "description": "The cursor of the next page; null on the last one.",
            },
        },
    }


def described(
    answers: dict[int, tuple[str, Content | None]],
    *problems: str,
    body: Content | None = None,
    body_required: bool = True,
    headers: dict[str, str] | None = None,
) -> Described:
    """Describe a route.

    Parameters
    ----------
    answers : dict of status to (description, content by media type or one JSON schema)
        None as content: no body.
    problems : str
        Slugs of the catalogue; those that every route may give are added.
    body : dict
        The request's content by media type, or one JSON schema.
    headers : dict of name to description
        Response headers of the successful answers.
    """
    responses: dict[int | str, dict[str, Any]] = {}
    for status, (description, content) in answers.items():
        responses[status] = {"description": description}
        if content is not None:
            responses[status]["content"] = _content(content)
        if headers:
            responses[status]["headers"] = {
                name: {"description": text, "schema": {"type": "string"}}
                for name, text in headers.items()
            }
    by_status: dict[int, list[str]] = {}
    for slug in problems:
        by_status.setdefault(CATALOGUE[slug][0], []).append(slug)
    for status, slugs in sorted(by_status.items()):
        lines = [f"`{slug}`: {CATALOGUE[slug][1]}." for slug in slugs]
        responses[status] = _problem("\n\n".join(lines))
    responses["default"] = _problem("Any other problem of the catalogue.")
    extra: dict[str, Any] = {}
    if body is not None:
        extra["requestBody"] = {"required": body_required, "content": _content(body)}
    return Described(
        response_class=Response, response_model=None, responses=responses, openapi_extra=extra
    )


def _content(content: Content) -> Content:
    if all("/" in key for key in content):
        return content
    return {JSON: {"schema": content}}


def _problem(description: str) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/Problem"}
    return {"description": description, "content": {PROBLEM: {"schema": schema}}}
