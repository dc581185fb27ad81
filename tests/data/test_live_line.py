"""Slow work in Python: shown on a terminal and in a notebook, and nowhere else."""

from __future__ import annotations

import io
import pickle
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedclust import simulate
from fedclust.data import Dataset, live_line
from fedclust.data.live_line import SlowWork
from fedclust.local.estimators import FederatedKMeans
from fedclust.site.consent import ConsentRequest
from fedclust.site.progress import Preview, Progress, SessionWork
from support.command_line import Terminal
from support.fake_coordinator import FakeCoordinator
from support.site_rows import blobs

SITES = blobs(np.array([[0.0, 0.0], [9.0, 9.0]]), [30, 30, 30])


class Timer(threading.Timer):
    """A timer that rings when the test says so."""

    def start(self) -> None:
        pass

    def ring(self) -> None:
        self.function(*self.args)


@pytest.fixture(autouse=True)
def timers(monkeypatch: pytest.MonkeyPatch) -> list[Timer]:
    made: list[Timer] = []

    def timer(*given: Any) -> Timer:
        made.append(Timer(*given))
        return made[-1]

    monkeypatch.setitem(SlowWork.__init__.__kwdefaults__, "timer", timer)
    # Work that goes on after a question is shown if it took long by now: no machine is slow here.
    monkeypatch.setitem(SlowWork.__init__.__kwdefaults__, "monotonic", lambda: 0.0)
    monkeypatch.delenv(live_line.VARIABLE, raising=False)
    return made


def open_terminal(patch: pytest.MonkeyPatch) -> Terminal:
    """Make standard error a terminal; not in a fixture, after which pytest captures it again."""
    terminal = Terminal()
    patch.setenv("TERM", "xterm")
    patch.setenv("COLUMNS", "90")
    patch.setattr(sys, "stderr", terminal)
    return terminal


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, dict[str, Any]]]:
    """Return what a kernel's IPython was asked to display."""
    shown: list[tuple[Any, dict[str, Any]]] = []
    package, display = ModuleType("IPython"), ModuleType("IPython.display")
    package.get_ipython = lambda: SimpleNamespace(kernel=object())  # type: ignore[attr-defined]
    display.display = lambda data, **how: shown.append((data, how))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", package)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    return shown


def test_a_terminal_shows_work_after_two_seconds(
    monkeypatch: pytest.MonkeyPatch, timers: list[Timer]
) -> None:
    terminal = open_terminal(monkeypatch)
    clock = [0.0]
    with SlowWork("reading", monotonic=lambda: clock[0]) as work:
        (timer,) = timers
        assert timer.interval == 2.0
        work.say("round 3", 1, 4)
        assert terminal.getvalue() == ""
        clock[0] = 75.0
        timer.ring()
        assert "round 3, 1:15" in terminal.getvalue()
    assert timer.finished.is_set()
    # The line is removed from the screen.
    shown = terminal.getvalue()
    assert shown.endswith(("\x1b[2K", "\x1b[?25h", "\x1b[1A\x1b[2K"))
    # Quick work shows nothing.
    with SlowWork("reading"):
        pass
    timers[1].ring()
    assert terminal.getvalue() == shown


def test_a_notebook_shows_one_display_that_is_updated(
    notebook: list[tuple[Any, dict[str, Any]]], timers: list[Timer]
) -> None:
    with SlowWork("reading <b>.csv", monotonic=lambda: 0.0) as work:
        timers[0].ring()
        work.say("round 2", 3, 12)
        work._line.refresh()
    (first, how), *updates = notebook
    assert first["text/plain"] == "reading <b>.csv, 0:00"
    assert first["text/html"] == "<div>reading &lt;b&gt;.csv, 0:00</div>"
    assert how["raw"]
    assert "update" not in how
    assert all(each["update"] and each["display_id"] == how["display_id"] for _, each in updates)
    shown = [data["text/html"] for data, _ in updates]
    assert '<div><progress value="3" max="12"></progress> round 2, 0:00</div>' in shown
    assert shown[-1] == ""
    assert not [each for each in threading.enumerate() if each.daemon and each.name == "reading"]


def test_ipython_is_not_imported_to_find_out() -> None:
    assert "IPython" not in sys.modules
    assert live_line._kernel() is None


def test_nothing_is_shown_where_nobody_looks(
    timers: list[Timer], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = open_terminal(monkeypatch)

    def work() -> None:
        with SlowWork("reading"):
            pass

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    with SlowWork("reading", shown=False):
        pass
    monkeypatch.setenv(live_line.VARIABLE, "0")
    work()
    monkeypatch.delenv(live_line.VARIABLE)
    monkeypatch.setattr(live_line, "current_process", lambda: SimpleNamespace(name="Loky-1"))
    work()
    monkeypatch.setattr(live_line, "current_process", lambda: SimpleNamespace(name="MainProcess"))
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    work()
    monkeypatch.setattr(sys, "stderr", None)
    work()
    assert timers == []
    assert terminal.getvalue() == ""


def test_a_question_is_not_overwritten(
    monkeypatch: pytest.MonkeyPatch, timers: list[Timer]
) -> None:
    terminal = open_terminal(monkeypatch)
    clock = [0.0]
    with SlowWork("waiting", monotonic=lambda: clock[0]) as work:
        with work.paused():
            clock[0] = 60.0
            timers[0].ring()
            assert terminal.getvalue() == ""
        assert "waiting, 1:00" in terminal.getvalue()
        with work.paused():
            before = terminal.getvalue()
            timers[0].ring()
            assert terminal.getvalue() == before


def test_simulate_says_what_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, timers: list[Timer]
) -> None:
    said: list[str] = []
    monkeypatch.setattr(SlowWork, "say", lambda _self, what, *_: said.append(what))
    paths = {}
    for name, rows in SITES.items():
        paths[name] = tmp_path / f"{name}.csv"
        np.savetxt(paths[name], rows, delimiter=",", header="u,v", comments="")
    first = next(iter(SITES))
    simulate("lloyd", paths, config={"n_clusters": 2})

    assert said[0].startswith(f"{first}.csv: ")
    assert f"simulate lloyd: reading site {first}" in said
    assert any(text.startswith("simulate lloyd: round 1 prepare, site ") for text in said)
    assert "simulate lloyd: labelling rows" in said
    assert timers == []


