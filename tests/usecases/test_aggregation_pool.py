"""Long rounds in processes: the same bytes, others go on, and what follows when one dies."""

import dataclasses
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import structlog

from fedclust import rounds
from fedclust.definition import canonical, freeze, plan_of
from fedclust.wire import codec
from fedclust.wire.models import Definition
from fedclust.wire.submissions import payload_bytes
from fedclust_service.domain.access import Refusal
from fedclust_service.store import StoreUnavailable
from fedclust_service.usecases import admin, driver, participation, sessions, sweeper, unit_of_work
from fedclust_service.usecases import aggregation as module
from fedclust_service.usecases import rounds as round_cases
from fedclust_service.usecases.aggregation import (
    AggregationPool,
    Finished,
    Job,
    Opening,
    PooledAggregation,
    ProcessLost,
    Raised,
    StoredAnswer,
    aggregate_round,
)
from fedclust_service.usecases.core import Limits
from support import driven
from support.clock import ManualClock
from support.databases import sqlite_first  # noqa: F401  # in place of database_url
from support.definitions import session_request
from support.store_rows import latest_state, rounds_to_aggregate
from support.timeouts import TIMEOUT_S, eventually
from usecases import counting_method
from usecases.direct_api import ANALYST, LIMITS, OPERATOR, SITES, DirectApi, failing, site, working

ALWAYS = Limits(pooled_above_s=-1, heartbeat_s=0.01, driver_poll_s=0.01)
#: The process as it is, to which the method of the tests was added; a hook as in `counting_method`.
WITH_TALLY = """
import sys, threading
sys.path.insert(0, {tests!r})
from fedclust.schema.errors import MethodFailure
from fedclust.methods.registry import METHODS
from fedclust_service.usecases import aggregation
from usecases import counting_method
METHODS[counting_method.NAME] = counting_method.method()
def hook():
    {hook}
counting_method.HOOK.append(hook)
aggregation.main()
"""
HANG = "threading.Event().wait()"


