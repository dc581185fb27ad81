"""The trail of a database that was put back from a backup."""

from __future__ import annotations

from fedclust_service.orchestration.change import COORDINATOR, commit
from fedclust_service.orchestration.coordinator import Coordinator


def record_restore(co: Coordinator, sha256: str) -> None:
    """Have the audit trail say that what follows continues a backup, and which one."""
    commit(
        co,
        "restore.record",
        lambda change: change.audit(COORDINATOR, "database.restored", "database", backup=sha256),
    )
