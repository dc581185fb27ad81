"""Write ``openapi.json`` (part of `make openapi`): FastAPI's description, with our models.

Pydantic makes the schemas from the models of :mod:`fedclust.wire` and of the methods of this
project, so the description always matches the bodies. Other methods are described by
``/v1/algorithms`` alone. A coordinator serves the file as it is.
"""

import itertools
import json
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

import derived_schemas as schemas
import recorded
from fedclust import rounds
from fedclust.methods.common.options import takes_several
from fedclust.rounds import sweep
from fedclust.schema.method import AnyMethod
from fedclust.wire.codec import CONTENT_TYPE as BINARY
from fedclust.wire.errors import CATALOGUE, PREFIX, FieldError, Problem, problem
from fedclust.wire.errors import CONTENT_TYPE as PROBLEM
from fedclust_service.http.api_route import PROBLEMS, headers, problem_response
from fedclust_service.http.routes import api_routes

FILE = Path(__file__).with_name("openapi.json")
_PREFIX = "#/components/schemas/"
_DESCRIPTION = """\
Clustering across organisations that may not pool their data. Sites keep their rows and send small
summaries; this coordinator stores each of them, aggregates a round when its sites have answered,
and hands out the next.

**Try this first.** Press *Authorize* and paste your token. Then open `GET /v1/whoami` below, press
*Try it out* and *Execute*: the answer says who you are. `GET /v1/sessions` lists your sessions.
With curl: `curl -H "Authorization: Bearer $TOKEN" ADDRESS/v1/whoami`.

Errors are RFC 9457 problem documents. The schema *Problem*, at the end, lists their types.
Arrays are nested lists in JSON. In `{binary}` they are maps `dtype`, `shape`, `data` with raw
little-endian bytes. Lists take `limit` and `cursor` and answer `items` and `next`.
"""
_PROBLEMS = """\
An RFC 9457 problem document. `type` is stable and one of:

{problems}
"""
_TAGS = {
    "about": "The caller, and what methods compute and disclose.",
    "sites": "Sites and their tokens.",
    "analysts": "Analysts and their tokens.",
    "operators": "Operators and their tokens.",
    "studies": "What several sessions of the same sites have in common.",
    "sessions": "Sessions: defined, started, read, deleted while nobody has joined.",
    "participation": "Sites join with consent and leave.",
    "tasks": "What a site should do now.",
    "submissions": "A site's answer to a round, exactly once.",
    "rounds": "Rounds without payloads.",
    "results": "The clustering.",
    "audit": "The hashes of the audit trail.",
    "admin": "Pages for operators.",
    "health": "For monitoring.",
}

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


def build_description() -> dict[str, Any]:
    """Return the description of the routes."""
    lines = [
        f"- `{PREFIX}{slug}` ({status}): {title}." for slug, (status, title) in CATALOGUE.items()
    ]
    document: dict[str, Any] = get_openapi(
        title="fedclust coordinator",
        version=version("fedclust"),
        summary="The coordinator's HTTP interface, version 1.",
        description=_DESCRIPTION.format(binary=BINARY),
        servers=[{"url": "/", "description": "This coordinator."}],
        contact={"name": "The operator of this coordinator"},
        separate_input_output_schemas=False,
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        tags=[{"name": name, "description": text} for name, text in _TAGS.items()],
        routes=api_routes(),
    )
    of_routes, titles = _by_title(document["components"].pop("schemas"))
    document = _renamed(document, titles)
    derived, names = _schemas()
    parts = document["components"]
    parts["schemas"] = dict(sorted((of_routes | derived).items()))
    parts["schemas"]["Problem"]["description"] = _PROBLEMS.format(problems="\n".join(lines))

    def described(method: AnyMethod) -> list[dict[str, Any]]:
        return [
            {
                "name": phase.name,
                "parameters": names[phase.task],
                "site": phase.site_part and names[phase.site_part],
                "payload": names[phase.payload],
            }
            for phase in rounds.all_phases(method)
        ]

    document["x-fedclust-methods"] = [
        {
            "name": name,
            "version": method.version,
            "options": names[method.options],
            "phases": described(method),
            # Of sessions that compare several n_clusters.
            **(
                {"phases_of_several": described(sweep.for_several(method))}
                if takes_several(method.options)
                else {}
            ),
        }
        for name, method in sorted(schemas.described_methods().items())
    ]
    _open_answers(document)
    for path, methods in document["paths"].items():
        for operation in methods.values():
            _add_problems(path, operation)
            for parameter in operation.get("parameters", ()):
                del parameter["schema"]["title"]
    parts["examples"] = {slug: {"value": _problem_example(slug)} for slug in CATALOGUE}
    recorded.add_examples(document)
    return document


