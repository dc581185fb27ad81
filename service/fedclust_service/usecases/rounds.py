"""Rounds as people see them, and how to end the collecting of one early. No payloads."""

from collections.abc import Sequence

from fedclust.rounds.collecting import Wait
from fedclust.wire.models import Page, RoundInfo, RoundSite
from fedclust_service.domain.access import Actor, Refusal, absent, sees_answer_details
from fedclust_service.domain.round import Addressee, Round, RoundState, Submission
from fedclust_service.domain.session import Session
from fedclust_service.store import Tx
from fedclust_service.usecases.access_queries import (
    page_of,
    read_cursor,
    row_number,
    session_for,
    show,
)
from fedclust_service.usecases.round_lifecycle import decide_stored_round, rules_of, update_round
from fedclust_service.usecases.unit_of_work import UnitOfWork, reads, writes


@reads("round.read", "round.list")
def list_rounds(
    tx: Tx, actor: Actor, session: str, limit: int = 50, cursor: str | None = None
) -> Page[RoundInfo]:
    """List rounds by number, without payloads."""
    after = read_cursor(cursor, row_number)
    found, _ = session_for(tx, actor, session)
    rows = tx.rounds.list(found.id, limit + 1, after)
    return page_of(rows, limit, "number", lambda each: _round_info(tx, actor, found, each))


@reads("round.read", "round.get")
def get_round(tx: Tx, actor: Actor, session: str, number: int) -> RoundInfo:
    """Return one round, without payloads."""
    found, _ = session_for(tx, actor, session)
    return _round_info(tx, actor, found, _numbered(tx, found, number))


@writes("session.manage", "round.close")
def close_round(uow: UnitOfWork, actor: Actor, session: str, number: int) -> RoundInfo:
    """End a round's collecting before its deadline, if it has its quorum. Idempotent.

    For the session's analyst and for operators.
    """
    tx = uow.tx
    found, _ = session_for(tx, actor, session, lock=True)
    current = _numbered(tx, found, number)
    if current.state is RoundState.FAILED:
        raise Refusal("wrong-state", "The round has failed and its session has ended.")
    if current.state is RoundState.COLLECTING:
        current = update_round(uow, found, current, asked=True, actor=actor)
    if current.state is RoundState.COLLECTING:
        raise _still_open(tx, found, current)
    return _round_info(tx, actor, found, current)


@reads("session.manage", "round.may_close")
def why_not_closed(tx: Tx, actor: Actor, session: str, number: int) -> Refusal | None:
    """Return why :func:`close_round` would refuse now; None if it would end the collecting."""
    found, _ = session_for(tx, actor, session)
    current = _numbered(tx, found, number)
    if current.state is not RoundState.COLLECTING:
        return Refusal("wrong-state", "This round does not collect answers any more.")
    decision = decide_stored_round(tx, found, current, asked=True)
    return _still_open(tx, found, current) if isinstance(decision, Wait) else None


def _still_open(tx: Tx, session: Session, current: Round) -> Refusal:
    turnout, rules = tx.rounds.turnout(current.id), rules_of(session, current)
    if rules.cannot_close(turnout):
        return Refusal(
            "quorum-missing",
            f"Too few sites of the round still take part: it needs {rules.policy.min_sites} "
            f"submissions with contents, and {turnout.nonempty + turnout.pending} are possible. No "
            "site can join a round that has begun, so this session cannot go on. Cancel it: "
            "fedclust "
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
                else f"The session needs {rules.policy.sites_needed} sites: no site can be "
                "excluded. Wait, or cancel the session."
            ),
        )
    return Refusal(
        "quorum-missing",
        f"{turnout.nonempty} of the {rules.quorum_of(turnout)} answers with "
        "contents that the quorum needs are stored. Wait, or move the deadline.",
    )


def _numbered(tx: Tx, session: Session, number: int) -> Round:
    found = tx.rounds.get(session.id, number)
    if found is None:
        raise absent("round")
    return found


def _round_info(tx: Tx, actor: Actor, session: Session, shown: Round) -> RoundInfo:
    answers = {each.site: each for each in tx.submissions.summaries(round_id=shown.id)}
    past = tx.now >= shown.deadline or shown.state is not RoundState.COLLECTING
    return show(
        RoundInfo,
        shown,
        session=session.name,
        overdue=shown.overdue_since is not None,
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
