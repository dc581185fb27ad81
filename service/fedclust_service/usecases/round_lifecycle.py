"""Start sessions, open rounds, end their collecting, fail them, and end sessions.

Every function runs inside a transaction that holds the session's lock. The transaction that starts
a session makes round 1 for the sites that have joined. This takes milliseconds, and half a second
in sessions with 1,000 sites and 1,000 features.
"""

import contextlib
from collections.abc import Sequence
from datetime import timedelta

from fedclust import rounds
from fedclust.definition import DefinitionError
from fedclust.rounds.collecting import (
    FAILURES,
    CollectedReason,
    Decision,
    Rules,
    TurnoutFailure,
    Wait,
    decide_round,
)
from fedclust.schema.errors import MethodFailure, RuleViolation
from fedclust.schema.task import Phase
from fedclust_service.domain.access import Actor
from fedclust_service.domain.overview import refusals_in_words
from fedclust_service.domain.round import Addressee, FailureReason, Round, RoundState
from fedclust_service.domain.session import Participation, ParticipationState, Session, SessionState
from fedclust_service.store import DataDamaged, Tx
from fedclust_service.usecases import notifications
from fedclust_service.usecases.access_queries import joined, joined_sites
from fedclust_service.usecases.aggregation import Opening, encode_opening, task_digests
from fedclust_service.usecases.definitions import definition_of, masks_of, plan_for, plan_or_refuse
from fedclust_service.usecases.unit_of_work import COORDINATOR, UnitOfWork

#: What ``failure`` says of a session that is held.
_HELD = (
    "The process that aggregates round {number} ended unexpectedly (times: {deaths}). The "
    "coordinator's operator should look for the cause, for example too little memory, and then "
    "have the session try again, or cancel it. All answers are kept."
)
#: What the session's ``failure`` says for each reason.
FAILURE_MESSAGES = FAILURES | {
    FailureReason.AGGREGATION_ERROR: (
        "The coordinator could not aggregate the round. Its log names the kind of error."
    ),
    FailureReason.AGGREGATION_TIMEOUT: (
        "The aggregation took longer than this coordinator allows. Ask its operator for a longer "
        "aggregation timeout, or create a smaller session."
    ),
    FailureReason.VERSION_UNSUPPORTED: (
        "The coordinator was upgraded and no longer runs this session's version of its method, or "
        "of the rounds that all methods share. Create the session again with the same sites; each "
        "of them upgrades fedclust and joins."
    ),
    FailureReason.STORED_DATA_DAMAGED: (
        "Data that the coordinator had stored for this session is damaged; the audit trail names "
        "it. Ask the operator to restore an earlier backup, or create the session again."
    ),
}


def check_tasks(current: Round, addressees: Sequence[Addressee]) -> None:
    """Raise DataDamaged unless each stored task has its digest."""
    digests = task_digests(current.common, (each.site_part for each in addressees))
    for each, digest in zip(addressees, digests, strict=True):
        if digest != each.task_digest:
            raise DataDamaged("task", each.site)


def open_round(uow: UnitOfWork, session: Session, opening: Opening) -> Round:
    """Store a round for those of its sites that still take part, and the engine's state.

    The state is stored under the number of the previous round: it is the state *after* that one.
    """
    tx, now = uow.tx, uow.now
    joined = joined_sites(tx.participations.list(session.id))
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
        Addressee(round_id=0, site=site, site_part=part, task_digest=digest)
        for site, (part, digest) in opening.parts.items()
        if site in joined
    ]
    tx.states.put(session.id, opening.number - 1, opening.state)
    opened = tx.rounds.add(new, addressees)
    tx.sessions.touch(session.id)
    uow.audit(
        COORDINATOR,
        "round.opened",
        session.name,
        round=opened.number,
        phase=opened.phase,
        addressed=len(addressees),
    )
    for warning in opening.warnings:
        uow.audit(COORDINATOR, "round.warned", session.name, round=opened.number, what=warning)
    # Too few sites may be left already.
    return update_round(uow, session, opened)


