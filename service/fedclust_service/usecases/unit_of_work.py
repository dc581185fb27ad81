"""A write transaction together with the log lines and wake-ups that wait for its commit.

Group commit: work that waits for the same lock shares one transaction and one fsync.

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
from datetime import datetime
from typing import Any, Concatenate, Generic, ParamSpec, TypeAlias, TypeVar

import structlog

from fedclust_service.domain.access import Actor, Refusal, require
from fedclust_service.store import StoreBusy, StoreUnavailable, Tx
from fedclust_service.usecases.core import CoordinatorCore

log = structlog.get_logger(__name__)
P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")
Detail: TypeAlias = str | int | float | bool | None

#: What an actor asks for, as a function of a transaction and as one of the coordinator.
Work: TypeAlias = Callable[Concatenate[S, Actor, P], T]
UseCase: TypeAlias = Callable[Concatenate[CoordinatorCore, Actor, P], T]
#: The actor of what the driver and the sweeper do.
COORDINATOR = "coordinator"


class UnitOfWork:
    """A transaction in progress. Everything that it writes has the time ``now``.

    Log lines and wake-ups wait for the commit, because a transaction may be rolled back and run
    again.
    """

    def __init__(self, co: CoordinatorCore, tx: Tx) -> None:
        self.tx = tx
        self.now: datetime = tx.now
        self.co = co
        self._entries: list[tuple[str, str, str, dict[str, Detail]]] = []
        self._aggregation_due = False

    def audit(self, actor: Actor | str, action: str, subject: str, **details: Detail) -> None:
        """Write an entry of the audit trail and, after the commit, a log line.

        ``details`` are small facts: names, numbers of rounds, hashes, rules. Never data. What an
        actor did gets the detail ``via``: through the API or on a page.
        """
        if isinstance(actor, str):
            who = actor
        else:
            who, details["via"] = actor.key, actor.via
        self.tx.audit.append(who, action, subject, details, self.now)
        self._entries.append((action, who, subject, details))

    def wake_driver(self) -> None:
        """Wake the driver after the commit."""
        self._aggregation_due = True

    def committed(self) -> None:
        """Write the log lines and wake the threads. Call this after the commit."""
        for action, who, subject, details in self._entries:
            log.info(action, actor=who, subject=subject, **details)
            self.co.observer.happened(action)
        if self._entries:
            self.co.sealing_due.set()
        if self._aggregation_due:
            self.co.aggregation_due.set()


def commit(co: CoordinatorCore, name: str, work: Callable[[UnitOfWork], T | Refusal]) -> T:
    """Run ``work`` in a write transaction; it MUST be safe to run again.

    A refusal that it raises undoes it; a refusal that it returns is committed and then raised.
    """

    def attempt(tx: Tx) -> tuple[T | Refusal, UnitOfWork]:
        uow = UnitOfWork(co, tx)
        return work(uow), uow

    return _committed(*co.store.run_tx(name, attempt))


def _committed(value: T | Refusal, uow: UnitOfWork) -> T:
    """Return what work has returned, or raise it; call this after the commit."""
    uow.committed()
    if isinstance(value, Refusal):
        raise value
    return value


def reads(right: str, name: str) -> Callable[[Work[Tx, P, T]], UseCase[P, T]]:
    """Make a use case of a function that reads in a transaction called ``name``.

    The use case takes the coordinator in place of the transaction. It first checks that the actor
    has the right: one of :data:`access.PERMISSIONS`.
    """
    return lambda work: _use_case(work, right, lambda co, bound: co.store.read(name, bound))


def writes(right: str, name: str) -> Callable[[Work[UnitOfWork, P, T | Refusal]], UseCase[P, T]]:
    """Make a use case of a function that writes, as :func:`reads` does; raises as `commit`."""
    return lambda work: _use_case(work, right, lambda co, bound: commit(co, name, bound))


def _use_case(
    work: Work[S, P, R], right: str, run: Callable[[CoordinatorCore, Callable[[S], R]], T]
) -> UseCase[P, T]:
    @functools.wraps(work)
    def use_case(co: CoordinatorCore, actor: Actor, /, *args: P.args, **kwargs: P.kwargs) -> T:
        require(actor, right)
        return run(co, lambda on: work(on, actor, *args, **kwargs))

    return use_case


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

    def end(self, last: Callable[[], T]) -> None:
        """Pass what ``last`` returns or raises to the future; never raise here."""
        try:
            self.done.set_result(self.context.run(last))
        except BaseException as error:
            self.done.set_exception(error)


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

        ``work`` first takes the lock of ``session``, and is otherwise that of :func:`commit`. The
        future MUST NOT be cancelled.
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
                ends.append(functools.partial(_committed, job.work(uow), uow))

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
