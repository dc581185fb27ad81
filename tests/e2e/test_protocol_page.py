"""``docs/protocol.md``: its bytes are worked out again."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

from fedclust.wire import codec
from recorded import recorded_bodies

PAGE = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text("utf-8")


# --- canonical bytes, by hand ---------------------------------------------------------------------


def packed(value: Any) -> bytes:
    """Return the canonical form as the page tells it; written without the program's own."""
    return bytes(msgpack.packb(_plain(value)))


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        raw = value.astype(value.dtype.newbyteorder("<")).tobytes()
        return {"data": raw, "dtype": value.dtype.name, "shape": list(value.shape)}
    if isinstance(value, dict):
        return {key: _plain(value[key]) for key in sorted(value)}
    return [_plain(each) for each in value] if isinstance(value, list) else value


WORKED = {
    "common": {
        "parameters": {"centroids": np.array([[1.5, -2.0]]), "tol": 1e-06},
        "phase": "lloyd",
        "round": 300,
        "session": "heart-2026",
        "space": None,
    },
    "site": {"cells": np.array([3], dtype=np.int64), "last": True},
}


def test_the_worked_bytes_of_the_page_are_right() -> None:
    block = re.search(r"<!-- worked bytes -->\n+```\n(.*?)```", PAGE, re.S)
    lines = [line.split("  ")[0] for line in block[1].splitlines()]
    shown = bytes.fromhex("".join("".join(lines).split()))
    assert shown == packed(WORKED) == codec.encode(WORKED)
    digest = hashlib.sha256(shown).hexdigest()
    assert digest == codec.task_digest(WORKED["common"], WORKED["site"])
    assert f"`{digest}`" in PAGE


VALUES: list[Any] = [
    *(0, 127, 128, 255, 256, 65_535, 65_536, 2**32 - 1, 2**32, 2**63 - 1, 2**64 - 1),
    *(-1, -32, -33, -128, -129, -32_768, -32_769, -(2**31), -(2**31) - 1, -(2**63)),
    *(0.0, -0.0, 1e-6, 1e300, True, False, None, "", "ä", "x" * 31, "x" * 32, "x" * 70_000),
    *([], list(range(15)), list(range(16)), {str(n): n for n in range(17)}),
    *(np.zeros((2, 3)), np.arange(3), np.array([True, False]), np.zeros((0, 4))),
    *(np.zeros((3, 100), dtype=np.float32), np.arange(6.0).reshape(2, 3).T),
]


def test_the_canonical_form_is_as_the_page_tells_it() -> None:
    for value in VALUES:
        assert packed(value) == codec.encode(value)


def test_the_definitions_hash_is_as_the_page_tells_it() -> None:
    block = re.search(r"<!-- worked definition -->\n+```json\n(.*?)\n```\n+`(\w{64})`", PAGE, re.S)
    text, digest = block[1].replace("\n", ""), block[2]
    assert hashlib.sha256(text.encode()).hexdigest() == digest
    frozen = recorded_bodies()["create_session"]["responses"]["201"]
    assert (json.loads(text), digest) == (frozen["definition"], frozen["definition_sha256"])
    assert PAGE.count(digest) >= 3  # also in the transcripts


# --- a task's digest from JSON, as the page tells it ----------------------------------------------

ROOT = Path(__file__).parents[2] / "docs" / "openapi"
DOCUMENT: dict[str, Any] = json.loads((ROOT / "openapi.json").read_text("utf-8"))
PHASES = [
    (method["name"], phase)
    for method in DOCUMENT["x-fedclust-methods"]
    for phase in method["phases"]
    # Of phases that all methods share, one method has the examples (tests/http/test_openapi.py).
    if (ROOT / "examples" / method["name"] / phase["name"]).exists()
]
_DTYPES = {"number": "float64", "integer": "int64", "boolean": "bool"}


def revived(value: Any, schema: dict[str, Any]) -> Any:
    """Turn what a schema says is an array of numbers into one, and its floats into floats."""
    if "$ref" in schema:
        schema = DOCUMENT["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    for choice in schema.get("anyOf", ()):
        if (choice.get("type") == "null") == (value is None):
            return revived(value, choice)
    if schema.get("x-fedclust-array"):
        axes, inner = 0, schema
        while inner["type"] == "array":
            axes, inner = axes + 1, inner["items"]
        array = np.array(value, dtype=_DTYPES[inner["type"]])
        return array if array.ndim == axes else array.reshape((0,) * axes)
    if isinstance(value, list) and "items" in schema:
        return [revived(item, schema["items"]) for item in value]
    if isinstance(value, dict):
        fields, others = schema.get("properties", {}), schema.get("additionalProperties")
        rest = others if isinstance(others, dict) else {}
        return {name: revived(item, fields.get(name, rest)) for name, item in value.items()}
    return float(value) if schema.get("type") == "number" else value


def test_a_digest_can_be_had_from_json_and_the_description() -> None:
    for method, phase in PHASES:
        view = json.loads(
            (ROOT / "examples" / method / phase["name"] / "task.json").read_text("utf-8")
        )
        task, number = view["task"], {"type": "number"}
        vector = {"type": "array", "items": number, "x-fedclust-array": True}
        common = {
            **task["common"],
            "parameters": revived(task["common"]["parameters"], phase["parameters"]),
            "space": task["common"]["space"]
            and {
                name: None if value is None else revived(value, vector)
                for name, value in task["common"]["space"].items()
            },
        }
        site = task["site"] and revived(task["site"], phase["site"])
        found = hashlib.sha256(packed({"common": common, "site": site})).hexdigest()
        assert found == task["digest"]
