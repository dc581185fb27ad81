"""Clocks that are wrong: set while the coordinator runs, wrong at its start, wrong at the database.

The machines' clocks are moved by hand; on PostgreSQL the time is the real server's.
"""

import contextlib
import dataclasses
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from fedclust_service.bootstrap import open_coordinator
from fedclust_service.clock import SETTLING_S, ClockFault, Machine, StoreClock
from fedclust_service.exit_codes import Exit, StartFailure
from fedclust_service.settings import load_settings
from fedclust_service.store import Store, StoreUnavailable
from fedclust_service.usecases.sweeper import sweep
from support.api_caller import ApiCaller
from support.clock import BEGIN, ManualClock, ManualMachine
from support.local_coordinator import local_coordinator
from usecases.direct_api import SITES, DirectApi

HOUR, DAY = 3_600.0, 86_400.0
RETENTION_DAYS = 30


class SetMachine(Machine):
    """This machine with its clock set ahead; time passes as it does, and faster when told to."""

    def __init__(self, ahead_s: float = 0.0) -> None:
        self.ahead_s, self._skipped_s = ahead_s, 0.0

    def wall(self) -> datetime:
        """Return the time of day."""
        return super().wall() + timedelta(seconds=self.ahead_s + self._skipped_s)

    def monotonic(self) -> float:
        """Return the seconds that have passed."""
        return super().monotonic() + self._skipped_s

    def skip(self, seconds: float) -> None:
        """Let time pass that did not."""
        self._skipped_s += seconds


@contextlib.contextmanager
def coordinator(url: str, clock: StoreClock) -> Iterator[DirectApi]:
    """Yield the coordinator of a process on a database, with its lease and retention."""
    with contextlib.closing(Store.open(url, clock)) as store:
        direct = DirectApi(store, clock)
        direct.co.limits = dataclasses.replace(direct.co.limits, retention_days=RETENTION_DAYS)
        yield direct


@contextlib.contextmanager
def worker(url: str, ahead_s: float = 0.0) -> Iterator[tuple[DirectApi, SetMachine]]:
    """Yield a worker on PostgreSQL and its machine, whose clock is ahead of the database's."""
    machine = SetMachine(ahead_s)
    with coordinator(url, StoreClock(machine=machine)) as direct:
        # Nothing that a busy machine could wait for.
        direct.co.limits = dataclasses.replace(direct.co.limits, lease_s=HOUR)
        yield direct, machine


# --- the clock itself -----------------------------------------------------------------------------


def test_setting_the_clock_moves_nothing(clock: ManualClock) -> None:
    clock.machine.set_ahead(31 * DAY)
    assert clock.now() == BEGIN
    clock.check()
    clock.machine.advance(5)
    clock.check()
    assert (clock.now(), clock.fault) == (BEGIN + timedelta(seconds=5), ClockFault.MACHINE)
    assert clock.skew.machine_s == 31 * DAY
    clock.machine.set_ahead(-31 * DAY)
    clock.check()
    assert (clock.now(), clock.fault) == (BEGIN + timedelta(seconds=5), None)


def test_small_corrections_are_followed_and_time_never_goes_back(clock: ManualClock) -> None:
    clock.machine.set_ahead(40)
    clock.check()
    assert clock.now() == BEGIN + timedelta(seconds=40)
    clock.machine.set_ahead(-30)
    clock.check()
    assert clock.now() == BEGIN + timedelta(seconds=40)
    clock.machine.advance(29)
    assert clock.now() == BEGIN + timedelta(seconds=40)
    clock.machine.advance(2)
    assert clock.now() == BEGIN + timedelta(seconds=41)


class SlowDatabase:
    """A database's clock, and the seconds that an answer takes; None where there is none.

    ``clock`` is that of a process on ``machine`` which follows it.
    """

    def __init__(self, ahead_s: float, takes_s: float | None, **options: float) -> None:
        self.machine, self.ahead_s, self.takes_s = ManualMachine(), ahead_s, takes_s
        self.clock = StoreClock(machine=self.machine, **options)
        self.clock.follow(self.time)

    def time(self) -> datetime:
        if self.takes_s is None:
            raise StoreUnavailable("no answer")
        # The answer is given halfway.
        self.machine.advance(self.takes_s / 2)
        reading = self.machine.wall() + timedelta(seconds=self.ahead_s)
        self.machine.advance(self.takes_s / 2)
        return reading


def test_the_database_gives_the_time_and_a_slow_answer_is_not_used() -> None:
    database = SlowDatabase(30, 0.5)
    machine, clock = database.machine, database.clock
    # The database's time stands for the middle of the question.
    assert clock.now() == machine.wall() + timedelta(seconds=30)
    database.ahead_s, database.takes_s = 50, 10
    clock.check()
    assert clock.now() == machine.wall() + timedelta(seconds=30)
    database.takes_s = 0
    clock.check()
    assert clock.now() == machine.wall() + timedelta(seconds=50)


