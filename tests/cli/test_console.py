"""What people see: on a terminal of any kind, in a pipe, and where nobody reads any more."""

import io
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from fedclust.cli import console
from fedclust.site import Progress, progress
from fedclust.site.ledger import REFUSED, Ledger
from fedclust.site.state import SiteState
from support.command_line import CommandLine, Terminal
from support.definitions import session_file
from support.fake_coordinator import FakeCoordinator, three_clusters
from support.processes import clean_environment
from support.timeouts import TIMEOUT_S

EVENTS = [
    Progress("joined"),
    Progress("waiting", 1, None, 1, 3),
    Progress("waiting", 1, None, 1, 3),
    Progress("waiting", 1, None, 1, 3, overdue=True, most_rounds=9),
    Progress("waiting", 1, None, 2, 2, overdue=True, most_rounds=9),
    Progress("sent", 2, "cells"),
]
Captured = pytest.CaptureFixture[str]
LINES = [
    "joined",
    "round 1: waiting for 2 of 3 sites",
    "round 1: waiting for 2 of 3 sites, overdue",
    "round 1: too few sites are left; the analyst can cancel",
    "round 2 cells: sent",
]


def drawn(monkeypatch: pytest.MonkeyPatch, width: int, *events: Progress, **options: object) -> str:
    """Return what a terminal was sent while these events were told, a minute apart."""
    file, minutes = Terminal(), iter(range(0, 6000, 60))
    terminal = Console(file=file, force_terminal=True, width=width, **options)
    monkeypatch.setattr(console, "err", terminal)
    with console.ProgressLine(lambda: float(next(minutes))) as line:
        for event in events:
            line.tell(event)
            line._bar.refresh()
    return file.getvalue()


def told(capsys: Captured, *events: Progress, clock: Iterable[float] = ()) -> list[str]:
    """Return the lines where there is no terminal, without the time that each begins with."""
    clock = iter(clock)
    with console.ProgressLine(lambda: next(clock, 0.0)) as line:
        for event in events:
            line.tell(event)
    lines = [each.partition(" ") for each in capsys.readouterr().err.splitlines()]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", time) for time, _, _ in lines)
    return [text for _, _, text in lines]


def test_a_line_for_each_event_where_there_is_no_terminal(capsys: Captured) -> None:
    assert told(capsys, *EVENTS) == LINES


def test_elapsed_and_expected_time(capsys: Captured) -> None:
    sent = (Progress("sent", number, "lloyd", most_rounds=22) for number in (2, 3, 4))
    assert told(capsys, *sent, clock=[0.0, 0.0, 30.0, 90.0]) == [
        "round 2 lloyd: sent, 0:00 (of at most 22 rounds)",
        "round 3 lloyd: sent, 0:30, 0:30 a round (of at most 22 rounds)",
        "round 4 lloyd: sent, 1:30, 0:45 a round (of at most 22 rounds)",
    ]


def test_a_time_left_is_estimated_only_from_as_many_rounds(capsys: Captured) -> None:
    """100 rounds are the limit, not what a session takes: 58 s must not become an hour."""
    sent = (Progress("sent", number, "lloyd", most_rounds=6) for number in range(1, 6))
    lines = told(capsys, *sent, clock=[0.0, *(float(10 * n) for n in range(5))])
    assert ["more" in line for line in lines] == [False, False, False, True, True]
    assert lines[-1].endswith("sent, 0:40, 0:10 a round, at most 0:20 more (of at most 6 rounds)")


def test_a_session_that_is_resumed_says_what_is_sent(capsys: Captured) -> None:
    resumed = (
        Progress("resumed", number, note="nothing is sent again", most_rounds=9)
        for number in (2, None)
    )
    assert told(capsys, *resumed) == [
        "resumed at round 2: nothing is sent again",
        "resumed: nothing is sent again",
    ]


