"""Group commit: what waits is committed together, and each is answered for itself."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from fedclust.wire.models import TokenCreate
from fedclust.wire.submissions import BINARY
from fedclust_service.domain.access import Role
from fedclust_service.domain.refusal import Refusal
from fedclust_service.orchestration import principals, submissions
from fedclust_service.orchestration.submissions import Body, Submitted
from fedclust_service.orchestration.unit_of_work import UnitOfWork
from fedclust_service.store import Store, StoreUnavailable, Tx
from support.clock import ManualClock
from support.office import OPERATOR, Office, site
from support.patience import PATIENCE_S, eventually

SITES = ("a", "b", "c", "d", "e")


@contextmanager
def held(office: Office, work: Any = None) -> Iterator[None]:
    """Have a writer inside its transaction for the length of the block; it does ``work`` last."""
    inside, go = threading.Event(), threading.Event()

    def hold(uow: UnitOfWork) -> None:
        inside.set()
        assert go.wait(PATIENCE_S)
        if work is not None:
            work(uow)

    writer = threading.Thread(target=lambda: office.co.submissions.commit("heart", hold))
    writer.start()
    assert inside.wait(PATIENCE_S)
    try:
        yield
    finally:
        go.set()
        writer.join(PATIENCE_S)


def send(office: Office, who: str, body: bytes, number: int = 1) -> Future[Submitted]:
    return submissions.submit(office.co, site(who), "heart", number, Body(body, BINARY))


def slug(future: Future[Any]) -> str:
    with pytest.raises(Refusal) as caught:
        future.result(PATIENCE_S)
    return caught.value.slug


def stored(office: Office) -> set[str]:
    row = office.row("heart")
    kept = office.store.read("t", lambda tx: tx.submissions.summaries(session_id=row.id))
    return {each.site for each in kept}


def commits(office: Office) -> int:
    return office.store.metrics()["submission.store"].calls


def test_what_waits_is_committed_at_once_and_acknowledged_after_it(both_office: Office) -> None:
    both_office.session(sites=SITES)
    bodies = {name: both_office.body("heart", name) for name in SITES}
    with held(both_office):
        sent = [send(both_office, name, bodies[name]) for name in SITES]
        assert not any(each.done() for each in sent)
        assert stored(both_office) == set()
    assert all(each.result(PATIENCE_S).created for each in sent)
    assert stored(both_office) == set(SITES)
    assert commits(both_office) == 2, "the one that held the writer, and all the others"
    assert both_office.drive() == 1


def test_who_sends_or_reads_waits_for_no_lock(both_office: Office) -> None:
    """Another transaction holds the writer, or the sessions' rows; nothing here may wait for it."""
    names = [f"s{n}" for n in range(10)]
    for name in names:
        both_office.session(name)
    bodies = {name: both_office.body(name, "north") for name in names}
    issued = principals.issue_token(both_office.co, OPERATOR, Role.SITE, "north", TokenCreate())
    inside, go = threading.Event(), threading.Event()

    def hold(tx: Tx) -> None:
        for name in names:
            tx.sessions.lock(name)
        inside.set()
        assert go.wait(PATIENCE_S)

    holder = threading.Thread(target=lambda: both_office.store.run_tx("test.hold", hold))
    holder.start()
    try:
        assert inside.wait(PATIENCE_S)
        sent = [
            submissions.submit(both_office.co, site("north"), name, 1, Body(bodies[name], BINARY))
            for name in names
        ]
        # Its first use is to be recorded.
        assert principals.authenticate(both_office.co, issued.token).name == "north"
        assert both_office.view("s9", "south").response.status == "work"
        assert not any(each.done() for each in sent)
    finally:
        go.set()
        holder.join(PATIENCE_S)
    assert all(each.result(PATIENCE_S).created for each in sent)
    eventually(lambda: not both_office.co.touching)
    token = both_office.store.read("t", lambda tx: tx.tokens.get(issued.id))
    assert token is not None
    assert token.last_used_at is not None


def test_a_refusal_undoes_itself_alone(both_office: Office) -> None:
    both_office.session(sites=SITES)
    bodies = {name: both_office.body("heart", name) for name in SITES}
    bodies["b"] = both_office.body("heart", "b", weight=0.0)

    row = both_office.row("heart")

    def half(uow: UnitOfWork) -> None:
        uow.audit("c", "submission.stored", "heart")
        uow.tx.sessions.touch(row.id)
        raise Refusal("wrong-state", "no")

    with held(both_office):
        first, bad = send(both_office, "a", bodies["a"]), send(both_office, "b", bodies["b"])
        undone = both_office.co.submissions.commit("heart", half)
        last = send(both_office, "d", bodies["d"])
    assert (first.result(PATIENCE_S).created, last.result(PATIENCE_S).created) == (True, True)
    assert (slug(bad), slug(undone)) == ("disclosure-refused", "wrong-state")
    assert commits(both_office) == 2
    assert stored(both_office) == {"a", "d"}
    assert len(both_office.audit(action="submission.stored")) == 2
    assert len(both_office.audit(action="submission.refused")) == 1
    assert both_office.row("heart").version == row.version