def test_it_is_settled_after_an_hour_of_agreement(clock: ManualClock) -> None:
    def after(seconds: float) -> bool:
        clock.advance(seconds)
        clock.check()
        return clock.settled

    assert not after(SETTLING_S - 1)
    assert after(1)
    clock.machine.set_ahead(DAY)
    clock.check()
    clock.machine.set_ahead(-DAY)
    assert not clock.settled
    clock.check()
    assert not after(SETTLING_S - 1)
    assert after(1)


@pytest.mark.parametrize("days", [31, -31])
def test_slow_answers_alone_show_a_wrong_clock_at_the_start(days: int) -> None:
    database = SlowDatabase(days * DAY, 1.5)
    clock = database.clock
    assert clock.fault is ClockFault.MACHINE
    for _ in range(3):
        database.machine.advance(SETTLING_S)
        clock.check()
    assert not clock.settled


def test_slow_answers_at_the_start_accuse_no_clock_of_their_own_delay() -> None:
    database = SlowDatabase(3, 8, limit_s=1)
    clock = database.clock
    assert (clock.skew.machine_s, clock.fault) == (-3, None)
    database.takes_s = 0
    database.ahead_s = 0
    for _ in range(2):
        clock.check()
    assert (clock.skew.machine_s, clock.fault) == (0, None)


def test_a_slow_answer_is_a_fault_beyond_its_delay_and_the_machine_is_always_compared() -> None:
    database = SlowDatabase(0, 0)
    machine, clock = database.machine, database.clock
    database.takes_s = 10
    for ahead_s, fault in ((60, None), (100, ClockFault.DATABASE), (0, ClockFault.DATABASE)):
        database.ahead_s = ahead_s
        clock.check()
        assert clock.fault is fault
    database.takes_s = 0
    clock.check()
    assert clock.fault is None
    machine.set_ahead(DAY)
    database.ahead_s, database.takes_s = -DAY, 10
    clock.check()
    assert clock.fault is ClockFault.MACHINE


@pytest.mark.parametrize("takes_s", [1.5, None], ids=["slow", "no answer"])
def test_an_hour_without_a_comparison_is_no_agreement(takes_s: float | None) -> None:
    database = SlowDatabase(0, 0)
    machine, clock = database.machine, database.clock
    database.takes_s = takes_s
    for _ in range(3):
        machine.advance(SETTLING_S)
        with contextlib.suppress(StoreUnavailable):
            clock.check()
    assert not clock.settled
    database.takes_s = 0
    clock.check()
    assert clock.settled


# --- leases ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["at its start", "while it runs"])
def test_a_worker_a_day_ahead_strands_no_round(postgres_url: str, when: str) -> None:
    early = when == "at its start"
    with worker(postgres_url, DAY if early else 0) as (wrong, its), worker(postgres_url) as right:
        other, machine = right
        other.answered(rounds=1)
        if not early:
            its.ahead_s = DAY
        sweep(wrong.co)
        assert wrong.co.clock.fault is ClockFault.MACHINE
        # Taken, and never finished: the process is killed here.
        assert wrong.co.driver._take(lambda _: True) is not None
        assert other.drive() == 0
        machine.skip(2 * HOUR)
        assert other.drive() == 1
        assert other.info("heart").state == "completed"


# --- retention ------------------------------------------------------------------------------------


def test_a_jump_of_31_days_scrubs_nothing(both: DirectApi, clock: ManualClock) -> None:
    both.session(rounds=1)
    both.finish("heart")
    clock.advance(DAY)
    for ahead in (31 * DAY, -31 * DAY):
        clock.machine.set_ahead(ahead)
        for _ in range(3):
            clock.machine.advance(1)
            sweep(both.co)
    assert both.payloads() == 3
    both.later(31 * DAY)
    assert both.payloads() == 0


def test_a_start_with_a_wrong_clock_scrubs_nothing(sqlite_url: str) -> None:
    with coordinator(sqlite_url, ManualClock()) as direct:
        direct.session(rounds=1)
        direct.finish("heart")
    wrong = ManualClock(BEGIN + timedelta(days=31))
    with coordinator(sqlite_url, wrong) as direct:
        for _ in range(60):
            wrong.advance(10)
            sweep(direct.co)
        # Put right ten minutes later; the process goes on by the time that it began with.
        wrong.machine.set_ahead(-31 * DAY)
        for _ in range(30):
            wrong.machine.advance(SETTLING_S)
            sweep(direct.co)
        assert direct.payloads() == 3
        assert direct.co.clock.fault is ClockFault.MACHINE
    again = ManualClock(BEGIN + timedelta(days=31))
    with coordinator(sqlite_url, again) as direct:
        again.advance(SETTLING_S)
        sweep(direct.co)
        assert direct.payloads() == 0