def test_a_terminal_shows_one_live_line(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = Progress("waiting", 3, None, 3, 5, most_rounds=100)
    seen = drawn(monkeypatch, 80, Progress("sent", 2, "lloyd", most_rounds=100), waiting)
    assert "round 3: waiting for 2 of 5 sites" in seen
    assert "3:00 a round" in seen
    # A spinner that any terminal can show, and a bar beside the text.
    assert seen.isascii() or not any(mark in seen for mark in "\u280b\u2026")
    assert "\u2501" in seen
    # Its clock goes on while nothing happens.
    assert len({part for part in seen.split("\r") if "sites" in part}) > 1


@pytest.mark.parametrize("width", [20, 40, 79])
def test_a_narrow_terminal_loses_the_least_important(
    monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    waiting = Progress("waiting", 3, None, 3, 5, most_rounds=100)
    seen = drawn(monkeypatch, width, waiting, no_color=True)
    assert ("sites" in seen) == (width >= 40)
    assert "\u2026" not in seen
    shown = re.sub(r"\x1b\[[?\d;]*[A-Za-z]", "", seen)
    assert max(len(part.strip("\n")) for part in shown.split("\r")) <= width


def test_what_is_no_terminal_for_a_live_line_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    for file in (Terminal(), io.StringIO()):  # The other one: FORCE_COLOR in a pipe.
        monkeypatch.setattr(console, "err", Console(file=file, force_terminal=True, width=80))
        with console.ProgressLine() as line:
            for event in EVENTS:
                line.tell(event)
        assert [text for text in LINES if text in file.getvalue()] == LINES
        monkeypatch.setenv("TERM", "xterm")


@pytest.mark.parametrize("at_once", [False, True])
def test_reading_is_shown_once_it_has_taken_two_seconds(
    monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    file, clock = Terminal(), [0.0]
    drawn_on = Console(file=file, force_terminal=True, width=80, no_color=True)
    monkeypatch.setattr(console, "err", drawn_on)
    with console.ProgressLine(lambda: clock[0], at_once=at_once) as line:
        for clock[0], done in ((0.0, 0), (1.9, 4_000), (2.0, 65_536), (3.0, 1_000_000)):
            line.read("rows.csv", done, 1_000_000)
            line._bar.refresh()
        seen = file.getvalue()
        assert "4,000" not in seen
        assert "rows.csv: 65,536 of 1,000,000 rows read" in seen
        assert "rows.csv: 1,000,000 rows read" in seen
        assert ("connecting" in seen) == at_once
        line.tell(Progress("joined"))
        line._bar.refresh()
    assert "joined" in file.getvalue()


def test_reading_is_not_told_where_there_is_no_terminal(capsys: Captured) -> None:
    clock = iter([0.0, 60.0, 120.0])
    with console.ProgressLine(lambda: next(clock)) as line:
        for done in (0, 60, 120):
            line.read("rows.csv", done, None)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    "line",
    [
        "cohort create --data rows.csv --features x,y",
        "check --definition session.json --data rows.csv",
        "check heart --data rows.csv",
        "participate heart --data rows.csv --preview --json",
        "participate heart --data rows.csv --yes",
        "agent add heart --data rows.csv --yes",
    ],
)
def test_commands_that_read_rows_show_how_far_they_have_come(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command_line: CommandLine
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDCLUST_STATE_DIR", "journal")
    np.savetxt("rows.csv", three_clusters(60, 3), delimiter=",", header="x,y", comments="")
    session_file(Path("session.json"), "x", "y")
    command_line.reach(FakeCoordinator(), tmp_path / "journal")
    monkeypatch.setattr(progress, "SLOW_S", 0.0)
    terminal = Console(file=(file := Terminal()), force_terminal=True, width=80, no_color=True)
    monkeypatch.setattr(console, "err", terminal)
    assert command_line.run(*line.split()) == 0
    shown = re.sub(r"\x1b\[[?\d;]*[A-Za-z]", "", file.getvalue())
    assert "rows.csv: 60 rows read" in shown


def test_a_table_is_whole_in_a_pipe_and_on_any_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    rows = [
        ("a-session-with-quite-a-long-name", "Größe, 北京", "one\ntwo " + "long " * 30),
        ("b", None, 7),
    ]
    console.show_table(["session", "late", "why"], rows, none="not said")
    shown = capsys.readouterr()
    head, first, second = shown.out.splitlines()
    assert shown.err == ""
    assert first.endswith("one two " + "long " * 29 + "long")
    # Characters that take two columns count as two.
    assert first.index("one two") + 2 == second.index("7") == head.index("why")
    assert "a-session-with-quite-a-long-name" in first


def test_numbers_of_a_table_end_in_one_column_and_no_rows_are_said(capsys: Captured) -> None:
    console.show_table(["name", "n"], [("北京", 7), ("b", 1234)], right=1)
    console.show_table(["name"], [], none="none yet")
    shown = capsys.readouterr()
    assert shown.out.splitlines() == ["name     n", "北京     7", "b     1234", "name"]
    assert shown.err == "none yet\n"


def test_what_is_tried_again_is_said_once_in_ten_minutes(capsys: Captured) -> None:
    """By a clock that nobody sets back; and addresses of rounds long gone are forgotten."""
    now = [0.0]
    retries = console.Retries(lambda: now[0])

    def again(what: str) -> None:
        text = f"{what}: no answer; again in {now[0]:.1f} s"
        retries.emit(logging.LogRecord("fedclust.http", 20, "", 0, text, None, None))

    for at in (0.0, 1.0, 601.0):
        now[0] = at
        again("GET /x")
    assert len(capsys.readouterr().err.splitlines()) == 2
    for number in range(1000):
        now[0] += 1.0
        again(f"PUT /rounds/{number}")
    assert len(retries._shown) <= 601


def test_retries_are_told_by_one_handler(capsys: Captured) -> None:
    console.tell_retries()
    console.tell_retries()
    for delay in (1.0, 2.0):
        logging.getLogger("fedclust.http").info("%s: no answer; again in %.1f s", "GET /y", delay)
    assert capsys.readouterr().err.splitlines() == ["GET /y: no answer; again in 1.0 s"]


# --- readers that go ------------------------------------------------------------------------------


@pytest.fixture
def ledger() -> list[str]:
    """Return a command that says more than a pipe holds."""
    line = {"time": "2026", "session": "heart", "round": 1, "fields": {"x": "y" * 200}}
    state = SiteState()
    ledger = Ledger(state)
    with state.write():
        for _ in range(1_000):
            ledger.append(line)
    return [sys.executable, "-m", "fedclust.cli", "ledger", "show"]


@pytest.mark.skipif(os.name == "nt", reason="pipes of POSIX")
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_reader_that_has_seen_enough_is_no_error(ledger: list[str], form: list[str]) -> None:
    process = subprocess.Popen(
        [*ledger, *form], env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout.readline()
    process.stdout.close()
    said = process.stderr.read()
    process.stderr.close()
    assert (process.wait(TIMEOUT_S), said) == (0, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_an_error(ledger: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            ledger, env=clean_environment(), stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert done.returncode == 1
    assert b"No space left on device" in done.stderr
    assert b"Traceback" not in done.stderr


def test_messages_that_cannot_be_written_stop_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.StringIO):
        def flush(self) -> None:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(console, "err", Console(file=Full()))
    console.show(console.err, "an agent goes on without its log")


def test_a_refused_table_is_shown_as_a_line_about_a_table(
    capsys: pytest.CaptureFixture[str],
) -> None:
    told = {"event": REFUSED, "session": "heart", "table_id": "ab", "number": 2, "line": 3}
    console.ledger_screen({**told, "time": "2026-11-28T15:00:00Z"})
    shown = "3  2026-11-28T15:00:00Z  table ab\n     table refused: number 2, session heart\n"
    assert capsys.readouterr().out == shown
