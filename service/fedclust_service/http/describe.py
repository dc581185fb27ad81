"""Describe a route for ``openapi.json``: its bodies, answers and problems.

Routes read bodies as bytes (see :mod:`bodies`), so FastAPI cannot see their models. Each route
names them here, and :mod:`openapi` adds the schemas.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypedDict

from fastapi import Response
from pydantic import BaseModel

from fedclust.wire.problems import CATALOGUE, FieldError, problem
from fedclust.wire.problems import CONTENT_TYPE as PROBLEM
from fedclust.wire.submissions import JSON
from fedclust_service.http.problem_help import PROBLEM_HELP

#: Problems that the middleware can answer instead of a route.
_EVERYWHERE = (
    "malformed-request",
    "body-too-large",
    "unsupported-media-type",
    "too-many-requests",
    "headers-too-large",
    "internal",
    "unavailable",
)
#: Temporary problems, which carry Retry-After.
_PASSING = {"request-timeout", "result-not-ready", "too-many-requests", "internal", "unavailable"}
#: Problems of every route that reads a body.
_OF_BODIES = (
    "malformed-request",
    "request-timeout",
    "body-too-large",
    "unsupported-media-type",
    "invalid",
)
Content = dict[str, Any]
BINARY_CONTENT: Content = {"schema": {"type": "string", "format": "binary"}}


class Described(TypedDict):
    """Keyword arguments of a route's decorator."""

    status_code: int
    response_class: type[Response]
    response_model: None
    responses: dict[int | str, dict[str, Any]]
    openapi_extra: dict[str, Any]


#: The models that routes name, and those of them that lists consist of, by name.
REFERRED: dict[str, type[BaseModel]] = {}
LISTED: dict[str, type[BaseModel]] = {}


def ref(model: type[BaseModel] | str) -> Content:
    """Return a reference to the schema of a model, given the model or its name."""
    name = model if isinstance(model, str) else model.__name__
    if not isinstance(model, str):
        REFERRED[name] = model
    return {"$ref": f"#/components/schemas/{name}"}


def page_of(model: type[BaseModel]) -> Content:
    """Return a reference to the schema of a page of a list."""
    LISTED[model.__name__] = model
    return ref(f"{model.__name__}Page")


def described(
    answers: dict[int, tuple[str, Content | None]],
    *problems: str,
    body: Content | None = None,
    body_required: bool = True,
    headers: dict[str, str] | None = None,
    public: bool = False,
) -> Described:
    """Describe a route.

    Parameters
    ----------
    answers : dict of status to (description, content by media type or one JSON schema)
        None as content means no body. The first one is the usual answer.
    problems : str
        Slugs of the catalogue; those of tokens, bodies and the middleware are added.
    body : dict
        The request's content by media type, or one JSON schema.
    headers : dict of name to description
        Response headers of the successful answers.
    public : bool
        Whether the route takes no token.
    """
    responses: dict[int | str, dict[str, Any]] = {}
    for status, (description, content) in answers.items():
        responses[status] = {"description": description}
        if content is not None:
            responses[status]["content"] = _content(content)
        if headers:
            responses[status]["headers"] = _headers(headers)
    by_status: dict[int, list[str]] = {}
    of_token, of_body = () if public else ("unauthenticated",), _OF_BODIES if body else ()
    for slug in dict.fromkeys((*of_token, *of_body, *problems, *_EVERYWHERE)):
        by_status.setdefault(CATALOGUE[slug][0], []).append(slug)
    for status, slugs in sorted(by_status.items()):
        lines = [f"`{slug}`: {CATALOGUE[slug][1]}." for slug in slugs]
        responses[status] = _problem_response("\n\n".join(lines), slugs)
        if status == 401:
            responses[status]["headers"] = _headers({"WWW-Authenticate": "`Bearer`."})
        if _PASSING.intersection(slugs):
            text = "Seconds to wait before the next try. Absent if waiting does not help."
            responses[status]["headers"] = _headers({"Retry-After": text})
    responses["default"] = _problem_response("Any other problem of the catalogue.", ())
    extra: dict[str, Any] = {}
    if body is not None:
        extra["requestBody"] = {"required": body_required, "content": _content(body)}
    return Described(
        status_code=next(iter(answers)),
        response_class=Response,
        response_model=None,
        responses=responses,
        openapi_extra=extra,
    )


def _content(content: Content) -> Content:
    if all("/" in key for key in content):
        return content
    return {JSON: {"schema": content}}


def _headers(headers: dict[str, str]) -> dict[str, Any]:
    return {
        name: {"description": text, "schema": {"type": "string"}} for name, text in headers.items()
    }


def _problem_response(description: str, slugs: Iterable[str]) -> dict[str, Any]:
    content: Content = {"schema": {"$ref": "#/components/schemas/Problem"}}
    examples = {slug: {"$ref": f"#/components/examples/{slug}"} for slug in slugs}
    if examples:
        content["examples"] = examples
    return {"description": description, "content": {PROBLEM: content}}


def problem_examples() -> dict[str, Any]:
    """Return an example document for every problem type."""
    return {slug: {"value": _example(slug)} for slug in CATALOGUE}


def _example(slug: str) -> dict[str, Any]:
    """Return an example of a problem document."""
    errors = []
    if slug == "invalid":
        errors.append(FieldError(pointer="/name", rule="missing", message="Field required"))
    if slug == "disclosure-refused":
        errors.append(
            FieldError(
                pointer="/payload/counts/0",
                rule="smallest-count",
                message="fewer rows than a site may report",
            )
        )
    document = problem(slug, PROBLEM_HELP[slug].action, errors, request_id="0" * 16)
    return document.model_dump(exclude_none=True, mode="json")
