"""A client generated from ``openapi.json`` is complete and typed, and finishes a session."""

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
import pytest

from fedclust import simulate
from support import processes
from support.api_caller import FEATURES, ApiCaller, rows_of
from support.server import running_server
from support.timeouts import TIMEOUT_S

ROOT = Path(__file__).parents[2]
OPENAPI = ROOT / "docs" / "openapi"
DOCUMENT: dict[str, Any] = json.loads((OPENAPI / "openapi.json").read_text("utf-8"))
PACKAGE = "fedclust_coordinator_client"
SITES = ("north", "south", "west")


def run(command: list[str], place: Path) -> str:
    """Run a command of this environment; AssertionError with its output if it fails."""
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": tools, "PYTHONPATH": "client", "NO_COLOR": "1"}
    done = processes.run(command, cwd=place, env=env)
    assert done.returncode == 0, f"{command[0]}: {done.stdout}{done.stderr}"
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Return where the package was generated, by the command of the page, and what was printed."""
    place = tmp_path_factory.mktemp("generated")
    (place / "docs" / "openapi").mkdir(parents=True)
    shutil.copy(OPENAPI / "openapi.json", place / "docs" / "openapi")
    page = (ROOT / "docs" / "protocol.md").read_text("utf-8")
    (command,) = re.findall(r"^openapi-python-client generate .*$", page, re.MULTILINE)
    return place, run(shlex.split(command), place)


def test_nothing_is_left_out(generated: tuple[Path, str]) -> None:
    place, printed = generated
    # The page tells of the binary form. Any other line names a part that no client would get.
    usual = ("Generating client", "Warning(s) encountered", "WARNING parsing", "If you believe")
    said = {line for line in printed.splitlines() if line[:1].isupper()}
    left_out = {line for line in said if not line.startswith(usual)}
    assert left_out <= {"Unsupported content type application/vnd.fedclust.v1+msgpack"}
    assert "Endpoint will not be generated" not in printed
    operations = {
        operation["operationId"]
        for methods in DOCUMENT["paths"].values()
        for operation in methods.values()
    }
    package = place / "client" / PACKAGE
    assert operations == {path.stem for path in package.glob("api/*/[a-z]*.py")}
    exported = (package / "models" / "__init__.py").read_text("utf-8")
    for name, schema in DOCUMENT["components"]["schemas"].items():
        assert {"oneOf", "anyOf"} & schema.keys() or f'"{name}"' in exported, name


@pytest.mark.long
def test_it_is_typed(generated: tuple[Path, str]) -> None:
    mypy = ["mypy", "--strict", "--cache-dir", "mypy", f"client/{PACKAGE}"]
    run([sys.executable, "-m", *mypy], generated[0])


def test_it_finishes_a_session(
    generated: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everybody uses it alone; what sites answer is computed as the SDK does."""
    monkeypatch.syspath_prepend(str(generated[0] / "client"))
    client, models = (import_module(name) for name in (PACKAGE, f"{PACKAGE}.models"))
    with running_server(tmp_path / "coordinator") as server:
        api = ApiCaller(server.base_url, server.operator_token)

        def call(operation: str, who: str, *given: Any, **more: Any) -> Any:
            http = client.AuthenticatedClient(
                base_url=api.base_url,
                token=api.tokens[who],
                timeout=httpx.Timeout(TIMEOUT_S),
                httpx_args={"trust_env": False},
            )
            asked = import_module(f"{PACKAGE}.api.{operation}").sync_detailed
            reply = asked(*given, client=http, **more)
            assert reply.status_code < 400, reply.content
            return reply

        for kind, names in (("site", SITES), ("analyst", ("ada",))):
            for name in names:
                body = models.PrincipalCreate(name=name)
                call(f"{kind}s.create_{kind}", "operator", body=body)
                issue, body = f"{kind}s.issue_{kind}_token", models.TokenCreate(expires_in_days=1)
                api.tokens[name] = call(issue, "operator", name, body=body).parsed.token
        definition = models.LloydSessionCreate.from_dict(api.definition("heart", list(SITES)))
        call("sessions.create_session", "ada", body=definition)
        for site in SITES:
            body = models.Participation.from_dict(api.participation(site, "heart"))
            assert call("participation.join_session", site, "heart", body=body).status_code == 201
        waiting, etags = list(SITES), dict.fromkeys(SITES, "")
        while waiting:
            site = waiting.pop(0)
            reply = call("tasks.get_task", site, "heart", wait=25.0, if_none_match=etags[site])
            if reply.status_code == 304:
                waiting.append(site)
                continue
            view, etags[site] = reply.parsed, reply.headers["ETag"]
            if view.status == "work":
                kind = getattr(models, f"{view.task.phase.title()}Submission")
                body = kind.from_dict(json.loads(api.answer(site, "heart")))
                put = "submissions.put_submission"
                stored = call(put, site, "heart", view.round_, body=body)
                assert (stored.status_code, stored.parsed.phase) == (201, view.task.phase)
                etags[site] = stored.headers.get("Fedclust-Task-ETag", "")
            if view.status != "ended":
                waiting.append(site)
        document = call("results.get_result", "ada", "heart").parsed.to_dict()
    result = document["result"]
    rows = {site: rows_of(site) for site in SITES}
    own = simulate("lloyd", rows, features=FEATURES, config={"n_clusters": 2}, seed=7)
    assert len(document["provenance"]["submissions"]) == 3 * len(result["history"])
    assert result["centroids_original"] == own.cluster_centers_.tolist()
    assert result["quality"]["inertia"] == own.inertia_


def test_examples_go_through_it_unchanged(
    generated: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A choice without a discriminator is read as what it is: nothing of a body is lost."""
    monkeypatch.syspath_prepend(str(generated[0] / "client"))
    models = import_module(f"{PACKAGE}.models")
    for kind, body in _bodies():
        written = getattr(models, kind).from_dict(body).to_dict()
        # Python writes a time in UTC in another way.
        assert written == json.loads(json.dumps(body).replace(".000Z", "+00:00")), kind


_KINDS = {
    "participation": "Participation",
    "problem": "Problem",
    "receipt": "SubmissionReceipt",
    "result": "ResultDocument",
    "session": "SessionCreate",
    "submission": "Submission",
    "task": "TaskResponse",
}


def _bodies() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the class and the body of each example, and what it is with several n_clusters."""
    several = {
        (method["name"], phase["name"])
        for method in DOCUMENT["x-fedclust-methods"]
        for phase in method.get("phases_of_several", ())
        if phase not in method["phases"]
    }
    for path in sorted((OPENAPI / "examples").rglob("*.json")):
        body = json.loads(path.read_text("utf-8"))
        yield _kind(path.stem, body), body
        if path.parts[-3:-1] not in several:
            continue
        if path.stem == "task":
            common = body["task"]["common"]
            common["parameters"] = {"n_clusters": [2, 3], "parts": [common["parameters"]] * 2}
            yield _kind(path.stem, body), body
        if path.stem == "submission":
            body["payload"] = {"parts": [body["payload"], None]}
            yield _kind(path.stem, body), body


def _kind(name: str, body: dict[str, Any]) -> str:
    """Return the class of a body; of a choice, that of its discriminator's value."""
    choice = DOCUMENT["components"]["schemas"][_KINDS[name]].get("discriminator")
    if choice is None:
        return _KINDS[name]
    return str(choice["mapping"][body[choice["propertyName"]]].rpartition("/")[2])
