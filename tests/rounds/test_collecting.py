"""When a collecting round closes, waits, is overdue or fails."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedclust.rounds.collecting import (
    CollectedReason,
    Decision,
    Rules,
    Turnout,
    TurnoutFailure,
    Wait,
    decide_round,
)
from fedclust.schema.run_config import Policy

#: ``fail_after_s`` of a policy that names none.
WEEK = timedelta(days=7)


def decide(
    pending: int,
    nonempty: int,
    joined: int,
    *,
    quorum: int | None = None,
    min_sites: int = 3,
    needs_all: bool = False,
    optional: bool = False,
    gone: int | None = None,
    past: bool = False,
    overdue_for: timedelta | None = None,
    asked: bool = False,
    refused: bool = False,
) -> Decision:
    kind = {"needs_all": needs_all, "optional": optional, "ends_with_site": gone is not None}
    turnout = Turnout(
        pending=pending, answered=nonempty, nonempty=nonempty, joined=joined, gone=gone or 0
    )
    rules = Rules(Policy(min_sites=min_sites, quorum=quorum), **kind)
    now = {"late": past, "overdue_for": overdue_for, "asked": asked, "refused": refused}
    return decide_round(turnout, rules, **now)


def test_closes_when_all_have_answered_or_at_the_deadline_with_the_quorum() -> None:
    assert decide(0, 4, 4) == CollectedReason.ALL_ANSWERED
    assert decide(0, 2, 4) == TurnoutFailure.TOO_FEW_CONTRIBUTORS
    # Answers of sites that have left still count.
    assert decide(0, 3, 2) == CollectedReason.ALL_ANSWERED
    assert decide(1, 3, 4, quorum=3) == Wait(overdue=False)
    assert decide(1, 3, 4, quorum=3, past=True) == CollectedReason.QUORUM_AT_DEADLINE
    # Empty answers do not make the quorum.
    assert decide(1, 2, 4, quorum=3, past=True) == Wait(overdue=True)


def test_without_a_number_the_quorum_is_those_still_joined_but_never_below_min_sites() -> None:
    assert decide(1, 3, 4, past=True) == Wait(overdue=True)
    # One of the four has answered and left since: three are joined, three answers are there.
    assert decide(1, 3, 3, past=True) == CollectedReason.QUORUM_AT_DEADLINE
    assert decide(1, 2, 2, past=True) == Wait(overdue=True)


def test_too_few_sites_left_is_overdue_at_once_and_fails_only_after_a_week() -> None:
    assert decide(0, 2, 2) == Wait(overdue=True)
    assert decide(1, 1, 2) == Wait(overdue=True)
    just_before = WEEK - timedelta(seconds=1)
    assert decide(0, 2, 2, overdue_for=just_before) == Wait(overdue=True)
    assert decide(0, 2, 2, overdue_for=WEEK) == TurnoutFailure.QUORUM_NOT_REACHED


def test_too_few_sites_after_a_refused_task_end_the_round_at_once() -> None:
    lost = TurnoutFailure.TASK_REFUSED
    assert decide(0, 2, 2, refused=True) == lost
    assert decide(1, 1, 2, refused=True) == lost
    assert decide(0, 0, 0, refused=True) == lost
    # Answers of sites that have left since, and sites that can still answer.
    assert decide(0, 3, 2, refused=True) == CollectedReason.ALL_ANSWERED
    assert decide(1, 2, 2, refused=True) == Wait(overdue=True)
    assert decide(1, 2, 3, refused=True) == Wait(overdue=False)
    # All that are left have answered: the refusal is not the reason.
    assert decide(0, 2, 3, refused=True) == TurnoutFailure.TOO_FEW_CONTRIBUTORS


def test_a_round_that_is_optional_does_not_wait_after_a_refused_task() -> None:
    done = CollectedReason.TASK_REFUSED
    assert decide(1, 1, 2, optional=True, refused=True) == done
    assert decide(0, 0, 0, optional=True, refused=True) == done
    assert decide(1, 2, 3, optional=True, refused=True) == Wait(overdue=False)
    # Without one it closes with whatever came.
    for nonempty, joined in ((2, 4), (2, 2), (0, 0)):
        assert decide(0, nonempty, joined, optional=True) == CollectedReason.ALL_ANSWERED


def test_a_round_that_is_optional_waits_for_answers_but_not_for_ever() -> None:
    just_before = WEEK - timedelta(seconds=1)
    late = {"past": True, "optional": True}
    assert decide(1, 2, 4, **late) == Wait(overdue=True)
    assert decide(1, 2, 4, overdue_for=just_before, **late) == Wait(overdue=True)
    assert decide(1, 2, 4, overdue_for=WEEK, **late) == CollectedReason.FAIL_AFTER
    assert decide(1, 3, 3, **late) == CollectedReason.QUORUM_AT_DEADLINE


def test_overdue_closes_when_the_quorum_is_met_even_after_a_week() -> None:
    late = {"past": True, "overdue_for": WEEK}
    assert decide(1, 3, 4, quorum=3, **late) == CollectedReason.QUORUM_AT_DEADLINE
    assert decide(2, 2, 4, quorum=3, **late) == TurnoutFailure.QUORUM_NOT_REACHED


def test_an_operator_needs_the_quorum_to_close() -> None:
    assert decide(1, 3, 4, quorum=3, asked=True) == CollectedReason.OPERATOR
    assert decide(1, 3, 4, asked=True) == Wait(overdue=False)


@pytest.mark.parametrize("asked", [True, False])
def test_a_phase_that_needs_all_waits_for_all(asked: bool) -> None:
    assert decide(1, 3, 4, quorum=3, needs_all=True, past=True, asked=asked) == Wait(overdue=True)
    assert decide(0, 4, 4, needs_all=True, past=True) == CollectedReason.ALL_ANSWERED


def test_a_session_that_ends_with_a_site_closes_its_round_at_once() -> None:
    assert decide(2, 1, 3, needs_all=True, gone=1) == CollectedReason.SITE_LEFT
    assert decide(2, 1, 3, needs_all=True, gone=0) == Wait(overdue=False)
    # One that left after it had answered is no reason to stop waiting for the others.
    assert decide(1, 2, 2, needs_all=True, gone=0) == Wait(overdue=True)


@given(
    pending=st.integers(0, 5),
    nonempty=st.integers(0, 5),
    joined=st.integers(0, 5),
    min_sites=st.integers(1, 5),
    extra=st.none() | st.integers(0, 3),
    needs_all=st.booleans(),
    past=st.booleans(),
    asked=st.booleans(),
    overdue_h=st.none() | st.integers(0, 24 * 9),
)
def test_nothing_is_released_with_fewer_than_min_sites(
    pending: int,
    nonempty: int,
    joined: int,
    min_sites: int,
    extra: int | None,
    needs_all: bool,
    past: bool,
    asked: bool,
    overdue_h: int | None,
) -> None:
    quorum = None if extra is None else min_sites + extra
    decision = decide(
        pending,
        nonempty,
        joined,
        quorum=quorum,
        min_sites=min_sites,
        needs_all=needs_all,
        past=past,
        asked=asked,
        overdue_for=None if overdue_h is None else timedelta(hours=overdue_h),
    )
    if isinstance(decision, CollectedReason):
        assert nonempty >= min_sites
        assert pending == 0 or (not needs_all and (past or asked))
    if isinstance(decision, TurnoutFailure):
        patience_over = overdue_h is not None and overdue_h >= 24 * 7
        assert nonempty < min_sites if pending == 0 else patience_over
    if isinstance(decision, Wait):
        assert decision.overdue == (past or joined < min_sites)
        # Waiting can still change something: a site may answer, or go, or time passes.
        assert pending > 0 or joined < min_sites
