"""Deadlines, quorum, overdue rounds, closing by hand; the sweeper with a clock that is moved."""

import dataclasses
from datetime import timedelta

from fedclust.wire.models import RoundInfo, SessionPatch
from fedclust_service.usecases import participation, rounds, sessions
from fedclust_service.usecases.sweeper import sweep
from support.clock import ManualClock
from support.databases import sqlite_first  # noqa: F401  # in place of database_url
from usecases.direct_api import ANALYST, OPERATOR, DirectApi, paged, refusal, site

FOUR = ("a", "b", "c", "d")
HOUR = 3600


def look(direct: DirectApi, number: int = 1) -> RoundInfo:
    return rounds.get_round(direct.co, ANALYST, "heart", number)


def test_at_the_deadline_the_quorum_closes(direct: DirectApi, clock: ManualClock) -> None:
    direct.session(sites=FOUR, policy={"quorum": 3})
    direct.answer("heart", "a", "b", "c")
    direct.later(HOUR - 1)
    assert look(direct).state == "collecting"
    clock.advance(1)
    version = direct.view("heart", "d").version
    sweep(direct.co)
    info = look(direct)
    assert (info.state, info.close_reason) == ("aggregating", "quorum_at_deadline")
    # The one that has not answered is told that it need not any more.
    late = direct.view("heart", "d")
    assert late.response.status == "waiting"
    assert late.version > version
    direct.drive()
    assert direct.view("heart", "d").response.status == "work"
    assert direct.votes("heart")[0].tolist() == [1, 1, 1, 0]
    assert [each.late for each in look(direct).sites] == [False, False, False, True]


def test_below_the_quorum_it_is_overdue_until_the_quorum_is_met(direct: DirectApi) -> None:
    direct.session(sites=FOUR, policy={"quorum": 3})
    direct.answer("heart", "a", "b")
    direct.clock.advance(HOUR)
    for _ in range(3):
        sweep(direct.co)
    assert look(direct).overdue
    assert look(direct).state == "collecting"
    assert len(direct.audit(action="round.overdue")) == 1
    direct.clock.advance(5 * HOUR)
    direct.answer("heart", "c")
    assert look(direct).close_reason == "quorum_at_deadline"


def test_an_overdue_round_is_swept_without_writing(direct: DirectApi, clock: ManualClock) -> None:
    direct.session(policy={"quorum": 3})
    clock.advance(HOUR)
    sweep(direct.co)  # marks it overdue
    before = direct.calls("sweep.round")
    clock.advance(23 * HOUR)
    sweep(direct.co)
    assert direct.calls("sweep.round") == before
    judged = direct.calls("sweep.judge")
    sweep(direct.co)
    assert direct.calls("sweep.judge") == judged, "only time changes it, and not yet"
    # Moving the deadline removes the mark; afterwards the round is looked at again.
    body = SessionPatch(deadline=clock.now() + timedelta(hours=1))
    sessions.patch_session(direct.co, OPERATOR, "heart", body)
    assert not look(direct).overdue
    clock.advance(HOUR)
    sweep(direct.co)
    assert look(direct).overdue
    clock.advance(7 * 24 * HOUR)
    sweep(direct.co)
    assert direct.info("heart").stopped_because == "quorum_not_reached"


def test_it_fails_only_after_fail_after(direct: DirectApi) -> None:
    direct.session(policy={"fail_after_s": 1000})
    direct.answer("heart", "north")
    direct.later(HOUR)
    direct.later(999)
    info = direct.info("heart")
    assert info.state == "running"
    assert [each.name for each in info.sites if each.late] == ["south", "west"]
    direct.later(1)
    info = direct.info("heart")
    assert (info.state, info.stopped_because) == ("failed", "quorum_not_reached")
    assert not any(each.late for each in info.sites)
    assert "in the time for late answers" in (info.failure or "")
    assert look(direct).close_reason == "quorum_not_reached"
    assert direct.view("heart", "south").response.status == "ended"


def test_sites_get_their_time_after_the_coordinator_was_down(direct: DirectApi) -> None:
    direct.session(policy={"fail_after_s": 1000})
    direct.later(HOUR + 50_000)
    assert direct.info("heart").state == "running"
    direct.answer_all("heart")
    assert look(direct).close_reason == "all_answered"


def test_all_answered_but_too_few_with_contents_fails(direct: DirectApi) -> None:
    direct.session(sites=FOUR)
    direct.answer("heart", "a", "b", empty=True)
    direct.answer("heart", "c")
    done = direct.answer("heart", "d")
    info = direct.info("heart")
    assert (info.state, info.stopped_because) == ("failed", "too_few_contributors")
    assert info.failure
    assert done.created
    # The site has yet to hear of it: nothing to wait with.
    assert done.view is None
    assert look(direct).state == "failed"