def test_simulate_can_be_silent(monkeypatch: pytest.MonkeyPatch, timers: list[Timer]) -> None:
    terminal = open_terminal(monkeypatch)
    simulate("lloyd", SITES, config={"n_clusters": 2}, progress=False)
    assert timers == []
    simulate("lloyd", SITES, config={"n_clusters": 2})
    assert len(timers) == 1
    assert terminal.getvalue() == ""


@pytest.mark.parametrize("what", ["a result's predict", "predict", "score", "transform"])
def test_a_result_and_an_estimator_say_that_they_label_and_measure(
    what: str, monkeypatch: pytest.MonkeyPatch, timers: list[Timer]
) -> None:
    result = simulate("lloyd", SITES, config={"n_clusters": 2})
    made = result if "result" in what else FederatedKMeans.from_result(result)
    said = "the array: 60 rows read"
    clock = [0.0]
    monkeypatch.setitem(SlowWork.__init__.__kwdefaults__, "monotonic", lambda: clock[0])
    say = SlowWork.say

    def say_late(work: SlowWork, text: str, *counts: Any) -> None:
        say(work, text, *counts)
        if text == said:
            clock[0] = 3.0
            timers[-1].ring()

    monkeypatch.setattr(SlowWork, "say", say_late)
    terminal = open_terminal(monkeypatch)
    getattr(made, what.split()[-1])(SITES["a"])
    assert f"{said}, 0:03" in terminal.getvalue()
    assert len(timers) == 1
    assert timers[0].finished.is_set()


def test_a_site_shows_its_session_unless_the_caller_takes_its_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, timers: list[Timer]
) -> None:
    terminal = open_terminal(monkeypatch)
    monkeypatch.setenv("FEDCLUST_STATE_DIR", str(tmp_path / "state"))
    mine, *others = SITES.values()
    events: list[Progress] = []

    def fake() -> FakeCoordinator:
        return FakeCoordinator(dict(zip(("alpha", "beta"), others, strict=True)))

    reported: list[Progress] = []
    monkeypatch.setattr(SessionWork, "tell", lambda _self, event: reported.append(event))
    site = fake().site(tmp_path / "a")
    site.check("heart", mine)
    site.preview("heart", mine)
    assert len(timers) == 2
    quiet: list[bool] = []
    asked: list[Any] = []
    made: list[SessionWork] = []
    enter = SessionWork.__enter__
    monkeypatch.setattr(SessionWork, "__enter__", lambda work: made.append(work) or enter(work))

    def consent(_request: ConsentRequest) -> bool:
        quiet.append(not made[-1]._active)
        return True

    def ask(preview: Preview) -> bool:
        quiet.append(not made[-1]._active)
        asked.append(preview)
        return True

    result = site.participate("heart", mine, consent=consent, ask=ask)
    assert quiet == [True] * (1 + len(asked))
    assert len(timers) == 3
    assert all(timer.finished.is_set() for timer in timers)
    assert len(asked) == len({event.round for event in reported if event.event == "sent"})
    assert (reported[0].event, reported[-1].event) == ("joined", "done")
    assert all(event.most_rounds for event in reported)
    # What watches the reading stays in this process.
    kept = pickle.loads(pickle.dumps(result))  # noqa: S301
    np.testing.assert_array_equal(kept.predict(mine), result.predict(mine))
    before = len(timers)
    fake().site(tmp_path / "b").participate("heart", mine, consent=True, on_progress=events.append)
    fake().site(tmp_path / "c", progress=False).participate("heart", mine, consent=True)
    assert len(timers) == before
    assert events[-1].event == "done"
    assert terminal.getvalue() == ""


def test_a_session_on_a_terminal_says_its_round(
    monkeypatch: pytest.MonkeyPatch, timers: list[Timer]
) -> None:
    terminal = open_terminal(monkeypatch)
    with SessionWork(shown=True) as work:
        work.tell(Progress("waiting", 3, None, 1, 3, most_rounds=9))
        timers[0].ring()
    assert "round 3: waiting for 2 of 3 sites, 0:00 (of at most 9 rounds)" in terminal.getvalue()


def test_a_data_set_keeps_who_watches_it() -> None:
    from fedclust.data.mapping import watch_reading

    seen: list[Any] = []
    own = Dataset(SITES["a"], on_read=lambda *read: seen.append(read))
    assert watch_reading(own, print) is own
    assert watch_reading(Dataset(SITES["a"], missing=["?"]), print).options.missing == ("?",)