def test_a_database_whose_clock_jumps(direct: DirectApi, clock: ManualClock) -> None:
    """Nothing is taken, closed or scrubbed by its time until the clocks agree again."""
    database = ManualMachine(clock.now())
    StoreClock.follow(clock, database.wall)

    def passes(seconds: float) -> None:
        database.advance(seconds)
        clock.machine.advance(seconds)

    direct.session("done", rounds=1)
    direct.finish("done")
    passes(2 * SETTLING_S)
    direct.answered("heart", rounds=1)
    direct.session("slow", policy={"quorum": 3}, sites=(*SITES, "east"))
    direct.answer("slow", *SITES)
    database.set_ahead(31 * DAY)
    for _ in range(3):
        passes(1)
        sweep(direct.co)
    assert clock.fault is ClockFault.DATABASE
    assert direct.drive() == 0
    # Not even what is due by both clocks: the process cannot tell which of them is right.
    passes(4 * SETTLING_S)
    sweep(direct.co)
    assert (direct.info("slow").state, direct.drive()) == ("running", 0)
    assert direct.payloads("done") == 3
    database.set_ahead(-31 * DAY)
    sweep(direct.co)
    assert clock.fault is None
    assert direct.drive() == 2
    assert direct.info("heart").state == "completed"
    assert direct.payloads("done") == 3


# --- starting, being ready, being seen ------------------------------------------------------------


def test_a_worker_a_day_off_is_refused_at_its_start(postgres_url: str, tmp_path: Path) -> None:
    flags = {"data_dir": str(tmp_path), "database_url": postgres_url}
    settings = load_settings(flags, env_file=None)
    for ahead, said in ((DAY, "1 d ahead of"), (-DAY, "1 d behind"), (90, " s ahead of")):
        clock = StoreClock(machine=SetMachine(ahead))
        with (
            pytest.raises(StartFailure) as refused,
            open_coordinator(settings, serving=True, clock=clock),
        ):
            pass
        assert refused.value.code == Exit.CLOCK
        for each in (said, "NTP", "--clock-limit-s"):
            assert each in str(refused.value)
    near = StoreClock(machine=SetMachine(30))
    with open_coordinator(settings, serving=True, clock=near) as opened:
        assert opened.coordinator.clock.skew.machine_s != 0


def test_a_clock_behind_the_audit_trail_is_refused_until_it_is_accepted(tmp_path: Path) -> None:
    settings = load_settings({"data_dir": str(tmp_path)}, env_file=None)

    def begin(days: float, *, accept: bool = False) -> list[str]:
        clock = ManualClock(BEGIN + timedelta(days=days))
        with open_coordinator(settings, serving=True, clock=clock, accept_clock=accept) as opened:
            trail = opened.coordinator.store.read("test.audit", lambda tx: tx.audit.list(10))
        return [each.action for each in trail]

    begin(31)
    with pytest.raises(StartFailure) as refused:
        begin(0)
    assert refused.value.code == Exit.CLOCK
    assert "31 d behind" in str(refused.value)
    assert "--accept-clock" in str(refused.value)
    assert begin(0, accept=True)[0] == "clock.accepted"
    # The trail goes on from the right time: the next start asks for nothing.
    assert begin(1).count("clock.accepted") == 1


def test_a_fault_is_seen_by_operators_and_by_readiness(tmp_path: Path) -> None:
    clock = ManualClock()
    with local_coordinator(tmp_path, clock=clock, threads=True, sweep_every_s="3600") as local:
        api = ApiCaller(local.base_url, local.operator_token)

        def seen() -> tuple[float, str | None]:
            clocks = api.ok("GET", "/v1/admin/overview", api.operator)["clock"]
            assert (clocks["database_s"], clocks["limit_s"]) == (None, 60.0)
            return clocks["machine_s"], clocks["fault"]

        assert seen() == (0.0, None)
        assert api.request("GET", "/readyz").status_code == 200
        clock.machine.set_ahead(-DAY)
        clock.check()
        assert seen() == (-DAY, "machine-clock")
        ready = api.request("GET", "/readyz")
        assert (ready.status_code, ready.json()["reasons"]) == (503, ["machine-clock"])
        metrics = local.http().get("/metrics").text.splitlines()
        assert 'fedclust_clock_skew_seconds{clock="machine"} -86400.0' in metrics
        clock.machine.set_ahead(DAY)
        clock.check()
        assert seen() == (0.0, None)
        assert api.request("GET", "/readyz").status_code == 200
