"""The agent's work, entry by entry: what it answers, what it stops for, and what it outlives."""

import configparser
import inspect
import re
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest

from fedclust import errors
from fedclust.cli import options
from fedclust.cli.agent import Agent, AgentEntries, AgentEntry
from fedclust.cli.options import EXIT_CODES
from fedclust.client.http import ConnectionOptions, Http
from fedclust.data.mapping import ReadOptions
from fedclust.site import DataSource, DataSources, Site
from fedclust.site.settings import settings_path
from fedclust.site.state import SiteState, state_directory
from fedclust.wire.errors import UsageError
from support.fake_coordinator import EPOCH, URL, FakeCoordinator, three_clusters
from support.ledgers import body_lines
from support.timeouts import TIMEOUT_S


class Post:
    """An agent at a site, one session, and a coordinator that is not there."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.fake = FakeCoordinator()
        self.entries = AgentEntries(SiteState())
        self.said: list[str] = []
        self.data = place / "cohort.csv"
        np.savetxt(self.data, three_clusters(60, 3), delimiter=",", header="x,y", comments="")
        self.entry = AgentEntry(
            coordinator=URL,
            site="me",
            session="heart",
            definition_sha256=self.fake.sha256,
            consented_at=EPOCH,
            data=str(self.data),
            labels_out=str(place / "labels.csv"),
        )
        self.entries.put(self.entry)
        # Every look at the clock is an hour after the one before: nothing waits to be tried again.
        hours = count(0.0, 3600.0)
        self.agent = Agent(
            self.entries, lambda: self.connect(), self.said.append, lambda: next(hours)
        )
        self.connect: Callable[[], Site] = lambda: self.fake.site(self.entries.state.directory)

    def run(self) -> None:
        """Run until nothing is left to answer; AssertionError where that does not come."""
        stopping = threading.Event()
        alarm = threading.Timer(TIMEOUT_S, stopping.set)
        alarm.start()
        self.agent.run(stopping, until_done=True, look_s=0.01)
        alarm.cancel()
        assert not stopping.is_set(), self.said[-5:]

    def before_round(self, number: int, act: Callable[[], None]) -> None:
        """Do something once, when the task of a round is asked for."""
        done: list[int] = []

        def before(request: httpx.Request) -> None:
            if request.url.path.endswith("/task") and self.fake.round == number and not done:
                done.append(number)
                act()

        self.fake.before = before

    @property
    def known(self) -> AgentEntry:
        (entry,) = self.entries.read()
        return entry


@pytest.fixture
def post(tmp_path: Path) -> Post:
    return Post(tmp_path)


def test_a_session_that_is_taken_back_is_answered_no_more(post: Post) -> None:
    post.before_round(3, lambda: post.entries.drop("heart"))
    post.run()
    assert sorted(post.fake.accepted) == [1, 2]
    assert "heart: taken back; nothing more is sent" in post.said
    read = [line for line in post.said if "rows read" in line]
    assert read[0] == "heart: cohort.csv: 60 rows read"
    assert not any(": 0 " in line for line in read), "the start of a pass is no progress"
    # The journal is free: participate goes on where the agent stopped.
    with post.fake.site(post.entries.state.directory) as site:
        site.participate("heart", post.data, consent=True)
    assert [number for number, _ in post.fake.puts] == sorted(post.fake.accepted)


def test_another_definition_than_the_one_consented_to_is_not_answered(post: Post) -> None:
    """Its analyst may delete a session and create another one of the same name."""
    post.entries.put(post.entry.model_copy(update={"definition_sha256": "0" * 64}))
    post.run()
    assert post.known.state == "ended"
    assert "another definition than this site consented to" in post.known.said
    assert (post.fake.joined, post.fake.puts) == (None, [])


def test_a_session_waits_for_its_approval(post: Post) -> None:
    """Without one it fails and is tried again; a withdrawal stops it until the next one."""
    settings_path(state_directory()).write_text("require_approval = true\n", "utf-8")
    site = post.fake.site(post.entries.state.directory)
    site.review("heart", post.data, post.place / "review.html")
    refused: list[str] = []

    def approve_once_refused() -> Site:
        last = post.said[-1] if post.said else ""
        if "is sent. Print what it asks" in last:
            refused.append(last)
            assert not post.fake.puts[2:]
            assert post.known.state == "failing"
            review = site.last_review("heart")
            site.approvals.approve(review, "Dr Ruth Levi", review.code)
        return post.fake.site(post.entries.state.directory)

    post.connect = approve_once_refused
    post.before_round(3, lambda: site.approvals.withdraw("heart", "Dr Ruth Levi"))
    post.run()
    assert "no recorded approval" in refused[0]
    assert "was withdrawn (Dr Ruth Levi" in refused[1]
    assert len(refused) == 2
    assert post.known.state == "done"
    assert [number for number, _ in post.fake.puts] == sorted(post.fake.accepted)


def test_an_entry_that_is_replaced_is_served_as_it_is_now(post: Post) -> None:
    other = post.entry.model_copy(update={"labels_out": str(post.place / "other.csv")})
    post.before_round(2, lambda: post.entries.put(other))
    post.run()
    assert (post.place / "other.csv").exists()
    assert not (post.place / "labels.csv").exists()
    assert post.known.asks_the_same(other)
    assert post.known.state == "done"


def test_a_registered_source_is_read_as_it_is_when_the_session_starts(post: Post) -> None:
    """Without its source the entry waits; with other options it is read by these."""
    post.entries.put(post.entry.model_copy(update={"data": "@cohort", "id_column": "mrn"}))
    moved = post.place / "moved.csv"

    def tell(text: str) -> None:
        post.said.append(text)
        if "no data source @cohort (none is registered)" in text:
            lines = post.data.read_text("utf-8").replace("x,y", "x;y;mrn", 1).splitlines()
            ids = [line.replace(",", ";") + f";p{n}" for n, line in enumerate(lines[1:])]
            moved.write_text("\n".join([lines[0], *ids]), "utf-8")
            source = DataSource(data=str(moved), reading=ReadOptions(delimiter=";"))
            DataSources().add("cohort", source)

    post.agent._tell = tell
    post.run()
    assert post.known.state == "done"
    assert post.known.data == "@cohort"
    labels = (post.place / "labels.csv").read_text("utf-8").splitlines()
    assert labels[0] == "mrn,cluster"
    assert labels[1].startswith("p0,")


def test_a_list_that_cannot_be_read_ends_no_session(post: Post) -> None:
    def damage(data: bytes) -> bytes:
        with post.entries.state.write() as connection:
            was = connection.execute(
                "SELECT content FROM documents WHERE name = 'agent'"
            ).fetchone()[0]
            connection.execute("UPDATE documents SET content = ? WHERE name = 'agent'", (data,))
        return bytes(was)

    whole: list[bytes] = []
    post.before_round(2, lambda: whole.append(damage(b"{")))

    def mend(request: httpx.Request) -> None:
        if post.fake.round == 4:
            post.fake.after = lambda _request: None
            damage(whole[0])

    post.fake.after = mend
    post.run()
    assert post.known.state == "done"
    complaints = [each for each in post.said if " is damaged: " in each]
    # The look at the list says it once, and each round that could not be noted.
    assert sum("heart" not in each for each in complaints) <= 1
    assert (post.place / "labels.csv").exists()


def test_a_full_disk_where_the_list_is_kept(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise errors.StateError("agent.json: No space left on device")

    monkeypatch.setattr(post.entries, "note", full)
    stopping = threading.Event()

    def tell(text: str) -> None:
        post.said.append(text)
        if "completed" in text:
            stopping.set()

    post.agent._tell = tell
    post.agent.run(stopping, look_s=0.01)
    assert (post.place / "labels.csv").exists()
    assert any("No space left" in each for each in post.said)


def test_labels_that_cannot_be_written_are_said_first_and_written_once_they_can(post: Post) -> None:
    """A stranger's file is in the way: the session goes on, and nothing is overwritten."""
    labels = post.place / "labels.csv"
    labels.write_text("mrn,age\n7,60\n", "utf-8")
    kept = labels.read_bytes()

    def end(request: httpx.Request) -> None:
        if any("next try" in each for each in post.said):
            assert labels.read_bytes() == kept
            labels.unlink()
            post.fake.after = lambda _request: None

    post.fake.after = end
    post.run()
    assert any("something else" in each and "next try" in each for each in post.said)
    warning = next(i for i, each in enumerate(post.said) if "before the session ends" in each)
    assert warning < next(i for i, each in enumerate(post.said) if "round 1 sent" in each)
    assert labels.read_text("utf-8").startswith("row,cluster")
    assert post.known.state == "done"
    rounds = [line["round"] for line in body_lines(state_directory())]
    assert rounds == sorted(set(rounds))


