"""Closing rounds and ending sessions. Every function works inside a transaction that holds the
session's lock."""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta

from fedclust.algorithms import engine
from fedclust.algorithms.base import Phase
from fedclust.definition import DefinitionError
from fedclust_service.domain.access import Actor
from fedclust_service.domain.round import (
    ROUND_TRANSITIONS,
    Close,
    CloseReason,
    Fail,
    FailureReason,
    Round,
    RoundState,
    Rules,
    Wait,
    judge,
)
from fedclust_service.domain.session import (
    SESSION_TRANSITIONS,
    Session,
    SessionState,
)
from fedclust_service.domain.transition import advance
from fedclust_service.orchestration.change import COORDINATOR, Change
from fedclust_service.orchestration.lookup import definition_of, plan_for
from fedclust_service.store import DataDamaged, Tx

MESSAGES = {
    FailureReason.TOO_FEW_CONTRIBUTORS: (
        "All sites of the round have answered, but fewer than min_sites of them with contents. "
        "Create a session with a smaller min_group_size or n_clusters, or with more sites."
    ),
    FailureReason.QUORUM_NOT_REACHED: (
        "The round stayed below its quorum for fail_after_s after it became overdue. Create a new "
        "session with the sites that can answer, or with a longer round_timeout_s."
    ),
    FailureReason.AGGREGATION_ERROR: (
        "The coordinator could not aggregate the round. Its log names the kind of error."
    ),
    FailureReason.AGGREGATION_TIMEOUT: (
        "The aggregation took longer than this coordinator allows. Ask its operator for a longer "
        "aggregation timeout, or create a smaller session."
    ),
    FailureReason.AGGREGATION_ABANDONED: (
        "The coordinator stopped too many times while it aggregated the round. Its operator should "
        "look for the cause, for example too little memory."
    ),
    FailureReason.METHOD_VERSION_UNSUPPORTED: (
        "The coordinator was upgraded and no longer runs this session's version of its method. "
        "Create the session anew with the same sites; each of them upgrades fedclust and joins "
        "again."
    ),
    FailureReason.STORED_DATA_DAMAGED: (
        "What the coordinator had stored for this session is damaged; the audit trail says what. "
        "Ask its operator to restore a backup from before, or create the session again."
    ),
}


def rules_of(session: Session, current: Round) -> Rules:
    """Return what of the session's policy closes a round."""
    policy, phase = definition_of(session).policy, _phase(session, current)
    return Rules(
        min_sites=policy.min_sites,
        quorum=policy.quorum,
        fail_after=timedelta(seconds=policy.fail_after_s),
        needs_all=current.needs_all,
        optional=phase is not None and phase.optional,
        ends_with_site=phase is not None and phase.ends_with_site,
    )


def _phase(session: Session, current: Round) -> Phase | None:
    try:
        return engine.phase(plan_for(session), current.phase)
    except (DefinitionError, KeyError):  # another version's session: the driver says so
        return None


def verdict_on(
    tx: Tx, session: Session, current: Round, now: datetime, *, asked: bool = False
) -> Wait | Close | Fail:
    """Decide what becomes of a collecting round."""
    return judge(
        tx.rounds.turnout(current.id),
        rules_of(session, current),
        deadline=current.deadline,
        overdue_since=current.overdue_since,
        now=now,
        asked=asked,
    )


def changes_anything(current: Round, verdict: Wait | Close | Fail) -> bool:
    """Whether carrying out a verdict writes."""
    return not isinstance(verdict, Wait) or verdict.overdue != (current.overdue_since is not None)


def settle(
    change: Change,
    session: Session,
    current: Round,
    *,
    asked: bool = False,
    actor: Actor | str = COORDINATOR,
) -> Round:
    """Carry out what is decided of a collecting round; return it as it is then.

    The round and its session fail where the definition is damaged.
    """
    tx = change.tx
    try:
        verdict = verdict_on(tx, session, current, change.now, asked=asked)
    except DataDamaged as damage:
        fail_damaged(change, session, current.number, damage)
        return tx.rounds.get_by_id(current.id) or current
    if not changes_anything(current, verdict):
        return current
    if isinstance(verdict, Wait):
        tx.rounds.set_overdue(current.id, change.now if verdict.overdue else None)
        if verdict.overdue:
            change.audit(COORDINATOR, "round.overdue", session.name, round=current.number)
    elif isinstance(verdict, Fail):
        end_session(
            change,
            session,
            SessionState.FAILED,
            reason=verdict.reason.value,
            failure=MESSAGES[verdict.reason],
        )
    else:
        _to_aggregation(change, session, current, verdict, actor)
    return tx.rounds.get_by_id(current.id) or current


def _to_aggregation(
    change: Change, session: Session, current: Round, verdict: Close, actor: Actor | str
) -> None:
    tx, reason = change.tx, verdict.reason.value
    target = advance(ROUND_TRANSITIONS, current.state, RoundState.AGGREGATING)
    if not tx.rounds.transition(current.id, current.state, target, close_reason=reason):
        return
    # Sites that have not answered are told that they need not. The others wait for the next
    # round and are left asleep.
    if verdict.reason is not CloseReason.ALL_ANSWERED:
        tx.sessions.touch(session.id)
    change.audit(actor, "round.collected", session.name, round=current.number, reason=reason)
    change.wake_driver()


def fail_damaged(change: Change, session: Session, number: int, damage: DataDamaged) -> None:
    """Fail a session whose stored data is damaged, and say in the audit trail what is."""
    change.audit(
        COORDINATOR,
        "round.damaged",
        session.name,
        round=number,
        what=damage.what,
        site=damage.site,
    )
    reason = FailureReason.STORED_DATA_DAMAGED
    end_session(change, session, SessionState.FAILED, reason=reason.value, failure=MESSAGES[reason])


def end_session(
    change: Change,
    session: Session,
    target: SessionState,
    *,
    reason: str,
    failure: str | None = None,
    actor: Actor | str = COORDINATOR,
) -> Session:
    """End a session; a round that is still open fails with it, whoever aggregates it."""
    tx, now = change.tx, change.now
    current = tx.rounds.latest(session.id)
    if current is not None and current.state in (RoundState.COLLECTING, RoundState.AGGREGATING):
        failed = advance(ROUND_TRANSITIONS, current.state, RoundState.FAILED)
        tx.rounds.transition(current.id, current.state, failed, closed_at=now, close_reason=reason)
        change.audit(actor, "round.failed", session.name, round=current.number, reason=reason)
    ended = dataclasses.replace(
        session,
        state=advance(SESSION_TRANSITIONS, session.state, target),
        ended_at=now,
        stopped_because=reason,
        failure=failure,
    )
    tx.sessions.update(ended)
    tx.sessions.touch(session.id)
    change.audit(actor, f"session.{target.value}", session.name, reason=reason)
    return ended