def rules_of(session: Session, current: Round) -> Rules:
    """Return the rules that end the collecting of a round."""
    phase: Phase | None = None
    # Another version's session: the driver reports it.
    with contextlib.suppress(DefinitionError, KeyError):
        phase = rounds.phase(plan_for(session), current.phase)
    return Rules.of(definition_of(session).policy, phase, needs_all=current.needs_all)


def decide_stored_round(
    tx: Tx, session: Session, current: Round, *, asked: bool = False
) -> Decision:
    """Decide whether a stored round that collects waits, is aggregated or fails."""
    turnout, rules = tx.rounds.turnout(current.id), rules_of(session, current)
    return decide_round(
        turnout,
        rules,
        late=tx.now >= current.deadline,
        overdue_for=tx.now - current.overdue_since if current.overdue_since else None,
        asked=asked,
        refused=rules.lacks_sites(turnout) and bool(tx.participations.refusals(session.id)),
    )


def changes_anything(current: Round, decision: Decision) -> bool:
    """Whether a decision changes anything that is stored."""
    return not isinstance(decision, Wait) or decision.overdue != (current.overdue_since is not None)


def update_round(
    uow: UnitOfWork,
    session: Session,
    current: Round,
    *,
    asked: bool = False,
    actor: Actor | str = COORDINATOR,
) -> Round:
    """Decide on a collecting round, store the decision, and return the round as it is then.

    The round and its session fail if the definition is damaged.
    """
    tx = uow.tx
    try:
        decision = decide_stored_round(tx, session, current, asked=asked)
    except DataDamaged as damage:
        fail_damaged(uow, session, current.number, damage)
        return tx.rounds.get_by_id(current.id) or current
    if isinstance(decision, Wait) and decision.overdue:
        notifications.round_overdue(uow, session, current, rules_of(session, current))
    if not changes_anything(current, decision):
        return current
    if isinstance(decision, Wait):
        tx.rounds.set_overdue(current.id, uow.now if decision.overdue else None)
        if decision.overdue:
            uow.audit(COORDINATOR, "round.overdue", session.name, round=current.number)
    elif isinstance(decision, TurnoutFailure):
        fail_session(uow, session, decision)
    else:
        return _stop_collecting(uow, session, current, decision, actor)
    return tx.rounds.get_by_id(current.id) or current


def _stop_collecting(
    uow: UnitOfWork, session: Session, current: Round, reason: CollectedReason, actor: Actor | str
) -> Round:
    tx = uow.tx
    collected = current.to(RoundState.AGGREGATING, close_reason=reason.value)
    if not tx.rounds.transition(current.id, current.state, collected.state, reason.value):
        return current
    # This wakes the sites that need not answer any more. The others wait for the next round.
    if reason is not CollectedReason.ALL_ANSWERED:
        tx.sessions.touch(session.id)
    uow.audit(actor, "round.collected", session.name, round=current.number, reason=reason.value)
    uow.wake_driver()
    return collected


def fail_damaged(uow: UnitOfWork, session: Session, number: int, damage: DataDamaged) -> None:
    """Fail a session whose stored data is damaged, and name the damage in the audit trail."""
    uow.audit(
        COORDINATOR, "round.damaged", session.name, round=number, what=damage.what, site=damage.site
    )
    fail_session(uow, session, FailureReason.STORED_DATA_DAMAGED)


def fail_session(uow: UnitOfWork, session: Session, reason: FailureReason | TurnoutFailure) -> None:
    """Fail a session and its open round for a reason of the coordinator's own."""
    failure = FAILURE_MESSAGES[reason]
    if reason is TurnoutFailure.TASK_REFUSED:
        failure += f" Refused: {refusals_in_words(uow.tx.participations.refusals(session.id))}."
    end_session(uow, session, SessionState.FAILED, reason=reason.value, failure=failure)


