"""``fedclust session list`` and ``show``: what operators read of late sites, and others do not."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from fedclust.cli.session_screen import ago
from support.api_caller import ApiCaller
from support.clock import ManualClock
from support.command_line import CommandLine
from support.local_coordinator import local_coordinator

Run = Callable[..., str]
SITES = ["north", "south", "west"]


def test_operators_read_who_is_late_since_when(tmp_path: Path, run: Run) -> None:
    clock = ManualClock(datetime.now(UTC) - timedelta(hours=3))
    with local_coordinator(tmp_path, clock=clock) as local:
        api = ApiCaller.found(local, SITES)
        api.begin("ada", "heart", SITES)
        api.define("ada", "liver", SITES)
        api.send("heart", "south")
        deadline = clock.now() + timedelta(minutes=30)
        api.ok("PATCH", "/v1/sessions/heart", "ada", json={"deadline": deadline.isoformat()})
        clock.advance(3 * 3600)

        listed = run(api, "operator", "list").splitlines()
        # Newest first, were it not for the late sites of the older one.
        assert [line.split()[0] for line in listed[1:]] == ["heart", "liver"]
        assert "north, west since 2 h" in listed[1]
        assert "since" not in listed[2]
        shown = run(api, "operator", "show", "heart")
        lines = [line.split() for line in shown.splitlines()]
        rows = [line for line in lines if line and line[0] in SITES]
        assert [row[0] for row in rows] == ["north", "west", "south"]
        assert rows[0][1:5] == ["joined", "no", "2", "h"]
        assert "since" not in " ".join(rows[2])
        # An analyst reads who is late, and nothing about sites' traffic.
        assert "north, west since 2 h" in run(api, "ada", "list")
        assert "last seen" not in run(api, "ada", "show", "heart")

        # Nobody is waited for once the session has ended.
        api.ok("POST", "/v1/sessions/heart/cancel", "ada")
        for who in ("operator", "ada"):
            assert "north" not in run(api, who, "list")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command_line: CommandLine) -> Run:
    def session(who: ApiCaller, name: str, *arguments: str) -> str:
        monkeypatch.setenv("FEDCLUST_COORDINATOR", who.base_url)
        monkeypatch.setenv("FEDCLUST_TOKEN", who.tokens[name])
        monkeypatch.setenv("FEDCLUST_STATE_DIR", str(tmp_path / "state"))
        assert command_line.run("session", *arguments) == 0, command_line.err
        return command_line.out

    return session


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-5, "0 s"), (59, "59 s"), (60, "1 min"), (3599, "59 min"), (7200, "2 h"), (172_800, "2 d")],
)
def test_ago(seconds: float, text: str) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert ago(now - timedelta(seconds=seconds), now) == text
