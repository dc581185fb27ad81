"""What the use cases share, and the threads that run beside them."""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from fedclust_service.clock import StoreClock
from fedclust_service.domain.tokens import SecretKeys
from fedclust_service.orchestration.driver import Driver
from fedclust_service.orchestration.grouping import Group
from fedclust_service.orchestration.notifier import Notifier
from fedclust_service.orchestration.observer import Nobody, Observer
from fedclust_service.orchestration.sealing import Sealer
from fedclust_service.orchestration.sweeper import Sweeper
from fedclust_service.store import Listener, Store

#: For a thread to end that has been asked to long before: what else was open took the time.
_LEAST_S = 0.1


@dataclass(frozen=True)
class Limits:
    """Times that the coordinator keeps to, in seconds unless the name says days.

    Attributes
    ----------
    aggregation_timeout_s : float
        An aggregation that takes longer fails its round and session.
    aggregation_process_bytes : int
        Rounds whose state and answers are together at least this large are aggregated in a process
        of their own.
    lease_s : float
        A driver that has not renewed its lease for this long has lost it.
    heartbeat_s : float or None
        Between two renewals; None: a third of ``lease_s``.
    max_attempts : int
        Takings of one round; the taking after the last of them fails round and session. 5: the
        first one and four takeovers, so that the fifth takeover fails.
    driver_poll_s, sweep_every_s : float
        How often rounds to aggregate and deadlines are looked for without being told.
    seal_look_s, seal_pause_s : float
        How often audit entries to seal are looked for without being told, and the least time
        between two batches. Together with the time that a batch takes, each is below a second.
    seal_lease_s : float
        A sealer that has sealed nothing for this long has lost its lease. Short: the lease spares
        others the work, and keeps nothing apart that the chain's locked row does not.
    reread_s : float
        How often the versions waited for are read without being told. It bounds a long poll's wake
        where notifications do not arrive: behind a connection pooler in transaction mode.
    retention_days : float or None
        Payloads of sessions that ended this long ago are scrubbed, once the clocks have agreed
        for an hour; None keeps them. 0 asks no clock.
    token_touch_s : float
        A token's last use is recorded at most this often.
    """

    aggregation_timeout_s: float = 600.0
    aggregation_process_bytes: int = 32 * 2**20
    lease_s: float = 30.0
    heartbeat_s: float | None = None
    max_attempts: int = 5
    driver_poll_s: float = 1.0
    sweep_every_s: float = 1.0
    seal_look_s: float = 0.7
    seal_pause_s: float = 0.5
    seal_lease_s: float = 1.5
    reread_s: float = 1.0
    retention_days: float | None = 30.0
    token_touch_s: float = 60.0

    @property
    def beat_s(self) -> float:
        """Seconds between two renewals of a lease."""
        return self.lease_s / 3 if self.heartbeat_s is None else self.heartbeat_s


def new_holder() -> str:
    """Return a name for this process that no other one has had."""
    return f"{socket.gethostname()[:64]}:{os.getpid()}:{secrets.token_hex(4)}"


@dataclass
class Coordinator:
    """The coordinator without HTTP: build it, ``start()`` its threads, ``stop()`` them.

    Every function of the sibling modules takes one as its first argument. It keeps nothing that
    a request needs: all state is in the store.

    Attributes
    ----------
    store : Store
    keys : SecretKeys
    limits : Limits
    notifier : Notifier
        Told of every committed change from the moment that the coordinator is built.
    observer : Observer
        Told of what is done, to count it.
    holder : str
        What leases name this process by.
    driver : Driver
        Aggregates; ``driver.run_once()`` does a round's work in the calling thread.
    sweeper : Sweeper
        Watches deadlines.
    sealer : Sealer
        Chains the audit trail.
    listener : Listener or None
        Tells notifier and sealer of other processes' commits; None where there is one process.
    submissions : Group
        Commits submissions.
    touches : Group
        Commits when tokens were last used.
    touching : set of str
        Tokens whose last use waits in ``touches``.
    """

    store: Store
    keys: SecretKeys
    limits: Limits = field(default_factory=Limits)
    notifier: Notifier = field(default_factory=Notifier)
    observer: Observer = field(default_factory=Nobody, repr=False)
    holder: str = field(default_factory=new_holder)
    driver: Driver = field(init=False, repr=False)
    sweeper: Sweeper = field(init=False, repr=False)
    _asked_at: float | None = field(default=None, init=False, repr=False)
    sealer: Sealer = field(init=False, repr=False)
    listener: Listener | None = field(init=False, repr=False)
    submissions: Group = field(init=False, repr=False)
    touches: Group = field(init=False, repr=False)
    touching: set[str] = field(default_factory=set, init=False, repr=False)

    def __post_init__(self) -> None:
        self.driver = Driver(self)
        self.sweeper = Sweeper(self)
        self.sealer = Sealer(self)
        self.submissions = Group(self, "submission.store")
        self.touches = Group(self, "token.touch")
        self.store.on_touch(self._changed)
        self.listener = self.store.listener(
            changed=self.notifier.bump,
            sealed=self.sealer.hear,
            waited_for=self.notifier.waited_for,
        )

    @property
    def clock(self) -> StoreClock:
        """The store's clock: the time that everything here goes by."""
        return self.store.clock

    def _changed(self, touched: Sequence[tuple[str, int]]) -> None:
        for session, version in touched:
            self.notifier.bump(session, version)

    def start(self) -> None:
        """Start the threads."""
        self.driver.start()
        self.sweeper.start()
        self.sealer.start()
        if self.listener is not None:
            self.listener.start(self.limits.reread_s)

    def ask_to_stop(self) -> None:
        """Wake all waiters and have the threads end, without waiting for them. Any thread."""
        if self._asked_at is None:
            self._asked_at = time.monotonic()
        self.notifier.close()
        self.driver.ask_to_stop()
        for thread in self._watchers:
            thread.ask_to_stop()

    def stop(self, timeout_s: float = 1.5) -> None:
        """Wake all waiters and end the threads; what they leave is taken up by the next start.

        ``timeout_s`` runs from the moment that they were first asked to stop.
        """
        self.ask_to_stop()
        until = (self._asked_at or time.monotonic()) + timeout_s
        for thread in self._watchers:
            thread.join(max(_LEAST_S, until - time.monotonic()))
        self.driver.stop(max(_LEAST_S, until - time.monotonic()))

    @property
    def alive(self) -> bool:
        """Whether all threads run (part of readiness)."""
        return self.driver.alive and all(thread.alive for thread in self._watchers)

    @property
    def _watchers(self) -> list[Sweeper | Sealer | Listener]:
        listening = [] if self.listener is None else [self.listener]
        return [self.sweeper, self.sealer, *listening]

    @property
    def listening(self) -> bool | None:
        """Whether other processes' commits are heard at once; None where there is one process."""
        return None if self.listener is None else self.listener.connected
