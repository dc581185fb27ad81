"""The driver: one winner, whatever dies; and what fails a round."""

import dataclasses
import sqlite3
import threading
from datetime import datetime

import pytest
from sqlalchemy.exc import OperationalError

from fedclust import definition
from fedclust.methods.registry import METHODS
from fedclust.schema.errors import MethodFailure
from fedclust.wire.submissions import BINARY
from fedclust_service.domain.round import RoundState
from fedclust_service.store import StoreUnavailable, Unwritable, WaitingRound
from fedclust_service.store.rounds import Rounds
from fedclust_service.usecases import (
    definitions,
    participation,
    results,
    rounds,
    sessions,
    submissions,
    sweeper,
)
from fedclust_service.usecases.coordinator import Coordinator
from fedclust_service.usecases.core import Limits
from fedclust_service.usecases.submissions import Body
from support.clock import ManualClock
from support.databases import in_turn
from support.store_rows import rounds_to_aggregate
from support.timeouts import TIMEOUT_S, eventually
from usecases import counting_method
from usecases.direct_api import ANALYST, LIMITS, DirectApi, at_once, failing, site, working


class Crash(BaseException):
    """The process dies here."""


def die() -> None:
    raise Crash


def die_aggregating(direct: DirectApi, co: Coordinator | None = None) -> None:
    """Have a process die in the middle of an aggregation, with the lease."""
    counting_method.HOOK[:] = [die]
    with pytest.raises(Crash):
        direct.drive(co)
    counting_method.HOOK.clear()


# --- the good way ---------------------------------------------------------------------------------


def test_the_threads_carry_a_session_and_stop(direct: DirectApi) -> None:
    # Nothing is due by polling: the submission itself wakes the driver.
    direct.co.limits = dataclasses.replace(LIMITS, driver_poll_s=60, sweep_every_s=60)
    assert not direct.co.alive
    direct.co.start()
    assert direct.co.alive
    direct.session(rounds=2)
    for number in (1, 2):
        eventually(lambda n=number: direct.info("heart").round == n)
        direct.answer_all("heart")
    eventually(lambda: direct.info("heart").state == "completed")
    direct.co.stop(timeout_s=TIMEOUT_S)
    assert not direct.co.alive
    assert direct.co.notifier.closed
    # Once at the start and once for each round.
    assert direct.calls("driver.look") == 3


def test_a_round_that_ends_makes_a_place_for_those_that_wait(direct: DirectApi) -> None:
    names = ("a", "b", "c")
    for name in names:
        direct.answered(name, rounds=1)
    direct.co.limits = dataclasses.replace(LIMITS, driver_poll_s=3600, sweep_every_s=3600)
    direct.co.start()
    eventually(lambda: all(direct.info(name).state == "completed" for name in names))
    direct.co.stop(timeout_s=TIMEOUT_S)


def test_the_sweeper_thread_closes_at_the_deadline(direct: DirectApi, clock: ManualClock) -> None:
    direct.co.limits = dataclasses.replace(LIMITS, driver_poll_s=60, sweep_every_s=0.01)
    direct.session(sites=("a", "b", "c", "d"), policy={"quorum": 3}, rounds=2)
    direct.answer("heart", "a", "b", "c")
    direct.co.start()
    clock.advance(3600)
    eventually(lambda: direct.info("heart").round == 2)
    direct.co.stop(timeout_s=TIMEOUT_S)


# --- deaths ---------------------------------------------------------------------------------------


#: Transaction, whether it fails after its commit, and how.
FAILURES: dict[str, tuple[str, bool, BaseException]] = {
    "take-before": ("driver.take", False, Crash()),
    "take-after": ("driver.take", True, Crash()),
    "aggregate": ("aggregate", False, Crash()),
    "finish-after": ("driver.finish", True, Crash()),
    "finish-before": ("driver.finish", False, Crash()),
    "finish-away": ("driver.finish", False, StoreUnavailable("away")),
}


