"""One write transaction, and what is said and done once it has been committed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import structlog

from fedclust_service.domain.access import Actor
from fedclust_service.store import Tx

if TYPE_CHECKING:
    from fedclust_service.orchestration.coordinator import Coordinator

log = structlog.get_logger(__name__)
T = TypeVar("T")
Detail: TypeAlias = str | int | float | bool | None

#: Who acts when nobody asked: the driver and the sweeper.
COORDINATOR = "coordinator"


class Change:
    """A transaction under way.

    Log lines and the driver's call wait for the commit: a transaction may be rolled back and run
    again, and what did not happen must not be told.

    Attributes
    ----------
    tx : Tx
    now : datetime
        One time for all that the transaction writes.
    """

    def __init__(self, co: Coordinator, tx: Tx) -> None:
        self.tx = tx
        self.now: datetime = tx.now
        self._co = co
        self._said: list[tuple[str, str, str, dict[str, Detail]]] = []
        self._wake = False

    def audit(self, actor: Actor | str, action: str, subject: str, **details: Detail) -> None:
        """Record who did what, in the audit trail and, after the commit, in the log.

        ``details`` are small facts: names, numbers of rounds, hashes, rules. Never data.
        """
        who = actor if isinstance(actor, str) else actor.key
        self.tx.audit.append(who, action, subject, details, self.now)
        self._said.append((action, who, subject, details))

    def wake_driver(self) -> None:
        """Have the driver look for work after the commit."""
        self._wake = True

    def committed(self) -> None:
        """Say and do what waited for the commit."""
        for action, who, subject, details in self._said:
            log.info(action, actor=who, subject=subject, **details)
            self._co.observer.happened(action)
        if self._said:
            self._co.sealer.wake()
        if self._wake:
            self._co.driver.wake()


def commit(co: Coordinator, name: str, work: Callable[[Change], T]) -> T:
    """Run ``work`` in a write transaction; it MUST be fit to run again."""
    change: Change | None = None

    def attempt(tx: Tx) -> T:
        nonlocal change
        change = Change(co, tx)
        return work(change)

    value = co.store.run_tx(name, attempt)
    if change is not None:
        change.committed()
    return value
