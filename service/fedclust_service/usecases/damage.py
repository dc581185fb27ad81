"""What a request does when the store fails."""

import functools

import structlog

from fedclust_service.domain.access import Refusal
from fedclust_service.store import DataDamaged, StoreBusy, StoreError, StoreUnavailable, Unwritable
from fedclust_service.usecases.coordinator import Coordinator
from fedclust_service.usecases.round_lifecycle import fail_damaged
from fedclust_service.usecases.unit_of_work import COORDINATOR, UnitOfWork, commit

__all__ = ["TEMPORARY", "DataDamaged", "refusal_of"]
#: Temporary failures, which are answered with 503 instead of 500.
TEMPORARY = (StoreBusy, StoreUnavailable, Unwritable)
log = structlog.get_logger(__name__)


def refusal_of(co: Coordinator, session: str | None, damage: DataDamaged) -> Refusal:
    """Record damage, which fails a running session; return the refusal of the request."""
    try:
        # A row that cannot be read may belong to another session.
        if session is not None and damage.what != "row":
            commit(co, "damage.found", functools.partial(_record, session, damage))
    except StoreError as error:  # the next request finds the damage again
        log.warning("damage_not_recorded", error=type(error).__name__)
    return Refusal(
        "stored-data-damaged",
        f"The stored {damage.what} is damaged. The coordinator's operator must restore a backup.",
    )


def _record(name: str, damage: DataDamaged, uow: UnitOfWork) -> None:
    tx = uow.tx
    session = tx.sessions.get(name, lock=True)
    current = tx.rounds.latest(session.id) if session is not None else None
    if session is not None and current is not None and session.state.under_way:
        fail_damaged(uow, session, current.number, damage)
    else:
        uow.audit(COORDINATOR, f"{damage.what}.damaged", name)
