"""What transactions and background threads work with: store, keys, limits, notifications."""

from __future__ import annotations

import os
import secrets
import socket
import threading
from dataclasses import dataclass, field

from fedclust_service.clock import StoreClock
from fedclust_service.domain.tokens import SecretKeys
from fedclust_service.orchestration.notifier import Notifier
from fedclust_service.orchestration.observer import Observer
from fedclust_service.store import Store


@dataclass(frozen=True)
class Limits:
    """Times and sizes; times are in seconds unless the name says days.

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
        Time between two renewals; None means a third of ``lease_s``.
    max_attempts : int
        Round and session fail when a driver would take the round more often than this.
    driver_poll_s, sweep_every_s : float
        How often the driver looks for rounds to aggregate, and the sweeper for deadlines.
    seal_look_s, seal_pause_s : float
        How often the sealer looks for entries, and the least time between two batches. With the
        time that a batch takes, each stays below a second.
    seal_lease_s : float
        A sealer that has sealed nothing for this long has lost its lease. It can be short: the
        chain's locked row alone keeps two sealers apart, the lease only saves work.
    reread_s : float
        How often the listener reads versions again. This bounds the delay of a long poll where no
        notification arrives, such as behind a connection pooler in transaction mode.
    retention_days : float or None
        Payloads of sessions that ended this long ago are scrubbed, once the clocks have agreed
        for an hour; None keeps them. With 0 the clocks do not matter.
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
    """Return a name for this process that no other process ever had."""
    return f"{socket.gethostname()[:64]}:{os.getpid()}:{secrets.token_hex(4)}"


@dataclass
class CoordinatorCore:
    """The part of a coordinator that needs no thread; :class:`Coordinator` adds the threads.

    It keeps nothing that a request needs: all state is in the store.

    Attributes
    ----------
    store : Store
    keys : SecretKeys
    limits : Limits
    notifier : Notifier
        Wakes long polls after each committed change of a session.
    observer : Observer
        Counts what happens.
    holder : str
        The name of this process in leases.
    aggregation_due, sealing_due : threading.Event
        Set after a commit that leaves work for the driver or for the sealer.
    """

    store: Store
    keys: SecretKeys
    limits: Limits = field(default_factory=Limits)
    notifier: Notifier = field(default_factory=Notifier)
    observer: Observer = field(default_factory=Observer, repr=False)
    holder: str = field(default_factory=new_holder)
    aggregation_due: threading.Event = field(
        default_factory=threading.Event, init=False, repr=False
    )
    sealing_due: threading.Event = field(default_factory=threading.Event, init=False, repr=False)

    @property
    def clock(self) -> StoreClock:
        """The store's clock, which all processes on the database share."""
        return self.store.clock
