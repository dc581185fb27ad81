"""The exchange itself: the task that a site reads, the answer that it puts, rounds as seen."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from datetime import datetime

from fedclust.algorithms import engine
from fedclust.algorithms.base import Model, RuleViolation
from fedclust.algorithms.engine import Plan
from fedclust.wire import codec
from fedclust.wire.models import (
    Page,
    Progress,
    Receipt,
    RoundInfo,
    RoundSite,
    TaskDocument,
    TaskResponse,
)
from fedclust.wire.problems import FieldError
from fedclust.wire.submissions import SubmissionError, payload_bytes, read_head, read_submission
from fedclust_service.domain.access import Actor, absent, require, sees_answer_details
from fedclust_service.domain.refusal import Refusal, broken_rule
from fedclust_service.domain.round import (
    Addressee,
    Round,
    RoundState,
    TaskStatus,
    status_of,
)
from fedclust_service.domain.session import Participation, Session, SessionState
from fedclust_service.domain.submission import Submission
from fedclust_service.orchestration.aggregation import task_digests
from fedclust_service.orchestration.change import Change, commit
from fedclust_service.orchestration.closing import rules_of, settle
from fedclust_service.orchestration.coordinator import Coordinator
from fedclust_service.orchestration.lookup import (
    is_row_number,
    is_slug,
    page_size,
    plan_or_refuse,
    read_cursor,
    round_numbered,
    row_number,
    session_for,
    smallest_p,
)
from fedclust_service.store import AskedOf, DataDamaged, Seen, Tx


@dataclass(frozen=True)
class TaskView:
    """A site's view of its session.

    ``etag`` is strong, quoted, over all of ``response`` but ``progress``; ``version`` is what
    :meth:`Notifier.wait` takes.
    """

    response: TaskResponse
    etag: str
    version: int


@dataclass(frozen=True)
class Submitted:
    """A stored submission. ``created`` False: these bytes were stored before (200, not 201).

    ``task_etag`` stands for "answered, in this round". None where the site is to be told something
    else by now: an ETag of what it has not seen would have it wait for what is there already.
    """

    receipt: Receipt
    created: bool
    task_etag: str | None


# --- what a site is asked -------------------------------------------------------------------------


def task_view(tx: Tx, actor: Actor, seen: Seen | None, known: Collection[str] = ()) -> TaskView:
    """Return what a site should do now (sites, their own sessions).

    ``known`` are ETags that the site has; of a view with one of them, nothing but the ETag is
    told: neither the task is read nor the progress counted.
    """
    require(actor, "task.read")
    session, own = _own(seen)
    view = _view(session, own, seen.round if seen else None)
    if view.etag in known or seen is None or seen.round is None:
        return view
    current, addressee, _ = seen.round
    more: dict[str, object] = {"progress": _progress(tx, current)}
    if addressee is not None and view.response.status == TaskStatus.WORK.value:
        more["task"] = _document(current, addressee)
    return replace(view, response=view.response.model_copy(update=more))


def seen_by(
    tx: Tx, actor: Actor, session: str, number: int | None = None, *, lock: bool = False
) -> Seen | None:
    """Return what a site sees of a session and one of its rounds, the latest by default."""
    if not is_slug(session):
        return None
    # No round has the number 0.
    number = number if number is None or is_row_number(number) else 0
    return tx.exchange.seen(session, actor.name, number, lock=lock)


def _own(seen: Seen | None) -> tuple[Session, Participation]:
    if seen is None or seen.own is None:
        raise absent("session")
    return seen.session, seen.own


def _view(session: Session, own: Participation, seen: AskedOf | None) -> TaskView:
    """Return the view without its task and its progress."""
    current, addressee, answer = seen or (None, None, None)
    status = status_of(
        session.state,
        own.state,
        current.state if current is not None else None,
        addressed=addressee is not None and not addressee.released,
        answered=answer is not None,
    )
    # A deadline concerns those who are asked in the open round, and nobody else is woken by it.
    asked = status in (TaskStatus.WORK, TaskStatus.ANSWERED)
    response = TaskResponse(
        session_state=session.state.value,
        status=status.value,
        round=current.number if current is not None else None,
        deadline=current.deadline if asked and current is not None else None,
        task=None,
    )
    digest = None
    if status is TaskStatus.WORK and addressee is not None:
        digest = addressee.task_digest
    return TaskView(response, _etag(response, digest), session.version)


def _check_task(current: Round, addressee: Addressee) -> None:
    """Raise DataDamaged unless the stored task is the one that its digest stands for."""
    (digest,) = task_digests(current.common, [addressee.site_part])
    if digest != addressee.task_digest:
        raise DataDamaged("task", addressee.site)


def _document(current: Round, addressee: Addressee) -> TaskDocument:
    _check_task(current, addressee)
    return TaskDocument(
        phase=current.phase,
        digest=addressee.task_digest,
        common=codec.decode(current.common),
        site=codec.decode(addressee.site_part),
    )


def _progress(tx: Tx, current: Round | None) -> Progress | None:
    if current is None or current.state is not RoundState.COLLECTING:
        return None
    turnout = tx.rounds.turnout(current.id)
    return Progress(
        answered=turnout.answered,
        addressed=turnout.answered + turnout.pending,
        overdue=current.overdue_since is not None,
    )


def _etag(response: TaskResponse, digest: str | None) -> str:
    """Return a strong ETag over all but the progress; the digest stands for the whole task."""
    shown = {
        "session_state": response.session_state,
        "status": response.status,
        "round": response.round,
        "deadline": None if response.deadline is None else response.deadline.isoformat(),
        "task": digest,
    }
    return f'"{codec.sha256(codec.canonical_json(shown))}"'


# --- what a site answers --------------------------------------------------------------------------


def foreseen(tx: Tx, seen: Seen | None) -> Admitted | None:
    """Return what :func:`submit` need not look up again, where a submission is awaited.

    For a caller that reads the database anyway, before it has read the body. None where there is
    something to refuse, or was something stored: that takes the body's digest to say.
    """
    try:
        admitted = _admit(tx, seen, "")
    except Refusal:
        return None
    return admitted if isinstance(admitted, Admitted) else None


def submit(
    co: Coordinator,
    actor: Actor,
    session: str,
    round_number: int,
    body: bytes,
    media: str,
    seen: Admitted | None = None,
    check: Callable[[bytes], None] | None = None,
) -> Future[Submitted]:
    """Store a site's answer exactly once; checks in the order of DESIGN §3.

    The contents are read and checked between two transactions: one that refuses what can be
    refused without them, and one that refuses once more, under the session's lock, and stores.

    Parameters
    ----------
    body : bytes
        As it was sent: its SHA-256 identifies the submission.
    media : str
        ``application/json`` or the binary content type, without parameters.
    seen : Admitted, optional
        What :func:`foreseen` found. However long the body took since then, the refusals and
        their order are those of the moment at which it had arrived.
    check : callable, optional
        Looks at the body before it is parsed; raises Refusal.

    Returns
    -------
    future of Submitted
        Done once the answer is stored durably, or refused.
    """
    require(actor, "submission.put")
    digest = codec.sha256(body)
    if seen is None:

        def look(tx: Tx) -> Submitted | Admitted:
            return _admit(tx, seen_by(tx, actor, session, round_number), digest)

        now = co.store.read("submission.look", look)
        if isinstance(now, Submitted):
            done: Future[Submitted] = Future()
            done.set_result(now)
            return done
        seen = now
    plan = plan_or_refuse(seen.session)
    refused: Refusal | None = None
    payload: bytes | None = None
    try:
        # (5): parse, digest, contents. What a site declared does not change once it has joined.
        if check is not None:
            check(body)
        payload = payload_bytes(_read(plan, seen, body, media))
    except Refusal as refusal:
        refused = refusal

    def write(change: Change) -> Submitted | Refusal:
        tx = change.tx
        # What comes before (5) goes before it, also where it came about meanwhile.
        now = seen_by(tx, actor, session, round_number, lock=True)
        admitted = _admit(tx, now, digest)
        if isinstance(admitted, Submitted):
            return admitted
        found, own = admitted.session, admitted.own
        if refused is not None:
            rule = refused.errors[0].rule if refused.errors else refused.slug
            change.audit(actor, "submission.refused", found.name, round=round_number, rule=rule)
            return refused
        answer = Submission(
            session_id=found.id,
            round_id=admitted.round.id,
            site=own.site,
            phase=admitted.round.phase,
            sha256=digest,
            size=len(body),
            empty=payload is None,
            payload=payload,
            received_at=change.now,
        )
        if not tx.submissions.insert(answer):
            # Not under the lock; and if ever, the database has kept the first.
            raise Refusal("unavailable", "Send the same bytes again.", retry_after_s=1)
        change.audit(
            actor,
            "submission.stored",
            found.name,
            round=round_number,
            sha256=digest,
            size=len(body),
        )
        settled = settle(change, found, admitted.round)
        if settled.state is RoundState.FAILED:
            # The session has ended with it: there is something new to read.
            return _submitted(found, answer, settled, None, created=True)
        view = _view(found, own, AskedOf(settled, admitted.addressee, answer))
        return _submitted(found, answer, settled, view, created=True)

    return co.submissions.commit(session, write)


@dataclass(frozen=True)
class Admitted:
    """A submission that is welcome, before anybody has looked into it."""

    session: Session
    own: Participation
    round: Round
    addressee: Addressee


def _admit(tx: Tx, seen: Seen | None, digest: str) -> Submitted | Admitted:
    """Run the checks (1) to (4): stored before, session, round, addressed."""
    session, own = _own(seen)
    asked, addressee, stored = (seen and seen.round) or (None, None, None)
    if asked is not None and stored is not None:
        if stored.sha256 == digest:
            latest = tx.exchange.seen(session.name, own.site)
            view = _view(session, own, latest and latest.round)
            return _submitted(session, stored, asked, view, created=False)
        raise Refusal(
            "submission-differs",
            "Keep what was sent first: a site answers a round once. Wait for the next task.",
        )
    if session.state is not SessionState.RUNNING:
        raise Refusal(
            "wrong-state",
            "The session has not started: wait for a task."
            if session.state is SessionState.RECRUITING
            else "The session has ended: nothing more is to be sent.",
        )
    if asked is None or asked.state is not RoundState.COLLECTING:
        current = tx.rounds.latest(session.id)
        raise Refusal(
            "round-closed",
            "This round is not collecting. Read the task again and answer the current round.",
            current_round=current.number if current is not None else None,
        )
    if addressee is None or addressee.released:
        raise Refusal(
            "not-addressed",
            "This round does not ask this site for anything. Wait for a task that does.",
        )
    return Admitted(session, own, asked, addressee)


def _read(plan: Plan, seen: Admitted, body: bytes, media: str) -> Model | None:
    _check_task(seen.round, seen.addressee)
    phase = engine.phase(plan, seen.round.phase)
    try:
        try:
            head, payload = read_submission(phase, body, media)
        except SubmissionError:
            # What an answer to another phase holds is no error of this one's payload.
            head = read_head(body, media)
            if head.phase == phase.name:
                raise
    except SubmissionError as error:
        raise Refusal(
            "invalid", "Correct the fields that are named here. Nothing was stored.", error.errors
        ) from None
    if head.phase != phase.name:
        raise _other_phase(plan, head.phase)
    if head.task_digest != seen.addressee.task_digest:
        raise Refusal(
            "task-mismatch",
            "The digest is not that of this site's task in this round. Read the task again and "
            "compute the answer from it.",
        )
    if payload is None:
        return None
    task = engine.read_task(
        plan, codec.decode(seen.round.common), codec.decode(seen.addressee.site_part)
    )
    p = smallest_p(plan.policy.min_group_size, seen.own)
    try:
        mask = engine.has_features(plan, seen.own.features)
        engine.check(plan, task, payload, p=p, size_band=seen.own.size_band, mask=mask)
    except RuleViolation as violation:
        detail = "Nothing was stored. Correct what is named here."
        raise broken_rule(violation, detail, "/payload") from None
    return payload


def _other_phase(plan: Plan, name: str) -> Refusal:
    try:
        engine.phase(plan, name)
    except KeyError:
        error = FieldError(
            pointer="/phase", rule="unknown-phase", message="the method has no such phase"
        )
        return Refusal("invalid", "Name the phase as the task does.", [error])
    return Refusal(
        "task-mismatch", "This round is of another phase. Read the task again and answer that."
    )


def _submitted(
    session: Session,
    stored: Submission,
    answered: Round,
    view: TaskView | None,
    *,
    created: bool,
) -> Submitted:
    receipt = Receipt(
        session=session.name,
        site=stored.site,
        round=answered.number,
        phase=stored.phase,
        sha256=stored.sha256,
        size=stored.size,
        received_at=stored.received_at,
    )
    etag = None
    if view is not None and view.response.round == answered.number:
        etag = view.etag if view.response.status == TaskStatus.ANSWERED.value else None
    return Submitted(receipt, created, etag)


# --- rounds as seen -------------------------------------------------------------------------------


def list_rounds(
    co: Coordinator, actor: Actor, session: str, limit: int = 50, cursor: str | None = None
) -> Page:
    """List rounds by number, without payloads."""
    require(actor, "round.read")
    size = page_size(limit)
    after = read_cursor(cursor, row_number)
    now = co.clock.now()

    def work(tx: Tx) -> Page:
        found, _ = session_for(tx, actor, session)
        rows = tx.rounds.list(found.id, size + 1, after)
        items = tuple(_info(tx, actor, found, each, now) for each in rows[:size])
        return Page(items=items, next=str(rows[size - 1].number) if len(rows) > size else None)

    return co.store.read("round.list", work)


def get_round(co: Coordinator, actor: Actor, session: str, number: int) -> RoundInfo:
    """Return one round, without payloads."""
    require(actor, "round.read")
    now = co.clock.now()

    def work(tx: Tx) -> RoundInfo:
        found, _ = session_for(tx, actor, session)
        return _info(tx, actor, found, _numbered(tx, found, number), now)

    return co.store.read("round.get", work)


def close_round(co: Coordinator, actor: Actor, session: str, number: int) -> RoundInfo:
    """Close a round early (its analyst, operators); the quorum is needed. Idempotent."""
    require(actor, "session.manage")

    def work(change: Change) -> RoundInfo:
        tx = change.tx
        found, _ = session_for(tx, actor, session, lock=True)
        current = _numbered(tx, found, number)
        if current.state is RoundState.FAILED:
            raise Refusal("wrong-state", "The round has failed and its session has ended.")
        if current.state is RoundState.COLLECTING:
            current = settle(change, found, current, asked=True, actor=actor)
        if current.state is RoundState.COLLECTING:
            raise _still_open(tx, found, current)
        return _info(tx, actor, found, current, change.now)

    return commit(co, "round.close", work)


def _still_open(tx: Tx, session: Session, current: Round) -> Refusal:
    if current.needs_all:
        return Refusal(
            "needs-all-sites",
            "This phase waits for all its sites. Exclude those that cannot answer.",
        )
    turnout = tx.rounds.turnout(current.id)
    return Refusal(
        "quorum-missing",
        f"{turnout.nonempty} of the {rules_of(session, current).quorum_of(turnout)} answers with "
        "contents that the quorum needs are stored. Wait, or move the deadline.",
    )


def _numbered(tx: Tx, session: Session, number: int) -> Round:
    found = round_numbered(tx, session, number)
    if found is None:
        raise absent("round")
    return found


def _info(tx: Tx, actor: Actor, session: Session, shown: Round, now: datetime) -> RoundInfo:
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
    actor: Actor,
    addressees: Sequence[Addressee],
    answers: dict[str, Submission],
    *,
    past: bool,
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
