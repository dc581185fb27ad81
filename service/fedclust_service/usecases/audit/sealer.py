"""The sealer: numbers and chains the audit entries that have been committed.

A transaction inserts its entries without number and hash. Entries with higher ids can be committed
earlier on PostgreSQL, and if each transaction chained its own, they would have to wait for one
another. Therefore one thread of one process, which holds a lease, seals committed entries. It
writes numbers, hashes and the head in one transaction, so a crash leaves a complete batch or none.
Every process reads the sealed entries and wakes its event streams.
"""

import math
import threading
import time
from collections.abc import Iterable
from datetime import timedelta

from fedclust_service.background import BackgroundThread
from fedclust_service.domain.audit_chain import Head
from fedclust_service.store import Tx
from fedclust_service.store.audit import SealedBatch
from fedclust_service.usecases.core import CoordinatorCore, survived
from fedclust_service.usecases.notifier import Notifier

_BATCH = 500
#: The wait for entries that are written together with the one that woke the thread.
_GATHER_S = 0.05
#: A process that starts on a long trail wakes streams for this many newest entries; no stream can
#: wait for older ones.
_NEWEST = 10_000


class Sealer(BackgroundThread):
    """Runs :meth:`run_once` after each commit with entries, and at regular intervals.

    ``streams`` wakes the streams of a session when an entry about it is sealed. Its versions are
    the entries' numbers.
    """

    def __init__(self, co: CoordinatorCore) -> None:
        super().__init__("fedclust-sealer")
        self._co = co
        self._heard = threading.Event()
        #: The last sealed entry that this process knows; None before the first look.
        self.head: Head | None = None
        # When the last entry to seal was found.
        self._found_at = -math.inf
        self.streams = Notifier()

    def start(self) -> None:
        """Void the lease of a dead process, if it is certain that it is dead; start the thread."""
        if self._co.store.single_process:
            self._co.store.run_tx("seal.take_over", lambda tx: tx.chain.release())
        super().start()

    def head_changed(self, number: int) -> None:
        """Read the trail now if some process sealed a head that is newer. Any thread."""
        if self.head is None or number > self.head.number:
            self._heard.set()
            self._co.sealing_due.set()

    def ask_to_stop(self) -> None:
        """End all streams, and the thread after one last look. Any thread."""
        self.streams.close()
        super().ask_to_stop()
        self._co.sealing_due.set()

    def run_once(self) -> bool:
        """Seal all entries in the calling thread and wake streams; False if another one seals."""
        co = self._co
        state = co.store.read("seal.look", lambda tx: tx.chain.state())
        self._announce(state.head)
        if not state.waiting:
            return True
        self._found_at = time.monotonic()
        if not state.may_seal(co.holder, co.clock.now()):
            return False
        while True:
            batch = co.store.run_tx("seal", self._seal)
            if batch is None:
                return False
            self._announce(batch.head, batch)
            if not batch.full:
                return True

    def _seal(self, tx: Tx) -> SealedBatch | None:
        now = self._co.clock.now()
        until = now + timedelta(seconds=self._co.limits.seal_lease_s)
        return tx.chain.seal(self._co.holder, now, until, _BATCH)

    def _announce(self, head: Head, batch: SealedBatch | None = None) -> None:
        known, self.head = self.head, head
        # Streams that began before the first look wait for numbers from 0 on.
        after = 0 if known is None else known.number
        if head.number <= after:
            return
        if batch is not None and batch.after == after:
            changed: Iterable[tuple[str, int]] = batch.subjects.items()
        else:
            begin = max(after, head.number - _NEWEST)
            changed = self._co.store.read(
                "seal.changed", lambda tx: tx.chain.newest(begin, head.number)
            )
        for subject, number in changed:
            self.streams.bump(subject, number)

    def _run(self) -> None:
        limits = self._co.limits
        while not self._stopping.is_set():
            self._once()
            if self._co.sealing_due.wait(limits.seal_look_s) and not self._heard.is_set():
                # A burst of entries is sealed in one batch, with one flush to disk.
                rest = self._found_at + limits.seal_pause_s - time.monotonic()
                self._stopping.wait(max(_GATHER_S, rest))
            self._co.sealing_due.clear()
            self._heard.clear()
        self._once()
        self._release()

    def _once(self) -> None:
        with survived("sealer"):
            self.run_once()

    def _release(self) -> None:
        co = self._co
        with survived("sealer"):
            state = co.store.read("seal.look", lambda tx: tx.chain.state())
            if state.lease_holder == co.holder:
                co.store.run_tx("seal.release", lambda tx: tx.chain.release(co.holder))
