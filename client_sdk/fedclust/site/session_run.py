"""One session at one site, from joining to labels.

What makes a round safe is the order in which it is answered: the task's digest is recomputed, the
answer computed and checked, its bytes and the memory stored (``journal``), then sent, then its
receipt or refusal stored with its line in the ledger. After a crash, the next run sends the stored
bytes. Counts of outcomes are stored as soon as their noise is drawn, before anybody sees them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import UTC, datetime
from typing import Any

from fedclust import errors
from fedclust.client import Client
from fedclust.data import LabelRows, Table
from fedclust.result.session_result import KnownSite, SessionResult, read_result
from fedclust.rounds import outcomes
from fedclust.schema.states import ENDED
from fedclust.site.approvals import Approvals
from fedclust.site.charges import Charges
from fedclust.site.cohorts import CohortStore
from fedclust.site.compute import (
    compute_answer,
    count_nobody,
    count_persons,
    first_task,
    refuse_foreign,
)
from fedclust.site.consent import ConsentRequest
from fedclust.site.journal import Journal, SessionRecord, SubmissionOutcome, WrittenAnswer
from fedclust.site.ledger import Ledger, TableEvents
from fedclust.site.prepare import Prepared
from fedclust.site.progress import Preview, Progress, as_preview, waiting, without_counts
from fedclust.site.terminal import decide_consent
from fedclust.wire.models import Participation, Receipt, SessionInfo, TaskDocument, TaskResponse
from fedclust.wire.submissions import BINARY

#: A coordinator restored from a backup asks for what it has lost: it gets the same bytes, this
#: often.
_RESENDS = 3
#: Refusals after which the session continues: the body has left, and the next task is asked for.
_MOVED_ON = (errors.RoundClosed, errors.WrongState, errors.NotAddressed)
#: Refusals of the body itself: recorded as sent, then raised.
_REFUSED = (
    errors.Invalid,
    errors.DisclosureRefused,
    errors.TaskMismatch,
    errors.SubmissionDiffers,
)


class SessionRun:
    """One session at one site, during one call of :meth:`fedclust.Site.participate`.

    Parameters
    ----------
    client : Client
    info : SessionInfo
    request : ConsentRequest
    participation : Participation
        What the site declares when it joins.
    journal : Journal
    prepared : Prepared
        What the site computes from.
    rows : Table or LabelRows
        The rows to label.

    Attributes
    ----------
    now, media
        The clock, and the form in which answers are sent.
    agreed
        The codes of terms to which a person has consented during this call.
    ask, report
        As ``ask`` and ``on_progress`` of :meth:`fedclust.Site.participate`.
    asking
        Entered while a person is asked.
    """

    def __init__(
        self,
        client: Client,
        info: SessionInfo,
        request: ConsentRequest,
        participation: Participation,
        journal: Journal,
        prepared: Prepared,
        rows: Table | LabelRows,
    ) -> None:
        self.client, self.info, self.request = client, info, request
        self.session, self.plan = request.session, request.plan
        self.participation, self.journal, self.state = participation, journal, journal.state
        self.ledger, self.approvals = Ledger(self.state), Approvals(self.state)
        self.store, self.charges = CohortStore(self.state), Charges(self.state)
        if journal.record is not None:
            prepared = prepared.with_within(journal.record.within)
        self.prepared, self.rows, self.data_digest = prepared, rows, prepared.digest(rows)
        self.now: Callable[[], datetime] = lambda: datetime.now(UTC)
        self.media = BINARY
        self.agreed: set[str] = set()
        self.ask: Callable[[Preview], bool] | None = None
        self.asking: Callable[[], AbstractContextManager[None]] = nullcontext
        self.report: Callable[[Progress], None] = lambda _progress: None
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
        self.state.check()
        self.ledger.check()
        self.journal.refuse_other_data(self.data_digest, self.participation)
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
        if self.info.state not in ENDED:
            self.join(consent)
        task, etag = self.client.task(self.session)
        while True:
            if task is not None and task.status in ("ended", "left"):
                self.charges.give_back(self.request.charge_key, self.now(), ended=True)
            if task is not None and task.status == "ended":
                return self.result(task)
            if task is not None and task.status == "left":
                raise self.left()
            if task is not None and task.status == "work":
                etag = self.answer(task)
            else:
                # A withdrawal ends a wait too, after at most one long poll.
                self.approvals.require(self.request)
                if task is not None:
                    self.report(waiting(task))
            task, known = self.client.task(self.session, etag)
            # If nothing changed, the next request is answered at once, with the progress.
            etag = None if task is None else known

    def join(self, consent: Callable[[ConsentRequest], bool] | bool | None) -> None:
        """Consent, record it and join, except for steps that an earlier run has done."""
        record, wanted = self.journal.record, self.participation
        state = next((s.state for s in self.info.sites if s.name == self.request.site), "invited")
        if state in ("left", "excluded", "refused"):
            raise self.left()
        approval = self.approvals.require(self.request)
        invited = state == "invited"
        if not invited:
            self.refuse_gaps()
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
                coordinator=self.request.coordinator,
                site=self.request.site,
                session=self.session,
                definition_sha256=self.request.definition_sha256,
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
        # Also where this site has joined before: its store may have been restored since.
        try:
            self.send_join(record.participation)
        except errors.CoordinatorError as refused:
            if invited or isinstance(refused, errors.TableChanged):
                table_id, key = self.prepared.table_id, self.request.charge_key
                self.charges.note_refusal(table_id, key, refused, self.now())
            raise
        if invited or fresh:
            self.report(Progress("joined"))

    def send_join(self, declared: Participation) -> None:
        """Join with the table's heads; again with all of them if the coordinator needs them.

        Another process of this site may store a change and join with it at the same time: then the
        heads that were sent are behind, and those of the state are sent.
        """
        table_id, every = self.prepared.table_id, False
        # After the charge, if there is one.
        heads = None if table_id is None else self.store.heads(table_id)
        request = self.request
        events = TableEvents(self.ledger, request.coordinator, request.site, table_id)
        while True:
            try:
                self.client.join(self.session, declared.model_copy(update={"heads": heads}))
            except (errors.TableHeadsNeeded, errors.TableChanged) as refused:
                every = every or isinstance(refused, errors.TableHeadsNeeded)
                stored = table_id and self.store.heads(table_id, every=every)
                if not stored or stored == heads:
                    if isinstance(refused, errors.TableChanged):
                        events.refused(self.session, heads, self.now())
                    raise
                heads = stored
            else:
                events.accepted(self.session, heads, self.now())
                return

    def refuse_gaps(self) -> None:
        """Refuse to go on with a journal that lacks a round which this site has answered."""
        for past in self.client.rounds(self.session):
            answered = any(s.answered and s.name == self.request.site for s in past.sites)
            if answered and past.number not in self.journal.answers:
                raise errors.StateDamaged(
                    f"this site answered round {past.number}, and {self.state.path} does not hold "
                    "it: use the state directory it was answered from (FEDCLUST_STATE_DIR), or "
                    "leave the session (fedclust leave)"
                )

    def left(self) -> errors.SiteLeft:
        info = self.client.session(self.session)
        own = next((s for s in info.sites if s.name == self.request.site), None)
        state = "left" if own is None else own.state
        message = "an analyst or operator excluded this site" if state == "excluded" else "left"
        if own is not None and own.refused_task is not None:
            message = f"this site refused a task ({own.refused_task})"
        return errors.SiteLeft(self.session, message, state)

    def result(self, task: TaskResponse) -> SessionResult:
        if task.session_state != "completed":
            info = self.client.session(self.session)
            if task.session_state == "cancelled":
                raise errors.SessionCancelled(self.session, "cancelled", info.stopped_because)
            why = f"{task.session_state}: {info.failure or info.stopped_because}"
            raise errors.SessionFailed(self.session, why, info.failure)
        document = self.client.result_document(self.session)
        if document.provenance.definition_sha256 != self.request.definition_sha256:
            raise errors.ProtocolError("the result is of another definition")
        request = self.request
        result = read_result(document, request.definition, request.site)
        self.report(Progress("done"))
        own = KnownSite(self.rows, request.features, self.journal.memory or None)
        return result.with_rows({request.site: own})

    # --- one round --------------------------------------------------------------------------------

    def answer(self, task: TaskResponse) -> str | None:
        """Answer a task, or refuse it; return the ETag to wait with."""
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

    def answer_round(self, number: int, document: TaskDocument | None) -> str | None:
        """Answer the task of a round; TaskRefused where it breaks a rule."""
        if document is None:
            raise errors.TaskRefused(self.session, "task", f"round {number} has none")
        refuse_foreign(self.plan, self.session, number, document)
        answer = self.journal.answers.get(number)
        if answer is None:
            if number - 1 > max(self.journal.answers, default=0):
                # Rounds in between were closed without this site, or answered from elsewhere.
                self.refuse_gaps()
            self.report(Progress("computing", number, document.phase))
            answer = self.write(number, document)
        elif answer.task_digest != document.digest:
            message = f"round {number} asks something else than what this site answered"
            raise errors.TaskRefused(self.session, "task-answered", message)
        elif self.n_sent[number] > _RESENDS:
            raise errors.TaskRefused(self.session, "task-answered", f"round {number} asks again")
        return self.send(answer, again=number in self.journal.outcomes)

    def write(self, number: int, document: TaskDocument) -> WrittenAnswer:
        """Compute an answer, ask about it, and store it; ConsentDeclined if it may not be sent."""
        if document.phase == outcomes.NAME:
            return self.draw(number, document)
        answer = self.compute(number, document)
        self.confirm(answer)
        # Again: computing and asking take time.
        self.approvals.require(self.request)
        self.journal.commit(answer)
        return answer

    def draw(self, number: int, document: TaskDocument) -> WrittenAnswer:
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
        names = {outcome.name for outcome in self.plan.outcomes}
        if record is None or record.participation.points_short:
            return False
        if not names.intersection(record.participation.features):
            return False
        return self.request.protection_none or not self.charges.refusal(
            self.prepared.table_id or "", self.request.charge_key
        )

    def confirm(self, answer: WrittenAnswer) -> None:
        """Ask whether an answer may be sent, if somebody is to be asked; ConsentDeclined if not."""
        with self.asking():
            if self.ask is not None and not self.ask(as_preview(answer)):
                raise errors.ConsentDeclined(f"round {answer.round} was not sent")

    def compute(
        self, number: int, document: TaskDocument, count: outcomes.Count | None = None
    ) -> WrittenAnswer:
        """Compute and check an answer; nothing is written or sent."""
        memory = self.journal.memory
        computed = compute_answer(
            self.request, self.prepared.data, number, document, memory, self.media, count
        )
        return WrittenAnswer(
            coordinator=self.request.coordinator,
            site=self.request.site,
            session=self.session,
            round=number,
            after=max(self.journal.answers, default=0),
            task_digest=document.digest,
            media=self.media,
            data_digest=self.data_digest,
            written_at=self.now(),
            **vars(computed),
        )

    def send(self, answer: WrittenAnswer, *, again: bool) -> str | None:
        """Send a written answer, and store the outcome with its line in the ledger."""
        self.n_sent[answer.round] += 1
        receipt, etag, refusal = None, None, None
        try:
            receipt, etag = self.client.submit(
                self.session, answer.round, answer.body, answer.media
            )
            if not _acknowledges(receipt, answer):
                raise errors.ProtocolError(f"the receipt of round {answer.round} is another's")
        except (*_MOVED_ON, *_REFUSED) as error:
            refusal = error
        outcome = SubmissionOutcome(receipt=receipt, refused=refusal.slug if refusal else None)
        # A coordinator that asks again for what it has acknowledged gets no second line.
        if self.journal.outcomes.get(answer.round) != outcome:
            with self.state.write():
                self.ledger.append(answer.entry(outcome) | {"audit_head": self.client.audit_head})
                self.journal.settle(answer.round, outcome)
        if isinstance(refusal, _REFUSED):
            raise refusal
        event: Any = "refused" if refusal else "sent again" if again else "sent"
        self.report(Progress(event, answer.round, answer.phase))
        return etag

    # --- preview ----------------------------------------------------------------------------------

    def preview(self) -> Preview:
        """Return the next submission; see :meth:`fedclust.Site.preview`."""
        self.journal.refuse_other_data(self.data_digest, self.participation)
        for written in self.journal.unsettled():
            return as_preview(written, "written before, without a receipt: it is sent again")
        task, _ = self.client.task(self.session)
        if task is None or task.status in ("ended", "left"):
            return Preview(self.session, note="this site has nothing more to send in this session")
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
            return Preview(self.session, note=note)
        roster = [s.name for s in self.info.sites if s.state in ("invited", "joined")]
        document = first_task(self.request, roster)
        answer = self.compute(1, document)
        return as_preview(answer, "if all the sites invited so far take part")

    def preview_outcomes(self, number: int, document: TaskDocument) -> Preview:
        """Return the shapes of the counts that would be sent: their noise is drawn only once."""
        if not self.may_draw():
            return as_preview(self.compute(number, document))
        answer = self.compute(number, document, count_nobody(self.request))
        return without_counts(answer, self.request)


def _acknowledges(receipt: Receipt, answer: WrittenAnswer) -> bool:
    named = (receipt.session, receipt.site, receipt.round, receipt.sha256, receipt.size)
    asked = (answer.session, answer.site, answer.round, answer.sha256, len(answer.body))
    return named == asked
