"""A site's own command runs when the site has to act: on what, how often, and with what."""

import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedclust.client import Client
from fedclust.site.notifications import ATTEMPTS, SiteNotification, SiteNotifier, run_command
from fedclust.site.state import SiteState
from fedclust_service.usecases.sweeper import sweep
from support.api_caller import ApiCaller
from support.clock import BEGIN, ManualClock
from support.local_coordinator import LocalCoordinator, local_coordinator
from support.purpose import PURPOSE
from support.timeouts import eventually

SITES = ["north", "south", "west"]
DAY = 86_400.0
#: Appends what it gets to the file that it is given.
KEEP = (
    "import json,os,sys\n"
    "env = {k: v for k, v in os.environ.items() if k.startswith(('FEDCLUST', 'OWN'))}\n"
    "with open(sys.argv[1], 'a') as file:\n"
    "    print(json.dumps([json.loads(sys.stdin.read()), env]), file=file)\n"
)


class Post:
    """The site north, its command, and a coordinator whose clock is moved."""

    def __init__(self, place: Path, local: LocalCoordinator, clock: ManualClock) -> None:
        self.local, self.clock = local, clock
        self.api = ApiCaller.found(local, SITES)
        self.state, self.file = place / "state", place / "got"
        self.command = [sys.executable, "-S", "-c", KEEP, str(self.file)]
        self.said: list[str] = []
        self.handed: frozenset[str] = frozenset()
        self.restart()

    def restart(self) -> None:
        self.notifier = SiteNotifier(
            SiteState(self.state),
            self.command,
            self.said.append,
            lambda: self.handed,
            self.clock.now,
        )

    def connect(self) -> Client:
        return Client(self.local.base_url, self.api.tokens["north"])

    def look(self) -> list[tuple[str, str | None]]:
        """Look, and return kind and session of what the command got this time."""
        before = len(self.got())
        self.notifier.look_once(self.connect)
        return [(each["kind"], each["session"]) for each, _ in self.got()[before:]]

    def got(self) -> list[Any]:
        lines = self.file.read_text("utf-8").splitlines() if self.file.exists() else []
        return [json.loads(line) for line in lines]


@pytest.fixture
def post(tmp_path: Path) -> Iterator[Post]:
    clock = ManualClock()
    with local_coordinator(tmp_path, clock=clock) as local:
        yield Post(tmp_path, local, clock)


def test_each_is_handed_over_once_also_after_a_restart(post: Post) -> None:
    api = post.api
    assert post.look() == []
    # A session that was handed to the agent needs no invitation.
    post.handed = frozenset({"lung"})
    for name in ("heart", "lung"):
        api.define("ada", name, SITES)
    assert post.look() == [("invited", "heart")]
    assert post.look() == []
    post.restart()
    assert post.look() == []
    for site in SITES:
        api.join(site, "heart")
    post.clock.advance(3601)
    sweep(post.local.coordinator)
    assert post.look() == [("overdue", "heart")]
    api.answer("north", "heart")
    post.restart()
    assert post.look() == []
    api.ok("POST", "/v1/sessions/heart/cancel", "ada")
    post.restart()
    assert post.look() == [("finished", "heart")]
    post.restart()
    assert post.look() == []
    assert post.said == []


def test_failed_and_finished_are_told_apart(post: Post) -> None:
    api = post.api
    for name in ("one", "two", "left"):
        api.begin("ada", name, SITES)
    post.look()
    api.ok("DELETE", "/v1/sessions/left/participation", "north")
    api.ok("POST", "/v1/sessions/two/cancel", "ada")
    api.ok("POST", "/v1/sessions/left/cancel", "ada")
    post.clock.advance(3601)
    sweep(post.local.coordinator)
    post.clock.advance(8 * DAY)
    sweep(post.local.coordinator)
    assert sorted(post.look()) == [("failed", "one"), ("finished", "two")]


def test_a_token_that_ends_soon(post: Post) -> None:
    post.clock.advance(365 * DAY - 15 * DAY)
    seen = [post.look() for _ in range(15) if post.clock.advance(DAY - 1)]
    assert [day for day, each in enumerate(seen) if each] == [1, 13]
    assert seen[1] == [("token-expiring", None)]
    body, _ = post.got()[0]
    assert body["account"] == "site:north"
    assert body["text"].startswith("The token of the site north ends on 2027-01-05 08:00 UTC\n")