class Pool:
    """The processes that were started, and what those to come run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch
        self.begun: list[subprocess.Popen[bytes]] = []
        real = subprocess.Popen

        def start(*arguments: Any, **keywords: Any) -> subprocess.Popen[bytes]:
            process = real(*arguments, **keywords)
            # scikit-learn's first use asks `lscpu` how many cores there are.
            if "lscpu" not in process.args:
                self.begun.append(process)
            return process

        monkeypatch.setattr(module.subprocess, "Popen", start)

    def run(self, hook: str = "pass") -> None:
        """Have them run a hook in the middle of their aggregation."""
        script = WITH_TALLY.format(tests=str(Path(__file__).parents[1]), hook=hook)
        self._patch.setattr(module, "COMMAND", (sys.executable, "-c", script))

    def die(self) -> None:
        """Have them die at once, before they have imported anything."""
        self._patch.setattr(module, "COMMAND", (sys.executable, "-I", "-S", "-c", ""))


def healed(direct: DirectApi) -> None:
    """Carry the session to its end in this thread, and look for what was counted twice."""
    direct.co.limits = LIMITS
    assert direct.co.driver.run_once()
    assert direct.votes("heart")[0].tolist() == [1, 1, 1]
    assert direct.finish("heart").state == "completed"


@pytest.fixture(autouse=True)
def own_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """A logger keeps what it was first configured with, which another test may have done."""
    for each in (driver, unit_of_work):
        monkeypatch.setattr(each, "log", structlog.get_logger())


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pool]:
    found = Pool(monkeypatch)
    yield found
    for each in found.begun:
        each.kill()


def aggregating(direct: DirectApi, pool: Pool, hook: str = HANG, **options: Any) -> None:
    """Bring a session to where its first round is to be aggregated, and that runs a hook."""
    pool.run(hook)
    direct.co.limits = dataclasses.replace(ALWAYS, **options)
    direct.answered(rounds=2)


# --- the same bytes -------------------------------------------------------------------------------


def test_a_process_computes_the_same_bytes(pool: Pool) -> None:
    """What each round of a session comes to, in this thread and in a process."""
    sites = {f"s{i}": np.random.default_rng(i).normal(size=(60, 3)) + i for i in range(3)}
    config, policy = {"n_clusters": 4}, {"max_rounds": 2}
    request = session_request(*"abc", config=config, policy=policy, sites=sorted(sites))
    asked = freeze(request, 7)
    plan = plan_of(asked)
    found, processes = [], AggregationPool(ManualClock().now)
    for each in driven.drive(plan, sites).rounds:
        masks = {site: np.ones(3, dtype=np.bool_) for site in sites}
        job = a_job(asked, each.state, number=each.number, roster=tuple(sorted(sites)), masks=masks)
        answers = [
            StoredAnswer(site, 5, payload_bytes(payload)) for site, payload in each.payloads.items()
        ]
        here = aggregate_round(plan, job, list(answers))
        assert PooledAggregation(processes).run(job, len(answers), answers) == here
        found.append(here.what)
    processes.end_idle(timedelta(0))
    assert len(pool.begun) == 1, "a process aggregates one round after the other"
    assert pool.begun[0].poll() is not None
    assert len(found) >= 3
    assert all(isinstance(what, Opening) for what in found[:-1])
    assert isinstance(found[-1], Finished)


def test_the_database_holds_the_same_bytes(both: DirectApi, pool: Pool) -> None:
    pool.run()
    stored = {}
    for name, limits in (("near", LIMITS), ("heart", ALWAYS)):
        both.co.limits = limits
        both.session(name, rounds=2)
        both.finish(name)
        row = both.row(name)
        stored[name] = both.store.read(
            "t",
            lambda tx, row=row: (
                latest_state(tx, row.id),
                tx.rounds.latest(row.id).metrics,
                tx.results.get(row.id).result,
            ),
        )
        assert len(pool.begun) == (0 if name == "near" else 1), "short rounds need no process"
    assert stored["near"] == stored["heart"]


def test_a_system_without_processes_computes_here(
    direct: DirectApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "COMMAND", ("there-is-no-such-program",))
    direct.co.limits = ALWAYS
    direct.session(rounds=2)
    with structlog.testing.capture_logs() as logged:
        assert direct.finish("heart").state == "completed"
    warned = [each["event"] for each in logged if each["log_level"] == "warning"]
    assert warned == ["aggregation_process_not_started"] * 2


# --- failures inside ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hook", "reason"),
    [
        ("raise MemoryError('row 4711')", "aggregation_error"),
        ("raise MethodFailure('odd', 'choose other options')", "odd"),
    ],
)
def test_what_raises_inside_fails_the_session_without_its_text(
    direct: DirectApi, pool: Pool, hook: str, reason: str
) -> None:
    aggregating(direct, pool, hook)
    with structlog.testing.capture_logs() as logged:
        assert direct.co.driver.run_once()
    info = direct.info("heart")
    assert (info.state, info.stopped_because) == ("failed", reason)
    assert (info.failure == "choose other options") is (reason == "odd")
    assert "4711" not in f"{logged}{info}{direct.audit()}"
    kinds = [each["error"] for each in logged if each["event"] == "aggregation_error"]
    assert kinds == ([] if reason == "odd" else [hook.split("(")[0].removeprefix("raise ")])


def test_what_fails_before_it_has_read_everything_still_says_so() -> None:
    """Its process reads on, and is there for the next round."""
    pool = AggregationPool(ManualClock().now)
    answers = [StoredAnswer(f"s{i}", 5, bytes(2**20)) for i in range(8)]
    for phase in ("no such phase", "no such phase either"):
        assert isinstance(PooledAggregation(pool).run(a_job(phase=phase), 8, answers).what, Raised)
    pool.end_idle(timedelta(0))


def a_job(asked: Definition | None = None, state: Any = None, **changes: Any) -> Job:
    """Return the job of a round without answers: of lloyd's first one where none is given."""
    request = session_request("a", algorithm="lloyd", sites=["s0", "s1", "s2"])
    asked = asked or freeze(request, 7)
    state = state or rounds.start(plan_of(asked), asked.sites).state
    fields: dict[str, Any] = {
        "session": "heart",
        "definition": canonical(asked),
        "number": 1,
        "phase": state.phase,
        "state": codec.encode_model(state),
        "roster": asked.sites,
        "masks": {},
        "silent": (),
    }
    return Job(**{**fields, **changes})


# --- several at a time ----------------------------------------------------------------------------