@pytest.mark.parametrize(
    ("failure", "database_url"),
    in_turn([*FAILURES.values()], [*FAILURES]),
    indirect=["database_url"],
)
def test_a_failure_anywhere_heals_by_expiry(
    both: DirectApi, failure: tuple[str, bool, BaseException]
) -> None:
    (point, after, error) = failure
    both.answered(rounds=2)
    if point == "aggregate":
        die_aggregating(both)
    else:
        with failing(both.store, "run_tx", point, error, after=after), pytest.raises(type(error)):
            both.drive()
    other = both.another()
    leased = (point, after) in {("driver.take", True), ("driver.finish", False)}
    if leased or point == "aggregate":
        assert not other.driver.run_once()
        both.clock.advance(30)
    if (point, after) != ("driver.finish", True):
        assert other.driver.run_once()
    assert not other.driver.run_once()
    assert both.votes("heart")[0].tolist() == [1, 1, 1]
    assert both.info("heart").round == 2
    assert both.finish("heart").state == "completed"


def test_a_starting_process_takes_over_at_once_on_sqlite_and_on_postgresql_respects_leases(
    both: DirectApi,
) -> None:
    both.co.limits = dataclasses.replace(LIMITS, driver_poll_s=0.01)
    both.answered(rounds=2)
    die_aggregating(both)
    assert both.latest().lease_token is not None
    other = both.another()
    other.start()
    if not both.store.single_process:
        eventually(lambda: both.calls("driver.look") > 5)
        assert both.info("heart").round == 1
        both.clock.advance(30)
    eventually(lambda: both.info("heart").round == 2)
    other.stop(timeout_s=TIMEOUT_S)
    assert both.votes("heart")[0].tolist() == [1, 1, 1]


# --- two at once ----------------------------------------------------------------------------------


def test_two_drivers_race_and_one_wins(both: DirectApi) -> None:
    both.session(rounds=3)
    drivers = [both.another().driver for _ in range(4)]
    for number in (1, 2, 3):
        both.answer_all("heart")
        won = at_once(lambda driver: driver.run_once(), drivers)
        assert sorted(won) == [False, False, False, True]
        assert both.store.read("t", rounds_to_aggregate) == []
        assert len(both.audit(action="round.closed")) == number
    assert both.info("heart").state == "completed"


@pytest.mark.parametrize(
    ("raises", "database_url"),
    in_turn([MethodFailure("odd", "x"), None, ValueError("x")], ["failure", "nothing", "error"]),
    indirect=["database_url"],
)
def test_a_driver_that_was_overtaken_neither_closes_nor_fails_anything(
    both: DirectApi, raises: Exception | None
) -> None:
    """The other one is still computing, with the lease, when the first comes to its end."""
    both.co.limits = dataclasses.replace(LIMITS, heartbeat_s=1000)
    both.answered(rounds=2)
    other = both.another()

    def overtaken() -> None:
        both.clock.advance(31)
        die_aggregating(both, other)
        if raises is not None:
            raise raises

    counting_method.HOOK.append(overtaken)
    assert both.co.driver.run_once()
    assert (both.info("heart").state, both.info("heart").round) == ("running", 1)
    assert both.latest().state is RoundState.AGGREGATING
    both.clock.advance(31)
    assert other.driver.run_once()
    assert both.votes("heart")[0].tolist() == [1, 1, 1]


def test_a_paused_driver_that_nobody_overtook_still_finishes(direct: DirectApi) -> None:
    direct.co.limits = dataclasses.replace(LIMITS, heartbeat_s=1000)
    direct.answered(rounds=2)

    def pause() -> None:
        direct.clock.advance(300)
        # Its own process knows that it lives, and does not begin the same work again.
        assert not direct.co.driver.run_once()

    counting_method.HOOK.append(pause)
    assert direct.co.driver.run_once()
    assert direct.info("heart").round == 2


def test_submissions_race_and_each_round_closes_once(both: DirectApi) -> None:
    """At two workers: without a lock two last answers would each miss the other's."""
    names = tuple(f"s{i}" for i in range(8))
    both.session(sites=names, policy={"min_sites": 3}, rounds=5)
    workers = (both.co, both.another())

    def send(case: int) -> bool:
        name = names[case % 8]
        body = Body(bodies[name], BINARY)
        sent = submissions.submit(workers[case % 2], site(name), "heart", number, body)
        return sent.result(TIMEOUT_S).created

    for number in range(1, 6):
        bodies = {name: both.body("heart", name) for name in names}
        created = at_once(send, range(16))
        assert sorted(created) == [False] * 8 + [True] * 8
        assert len(both.audit(action="round.collected")) == number
        assert both.drive() == 1
    document = results.get_result(both.co, ANALYST, "heart")
    assert document.result["extra"]["votes"].tolist() == [1.0] * 40


