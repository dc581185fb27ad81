"""Examples and links of ``openapi.json``, which follow one session from start to end.

``make openapi`` records the bodies. They work when sent one after another to a new coordinator in
which ``north``, ``south`` and ``west`` are registered.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from fedclust.wire.problems import CONTENT_TYPE as PROBLEM
from fedclust.wire.submissions import JSON

FILE = Path(__file__).with_name("examples.json")
_NAMES = {"sites": "north", "analysts": "ada", "operators": "grace"}
_PARAMETERS: dict[str, Any] = {
    "algorithm": "lloyd",
    "number": 1,
    "session": "heart-2026",
    "site": "west",
    "study": "heart",
    "table_id": "5b0a0ad3f5f0443fbd2f3a4a8f6f7a3e",
    "token_id": "AAAAAAAAAAAA",
}
_BODY = "$response.body#/"
#: Links: operation -> where its answer holds the parameters of other operations, and which ones.
_LEADS: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    **{
        f"create_{one}": (
            {"name": f"{_BODY}name"},
            (f"get_{one}", f"change_{one}", f"issue_{one}_token"),
        )
        for one in ("site", "analyst", "operator")
    },
    **{
        f"issue_{one}_token": (
            {"name": "$request.path.name", "token_id": f"{_BODY}id"},
            (f"revoke_{one}_token",),
        )
        for one in ("site", "analyst", "operator")
    },
    "create_study": ({"study": f"{_BODY}name"}, ("get_study", "delete_study")),
    "create_session": (
        {"session": f"{_BODY}name"},
        (
            "get_session",
            "change_session",
            "join_session",
            "leave_session",
            "start_session",
            "cancel_session",
            "delete_session",
            "get_task",
            "list_rounds",
            "get_result",
        ),
    ),
    "join_session": (
        {"session": f"{_BODY}session", "site": f"{_BODY}site"},
        ("get_task", "leave_session", "exclude_site"),
    ),
    "start_session": ({"session": f"{_BODY}name"}, ("get_task", "list_rounds")),
    "get_task": (
        {"session": "$request.path.session", "number": f"{_BODY}round"},
        ("put_submission", "get_round"),
    ),
    "put_submission": (
        {"session": f"{_BODY}session", "number": f"{_BODY}round"},
        ("get_round", "close_round"),
    ),
}


@cache
def recorded_bodies() -> dict[str, Any]:
    """Return operation id -> ``{"request": body, "responses": {status: body}}``."""
    return dict(json.loads(FILE.read_text("utf-8"))) if FILE.exists() else {}


def add_examples(document: dict[str, Any]) -> None:
    """Add examples of parameters and bodies, and links, to a description, in place."""
    paths = {
        operation["operationId"]: path
        for path, methods in document["paths"].items()
        for operation in methods.values()
    }
    for path, methods in document["paths"].items():
        for operation in methods.values():
            _add_parameter_examples(path, operation.get("parameters", ()))
            _bodies(operation, recorded_bodies().get(operation["operationId"], {}))
            _links(operation, paths)


def _add_parameter_examples(path: str, parameters: Any) -> None:
    for parameter in parameters:
        if parameter["in"] != "path":
            continue
        name = parameter["name"]
        example = _NAMES.get(path.split("/")[2]) if name == "name" else _PARAMETERS.get(name)
        if example is not None:
            parameter["example"] = example


def _bodies(operation: dict[str, Any], bodies: dict[str, Any]) -> None:
    if "request" in bodies:
        content = operation["requestBody"]["content"][JSON]
        content["examples"] = {"recorded": {"value": bodies["request"]}}
    for status, body in bodies.get("responses", {}).items():
        kinds = operation["responses"].get(status, {}).get("content", {})
        for media in kinds.keys() - {PROBLEM}:
            if media == JSON or isinstance(body, str):
                kinds[media]["examples"] = {"recorded": {"value": body}}


def _links(operation: dict[str, Any], paths: dict[str, str]) -> None:
    if operation["operationId"] not in _LEADS:
        return
    parameters, targets = _LEADS[operation["operationId"]]
    links = {
        target: {
            "operationId": target,
            "parameters": {
                name: where for name, where in parameters.items() if f"{{{name}}}" in paths[target]
            },
        }
        for target in targets
    }
    for status in {"200", "201"} & operation["responses"].keys():
        operation["responses"][status]["links"] = links
