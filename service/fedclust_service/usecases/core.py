"""What transactions and background threads work with: store, keys, limits, notifications."""

import asyncio
import contextlib
import os
import secrets
import socket
import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

import structlog

from fedclust.wire.models import OperatorInfo
from fedclust_service.clock import StoreClock
from fedclust_service.domain.notification import Outgoing
from fedclust_service.domain.tokens import SecretKeys
from fedclust_service.store import Store, StoreError, is_defect

#: Sessions whose last version is remembered, so that no change between reading and waiting is lost.
#: A waiter of a session that was dropped from here learns of the change when its wait ends.
_REMEMBERED = 10_000


@dataclass(frozen=True, eq=False)
class _Waiter:
    loop: asyncio.AbstractEventLoop
    event: asyncio.Event
    seen: int

    def wake(self) -> None:
        # The loop may have been closed meanwhile.
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self.event.set)


class Notifier:
    """Thread-safe on the writing side, asyncio on the waiting side."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._versions: OrderedDict[str, int] = OrderedDict()
        self._waiters: dict[str, set[_Waiter]] = {}
        self._closed = False

    def bump(self, session: str, version: int) -> None:
        """Record a session's new version and wake those who wait for it. Any thread."""
        with self._lock:
            # Two commits may report in the wrong order.
            newest = max(version, self._versions.pop(session, version))
            self._versions[session] = newest
            if len(self._versions) > _REMEMBERED:
                self._versions.popitem(last=False)
            waiting = [w for w in self._waiters.get(session, ()) if w.seen < newest]
        for waiter in waiting:
            waiter.wake()

    async def wait(self, session: str, seen_version: int, timeout_s: float) -> bool:
        """Wait until the session is newer than ``seen_version``, at most ``timeout_s`` seconds.

        Returns whether it is newer: False if the time is over or the notifier is closed.
        """
        waiter = _Waiter(asyncio.get_running_loop(), asyncio.Event(), seen_version)
        with self._lock:
            if self._closed:
                return False
            if self._versions.get(session, seen_version) > seen_version:
                return True
            self._waiters.setdefault(session, set()).add(waiter)
        try:
            async with asyncio.timeout(timeout_s):
                await waiter.event.wait()
        except TimeoutError:
            return False
        finally:
            with self._lock:
                others = self._waiters[session]
                others.discard(waiter)
                if not others:
                    del self._waiters[session]
        return not self.closed

    def waited_for(self) -> dict[str, int]:
        """Return the sessions that requests wait for, each with its newest known version."""
        with self._lock:
            return {
                session: max(self._versions.get(session, 0), min(w.seen for w in waiters))
                for session, waiters in self._waiters.items()
            }

    def close(self) -> None:
        """Wake all waiters and end every later wait at once. Any thread."""
        with self._lock:
            self._closed = True
            waiting = [waiter for group in self._waiters.values() for waiter in group]
        for waiter in waiting:
            waiter.wake()

    @property
    def closed(self) -> bool:
        """Whether the process is shutting down. Long polls then answer 503."""
        with self._lock:
            return self._closed

    @property
    def waiting(self) -> int:
        """The number of current waits."""
        with self._lock:
            return sum(len(group) for group in self._waiters.values())


