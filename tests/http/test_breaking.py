"""What breaks a client is found, what does not is let through, and CHANGES.md has to tell."""

from __future__ import annotations

import copy
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

OPENAPI = Path(__file__).resolve().parents[2] / "openapi"


def _module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("openapi_breaking", OPENAPI / "breaking.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


BREAKING = _module()
OLD: dict[str, Any] = json.loads((OPENAPI / "openapi.json").read_text("utf-8"))
Change = Callable[[dict[str, Any]], object]


def schema(document: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = document["components"]["schemas"][name]
    return found


def field(document: dict[str, Any], name: str, of: str) -> dict[str, Any]:
    found: dict[str, Any] = schema(document, of)["properties"][name]
    return found


def method(document: dict[str, Any], name: str) -> dict[str, Any]:
    methods: list[dict[str, Any]] = document["x-fedclust-methods"]
    return next(each for each in methods if each["name"] == name)


def operation(document: dict[str, Any], path: str, method: str) -> dict[str, Any]:
    found: dict[str, Any] = document["paths"][path][method]
    return found


def waited(document: dict[str, Any]) -> dict[str, Any]:
    parameters: list[dict[str, Any]] = operation(document, TASK, "get")["parameters"]
    return next(each for each in parameters if each["name"] == "wait")


SESSIONS, TASK = "/v1/sessions", "/v1/sessions/{session}/task"
PUT = "/v1/sessions/{session}/rounds/{number}/submission"
JOIN = "/v1/sessions/{session}/participation"
DEFINITION = "LloydSessionCreate"
CREATE: dict[str, Any] = {"name": "mode", "in": "query", "schema": {"type": "string"}}

BREAKS: dict[str, tuple[Change, str]] = {
    "a path removed": (lambda d: d["paths"].pop(TASK), f"GET {TASK}: operation removed"),
    "a method removed": (
        lambda d: d["paths"][SESSIONS].pop("post"),
        f"POST {SESSIONS}: operation removed",
    ),
    "an operation renamed": (
        lambda d: operation(d, TASK, "get").update(operationId="task"),
        f"GET {TASK}: operationId changed",
    ),
    "an open route closed": (
        lambda d: operation(d, "/healthz", "get").update(security=[{"token": []}]),
        "GET /healthz: token needed",
    ),
    "a route opened": (
        lambda d: operation(d, TASK, "get").update(security=[]),
        f"GET {TASK}: no token needed",
    ),
    "a token that is sent in another way": (
        lambda d: next(iter(d["components"]["securitySchemes"].values())).update(scheme="digest"),
        "token: ",
    ),
    "a second token": (
        lambda d: operation(d, TASK, "get")["security"][0].update(cookie=[]),
        f"GET {TASK}: token no longer taken as before",
    ),
    "another address": (lambda d: d.update(servers=[{"url": "/api"}]), "servers changed"),
    "a status removed": (
        lambda d: operation(d, PUT, "put")["responses"].pop("200"),
        f"PUT {PUT}: status 200 removed",
    ),
    "an error's status removed": (
        lambda d: operation(d, PUT, "put")["responses"].pop("410"),
        f"PUT {PUT}: status 410 removed",
    ),
    "a problem type removed": (
        lambda d: operation(d, PUT, "put")["responses"]["409"].update(description="`other`: New."),
        f"PUT {PUT}: problem task-mismatch of 409 removed",
    ),
    "a header of another type": (
        lambda d: operation(d, TASK, "get")["responses"]["200"]["headers"]["ETag"].update(
            schema={"type": "integer"}
        ),
        f"GET {TASK}: header ETag of 200: type widened from string to integer",
    ),
    "a header removed": (
        lambda d: operation(d, TASK, "get")["responses"]["200"]["headers"].pop("ETag"),
        f"GET {TASK}: header ETag of 200 removed",
    ),
    "a media type removed": (
        lambda d: operation(d, PUT, "put")["requestBody"]["content"].pop("application/json"),
        f"PUT {PUT}: request as application/json removed",
    ),
    "a parameter removed": (
        lambda d: operation(d, TASK, "get")["parameters"].remove(waited(d)),
        f"GET {TASK}: query parameter wait removed",
    ),
    "a new required parameter": (
        lambda d: operation(d, SESSIONS, "post").update(parameters=[{**CREATE, "required": True}]),
        f"POST {SESSIONS}: query parameter mode is new and required",
    ),
    "a parameter's limit lowered": (
        lambda d: waited(d)["schema"].update(maximum=5),
        f"GET {TASK}: query parameter wait: maximum lowered",
    ),
    "a new required field": (
        lambda d: (
            schema(d, DEFINITION)["properties"].update(owner={"type": "string"}),
            schema(d, DEFINITION)["required"].append("owner"),
        ),
        f"POST {SESSIONS}: request: field owner is required",
    ),
    "a field that became required": (
        lambda d: schema(d, DEFINITION)["required"].append("policy"),
        f"POST {SESSIONS}: request: field policy is required",
    ),
    "a field no longer taken": (
        lambda d: schema(d, DEFINITION)["properties"].pop("seed"),
        f"POST {SESSIONS}: request: field seed removed",
    ),
    "a type narrowed": (
        lambda d: field(d, "size_band", "Participation").update(type="integer"),
        f"PUT {JOIN}: request/size_band: type narrowed from string to integer",
    ),
    "a number narrowed to an integer, deep down": (
        lambda d: field(d, "weight", "Feature").update(type="integer"),
        f"POST {SESSIONS}: request/features/*/weight: type narrowed from number to integer",
    ),
    "null no longer taken": (
        lambda d: field(d, "seed", DEFINITION)["anyOf"].pop(),
        f"POST {SESSIONS}: request/seed: null no longer taken",
    ),
    "a value no longer taken": (
        lambda d: field(d, "scaling", "Policy")["enum"].remove("none"),
        f'POST {SESSIONS}: request/policy/scaling: value "none" no longer taken',
    ),
    "a stricter bound": (
        lambda d: field(d, "min_sites", "Policy").update(minimum=4),
        f"POST {SESSIONS}: request/policy/min_sites: minimum raised",
    ),
    "a bound that excludes itself": (
        lambda d: field(d, "min_sites", "Policy").update(exclusiveMinimum=1),
        f"POST {SESSIONS}: request/policy/min_sites: minimum raised",
    ),
    "a rule of another kind": (
        lambda d: field(d, "features", "Participation").update(uniqueItems=True),
        f"PUT {JOIN}: request/features: uniqueItems changed",
    ),
    "another default": (
        lambda d: field(d, "min_group_size", "Policy").update(default=2),
        f"POST {SESSIONS}: request/policy/min_group_size: default changed",
    ),
    "a shorter text": (
        lambda d: field(d, "size_band", "Participation").update(maxLength=3),
        f"PUT {JOIN}: request/size_band: maxLength lowered",
    ),
    "another pattern": (
        lambda d: field(d, "name", DEFINITION).update(pattern="^x$"),
        f"POST {SESSIONS}: request/name: pattern changed",
    ),
    "an answer's field removed": (
        lambda d: (
            schema(d, "Receipt")["properties"].pop("sha256"),
            schema(d, "Receipt")["required"].remove("sha256"),
        ),
        f"PUT {PUT}: answer 201: field sha256 removed",
    ),
    "an answer's field that may be absent": (
        lambda d: schema(d, "Receipt")["required"].remove("sha256"),
        f"PUT {PUT}: answer 201: field sha256 may be absent",
    ),
    "an answer that may be null": (
        lambda d: schema(d, "Receipt")["properties"].update(
            size={"anyOf": [{"type": "integer"}, {"type": "null"}]}
        ),
        f"PUT {PUT}: answer 201/size: null may be answered",
    ),
    "a state that clients do not know": (
        lambda d: field(d, "status", "TaskResponse")["enum"].append("paused"),
        f'GET {TASK}: answer 200/status: value "paused" may be answered',
    ),
    "a time that may be any text": (
        lambda d: field(d, "received_at", "Receipt").pop("format"),
        f"PUT {PUT}: answer 201/received_at: format changed",
    ),
    "a method removed altogether": (
        lambda d: d["x-fedclust-methods"].pop(),
        "method spectral: removed",
    ),
    "a method's option no longer taken": (
        lambda d: schema(d, "LloydConfig")["properties"].pop("tol"),
        "method lloyd: options: field tol removed",
    ),
    "a task without what its site computes with": (
        lambda d: schema(d, "StepTask")["properties"].pop("centroids"),
        "method lloyd: lloyd: field centroids removed",
    ),
    "a phase's payload of another type": (
        lambda d: field(d, "counts", "Step").update(items={"type": "boolean"}),
        f"PUT {PUT}: request/payload: Step no longer taken",
    ),
    "a phase's task of another type": (
        lambda d: field(d, "centroids", "StepTask").update(items={"type": "string"}),
        f"GET {TASK}: answer 200/task: TaskDocument may be answered",
    ),
    "a choice that became one schema": (
        lambda d: d["components"]["schemas"].update(TaskDocument={"type": "string"}),
        f"GET {TASK}: answer 200/task: TaskDocument may be answered",
    ),
    "another phase in the same version": (
        lambda d: method(d, "lloyd")["phases"].pop(0),
        "method lloyd: other phases in the same version",
    ),
    "a phase's payload no longer taken": (
        lambda d: schema(d, "Submission")["discriminator"]["mapping"].pop("cells"),
        f"PUT {PUT}: request: cells no longer taken",
    ),
}

HARMLESS: dict[str, Change] = {
    "nothing": lambda _: None,
    "a new path": lambda d: d["paths"].update({"/v1/new": {"get": {"responses": {"200": {}}}}}),
    "a new optional parameter": lambda d: operation(d, SESSIONS, "post").update(
        parameters=[CREATE]
    ),
    "a new optional field": lambda d: schema(d, DEFINITION)["properties"].update(
        note={"type": "string"}
    ),
    "a new field of an answer": lambda d: (
        schema(d, "Receipt")["properties"].update(note={"type": "string"}),
        schema(d, "Receipt")["required"].append("note"),
    ),
    "a new error": lambda d: operation(d, TASK, "get")["responses"].update(
        {"451": {"description": "Not here."}}
    ),
    "a bound that includes itself": lambda d: field(d, "weight", "Feature").update(
        minimum=field(d, "weight", "Feature").pop("exclusiveMinimum")
    ),
    "a new method": lambda d: d["x-fedclust-methods"].append(
        {**method(d, "lloyd"), "name": "better"}
    ),
    "a method's next version": lambda d: method(d, "lloyd").update(version=9, phases=[]),
    "a second way to send a token": lambda d: operation(d, TASK, "get")["security"].append(
        {"cookie": []}
    ),
    "a new problem type": lambda d: operation(d, TASK, "get")["responses"]["404"].update(
        description=operation(d, TASK, "get")["responses"]["404"]["description"] + "\n\n`other`: x"
    ),
    "a wider bound": lambda d: field(d, "size_band", "Participation").update(maxLength=900),
    "a field that became optional": lambda d: schema(d, "Participation")["required"].remove(
        "features"
    ),
    "another description": lambda d: field(d, "weight", "Feature").update(description="rounded"),
    "other words": lambda d: operation(d, TASK, "get").update(summary="Other", description="Words"),
    "a task of a new phase": lambda d: schema(d, "TaskDocument")["discriminator"]["mapping"].update(
        better="#/components/schemas/LloydTaskDocument"
    ),
    "a method's definition for new ones alone": lambda d: schema(d, "SessionCreate")[
        "discriminator"
    ]["mapping"].update(better="#/components/schemas/LloydSessionCreate"),
    "a schema of another name": lambda d: _renamed(d, "Receipt", "StoredReceipt"),
}


def _renamed(document: dict[str, Any], name: str, other: str) -> None:
    text = json.dumps(document).replace(f'/schemas/{name}"', f'/schemas/{other}"')
    document.update(json.loads(text))
    schemas = document["components"]["schemas"]
    schemas[other] = schemas.pop(name)


@pytest.mark.parametrize("name", BREAKS)
def test_what_breaks_a_client_is_found(name: str) -> None:
    change, expected = BREAKS[name]
    new = copy.deepcopy(OLD)
    change(new)
    found = BREAKING.breaks(OLD, new)
    assert any(line.startswith(expected) for line in found), found


@pytest.mark.parametrize("name", HARMLESS)
def test_what_breaks_nobody_is_let_through(name: str) -> None:
    new = copy.deepcopy(OLD)
    HARMLESS[name](new)
    assert BREAKING.breaks(OLD, new) == []


def test_a_break_fails_unless_the_changes_tell_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    new = copy.deepcopy(OLD)
    del new["paths"][TASK]
    current, changes = tmp_path / "openapi.json", tmp_path / "CHANGES.md"
    contract = tmp_path / "contract.json"
    contract.write_text(json.dumps(OLD), "utf-8")
    current.write_text(json.dumps(new), "utf-8")
    for name, path in (("CONTRACT", contract), ("CURRENT", current), ("CHANGES", changes)):
        monkeypatch.setattr(BREAKING, name, path)
    monkeypatch.setattr("sys.argv", ["breaking.py"])

    changes.write_text("# Changes\n\n- Something else.\n", "utf-8")
    assert BREAKING.main() == 1
    assert f"BREAKING: GET {TASK}: operation removed" in capsys.readouterr().out
    changes.write_text(f"- BREAKING: GET {TASK}:\n  operation removed\n", "utf-8")
    assert BREAKING.main() == 0
    monkeypatch.setattr("sys.argv", ["breaking.py", "--accept"])
    assert BREAKING.main() == 0
    monkeypatch.setattr("sys.argv", ["breaking.py"])
    changes.write_text("", "utf-8")
    assert BREAKING.main() == 0, "the contract has moved on"
    assert '"examples": {"recorded"' not in json.dumps(json.loads(contract.read_text("utf-8")))


def test_every_break_of_the_committed_contract_is_listed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["breaking.py"])
    assert BREAKING.main() == 0, capsys.readouterr().out


def test_the_changes_tell_of_no_break_that_is_none() -> None:
    contract = json.loads(BREAKING.CONTRACT.read_text("utf-8"))
    listed = BREAKING.declared(BREAKING.CHANGES.read_text("utf-8"))
    assert listed <= set(BREAKING.breaks(contract, OLD))