def test_too_few_sites_left_fails_after_its_time_though_the_deadline_is_far(
    direct: DirectApi,
) -> None:
    direct.session(policy={"round_timeout_s": 1_000_000, "fail_after_s": 1000})
    direct.answer("heart", "north", "south")
    participation.leave(direct.co, site("west"), "heart")
    assert (look(direct).state, look(direct).overdue) == ("collecting", True)
    direct.later(999)
    assert direct.info("heart").state == "running"
    direct.later(1)
    assert direct.info("heart").stopped_because == "quorum_not_reached"


def test_the_next_round_of_too_few_is_opened_overdue(direct: DirectApi) -> None:
    direct.session(rounds=3)
    direct.answer("heart", "west")
    participation.leave(direct.co, site("west"), "heart")
    direct.answer("heart", "north", "south")
    direct.drive()
    assert (look(direct, 2).state, look(direct, 2).overdue) == ("collecting", True)
    assert direct.info("heart").state == "running"


def test_closing_by_hand_needs_the_quorum(direct: DirectApi) -> None:
    direct.session(sites=FOUR, policy={"quorum": 3})
    direct.answer("heart", "a", "b")
    refused = refusal(rounds.close_round, direct.co, ANALYST, "heart", 1)
    assert refused.slug == "quorum-missing"
    assert "2 of the 3" in refused.detail
    direct.answer("heart", "c")
    closed = rounds.close_round(direct.co, ANALYST, "heart", 1)
    assert (closed.state, closed.close_reason) == ("aggregating", "operator")
    assert rounds.close_round(direct.co, ANALYST, "heart", 1) == closed
    ((who, _, details),) = direct.audit(action="round.collected")
    assert (who, details) == ("analyst:ada", {"round": 1, "reason": "operator"})
    sessions.cancel_session(direct.co, ANALYST, "heart")
    assert refusal(rounds.close_round, direct.co, ANALYST, "heart", 1).slug == "wrong-state"


def test_a_phase_that_needs_all_is_not_closed_early(direct: DirectApi) -> None:
    direct.session(sites=FOUR, policy={"quorum": 3}, needs_all=True)
    direct.answer("heart", "a", "b", "c")
    closing = refusal(rounds.close_round, direct.co, ANALYST, "heart", 1)
    assert closing.slug == "needs-all-sites"
    direct.later(HOUR)
    assert (look(direct).state, look(direct).overdue) == ("collecting", True)
    direct.answer("heart", "d")
    assert look(direct).close_reason == "all_answered"


# --- rounds as seen -------------------------------------------------------------------------------


def test_a_site_sees_of_others_who_answered_and_no_more(direct: DirectApi) -> None:
    direct.session(sites=FOUR)
    direct.answer("heart", "a", empty=True)
    direct.answer("heart", "b")
    seen = {each.name: each for each in rounds.get_round(direct.co, site("b"), "heart", 1).sites}
    assert seen["a"].answered
    assert seen["a"].answered_at is seen["a"].empty is None
    assert seen["b"].answered_at is not None
    assert seen["b"].empty is False
    full = {each.name: each for each in look(direct).sites}
    assert full["a"].empty is True


def test_rounds_page_in_order_with_metrics(direct: DirectApi) -> None:
    direct.session(rounds=5)
    direct.finish("heart")
    items = paged(rounds.list_rounds, direct.co, ANALYST, "heart", limit=3)
    assert [each.number for each in items] == [1, 2, 3, 4, 5]
    assert [each.metrics["votes"] for each in items] == [3, 6, 9, 12, 15]
    assert all(each.aggregation_s >= 0 for each in items)


# --- retention ------------------------------------------------------------------------------------


def test_payloads_are_scrubbed_after_retention_and_receipts_stay(both: DirectApi) -> None:
    both.co.limits = dataclasses.replace(both.co.limits, retention_days=10)
    both.session(rounds=1)
    body = both.body("heart", "north")
    both.put("heart", "north", body)
    both.finish("heart")
    both.later(10 * 86_400)
    assert both.payloads() == 3
    both.later(1)
    sweep(both.co)
    assert both.payloads() == 0
    assert not both.put("heart", "north", body, 1).created
    assert both.audit(action="session.scrubbed") == [
        ("coordinator", "session.scrubbed", {"payloads": 3})
    ]
