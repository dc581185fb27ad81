"""A coordinator is upgraded to a program that speaks other versions of its sessions' methods.

What it says to sites of other versions: `usecases/test_participation.py`.
"""

import json
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from fedclust.wire.codec import canonical_json, sha256
from support.api_caller import ApiCaller
from support.server import running_server
from support.timeouts import eventually

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="processes are ended by POSIX")

SITES = ("north", "south", "west")


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
                # As an earlier version froze it, whose fields are others.
                older = json.loads(stored)
                del older["engine_version"]
                older["policy"]["differencing"] = "guard"
                older["method_version"] -= 1
                before = canonical_json(older)
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
        found = states()
        assert found.pop("done")[0] == "completed"
        assert found == {"running": ended, "recruiting": ended}
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
