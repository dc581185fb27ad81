"""Three coordinators under faults, and the checker that judges what was seen."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from e2e.fault_injection import KINDS, run_with_faults
from e2e.session_history import Fault, History, Request, violations, wakes
from support.databases import PostgresServer

SITES = ("north", "south", "west")
ROUNDS = 2


@pytest.mark.skipif(sys.platform == "win32", reason="kill -9 and SIGSTOP are POSIX")
@pytest.mark.parametrize("seed", [1])
def test_faults_change_nothing(tmp_path: Path, postgres_server: PostgresServer, seed: int) -> None:
    report = run_with_faults(tmp_path, postgres_server, seed, faults=len(KINDS))
    assert not report.violations, "\n".join(report.violations)
    assert {fault.kind for fault in report.faults} == set(KINDS)
    assert len(report.histories) >= 3


# --- the checker ----------------------------------------------------------------------------------


def receipt(number: int, site: str, *, at: int = 0) -> dict[str, object]:
    return {"round": number, "site": site, "sha256": sha256(number, site), "received_at": at}


def sha256(number: int, site: str) -> str:
    return f"body of {site} in round {number}"


def submit(number: int, site: str, began: float, status: int | None = 201) -> Request:
    stored = None if status is None else receipt(number, site)
    return Request(
        *(site, "submit", began, began + 0.1, status),
        round=number,
        receipt=stored,
        sha256=sha256(number, site),
    )


def task(number: int, site: str, began: float, state: str = "work") -> Request:
    return Request(site, "task", began, began + 0.1, 200, round=number, state=state)


@pytest.fixture
def history() -> History:
    """Return what a correct coordinator shows: sites ask and answer, one after the other."""
    requests, stored, replays, keys = [], [], [], []
    trail: list[tuple[str, int | None]] = [("session.started", None)]
    for number in range(1, ROUNDS + 1):
        for place, site in enumerate(SITES):
            began = 10.0 * number + place
            requests += [
                task(number, site, began),
                submit(number, site, began + 0.2, None),
                submit(number, site, began + 0.4),
                task(number, site, began + 0.6, "answered"),
            ]
            stored.append((number, site, sha256(number, site)))
            replays.append(submit(number, site, 100.0 + number, 200))
            keys.append((number, site))
        trail += [(f"round.{action}", number) for action in ("opened", "collected", "closed")]
    answers = {key: f"payload {key}" for key in keys}
    return History(
        requests=requests,
        replays=replays,
        stored=stored,
        trail=[*trail, ("session.completed", None)],
        answers=answers,
        expected_answers=dict(answers),
        result=b"result",
        expected_result=b"result",
    )


def test_a_correct_history_has_no_violations(history: History) -> None:
    assert violations(history) == []


def replayed(history: History, **changes: Any) -> None:
    """Change the first replay."""
    history.replays[0] = replace(history.replays[0], **changes)


def asked(history: History, number: int, state: str, **changes: Any) -> None:
    """Let west ask once more at the end."""
    history.requests.append(replace(task(number, "west", 30.0, state), **changes))


#: What the checker says, and how a correct history is falsified.
FALSIFIED: dict[str, Callable[[History], object]] = {
    "round 1 accepted 2 answers of north": lambda h: h.requests.append(submit(1, "north", 11.0)),
    "answer is lost: round 1 of north": lambda h: h.stored.pop(0),
    "the acknowledged answer is lost: round 1 of north": lambda h: h.stored.__setitem__(
        0, (1, "north", "other")
    ),
    "round 1 stores two answers of north": lambda h: h.stored.append(h.stored[0]),
    "an answer of stranger that nobody asked for": lambda h: h.stored.append((1, "stranger", "x")),
    "receipts differ: round 1 of north": lambda h: replayed(h, receipt=receipt(1, "north", at=1)),
    "names another body: round 1 of north": lambda h: replayed(h, receipt=receipt(1, "south")),
    "round 1 of north reads 409, not 200": lambda h: replayed(h, status=409, receipt=None),
    "round.closed of round 1 stands 2 times": lambda h: h.trail.append(("round.closed", 1)),
    "round.closed of round 2 stands 0 times": lambda h: h.trail.remove(("round.closed", 2)),
    "the trail are out of order": lambda h: h.trail.insert(1, h.trail.pop(4)),
    "completed 2 times": lambda h: h.trail.append(("session.completed", None)),
    "west read round 1 after round 2 had been told": lambda h: asked(h, 1, "answered"),
    "was asked for round 2 again after its receipt": lambda h: asked(h, 2, "work"),
    "status 500 of a task, round 2": lambda h: asked(h, 2, "work", status=500),
    "status 410 of a submit, round 1": lambda h: asked(h, 1, "work", kind="submit", status=410),
    "answer for round 2 of south is not": lambda h: h.answers.pop((2, "south")),
    "the result is not that of simulate": lambda h: setattr(h, "result", b"other"),
}


@pytest.mark.parametrize("found", FALSIFIED)
def test_a_falsified_history_is_found(history: History, found: str) -> None:
    FALSIFIED[found](history)
    assert any(found in each for each in violations(history))


def test_wakes_are_measured_from_the_first_site_that_was_told() -> None:
    requests = [
        task(1, "north", 0.0),
        task(1, "south", 0.3),  # asked after the round had opened
        Request("west", "task", 0.0, 2.1, 200, round=1, state="work"),
        Request("west", "task", 5.0, 9.0, 200, round=2, state="work"),
        Request("north", "task", 5.0, 6.0, 200, round=2, state="work"),
    ]
    assert wakes(requests, [], 1.0) == pytest.approx([0.1, 2.0, 3.0])
    assert wakes(requests, [Fault("kill", 0, 4.0, 5.5)], 1.0) == pytest.approx([0.1, 2.0])
