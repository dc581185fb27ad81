"""``openapi.json``: FastAPI's description of the routes, completed with our models.

Schemas are made by pydantic from the models of :mod:`fedclust.wire` and of every registered
method, so that the description cannot say anything else than what is read and written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from fedclust.algorithms import engine, sweep
from fedclust.algorithms.base import Method, Phase, Result
from fedclust.algorithms.registry import METHODS
from fedclust.wire import models
from fedclust.wire.codec import CONTENT_TYPE as BINARY
from fedclust.wire.problems import CATALOGUE, PREFIX, Problem
from fedclust.wire.submissions import submission_model
from fedclust_service.http import examples
from fedclust_service.http.describe import problem_examples
from fedclust_service.orchestration import admin

_PREFIX = "#/components/schemas/"
#: Stands for "one of every phase's submission" until the methods are known.
_ANY_SUBMISSION = {"$ref": f"{_PREFIX}Submission"}
SUBMISSION: dict[str, Any] = {
    "application/json": {"schema": _ANY_SUBMISSION},
    BINARY: {"schema": {"type": "string", "format": "binary"}},
}
_MODELS: tuple[type[BaseModel], ...] = (
    admin.AdminAuditEntry,
    admin.AdminSession,
    admin.Overview,
    models.AlgorithmInfo,
    models.AssignmentRequest,
    models.AuditHead,
    models.Assignments,
    models.Participation,
    models.ParticipationInfo,
    models.PrincipalCreate,
    models.PrincipalInfo,
    models.PrincipalPatch,
    models.Receipt,
    models.ResultDocument,
    models.RoundInfo,
    models.SessionCreate,
    models.SessionInfo,
    models.SessionPatch,
    models.TaskResponse,
    models.TokenCreate,
    models.TokenIssued,
    models.WhoAmI,
    Problem,
    Result,
)
_DESCRIPTION = """\
Clustering across organisations that may not pool their data. Sites keep their rows and send small
summaries; this coordinator stores each of them, aggregates a round when its sites have answered,
and hands out the next.

Errors are RFC 9457 problem documents; `type` is stable:

{problems}

Arrays are nested lists in JSON. In `{binary}` they are maps `dtype`, `shape`, `data` with raw
little-endian bytes. Lists take `limit` and `cursor` and answer `items` and `next`.
"""
_TAGS = {
    "about": "The caller, and what methods compute and disclose.",
    "sites": "Sites and their tokens.",
    "analysts": "Analysts and their tokens.",
    "sessions": "Sessions: defined, started, read.",
    "participation": "Sites join with consent and leave.",
    "tasks": "What a site should do now.",
    "submissions": "A site's answer to a round, exactly once.",
    "rounds": "Rounds without payloads.",
    "results": "The clustering.",
    "events": "What happens, as it happens, and the hashes that vouch for it.",
    "admin": "What operators watch.",
    "health": "For whoever watches the process.",
}


def build(app: FastAPI) -> dict[str, Any]:
    """Return the description of an application, the same for the same program."""
    lines = [
        f"- `{PREFIX}{slug}` ({status}): {title}." for slug, (status, title) in CATALOGUE.items()
    ]
    document = get_openapi(
        title=app.title,
        version=app.version,
        summary="The coordinator's HTTP interface, version 1.",
        description=_DESCRIPTION.format(problems="\n".join(lines), binary=BINARY),
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        tags=[{"name": name, "description": text} for name, text in _TAGS.items()],
        routes=app.routes,
    )
    phases = _phases(METHODS)
    every_k = {name: sweep.swept(each) for name, each in METHODS.items() if each.sweeps}
    several = {phase: who for phase, who in _phases(every_k).items() if phase not in phases}
    bodies = {phase: submission_model(phase.payload) for phase in (*phases, *several)}
    wanted = [*_MODELS, *(method.options for method in METHODS.values())]
    for phase, body in bodies.items():
        wanted += [body, phase.task] + ([phase.site_part] if phase.site_part else [])
    unique = list(dict.fromkeys(wanted))
    refs, shared = models_json_schema(
        [(model, "validation") for model in unique], ref_template=_PREFIX + "{model}"
    )
    schemas: dict[str, Any] = dict(shared["$defs"])
    names = {model: ref["$ref"].removeprefix(_PREFIX) for (model, _), ref in refs.items()}
    schemas["Submission"] = {
        "description": "The answer to a round; `payload` depends on the phase of its task.",
        "oneOf": [
            {
                "title": f"{name} ({', '.join(sorted(each))})",
                "allOf": [
                    {"$ref": _PREFIX + names[body]},
                    {"properties": {"phase": {"const": name}}},
                ],
            }
            for (name, body), each in _answers(phases, bodies).items()
        ]
        + [
            {
                "title": f"{name} ({', '.join(sorted(each))}), of several n_clusters",
                "allOf": [
                    {"$ref": _PREFIX + names[body]},
                    # An empty answer is one of the above.
                    {
                        "properties": {
                            "phase": {"const": name},
                            "payload": {"not": {"type": "null"}},
                        }
                    },
                ],
            }
            for (name, body), each in _answers(several, bodies).items()
        ],
    }
    parts = document["components"]
    # FastAPI's own: the enumerations of parameters.
    own = {name: part for name, part in parts.get("schemas", {}).items() if "enum" in part}
    parts["schemas"] = dict(sorted((own | schemas).items()))
    schemas["ResultDocument"]["properties"]["result"] = {"$ref": _PREFIX + names[Result]}

    def described(method: Method) -> list[dict[str, Any]]:
        return [
            {
                "name": phase.name,
                "parameters": {"$ref": _PREFIX + names[phase.task]},
                "site": phase.site_part and {"$ref": _PREFIX + names[phase.site_part]},
                "submission": {"$ref": _PREFIX + names[bodies[phase]]},
            }
            for phase in engine.all_phases(method)
        ]

    document["x-fedclust-methods"] = [
        {
            "name": name,
            "version": method.version,
            "options": {"$ref": _PREFIX + names[method.options]},
            "phases": described(method),
            # Of sessions that compare several n_clusters.
            **({"phases_of_several": described(every_k[name])} if method.sweeps else {}),
        }
        for name, method in sorted(METHODS.items())
    ]
    for operation in document["paths"].get("/metrics", {}).values():
        operation["security"].append({})  # from the coordinator's own machine it needs no token
    parts["examples"] = problem_examples()
    examples.complete(document)
    return document


def _answers(
    phases: dict[Phase, list[str]], bodies: dict[Phase, type[BaseModel]]
) -> dict[tuple[str, type[BaseModel]], set[str]]:
    """Return what an answer may be: a phase's name and a body, with the methods that ask for it.

    Phases of several methods may share both and differ in their tasks.
    """
    found: dict[tuple[str, type[BaseModel]], set[str]] = {}
    for phase, users in phases.items():
        found.setdefault((phase.name, bodies[phase]), set()).update(users)
    return found


def _phases(methods: Mapping[str, Method]) -> dict[Phase, list[str]]:
    """Return every phase, the engine's included, with the methods that have it."""
    found: dict[Phase, list[str]] = {}
    for name, method in sorted(methods.items()):
        for phase in engine.all_phases(method):
            found.setdefault(phase, []).append(name)
    return found