def test_joins_race_and_the_session_starts_once_with_all(both: DirectApi) -> None:
    names = tuple(f"s{i}" for i in range(6))
    both.define(sites=names, policy={"min_sites": 3})
    at_once(lambda name: both.join("heart", name), names)
    assert len(both.audit(action="session.started")) == 1
    row = both.row("heart")
    asked = both.store.read("t", lambda tx: tx.rounds.addressees(tx.rounds.get(row.id, 1).id))
    assert [each.site for each in asked] == list(names)


# --- the lease ------------------------------------------------------------------------------------


def test_the_heartbeat_renews_while_it_computes(direct: DirectApi, clock: ManualClock) -> None:
    direct.answered(rounds=2)

    def held_until() -> datetime:
        return direct.latest().lease_expires_at

    def slow() -> None:
        for _ in range(3):
            clock.advance(20)
            now = clock.now()
            eventually(lambda at=now: held_until() > at)
        assert not direct.another().driver.run_once()

    counting_method.HOOK.append(slow)
    assert direct.co.driver.run_once()
    assert direct.latest().number == 2
    assert direct.latest().attempts == 0


def test_a_lease_is_renewed_twice_before_it_expires_unless_settings_say_otherwise() -> None:
    assert Limits(lease_s=12.0).beat_s == 4.0
    assert Limits(lease_s=12.0, heartbeat_s=5.0).beat_s == 5.0


def test_an_aggregation_that_takes_too_long_fails_and_others_go_on(direct: DirectApi) -> None:
    direct.co.limits = dataclasses.replace(
        LIMITS, aggregation_timeout_s=50, heartbeat_s=0.01, driver_poll_s=0.01
    )
    stuck, release = threading.Event(), threading.Event()

    def hang() -> None:
        counting_method.HOOK.clear()
        stuck.set()
        assert release.wait(TIMEOUT_S)

    counting_method.HOOK.append(hang)
    direct.session("heart", rounds=2)
    direct.session("lung", rounds=1)
    with working(direct.co.driver):
        direct.answer_all("heart")
        assert stuck.wait(TIMEOUT_S)
        direct.clock.advance(51)
        eventually(lambda: direct.info("heart").state == "failed")
        assert direct.info("heart").stopped_because == "aggregation_timeout"
        direct.answer_all("lung")
        eventually(lambda: direct.info("lung").state == "completed")
        release.set()
    # What the stuck one came to at last is not written.
    assert direct.info("heart").state == "failed"
    assert direct.latest().number == 1


def test_who_leaves_or_joins_during_the_aggregation(both: DirectApi) -> None:
    both.define(sites=("a", "b", "c", "d", "e"), start="manual", rounds=3)
    both.join("heart", "a", "b", "c", "d")
    sessions.start_session(both.co, ANALYST, "heart")
    both.answer_all("heart")

    def change() -> None:
        counting_method.HOOK.clear()
        participation.leave(both.co, site("a"), "heart")
        both.join("heart", "e")

    counting_method.HOOK.append(change)

    def asked(number: int) -> list[str]:
        return [each.name for each in rounds.get_round(both.co, ANALYST, "heart", number).sites]

    for _ in range(2):
        both.answer_all("heart")
        both.drive()
    assert asked(1) == ["a", "b", "c", "d"]
    assert asked(2) == ["b", "c", "d"]
    assert asked(3) == ["b", "c", "d", "e"]


def test_a_cancelled_session_is_not_revived(direct: DirectApi) -> None:
    direct.answered(rounds=2)
    counting_method.HOOK.append(
        lambda: sessions.cancel_session(direct.co, ANALYST, "heart") and None
    )
    assert direct.co.driver.run_once()
    assert direct.info("heart").state == "cancelled"
    assert direct.latest().state is RoundState.FAILED