def _open_answers(document: dict[str, Any]) -> None:
    """Let answers have further fields, which clients ignore; not what is sent or has a hash."""
    schemas = document["components"]["schemas"]
    waiting: list[Any] = [
        [
            one["requestBody"]
            for each in document["paths"].values()
            for one in each.values()
            if "requestBody" in one
        ],
        document["x-fedclust-methods"],
        [_PREFIX + "Definition", _PREFIX + "TaskDocument"],
    ]
    closed: set[str] = set()
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict | list):
            waiting += part.values() if isinstance(part, dict) else part
            continue
        name = str(part).removeprefix(_PREFIX)
        if name != part and name in schemas.keys() - closed:
            closed.add(name)
            waiting.append(schemas[name])
    for name, schema in schemas.items():
        if name not in closed and schema.get("additionalProperties") is False:
            del schema["additionalProperties"]


def _schemas() -> tuple[dict[str, Any], dict[type[BaseModel], dict[str, str]]]:
    """Return the schemas that no route has, by title, and a reference to that of each model."""
    wanted: list[type[BaseModel]] = [Problem, *schemas.derived()]
    wanted += [method.options for method in schemas.described_methods().values()]
    for phase in itertools.chain(*schemas.phases().values()):
        wanted += [phase.task, phase.payload]
        wanted += [] if phase.site_part is None else [phase.site_part]
    refs, shared = models_json_schema(
        [(model, "validation") for model in dict.fromkeys(wanted)],
        ref_template=_PREFIX + "{model}",
    )
    found, names = _by_title(shared["$defs"])
    return found, {model: _renamed(refs[model, "validation"], names) for model in wanted}


def _by_title(schemas: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return schemas by title, and their new references by the old ones.

    Pydantic names classes that share a name by their modules, and generic ones by their origin. A
    title is then the name of one schema: fields have none.
    """
    names = {_PREFIX + name: _PREFIX + part["title"] for name, part in schemas.items()}
    found: dict[str, Any] = {}
    for part in schemas.values():
        title = part["title"]
        if title in found:
            raise ValueError(f"two models have the title {title}: give one of them another")
        for field in part.get("properties", {}).values():
            field.pop("title", None)
        found[title] = _renamed(part, names)
    return found, names


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    """Return a part of a schema with its references to others renamed."""
    if isinstance(value, dict):
        return {key: _renamed(item, names) for key, item in value.items()}
    if isinstance(value, list):
        return [_renamed(item, names) for item in value]
    return names.get(value, value) if isinstance(value, str) else value


def _add_problems(path: str, operation: dict[str, Any]) -> None:
    """Add the problems that an operation of the description can answer with, in place."""
    of_token = ["unauthenticated"] if operation["security"] else []
    of_path = ["not-found"] if "{" in path else []
    of_body = _OF_BODIES if "requestBody" in operation else ()
    by_status: dict[int, list[str]] = {}
    slugs = (*of_token, *of_path, *of_body, *operation.pop(PROBLEMS, ()), *_EVERYWHERE)
    for slug in dict.fromkeys(slugs):
        by_status.setdefault(CATALOGUE[slug][0], []).append(slug)
    for status, same in sorted(by_status.items()):
        text = "\n\n".join(f"`{slug}`: {CATALOGUE[slug][1]}." for slug in same)
        response = operation["responses"][str(status)] = problem_response(text)
        response["content"][PROBLEM]["examples"] = {
            slug: {"$ref": f"#/components/examples/{slug}"} for slug in same
        }
        if status == 401:
            response |= headers({"WWW-Authenticate": "`Bearer`."})
        if _PASSING.intersection(same):
            text = "Seconds to wait before the next try. Absent if waiting does not help."
            response |= headers({"Retry-After": text})


def _problem_example(slug: str) -> dict[str, Any]:
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


def openapi_text() -> str:
    """Return the description as the file has it."""
    return json.dumps(build_description(), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def main(check: bool) -> str | None:
    """Write the file. With ``check`` only return what to do if it is not current."""
    current = openapi_text()
    if not check:
        FILE.write_text(current, "utf-8")
    elif FILE.read_text("utf-8") != current:
        return f"{FILE} is not current: run `make openapi`"
    return None


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv))