log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Limits:
    """Times and sizes; times are in seconds unless the name says days."""

    #: An aggregation that takes longer fails its round and session.
    aggregation_timeout_s: float = 600.0
    #: A round that is expected to take longer than ``pooled_above_s`` is aggregated in one of so
    #: many processes, the others in this one.
    aggregation_processes: int = 2
    pooled_above_s: float = 0.1
    #: So is a round that was taken so often without an outcome: it may be what ends coordinators.
    pooled_after: int = 3
    #: A driver that has not renewed its lease for this long has lost it.
    lease_s: float = 30.0
    #: Time between two renewals; None means a third of ``lease_s``.
    heartbeat_s: float | None = None
    #: The session is held when so many processes have died that aggregated one of its rounds.
    max_deaths: int = 5
    #: How often the driver looks for rounds to aggregate, and the sweeper for deadlines.
    driver_poll_s: float = 1.0
    sweep_every_s: float = 1.0
    #: How often the sealer looks for entries, and the least time between two batches. With the time
    #: that a batch takes, each stays below a second.
    seal_look_s: float = 0.7
    seal_pause_s: float = 0.5
    #: How often the listener reads versions again. This bounds the delay of a long poll where no
    #: notification arrives, such as behind a connection pooler in transaction mode.
    reread_s: float = 1.0
    #: How often each channel looks for notifications to send.
    send_poll_s: float = 1.0
    #: Payloads of sessions that ended this long ago are scrubbed, once the clocks have agreed for
    #: an hour; None keeps them. With 0 the clocks do not matter.
    retention_days: int | None = 30
    #: A token's last use is recorded at most this often.
    token_touch_s: float = 60.0
    #: A browser that has asked for nothing for this long must sign in again, and in any case this
    #: long after it signed in. A sign-in's last use is recorded as often as a token's.
    sign_in_idle_s: float = 1_800.0
    sign_in_s: float = 43_200.0

    @property
    def beat_s(self) -> float:
        """Seconds between two renewals of a lease."""
        return self.lease_s / 3 if self.heartbeat_s is None else self.heartbeat_s


#: How an aggregation ended: written, failed, or lost because another driver had taken it over.
AggregationEnd = Literal["written", "failed", "lost"]


class Observer:
    """Counts nothing; a subclass counts what it wants.

    The methods run after the commit, in the committing thread. They must be quick and must not
    raise.
    """

    def happened(self, action: str) -> None:
        """Count an entry of the audit trail, by its action."""

    def aggregated(self, method: str, end: AggregationEnd, seconds: float) -> None:
        """Count an aggregation that has ended after this many seconds."""


def new_holder() -> str:
    """Return a name for this process that no other process ever had."""
    return f"{socket.gethostname()[:64]}:{os.getpid()}:{secrets.token_hex(4)}"


@contextlib.contextmanager
def survived(thread: str) -> Iterator[None]:
    """Log what goes wrong in the block: the thread survives every defect."""
    try:
        yield
    except StoreError as error:
        log.warning(f"{thread}_store_error", error=type(error).__name__)
    except Exception as error:
        log.error(f"{thread}_error", error=type(error).__name__, exc_info=error)


@contextlib.contextmanager
def set_apart(thread: str, round_id: int) -> Iterator[None]:
    """Log an error of the code or of unreadable rows in one round: other rounds go on.

    An error of the database is raised. So this may be used inside a transaction: the store sees the
    errors after which it repeats one.
    """
    try:
        yield
    except Exception as error:
        if not is_defect(error):
            raise
        log.error(f"{thread}_error", round_id=round_id, error=type(error).__name__, exc_info=error)


@dataclass
class CoordinatorCore:
    """The part of a coordinator that needs no thread; :class:`Coordinator` adds the threads.

    It keeps nothing that a request needs: all state is in the store.
    """

    store: Store
    keys: SecretKeys
    limits: Limits = field(default_factory=Limits)
    #: Wakes long polls after each committed change of a session.
    notifier: Notifier = field(default_factory=Notifier)
    observer: Observer = field(default_factory=Observer, repr=False)
    #: Channels, kinds and addresses of notifications. By default nothing is sent.
    outgoing: Outgoing = field(default_factory=Outgoing, repr=False)
    #: Who runs this coordinator, in the words of the setting ``operated_by``.
    operated_by: str = ""
    #: The name of this process in leases.
    holder: str = field(default_factory=new_holder)
    #: Set after a commit that leaves work for the driver or for the sealer.
    aggregation_due: threading.Event = field(
        default_factory=threading.Event, init=False, repr=False
    )
    sealing_due: threading.Event = field(default_factory=threading.Event, init=False, repr=False)
    #: Of overdue rounds that only wait: since when, and when time alone changes them.
    waits: dict[int, tuple[datetime | None, datetime]] = field(
        default_factory=dict, init=False, repr=False
    )

    @property
    def operator(self) -> OperatorInfo:
        """What sites read of who runs this coordinator."""
        return OperatorInfo(name=self.operated_by, retention_days=self.limits.retention_days)

    @property
    def clock(self) -> StoreClock:
        """The store's clock, which all processes on the database share."""
        return self.store.clock
