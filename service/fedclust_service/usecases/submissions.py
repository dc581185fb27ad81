"""The task that a site reads; its answer, checked and stored exactly once; its receipts."""

from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from fedclust import rounds
from fedclust.rounds import Plan
from fedclust.schema.errors import RuleViolation
from fedclust.schema.model import Model
from fedclust.schema.times import Timestamp
from fedclust.wire import codec
from fedclust.wire.models import Page, Receipt, RoundProgress, TaskDocument, TaskResponse
from fedclust.wire.submissions import (
    SubmissionError,
    payload_bytes,
    read_submission,
    read_submission_head,
)
from fedclust_service.domain.access import Actor, Refusal, absent, broken_rule, require, wrong_field
from fedclust_service.domain.round import (
    Addressee,
    Round,
    RoundState,
    Submission,
    TaskStatus,
    status_of,
)
from fedclust_service.domain.session import Participation, Session, SessionState
from fedclust_service.store import RoundView, SiteView, Tx
from fedclust_service.usecases.access_queries import (
    own_session,
    page_of,
    read_cursor,
    row_number,
    show,
)
from fedclust_service.usecases.coordinator import Coordinator
from fedclust_service.usecases.definitions import plan_or_refuse, smallest_p
from fedclust_service.usecases.principals import read_as_site
from fedclust_service.usecases.round_lifecycle import check_tasks, update_round
from fedclust_service.usecases.unit_of_work import UnitOfWork, reads


@dataclass(frozen=True)
class TaskView:
    """A site's view of its session.

    ``digest`` covers all of ``response`` but ``progress``. ``version`` is the session's, for
    :meth:`Notifier.wait`.
    """

    response: TaskResponse
    digest: str
    version: int


def current_task(
    co: Coordinator,
    token: str,
    session: str,
    known: Collection[str],
    identified: Callable[[Actor], None],
    *,
    recorded: bool,
) -> TaskView:
    """Authenticate a site and return what it should do now, as :func:`task_view` does.

    ``identified`` gets the caller before its role is checked; ``recorded`` is that of
    :func:`read_as_site`.
    """

    def look(tx: Tx, actor: Actor, seen: SiteView | None) -> TaskView:
        identified(actor)
        return task_view(tx, actor, seen, known)

    return read_as_site(co, token, "task.view", session, None, look, recorded=recorded)


def task_view(tx: Tx, actor: Actor, seen: SiteView | None, known: Collection[str] = ()) -> TaskView:
    """Return what a site should do now in its own session.

    ``known`` are the digests of views that the site has. A view with one of them has neither task
    nor progress.
    """
    require(actor, "task.read")
    session, own = own_view(seen)
    view = view_without_task(session, own, seen.round if seen else None)
    if view.digest in known or seen is None or seen.round is None:
        return view
    current, addressee, _ = seen.round
    more: dict[str, object]
    if addressee is not None and view.response.status == TaskStatus.WORK.value:
        more = {"task": _document(current, addressee)}
    else:
        more = {"progress": _progress(tx, current)}
    return replace(view, response=view.response.model_copy(update=more))


def own_view(seen: SiteView | None) -> tuple[Session, Participation]:
    """Return a site's session and participation; Refusal ``not-found`` if it has none."""
    if seen is None or seen.own is None:
        raise absent("session")
    return seen.session, seen.own


def view_without_task(session: Session, own: Participation, seen: RoundView | None) -> TaskView:
    """Return a site's view with its digest, but without task and progress."""
    current, addressee, answer = seen or (None, None, None)
    status = status_of(
        session.state,
        own.state,
        current.state if current is not None else None,
        addressed=addressee is not None and not addressee.released,
        answered=answer is not None,
    )
    # Only sites of the open round see its deadline, so that moving it wakes no other site.
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
    return TaskView(response, _digest(response, digest), session.version)


def _document(current: Round, addressee: Addressee) -> TaskDocument:
    check_tasks(current, [addressee])
    return TaskDocument(
        phase=current.phase,
        digest=addressee.task_digest,
        common=codec.decode(current.common),
        site=codec.decode(addressee.site_part),
    )


def _progress(tx: Tx, current: Round) -> RoundProgress | None:
    if current.state is not RoundState.COLLECTING:
        return None
    turnout = tx.rounds.turnout(current.id)
    return RoundProgress(
        answered=turnout.answered,
        addressed=turnout.answered + turnout.pending,
        overdue=current.overdue_since is not None,
    )


