"""Whether the coordinator can serve, and in words why not."""

import structlog

from fedclust_service.usecases.coordinator import Coordinator

log = structlog.get_logger(__name__)
#: The ``reasons`` of `/readyz`, and what the operator should know or do.
REASONS = {
    "shutting-down": "The coordinator is shutting down.",
    "thread-ended": "A background thread has ended: restart the coordinator.",
    "machine-clock": "This machine's clock differs from the coordinator's time: set the clock, "
    "or restart the coordinator if it is right.",
    "database-clock": "The database's clock was set while the coordinator ran: set it back, or "
    "restart the coordinator if it is right.",
    "database-damaged": "The database is damaged, or its file was moved or deleted: stop the "
    "coordinator, and put the file back or restore a backup.",
    "database-unchecked": "The check of the database at the start is still running: wait.",
    "database-read-only": "The last write failed: the database is read-only.",
    "database-cannot-be-opened": "The last write failed: the database cannot be opened.",
    "database-permission-refused": "The last write failed: the database refuses permission.",
    "disk-full": "The last write failed: the database's disk is full.",
    "disk-error": "The last write failed: reading or writing the database failed.",
    "database-silent": "The database does not answer.",
    "database-schema": "The database's schema was changed while this process ran: restart it with "
    "the version that changed it. After a restore, run fedclust-service db upgrade.",
}


def faults(co: Coordinator) -> list[str]:
    """Return why the coordinator cannot serve: keys of :data:`REASONS`, the worst first."""
    if co.notifier.closed:
        return ["shutting-down"]
    reasons = []
    if co.clock.fault is not None:
        reasons.append(co.clock.fault.value)
    reasons += [fault.value for fault in co.store.faults]
    if not co.alive:
        reasons.append("thread-ended")
    try:
        if co.store.migration_head() != co.store.expected_migration():
            reasons.append("database-schema")
    except Exception as error:
        # Whatever the driver raises, the database is not usable now.
        log.warning("not_ready", exc_info=error)
        reasons.append("database-silent")
    return reasons
