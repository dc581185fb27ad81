"""``session watch`` beside a real coordinator that is killed and comes back."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from support import processes
from support.api_caller import ApiCaller
from support.processes import COMMAND, clean_environment
from support.server import running_server
from support.timeouts import TIMEOUT_S

SITES = ("north", "south", "west")


def test_it_is_live_and_survives_the_coordinators_death(tmp_path: Path) -> None:
    """An hour lies between two looks: whatever is told in time was told by an event."""
    with running_server(tmp_path / "server") as server:
        api = ApiCaller(server.base_url, server.operator_token)
        api.register("sites", *SITES)
        api.register("analysts", "ada")
        api.define("ada", "heart", list(SITES))
        watch = processes.popen(
            [
                *(sys.executable, "-c", COMMAND, "session", "watch", "heart", "--json"),
                *("--every", "3600", "--coordinator", server.base_url),
            ],
            env={**clean_environment(), "FEDCLUST_TOKEN": api.tokens["ada"]},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert watch.stdout is not None

            def said() -> tuple[str, str | None]:
                line = json.loads(watch.stdout.readline())
                return line["event"], line.get("site")

            assert said() == ("session.recruiting", None)
            for site in SITES:
                api.join(site, "heart")
                assert said() == ("site.joined", site)
            assert said() == ("session.running", None)
            assert said() == ("round.opened", None)
            body = api.answer("north", "heart")
            assert api.put("north", "heart", 1, body).status_code == 201
            assert said() == ("site.answered", "north")

            server.restart()
            assert api.finish("heart", SITES) == "completed"
            rest, errors = watch.communicate(timeout=TIMEOUT_S)
        finally:
            watch.kill()
        assert watch.returncode == 0, errors
        watched = [json.loads(line) for line in rest.splitlines()]
        rounds = api.ok("GET", "/v1/sessions/heart/rounds", "ada")["items"]
        numbers = sorted(each["number"] for each in rounds)
        assert [e["round"] for e in watched if e["event"] == "round.closed"] == numbers
        assert {(e["round"], e["site"]) for e in watched if e["event"] == "site.answered"} == {
            (number, site) for number in numbers for site in SITES
        } - {(1, "north")}
        assert watched[-1]["event"] == "session.completed"