def _digest(response: TaskResponse, digest: str | None) -> str:
    """Return a SHA-256 of all but the progress; the digest stands for the task."""
    shown = {**response.model_dump(mode="json", exclude={"progress"}), "task": digest}
    return codec.sha256(codec.canonical_json(shown))


@dataclass(frozen=True)
class Body:
    """A submission's body as it was sent. ``media`` is its content type without parameters.

    ``check`` runs before it is parsed and raises Refusal.
    """

    content: bytes
    media: str
    check: Callable[[bytes], None] | None = None


@dataclass(frozen=True)
class Submitted:
    """A stored submission. ``created`` is False if these bytes were stored before (200, not 201).

    ``view`` is "answered, in this round", without progress. None if the site's view has changed
    since: with its digest the site would wait for something that is there already.
    """

    receipt: Receipt
    created: bool
    view: TaskView | None


@dataclass(frozen=True)
class Admitted:
    """A submission that passed all checks that do not need its body."""

    session: Session
    own: Participation
    round: Round
    addressee: Addressee


def admit(
    co: Coordinator, token: str, session: str, number: int, identified: Callable[[Actor], None]
) -> tuple[Actor, Admitted | None]:
    """Authenticate a site before its body is read, and run the checks that need no body.

    None if they fail or an answer is stored: which of both it is, only the body's digest decides.
    ``identified`` gets the caller before its role is checked.
    """

    def look(tx: Tx, actor: Actor, seen: SiteView | None) -> tuple[Actor, Admitted | None]:
        identified(actor)
        require(actor, "submission.put")
        try:
            admitted = _admit(tx, seen, "")
        except Refusal:
            return actor, None
        return actor, admitted if isinstance(admitted, Admitted) else None

    return read_as_site(co, token, "submission.look", session, number, look)


def submit(
    co: Coordinator,
    actor: Actor,
    session: str,
    number: int,
    body: Body,
    seen: Admitted | None = None,
) -> Future[Submitted]:
    """Store a site's answer exactly once; in the order of checks of docs/protocol.md.

    The body is read and checked between two transactions: the first refuses what can be refused
    without the body, the second does so again under the session's lock, and stores. ``seen`` is the
    result of :func:`admit`; the refusals and their order are still those of the moment at which the
    body had arrived. The future is done once the answer is stored durably, or refused.
    """
    require(actor, "submission.put")
    digest = codec.sha256(body.content)
    if seen is None:
        found = co.store.read(
            "submission.look",
            lambda tx: _admit(tx, tx.site_views.by_name(session, actor.name, number), digest),
        )
        if isinstance(found, Submitted):
            done: Future[Submitted] = Future()
            done.set_result(found)
            return done
        seen = found
    payload: bytes | Refusal | None
    plan = plan_or_refuse(seen.session)
    try:
        # (5): parse, digest, contents. What a site declared does not change once it has joined.
        payload = payload_bytes(_read_payload(plan, seen, body))
    except Refusal as refusal:
        payload = refusal
    size = len(body.content)

    def write(uow: UnitOfWork) -> Submitted | Refusal:
        # Checks (1) to (4) again: the round may have stopped collecting since.
        try:
            view = uow.tx.site_views.by_name(session, actor.name, number, lock=True)
            admitted = _admit(uow.tx, view, digest)
        except Refusal as refusal:
            # Nothing is to be undone, so the rest of the batch is stored with it.
            return refusal
        if isinstance(admitted, Submitted):
            return admitted
        return _store(uow, actor, admitted, digest, size, payload)

    return co.submissions.commit(session, write)


