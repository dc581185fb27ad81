"""Whether the process runs, and whether it can serve."""

from __future__ import annotations

import asyncio
from typing import Literal

import structlog
from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from fedclust.schema.model import Model
from fedclust_service.domain.refusal import Refusal
from fedclust_service.http.bodies import reply
from fedclust_service.http.dependencies import service_of
from fedclust_service.http.describe import described, ref
from fedclust_service.orchestration.coordinator import Coordinator

log = structlog.get_logger(__name__)
#: The ``reasons`` of `/readyz`, and what the operator should know or do.
REASONS = {
    "shutting-down": "The coordinator is shutting down.",
    "thread-ended": "A background thread has ended: restart the coordinator.",
    "machine-clock": "This machine's clock differs from the coordinator's time: set the clock, "
    "or restart the coordinator if it is right.",
    "database-clock": "The database's clock was set while the coordinator ran: set it back, or "
    "restart the coordinator if it is right.",
    "database-damaged": "The database is damaged: move it aside and restore a backup.",
    "database-unchecked": "The check of the database at the start of the process still runs: wait.",
    "database-read-only": "The last write failed: the database is read-only.",
    "database-cannot-be-opened": "The last write failed: the database cannot be opened.",
    "database-permission-refused": "The last write failed: the database refuses permission.",
    "disk-full": "The last write failed: the database's disk is full.",
    "disk-error": "The last write failed: reading or writing the database failed.",
    "database-silent": "The database does not answer.",
    "database-schema": "The database's schema is not this program's: run fedclust-service db "
    "upgrade.",
}
router = APIRouter(tags=["health"])
_CHECK_SECONDS = 5.0


class Liveness(Model):
    """The process answers."""

    status: Literal["ok"]


class Readiness(Model):
    """The process can serve.

    ``listening``: whether this worker learns of others' changes at once; null on SQLite.
    """

    status: Literal["ok"]
    listening: bool | None


@router.get(
    "/healthz",
    operation_id="healthz",
    summary="Liveness",
    description="Answers while the process runs; does not use the database.",
    **described({200: ("It runs.", ref(Liveness))}),
)
async def healthz() -> Response:
    return reply(Liveness(status="ok"))


@router.get(
    "/readyz",
    operation_id="readyz",
    summary="Readiness",
    description="The database answers and has this program's schema; driver and sweeper run; "
    "clocks agree. A worker whose listening connection is broken can serve. Otherwise `reasons` of "
    "the problem names what is wrong: " + ", ".join(f"`{reason}`" for reason in REASONS) + ".",
    **described({200: ("It can serve.", ref(Readiness))}, "unavailable"),
)
async def readyz(request: Request) -> Response:
    co = service_of(request).coordinator
    try:
        async with asyncio.timeout(_CHECK_SECONDS):
            reasons = await run_in_threadpool(_reasons, co)
    except TimeoutError:
        reasons = ["database-silent"]
    if reasons:
        raise Refusal("unavailable", REASONS[reasons[0]], retry_after_s=5, reasons=reasons)
    return reply(Readiness(status="ok", listening=co.listening))


def _reasons(co: Coordinator) -> list[str]:
    """Return why the coordinator cannot serve, the most important reason first."""
    if co.notifier.closed:
        return ["shutting-down"]
    reasons = []
    if co.clock.fault is not None:
        reasons.append(co.clock.fault.value)
    reasons += [fault.value for fault in co.store.faults]
    if not co.alive:
        reasons.append("thread-ended")
    try:
        co.store.ping()
        if co.store.migration_head() != co.store.expected_migration():
            reasons.append("database-schema")
    except Exception as error:
        # Whatever the driver raises, the database is not usable now.
        log.warning("not_ready", exc_info=error)
        reasons.append("database-silent")
    return reasons
