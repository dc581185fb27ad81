"""What FastAPI does not know about a route: the problems that it answers with, and headers."""

from typing import Any

from fedclust.wire.problems import CONTENT_TYPE as PROBLEM

#: Where an operation names its problems until `docs/openapi/description.py` describes them.
PROBLEMS = "x-problems"
BINARY_CONTENT = {"schema": {"type": "string", "format": "binary"}}


def refusals(*slugs: str) -> dict[str, Any]:
    """Return a route's ``openapi_extra``: its problems besides those of every route."""
    return {PROBLEMS: slugs}


def headers(texts: dict[str, str]) -> dict[str, Any]:
    """Return the part of a response that describes its headers, given their texts by name."""
    schema = {"type": "string"}
    described = {name: {"description": text, "schema": schema} for name, text in texts.items()}
    return {"headers": described}


def ref(schema: str) -> dict[str, str]:
    """Return a reference to a schema of ``openapi.json``."""
    return {"$ref": f"#/components/schemas/{schema}"}


def problem_response(description: str) -> dict[str, Any]:
    """Return a response that is a problem document."""
    return {"description": description, "content": {PROBLEM: {"schema": ref("Problem")}}}
