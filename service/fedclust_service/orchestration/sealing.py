"""The sealer: numbers and chains the audit entries that have been committed.

Transactions only insert entries: on PostgreSQL they commit in another order than their ids were
given out, and a chain within each transaction would make them wait for one another. One thread of
one process, by lease, seals what is committed. It writes numbers, hashes and the head in one
transaction, so that a crash leaves either all of a batch or nothing of it. What follows sealed
entries (event streams, the heads that sites note) is told from here, in every process.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING

import structlog

from fedclust_service.domain.chain import Head
from fedclust_service.orchestration.notifier import Notifier
from fedclust_service.store import StoreError, Tx
from fedclust_service.store.chain import Batch

if TYPE_CHECKING:
    from fedclust_service.orchestration.coordinator import Coordinator

log = structlog.get_logger(__name__)

_BATCH = 500
#: For what is written together with the entry that woke the thread.
_GATHER_S = 0.05


class Sealer:
    """Runs :meth:`run_once` when something was written, and every now and then.

    Attributes
    ----------
    streams : Notifier
        Woken for a session when an entry about it is sealed; its versions are the numbers.
    """

    def __init__(self, co: Coordinator) -> None:
        self._co = co
        self._wake = threading.Event()
        self._heard = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._head: Head | None = None
        # When something to seal was found last.
        self._found_at = -math.inf
        self.streams = Notifier()

    @property
    def head(self) -> Head | None:
        """The last sealed entry as this process knows it; None before the first look."""
        return self._head

    def start(self) -> None:
        """Take a dead process's lease, where it is certain that it is dead; start the thread."""
        if self._co.store.single_process:
            self._co.store.run_tx("seal.take_over", lambda tx: tx.chain.release())
        self._thread = threading.Thread(target=self._run, name="fedclust-sealer", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Look for entries soon. Any thread."""
        self._wake.set()

    def hear(self, number: int) -> None:
        """Look now where the head of this number, sealed in some process, is news. Any thread."""
        if self._head is None or number > self._head.number:
            self._heard.set()
            self._wake.set()

    def ask_to_stop(self) -> None:
        """End all streams, and the thread after one last look. Any thread."""
        self.streams.close()
        self._stopping.set()
        self._wake.set()

    def join(self, timeout_s: float) -> None:
        """Wait for the thread to end."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def run_once(self) -> bool:
        """Seal what waits, in the calling thread, and tell of it; False where another seals."""
        co = self._co
        look = co.store.read("seal.look", lambda tx: tx.chain.look())
        self._tell(look.head)
        if not look.waiting:
            return True
        self._found_at = time.monotonic()
        if not look.free(co.holder, co.clock.now()):
            return False
        while True:
            batch = co.store.run_tx("seal", self._seal)
            if batch is None:
                return False
            self._tell(batch.head, batch)
            if not batch.full:
                return True

    def _seal(self, tx: Tx) -> Batch | None:
        now = self._co.clock.now()
        until = now + timedelta(seconds=self._co.limits.seal_lease_s)
        return tx.chain.seal(self._co.holder, now, until, _BATCH)

    def _tell(self, head: Head, batch: Batch | None = None) -> None:
        known, self._head = self._head, head
        # Streams that began before the first look wait for numbers from 0 on.
        after = 0 if known is None else known.number
        if head.number <= after:
            return
        if batch is not None and batch.after == after:
            changed: Iterable[tuple[str, int]] = batch.subjects.items()
        else:
            begin = max(after, head.number - _TOLD)
            changed = self._co.store.read(
                "seal.changed", lambda tx: tx.chain.newest(begin, head.number)
            )
        for subject, number in changed:
            self.streams.bump(subject, number)

    def _run(self) -> None:
        limits = self._co.limits
        while not self._stopping.is_set():
            self._once()
            if self._wake.wait(limits.seal_look_s) and not self._heard.is_set():
                # What is written in a burst is sealed in one batch, with one flush to disk.
                rest = self._found_at + limits.seal_pause_s - time.monotonic()
                self._stopping.wait(max(_GATHER_S, rest))
            self._wake.clear()
            self._heard.clear()
        self._once()
        self._release()

    def _once(self) -> None:
        try:
            self.run_once()
        except StoreError as error:
            log.warning("sealer_store_error", error=type(error).__name__)
        except Exception as error:  # the thread outlives every defect
            log.error("sealer_error", error=type(error).__name__, exc_info=error)

    def _release(self) -> None:
        co = self._co
        try:
            look = co.store.read("seal.look", lambda tx: tx.chain.look())
            if look.lease_holder == co.holder:
                co.store.run_tx("seal.release", lambda tx: tx.chain.release(co.holder))
        except StoreError as error:
            log.warning("sealer_store_error", error=type(error).__name__)


#: A process that starts on a long trail tells of the last entries alone: nobody waits for others.
_TOLD = 10_000
