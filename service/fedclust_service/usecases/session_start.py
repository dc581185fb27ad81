"""Start sessions: make round 1 for the sites that have joined.

The engine makes round 1 outside any transaction. A transaction that finds its session ready to
start raises :class:`StartDue`; round 1 is then made for exactly the sites that have joined, and the
transaction runs again with it. If another site has joined meanwhile, this repeats.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from fedclust import rounds
from fedclust.schema.errors import MethodFailure, RuleViolation
from fedclust_service.domain.access import Actor
from fedclust_service.domain.refusal import Refusal
from fedclust_service.domain.session import (
    SESSION_TRANSITIONS,
    Participation,
    ParticipationState,
    Session,
    SessionState,
)
from fedclust_service.domain.transition import next_state
from fedclust_service.usecases.access_queries import joined, joined_sites
from fedclust_service.usecases.aggregation import Opening, encode_opening
from fedclust_service.usecases.core import CoordinatorCore
from fedclust_service.usecases.definitions import definition_of, masks_of, plan_or_refuse
from fedclust_service.usecases.round_lifecycle import end_session, open_round
from fedclust_service.usecases.unit_of_work import COORDINATOR, UnitOfWork, commit

T = TypeVar("T")
_START_TRIES = 16


@dataclass(frozen=True)
class Start:
    """Round 1 for the sites of ``roster``, or why the method cannot start with them."""

    roster: tuple[str, ...]
    first: Opening | MethodFailure | RuleViolation


class StartDue(Exception):
    """A transaction found its session ready to start and needs round 1 for these sites."""

    def __init__(self, session: Session, joined: tuple[Participation, ...]) -> None:
        super().__init__(session.name)
        self.session, self.joined = session, joined


def with_start(co: CoordinatorCore, name: str, work: Callable[[Start | None, UnitOfWork], T]) -> T:
    """Run a write transaction that may start its session."""
    start: Start | None = None
    for _ in range(_START_TRIES):
        try:
            return commit(co, name, functools.partial(work, start))
        except StartDue as due:
            start = _make_start(due.session, due.joined)
    raise Refusal(
        "unavailable", "Other sites are joining at this moment. Try again.", retry_after_s=1
    )


def _make_start(session: Session, joined: tuple[Participation, ...]) -> Start:
    plan = plan_or_refuse(session)
    roster, masks = tuple(each.site for each in joined), masks_of(plan, joined)
    try:
        rounds.check_roster(plan, roster, masks)
        first = rounds.start(plan, roster, masks)
        return Start(roster, encode_opening(session.name, plan, 1, roster, first))
    except (MethodFailure, RuleViolation) as failure:
        return Start(roster, failure)


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


def start_if_complete(uow: UnitOfWork, session: Session, actor: Actor, start: Start | None) -> None:
    """Start a session that waits for its sites once the last of them has joined or declined."""
    if session.state is not SessionState.RECRUITING:
        return
    if definition_of(session).start != "when_all_joined":
        return
    participations = uow.tx.participations.list(session.id)
    if not _recruiting_over(session, participations):
        return
    roster = joined_sites(participations)
    if start is not None and start.roster == roster and isinstance(start.first, RuleViolation):
        # The site that joined last did nothing wrong: its request succeeds, the session waits.
        uow.audit(COORDINATOR, "session.start_refused", session.name, rule=start.first.rule)
        return
    begin(uow, session, actor, start)


def begin(uow: UnitOfWork, session: Session, actor: Actor, start: Start | None) -> Session:
    """Start a recruiting session with the sites that have joined.

    StartDue if ``start`` is None or for other sites. Refusal ``sites-unsuitable`` if the method
    cannot run with these sites.
    """
    tx = uow.tx
    present = joined(tx.participations.list(session.id))
    if start is None or start.roster != joined_sites(present):
        raise StartDue(session, present)
    if isinstance(start.first, RuleViolation):
        raise Refusal("sites-unsuitable", start.first.message)
    running = dataclasses.replace(
        session,
        state=next_state(SESSION_TRANSITIONS, session.state, SessionState.RUNNING),
        started_at=uow.now,
    )
    tx.sessions.update(running)
    uow.audit(actor, "session.started", session.name, sites=len(present))
    if isinstance(start.first, MethodFailure):
        return end_session(
            uow,
            running,
            SessionState.FAILED,
            reason=start.first.reason,
            failure=start.first.message,
        )
    open_round(uow, running, start.first)
    return tx.sessions.get_by_id(session.id) or running
