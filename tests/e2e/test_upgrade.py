"""Coordinator and sites are upgraded apart from each other, by processes whose versions are faked.

Same method version: a running session goes on. Another one: refused with the command that helps.
"""

import json
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from e2e.random_kills import POLICY, SESSION, D, rows, shared
from fedclust import simulate
from fedclust.methods.lloyd import METHOD
from fedclust.wire.codec import canonical_json, sha256, to_tree
from support.api_caller import ApiCaller
from support.consortium import Command, Consortium, columns, write_csv
from support.server import running_server
from support.timeouts import eventually

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="processes are ended by POSIX")

#: A program of another release: what it calls itself, and the version of lloyd that it speaks.
FAKED = """
import dataclasses, importlib.metadata, sys
release, spoken = {release!r}, {spoken}
real = importlib.metadata.version
importlib.metadata.version = lambda name: release if name == "fedclust" else real(name)
from fedclust.methods.registry import METHODS
METHODS["lloyd"] = dataclasses.replace(METHODS["lloyd"], version=spoken)
from {module} import main
sys.exit(main())
"""
CONFIG = {"n_clusters": 3}
SITES = ("north", "south", "west")
SHORT = {**POLICY, "max_rounds": 3}


def program(module: str, release: str, spoken: int = METHOD.version) -> str:
    return FAKED.format(module=module, release=release, spoken=spoken)


def site_of(release: str, spoken: int, people: Consortium, name: str, place: Path) -> Command:
    """Return a site's command, run by a program of another release."""
    command = Command(people, SESSION, name, place)
    command._command[2] = program("fedclust.cli.main", release, spoken)
    return command


@pytest.mark.long
def test_a_session_survives_and_a_skew_is_refused_with_the_command(tmp_path: Path) -> None:
    data = {name: X[:120] for name, X in rows().items()}
    with running_server(tmp_path / "server") as server:
        people = Consortium.found(server.base_url, server.operator_token, tuple(data))
        people.create(SESSION, D, config=CONFIG, policy=SHORT)
        places = {name: tmp_path / name for name in data}
        for name, X in data.items():
            write_csv(places[name] / "rows.csv", X)
        # Too new and too old: refused before anything is sent, with what to install.
        for release, spoken, advice in (
            ("9.0.0", METHOD.version + 1, 'pip install "fedclust=='),
            ("0.0.1", METHOD.version - 1, "pip install --upgrade"),
        ):
            skewed = site_of(release, spoken, people, "oslo", places["oslo"])
            skewed.start()
            assert skewed.wait() != 0
            said = " ".join(skewed.log.read_text("utf-8").split())
            assert advice in said
            assert "Traceback" not in said
            skewed.log.unlink()
        # Three sites join and wait; the coordinator is upgraded under them and keeps the version.
        waiting = [Command(people, SESSION, name, places[name]) for name in data if name != "oslo"]
        for each in waiting:
            each.start()
        with people.analyst() as analyst:
            eventually(
                lambda: (
                    sum(site.state == "joined" for site in analyst.session(SESSION).sites)
                    == len(waiting)
                ),
                lambda: [each.log.read_text("utf-8") for each in waiting],
            )
            assert server.stop() == 0
            upgraded = [sys.executable, "-c", program("fedclust_service.cli", "9.9.9")]
            server.command = upgraded
            server.restart()
            assert analyst.whoami().server_version == "9.9.9"
            # The last site comes with a later release, too.
            last = site_of("9.9.9", METHOD.version, people, "oslo", places["oslo"])
            last.start()
            for each in (*waiting, last):
                assert each.wait() == 0, each.log.read_text("utf-8")
        result = people.result(SESSION).result
    alone = simulate("lloyd", data, config=CONFIG, policy=SHORT, features=columns(D), seed=7)
    assert shared(result) == shared(to_tree(alone.result))


def as_before(stored: bytes) -> bytes:
    """Return a definition as the version before this one froze it."""
    definition = json.loads(stored)
    for key in ("title", "purpose", "contact", "approval", "expires"):
        del definition[key]
    del definition["engine_version"]
    policy = definition["policy"]
    del policy["protection"]
    policy |= {"differencing": "guard", "min_cluster_size": policy.pop("min_group_size")}
    return canonical_json({**definition, "method_version": definition["method_version"] - 1})


def test_definitions_of_the_version_before(tmp_path: Path) -> None:
    place = tmp_path / "server"
    with running_server(place) as server:
        api = ApiCaller.found(server, SITES)
        for name in ("done", "running", "recruiting"):
            api.define("ada", name, list(SITES))
            for site in SITES if name != "recruiting" else SITES[:1]:
                api.join(site, name)
        assert api.finish("done", SITES) == "completed"
        answer = api.answer("north", "running")
        receipt = api.put("north", "running", 1, answer).json()
        joined = api.participation("south", "recruiting")
        assert server.stop() == 0

        file = next(place.glob("*.db"))
        with closing(sqlite3.connect(file)) as database, database:
            for name, stored in database.execute(
                "SELECT name, definition FROM sessions"
            ).fetchall():
                before = as_before(stored)
                database.execute(
                    "UPDATE sessions SET definition = ?, definition_sha256 = ?, "
                    "method_version = method_version - 1 WHERE name = ?",
                    (before, sha256(before), name),
                )
        server.restart()

        def states() -> dict[str, tuple[str, str]]:
            listed = api.ok("GET", "/v1/sessions", "ada")["items"]
            assert all(each["definition"] is None for each in listed)
            return {each["name"]: (each["state"], each["stopped_because"]) for each in listed}

        eventually(lambda: "running" not in {state for state, _ in states().values()}, states)
        ended = ("failed", "version_unsupported")
        assert states() == {
            "done": ("completed", states()["done"][1]),
            "running": ended,
            "recruiting": ended,
        }
        # What was acknowledged stays so; nothing else is more than refused.
        assert api.put("north", "running", 1, answer).json() == receipt
        for name in states():
            at = f"/v1/sessions/{name}"
            assert api.ok("GET", f"{at}/task", "north")["session_state"] == states()[name][0]
            api.ok("GET", f"{at}/rounds", "ada")
            for method, path, who, body in (
                ("GET", at, "ada", None),
                ("GET", at, "north", None),
                ("GET", f"{at}/result", "ada", None),
                ("PATCH", at, "ada", {"invite": ["west"], "deadline": "2030-01-01T00:00:00Z"}),
                ("POST", f"{at}/start", "ada", None),
                ("POST", f"{at}/cancel", "ada", None),
                ("PUT", f"{at}/participation", "south", joined),
                ("DELETE", f"{at}/participation", "south", None),
                ("POST", "/v1/sessions", "ada", api.definition(name, list(SITES))),
            ):
                refused = api.request(method, path, who, json=body)
                assert refused.status_code == 409, (method, path, refused.text)
        problem = api.request("GET", "/v1/sessions/done", "ada").json()
        assert problem["type"].endswith("version-unsupported")
        assert "Create the session again" in problem["detail"]
        api.ok("GET", "/v1/admin/overview", api.operator)
        assert len(api.ok("GET", "/v1/sessions", api.operator)["items"]) == len(states())

        api.begin("ada", "anew", SITES)
        assert api.finish("anew", SITES) == "completed"
