"""A site's whole part in a session: consent, compute, send exactly once, resume, label.

The order in which a round is answered is what keeps the promises: the task's digest is recomputed,
the answer computed and checked, its bytes and the memory written and synced (``journal``), then
sent, then entered in the ledger. Whatever breaks in between, the next run begins with the bytes
that were written.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from numpy.typing import NDArray
from pydantic import ValidationError

from fedclust import engine, errors
from fedclust._http import Http, Options
from fedclust.client import Client
from fedclust.data import LabelRows, Source, Table
from fedclust.data.site_data import session_rows
from fedclust.site.cohorts import CohortStore
from fedclust.site.compute import accepted_plan, compute, first_task, refuse_foreign
from fedclust.site.consent import ConsentRequest
from fedclust.site.journal import Answer, Journal, Outcome, SessionRecord, state_errors
from fedclust.site.ledger import Ledger
from fedclust.site.paths import coordinator_directory, default_directory
from fedclust.site.prepare import Prepared, Reading, consent_request, declare, prepare
from fedclust.site.progress import Preview, Progress, SessionStatus
from fedclust.site.result import SiteResult
from fedclust.wire.models import (
    PROTOCOL_VERSION,
    Participation,
    Receipt,
    SessionEntry,
    SessionInfo,
    TaskDocument,
    TaskResponse,
)
from fedclust.wire.submissions import BINARY, JSON

__all__ = ["Preview", "Progress", "SessionStatus", "Site", "SiteResult"]

_FIRST_CONTACT_S = 30.0
# A coordinator restored from a backup asks for what it does not have: the same bytes, not for ever.
_RESENDS = 3
#: Refusals that the session outlives: the body has left, and the next task is asked for.
_MOVED_ON = (errors.RoundClosed, errors.WrongState, errors.NotAddressed)
#: Refusals of these very bytes: recorded as left, then raised.
_REFUSED = (
    errors.Invalid,
    errors.DisclosureRefused,
    errors.TaskMismatch,
    errors.SubmissionDiffers,
)
#: What tells one sending from another in the ledger.
_SAME = frozenset({"coordinator", "site", "session", "round", "sha256", "receipt", "refused"})


class Site:
    """A site's connection to its coordinator.

    Parameters
    ----------
    url : str, optional
        ``https://host[:port]``; by default FEDCLUST_COORDINATOR.
    token : str, optional
        By default FEDCLUST_TOKEN.
    journal_dir : path, optional
        Where journal and ledger are kept; by default FEDCLUST_JOURNAL_DIR, or this platform's
        directory for a user's state. It must survive: a session can only be resumed with it.
    ca_bundle, client_cert, client_key, proxy
        See :class:`fedclust._http.Options`.
    give_up_after_s : float
        How long to go on trying, once a session is under way, while the coordinator does not
        answer. A day by default; resuming is possible afterwards too.
    json_bodies : bool
        Send JSON, which can be read without a program, instead of the smaller binary form.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        journal_dir: str | os.PathLike[str] | None = None,
        ca_bundle: str | os.PathLike[str] | None = None,
        client_cert: str | os.PathLike[str] | None = None,
        client_key: str | os.PathLike[str] | None = None,
        proxy: str | None = None,
        give_up_after_s: float = 86_400.0,
        json_bodies: bool = False,
        http: Http | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        url = url or os.environ.get("FEDCLUST_COORDINATOR")
        token = token or os.environ.get("FEDCLUST_TOKEN")
        if http is None:
            if not url or not token:
                raise errors.UsageError("give url and token, or FEDCLUST_COORDINATOR and _TOKEN")
            options = Options(ca_bundle, client_cert, client_key, proxy, give_up_after_s)
            http = Http(url, token, options)
        self._http, self._client, self._now = http, Client(http.url, "", http=http), now
        self._media = JSON if json_bodies else BINARY
        self.directory = Path(journal_dir) if journal_dir else default_directory()
        self._name: str | None = None

    def __repr__(self) -> str:
        return f"Site({self._http.url!r})"

    def __enter__(self) -> Site:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    @property
    def url(self) -> str:
        """The coordinator's address."""
        return self._http.url

    @property
    def name(self) -> str:
        """The name that the token speaks for."""
        if self._name is None:
            # Quick to say that an address is wrong; patient where it is known to be right.
            patience = self._http.patience_s
            if not coordinator_directory(self.directory, self.url).exists():
                self._http.patience_s = min(patience, _FIRST_CONTACT_S)
            try:
                who = self._client.whoami()
            finally:
                self._http.patience_s = patience
            if who.role != "site":
                raise errors.UsageError(f"this is the token of an {who.role}, not of a site")
            if who.protocol_version != PROTOCOL_VERSION:
                raise errors.ProtocolError(
                    f"the coordinator speaks protocol {who.protocol_version}, this SDK "
                    f"{PROTOCOL_VERSION}: pip install --upgrade fedclust"
                )
            # It names a directory here: a slug, whatever the coordinator says.
            if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,62}", who.name):
                raise errors.ProtocolError("the coordinator gives this site a name that is none")
            self._name = who.name
        return self._name

    def check(
        self,
        session: str,
        data: Source,
        *,
        person: str | Sequence[Any] | NDArray[Any] | None = None,
        id_column: str | None = None,
        min_group_size: int | None = None,
        cohort: str | None = None,
        separate_groups: str | None = None,
    ) -> ConsentRequest:
        """Match rows with a session's features and return what consent would be to.

        Reads the session; sends nothing of the rows and does not join. Parameters as in
        :meth:`participate`.
        """
        return self._open(
            session, Reading(data, person, id_column, cohort, separate_groups), min_group_size
        ).request

    def participate(
        self,
        session: str,
        data: Source,
        *,
        person: str | Sequence[Any] | NDArray[Any] | None = None,
        id_column: str | None = None,
        min_group_size: int | None = None,
        cohort: str | None = None,
        separate_groups: str | None = None,
        consent: Callable[[ConsentRequest], bool] | bool | None = None,
        ask: Callable[[Preview], bool] | None = None,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> SiteResult:
        """Take part in a session from joining to labels; called again, it resumes.

        Parameters
        ----------
        session : str
        data : array (n, d), DataFrame, path, or any other source of ``docs/data.md``
            The same rows in the same order whenever a session is resumed.
        person : str or sequence of length n, optional
            Column that says which rows belong to one person, or its values; never sent. With
            ``protection: none`` each row counts as a person, whatever it says.
        id_column : str, optional
            Column that names rows; never sent.
        min_group_size : int, optional
            This site's own least group size; the larger of it and the session's holds.
        cohort : str, optional
            The start of the id of the table that is meant, where these persons are in several.
        separate_groups : str, optional
            The approval of groups apart from those that these persons have: a second grouping tells
            more about each of them. It is entered in the ledger.
        consent : callable or bool, optional
            Called once with the :class:`ConsentRequest`; True consents to all of it. By default
            the call itself consents to the definition, but not to a session of two sites or one
            with ``protection: none``: these need it expressly.
        ask : callable, optional
            Called with the :class:`Preview` of every submission before it is sent for the first
            time; False stops, and nothing of that round has left.
        on_progress : callable, optional

        Returns
        -------
        SiteResult

        Raises
        ------
        DataError, ConsentError, DisclosureError
            Before anything (more) is sent.
        SessionError
            The session failed, was cancelled or goes on without this site.
        CoordinatorError, TransportError, JournalError
        """
        run = self._open(
            session, Reading(data, person, id_column, cohort, separate_groups), min_group_size
        )
        run.ask = ask
        if on_progress is not None:
            most, tell = engine.most_rounds(run.plan), on_progress
            run.tell = lambda event: tell(replace(event, most_rounds=most))
        with state_errors(self.directory):
            run.journal.lock()
            try:
                return run.complete(consent)
            finally:
                run.journal.unlock()

    def preview(
        self,
        session: str,
        data: Source,
        *,
        person: str | Sequence[Any] | NDArray[Any] | None = None,
        id_column: str | None = None,
        min_group_size: int | None = None,
        cohort: str | None = None,
        separate_groups: str | None = None,
    ) -> Preview:
        """Return the exact bytes of the next submission. Reads only: joins nothing, sends nothing.

        Before the session starts, its first task is derived from the definition as the
        coordinator will. Parameters as in :meth:`participate`.
        """
        return self._open(
            session, Reading(data, person, id_column, cohort, separate_groups), min_group_size
        ).preview()

    def status(self, session: str | None = None) -> list[SessionStatus]:
        """Return how this site's sessions stand, or how one does."""
        found = [self._client.session(session)] if session else self._client.sessions()
        rows = []
        for info in found:
            state = next((s.state for s in info.sites if s.name == self.name), "invited")
            journal = self._journal(info)
            sent, flying = len(journal.outcomes), len(journal.unsettled())
            reason = info.failure or info.stopped_because
            rows.append(
                SessionStatus(info.name, info.state, state, info.round, sent, flying, reason)
            )
        return rows

    def leave(self, session: str) -> None:
        """Leave a session; what was sent still counts."""
        self._client.leave(session)

    def _open(self, session: str, reading: Reading, min_group_size: int | None) -> _Run:
        if min_group_size is not None and min_group_size < 3:
            raise errors.UsageError("min_group_size is at least 3")
        site, info = self.name, self._client.session(session)
        plan, journal = accepted_plan(session, info), self._journal(info)
        joined = None if journal.record is None else journal.record.participation
        if joined is not None and joined.table_id is not None:
            # Separate groups that were formed for this session are not formed again.
            reading = replace(reading, table=joined.table_id, separate=None)
        table = session_rows(
            plan, reading.source, person=reading.person, id_column=reading.id_column
        )
        p, ledger = max(plan.policy.min_group_size, min_group_size or 0), Ledger(self.directory)
        with state_errors(self.directory):
            try:
                rows = prepare(CohortStore(), plan, reading, table, p, self._now(), ledger)
            except errors.PersonsRefused:
                journal.refuse_other_data("")  # of a session that runs, a plainer word
                raise
        request = consent_request(self._http.url, site, info, plan, rows, reading)
        participation = declare(request, rows, reading, joined, min_group_size)
        return _Run(self, info, request, rows, table, journal, participation)

    def _journal(self, info: SessionEntry) -> Journal:
        pinned = info.definition_sha256
        with state_errors(self.directory):
            return Journal(self.directory, self._http.url, self.name, info.name, pinned)


class _Run:
    """One session at one site, from one call of :meth:`Site.participate`."""

    def __init__(
        self,
        site: Site,
        info: SessionInfo,
        request: ConsentRequest,
        rows: Prepared,
        table: Table | LabelRows,
        journal: Journal,
        participation: Participation,
    ) -> None:
        self.client, self.info, self.request, self.journal = site._client, info, request, journal
        self.session, self.plan, self.table = request.session, request.plan, table
        self.ledger, self.rows, self.participation = Ledger(site.directory), rows, participation
        self.now, self.media, self.data_digest = site._now, site._media, rows.digest(table)
        self.ask: Callable[[Preview], bool] | None = None
        self.tell: Callable[[Progress], None] = lambda _progress: None
        self.sent: Counter[int] = Counter()

    # --- from joining to labels -------------------------------------------------------------------

    def complete(self, consent: Callable[[ConsentRequest], bool] | bool | None) -> SiteResult:
        self.ledger.check()
        self.journal.refuse_other_data(self.data_digest)
        for answer in self.journal.unsettled():
            self.send(answer, again=True)
        if self.info.state in ("recruiting", "running"):
            self.join(consent)
            self.keep_table()
        task, etag = self.client.task(self.session)
        while True:
            if task is not None and task.status == "ended":
                return self.result(task)
            if task is not None and task.status == "left":
                raise self.left()
            if task is not None and task.status == "work":
                etag = self.answer(task)
            elif task is not None:
                seen = task.progress
                counts = (seen.answered, seen.addressed) if seen else (None, None)
                self.tell(Progress("waiting", task.round, None, *counts))
            task, known = self.client.task(self.session, etag)
            # Quiet: the next question is answered at once, and says how far the others are.
            etag = None if task is None else known

    def join(self, consent: Callable[[ConsentRequest], bool] | bool | None) -> None:
        """Consent, record it, join; what an earlier run did of this is not done again."""
        record, wanted = self.journal.record, self.participation
        state = next((s.state for s in self.info.sites if s.name == self.request.site), "invited")
        if state in ("left", "excluded"):
            raise self.left()
        invited = state == "invited"
        if not invited:
            self.refuse_gaps()
        if record is not None:
            joined = record.participation
            spoken = {"sdk_version": joined.sdk_version, "methods": joined.methods}
            same = wanted.model_copy(update=spoken) == joined
            if not same and not invited:
                raise errors.JournalError(
                    "this site joined with another min_group_size or size band; give the same "
                    "rows and options, or leave the session (fedclust leave)"
                )
            record = record if same else None
        if record is None:
            self.consent(consent)
            record = SessionRecord(
                coordinator=self.request.coordinator,
                site=self.request.site,
                session=self.session,
                definition_sha256=self.request.definition_sha256,
                consented_at=self.now(),
                participation=wanted,
            )
            self.keep_table()
            self.journal.write_record(record)
            invited = True
        if invited:
            self.client.join(self.session, record.participation)
            self.tell(Progress("joined"))

    def consent(self, consent: Callable[[ConsentRequest], bool] | bool | None) -> None:
        if consent is None:
            self.request.refuse_tacit()
        elif not (consent if isinstance(consent, bool) else consent(self.request)):
            raise errors.ConsentDeclined(f"not consented to session {self.session}")

    def keep_table(self) -> None:
        """Write what the table is made of, before anything of it leaves."""
        if self.rows.draft is not None:
            CohortStore().keep(self.rows.draft, self.ledger)

    def refuse_gaps(self) -> None:
        """Refuse to go on with a journal that does not hold all that this site has sent."""
        for past in self.client.rounds(self.session):
            answered = any(s.answered and s.name == self.request.site for s in past.sites)
            if answered and past.number not in self.journal.answers:
                raise errors.JournalDamaged(
                    f"this site answered round {past.number}, and {self.journal.directory} does "
                    "not hold it: use the journal directory it was answered from, or leave the "
                    "session: fedclust leave"
                )

    def left(self) -> errors.SiteLeft:
        info = self.client.session(self.session)
        state = next((s.state for s in info.sites if s.name == self.request.site), "left")
        message = "an analyst or operator excluded this site" if state == "excluded" else "left"
        return errors.SiteLeft(self.session, message, state)

    def result(self, task: TaskResponse) -> SiteResult:
        if task.session_state != "completed":
            info = self.client.session(self.session)
            if task.session_state == "cancelled":
                raise errors.SessionCancelled(self.session, "cancelled", info.stopped_because)
            raise errors.SessionFailed(
                self.session, f"failed: {info.failure or info.stopped_because}", info.failure
            )
        document = self.client.result(self.session)
        if document.provenance.definition_sha256 != self.request.definition_sha256:
            raise errors.ProtocolError("the result is of another definition")
        try:
            result = SiteResult(document, self.request.definition, self.request.site)
        except ValidationError:
            raise errors.ProtocolError("the result cannot be read by this SDK") from None
        self.tell(Progress("done"))
        memory = self.journal.memory or None
        if isinstance(self.table, LabelRows):
            self.table = replace(self.table, held=self.request.features)
        labels, ids = result.label(self.table, memory)
        return replace(result, labels_=labels, ids_=ids, memory=memory, table=self.table)

    # --- one round --------------------------------------------------------------------------------

    def answer(self, task: TaskResponse) -> str | None:
        """Answer a task; the ETag to wait with."""
        if task.task is None or task.round is None:
            raise errors.ProtocolError("the coordinator asks for work without a task")
        number, document = task.round, task.task
        refuse_foreign(self.plan, self.session, number, document)
        answer = self.journal.answers.get(number)
        if answer is None:
            if number - 1 > max(self.journal.answers, default=0):
                # Rounds that went by: closed without this site, or answered from elsewhere.
                self.refuse_gaps()
            self.tell(Progress("computing", number, document.phase))
            answer = self.compute(number, document)
            if self.ask is not None and not self.ask(_previewed(answer)):
                raise errors.ConsentDeclined(f"round {number} was not sent")
            self.journal.commit(answer)
        elif answer.task_digest != document.digest:
            raise errors.ProtocolError(
                f"round {number} asks something else than what this site answered; a second "
                "answer to one round is never given"
            )
        elif self.sent[number] > _RESENDS:
            raise errors.ProtocolError(f"the coordinator asks again for round {number}")
        return self.send(answer, again=number in self.journal.outcomes)

    def compute(self, number: int, document: TaskDocument) -> Answer:
        """Compute and check an answer; nothing is written or sent."""
        memory = self.journal.memory
        computed = compute(self.request, self.rows.data, number, document, memory, self.media)
        return Answer(
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

    def send(self, answer: Answer, *, again: bool) -> str | None:
        """Send what is written, enter it in the ledger, record what became of it."""
        self.sent[answer.round] += 1
        receipt, etag, refusal = None, None, None
        try:
            receipt, etag = self.client.submit(
                self.session, answer.round, answer.body, answer.media
            )
            if not _acknowledges(receipt, answer):
                raise errors.ProtocolError(f"the receipt of round {answer.round} is another's")
        except (*_MOVED_ON, *_REFUSED) as error:
            refusal = error
        outcome = Outcome(receipt=receipt, refused=refusal.slug if refusal else None)
        line = answer.entry(outcome) | {"audit_head": self.client.audit_head}
        self.ledger.append(line, unless=_SAME if again else frozenset())
        self.journal.settle(answer.round, outcome)
        if isinstance(refusal, _REFUSED):
            raise refusal
        event: Any = "refused" if refusal else "sent again" if again else "sent"
        self.tell(Progress(event, answer.round, answer.phase))
        return etag

    # --- preview ----------------------------------------------------------------------------------

    def preview(self) -> Preview:
        self.journal.refuse_other_data(self.data_digest)
        for written in self.journal.unsettled():
            return _previewed(written, "written before; its receipt is missing: it is sent again")
        task, _ = self.client.task(self.session)
        if task is None or task.status in ("ended", "left"):
            return Preview(self.session, note="the session asks nothing more of this site")
        if task.status == "work" and task.task is not None and task.round is not None:
            refuse_foreign(self.plan, self.session, task.round, task.task)
            known = self.journal.answers.get(task.round)
            if known is not None:
                return _previewed(known, "sent before; the coordinator asks for it again")
            return _previewed(self.compute(task.round, task.task))
        if task.session_state != "recruiting":
            note = "nothing to answer now: the round waits for others"
            if task.status == "invited":
                note = "the session runs: its task is shown to sites that have joined"
            return Preview(self.session, note=note)
        roster = [s.name for s in self.info.sites if s.state in ("invited", "joined")]
        document = first_task(self.request, roster)
        answer = self.compute(1, document)
        return _previewed(answer, "if all the sites invited so far take part")


def _previewed(answer: Answer, note: str = "") -> Preview:
    return Preview(
        session=answer.session,
        round=answer.round,
        phase=answer.phase,
        media=answer.media,
        body=answer.body,
        fields=answer.fields,
        smallest_count=answer.smallest_count,
        note=note,
    )


def _acknowledges(receipt: Receipt, answer: Answer) -> bool:
    named = (receipt.session, receipt.site, receipt.round, receipt.sha256, receipt.size)
    asked = (answer.session, answer.site, answer.round, answer.sha256, len(answer.body))
    return named == asked
