"""Rounds as people see them, and how to end the collecting of one early. No payloads."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from fedclust.wire.models import Page, RoundInfo, RoundSite
from fedclust_service.domain.access import Actor, absent, require, sees_answer_details
from fedclust_service.domain.refusal import Refusal
from fedclust_service.domain.round import Addressee, Round, RoundState, Wait
from fedclust_service.domain.session import Session
from fedclust_service.domain.submission import Submission
from fedclust_service.orchestration.access_queries import round_numbered, session_for
from fedclust_service.orchestration.coordinator import Coordinator
from fedclust_service.orchestration.paging import page_size, read_cursor, row_number
from fedclust_service.orchestration.round_lifecycle import (
    decide_stored_round,
    rules_of,
    update_round,
)
from fedclust_service.orchestration.unit_of_work import UnitOfWork, commit
from fedclust_service.store import Tx


def list_rounds(
    co: Coordinator, actor: Actor, session: str, limit: int = 50, cursor: str | None = None
) -> Page[RoundInfo]:
    """List rounds by number, without payloads."""
    require(actor, "round.read")
    size = page_size(limit)
    after = read_cursor(cursor, row_number)
    now = co.clock.now()

    def work(tx: Tx) -> Page[RoundInfo]:
        found, _ = session_for(tx, actor, session)
        rows = tx.rounds.list(found.id, size + 1, after)
        items = tuple(_round_info(tx, actor, found, each, now) for each in rows[:size])
        return Page(items=items, next=str(rows[size - 1].number) if len(rows) > size else None)

    return co.store.read("round.list", work)


def get_round(co: Coordinator, actor: Actor, session: str, number: int) -> RoundInfo:
    """Return one round, without payloads."""
    require(actor, "round.read")
    now = co.clock.now()

    def work(tx: Tx) -> RoundInfo:
        found, _ = session_for(tx, actor, session)
        return _round_info(tx, actor, found, _numbered(tx, found, number), now)

    return co.store.read("round.get", work)


def close_round(co: Coordinator, actor: Actor, session: str, number: int) -> RoundInfo:
    """End a round's collecting before its deadline, if it has its quorum. Idempotent.

    For the session's analyst and for operators.
    """
    require(actor, "session.manage")

    def work(uow: UnitOfWork) -> RoundInfo:
        tx = uow.tx
        found, _ = session_for(tx, actor, session, lock=True)
        current = _numbered(tx, found, number)
        if current.state is RoundState.FAILED:
            raise Refusal("wrong-state", "The round has failed and its session has ended.")
        if current.state is RoundState.COLLECTING:
            current = update_round(uow, found, current, asked=True, actor=actor)
        if current.state is RoundState.COLLECTING:
            raise _still_open(tx, found, current)
        return _round_info(tx, actor, found, current, uow.now)

    return commit(co, "round.close", work)


def why_not_closed(co: Coordinator, actor: Actor, session: str, number: int) -> Refusal | None:
    """Return why :func:`close_round` would refuse now; None if it would end the collecting."""
    require(actor, "session.manage")
    now = co.clock.now()

    def work(tx: Tx) -> Refusal | None:
        found, _ = session_for(tx, actor, session)
        current = _numbered(tx, found, number)
        if current.state is not RoundState.COLLECTING:
            return Refusal("wrong-state", "This round does not collect answers any more.")
        decision = decide_stored_round(tx, found, current, now, asked=True)
        return _still_open(tx, found, current) if isinstance(decision, Wait) else None

    return co.store.read("round.may_close", work)


def _still_open(tx: Tx, session: Session, current: Round) -> Refusal:
    turnout, rules = tx.rounds.turnout(current.id), rules_of(session, current)
    if rules.cannot_close(turnout):
        return Refusal(
            "quorum-missing",
            f"Too few sites of the round still take part: it needs {rules.min_sites} submissions "
            f"with contents, and {turnout.nonempty + turnout.pending} are possible. No site can "
            "join a round that has begun, so this session cannot go on. Cancel it: fedclust "
            f"session cancel {session.name}. Then create another one with other sites or a smaller "
            f"min_sites: fedclust session create NEW --from {session.name}",
        )
    if current.needs_all:
        return Refusal(
            "needs-all-sites",
            "This phase waits for all its sites. "
            + (
                "Exclude those that cannot answer."
                if rules.spare(turnout)
                else f"The session needs {rules.needed} sites: no site can be excluded. Wait, or "
                "cancel the session."
            ),
        )
    return Refusal(
        "quorum-missing",
        f"{turnout.nonempty} of the {rules.quorum_of(turnout)} answers with "
        "contents that the quorum needs are stored. Wait, or move the deadline.",
    )


def _numbered(tx: Tx, session: Session, number: int) -> Round:
    found = round_numbered(tx, session, number)
    if found is None:
        raise absent("round")
    return found


def _round_info(tx: Tx, actor: Actor, session: Session, shown: Round, now: datetime) -> RoundInfo:
    answers = {each.site: each for each in tx.submissions.summaries(round_id=shown.id)}
    past = now >= shown.deadline or shown.state is not RoundState.COLLECTING
    return RoundInfo(
        session=session.name,
        number=shown.number,
        phase=shown.phase,
        state=shown.state.value,
        overdue=shown.overdue_since is not None,
        needs_all=shown.needs_all,
        opened_at=shown.opened_at,
        deadline=shown.deadline,
        closed_at=shown.closed_at,
        close_reason=shown.close_reason,
        aggregation_s=shown.aggregation_s,
        metrics=shown.metrics or {},
        sites=_sites(actor, tx.rounds.addressees(shown.id), answers, past=past),
    )


def _sites(
    actor: Actor, addressees: Sequence[Addressee], answers: dict[str, Submission], *, past: bool
) -> tuple[RoundSite, ...]:
    rows = []
    for each in addressees:
        answer = answers.get(each.site)
        details = answer if sees_answer_details(actor, each.site) else None
        rows.append(
            RoundSite(
                name=each.site,
                answered=answer is not None,
                answered_at=details.received_at if details is not None else None,
                empty=details.empty if details is not None else None,
                late=past and answer is None and not each.released,
            )
        )
    return tuple(rows)
