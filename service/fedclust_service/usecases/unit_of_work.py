"""A write transaction together with the log lines and wake-ups that wait for its commit."""

import functools
from collections.abc import Callable
from datetime import datetime
from typing import Concatenate, ParamSpec, TypeAlias, TypeVar

import structlog

from fedclust_service.domain.access import Actor, require
from fedclust_service.store import Tx
from fedclust_service.usecases.core import CoordinatorCore

log = structlog.get_logger(__name__)
P = ParamSpec("P")
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


def commit(co: CoordinatorCore, name: str, work: Callable[[UnitOfWork], T]) -> T:
    """Run ``work`` in a write transaction; it MUST be safe to run again."""
    uow: UnitOfWork | None = None

    def attempt(tx: Tx) -> T:
        nonlocal uow
        uow = UnitOfWork(co, tx)
        return work(uow)

    value = co.store.run_tx(name, attempt)
    if uow is not None:
        uow.committed()
    return value


def reads(right: str, name: str) -> Callable[[Work[Tx, P, T]], UseCase[P, T]]:
    """Make a use case of a function that reads in a transaction called ``name``.

    The use case takes the coordinator in place of the transaction. It first checks that the actor
    has the right: one of :data:`access.PERMISSIONS`.
    """
    return lambda work: _use_case(work, right, lambda co, bound: co.store.read(name, bound))


def writes(right: str, name: str) -> Callable[[Work[UnitOfWork, P, T]], UseCase[P, T]]:
    """Make a use case of a function that writes, as :func:`reads` does; it may run twice."""
    return lambda work: _use_case(work, right, lambda co, bound: commit(co, name, bound))


def _use_case(
    work: Work[S, P, T], right: str, run: Callable[[CoordinatorCore, Callable[[S], T]], T]
) -> UseCase[P, T]:
    @functools.wraps(work)
    def use_case(co: CoordinatorCore, actor: Actor, /, *args: P.args, **kwargs: P.kwargs) -> T:
        require(actor, right)
        return run(co, lambda on: work(on, actor, *args, **kwargs))

    return use_case
