"""What FastAPI does not know about a route: the problems that it answers with, and headers."""

from __future__ import annotations

from typing import Any

from fedclust.wire.problems import CATALOGUE, FieldError, problem
from fedclust.wire.problems import CONTENT_TYPE as PROBLEM

#: Problems of every route: of the middleware, and of parameters.
_EVERYWHERE = (
    "malformed-request",
    "invalid",
    "too-many-requests",
    "headers-too-large",
    "internal",
    "unavailable",
)
#: Problems of every route that reads a body.
_OF_BODIES = (
    "malformed-request",
    "request-timeout",
    "body-too-large",
    "unsupported-media-type",
)
#: Temporary problems, which carry Retry-After.
_PASSING = {"request-timeout", "result-not-ready", "too-many-requests", "internal", "unavailable"}
_OWN = "x-problems"
BINARY_CONTENT = {"schema": {"type": "string", "format": "binary"}}


def refusals(*slugs: str) -> dict[str, Any]:
    """Return a route's ``openapi_extra``: its problems besides those that `add_problems` adds."""
    return {_OWN: slugs}


def headers(texts: dict[str, str]) -> dict[str, Any]:
    """Return the part of a response that describes its headers, given their texts by name."""
    schema = {"type": "string"}
    described = {name: {"description": text, "schema": schema} for name, text in texts.items()}
    return {"headers": described}


def ref(schema: str) -> dict[str, str]:
    """Return a reference to a schema that :mod:`schemas` derives."""
    return {"$ref": f"#/components/schemas/{schema}"}


def problem_response(description: str, *slugs: str) -> dict[str, Any]:
    """Return the response of one status: a problem document, with the examples of these types."""
    content: dict[str, Any] = {"schema": ref("Problem")}
    if slugs:
        content["examples"] = {slug: {"$ref": f"#/components/examples/{slug}"} for slug in slugs}
    return {"description": description, "content": {PROBLEM: content}}


def add_problems(path: str, operation: dict[str, Any]) -> None:
    """Add the problems that an operation of the description can answer with, in place."""
    of_token = ["unauthenticated"] if operation["security"] else []
    of_path = ["not-found"] if "{" in path else []
    of_body = _OF_BODIES if "requestBody" in operation else ()
    by_status: dict[int, list[str]] = {}
    slugs = (*of_token, *of_path, *of_body, *operation.pop(_OWN, ()), *_EVERYWHERE)
    for slug in dict.fromkeys(slugs):
        by_status.setdefault(CATALOGUE[slug][0], []).append(slug)
    for status, same in sorted(by_status.items()):
        text = "\n\n".join(f"`{slug}`: {CATALOGUE[slug][1]}." for slug in same)
        response = operation["responses"][str(status)] = problem_response(text, *same)
        if status == 401:
            response |= headers({"WWW-Authenticate": "`Bearer`."})
        if _PASSING.intersection(same):
            text = "Seconds to wait before the next try. Absent if waiting does not help."
            response |= headers({"Retry-After": text})


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
    document = problem(slug, f"{CATALOGUE[slug][1]}.", errors, request_id="0" * 16)
    return document.model_dump(exclude_none=True, mode="json")