def _store(
    uow: UnitOfWork,
    actor: Actor,
    admitted: Admitted,
    digest: str,
    size: int,
    payload: bytes | Refusal | None,
) -> Submitted | Refusal:
    """Store a submission, or record why it is refused."""
    session, current = admitted.session, admitted.round
    if isinstance(payload, Refusal):
        rule = payload.errors[0].rule if payload.errors else payload.slug
        uow.audit(actor, "submission.refused", session.name, round=current.number, rule=rule)
        return payload
    answer = Submission(
        session_id=session.id,
        round_id=current.id,
        site=admitted.own.site,
        phase=current.phase,
        sha256=digest,
        size=size,
        empty=payload is None,
        payload=payload,
        received_at=uow.now,
    )
    if not uow.tx.submissions.insert(answer):
        # The lock excludes this; if it happens, the database has kept the first answer.
        raise Refusal("unavailable", "Send the same bytes again.", retry_after_s=1)
    uow.audit(
        actor,
        "submission.stored",
        session.name,
        round=current.number,
        sha256=digest,
        size=size,
    )
    updated = update_round(uow, session, current)
    view = None
    if updated.state is not RoundState.FAILED:  # the session ends with a failed round
        asked = RoundView(updated, admitted.addressee, answer)
        view = view_without_task(session, admitted.own, asked)
    return _submitted(session, answer, updated, view, created=True)


def _admit(tx: Tx, seen: SiteView | None, digest: str) -> Submitted | Admitted:
    """Run the checks (1) to (4): stored before, session, round, addressed."""
    session, own = own_view(seen)
    asked, addressee, stored = (seen and seen.round) or (None, None, None)
    if asked is not None and stored is not None:
        if stored.sha256 == digest:
            latest = tx.site_views.by_name(session.name, own.site)
            view = view_without_task(session, own, latest and latest.round)
            return _submitted(session, stored, asked, view, created=False)
        raise Refusal(
            "submission-differs",
            "This site has answered the round with other contents, which stay. Wait for the next "
            "task.",
        )
    if not session.state.under_way:
        raise Refusal(
            "wrong-state",
            "The session has not started: wait for a task."
            if session.state is SessionState.RECRUITING
            else "The session has ended: send no more answers.",
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
            "not-addressed", "This round does not address this site. Wait for the next task."
        )
    return Admitted(session, own, asked, addressee)


def _read_payload(plan: Plan, seen: Admitted, body: Body) -> Model | None:
    """Parse and check a body; Refusal for whatever is wrong with it."""
    if body.check is not None:
        body.check(body.content)
    check_tasks(seen.round, [seen.addressee])
    phase = rounds.phase(plan, seen.round.phase)
    try:
        try:
            head, payload = read_submission(phase, body.content, body.media)
        except SubmissionError:
            # A payload of another phase is no error in a payload of this one.
            head = read_submission_head(body.content, body.media)
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
    task = rounds.read_task(
        plan, codec.decode(seen.round.common), codec.decode(seen.addressee.site_part)
    )
    p = smallest_p(plan.policy.min_group_size, seen.own)
    try:
        mask = plan.has_features(seen.own.features)
        rounds.check(plan, task, payload, p=p, size_band=seen.own.size_band, mask=mask)
    except RuleViolation as violation:
        detail = "Nothing was stored. Correct what is named here."
        raise broken_rule(violation, detail, "/payload") from None
    return payload


def _other_phase(plan: Plan, name: str) -> Refusal:
    try:
        rounds.phase(plan, name)
    except KeyError:
        why, detail = "the method has no such phase", "Send the phase that the task names."
        return wrong_field("/phase", "unknown-phase", why, detail)
    return Refusal(
        "task-mismatch", "This round has another phase. Read the task again and answer it."
    )


def _submitted(
    session: Session, stored: Submission, answered: Round, view: TaskView | None, *, created: bool
) -> Submitted:
    receipt = show(Receipt, stored, session=session.name, round=answered.number)
    if view is not None and (
        view.response.round != answered.number or view.response.status != TaskStatus.ANSWERED.value
    ):
        view = None
    return Submitted(receipt, created, view)


class ReceiptEntry(Model):
    """One of the site's submissions. ``scrubbed``: its contents are deleted; it may be empty."""

    round: int
    phase: str
    received_at: Timestamp
    size: int
    sha256: str
    empty: bool
    scrubbed: bool


@reads("receipt.read", "receipt.list")
def list_receipts(
    tx: Tx, actor: Actor, session: str, limit: int = 50, cursor: str | None = None
) -> Page[ReceiptEntry]:
    """List the site's submissions in a session by round, without payloads (sites)."""
    after = read_cursor(cursor, row_number)
    found, _ = own_session(tx, actor, session)
    rows = tx.submissions.receipts(found.id, actor.name, limit + 1, after)
    return page_of(rows, limit, "round", _entry)


def _entry(row: Any) -> ReceiptEntry:
    return show(ReceiptEntry, row, scrubbed=not (row.kept or row.empty))
