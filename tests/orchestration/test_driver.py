"""The driver: one winner, whatever dies; and what fails a round."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from fedclust.methods.registry import METHODS
from fedclust.schema.errors import MethodFailure
from fedclust_service.domain.round import Round, RoundState
from fedclust_service.orchestration import (
    definitions,
    participation,
    results,
    rounds,
    sessions,
    sweeper,
)
from fedclust_service.orchestration.coordinator import Coordinator
from fedclust_service.orchestration.core import Limits
from fedclust_service.store import Store, StoreUnavailable
from support import tally
from support.clock import ManualClock
from support.office import ANALYST, Office, site
from support.patience import PATIENCE_S, eventually


class Crash(BaseException):
    """The process dies here."""


def latest(office: Office) -> Round:
    row = office.row("heart")
    found = office.store.read("t", lambda tx: tx.rounds.latest(row.id))
    assert found is not None
    return found


def die() -> None:
    raise Crash


def crash_in(monkeypatch: pytest.MonkeyPatch, store: Store, name: str, *, after: bool) -> None:
    """Have the process die before or after the commit of a transaction, once."""
    real, left = store.run_tx, [1]

    def run_tx(given: str, fn: Callable[[Any], Any]) -> Any:
        if given != name or not left:
            return real(given, fn)
        left.pop()
        if after:
            real(given, fn)
        raise Crash

    monkeypatch.setattr(store, "run_tx", run_tx)


# --- the good way ---------------------------------------------------------------------------------


def test_a_session_runs_to_its_end(office: Office) -> None:
    office.session(rounds=3)
    assert office.finish("heart").state == "completed"
    assert office.co.driver.run_once() is False
    closed = [details["round"] for _, _, details in office.audit(action="round.closed")]
    assert closed == [1, 2, 3]


def test_the_threads_carry_a_session_and_stop(office: Office) -> None:
    # Nothing is due by polling: the submission itself wakes the driver.
    office.co.limits = Limits(driver_poll_s=60, sweep_every_s=60)
    assert not office.co.alive
    office.co.start()
    assert office.co.alive
    office.session(rounds=2)
    for number in (1, 2):
        eventually(lambda n=number: office.info("heart").round == n)
        office.answer_all("heart")
    eventually(lambda: office.info("heart").state == "completed")
    office.co.stop(timeout_s=PATIENCE_S)
    assert not office.co.alive
    assert office.co.notifier.closed


def test_the_sweeper_thread_closes_at_the_deadline(office: Office, clock: ManualClock) -> None:
    office.co.limits = Limits(driver_poll_s=60, sweep_every_s=0.01)
    office.session(sites=("a", "b", "c", "d"), policy={"quorum": 3}, rounds=2)
    for name in ("a", "b", "c"):
        office.answer("heart", name)
    office.co.start()
    clock.advance(3600)
    eventually(lambda: office.info("heart").round == 2)
    office.co.stop(timeout_s=PATIENCE_S)


# --- deaths ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("point", "after"),
    [
        ("driver.take", False),
        ("driver.take", True),
        ("aggregate", False),
        ("driver.finish", False),
        ("driver.finish", True),
    ],
)
def test_a_death_anywhere_heals_by_expiry(
    both_office: Office,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    point: str,
    after: bool,
) -> None:
    office = both_office
    office.session(rounds=2)
    office.answer_all("heart")
    with monkeypatch.context() as patch:
        if point == "aggregate":
            patch.setattr(tally, "HOOK", [die])
        else:
            crash_in(patch, office.store, point, after=after)
        with pytest.raises(Crash):
            office.drive()
    other = office.another()
    leased = (point, after) in {("driver.take", True), ("driver.finish", False)}
    if leased or point == "aggregate":
        assert not other.driver.run_once()
        clock.advance(30)
    if (point, after) != ("driver.finish", True):
        assert other.driver.run_once()
    assert not other.driver.run_once()
    assert office.tally("heart")[0].tolist() == [1, 1, 1]
    assert office.info("heart").round == 2
    assert office.finish("heart").state == "completed"


def test_a_starting_process_takes_over_at_once_on_sqlite(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    office.session(rounds=2)
    office.answer_all("heart")
    with monkeypatch.context() as patch:
        patch.setattr(tally, "HOOK", [die])
        with pytest.raises(Crash):
            office.drive()
    assert latest(office).lease is not None
    other = office.another()
    other.start()
    eventually(lambda: office.info("heart").round == 2)
    other.stop(timeout_s=PATIENCE_S)
    assert office.tally("heart")[0].tolist() == [1, 1, 1]


def test_on_postgres_a_starting_process_respects_leases(
    postgres_url: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.open(postgres_url, clock)
    office = Office(store, clock, Limits(driver_poll_s=0.01))
    office.session(rounds=2)
    office.answer_all("heart")
    with monkeypatch.context() as patch:
        patch.setattr(tally, "HOOK", [die])
        with pytest.raises(Crash):
            office.drive()
    other = office.another()
    other.start()
    eventually(lambda: store.metrics()["driver.look"].calls > 5)
    assert office.info("heart").round == 1
    clock.advance(30)
    eventually(lambda: office.info("heart").round == 2)
    other.stop(timeout_s=PATIENCE_S)
    store.close()


def test_the_fifth_takeover_fails(office: Office, clock: ManualClock) -> None:
    office.session(rounds=2)
    office.answer_all("heart")
    tally.HOOK.append(die)
    for taking in range(5):
        with pytest.raises(Crash):
            office.another().driver.run_once()
        assert latest(office).attempts == taking + 1
        clock.advance(30)
    assert not office.another().driver.run_once()
    info = office.info("heart")
    assert (info.state, info.stopped_because) == ("failed", "aggregation_abandoned")
    takeovers = [details["attempt"] for _, _, details in office.audit(action="round.taken_over")]
    assert takeovers == [2, 3, 4, 5]


# --- two at once ----------------------------------------------------------------------------------


def test_two_drivers_race_and_one_wins(both_office: Office) -> None:
    office = both_office
    office.session(rounds=3)
    drivers = [office.another().driver for _ in range(4)]
    for number in (1, 2, 3):
        office.answer_all("heart")
        barrier = threading.Barrier(len(drivers))
        won: list[bool] = []

        def race(driver: Any, gate: threading.Barrier = barrier, out: list[bool] = won) -> None:
            gate.wait(PATIENCE_S)
            out.append(driver.run_once())

        threads = [threading.Thread(target=race, args=(driver,)) for driver in drivers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert sorted(won) == [False, False, False, True]
        assert office.store.read("t", lambda tx: tx.rounds.aggregating()) == []
        assert len(office.audit(action="round.closed")) == number
    assert office.info("heart").state == "completed"


def test_a_driver_that_lost_its_lease_writes_nothing(
    both_office: Office, clock: ManualClock
) -> None:
    """It computes while its lease runs out and another takes over; both come to finish."""
    office = both_office
    office.co.limits = Limits(heartbeat_s=1000)
    office.session(rounds=2)
    office.answer_all("heart")
    other = office.another()

    def overtaken() -> None:
        tally.HOOK.clear()
        clock.advance(31)
        assert other.driver.run_once()

    tally.HOOK.append(overtaken)
    assert office.co.driver.run_once()
    assert office.tally("heart")[0].tolist() == [1, 1, 1]
    assert office.info("heart").round == 2
    assert len(office.audit(action="round.closed")) == 1


@pytest.mark.parametrize("raises", [None, MethodFailure("odd", "x"), ValueError("x")])
def test_a_driver_that_was_overtaken_neither_closes_nor_fails_anything(
    both_office: Office, clock: ManualClock, raises: Exception | None
) -> None:
    """The other one is still computing, with the lease, when the first comes to its end."""
    office = both_office
    office.co.limits = Limits(heartbeat_s=1000)
    office.session(rounds=2)
    office.answer_all("heart")
    other = office.another()

    def overtaken() -> None:
        tally.HOOK[:] = [die]
        clock.advance(31)
        with pytest.raises(Crash):
            other.driver.run_once()
        tally.HOOK.clear()
        if raises is not None:
            raise raises

    tally.HOOK.append(overtaken)
    assert office.co.driver.run_once()
    assert (office.info("heart").state, office.info("heart").round) == ("running", 1)
    assert latest(office).state is RoundState.AGGREGATING
    clock.advance(31)
    assert other.driver.run_once()
    assert office.tally("heart")[0].tolist() == [1, 1, 1]


def test_a_paused_driver_that_nobody_overtook_still_finishes(
    office: Office, clock: ManualClock
) -> None:
    office.co.limits = Limits(heartbeat_s=1000)
    office.session(rounds=2)
    office.answer_all("heart")

    def pause() -> None:
        clock.advance(300)
        # Its own process knows that it lives, and does not begin the same work again.
        assert not office.co.driver.run_once()

    tally.HOOK.append(pause)
    assert office.co.driver.run_once()
    assert office.info("heart").round == 2


def test_submissions_race_and_the_round_closes_once(both_office: Office) -> None:
    office = both_office
    names = tuple(f"s{i}" for i in range(8))
    office.session(sites=names, policy={"min_sites": 3}, rounds=1)
    bodies = {name: office.body("heart", name) for name in names}
    barrier = threading.Barrier(2 * len(names))
    created: list[bool] = []

    def send(name: str) -> None:
        barrier.wait(PATIENCE_S)
        created.append(office.put("heart", name, bodies[name], 1).created)

    threads = [threading.Thread(target=send, args=(name,)) for name in names * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert sorted(created) == [False] * 8 + [True] * 8
    assert len(office.audit(action="round.collected")) == 1
    assert office.drive() == 1
    document = results.get_result(office.co, ANALYST, "heart")
    assert document.result["extra"]["tally"].tolist() == [1.0] * 8


def test_joins_race_and_the_session_starts_once_with_all(both_office: Office) -> None:
    office = both_office
    names = tuple(f"s{i}" for i in range(6))
    office.define(sites=names, policy={"min_sites": 3})
    barrier = threading.Barrier(len(names))
    errors: list[BaseException] = []

    def come(name: str) -> None:
        barrier.wait(PATIENCE_S)
        try:
            office.join("heart", name)
        except BaseException as error:  # reported below
            errors.append(error)

    threads = [threading.Thread(target=come, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert errors == []
    assert len(office.audit(action="session.started")) == 1
    row = office.row("heart")
    asked = office.store.read("t", lambda tx: tx.rounds.addressees(tx.rounds.get(row.id, 1).id))
    assert [each.site for each in asked] == list(names)


# --- the lease ------------------------------------------------------------------------------------


def test_the_heartbeat_renews_while_it_computes(office: Office, clock: ManualClock) -> None:
    office.session(rounds=2)
    office.answer_all("heart")

    def held_until() -> datetime:
        lease = latest(office).lease
        assert lease is not None
        return lease.expires_at

    def slow() -> None:
        for _ in range(3):
            clock.advance(20)
            now = clock.now()
            eventually(lambda at=now: held_until() > at)
        assert not office.another().driver.run_once()

    tally.HOOK.append(slow)
    assert office.co.driver.run_once()
    assert latest(office).number == 2
    assert latest(office).attempts == 0


def test_an_aggregation_that_takes_too_long_fails_and_others_go_on(
    office: Office, clock: ManualClock
) -> None:
    office.co.limits = Limits(aggregation_timeout_s=50, heartbeat_s=0.01, driver_poll_s=0.01)
    stuck, release = threading.Event(), threading.Event()

    def hang() -> None:
        tally.HOOK.clear()
        stuck.set()
        assert release.wait(PATIENCE_S)

    tally.HOOK.append(hang)
    office.session("heart", rounds=2)
    office.session("lung", rounds=1)
    office.co.driver.start()
    office.answer_all("heart")
    assert stuck.wait(PATIENCE_S)
    clock.advance(51)
    eventually(lambda: office.info("heart").state == "failed")
    assert office.info("heart").stopped_because == "aggregation_timeout"
    office.answer_all("lung")
    eventually(lambda: office.info("lung").state == "completed")
    release.set()
    office.co.driver.ask_to_stop()
    office.co.driver.join(PATIENCE_S)
    # What the stuck one came to at last is not written.
    assert office.info("heart").state == "failed"
    assert latest(office).number == 1


def test_who_leaves_or_joins_during_the_aggregation(both_office: Office) -> None:
    office = both_office
    office.define(sites=("a", "b", "c", "d", "e"), start="manual", rounds=3)
    for name in ("a", "b", "c", "d"):
        office.join("heart", name)
    sessions.start_session(office.co, ANALYST, "heart")
    office.answer_all("heart")

    def change() -> None:
        tally.HOOK.clear()
        participation.leave(office.co, site("a"), "heart")
        office.join("heart", "e")

    tally.HOOK.append(change)

    def asked(number: int) -> list[str]:
        return [each.name for each in rounds.get_round(office.co, ANALYST, "heart", number).sites]

    for _ in range(2):
        office.answer_all("heart")
        office.drive()
    assert asked(1) == ["a", "b", "c", "d"]
    assert asked(2) == ["b", "c", "d"]
    assert asked(3) == ["b", "c", "d", "e"]


def test_a_cancelled_session_is_not_revived(office: Office) -> None:
    office.session(rounds=2)
    office.answer_all("heart")
    tally.HOOK.append(lambda: sessions.cancel_session(office.co, ANALYST, "heart") and None)
    assert office.co.driver.run_once()
    assert office.info("heart").state == "cancelled"
    assert latest(office).state is RoundState.FAILED


# --- failures -------------------------------------------------------------------------------------


def fail_with(error: Exception) -> None:
    def raise_it() -> None:
        raise error

    tally.HOOK.append(raise_it)


def test_a_method_says_why_it_cannot_go_on(office: Office) -> None:
    office.session()
    office.answer_all("heart")
    fail_with(MethodFailure("nothing_to_release", "Lower min_group_size."))
    office.drive()
    info = office.info("heart")
    assert (info.stopped_because, info.failure) == (
        "nothing_to_release",
        "Lower min_group_size.",
    )
    assert latest(office).close_reason == "nothing_to_release"


def test_an_error_fails_its_session_alone_and_tells_no_data(
    office: Office, logged: pytest.LogCaptureFixture
) -> None:
    office.session("heart")
    office.session("lung", rounds=1)
    office.answer_all("heart")
    fail_with(ZeroDivisionError("age 83.25 of Jane Roe"))
    office.drive()
    tally.HOOK.clear()
    info = office.info("heart")
    assert (info.state, info.stopped_because) == ("failed", "aggregation_error")
    everything = logged.text + str(office.audit()) + info.model_dump_json()
    assert "ZeroDivisionError" in logged.text
    assert "Jane Roe" not in everything
    assert office.finish("lung").state == "completed"


def test_a_method_version_that_is_gone_fails_with_what_to_do(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    office.session()
    office.answer_all("heart")
    monkeypatch.setitem(METHODS, tally.NAME, tally.method(version=2))
    definitions._plan.cache_clear()
    office.drive()
    assert office.info("heart").stopped_because == "method_version_unsupported"


def test_what_an_upgrade_left_behind_ends_when_the_coordinator_starts(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    office.session("running")
    office.define("recruiting")
    office.session("done", rounds=1)
    office.finish("done")
    monkeypatch.setitem(METHODS, tally.NAME, tally.method(version=2))
    definitions._plan.cache_clear()
    office.define("new")
    sweeper.end_unsupported(office.co)
    sweeper.end_unsupported(office.co)
    states = {name: office.info(name) for name in ("running", "recruiting", "done", "new")}
    assert {name: info.state for name, info in states.items()} == {
        "running": "failed",
        "recruiting": "failed",
        "done": "completed",
        "new": "recruiting",
    }
    for name in ("running", "recruiting"):
        assert states[name].stopped_because == "method_version_unsupported"
        assert "anew" in (states[name].failure or "")
    assert len(office.audit(action="session.failed")) == 2


def test_a_database_that_is_away_fails_nothing(
    office: Office, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    office.session(rounds=2)
    office.answer_all("heart")
    real = office.store.run_tx

    def away(name: str, fn: Callable[[Any], Any]) -> Any:
        if name == "driver.finish":
            raise StoreUnavailable("away")
        return real(name, fn)

    with monkeypatch.context() as patch:
        patch.setattr(office.store, "run_tx", away)
        with pytest.raises(StoreUnavailable):
            office.drive()
    assert office.info("heart").state == "running"
    clock.advance(30)
    assert office.drive() == 1
    assert office.tally("heart")[0].tolist() == [1, 1, 1]


def test_the_worker_outlives_errors_of_the_database(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    office.co.limits = Limits(driver_poll_s=0.01)
    office.session(rounds=2)
    failures = iter([StoreUnavailable("away"), RuntimeError("defect")])
    real = office.store.read

    def read(name: str, fn: Callable[[Any], Any]) -> Any:
        if name == "driver.look":
            for error in failures:
                raise error
        return real(name, fn)

    monkeypatch.setattr(office.store, "read", read)
    office.co.driver.start()
    office.answer_all("heart")
    eventually(lambda: office.info("heart").round == 2)
    office.co.driver.ask_to_stop()
    office.co.driver.join(PATIENCE_S)


def test_stopping_does_not_wait_for_an_endless_aggregation(office: Office) -> None:
    office.co.limits = Limits(driver_poll_s=0.01)
    office.session()
    stuck, release = threading.Event(), threading.Event()

    def hang() -> None:
        stuck.set()
        release.wait(PATIENCE_S)

    tally.HOOK.append(hang)
    office.co.driver.start()
    office.answer_all("heart")
    assert stuck.wait(PATIENCE_S)
    office.co.driver.ask_to_stop()
    office.co.driver.join(0.05)
    assert latest(office).state is RoundState.AGGREGATING
    release.set()
    eventually(lambda: not office.co.driver.alive)


def test_holders_differ() -> None:
    from fedclust_service.orchestration.core import new_holder

    assert new_holder() != new_holder()
    assert isinstance(Coordinator.__dataclass_fields__["holder"].default_factory(), str)
