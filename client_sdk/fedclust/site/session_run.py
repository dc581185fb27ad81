"""One session at one site, from joining to labels.

What makes a round safe is the order in which it is answered: the task's digest is recomputed, the
answer computed and checked, its bytes and the memory stored (``journal``), then sent, then its
receipt or refusal stored with its line in the ledger. After a crash, the next run sends the stored
bytes. Counts of outcomes are stored as soon as their noise is drawn, before anybody sees them.

:class:`SessionAnswers` is what a site does however its tasks arrive, :class:`SessionRun` takes part
over HTTPS.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, TypeAlias

from fedclust.client import Client
from fedclust.data.site_data import session_rows
from fedclust.definition import canonical
from fedclust.result.session_result import KnownSite, SessionResult, read_result
from fedclust.rounds import outcomes
from fedclust.schema.states import ENDED
from fedclust.schema.task import Count
from fedclust.site.allowance import Place
from fedclust.site.approvals import Approvals
from fedclust.site.charges import Charges
from fedclust.site.cohorts import CohortStore
from fedclust.site.compute import (
    accepted_plan,
    compute_answer,
    count_persons,
    first_task,
    refuse_foreign,
)
from fedclust.site.consent import ConsentRequest
from fedclust.site.journal import Journal, SessionRecord, SubmissionOutcome, WrittenAnswer
from fedclust.site.ledger import ACCEPTED, REFUSED, Ledger
from fedclust.site.prepare import SiteRows, consent_request, declare, prepare, with_points
from fedclust.site.progress import Preview, Progress, as_preview, waiting, without_counts
from fedclust.site.settings import read_settings
from fedclust.site.state import SiteState
from fedclust.site.terminal import decide_consent
from fedclust.wire import errors, models
from fedclust.wire.codec import sha256
from fedclust.wire.submissions import BINARY

Clock: TypeAlias = Callable[[], datetime]
#: A coordinator restored from a backup asks for what it has lost: it gets the same bytes, this
#: often.
_RESENDS = 3
#: How long a receipt may be kept back to come with the next task. A round of sites that answer fast
#: then takes one request instead of two; in others the receipt is stored this much later.
_NEXT_WAIT_S = 2
#: Refusals after which the session continues: the body has left, and the next task is asked for.
_MOVED_ON = (errors.RoundClosed, errors.WrongState, errors.NotAddressed)
#: Refusals of the body itself: recorded as sent, then raised.
_REFUSED = (
    errors.Invalid,
    errors.DisclosureRefused,
    errors.TaskMismatch,
    errors.SubmissionDiffers,
)


class SessionAnswers:
    """A site's consent and answers in one session, prepared from its rows; nothing is stored yet.

    Parameters
    ----------
    state : SiteState
    place : Place
    session : str
    info : SessionInfo
        As the coordinator describes it.
    given : SiteRows
    now : callable
        The clock.

    Attributes
    ----------
    request : ConsentRequest
    participation : Participation
        What the site declares when it joins.
    prepared : Prepared
        What the site computes from.
    rows : Table or LabelRows
        The rows to label.
    media : str
        The form in which answers are sent.
    agreed
        The codes of terms to which a person has consented during this call.
    ask, report
        As ``ask`` and ``on_progress`` of :meth:`fedclust.Site.participate`.
    asking
        Entered while a person is asked.

    Raises
    ------
    DataError, DisclosureError, ProtocolError, StateError
    """

    def __init__(
        self,
        state: SiteState,
        place: Place,
        session: str,
        info: models.SessionInfo,
        given: SiteRows,
        now: Clock = lambda: datetime.now(UTC),
    ) -> None:
        self.state, self.session, self.info, self.now = state, session, info, now
        self.ledger, self.approvals = Ledger(state), Approvals(state)
        self.store, self.charges = CohortStore(state), Charges(state)
        self.media = BINARY
        self.agreed: set[str] = set()
        self.ask: Callable[[Preview], bool] | None = None
        self.asking: Callable[[], AbstractContextManager[None]] = nullcontext
        self.report: Callable[[Progress], None] = lambda _progress: None
        self.plan = accepted_plan(session, info)
        self.journal = Journal(state, *place, session, info.definition_sha256)
        record = self.journal.record
        joined = None if record is None else record.participation
        invited = any(each.state == "invited" for each in info.sites if each.name == place[1])
        settings = read_settings(state.directory)
        given = given.with_group_size(settings, None if invited else joined)
        used = given
        if joined is not None and joined.table_id is not None:
            # Groups that were formed for this session, also separate ones, are used again. Once it
            # has answers, other rows are refused below.
            recognised = bool(self.journal.answers) or joined.other_persons
            used = replace(
                given, cohort=joined.table_id, separate_groups=None, recognised=recognised
            )
        self.rows = session_rows(
            self.plan, given.source, person=given.person, id_column=given.id_column
        )
        p = max(self.plan.policy.min_group_size, given.min_group_size or 0)
        try:
            prepared = prepare(self.store, self.plan, used, self.rows, p, now())
        except errors.PersonsRefused:
            # If the session has begun, its data have changed, which is a clearer message.
            self.journal.refuse_other_data("")
            raise
        request = consent_request(*place, info, self.plan, prepared, given, joined, settings)
        self.request = with_points(request, self.charges, prepared, None if invited else joined)
        self.participation = declare(self.request, prepared, given)
        if record is not None:
            prepared = prepared.with_within(record.within)
        self.prepared, self.data_digest = prepared, prepared.digest(self.rows)

    def check(self) -> None:
        """Raise StateError where the state is damaged, or the session began with other rows."""
        self.state.check()
        self.ledger.check()
        self.journal.refuse_other_data(self.data_digest, self.participation)

    def enter(
        self, consent: Callable[[ConsentRequest], bool] | bool | None, *, invited: bool
    ) -> tuple[models.Participation, bool]:
        """Consent, and store the groups, the charge and the record, unless an earlier run has.

        Parameters
        ----------
        consent : callable, bool or None
            As in :meth:`fedclust.Site.participate`.
        invited : bool
            Whether this site has not joined yet.

        Returns
        -------
        participation : Participation
            What was recorded.
        fresh : bool
            Whether it was recorded now.

        Raises
        ------
        Overtaken
            Another process has changed the groups that this site was about to use; nothing of
            them has left.
        """
        record, wanted = self.journal.record, self.participation
        approval = self.approvals.require(self.request)
        if record is not None:
            joined = record.participation
            kept = ["heads", "sdk_version", "methods", "engine"]
            kept += [] if invited else ["points_short"]
            same = (
                wanted.model_copy(update={name: getattr(joined, name) for name in kept}) == joined
            )
            if not same and not invited:
                raise errors.StateError(
                    "this site joined with another min_group_size or size band; give the same "
                    "rows and options, or leave the session (fedclust leave)"
                )
            record = record if same else None
        fresh = record is None
        if record is None:
            if self.request.approval_code not in self.agreed:
                with self.asking():
                    decide_consent(self.request, consent, approved=approval is not None)
                self.agreed.add(self.request.approval_code)
            record = SessionRecord(
                consented_at=self.now(),
                participation=wanted,
                within=tuple(self.prepared.data.within.tolist()),
            )
        # The groups and their releases, and the points, are stored before anything leaves.
        with self.state.write():
            if self.prepared.draft is not None:
                self.store.keep(self.prepared.draft)
            if invited and self.request.charged is not None:
                self.charges.charge(*self.request.charged, self.now())
            if fresh:
                self.journal.write_record(record)
        return record.participation, fresh

    # --- one round --------------------------------------------------------------------------------

    def answer_to(
        self, number: int, document: models.TaskDocument, answered: Callable[[], Iterable[int]]
    ) -> WrittenAnswer:
        """Return the stored answer to a task, computed now or before.

        Parameters
        ----------
        number : int
        document : TaskDocument
        answered : callable
            Returns the numbers of the rounds that this site has answered, as the coordinator knows.

        Raises
        ------
        TaskRefused
            The task breaks a rule, or asks something else than what this site answered.
        """
        refuse_foreign(self.plan, self.session, number, document)
        answer = self.journal.answers.get(number)
        if answer is None:
            if number - 1 > max(self.journal.answers, default=0):
                # Rounds in between were closed without this site, or answered from elsewhere.
                self.refuse_gaps(answered())
            self.report(Progress("computing", number, document.phase))
            return self.write(number, document)
        if answer.task_digest != document.digest:
            message = f"round {number} asks something else than what this site answered"
            raise errors.TaskRefused(self.session, "task-answered", message)
        return answer

    def refuse_gaps(self, answered: Iterable[int]) -> None:
        """Refuse to go on with a journal that lacks a round which this site has answered."""
        for number in answered:
            if number not in self.journal.answers:
                raise errors.StateDamaged(
                    f"this site answered round {number}, and {self.state.path} does not hold "
                    "it: use the state directory it was answered from (FEDCLUST_STATE_DIR), or "
                    "leave the session (fedclust leave)"
                )

    def write(self, number: int, document: models.TaskDocument) -> WrittenAnswer:
        """Compute an answer, ask about it, and store it; ConsentDeclined if it may not be sent."""
        if document.phase == outcomes.NAME:
            return self.draw(number, document)
        answer = self.compute(number, document)
        self.confirm(answer)
        # Again: computing and asking take time.
        self.approvals.require(self.request)
        self.journal.commit(answer)
        return answer

    def draw(self, number: int, document: models.TaskDocument) -> WrittenAnswer:
        """Count outcomes with noise, store the answer, and ask about it.

        In this order: whoever saw the counts before they are stored could stop, and choose among
        draws. If the answer is no, the same counts are asked about in the next run.
        """
        draws = self.may_draw()
        count = count_persons(self.request, self.prepared.counted) if draws else None
        answer = self.compute(number, document, count)
        self.approvals.require(self.request)
        with self.state.write():
            if draws and not self.request.protection_none:
                self.charges.require(self.prepared.table_id or "", self.request.charge_key)
            self.journal.commit(answer)
        self.confirm(answer)
        self.approvals.require(self.request)
        return answer

    def may_draw(self) -> bool:
        """Return whether this site answers about outcomes: it joined to, and the points are open.

        They are not open if the state was restored since: the noise may have been drawn before.
        """
        record = self.journal.record
        if record is None or record.participation.points_short:
            return False
        if self.plan.lacks_outcomes(record.participation.features):
            return False
        return self.request.protection_none or not self.charges.refusal(
            self.prepared.table_id or "", self.request.charge_key
        )

    def confirm(self, answer: WrittenAnswer) -> None:
        """Ask whether an answer may be sent, if somebody is to be asked; ConsentDeclined if not."""
        with self.asking():
            if self.ask is not None and not self.ask(as_preview(answer)):
                raise errors.ConsentDeclined(
                    f"round {answer.round} was not sent; to decide again, run the same command"
                )

    def compute(
        self, number: int, document: models.TaskDocument, count: Count | None = None
    ) -> WrittenAnswer:
        """Compute and check an answer; nothing is written or sent."""
        memory = dict(self.journal.memory)
        computed = compute_answer(
            self.request, self.prepared.data, number, document, memory, self.media, count
        )
        return WrittenAnswer(
            coordinator=self.request.coordinator,
            site=self.request.site,
            session=self.session,
            round=number,
            task_digest=document.digest,
            media=self.media,
            data_digest=self.data_digest,
            written_at=self.now(),
            **dict(computed),
        )

    def settle(
        self, answer: WrittenAnswer, outcome: SubmissionOutcome, audit_head: str | None = None
    ) -> None:
        """Store the outcome of an answer with its line in the ledger; once, if it is the same."""
        if self.journal.outcomes.get(answer.round) != outcome:
            with self.state.write():
                self.ledger.append(answer.entry(outcome) | {"audit_head": audit_head})
                self.journal.settle(answer.round, outcome)

    # --- the end ----------------------------------------------------------------------------------

    def labelled(self, document: models.ResultDocument) -> SessionResult:
        """Return a result with the labels of this site's rows; ProtocolError for another's."""
        if document.provenance.definition_sha256 != self.request.definition_sha256:
            raise errors.ProtocolError("the result is of another definition")
        request = self.request
        result = read_result(document, request.definition, request.site)
        own = KnownSite(request.features, self.journal.memory or None)
        return result.with_rows({request.site: self.rows}, {request.site: own})


def info_of(definition: models.Definition, created_by: str = "") -> models.SessionInfo:
    """Return a session that no coordinator describes: it runs, and its definition is known."""
    return models.SessionInfo(
        name=definition.name,
        state="running",
        created_by=created_by,
        created_at=datetime.now(UTC),
        definition=definition,
        definition_sha256=sha256(canonical(definition)),
        sites=(),
    )


class SessionRun(SessionAnswers):
    """One session at one site, during one call of :meth:`fedclust.Site.participate`."""

    def __init__(
        self, client: Client, state: SiteState, site: str, session: str, given: SiteRows, now: Clock
    ) -> None:
        place, info = (client.url, site), client.session(session)
        super().__init__(state, place, session, info, given, now)
        self.client = client
        self.n_sent: Counter[int] = Counter()

    # --- from joining to labels -------------------------------------------------------------------

    def complete(self, consent: Callable[[ConsentRequest], bool] | bool | None) -> SessionResult:
        """Take part until the session ends; see :meth:`fedclust.Site.participate`.

        Raises
        ------
        Overtaken
            Another process has changed the groups that this site was about to use; nothing of
            them has left.
        """
        self.check()
        if self.journal.answers:
            again = ", ".join(str(each.round) for each in self.journal.unsettled())
            note = f"the same bytes are sent again for round {again}" if again else ""
            note = note or "nothing is sent again"
            self.report(Progress("resumed", self.info.round, note=note))
        for answer in self.journal.unsettled():
            self.approvals.require(self.request)
            if answer.phase == outcomes.NAME:
                self.confirm(answer)
            self.send(answer, again=True)
        declared = self.join(consent) if self.info.state not in ENDED else None
        task, etag = self.client.task(self.session)
        while True:
            if task is not None and task.status in ("ended", "left"):
                self.charges.give_back(self.request.charge_key, self.now(), ended=True)
            if task is not None and task.status == "ended":
                return self.result(task)
            if task is not None and task.status == "left":
                raise self.left()
            if task is not None and task.status == "work":
                task, etag = self.answer(task)
                if task is not None:
                    continue
            else:
                # A withdrawal ends a wait too, after at most one long poll.
                self.approvals.require(self.request)
                if task is not None and task.status == "invited" and declared is not None:
                    # The coordinator was restored from a copy that lacks this site's joining.
                    self.send_join(declared)
                    self.report(Progress("joined"))
                elif task is not None:
                    self.report(waiting(task))
            task, known = self.client.task(self.session, etag)
            # If nothing changed, the next request is answered at once, with the progress.
            etag = None if task is None else known

    def join(self, consent: Callable[[ConsentRequest], bool] | bool | None) -> models.Participation:
        """Consent, record it and join, except for steps that an earlier run has done.

        Returns what was declared.
        """
        state = next((s.state for s in self.info.sites if s.name == self.request.site), "invited")
        if state in ("left", "excluded", "refused"):
            raise self.left()
        invited = state == "invited"
        if not invited:
            self.refuse_gaps(self.answered())
        declared, fresh = self.enter(consent, invited=invited)
        # Also where this site has joined before: its store may have been restored since.
        try:
            self.send_join(declared)
        except errors.CoordinatorError as refused:
            if invited or isinstance(refused, errors.TableChanged):
                table_id, key = self.prepared.table_id, self.request.charge_key
                self.charges.note_refusal(table_id, key, refused, self.now())
            raise
        if invited or fresh:
            self.report(Progress("joined"))
        return declared

    def send_join(self, declared: models.Participation) -> None:
        """Join with the table's heads; again with all of them if the coordinator needs them.

        Another process of this site may store a change and join with it at the same time: then the
        heads that were sent are behind, and those of the state are sent.
        """
        table_id, every = self.prepared.table_id, False
        # After the charge, if there is one.
        heads = None if table_id is None else self.store.heads(table_id)
        request = self.request
        table = {"coordinator": request.coordinator, "site": request.site, "table_id": table_id}
        while True:
            try:
                self.client.join(self.session, declared.model_copy(update={"heads": heads}))
            except (errors.TableHeadsNeeded, errors.TableChanged) as refused:
                every = every or isinstance(refused, errors.TableHeadsNeeded)
                stored = table_id and self.store.heads(table_id, every=every)
                if not stored or stored == heads:
                    if isinstance(refused, errors.TableChanged):
                        self.ledger.enter_table(REFUSED, table, self.session, heads, self.now())
                    raise
                heads = stored
            else:
                self.ledger.enter_table(ACCEPTED, table, self.session, heads, self.now())
                return

    def answered(self) -> Iterator[int]:
        """Yield the numbers of the rounds that this site has answered, as the coordinator knows."""
        for past in self.client.rounds(self.session):
            if any(each.answered and each.name == self.request.site for each in past.sites):
                yield past.number

    def left(self) -> errors.SiteLeft:
        info = self.client.session(self.session)
        own = next((s for s in info.sites if s.name == self.request.site), None)
        state = "left" if own is None else own.state
        message = "an analyst or operator excluded this site" if state == "excluded" else "left"
        if own is not None and own.refused_task is not None:
            message = f"this site refused a task ({own.refused_task})"
        return errors.SiteLeft(self.session, message, state)

    def result(self, task: models.TaskResponse) -> SessionResult:
        if task.session_state != "completed":
            info = self.client.session(self.session)
            if task.session_state == "cancelled":
                raise errors.SessionCancelled(self.session, "cancelled", info.stopped_because)
            why = f"{task.session_state}: {info.failure or info.stopped_because}"
            raise errors.SessionFailed(self.session, why, info.failure)
        result = self.labelled(self.client.result_document(self.session))
        self.report(Progress("done"))
        return result

    # --- one round --------------------------------------------------------------------------------

    def answer(self, task: models.TaskResponse) -> tuple[models.TaskResponse | None, str | None]:
        """Answer a task, or refuse it; return the next task, if it is there, and the ETag."""
        if task.round is None:
            raise errors.ProtocolError("the coordinator asks for work without a round")
        self.approvals.require(self.request)
        try:
            return self.answer_round(task.round, task.task)
        except errors.TaskRefused as refused:
            # Otherwise the round would wait for this site. A session that ended does not.
            with suppress(errors.CoordinatorError):
                self.client.refuse(self.session, task.round, refused.rule)
            raise

    def answer_round(
        self, number: int, document: models.TaskDocument | None
    ) -> tuple[models.TaskResponse | None, str | None]:
        """Answer the task of a round; TaskRefused where it breaks a rule."""
        if document is None:
            raise errors.TaskRefused(self.session, "task", f"round {number} has none")
        answer = self.answer_to(number, document, self.answered)
        if self.n_sent[number] > _RESENDS:
            raise errors.TaskRefused(self.session, "task-answered", f"round {number} asks again")
        return self.send(answer, again=number in self.journal.outcomes)

    def send(
        self, answer: WrittenAnswer, *, again: bool
    ) -> tuple[models.TaskResponse | None, str | None]:
        """Send a written answer, and store the outcome with its line in the ledger.

        Returns the next task, if it came with the receipt, and the ETag to wait with.
        """
        self.n_sent[answer.round] += 1
        receipt, following, etag, refusal = None, None, None, None
        try:
            receipt, following, etag = self.client.submit(
                self.session, answer.round, answer.body, answer.media, _NEXT_WAIT_S
            )
            if not _acknowledges(receipt, answer):
                raise errors.ProtocolError(f"the receipt of round {answer.round} is another's")
        except (*_MOVED_ON, *_REFUSED) as error:
            refusal = error
        outcome = SubmissionOutcome(receipt=receipt, refused=refusal.slug if refusal else None)
        self.settle(answer, outcome, self.client.audit_head)
        if isinstance(refusal, _REFUSED):
            raise refusal
        event: Any = "refused" if refusal else "sent again" if again else "sent"
        self.report(Progress(event, answer.round, answer.phase))
        return following, etag

    # --- preview ----------------------------------------------------------------------------------

    def preview(self) -> Preview:
        """Return the next submission; see :meth:`fedclust.Site.preview`."""
        self.journal.refuse_other_data(self.data_digest, self.participation)
        for written in self.journal.unsettled():
            return as_preview(written, "written before, without a receipt: it is sent again")
        task, _ = self.client.task(self.session)
        if task is None or task.status in ("ended", "left"):
            note = "this site has nothing more to send in this session"
            return Preview(session=self.session, note=note)
        if task.status == "work" and task.task is not None and task.round is not None:
            refuse_foreign(self.plan, self.session, task.round, task.task)
            known = self.journal.answers.get(task.round)
            if known is not None:
                return as_preview(known, "sent before; the coordinator asks for it again")
            if task.task.phase == outcomes.NAME:
                return self.preview_outcomes(task.round, task.task)
            return as_preview(self.compute(task.round, task.task))
        if task.session_state != "recruiting":
            note = "nothing to answer now: the round waits for other sites"
            if task.status == "invited":
                note = "the session is running: only sites that have joined see its task"
            return Preview(session=self.session, note=note)
        roster = [s.name for s in self.info.sites if s.state in ("invited", "joined")]
        document = first_task(self.request, roster)
        answer = self.compute(1, document)
        return as_preview(answer, "if all the sites invited so far take part")

    def preview_outcomes(self, number: int, document: models.TaskDocument) -> Preview:
        """Return the shapes of the counts that would be sent: their noise is drawn only once."""
        if not self.may_draw():
            return as_preview(self.compute(number, document))
        answer = self.compute(number, document, count_persons(self.request, None))
        return without_counts(answer, self.request)


def _acknowledges(receipt: models.Receipt, answer: WrittenAnswer) -> bool:
    named = (receipt.session, receipt.site, receipt.round, receipt.sha256, receipt.size)
    asked = (answer.session, answer.site, answer.round, answer.sha256, len(answer.body))
    return named == asked
