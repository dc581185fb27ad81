"""A write transaction together with the log lines and wake-ups that wait for its commit."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TypeAlias, TypeVar

import structlog

from fedclust_service.domain.access import Actor
from fedclust_service.domain.notification import Outgoing
from fedclust_service.orchestration.core import CoordinatorCore
from fedclust_service.store import Tx

log = structlog.get_logger(__name__)
T = TypeVar("T")
Detail: TypeAlias = str | int | float | bool | None

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
        self._co = co
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

    @property
    def outgoing(self) -> Outgoing:
        """Which notifications are sent, and to whom."""
        return self._co.outgoing

    def wake_driver(self) -> None:
        """Wake the driver after the commit."""
        self._aggregation_due = True

    def committed(self) -> None:
        """Write the log lines and wake the threads. Call this after the commit."""
        for action, who, subject, details in self._entries:
            log.info(action, actor=who, subject=subject, **details)
            self._co.observer.happened(action)
        if self._entries:
            self._co.sealing_due.set()
        if self._aggregation_due:
            self._co.aggregation_due.set()


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