def test_a_defect_fails_whose_work_it_is_alone(both_office: Office) -> None:
    both_office.session(sites=SITES)
    bodies = {name: both_office.body("heart", name) for name in SITES}
    with held(both_office):
        first = send(both_office, "a", bodies["a"])
        broken = both_office.co.submissions.commit("heart", lambda _: 1 // 0)
        last = send(both_office, "d", bodies["d"])
    with pytest.raises(ZeroDivisionError):
        broken.result(PATIENCE_S)
    assert (first.result(PATIENCE_S).created, last.result(PATIENCE_S).created) == (True, True)
    assert len(both_office.audit(action="submission.stored")) == 2


def test_the_same_bytes_twice_in_a_batch_are_stored_once(both_office: Office) -> None:
    both_office.session(sites=SITES)
    body = both_office.body("heart", "a")
    with held(both_office):
        first, again = send(both_office, "a", body), send(both_office, "a", body)
        other = send(both_office, "a", both_office.body("heart", "a", empty=True))
    assert (first.result(PATIENCE_S).created, again.result(PATIENCE_S).created) == (True, False)
    assert first.result().receipt == again.result().receipt
    assert slug(other) == "submission-differs"


def test_one_that_closes_the_round_comes_before_the_rest_of_its_batch(
    both_office: Office, clock: ManualClock
) -> None:
    policy = {"quorum": 3, "round_timeout_s": 60}
    both_office.session(sites=SITES, policy=policy)
    bodies = {name: both_office.body("heart", name) for name in SITES}
    for name in ("a", "b"):
        both_office.put("heart", name, bodies[name])
    clock.advance(61)
    with held(both_office):
        sent = [send(both_office, name, bodies[name]) for name in ("c", "d", "a")]
    assert sent[0].result(PATIENCE_S).created
    assert slug(sent[1]) == "round-closed"
    # What is stored already comes before the state of the round.
    assert not sent[2].result(PATIENCE_S).created
    assert stored(both_office) == {"a", "b", "c"}
    assert both_office.drive() == 1


def test_a_site_that_is_excluded_while_its_answer_waits_is_refused(both_office: Office) -> None:
    both_office.session(sites=SITES)
    body = both_office.body("heart", "a")
    row = both_office.row("heart")

    def exclude(uow: UnitOfWork) -> None:
        current = uow.tx.rounds.latest(row.id)
        assert current is not None
        assert uow.tx.rounds.release(current.id, "a")

    with held(both_office, exclude):
        sent = send(both_office, "a", body)
    assert slug(sent) == "not-addressed"
    assert stored(both_office) == set()


def test_a_busy_database_repeats_all_of_them_once_each(both_office: Office) -> None:
    both_office.session(sites=SITES)
    bodies = {name: both_office.body("heart", name) for name in SITES}
    failures = [OperationalError("x", {}, Exception("database is locked"))]
    if not both_office.store.single_process:
        failures[0].orig.sqlstate = "40001"  # type: ignore[union-attr]

    def fail_once(_: UnitOfWork) -> None:
        if failures:
            raise failures.pop()

    with held(both_office):
        first = send(both_office, "a", bodies["a"])
        both_office.co.submissions.commit("heart", fail_once)
        last = send(both_office, "b", bodies["b"])
    assert (first.result(PATIENCE_S).created, last.result(PATIENCE_S).created) == (True, True)
    assert stored(both_office) == {"a", "b"}
    assert len(both_office.audit(action="submission.stored")) == 2
    assert not failures


def test_a_connection_lost_in_the_commit_is_told_to_all(both_office: Office) -> None:
    """Whether they are stored only the same bytes can tell: each is sent again."""
    both_office.session(sites=SITES)
    body = both_office.body("heart", "a")

    def lose(_: UnitOfWork) -> None:
        raise StoreUnavailable("lost")

    with held(both_office):
        first, second = (
            send(both_office, "a", body),
            both_office.co.submissions.commit("heart", lose),
        )
    for each in (first, second):
        with pytest.raises(StoreUnavailable):
            each.result(PATIENCE_S)
    assert stored(both_office) == set()
    assert both_office.put("heart", "a", body).created


_CHILD = """
import os, signal, sys, threading
from fedclust.methods.registry import METHODS
from fedclust.wire.submissions import BINARY
from fedclust_service.clock import StoreClock
from fedclust_service.orchestration import submissions
from fedclust_service.store import Store
from support import tally
from support.office import Office, site

METHODS[tally.NAME] = tally.method()
url, when = sys.argv[1:]
store = Store.open(url, StoreClock(), serving=True)
office = Office(store, store.clock)
bodies = {name: office.body("heart", name) for name in "abc"}

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def tell(name):
    os.write(2, name.encode())

inside, go = threading.Event(), threading.Event()

def hold(change):
    inside.set()
    go.wait()

threading.Thread(target=lambda: office.co.submissions.commit("heart", hold), daemon=True).start()
inside.wait()
for name, body in bodies.items():
    sent = submissions.submit(office.co, site(name), "heart", 1, submissions.Body(body, BINARY))
    sent.add_done_callback(lambda _, name=name: tell(name))
if when == "before":
    office.co.submissions.commit("heart", die)
else:
    sent.add_done_callback(die)
go.set()
threading.Event().wait()
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_kill_around_the_commit_of_a_batch(
    database_url: str, clock: ManualClock, when: str
) -> None:
    """Between the savepoints and the commit nobody has been told anything, and nothing is there."""
    with_store = Store.open(database_url, clock)
    Office(with_store, clock).session(sites=("a", "b", "c", "d"))
    with_store.close()
    child = subprocess.run(
        [sys.executable, "-c", _CHILD, database_url, when],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        cwd=Path(__file__).parents[1],
    )
    store = Store.open(database_url, clock, serving=True)
    try:
        assert stored(Office(store, clock)) == set(child.stderr)
        assert child.stderr == ("" if when == "before" else "abc")
    finally:
        store.close()
