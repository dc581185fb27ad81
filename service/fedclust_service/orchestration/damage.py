"""What a request does that finds stored data damaged."""

from __future__ import annotations

import functools

import structlog

from fedclust_service.domain.refusal import Refusal
from fedclust_service.domain.session import SessionState
from fedclust_service.orchestration.change import COORDINATOR, Change, commit
from fedclust_service.orchestration.closing import fail_damaged
from fedclust_service.orchestration.coordinator import Coordinator
from fedclust_service.store import DataDamaged, StoreError

__all__ = ["DataDamaged", "refusal_of"]
log = structlog.get_logger(__name__)


def refusal_of(co: Coordinator, session: str | None, damage: DataDamaged) -> Refusal:
    """Record damage, which ends a running session; return the refusal of the request."""
    try:
        # A row that cannot be read may belong to anybody.
        if session is not None and damage.what != "row":
            commit(co, "damage.found", functools.partial(_record, session, damage))
    except StoreError as error:  # the next request finds the damage again
        log.warning("damage_not_recorded", error=type(error).__name__)
    return Refusal(
        "stored-data-damaged",
        f"The stored {damage.what} is not what was stored. The coordinator's operator must restore "
        "a backup.",
    )


def _record(name: str, damage: DataDamaged, change: Change) -> None:
    tx = change.tx
    session = tx.sessions.lock(name)
    current = tx.rounds.latest(session.id) if session is not None else None
    if session is not None and current is not None and session.state is SessionState.RUNNING:
        fail_damaged(change, session, current.number, damage)
    else:
        change.audit(COORDINATOR, f"{damage.what}.damaged", name)
