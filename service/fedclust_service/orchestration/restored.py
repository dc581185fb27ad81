"""What an operator did to the database or its clock at the coordinator's machine."""

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


def record_accepted_clock(co: Coordinator, behind_s: float) -> None:
    """Have the audit trail say that its last entry bears a wrong time, and by how much."""
    commit(
        co,
        "clock.record",
        lambda change: change.audit(
            COORDINATOR, "clock.accepted", "database", behind_s=round(behind_s)
        ),
    )
