"""A session whose aggregation dies again and again waits for an operator, and loses nothing."""

import dataclasses
from pathlib import Path

import pytest

from fedclust_service.domain.access import Refusal
from fedclust_service.usecases import admin, participation, rounds, sessions, sweeper
from support.clock import ManualClock
from usecases.direct_api import ANALYST, LIMITS, OPERATOR, SITES, DirectApi, site
from usecases.pool_processes import ALWAYS, healed, process_dies, process_runs


def test_only_deaths_inside_the_aggregation_hold_a_session(
    direct: DirectApi, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A coordinator that was killed five times and a process that died once hold nothing."""
    process_runs(monkeypatch, "import os; os._exit(1)")
    direct.co.limits = dataclasses.replace(ALWAYS, max_deaths=2)
    direct.session(rounds=2)
    direct.answer_all("heart")
    for _ in range(5):
        killed = direct.another().driver
        assert killed._take(lambda _: True) is not None
        clock.advance(30)
    assert direct.co.driver.run_once()
    assert direct.info("heart").state == "running"
    clock.advance(3600 * 24 * 30)
    process_dies(monkeypatch)
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
    clock.advance(3600 * 24 * 365)
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
    clock.advance(30)
    healed(direct)
    with pytest.raises(Refusal):
        sessions.retry_session(direct.co, OPERATOR, "heart")


def test_deaths_in_a_round_count_no_more_once_it_is_aggregated(
    direct: DirectApi, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    process_dies(monkeypatch)
    dying = dataclasses.replace(ALWAYS, max_deaths=2)
    direct.session(rounds=2)
    for _ in range(2):
        direct.answer_all("heart")
        direct.co.limits = dying
        assert direct.co.driver.run_once()
        clock.advance(30)
        direct.co.limits = LIMITS
        assert direct.co.driver.run_once()
    deaths = [details["deaths"] for _, _, details in direct.audit(action="round.process_died")]
    assert deaths == [1, 1]


def test_a_held_session_is_held_again_or_cancelled(
    direct: DirectApi, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    process_dies(monkeypatch)
    direct.co.limits = dataclasses.replace(ALWAYS, max_deaths=1)
    direct.session(sites=(*SITES, "east"), policy={"quorum": 3}, rounds=2)
    direct.answer("heart", *SITES)
    rounds.close_round(direct.co, ANALYST, "heart", 1)
    assert direct.co.driver.run_once()
    assert direct.info("heart").state == "held"
    sessions.retry_session(direct.co, OPERATOR, "heart")
    clock.advance(30)
    assert direct.co.driver.run_once()
    assert direct.view("heart", "east").response.status == "waiting"
    participation.leave(direct.co, site("east"), "heart")
    assert direct.info("heart").state == "held"
    assert sessions.cancel_session(direct.co, ANALYST, "heart").state == "cancelled"
    assert direct.stored() == sorted(SITES)