def test_the_command_gets_json_and_three_variables_and_no_secret(
    post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = post.api.tokens["north"]
    monkeypatch.setenv("FEDCLUST_TOKEN", token)
    monkeypatch.setenv("FEDCLUST_TOKEN_FILE", "site.token")
    monkeypatch.setenv("FEDCLUST_SQL_URL", "postgresql://u:secret@db/x")
    monkeypatch.setenv("OWN_SETTING", "kept")
    post.api.define("ada", "heart", SITES)
    post.look()
    ((body, env),) = post.got()
    assert env == {
        "OWN_SETTING": "kept",
        "FEDCLUST_NOTIFY_KIND": "invited",
        "FEDCLUST_NOTIFY_SESSION": "heart",
        "FEDCLUST_NOTIFY_TEXT": body["text"],
    }
    assert body.keys() == SiteNotification.model_fields.keys()
    assert (body["sites"], body["state"]) == (["north"], "recruiting")
    assert body["time"] == "2026-01-05T08:00:00.000Z"
    assert "fedclust participate heart --data FILE" in body["text"]
    kept = b"".join(path.read_bytes() for path in post.state.rglob("*") if path.is_file())
    for text in (json.dumps(body).encode(), kept):
        assert token.encode() not in text
        assert PURPOSE.encode() not in text


def test_a_command_that_fails_is_run_again_and_then_given_up(post: Post) -> None:
    post.api.define("ada", "heart", SITES)
    post.command[:] = [sys.executable, "-S", "-c", "raise SystemExit(3)"]
    for _ in range(ATTEMPTS + 2):
        assert post.look() == []
    said = "notify_command for invited: it ended with exit code 3; "
    again = [f"{said}it is run again in a minute"] * (ATTEMPTS - 1)
    assert post.said == [*again, f"{said}given up"]


def test_a_command_that_works_again_gets_the_notification(post: Post) -> None:
    post.api.define("ada", "heart", SITES)
    good = list(post.command)
    post.command[:] = ["/nowhere/tell"]
    assert post.look() == []
    assert "it cannot be started: No such file" in post.said[0]
    post.command[:] = good
    assert post.look() == [("invited", "heart")]


def test_a_command_that_hangs_is_ended() -> None:
    hanging = [sys.executable, "-S", "-c", "import time; time.sleep(1e6)"]
    found = SiteNotification(id="a", kind="invited", time=BEGIN, session="heart", text="Act.\n")
    assert run_command(hanging, found, 0.2) == "it took longer than 0.2 s and was ended"


def test_no_shell_reads_the_command(tmp_path: Path) -> None:
    found = SiteNotification(id="a", kind="invited", time=BEGIN, session="heart", text="Act.\n")
    trap = tmp_path / "trap"
    said = run_command([f"true; touch {trap}"], found)
    assert said is not None
    assert not trap.exists()


def test_a_coordinator_that_is_away_is_one_line(post: Post) -> None:
    def connect() -> Client:
        return Client(post.local.base_url, "fcs_wrong")

    for _ in range(3):
        post.notifier.look_once(connect)
    (line,) = post.said
    assert line.startswith("notifications: ")
    post.look()
    post.notifier.look_once(connect)
    assert post.said == [line, line]


def test_a_damaged_state_is_said(post: Post) -> None:
    post.api.define("ada", "heart", SITES)
    post.look()
    with SiteState(post.state).write() as connection:
        connection.execute("UPDATE documents SET content = x'00' WHERE name = 'agent-notified'")
    assert post.look() == []
    assert "fedclust restore" in post.said[0]


def test_it_looks_until_it_is_stopped(post: Post) -> None:
    post.api.define("ada", "heart", SITES)
    stopping = threading.Event()
    thread = threading.Thread(target=post.notifier.run, args=(post.connect, stopping), daemon=True)
    thread.start()
    eventually(post.got)
    stopping.set()
    thread.join()
