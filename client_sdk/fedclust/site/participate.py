"""A site's connection to its coordinator: check, preview, participate, status, leave."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Unpack

from fedclust import rounds
from fedclust.client import Client, require_protocol
from fedclust.client.http import ConnectionOptions, Http
from fedclust.client.token_file import choose_token
from fedclust.data import Source
from fedclust.data.mapping import watch_reading
from fedclust.result.session_result import SessionResult
from fedclust.schema.display import Listing
from fedclust.schema.model import SLUG
from fedclust.site.approvals import Approvals, Review
from fedclust.site.charges import Charges
from fedclust.site.cohorts import Overtaken
from fedclust.site.consent import ConsentRequest
from fedclust.site.journal import Journal, has_joined
from fedclust.site.prepare import RowOptions, SiteRows
from fedclust.site.progress import Preview, Progress, SessionStatus, SessionWork, session_status
from fedclust.site.session_run import SessionRun
from fedclust.site.state import SiteState
from fedclust.wire import errors
from fedclust.wire.errors import problem
from fedclust.wire.models import SessionEntry
from fedclust.wire.submissions import BINARY, JSON

_FIRST_CONTACT_S = 30.0


class Site:
    """A site's connection to its coordinator.

    Use it as a context manager, or call :meth:`close`.

    Parameters
    ----------
    url : str, optional
        ``https://host[:port]``; by default FEDCLUST_COORDINATOR.
    token : str, optional
        By default FEDCLUST_TOKEN. Spaces and line breaks around it do not count.
    token_file : path, optional
        File with the token, instead of ``token``.
    state_dir : path, optional
        Directory of the site's state and settings; by default FEDCLUST_STATE_DIR, or this
        platform's directory for a user's state. A session can only be resumed with it.
    ca_bundle, client_cert, client_key, proxy
        See :class:`fedclust.client.http.ConnectionOptions`.
    give_up_after_s : float
        How long to keep trying while the coordinator does not answer. A day by default; the
        session can be resumed afterwards.
    json_bodies : bool
        Send JSON, which people can read, instead of the smaller binary form.
    progress : bool
        Whether to show on terminals and in notebooks what takes over two seconds. The variable
        FEDCLUST_PROGRESS=0 turns it off in all of Python.

    Examples
    --------
    ``url`` and ``token`` come from the coordinator's operator; ``rows`` is this site's file, array
    or DataFrame.

    >>> with Site(url, token=token) as site:
    ...     request = site.check("heart-2026", rows)  # sends nothing about the rows
    ...     print(request.definition.algorithm, request.definition.purpose)
    ...     result = site.participate("heart-2026", rows, consent=True)
    fkm Phenotypes of heart failure.
    >>> len(result.labels_) == len(rows)
    True
    """

    # Settings of the connection and the state; all but the first two are named.
    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        token_file: str | os.PathLike[str] | None = None,
        state_dir: str | os.PathLike[str] | None = None,
        ca_bundle: str | os.PathLike[str] | None = None,
        client_cert: str | os.PathLike[str] | None = None,
        client_key: str | os.PathLike[str] | None = None,
        proxy: str | None = None,
        give_up_after_s: float = 86_400.0,
        json_bodies: bool = False,
        progress: bool = True,
        http: Http | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        url = url or os.environ.get("FEDCLUST_COORDINATOR")
        token = choose_token(token, token_file) or os.environ.get("FEDCLUST_TOKEN")
        if http is None:
            if not url or not token:
                raise errors.UsageError("give url and token, or FEDCLUST_COORDINATOR and _TOKEN")
            options = ConnectionOptions(ca_bundle, client_cert, client_key, proxy, give_up_after_s)
            http = Http(url, token, options)
        self._http, self._client, self._now = http, Client(http.url, "", http=http), now
        self._media = JSON if json_bodies else BINARY
        self.state = SiteState(state_dir)
        self._name: str | None = None
        self._progress = progress

    def __repr__(self) -> str:
        return f"Site({self._http.url!r})"

    def __enter__(self) -> Site:
        return self

    def __exit__(self, *_: object) -> None:
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
        """The name of the site that the token belongs to."""
        if self._name is None:
            # A wrong address fails soon; one that worked before is tried for longer.
            patience = self._http.patience_s
            if not has_joined(self.state, url=self.url):
                self._http.patience_s = min(patience, _FIRST_CONTACT_S)
            try:
                who = self._client.whoami()
            finally:
                self._http.patience_s = patience
            if who.role != "site":
                detail = f"This token is that of an {who.role}: give the token of a site."
                raise errors.from_problem(problem("forbidden", detail))
            require_protocol(who)
            if not re.fullmatch(SLUG, who.name):
                raise errors.ProtocolError("the coordinator gives this site an invalid name")
            self._name = who.name
        return self._name

    def check(self, session: str, data: Source, **rows: Unpack[RowOptions]) -> ConsentRequest:
        """Match rows with a session's features and return the request for consent.

        Reads the session; sends nothing about the rows and does not join.

        Parameters
        ----------
        session, data, rows
            As in :meth:`participate`.

        Returns
        -------
        ConsentRequest

        Raises
        ------
        DataError
            The rows do not fit the session.
        """
        with SessionWork(shown=self._progress) as work:
            return self._open(session, SiteRows(watch_reading(data, work.read), **rows)).request

    @property
    def approvals(self) -> Approvals:
        """The reviews and approvals of sessions in this site's ledger."""
        return Approvals(self.state, self._now)

    def review(
        self, session: str, data: Source, out: str | os.PathLike[str], **rows: Unpack[RowOptions]
    ) -> Review:
        """Write what a session asks of this site as a printable HTML page, and record that.

        Sends nothing about the rows.

        Parameters
        ----------
        session, data, rows
            As in :meth:`participate`.
        out : path
            The file to write.

        Returns
        -------
        Review

        Raises
        ------
        UsageError
            The file cannot be written.
        """
        from fedclust.site.review import write_review  # a page, which few calls write

        request = self.check(session, data, **rows)
        return write_review(request, Path(out), self.approvals, self._now())

    def last_review(self, session: str) -> Review:
        """Return the last review of a session, to approve it (``approvals.approve``).

        Parameters
        ----------
        session : str

        Raises
        ------
        UsageError
            There is none, or the session has another definition since.
        """
        self._look_after()
        pinned = self._client.session(session).definition_sha256
        return self.approvals.last_review(self.url, self.name, session, pinned)

    def participate(
        self,
        session: str,
        data: Source,
        *,
        consent: Callable[[ConsentRequest], bool] | bool | None = None,
        ask: Callable[[Preview], bool] | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        **rows: Unpack[RowOptions],
    ) -> SessionResult:
        """Take part in a session from joining to labels. Call it again to resume.

        Parameters
        ----------
        session : str
        data : array (n, d), DataFrame, path, or any other source of ``docs/data.md``
            The same rows in the same order whenever a session is resumed.
        person : str or sequence of length n, optional
            Column that says which rows belong to one person, or its values; never sent. Ignored
            with ``protection: none``, where each row counts as a person.
        id_column : str, optional
            Column that names rows; never sent. Without it, and without ``person``, a row is known
            by its number.
        id_map : path or mapping of str to str, optional
            The old id of each new one, for persons whose ids have changed: a file with the columns
            ``new`` and ``old``, or a dict; never sent.
        min_group_size : int, optional
            This site's own least group size; the largest of it, the session's and the one in
            ``site.toml`` is used.
        cohort : str, optional
            Start of the id of the table to use, if these persons are in several.
        separate_groups : str, optional
            The approval of groups apart from those that these persons have: a second grouping
            reveals more about each of them. It is entered in the ledger, and need not be repeated
            to resume.
        other_persons : str, optional
            Name of the person who approves it if persons take part whom none of this site's tables
            holds. The ledger records it, and it need not be repeated to resume.
        no_person_in_another_table : bool
            With ``other_persons``: the approver also states that none of these persons is in
            another table of this site under another id. The new table then has its own points for
            questions about outcomes.
        later : str, optional
            The rows are later measurements: the site releases each column under its name with this
            suffix, such as ``"_2027"``.
        consent : callable or bool, optional
            Called once with the :class:`ConsentRequest`; True consents to all of it. By default a
            recorded approval of exactly these terms is the consent (``fedclust approve``);
            without one a person is asked in the terminal. Where there is none, as in a notebook,
            ConsentNeeded is raised. A session that was joined before is resumed without asking.
        ask : callable, optional
            Called with the :class:`Preview` of every submission before it is first sent. If it
            returns False, the call stops, and nothing of that round has left.
        on_progress : callable, optional
            Called with every :class:`Progress`, instead of showing it.

        Returns
        -------
        SessionResult
            The clustering, with the labels of this site's rows.

        Raises
        ------
        DataError, ConsentError, DisclosureError
            Before anything (more) is sent. ApprovalNeeded, a ConsentError, also with consent, if
            the site's settings require an approval or if it was withdrawn. DisclosureError also if
            the session's groups are smaller than the site's settings allow.
        SessionError
            The session failed, was cancelled or continues without this site.
        CoordinatorError, TransportError, StateError
        """
        with SessionWork(shown=self._progress and on_progress is None) as work:
            given = SiteRows(watch_reading(data, work.read), **rows)
            report, agreed = on_progress or work.tell, set[str]()
            while True:
                run = self._open(session, given)
                run.ask, run.asking, run.agreed = ask, work.paused, agreed
                run.report = partial(_report, report, rounds.most_rounds(run.plan))
                # What another command has stored meanwhile is read again.
                with run.journal.locked(), suppress(Overtaken):
                    return run.complete(consent)

    def preview(self, session: str, data: Source, **rows: Unpack[RowOptions]) -> Preview:
        """Return the exact bytes of the next submission, without joining or sending anything.

        Before the session starts, its first task is derived from the definition as the
        coordinator will derive it.

        Parameters
        ----------
        session, data, rows
            As in :meth:`participate`.

        Returns
        -------
        Preview
        """
        with SessionWork(shown=self._progress) as work:
            return self._open(session, SiteRows(watch_reading(data, work.read), **rows)).preview()

    def status(self, session: str | None = None) -> Listing[SessionStatus]:
        """Return the status of this site's sessions.

        Parameters
        ----------
        session : str, optional
            Only this one.
        """
        self._look_after()
        infos = [self._client.session(session)] if session else self._client.sessions()
        decided = self.approvals.decisions(self.url, self.name)
        return Listing(
            session_status(each, self.name, self._journal(each), decided) for each in infos
        )

    def leave(self, session: str) -> None:
        """Leave a session; what was sent still counts.

        Parameters
        ----------
        session : str
        """
        self._client.leave(session)
        self._look_after()

    def _look_after(self) -> None:
        Charges(self.state).look_after(self._client, self._now())

    def _open(self, session: str, given: SiteRows) -> SessionRun:
        self._look_after()
        run = SessionRun(self._client, self.state, self.name, session, given, self._now)
        run.media = self._media
        return run

    def _journal(self, info: SessionEntry) -> Journal:
        return Journal(self.state, self._http.url, self.name, info.name, info.definition_sha256)


def _report(report: Callable[[Progress], None], most_rounds: int, event: Progress) -> None:
    report(replace(event, most_rounds=most_rounds))
