"""Group commit: what waits is committed together, and each is answered for itself."""

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from fedclust.wire.submissions import BINARY
from fedclust_service.domain.access import Refusal, Role
from fedclust_service.store import Store, StoreUnavailable, Tx
from fedclust_service.usecases import principals, submissions
from fedclust_service.usecases.submissions import Body, Submitted
from fedclust_service.usecases.unit_of_work import UnitOfWork
from support.clock import ManualClock
from support.databases import in_turn
from support.processes import run
from support.timeouts import TIMEOUT_S, eventually
from usecases.direct_api import DirectApi, refusal, site

SITES = ("a", "b", "c", "d", "e")


@contextmanager
def held(direct: DirectApi, work: Any = None) -> Iterator[None]:
    """Have a writer inside its transaction for the length of the block; it does ``work`` last."""
    inside, go = threading.Event(), threading.Event()

    def hold(uow: UnitOfWork) -> None:
        inside.set()
        assert go.wait(TIMEOUT_S)
        if work is not None:
            work(uow)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(direct.co.submissions.commit, "heart", hold)
        assert inside.wait(TIMEOUT_S)
        try:
            yield
        finally:
            go.set()


def send(direct: DirectApi, who: str, body: bytes, number: int = 1) -> Future[Submitted]:
    return submissions.submit(direct.co, site(who), "heart", number, Body(body, BINARY))


def slug(future: Future[Any]) -> str:
    return refusal(future.result, TIMEOUT_S).slug


def test_what_waits_is_committed_at_once_and_acknowledged_after_it(both: DirectApi) -> None:
    """One that is refused among them is no reason to commit the others one by one."""
    both.session(sites=SITES)
    bodies = {name: both.body("heart", name) for name in SITES}
    with held(both):
        sent = [send(both, name, bodies[name]) for name in SITES]
        other = send(both, SITES[0], bodies[SITES[0]] + b" ")
        assert not any(each.done() for each in sent)
        assert both.stored() == []
    assert all(each.result(TIMEOUT_S).created for each in sent)
    assert slug(other) == "submission-differs"
    assert both.stored() == [*SITES]
    assert both.calls("submission.store") == 2, "the one that held the writer, and all the others"
    assert both.drive() == 1


def test_who_sends_or_reads_waits_for_no_lock(both: DirectApi) -> None:
    """Another transaction holds the writer, or the sessions' rows; nothing here may wait for it."""
    names = [f"s{n}" for n in range(10)]
    for name in names:
        both.session(name)
    bodies = {name: both.body(name, "north") for name in names}
    issued = both.issue(Role.SITE, "north")
    inside, go = threading.Event(), threading.Event()

    def hold(tx: Tx) -> None:
        for name in names:
            tx.sessions.get(name, lock=True)
        inside.set()
        assert go.wait(TIMEOUT_S)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(both.store.run_tx, "test.hold", hold)
        try:
            assert inside.wait(TIMEOUT_S)
            sent = [
                submissions.submit(both.co, site("north"), name, 1, Body(bodies[name], BINARY))
                for name in names
            ]
            # Its first use is to be recorded.
            assert principals.authenticate(both.co, issued.token).name == "north"
            assert both.view("s9", "south").response.status == "work"
            assert not any(each.done() for each in sent)
        finally:
            go.set()
    assert all(each.result(TIMEOUT_S).created for each in sent)
    eventually(lambda: not both.co.touching)
    token = both.store.read("t", lambda tx: tx.tokens.get(issued.id))
    assert token.last_used_at is not None


