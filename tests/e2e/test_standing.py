"""``fedclust session list`` and ``show``: what operators read of late sites, and others do not."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from fedclust.cli.standing import ago, size
from support.clock import ManualClock
from support.inprocess import local_coordinator
from support.server import clean_environment
from support.world import World

SITES = ["north", "south", "west"]


def test_operators_read_who_is_late_since_when(tmp_path: Path) -> None:
    clock = ManualClock(datetime.now(UTC) - timedelta(hours=3))
    with local_coordinator(tmp_path, clock=clock) as local:
        world = World(local.base_url, local.operator_token)
        world.tokens["operator"] = local.operator_token
        world.register("sites", *SITES)
        world.register("analysts", "ada")
        for name in ("heart", "liver"):
            world.define("ada", name, SITES)
        for site in SITES:
            world.join(site, "heart")
        body = world.answer("south", "heart")
        assert world.put("south", "heart", 1, body).status_code == 201
        deadline = clock.now() + timedelta(minutes=30)
        world.ok("PATCH", "/v1/sessions/heart", "ada", json={"deadline": deadline.isoformat()})
        clock.advance(3 * 3600)
        run = _runner(tmp_path, local.base_url, world)

        listed = run("operator", "list").splitlines()
        # Newest first, were it not for the late sites of the older one.
        assert [line.split()[0] for line in listed[1:]] == ["heart", "liver"]
        assert "north, west since 2 h" in listed[1]
        assert "since" not in listed[2]
        shown = run("operator", "show", "heart")
        lines = [line.split() for line in shown.splitlines()]
        rows = [line for line in lines if line and line[0] in SITES]
        assert [row[0] for row in rows] == ["north", "west", "south"]
        assert rows[0][1:5] == ["joined", "no", "2", "h"]
        assert "since" not in " ".join(rows[2])
        told = json.loads(run("operator", "list", "--json"))[0]["standing"]
        assert told["bytes_in"] == len(body)
        assert [site["name"] for site in told["sites"] if site["late_since"]] == ["north", "west"]
        assert json.loads(run("operator", "show", "heart", "--json"))["standing"] == told

        # An analyst may not ask for it, and reads what a session itself tells.
        assert "north, west" in run("ada", "list")
        assert "since" not in run("ada", "list")
        assert "last seen" not in run("ada", "show", "heart")
        assert all("standing" not in each for each in json.loads(run("ada", "list", "--json")))


def _runner(place: Path, url: str, world: World) -> Callable[..., str]:
    def run(who: str, *arguments: str) -> str:
        environment = {
            **clean_environment(),
            "FEDCLUST_COORDINATOR": url,
            "FEDCLUST_TOKEN": world.tokens[who],
            "FEDCLUST_JOURNAL_DIR": str(place / "state"),
        }
        done = subprocess.run(
            [sys.executable, "-m", "fedclust.cli", "session", *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-5, "0 s"), (59, "59 s"), (60, "1 min"), (3599, "59 min"), (7200, "2 h"), (172_800, "2 d")],
)
def test_ago(seconds: float, text: str) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert ago(now - timedelta(seconds=seconds), now) == text


def test_size() -> None:
    assert [size(n) for n in (0, 999, 1000, 2_500_000)] == ["0 B", "999 B", "1.0 kB", "2.5 MB"]