# --- failures -------------------------------------------------------------------------------------


def test_an_error_fails_its_session_alone_and_tells_no_data(
    direct: DirectApi, logged: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise ZeroDivisionError("age 83.25 of Jane Roe")

    direct.session("heart")
    direct.session("lung", rounds=1)
    direct.answer_all("heart")
    counting_method.HOOK.append(fail)
    direct.drive()
    counting_method.HOOK.clear()
    info = direct.info("heart")
    assert (info.state, info.stopped_because) == ("failed", "aggregation_error")
    everything = logged.text + str(direct.audit()) + info.model_dump_json()
    assert "ZeroDivisionError" in logged.text
    assert "Jane Roe" not in everything
    assert direct.finish("lung").state == "completed"


@pytest.mark.parametrize("raised", ["method", "engine"])
def test_what_an_upgrade_left_behind_ends_when_it_is_met_or_the_coordinator_starts(
    direct: DirectApi, monkeypatch: pytest.MonkeyPatch, raised: str
) -> None:
    direct.session("running")
    direct.define("recruiting")
    direct.session("done", rounds=1)
    direct.finish("done")
    direct.answered("answered")
    if raised == "method":
        monkeypatch.setitem(METHODS, counting_method.NAME, counting_method.method(version=2))
    else:
        monkeypatch.setattr(definition, "VERSION", definition.VERSION + 1)
    definitions._plan.cache_clear()
    direct.drive()
    assert direct.info("answered").stopped_because == "version_unsupported"
    direct.define("new")
    sweeper.end_unsupported(direct.co)
    sweeper.end_unsupported(direct.co)
    states = {name: direct.info(name) for name in ("running", "recruiting", "done", "new")}
    found = [info.state for info in states.values()]
    assert found == ["failed", "failed", "completed", "recruiting"]
    for name in ("running", "recruiting"):
        assert states[name].stopped_because == "version_unsupported"
        assert "Create the session again" in (states[name].failure or "")
    assert len(direct.audit(action="session.failed")) == 3


@pytest.mark.parametrize("refused", ["fedclust-aggregation", "fedclust-heartbeat"])
def test_a_system_that_starts_no_thread_loses_no_round(
    direct: DirectApi, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    direct.co.limits = dataclasses.replace(LIMITS, driver_poll_s=0.01)
    direct.answered(rounds=1)
    real, tried = threading.Thread.start, []

    def start(thread: threading.Thread) -> None:
        if thread.name == refused and not tried:
            tried.append(thread)
            raise RuntimeError("can't start new thread")
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    with working(direct.co.driver):
        eventually(lambda: tried)
        direct.clock.advance(LIMITS.lease_s)
        eventually(lambda: direct.info("heart").state == "completed")


@pytest.mark.parametrize("code", [sqlite3.SQLITE_BUSY, sqlite3.SQLITE_IOERR])
def test_a_failing_database_is_no_defect_of_a_round(
    direct: DirectApi, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """While the driver estimates how long a round takes."""
    direct.answered(rounds=1)
    real, error = Rounds.effort, sqlite3.OperationalError("x")
    error.sqlite_errorcode = code
    failures = [OperationalError("x", {}, error)]

    def fail_once(self: Rounds, waiting: WaitingRound) -> tuple[int, int, float | None]:
        if failures:
            raise failures.pop()
        return real(self, waiting)

    monkeypatch.setattr(Rounds, "effort", fail_once)
    if code == sqlite3.SQLITE_BUSY:
        assert direct.drive() == 1, "the read is repeated"
        return
    with pytest.raises(Unwritable):
        direct.drive()


def test_the_worker_outlives_errors_of_the_database(direct: DirectApi) -> None:
    direct.co.limits = dataclasses.replace(LIMITS, driver_poll_s=0.01)
    direct.session(rounds=2)
    failures = (StoreUnavailable("away"), RuntimeError("defect"))
    with failing(direct.store, "read", "driver.look", *failures), working(direct.co.driver):
        direct.answer_all("heart")
        eventually(lambda: direct.info("heart").round == 2)
