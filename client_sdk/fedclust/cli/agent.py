"""``fedclust agent``: one process that answers all sessions a site has consented to, for weeks."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Annotated, Literal

import typer

from fedclust.cli import options as o
from fedclust.cli.console import ProgressLine, conclude, consented, err, show, show_list, timestamp
from fedclust.cli.options import epilog
from fedclust.cli.output_files import check_outputs, is_labels, is_result, write_outputs
from fedclust.client import Client
from fedclust.data.live_line import SLOW_S, rows_read
from fedclust.data.mapping import OnRead
from fedclust.schema.times import Timestamp
from fedclust.site import Progress, Site
from fedclust.site.consent import ConsentRequest
from fedclust.site.data_sources import SessionSource
from fedclust.site.notifications import SiteNotifier
from fedclust.site.prepare import table_options
from fedclust.site.settings import read_settings
from fedclust.site.state import SiteState, StateDocument
from fedclust.wire import errors
from fedclust.wire.errors import ConsentDeclined
from fedclust.wire.models import Sha256

#: Seconds between two readings of the list, with and without a person who waits.
_LOOK_S, _SOON_S = 5.0, 0.5
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 10.0, 600.0
#: Seconds between two lines about rows that are read.
_READ_S = 60.0

State = Literal["waiting", "done", "ended", "failing"]
_OVER = ("done", "ended")


class AgentEntry(SessionSource):
    """A session that the agent answers, with the hash of the definition consented to.

    ``resolved`` gives a registered source as it is now, changed by this entry's options.
    """

    coordinator: str
    site: str
    session: str
    definition_sha256: Sha256
    consented_at: Timestamp
    state: State = "waiting"
    said: str = ""

    def asks_the_same(self, other: AgentEntry) -> bool:
        """Whether two entries are equal except for their state."""
        return self == other.model_copy(update={"state": self.state, "said": self.said})


class AgentEntries:
    """The entries in a site's state, one for each session; several processes may change them."""

    def __init__(self, state: SiteState) -> None:
        self.state = state
        self._known = StateDocument(state, "agent", dict[str, AgentEntry])

    def read(self) -> list[AgentEntry]:
        """Return all entries, in the order in which they were added."""
        return [*self._known.read().values()]

    def put(self, entry: AgentEntry) -> None:
        """Add an entry, or replace the session's."""
        self._known.update(lambda known: {**known, entry.session: entry})

    def drop(self, session: str) -> None:
        """Remove a session's entry; UsageError where there is none."""
        if session not in self._known.read():
            raise errors.UsageError(
                f"{session} was not handed to the agent: fedclust agent list shows which"
            )
        self._known.update(lambda known: {name: known[name] for name in known if name != session})

    def note(self, entry: AgentEntry, state: State, said: str) -> None:
        """Record the state of an entry, unless the entry was replaced meanwhile."""

        def change(known: dict[str, AgentEntry]) -> dict[str, AgentEntry]:
            found = known.get(entry.session)
            if found is None or found.definition_sha256 != entry.definition_sha256:
                return known
            return {**known, entry.session: found.model_copy(update={"state": state, "said": said})}

        self._known.update(change)


class _TakenBack(Exception):
    """The entry was removed or replaced: its thread ends without another answer."""


