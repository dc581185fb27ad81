"""Three coordinators under faults, and the checker that judges what was seen."""

import sys
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from e2e.fault_injection import KINDS, run_with_faults
from e2e.session_history import History, Request, violations
from support.databases import PostgresServer


def replayed(history: History, *, status: int = 200, **receipt: Any) -> None:
    """Change the first replay, and fields of its receipt."""
    first = history.replays[0]
    changed = {**(first.receipt or {}), **receipt}
    history.replays[0] = replace(first, status=status, receipt=changed)


def asked(history: History, state: str, kind: str = "task", status: int = 200) -> None:
    """Let berlin ask once more at the end, for round 1."""
    history.requests.append(Request("berlin", kind, 1e9, 1e9, status, round=1, state=state))


def accepted(history: History) -> Request:
    """Return the first answer that was accepted: of berlin, in round 1."""
    return next(each for each in history.requests if each.status == 201)


def moved(trail: list[Any], entry: Any) -> None:
    """Move an entry to the beginning."""
    trail.remove(entry)
    trail.insert(0, entry)


#: What the checker says, and how a correct history is falsified.
FALSIFIED: dict[str, Callable[[History], object]] = {
    "round 1 accepted 2 answers of berlin": lambda h: h.requests.append(accepted(h)),
    "answer is lost: round 1 of berlin": lambda h: h.stored.pop(0),
    "the acknowledged answer is lost: round 1 of berlin": lambda h: h.stored.__setitem__(
        0, (1, "berlin", "other")
    ),
    "round 1 stores two answers of berlin": lambda h: h.stored.append(h.stored[0]),
    "an answer of stranger that nobody asked for": lambda h: h.stored.append((1, "stranger", "x")),
    "receipts differ: round 1 of berlin": lambda h: replayed(h, received_at=""),
    "names another body: round 1 of berlin": lambda h: replayed(h, sha256=""),
    "round 1 of berlin reads 409, not 200": lambda h: replayed(h, status=409),
    "round.closed of round 1 stands 2 times": lambda h: h.trail.append(("round.closed", 1)),
    "round.closed of round 2 stands 0 times": lambda h: h.trail.remove(("round.closed", 2)),
    "the trail are out of order": lambda h: moved(h.trail, ("round.closed", 1)),
    "completed 2 times": lambda h: h.trail.append(("session.completed", None)),
    "berlin read round 1 after round": lambda h: asked(h, "answered"),
    "was asked for round 1 again after its receipt": lambda h: asked(h, "work"),
    "status 500 of a task, round 1": lambda h: asked(h, "work", status=500),
    "status 410 of a submit, round 1": lambda h: asked(h, "work", "submit", 410),
    "answer for round 2 of berlin is not": lambda h: h.answers.pop((2, "berlin")),
    "the result is not that of simulate": lambda h: setattr(h, "result", b"other"),
}


@pytest.mark.skipif(sys.platform == "win32", reason="kill -9 and SIGSTOP are POSIX")
@pytest.mark.parametrize("seed", [1])
def test_faults_change_nothing(tmp_path: Path, postgres_server: PostgresServer, seed: int) -> None:
    report = run_with_faults(tmp_path, postgres_server, seed, faults=len(KINDS))
    assert not report.violations, "\n".join(report.violations)
    assert {fault.kind for fault in report.faults} == set(KINDS)
    assert len(report.histories) >= 3
    # The checker finds whatever is falsified.
    for found, falsify in FALSIFIED.items():
        falsified = deepcopy(report.histories[0])
        falsify(falsified)
        assert any(found in each for each in violations(falsified)), found