def test_a_refusal_undoes_itself_alone_and_a_defect_fails_whose_work_it_is(both: DirectApi) -> None:
    both.session(sites=SITES)
    bodies = {name: both.body("heart", name) for name in SITES}
    bodies["b"] = both.body("heart", "b", weight=0.0)
    row = both.row("heart")

    def half(uow: UnitOfWork) -> None:
        uow.audit("c", "submission.stored", "heart")
        uow.tx.sessions.touch(row.id)
        raise Refusal("wrong-state", "no")

    with held(both):
        first, bad = send(both, "a", bodies["a"]), send(both, "b", bodies["b"])
        undone = both.co.submissions.commit("heart", half)
        broken = both.co.submissions.commit("heart", lambda _: 1 // 0)
        last = send(both, "d", bodies["d"])
    assert (first.result(TIMEOUT_S).created, last.result(TIMEOUT_S).created) == (True, True)
    assert (slug(bad), slug(undone)) == ("disclosure-refused", "wrong-state")
    with pytest.raises(ZeroDivisionError):
        broken.result(TIMEOUT_S)
    assert both.stored() == ["a", "d"]
    assert len(both.audit(action="submission.stored")) == 2
    assert len(both.audit(action="submission.refused")) == 1
    assert both.row("heart").version == row.version


def test_the_same_bytes_twice_in_a_batch_are_stored_once(direct: DirectApi) -> None:
    direct.session(sites=SITES)
    body = direct.body("heart", "a")
    with held(direct):
        first, again = send(direct, "a", body), send(direct, "a", body)
        other = send(direct, "a", direct.body("heart", "a", empty=True))
    assert (first.result(TIMEOUT_S).created, again.result(TIMEOUT_S).created) == (True, False)
    assert first.result().receipt == again.result().receipt
    assert slug(other) == "submission-differs"


def test_one_that_closes_the_round_comes_before_the_rest_of_its_batch(direct: DirectApi) -> None:
    policy = {"quorum": 3, "round_timeout_s": 60}
    direct.session(sites=SITES, policy=policy)
    bodies = {name: direct.body("heart", name) for name in SITES}
    for name in ("a", "b"):
        direct.put("heart", name, bodies[name])
    direct.clock.advance(61)
    with held(direct):
        sent = [send(direct, name, bodies[name]) for name in ("c", "d", "a")]
    assert sent[0].result(TIMEOUT_S).created
    assert slug(sent[1]) == "round-closed"
    # What is stored already comes before the state of the round.
    assert not sent[2].result(TIMEOUT_S).created
    assert direct.stored() == ["a", "b", "c"]
    assert direct.drive() == 1


def test_a_site_that_is_excluded_while_its_answer_waits_is_refused(direct: DirectApi) -> None:
    direct.session(sites=SITES)
    body = direct.body("heart", "a")
    row = direct.row("heart")

    def exclude(uow: UnitOfWork) -> None:
        current = uow.tx.rounds.latest(row.id)
        assert uow.tx.rounds.release(current.id, "a")

    with held(direct, exclude):
        sent = send(direct, "a", body)
    assert slug(sent) == "not-addressed"
    assert direct.stored() == []


def test_a_busy_database_repeats_all_of_them_once_each(both: DirectApi) -> None:
    both.session(sites=SITES)
    bodies = {name: both.body("heart", name) for name in SITES}
    failures = [OperationalError("x", {}, Exception("database is locked"))]
    if not both.store.single_process:
        failures[0].orig.sqlstate = "40001"  # type: ignore[union-attr]

    def fail_once(_: UnitOfWork) -> None:
        if failures:
            raise failures.pop()

    with held(both):
        first = send(both, "a", bodies["a"])
        both.co.submissions.commit("heart", fail_once)
        last = send(both, "b", bodies["b"])
    assert (first.result(TIMEOUT_S).created, last.result(TIMEOUT_S).created) == (True, True)
    assert both.stored() == ["a", "b"]
    assert len(both.audit(action="submission.stored")) == 2
    assert not failures


def test_a_connection_lost_in_the_commit_is_told_to_all(both: DirectApi) -> None:
    """Whether they are stored only the same bytes can tell: each is sent again."""
    both.session(sites=SITES)
    body = both.body("heart", "a")

    def lose(_: UnitOfWork) -> None:
        raise StoreUnavailable("lost")

    with held(both):
        first, second = (send(both, "a", body), both.co.submissions.commit("heart", lose))
    for each in (first, second):
        with pytest.raises(StoreUnavailable):
            each.result(TIMEOUT_S)
    assert both.stored() == []
    assert both.put("heart", "a", body).created


_CHILD = """
import os, signal, sys, threading
from fedclust.methods.registry import METHODS
from fedclust.wire.submissions import BINARY
from fedclust_service.clock import StoreClock
from fedclust_service.usecases import submissions
from fedclust_service.store import Store
from usecases import counting_method
from usecases.direct_api import DirectApi, site

METHODS[counting_method.NAME] = counting_method.method()
url, when = sys.argv[1:]
store = Store.open(url, StoreClock(), serving=True)
direct = DirectApi(store, store.clock)
bodies = {name: direct.body("heart", name) for name in "abc"}

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def tell(name):
    os.write(2, name.encode())

inside, go = threading.Event(), threading.Event()

def hold(change):
    inside.set()
    go.wait()

threading.Thread(target=lambda: direct.co.submissions.commit("heart", hold), daemon=True).start()
inside.wait()
for name, body in bodies.items():
    sent = submissions.submit(direct.co, site(name), "heart", 1, submissions.Body(body, BINARY))
    sent.add_done_callback(lambda _, name=name: tell(name))
if when == "before":
    direct.co.submissions.commit("heart", die)
else:
    sent.add_done_callback(die)
go.set()
threading.Event().wait()
"""


WHEN = ["before", "after"]


@pytest.mark.parametrize(("when", "database_url"), in_turn(WHEN, WHEN), indirect=["database_url"])
def test_kill_around_the_commit_of_a_batch(
    database_url: str, clock: ManualClock, when: str
) -> None:
    """Between the statements and the commit nobody has been told anything, and nothing is there."""
    with closing(Store.open(database_url, clock)) as store:
        DirectApi(store, clock).session(sites=("a", "b", "c", "d"))
    child = run([sys.executable, "-c", _CHILD, database_url, when], cwd=Path(__file__).parents[1])
    with closing(Store.open(database_url, clock, serving=True)) as store:
        assert DirectApi(store, clock).stored() == list(child.stderr)
        assert child.stderr == ("" if when == "before" else "abc")
