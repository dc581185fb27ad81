"""Three coordinators under faults, and the checker that judges what was seen."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

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


def _double_acceptance(history: History) -> None:
    history.requests.append(submit(1, "north", 11.0))


def _lost(history: History) -> None:
    del history.stored[0]


def _other_bytes(history: History) -> None:
    history.stored[0] = (1, "north", "other")


def _stored_twice(history: History) -> None:
    history.stored.append(history.stored[0])


def _unasked(history: History) -> None:
    history.stored.append((1, "stranger", "body"))


def _other_receipt(history: History) -> None:
    history.replays[0] = replace(history.replays[0], receipt=receipt(1, "north", at=1))


def _receipt_of_another(history: History) -> None:
    seen = history.replays[0]
    history.replays[0] = replace(seen, receipt=receipt(1, "south"))


def _replay_refused(history: History) -> None:
    history.replays[0] = replace(history.replays[0], status=409, receipt=None)


def _closed_twice(history: History) -> None:
    history.trail.append(("round.closed", 1))


def _never_closed(history: History) -> None:
    history.trail.remove(("round.closed", 2))


def _out_of_order(history: History) -> None:
    history.trail[1], history.trail[4] = history.trail[4], history.trail[1]


def _completed_twice(history: History) -> None:
    history.trail.append(("session.completed", None))


def _older_round(history: History) -> None:
    history.requests.append(task(1, "west", 30.0, "answered"))


def _asked_again(history: History) -> None:
    history.requests.append(task(2, "west", 30.0))


def _server_error(history: History) -> None:
    history.requests.append(replace(task(2, "west", 30.0), status=500))


def _round_gone(history: History) -> None:
    history.requests.append(replace(submit(1, "west", 30.0), status=410, receipt=None))


def _other_answer(history: History) -> None:
    history.answers = {**history.answers, (2, "south"): "other"}


def _other_result(history: History) -> None:
    history.result = b"other"


@pytest.mark.parametrize(
    ("falsify", "found"),
    [
        (_double_acceptance, "round 1 accepted 2 answers of north"),
        (_lost, "the acknowledged answer is lost: round 1 of north"),
        (_other_bytes, "the acknowledged answer is lost: round 1 of north"),
        (_stored_twice, "round 1 stores two answers of north"),
        (_unasked, "round 1 stores an answer of stranger that nobody asked for"),
        (_other_receipt, "receipts differ: round 1 of north"),
        (_receipt_of_another, "the receipt names another body: round 1 of north"),
        (_replay_refused, "the replay for round 1 of north reads 409, not 200"),
        (_closed_twice, "round.closed of round 1 stands 2 times in the trail, not 1"),
        (_never_closed, "round.closed of round 2 stands 0 times in the trail, not 1"),
        (_out_of_order, "the rounds of the trail are out of order"),
        (_completed_twice, "the session was completed 2 times"),
        (_older_round, "west read round 1 after round 2 had been told"),
        (_asked_again, "west was asked for round 2 again after its receipt"),
        (_server_error, "west read status 500 of a task, round 2"),
        (_round_gone, "west read status 410 of a submit, round 1"),
        (_other_answer, "the answer for round 2 of south is not that of simulate"),
        (_other_result, "the result is not that of simulate"),
    ],
    ids=lambda value: value.__name__.strip("_") if callable(value) else "",
)
def test_a_falsified_history_is_found(
    history: History, falsify: Callable[[History], None], found: str
) -> None:
    falsify(history)
    assert found in violations(history)


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
