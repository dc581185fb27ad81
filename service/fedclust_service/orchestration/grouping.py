"""Group commit: work that waits for the same lock shares one transaction, and so one fsync.

A group has threads of its own. One of them commits what waits for a lock, until nothing does; the
callers leave their work behind and go, so that no thread that reads ever waits for a lock. On
SQLite all work waits for the one writer, on PostgreSQL for the lock of its session. Each piece of
work has a savepoint of its own: a refusal undoes it alone. Nobody is told anything before the
commit.
"""

from __future__ import annotations

import contextvars
import functools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from fedclust_service.domain.refusal import Refusal
from fedclust_service.orchestration.change import Change, commit
from fedclust_service.store import StoreBusy, StoreUnavailable, Tx

if TYPE_CHECKING:
    from fedclust_service.orchestration.coordinator import Coordinator

T = TypeVar("T")
#: A transaction keeps every other writer waiting.
_MOST = 64
#: Sessions that may wait for their locks at a time, on PostgreSQL.
_WRITERS = 8


@dataclass(eq=False)
class _Job(Generic[T]):
    work: Callable[[Change], T | Refusal]
    done: Future[T] = field(default_factory=Future)
    # Log lines name the request that they belong to.
    context: contextvars.Context = field(default_factory=contextvars.copy_context)

    def end(self, last: Callable[[], T | Refusal]) -> None:
        """Pass on what ``last`` returns or raises. Whoever writes goes on with the others."""
        try:
            value = self.context.run(last)
        except BaseException as error:
            self.done.set_exception(error)
            return
        if isinstance(value, Refusal):
            self.done.set_exception(value)
        else:
            self.done.set_result(value)


class Group:
    """Commits work of one kind together. Any thread.

    Parameters
    ----------
    co : Coordinator
    name : str
        Of the transactions.
    """

    def __init__(self, co: Coordinator, name: str) -> None:
        self._co = co
        self._name = name
        self._lock = threading.Lock()
        writers = 1 if co.store.single_process else _WRITERS
        self._writers = ThreadPoolExecutor(writers, thread_name_prefix=f"fedclust-{name}")
        #: What waits, by what it waits for; an entry is there as long as somebody writes.
        self._waiting: dict[str, list[_Job[Any]]] = {}

    def commit(self, session: str, work: Callable[[Change], T | Refusal]) -> Future[T]:
        """Have ``work`` committed by one of the group's threads; this one waits for nothing.

        As in :func:`change.commit`, ``work`` MUST be fit to run again. A refusal that it raises
        undoes it; one that it returns is committed and then raised. The future MUST NOT be
        cancelled.

        Parameters
        ----------
        session : str
            Whose lock ``work`` takes first.
        work : callable
        """
        job = _Job(work)
        lock = "" if self._co.store.single_process else session
        with self._lock:
            if lock in self._waiting:
                self._waiting[lock].append(job)
                return job.done
            self._waiting[lock] = [job]
        self._writers.submit(self._write, lock)
        return job.done

    def _write(self, lock: str) -> None:
        while batch := self._next(lock):
            if len(batch) == 1:
                self._alone(batch[0])
            else:
                self._together(batch)

    def _next(self, lock: str) -> list[_Job[Any]]:
        with self._lock:
            waiting = self._waiting[lock]
            batch, self._waiting[lock] = waiting[:_MOST], waiting[_MOST:]
            if not batch:
                del self._waiting[lock]
        return batch

    def _together(self, batch: Sequence[_Job[Any]]) -> None:
        ends: list[Callable[[], Any]] = []

        def attempt(tx: Tx) -> None:
            ends.clear()
            for job in batch:
                change = Change(self._co, tx)
                try:
                    with tx.savepoint():
                        value = job.work(change)
                except Refusal as refusal:
                    ends.append(functools.partial(_value, refusal))
                else:
                    ends.append(functools.partial(_value, value, change))

        try:
            self._co.store.run_tx(self._name, attempt)
        except (StoreBusy, StoreUnavailable) as error:
            for job in batch:
                job.done.set_exception(error)
        except BaseException:
            # Nothing is committed. Whose work failed is found out one by one.
            for job in batch:
                self._alone(job)
        else:
            for job, end in zip(batch, ends, strict=True):
                job.end(end)

    def _alone(self, job: _Job[Any]) -> None:
        job.end(lambda: commit(self._co, self._name, job.work))


def _value(value: T, change: Change | None = None) -> T:
    if change is not None:
        change.committed()
    return value
