"""Opening rounds: what the engine says is computed first, outside any transaction.

A transaction that finds a session ready to start raises :class:`StartDue`; round 1 is then made
for exactly those sites, and the transaction is run again with it. Should another site have joined
meanwhile, the same happens once more.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from fedclust.algorithms import engine
from fedclust.algorithms.base import MethodFailure, RuleViolation
from fedclust_service.domain.access import Actor
from fedclust_service.domain.refusal import Refusal
from fedclust_service.domain.round import Addressee, Round, RoundState
from fedclust_service.domain.session import (
    SESSION_TRANSITIONS,
    Participation,
    ParticipationState,
    Session,
    SessionState,
)
from fedclust_service.domain.transition import advance
from fedclust_service.orchestration.aggregation import Opening, prepare
from fedclust_service.orchestration.change import COORDINATOR, Change, commit
from fedclust_service.orchestration.closing import end_session, settle
from fedclust_service.orchestration.lookup import (
    definition_of,
    masks_of,
    plan_or_refuse,
    roster_of,
)

if TYPE_CHECKING:
    from fedclust_service.orchestration.coordinator import Coordinator

T = TypeVar("T")
_START_TRIES = 16


@dataclass(frozen=True)
class Start:
    """Round 1 for the sites of ``roster``, or why the method cannot start with them."""

    roster: tuple[str, ...]
    first: Opening | MethodFailure | RuleViolation


class StartDue(Exception):
    """A transaction found its session ready to start; round 1 has to be made for these."""

    def __init__(self, session: Session, joined: tuple[Participation, ...]) -> None:
        super().__init__(session.name)
        self.session = session
        self.joined = joined


def open_round(change: Change, session: Session, opening: Opening) -> Round:
    """Store a round and the engine's state; it addresses those of its sites that still take part.

    The state is kept under the number of the round before: it is the state *after* that one.
    """
    tx, now = change.tx, change.now
    joined = set(roster_of(tx, session))
    new = Round(
        id=0,
        session_id=session.id,
        number=opening.number,
        phase=opening.phase,
        state=RoundState.COLLECTING,
        needs_all=opening.needs_all,
        common=opening.common,
        opened_at=now,
        deadline=now + timedelta(seconds=definition_of(session).policy.round_timeout_s),
    )
    addressees = [
        Addressee(0, site, part, digest)
        for site, (part, digest) in opening.parts.items()
        if site in joined
    ]
    tx.states.put(session.id, opening.number - 1, opening.state)
    opened = tx.rounds.add(new, addressees)
    tx.sessions.touch(session.id)
    change.audit(
        COORDINATOR,
        "round.opened",
        session.name,
        round=opened.number,
        phase=opened.phase,
        addressed=len(addressees),
    )
    for warning in opening.warnings:
        change.audit(COORDINATOR, "round.warned", session.name, round=opened.number, what=warning)
    # Too few sites may be left for this round to come to anything: that shows at once.
    return settle(change, session, opened)


# --- the first round ------------------------------------------------------------------------------


def with_start(co: Coordinator, name: str, work: Callable[[Change, Start | None], T]) -> T:
    """Run a write transaction that may start its session."""
    start: Start | None = None
    for _ in range(_START_TRIES):
        try:
            return commit(co, name, functools.partial(_call, work, start))
        except StartDue as due:
            start = _make_start(due.session, due.joined)
    raise Refusal("unavailable", "Sites are joining all at once. Ask again.", retry_after_s=1)


def _call(work: Callable[[Change, Start | None], T], start: Start | None, change: Change) -> T:
    return work(change, start)


def _make_start(session: Session, joined: tuple[Participation, ...]) -> Start:
    plan = plan_or_refuse(session)
    roster, masks = tuple(each.site for each in joined), masks_of(plan, joined)
    try:
        engine.check_roster(plan, roster, masks)
        first = engine.start(plan, roster, masks)
        return Start(roster, prepare(session.name, plan, 1, roster, first))
    except (MethodFailure, RuleViolation) as failure:
        return Start(roster, failure)


def unsuitable(session: Session, participations: Iterable[Participation]) -> str | None:
    """Return why the method cannot start with the sites that were waited for, if it cannot."""
    every = list(participations)
    joined = [each for each in every if each.state is ParticipationState.JOINED]
    waiting = any(each.state is ParticipationState.INVITED for each in every)
    recruiting = session.state is SessionState.RECRUITING
    if not recruiting or waiting or len(joined) < needed_to_start(session):
        return None
    plan = plan_or_refuse(session)
    if plan.method.check_roster is None:
        return None
    try:
        engine.check_roster(plan, sorted(each.site for each in joined), masks_of(plan, joined))
    except RuleViolation as violation:
        return violation.message
    return None


def needed_to_start(session: Session) -> int:
    """Return how many sites must have joined: the quorum, which without a number is min_sites."""
    policy = definition_of(session).policy
    return max(policy.min_sites, policy.quorum or 0)


def start_if_complete(
    change: Change, session: Session, actor: Actor, start: Start | None
) -> Session:
    """Start a session that waits for its sites, when the last of them has joined.

    Sites that declined or were excluded are not waited for, as long as enough are left.
    """
    if session.state is not SessionState.RECRUITING:
        return session
    if definition_of(session).start != "when_all_joined":
        return session
    participations = change.tx.participations.list(session.id)
    if any(each.state is ParticipationState.INVITED for each in participations):
        return session
    joined = sum(each.state is ParticipationState.JOINED for each in participations)
    if joined < needed_to_start(session):
        return session
    roster = roster_of(change.tx, session)
    if start is not None and start.roster == roster and isinstance(start.first, RuleViolation):
        # Whoever joined did nothing wrong: the session waits, and says what for.
        change.audit(COORDINATOR, "session.start_refused", session.name, rule=start.first.rule)
        return session
    return begin(change, session, actor, start)


def begin(change: Change, session: Session, actor: Actor, start: Start | None) -> Session:
    """Start a recruiting session with the sites that have joined; StartDue without round 1.

    Refusal ``sites-unsuitable`` where they cannot serve the method.
    """
    tx = change.tx
    roster = roster_of(tx, session)
    if start is None or start.roster != roster:
        every = tx.participations.list(session.id)
        joined = (each for each in every if each.state is ParticipationState.JOINED)
        raise StartDue(session, tuple(joined))
    if isinstance(start.first, RuleViolation):
        raise Refusal("sites-unsuitable", start.first.message)
    running = dataclasses.replace(
        session,
        state=advance(SESSION_TRANSITIONS, session.state, SessionState.RUNNING),
        started_at=change.now,
    )
    tx.sessions.update(running)
    change.audit(actor, "session.started", session.name, sites=len(roster))
    if isinstance(start.first, MethodFailure):
        return end_session(
            change,
            running,
            SessionState.FAILED,
            reason=start.first.reason,
            failure=start.first.message,
        )
    open_round(change, running, start.first)
    return tx.sessions.get_by_id(session.id) or running