def hold_session(uow: UnitOfWork, session: Session, current: Round) -> None:
    """Have a session wait for an operator. Its round keeps all answers and has no deadline."""
    failure = _HELD.format(number=current.number, deaths=session.deaths)
    held = session.to(SessionState.HELD, held_at=uow.now, failure=failure)
    uow.tx.sessions.update(held)
    uow.audit(COORDINATOR, "session.held", session.name, round=current.number)
    notifications.session_held(uow, held, current)


def resume_session(uow: UnitOfWork, session: Session, actor: Actor) -> Session:
    """Have a held session aggregate its round again."""
    tx = uow.tx
    running = session.to(SessionState.RUNNING, held_at=None, deaths=0, failure=None)
    tx.sessions.update(running)
    uow.audit(actor, "session.retried", session.name)
    uow.wake_driver()
    return running


def end_session(
    uow: UnitOfWork,
    session: Session,
    target: SessionState,
    *,
    reason: str,
    failure: str | None = None,
    actor: Actor | str = COORDINATOR,
) -> Session:
    """End a session; a round that is still open fails with it, even one being aggregated."""
    tx, now = uow.tx, uow.now
    current = tx.rounds.latest(session.id)
    if current is not None and current.state in (RoundState.COLLECTING, RoundState.AGGREGATING):
        tx.rounds.transition(current.id, current.state, current.to(RoundState.FAILED).state, reason)
        uow.audit(actor, "round.failed", session.name, round=current.number, reason=reason)
    ended = session.to(target, ended_at=now, stopped_because=reason, failure=failure)
    tx.sessions.update(ended)
    uow.audit(actor, f"session.{target.value}", session.name, reason=reason)
    notifications.session_ended(uow, ended, None if current is None else current.number)
    return ended


def _recruiting_over(session: Session, participations: Sequence[Participation]) -> bool:
    """Whether a recruiting session waits for no invited site and has enough joined ones."""
    if session.state is not SessionState.RECRUITING:
        return False
    if any(each.state is ParticipationState.INVITED for each in participations):
        return False
    return len(joined(participations)) >= definition_of(session).policy.sites_needed


def unsuitable(session: Session, participations: Sequence[Participation]) -> str | None:
    """Return why the method cannot start with the joined sites; None while sites are invited."""
    if not _recruiting_over(session, participations):
        return None
    plan = plan_or_refuse(session)
    present = joined(participations)
    try:
        rounds.check_roster(plan, joined_sites(present), masks_of(plan, present))
    except RuleViolation as violation:
        return violation.message
    return None


def start_if_complete(uow: UnitOfWork, session: Session, actor: Actor) -> None:
    """Start a session that waits for its sites once the last of them has joined or declined."""
    if not _recruiting_over(session, uow.tx.participations.list(session.id)):
        return
    if definition_of(session).start != "when_all_joined":
        return
    try:
        begin(uow, session, actor)
    except RuleViolation as violation:
        # The site that joined last did nothing wrong: its request succeeds, the session waits.
        uow.audit(COORDINATOR, "session.start_refused", session.name, rule=violation.rule)


def begin(uow: UnitOfWork, session: Session, actor: Actor) -> Session:
    """Start a recruiting session with the sites that have joined.

    RuleViolation, before anything is written, if the method cannot run with these sites.
    """
    tx = uow.tx
    present = joined(tx.participations.list(session.id))
    first = _first_round(session, present)
    running = session.to(SessionState.RUNNING, started_at=uow.now)
    tx.sessions.update(running)
    uow.audit(actor, "session.started", session.name, sites=len(present))
    if isinstance(first, MethodFailure):
        return end_session(
            uow, running, SessionState.FAILED, reason=first.reason, failure=first.message
        )
    open_round(uow, running, first)
    return tx.sessions.get_by_id(session.id) or running


def _first_round(session: Session, present: Sequence[Participation]) -> Opening | MethodFailure:
    plan = plan_or_refuse(session)
    roster, masks = joined_sites(present), masks_of(plan, present)
    rounds.check_roster(plan, roster, masks)
    try:
        return encode_opening(session.name, plan, 1, roster, rounds.start(plan, roster, masks))
    except MethodFailure as failure:
        return failure
