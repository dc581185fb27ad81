"""Group commit: work that waits for the same lock shares one transaction and one fsync.

Writer threads commit the work that waits for a lock, batch by batch. The callers get a future, so
that no reading thread ever waits for a lock. On SQLite all work waits for the one writer, on
PostgreSQL for the lock of its session. If a piece of work raises, nothing of its batch is stored,
and each piece runs again in a transaction of its own. Futures are done after the commit.
"""

import contextvars
import functools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from fedclust_service.domain.refusal import Refusal
from fedclust_service.store import StoreBusy, StoreUnavailable, Tx
from fedclust_service.usecases.core import CoordinatorCore
from fedclust_service.usecases.unit_of_work import UnitOfWork, commit

T = TypeVar("T")
#: Pieces of work in one transaction. While it runs, every other writer waits.
_MAX_BATCH = 64
#: Writer threads on PostgreSQL: as many sessions may wait for their locks at a time.
_WRITERS = 8


@dataclass(eq=False)
class _Job(Generic[T]):
    work: Callable[[UnitOfWork], T | Refusal]
    done: Future[T] = field(default_factory=Future)
    # The log lines name the request that the work belongs to.
    context: contextvars.Context = field(default_factory=contextvars.copy_context)

    def end(self, last: Callable[[], T | Refusal]) -> None:
        """Pass what ``last`` returns or raises to the future; never raise here."""
        try:
            value = self.context.run(last)
        except BaseException as error:
            self.done.set_exception(error)
            return
        if isinstance(value, Refusal):
            self.done.set_exception(value)
        else:
            self.done.set_result(value)


class GroupCommit:
    """Commits work of one kind together, in transactions called ``name``. Any thread may use it."""

    def __init__(self, co: CoordinatorCore, name: str) -> None:
        self._co = co
        self._name = name
        self._lock = threading.Lock()
        writers = 1 if co.store.single_process else _WRITERS
        self._writers = ThreadPoolExecutor(writers, thread_name_prefix=f"fedclust-{name}")
        #: Waiting work by lock; a lock has an entry as long as a thread writes for it.
        self._waiting: dict[str, list[_Job[Any]]] = {}
        self._writing: set[Future[None]] = set()

    def commit(self, session: str, work: Callable[[UnitOfWork], T | Refusal]) -> Future[T]:
        """Hand ``work`` to a writer thread and return; StoreUnavailable if the group is closed.

        ``work`` first takes the lock of ``session``. It MUST be safe to run again. A refusal that
        it raises undoes it; a refusal that it returns is committed and then raised. The future MUST
        NOT be cancelled.
        """
        job = _Job(work)
        lock = "" if self._co.store.single_process else session
        with self._lock:
            if lock in self._waiting:
                self._waiting[lock].append(job)
                return job.done
            try:
                writing = self._writers.submit(self._write, lock)
            except RuntimeError:  # the executor was shut down
                raise StoreUnavailable(f"{self._name}: the coordinator is stopping") from None
            self._waiting[lock] = [job]
            self._writing.add(writing)
        writing.add_done_callback(self._writing.discard)
        return job.done

    def close(self, timeout_s: float) -> None:
        """Accept no more work, end the threads, and wait for what they still write."""
        self._writers.shutdown(wait=False)
        wait(self._writing.copy(), timeout_s)

    def _write(self, lock: str) -> None:
        while batch := self._next(lock):
            if len(batch) == 1:
                self._alone(batch[0])
            else:
                self._together(batch)

    def _next(self, lock: str) -> list[_Job[Any]]:
        with self._lock:
            waiting = self._waiting[lock]
            batch, self._waiting[lock] = waiting[:_MAX_BATCH], waiting[_MAX_BATCH:]
            if not batch:
                del self._waiting[lock]
        return batch

    def _together(self, batch: Sequence[_Job[Any]]) -> None:
        ends: list[Callable[[], Any]] = []

        def attempt(tx: Tx) -> None:
            ends.clear()
            for job in batch:
                uow = UnitOfWork(self._co, tx)
                ends.append(functools.partial(_value, job.work(uow), uow))

        try:
            self._co.store.run_tx(self._name, attempt)
        except (StoreBusy, StoreUnavailable) as error:
            for job in batch:
                job.done.set_exception(error)
        except BaseException:
            # Nothing is committed.
            for job in batch:
                self._alone(job)
        else:
            for job, end in zip(batch, ends, strict=True):
                job.end(end)

    def _alone(self, job: _Job[Any]) -> None:
        job.end(lambda: commit(self._co, self._name, job.work))


def _value(value: T, uow: UnitOfWork) -> T:
    uow.committed()
    return value
