"""Examples of ``openapi.json``, which follow one session from start to end.

``make openapi`` records the bodies. They work when sent one after another to a new coordinator in
which ``north``, ``south`` and ``west`` are registered.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

from fedclust.wire.errors import CONTENT_TYPE as PROBLEM
from fedclust.wire.submissions import JSON

FILE = Path(__file__).with_name("recorded.json")
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


@cache
def recorded_bodies() -> dict[str, Any]:
    """Return operation id -> ``{"request": body, "responses": {status: body}}``."""
    return dict(json.loads(FILE.read_text("utf-8"))) if FILE.exists() else {}


def add_examples(document: dict[str, Any]) -> None:
    """Add examples of parameters and bodies to a description, in place."""
    for path, methods in document["paths"].items():
        for operation in methods.values():
            _add_parameter_examples(path, operation.get("parameters", ()))
            _bodies(operation, recorded_bodies().get(operation["operationId"], {}))


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