def test_a_long_aggregation_holds_up_no_short_one(
    both: DirectApi, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool.run(HANG)
    # However slow the machine: what a round was measured to take counts for the next.
    long = 2 * TIMEOUT_S
    expected = {"heart": long, "liver": long, "spine": long, "lung": 0.01}

    def seconds(plan: Any, *_: Any) -> float:
        return expected[names[plan.options.width]]

    monkeypatch.setattr(driver, "aggregation_seconds", seconds)
    both.co.limits = dataclasses.replace(LIMITS, pooled_above_s=TIMEOUT_S, driver_poll_s=0.01)
    names = {}
    for width, name in enumerate(expected, 3):
        names[width] = name
        both.session(name, rounds=2, width=width)
    both.co.start()
    for name in ("heart", "liver", "spine"):
        both.answer_all(name)
    eventually(lambda: len(pool.begun) == 2)
    for _ in range(2):
        both.answer_all("lung")
        eventually(lambda: not both.store.read("t", lambda tx: rounds_to_aggregate(tx)[3:]))
    assert both.info("lung").state == "completed"
    assert {both.info(name).round for name in ("heart", "liver", "spine")} == {1}
    assert len(pool.begun) == 2, "the third long one waits"
    both.co.stop(TIMEOUT_S)
    left = both.store.read("t", rounds_to_aggregate)
    assert [each.lease_token for each in left] == [None] * 3


def test_the_shortest_is_taken_first_and_none_waits_for_ever(
    direct: DirectApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "aggregation_seconds", lambda plan, *_: float(plan.options.width))
    waiting = driver.WaitingRounds(direct.co)
    ids = {}

    def order() -> list[str]:
        return [ids[each.session_id] for each, _ in waiting.in_order(direct.clock.now())]

    def collected(name: str, width: int) -> None:
        direct.session(name, rounds=2, width=width)
        ids[direct.row(name).id] = name
        direct.answer_all(name)

    collected("long", 30)
    collected("short", 10)
    assert order() == ["short", "long"]
    direct.clock.advance(21)
    collected("new", 10)
    assert order() == ["short", "long", "new"]


# --- deaths ---------------------------------------------------------------------------------------


def test_stopping_ends_the_process_and_leaves_the_round(direct: DirectApi, pool: Pool) -> None:
    aggregating(direct, pool)
    with structlog.testing.capture_logs() as logged:
        direct.co.start()
        eventually(lambda: pool.begun)
        direct.co.stop(timeout_s=TIMEOUT_S)
    assert not direct.co.alive
    assert pool.begun[0].poll() is not None
    assert [each["event"] for each in logged] == []
    current = direct.store.read("test.rounds", rounds_to_aggregate)
    assert [each.lease_token for each in current] == [None]
    assert (direct.info("heart").state, direct.info("heart").round) == ("running", 1)


def test_too_long_an_aggregation_ends_with_its_process(direct: DirectApi, pool: Pool) -> None:
    aggregating(direct, pool, aggregation_timeout_s=50)
    direct.session("lung", rounds=1)
    with working(direct.co.driver):
        eventually(lambda: pool.begun)
        direct.clock.advance(51)
        eventually(lambda: direct.info("heart").state == "failed")
        assert direct.info("heart").stopped_because == "aggregation_timeout"
        eventually(lambda: pool.begun[0].poll() is not None)
        direct.co.limits = LIMITS
        direct.answer_all("lung")
        eventually(lambda: direct.info("lung").state == "completed")


def test_a_cancelled_session_does_not_hold_the_others_up(direct: DirectApi, pool: Pool) -> None:
    aggregating(direct, pool)
    driving = threading.Thread(target=direct.co.driver.run_once)
    driving.start()
    eventually(lambda: pool.begun)
    sessions.cancel_session(direct.co, ANALYST, "heart")
    driving.join(TIMEOUT_S)
    assert not driving.is_alive()
    assert pool.begun[0].poll() is not None
    assert direct.info("heart").state == "cancelled"


def test_a_database_that_fails_on_the_way_ends_the_process(direct: DirectApi, pool: Pool) -> None:
    aggregating(direct, pool, "pass")
    away = StoreUnavailable("away")
    with failing(direct.store, "read", "driver.load_one", away), pytest.raises(StoreUnavailable):
        direct.co.driver.run_once()
    assert pool.begun[0].poll() is not None
    direct.clock.advance(30)
    healed(direct)


def test_an_aggregation_that_was_ended_does_not_begin(pool: Pool) -> None:
    pooled = PooledAggregation(AggregationPool(ManualClock().now))
    pooled.end()
    with pytest.raises(ProcessLost):
        pooled.run(a_job(), 0, [])
    assert all(each.poll() is not None for each in pool.begun)


def test_it_does_not_outlive_a_coordinator_that_is_killed(pool: Pool, tmp_path: Path) -> None:
    """A killed process closes nothing itself: the system closes its pipes, as is done here."""
    there = tmp_path / "there"
    pool.run(f"open({str(there)!r}, 'w').close(); {HANG}")
    request = DirectApi.request(None, sites=("s0", "s1", "s2"))  # type: ignore[arg-type]
    job = a_job(freeze(request, 7))
    vote = payload_bytes(counting_method.Vote(votes=np.ones(9)))
    child = subprocess.Popen(
        module.COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    with child:
        module._send_job(child.stdin, job, 3, [StoredAnswer(f"s{i}", 5, vote) for i in range(3)])
        eventually(there.exists)
        assert child.poll() is None
        if sys.platform != "win32":
            assert os.getpriority(os.PRIO_PROCESS, child.pid) > os.getpriority(os.PRIO_PROCESS, 0)
        child.stdin.close()
        assert child.wait(TIMEOUT_S) == 1


def test_it_is_not_told_the_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDCLUST_SECRET_KEY", "k" * 32)
    monkeypatch.setenv("FEDCLUST_DATABASE_URL", "postgresql+psycopg://u:p@h/n")
    kept = module._environment_without_secrets()
    assert not [name for name in kept if name.startswith("FEDCLUST_")]
    assert kept["OPENBLAS_NUM_THREADS"] == "1"


# --- sessions that are held ----------------------------------------------------------------------


def test_only_deaths_inside_the_aggregation_hold_a_session(
    direct: DirectApi, pool: Pool, tmp_path: Path
) -> None:
    """A coordinator that was killed five times and a process that died once hold nothing."""
    aggregating(direct, pool, "import os; os._exit(1)", max_deaths=2)
    for _ in range(5):
        killed = direct.another().driver
        assert killed._take(lambda _: True) is not None
        direct.clock.advance(30)
    assert direct.co.driver.run_once()
    assert direct.info("heart").state == "running"
    direct.clock.advance(3600 * 24 * 30)
    pool.die()
    assert direct.co.driver.run_once()

    info = direct.info("heart")
    assert (info.state, info.round, info.stopped_because) == ("held", 1, None)
    assert "ended unexpectedly (times: 2)" in (info.failure or "")
    deaths = [details["deaths"] for _, _, details in direct.audit(action="round.process_died")]
    assert deaths == [1, 2]
    assert len(direct.audit(action="session.held")) == 1
    found = admin.overview(direct.co, OPERATOR, tmp_path).attention
    assert ("session-held", "heart") in [(each.kind, each.subject) for each in found]
    # Nothing runs, no deadline ends it, and sites wait as they do during an aggregation.
    direct.clock.advance(3600 * 24 * 365)
    sweeper.sweep(direct.co)
    assert not direct.co.driver.run_once()
    assert [direct.view("heart", name).response.status for name in SITES] == ["answered"] * 3
    direct.answer("heart", "north")  # once more: the same receipt
    with pytest.raises(Refusal):
        sessions.retry_session(direct.co, ANALYST, "heart")

    assert sessions.retry_session(direct.co, OPERATOR, "heart").state == "running"
    assert sessions.retry_session(direct.co, OPERATOR, "heart").failure is None
    # Deaths count from the beginning again.
    assert direct.co.driver.run_once()
    assert direct.info("heart").state == "running"
    direct.clock.advance(30)
    healed(direct)
    with pytest.raises(Refusal):
        sessions.retry_session(direct.co, OPERATOR, "heart")


def test_deaths_in_a_round_count_no_more_once_it_is_aggregated(
    direct: DirectApi, pool: Pool
) -> None:
    pool.die()
    dying = dataclasses.replace(ALWAYS, max_deaths=2)
    direct.session(rounds=2)
    for _ in range(2):
        direct.answer_all("heart")
        direct.co.limits = dying
        with structlog.testing.capture_logs() as logged:
            assert direct.co.driver.run_once()
        events = [each["event"] for each in logged]
        assert events == ["aggregation_process_lost", "round.process_died"]
        assert not direct.co.driver.run_once(), "the lease stands"
        direct.clock.advance(30)
        direct.co.limits = LIMITS
        assert direct.co.driver.run_once()
    deaths = [details["deaths"] for _, _, details in direct.audit(action="round.process_died")]
    assert deaths == [1, 1]


def test_a_held_session_is_held_again_or_cancelled(direct: DirectApi, pool: Pool) -> None:
    pool.die()
    direct.co.limits = dataclasses.replace(ALWAYS, max_deaths=1)
    direct.session(sites=(*SITES, "east"), policy={"quorum": 3}, rounds=2)
    direct.answer("heart", *SITES)
    round_cases.close_round(direct.co, ANALYST, "heart", 1)
    assert direct.co.driver.run_once()
    assert direct.info("heart").state == "held"
    sessions.retry_session(direct.co, OPERATOR, "heart")
    direct.clock.advance(30)
    assert direct.co.driver.run_once()
    assert direct.view("heart", "east").response.status == "waiting"
    participation.leave(direct.co, site("east"), "heart")
    assert direct.info("heart").state == "held"
    assert sessions.cancel_session(direct.co, ANALYST, "heart").state == "cancelled"
    assert direct.stored() == sorted(SITES)
