"""The coordinator without HTTP: the core, its background threads and its group commits."""

import time
from dataclasses import dataclass, field

from fedclust_service.background import BackgroundThread
from fedclust_service.store import Listener
from fedclust_service.usecases.audit import Sealer
from fedclust_service.usecases.core import CoordinatorCore
from fedclust_service.usecases.driver import Driver
from fedclust_service.usecases.notifications import AT_ONCE, NotificationSender
from fedclust_service.usecases.sweeper import Sweeper
from fedclust_service.usecases.unit_of_work import GroupCommit

#: Each thread gets at least this long to end, even if the others used up the time.
_LEAST_S = 0.1


@dataclass
class Coordinator(CoordinatorCore):
    """A coordinator: build it, ``start()`` its threads, ``stop()`` them.

    Every use case takes one as its first argument. ``driver.run_once()`` aggregates one round in
    the calling thread. ``listener`` is None on SQLite, where there is one process.
    """

    driver: Driver = field(init=False, repr=False)
    sweeper: Sweeper = field(init=False, repr=False)
    sealer: Sealer = field(init=False, repr=False)
    #: One for each channel of `outgoing`.
    senders: tuple[NotificationSender, ...] = field(init=False, repr=False)
    listener: Listener | None = field(init=False, repr=False)
    submissions: GroupCommit = field(init=False, repr=False)
    #: Commits the times at which tokens and sign-ins were last used; ``touching`` are those that
    #: wait in it.
    touches: GroupCommit = field(init=False, repr=False)
    touching: set[str] = field(default_factory=set, init=False, repr=False)
    _asked_at: float | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self.driver = Driver(self)
        self.sweeper = Sweeper(self)
        self.sealer = Sealer(self)
        self.senders = tuple(
            NotificationSender(self, *each)
            for each in self.outgoing.senders.items()
            for _ in range(AT_ONCE[each[0]])
        )
        self.submissions = GroupCommit(self, "submission.store")
        self.touches = GroupCommit(self, "token.touch")
        self.store.on_touch(self.notifier.bump)
        self.listener = None
        if not self.store.single_process:
            self.listener = Listener(
                self.store,
                changed=self.notifier.bump,
                waited_for=self.notifier.waited_for,
                reread_s=self.limits.reread_s,
            )

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def ask_to_stop(self) -> None:
        """Wake all waiting requests and ask the threads to end; return at once. Any thread."""
        if self._asked_at is None:
            self._asked_at = time.monotonic()
        self.notifier.close()
        for thread in self._threads:
            thread.ask_to_stop()

    def stop(self, timeout_s: float = 1.5) -> None:
        """End the threads. The next start resumes whatever they leave.

        ``timeout_s`` runs from the moment at which they were first asked to stop.
        """
        self.ask_to_stop()
        until = (self._asked_at or time.monotonic()) + timeout_s
        for thread in reversed(self._threads):
            thread.join(max(_LEAST_S, until - time.monotonic()))
        for group in (self.submissions, self.touches):
            group.close(max(_LEAST_S, until - time.monotonic()))

    @property
    def alive(self) -> bool:
        """Whether all threads run (part of readiness)."""
        return all(thread.is_alive() for thread in self._threads)

    @property
    def _threads(self) -> list[BackgroundThread]:
        listening = [] if self.listener is None else [self.listener]
        return [self.driver, self.sweeper, self.sealer, *self.senders, *listening]

    @property
    def listening(self) -> bool | None:
        """Whether other processes' commits arrive at once; None where there is one process."""
        return None if self.listener is None else self.listener.connected
