"""What `run_tx` returned from is there after ``kill -9``; what it had not, is not there at all."""

import subprocess
import sys

import pytest

from fedclust_service.domain.round import RoundState
from fedclust_service.store import Store
from support.clock import ManualClock
from support.databases import in_turn
from support.store_rows import open_round
from support.timeouts import TIMEOUT_S

CHILD = """
import os, signal, sys
from datetime import UTC, datetime
from fedclust_service.clock import StoreClock
from fedclust_service.domain.round import RoundState
from fedclust_service.domain.round import Submission
from fedclust_service.store import Store

url, when, session_id, round_id = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])

def die():
    os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))

def work(tx):
    answer = Submission(session_id, round_id, "zurich", "means", "c" * 64, 5, False,
                        datetime.now(UTC), b"bytes" * 5000)
    assert tx.submissions.insert(answer)
    assert tx.rounds.transition(round_id, RoundState.COLLECTING, RoundState.AGGREGATING)
    tx.sessions.touch(session_id)
    if when == "before":
        die()

store = Store.open(url, StoreClock(), serving=True)
store.run_tx("submit", work)
die()
"""


WHEN = ["before", "after"]


@pytest.mark.parametrize(("when", "database_url"), in_turn(WHEN, WHEN), indirect=["database_url"])
def test_kill_around_the_commit(database_url: str, clock: ManualClock, when: str) -> None:
    arranged = Store.open(database_url, clock)
    session, opened = open_round(arranged)
    arranged.close()

    arguments = [database_url, when, str(session.id), str(opened.id)]
    child = subprocess.run(
        [sys.executable, "-c", CHILD, *arguments], capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert child.returncode != 0
    assert child.stderr == ""

    store = Store.open(database_url, clock, serving=True)
    answer = store.read("get", lambda tx: tx.submissions.get(opened.id, "zurich"))
    found = store.read("get", lambda tx: tx.rounds.get_by_id(opened.id))
    after = store.read("get", lambda tx: tx.sessions.get("heart"))
    store.close()
    assert found is not None
    assert after is not None
    if when == "before":
        assert (answer, found.state, after.version) == (None, RoundState.COLLECTING, 1)
    else:
        assert answer.payload == b"bytes" * 5000
        assert (found.state, after.version) == (RoundState.AGGREGATING, 2)
