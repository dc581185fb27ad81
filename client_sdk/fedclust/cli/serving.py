"""The agent's work: which sessions were left to it, and a thread for each that runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from fedclust import errors
from fedclust.algorithms.base import Model
from fedclust.cli.files import write_labels
from fedclust.consent import ConsentRequest
from fedclust.journal import state_errors
from fedclust.privacy.files import FileLock, LockHeld, private_directory, write_atomically
from fedclust.site import Progress, Site
from fedclust.wire.models import Sha256, Timestamp

_FILE, _LOCK = "agent.json", "agent.lock"
_RUNNING = "agent-running.lock"
#: Seconds between two looks at the list, and from one try of a session to the next.
_LOOK_S = 5.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 10.0, 600.0

State = Literal["waiting", "done", "ended", "failing"]
_OVER = ("done", "ended")


class Entry(Model):
    """A session that was left to the agent, with the definition that was consented to."""

    coordinator: str
    site: str
    session: str
    definition_sha256: Sha256
    consented_at: Timestamp
    data: str
    id_column: str | None = None
    person_column: str | None = None
    min_cluster_size: int | None = None
    labels_out: str | None = None
    result_out: str | None = None
    state: State = "waiting"
    said: str = ""


class _File(Model):
    entries: Annotated[tuple[Entry, ...], Field(max_length=100_000)] = ()


class Entries:
    """The list of entries in a state directory; several processes may change it."""

    def __init__(self, directory: Path) -> None:
        self.directory, self._path = directory, directory / _FILE

    def read(self) -> tuple[Entry, ...]:
        """Return all entries, in the order in which they were added."""
        with state_errors(self.directory):
            if not self._path.exists():
                return ()
            try:
                return _File.model_validate_json(self._path.read_bytes()).entries
            except ValidationError:
                raise errors.JournalDamaged(f"{self._path} is damaged") from None

    def put(self, entry: Entry) -> None:
        """Add an entry, or replace the session's."""
        with self._changing():
            others = [each for each in self.read() if each.session != entry.session]
            self._write([*others, entry])

    def drop(self, session: str) -> bool:
        """Remove a session's entry; False where there is none."""
        with self._changing():
            known = self.read()
            self._write([each for each in known if each.session != session])
            return any(each.session == session for each in known)

    def note(self, entry: Entry, state: State, said: str) -> None:
        """Record how an entry stands, unless it was changed meanwhile."""
        with self._changing():
            self._write(
                each.model_copy(update={"state": state, "said": said})
                if (each.session, each.definition_sha256)
                == (entry.session, entry.definition_sha256)
                else each
                for each in self.read()
            )

    def _write(self, entries: Iterable[Entry]) -> None:
        text = _File(entries=tuple(entries)).model_dump_json(indent=1)
        write_atomically(self._path, text.encode())

    @contextmanager
    def _changing(self) -> Iterator[None]:
        with state_errors(self.directory):
            private_directory(self.directory)
            with FileLock(self.directory / _LOCK):
                yield


class Agent:
    """Answers every entry that waits, each in a thread with a connection of its own.

    Parameters
    ----------
    entries : Entries
    connect : callable
        Returns a new :class:`Site`.
    tell : callable
        Takes a line of text for people.
    monotonic : callable
    """

    def __init__(
        self,
        entries: Entries,
        connect: Callable[[], Site],
        tell: Callable[[str], None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._entries, self._connect, self._tell = entries, connect, tell
        self._monotonic = monotonic
        self._threads: dict[str, threading.Thread] = {}
        #: Of a session that failed: when to try again, and how long to wait after that.
        self._again: dict[str, tuple[float, float]] = {}
        self._over = False

    def run(
        self, stopping: threading.Event, *, until_done: bool = False, look_s: float = _LOOK_S
    ) -> None:
        """Serve until ``stopping`` is set, or with ``until_done`` until nothing is left.

        Threads are left where they are at the end: whatever they had written is sent by the next
        run, and nothing else ever is.
        """
        with state_errors(self._entries.directory):
            private_directory(self._entries.directory)
            lock = FileLock(self._entries.directory / _RUNNING)
            try:
                lock.acquire()
            except LockHeld:
                raise errors.JournalLocked(
                    f"another agent runs with {self._entries.directory}: one is enough"
                ) from None
        try:
            while not stopping.is_set():
                waiting = [each for each in self._entries.read() if each.state not in _OVER]
                for entry in waiting:
                    self._start(entry)
                if until_done and not waiting:
                    return
                stopping.wait(look_s)
        finally:
            # Threads that are left say no more: standard error may be closing.
            self._over = True
            lock.release()

    def _start(self, entry: Entry) -> None:
        thread = self._threads.get(entry.session)
        due, _ = self._again.get(entry.session, (0.0, 0.0))
        if (thread is not None and thread.is_alive()) or self._monotonic() < due:
            return
        # A daemon: a wait of weeks must not keep the process from ending.
        thread = threading.Thread(target=self._serve, args=(entry,), daemon=True)
        self._threads[entry.session] = thread
        thread.start()

    def _serve(self, entry: Entry) -> None:
        """Take part in one session; whatever goes wrong stays with it."""
        try:
            self._take_part(entry)
        except (errors.SessionError, errors.ConsentError) as error:
            # The session is over for this site; or it is not what was consented to.
            self._say(entry, "ended", str(error))
        except errors.FedclustError as error:
            self._pause(entry, str(error))
        except Exception as error:
            # The message of an unforeseen error may hold a value of the data.
            self._pause(entry, f"unexpected {type(error).__name__}")

    def _take_part(self, entry: Entry) -> None:
        with self._connect() as site:
            if (site.url, site.name) != (entry.coordinator, entry.site):
                raise errors.UsageError(
                    f"left to the agent for {entry.site} at {entry.coordinator}: run one there"
                )
            result = site.participate(
                entry.session,
                Path(entry.data),
                person=entry.person_column,
                id_column=entry.id_column,
                min_cluster_size=entry.min_cluster_size,
                consent=lambda request: _consented(entry, request),
                on_progress=lambda event: self._progress(entry, event),
            )
        if entry.result_out is not None:
            result.save(entry.result_out)
        if entry.labels_out is not None and result.labels_ is not None:
            write_labels(Path(entry.labels_out), result.labels_, result.ids_, entry.id_column)
        self._say(entry, "done", f"completed: {len(result.cluster_centers_)} clusters")

    def _progress(self, entry: Entry, event: Progress) -> None:
        # Whatever had failed works again; but what fails may be the computing.
        if event.event not in ("joined", "computing") and entry.session in self._again:
            del self._again[entry.session]
            self._entries.note(entry, "waiting", "goes on")
        if event.event in ("joined", "sent", "sent again", "refused") and not self._over:
            place = "" if event.round is None else f"round {event.round} "
            self._tell(f"{entry.session}: {place}{event.event}")

    def _pause(self, entry: Entry, said: str) -> None:
        _, last = self._again.get(entry.session, (0.0, 0.0))
        pause = min(max(2.0 * last, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
        self._again[entry.session] = (self._monotonic() + pause, pause)
        self._say(entry, "failing", f"{said}; tried again in {pause:.0f} s")

    def _say(self, entry: Entry, state: State, said: str) -> None:
        self._entries.note(entry, state, said)
        if not self._over:
            self._tell(f"{entry.session}: {said}")


def _consented(entry: Entry, request: ConsentRequest) -> bool:
    return request.definition_sha256 == entry.definition_sha256