@pytest.mark.skipif(not hasattr(psutil.Process, "num_fds"), reason="counts descriptors")
def test_weeks_without_a_coordinator_leave_nothing_open(post: Post) -> None:
    """Each try has a connection and a TLS context of its own, and gives both back."""

    def connect() -> Site:
        tries.release()
        options = ConnectionOptions(give_up_after_s=0.0)
        http = Http("https://127.0.0.1:9", "fcs_secret", options, sleep=lambda _: None)
        return Site(http=http, state_dir=post.entries.state.directory)

    tries = threading.Semaphore(0)
    post.connect = connect

    def held_after(times: int) -> tuple[int, int]:
        """Return how many descriptors and threads there are once the agent has stopped."""
        stopping = threading.Event()
        agent = threading.Thread(target=post.agent.run, args=(stopping,), kwargs={"look_s": 0.001})
        agent.start()
        for _ in range(times):
            assert tries.acquire(timeout=TIMEOUT_S)
        stopping.set()
        for thread in (agent, *post.agent._threads.values()):
            thread.join(TIMEOUT_S)
        return psutil.Process().num_fds(), threading.active_count()

    first, later = held_after(5), held_after(25)
    # Twenty more tries leave nothing; what else runs here may hold one or two.
    assert later[0] < first[0] + 10
    assert later[1] < first[1] + 10
    assert post.known.state == "failing"


# --- the agent's unit for systemd -----------------------------------------------------------------


ROOT = Path(__file__).parents[2]
UNIT = ROOT / "deploy" / "fedclust-agent.service"


@pytest.mark.skipif(not UNIT.exists(), reason="not the repository's tree")
def test_the_unit_runs_what_there_is_and_stops_where_restarting_does_not_help() -> None:
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(UNIT, "utf-8")
    service = unit["Service"]
    assert service["ExecStart"].split()[1:] == ["agent"]
    assert service["RestartPreventExitStatus"] == str(dict(EXIT_CODES)[UsageError])
    text = UNIT.read_text("utf-8")
    page = (ROOT / "docs" / "cli.md").read_text("utf-8")
    assert text == re.search(r"```ini\n(.*?)```", page, re.S)[1]
    used = set(re.findall(r"^Environment=(FEDCLUST_\w+)=", text, re.M))
    options_of = set(re.findall(r'"envvar": "(\w+)"', inspect.getsource(options)))
    assert used <= options_of | {"FEDCLUST_STATE_DIR"}
    # Token, journal and labels are for this user alone.
    assert (service["UMask"], service["StateDirectoryMode"]) == ("0077", "0700")