class Agent:
    """Answer every waiting entry, each in its own thread with its own connection.

    ``connect`` returns a new :class:`Site`, ``tell`` takes a line of text for people.
    """

    def __init__(
        self,
        entries: AgentEntries,
        connect: Callable[[], Site],
        tell: Callable[[str], None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._entries, self._connect, self._tell = entries, connect, tell
        self._monotonic = monotonic
        self._threads: dict[str, threading.Thread] = {}
        #: By failed session: when to try again, and the last pause in seconds.
        self._again: dict[str, tuple[float, float]] = {}
        #: By running session: what a person must fix before it ends.
        self._warnings: dict[str, str] = {}
        self._over = False
        self._complaint = ""

    def run(
        self, stopping: threading.Event, *, until_done: bool = False, look_s: float = _LOOK_S
    ) -> None:
        """Serve until ``stopping`` is set, or with ``until_done`` until nothing is left.

        The threads are not joined: the next run sends what they had written, and nothing else.
        """
        state = self._entries.state
        try:
            lock = state.lock("agent")
        except errors.StateLocked:
            raise errors.StateLocked(f"another agent runs with {state.directory} already") from None
        try:
            while not stopping.is_set():
                waiting = self._waiting()
                for entry in waiting or ():
                    self._start(entry)
                if until_done and waiting == [] and not self._threads:
                    return
                # With until_done a person waits, so look more often.
                stopping.wait(min(look_s, _SOON_S) if until_done else look_s)
        finally:
            # Remaining threads print nothing more: standard error may be closing.
            self._over = True
            lock.release()

    def _waiting(self) -> list[AgentEntry] | None:
        """Return the entries to answer; None while the list cannot be read."""
        try:
            waiting = [each for each in self._entries.read() if each.state not in _OVER]
        except errors.StateError as error:
            # Running sessions continue.
            if str(error) != self._complaint:
                self._tell(str(error))
            self._complaint = str(error)
            return None
        self._complaint = ""
        names = {each.session for each in waiting}
        for past in self._threads.keys() - names:
            if not self._threads[past].is_alive():
                del self._threads[past]
                self._again.pop(past, None)
                self._warnings.pop(past, None)
        return waiting

    def _start(self, entry: AgentEntry) -> None:
        thread = self._threads.get(entry.session)
        due, _ = self._again.get(entry.session, (0.0, 0.0))
        if (thread is not None and thread.is_alive()) or self._monotonic() < due:
            return
        # A daemon thread: a wait of weeks must not keep the process from ending.
        thread = threading.Thread(target=self._serve, args=(entry,), daemon=True)
        self._threads[entry.session] = thread
        thread.start()

    def _serve(self, entry: AgentEntry) -> None:
        """Take part in one session; an error affects only this session."""
        try:
            self._take_part(entry)
        except _TakenBack:
            self._again.pop(entry.session, None)
            self._out(f"{entry.session}: taken back; nothing more is sent")
        except errors.ApprovalNeeded as error:
            # It continues once somebody approves.
            self._pause(entry, str(error))
        except errors.NotFound:
            self._say(
                entry,
                "ended",
                "the coordinator has no such session for this site; its analyst may have deleted "
                "it. Nothing more is sent",
            )
        except (errors.SessionError, errors.ConsentError) as error:
            # The session is over for this site, or its definition was not consented to.
            self._say(entry, "ended", str(error))
        except errors.FedclustError as error:
            self._pause(entry, str(error))
        except Exception as error:
            # The message of an unexpected error may contain a value of the data.
            self._pause(entry, f"unexpected {type(error).__name__}")

    def _take_part(self, entry: AgentEntry) -> None:
        labels_out, result_out = entry.outputs
        with self._connect() as site:
            if (site.url, site.name) != (entry.coordinator, entry.site):
                raise errors.UsageError(
                    f"handed to the agent of {entry.site} at {entry.coordinator}: run that agent"
                )
            self._warnings.pop(entry.session, None)
            source = entry.resolved()
            try:
                outputs = (labels_out, is_labels), (result_out, is_result)
                check_outputs(outputs, source.files)
            except errors.UsageError as error:
                # There is time to fix this: outputs are written at the end of the session.
                self._warnings[entry.session] = f"{error}: fix this before the session ends"
                self._out(f"{entry.session}: {self._warnings[entry.session]}")
            result = site.participate(
                entry.session,
                source.rows(self._tell_rows(entry)),
                **source.row_options,
                **table_options(entry),
                consent=lambda request: _consented(entry, request),
                on_progress=lambda event: self._progress(entry, event),
            )
        write_outputs(result, labels_out, result_out, source.id_column)
        self._say(entry, "done", f"completed: {len(result.cluster_centers_)} clusters")

    def _tell_rows(self, entry: AgentEntry) -> OnRead:
        """Return a function that prints a line a minute while rows are read."""
        due: float | None = None

        def tell(source: str, done: int, total: int | None) -> None:
            nonlocal due
            now = self._monotonic()
            if due is None:
                due = now + SLOW_S
            elif done and now >= due:
                due = now + _READ_S
                self._out(f"{entry.session}: {rows_read(source, done, total)}")

        return tell

    def _progress(self, entry: AgentEntry, event: Progress) -> None:
        if event.event in ("waiting", "computing"):
            self._check_entry(entry)
        # The session works again, unless it is computing or writing that fails.
        if event.event not in ("joined", "computing", "done") and entry.session in self._again:
            del self._again[entry.session]
            self._note(entry, "waiting", "continues")
        if event.event in ("joined", "sent", "sent again", "refused"):
            place = "" if event.round is None else f"round {event.round} "
            said, warning = f"{place}{event.event}", self._warnings.get(entry.session)
            self._note(entry, "waiting", f"{said}; {warning}" if warning else said)
            self._out(f"{entry.session}: {said}")

    def _check_entry(self, entry: AgentEntry) -> None:
        """Raise _TakenBack if the entry was removed or replaced."""
        try:
            known = self._entries.read()
        except errors.StateError:
            return  # Reported already; the entry may still be there.
        if not any(each.asks_the_same(entry) for each in known):
            raise _TakenBack

    def _pause(self, entry: AgentEntry, said: str) -> None:
        _, last = self._again.get(entry.session, (0.0, 0.0))
        pause = min(max(2.0 * last, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
        self._again[entry.session] = (self._monotonic() + pause, pause)
        self._say(entry, "failing", f"{said}; next try in {pause:.0f} s")

    def _say(self, entry: AgentEntry, state: State, said: str) -> None:
        self._note(entry, state, said)
        self._out(f"{entry.session}: {said}")

    def _note(self, entry: AgentEntry, state: State, said: str) -> None:
        try:
            self._entries.note(entry, state, said)
        except errors.StateError as error:
            # For example a full disk. Work that is not noted is repeated, and sent only once.
            self._out(f"{entry.session}: {error}")

    def _out(self, text: str) -> None:
        if not self._over:
            self._tell(text)


def _consented(entry: AgentEntry, request: ConsentRequest) -> bool:
    if request.definition_sha256 != entry.definition_sha256:
        raise errors.ConsentDeclined(
            f"session {entry.session} has another definition than this site consented to: its "
            "analyst deleted it and created another one. Nothing was sent. To consent to the new "
            f"one: fedclust agent add {entry.session} --data FILE"
        )
    return True


#: Seconds for which a look for notifications waits for a coordinator that is away.
_NOTIFY_PATIENCE_S = 10.0

app = typer.Typer(
    help="Take part in all sessions that this site has consented to, until they end.",
    invoke_without_command=True,
    no_args_is_help=False,
    rich_markup_mode=None,
)


@app.callback(
    epilog=epilog(
        "fedclust agent add heart-2026 --data cohort.csv --labels-out labels.csv",
        "fedclust agent --token-file /etc/fedclust/token",
        "fedclust agent list",
    )
)
@o.with_groups
def agent(
    connection: o.Connection,
    context: typer.Context,
    until_done: Annotated[bool, o.opt("--until-done", "End when no session is left.")] = False,
) -> None:
    """Answer rounds as they open. An error in one session does not affect the others."""
    if context.invoked_subcommand is not None:
        return
    state = SiteState()
    stopping = threading.Event()

    def stop(*_: object) -> None:
        # In a thread: the interrupted thread may hold the event's lock.
        threading.Thread(target=stopping.set).start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)

    def connect() -> Site:
        # The agent waits a day for a coordinator that is away.
        return connection.site(86_400.0)

    # The token is read again for every connection, so that it can be replaced. This connection
    # sends no request; it only reports wrong settings now.
    connect().close()
    _print_line(f"agent of {connection.url}; its list of sessions is in {state.path}")
    entries = AgentEntries(state)
    with _notifying(connection, entries, stopping):
        Agent(entries, connect, _print_line).run(stopping, until_done=until_done)
    if stopping.is_set():
        _print_line("stopped; the next run sends what is already written")
    else:
        _print_line("stopped: no session is left")


@contextlib.contextmanager
def _notifying(
    connection: o.Connection, entries: AgentEntries, stopping: threading.Event
) -> Iterator[None]:
    """Run the site's notify_command, if it has one, in a thread as long as the agent runs."""
    command = read_settings(entries.state.directory).agent.notify_command
    if not command:
        yield
        return

    def connect() -> Client:
        return connection.client(_NOTIFY_PATIENCE_S)

    def handed() -> frozenset[str]:
        return frozenset(entry.session for entry in entries.read())

    notifier = SiteNotifier(entries.state, command, _print_line, handed)
    ended = threading.Event()
    # A daemon thread: a slow command must not keep the process from ending.
    thread = threading.Thread(target=notifier.run, args=(connect, ended), daemon=True)
    thread.start()
    try:
        yield
        if not stopping.is_set():
            # No session is left: the last look notifies of their ends.
            ended.set()
            thread.join()
            notifier.look_once(connect)
    finally:
        ended.set()


@o.command(
    app,
    "add",
    "fedclust agent add heart-2026 --data /data/cohort.csv --id-column mrn \\",
    "    --labels-out /data/labels.csv --result-out /data/heart.fedclust",
)
# Each parameter is an option, or a group of them, of the command.
def add(
    connection: o.Connection,
    how: o.Reading,
    persons: o.Persons,
    session: o.Session,
    data: o.Data,
    outputs: o.Outputs,
    full: o.Full = False,
    yes: o.Consent = False,
) -> None:
    """Consent to a session and hand it to the agent; a running agent starts it by itself.

    A recorded approval of exactly these terms (fedclust approve) is the consent.
    """
    source = how.source(data, persons)
    check_outputs(outputs.files, source.files)
    with connection.site() as site, ProgressLine() as line:
        request = site.check(session, source.rows(line.read), **persons.given(source))
        approval = site.approvals.require(request)
    question = "Shall the agent take part for this site?"
    if not consented(request, approval, question, full=full, yes=yes):
        raise ConsentDeclined(f"not consented to session {session}")
    entry = AgentEntry(
        coordinator=request.coordinator,
        site=request.site,
        session=session,
        definition_sha256=request.definition_sha256,
        consented_at=datetime.now(UTC),
        **o.answered_later(data, how, persons, outputs),
    )
    AgentEntries(SiteState()).put(entry)
    said = f"{session} is handed to the agent; next: fedclust agent, if none runs yet"
    conclude(said, entry)


@o.command(app, "list", "fedclust agent list --json")
def show_all() -> None:
    """List the sessions that were handed to the agent, and their states."""
    show_list(
        AgentEntries(SiteState()).read(),
        "no sessions; to hand one to the agent: fedclust agent add SESSION --data FILE",
        lambda e: {
            "session": e.session,
            "state": e.state,
            "data": e.data,
            "consented": f"{e.consented_at:%Y-%m-%d}",
            "last said": e.said,
        },
    )


@o.command(app, "remove", "fedclust agent remove heart-2026")
def remove(session: o.Session) -> None:
    """Take a session back from the agent; the site stays in it until it leaves.

    A running agent answers no further round of it, and stops computing within half a minute.
    """
    AgentEntries(SiteState()).drop(session)
    said = f"{session}: the agent answers no more; fedclust participate can continue it"
    conclude(said, {"session": session, "state": "removed"})


def _print_line(text: str) -> None:
    show(err, f"{timestamp()} {text}")
