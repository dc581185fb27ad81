"""Whether the process lives, and whether it can serve."""

from __future__ import annotations

import asyncio

import structlog
from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from fedclust_service.domain.refusal import Refusal
from fedclust_service.http.bodies import JSON
from fedclust_service.http.context import service_of
from fedclust_service.http.describe import described
from fedclust_service.orchestration.coordinator import Coordinator

log = structlog.get_logger(__name__)
router = APIRouter(tags=["health"])
_CHECK_SECONDS = 5.0
_STATUS = {"type": "object", "properties": {"status": {"const": "ok"}}, "required": ["status"]}


@router.get(
    "/healthz",
    operation_id="healthz",
    summary="Liveness",
    description="Answers while the process runs; touches no database.",
    **described({200: ("It lives.", _STATUS)}),
)
async def healthz() -> Response:
    return Response('{"status":"ok"}', media_type=JSON)


@router.get(
    "/readyz",
    operation_id="readyz",
    summary="Readiness",
    description="The database answers and has this program's schema; driver and sweeper run.",
    **described({200: ("It can serve.", _STATUS)}, "unavailable"),
)
async def readyz(request: Request) -> Response:
    co = service_of(request).coordinator
    try:
        async with asyncio.timeout(_CHECK_SECONDS):
            fault = await run_in_threadpool(_fault, co)
    except TimeoutError:
        fault = "The database does not answer in time."
    if fault is not None:
        raise Refusal("unavailable", fault, retry_after_s=5)
    return Response('{"status":"ok"}', media_type=JSON)


def _fault(co: Coordinator) -> str | None:
    if co.notifier.closed:
        return "The coordinator is shutting down."
    if not co.alive:
        return "The thread that aggregates or the one that watches deadlines has ended: restart."
    try:
        co.store.ping()
        current, expected = co.store.migration_head(), co.store.expected_migration()
    except Exception as error:
        # Whatever the driver raises, the answer is that the database is not usable now.
        log.warning("not_ready", exc_info=error)
        return "The database does not answer."
    if current != expected:
        return "The database's schema is not this program's: run fedclust-service db upgrade."
    return None
