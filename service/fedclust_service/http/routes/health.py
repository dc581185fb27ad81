"""Whether the process runs and can serve, in words why not, and metrics for Prometheus."""

import asyncio
import re
from typing import Annotated, Literal

import structlog
from fastapi import Depends, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import PlainTextResponse, Response

from fedclust.schema.model import Model
from fedclust_service.addresses import is_loopback
from fedclust_service.domain.access import Refusal, require
from fedclust_service.http.api_route import api_router, refusals
from fedclust_service.http.dependencies import actor_of, bearer, service_of
from fedclust_service.metrics import CONTENT_TYPE
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


router = api_router(tags=["health"])
_CHECK_SECONDS = 5.0
#: Headers that proxies add. A request with one of them began on another machine.
_FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")

_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9.-]+)(?::[0-9]+)?", re.IGNORECASE)


class Liveness(Model):
    """The process answers."""

    status: Literal["ok"]


class Readiness(Model):
    """The process can serve.

    ``listening``: whether this worker learns of others' changes at once; null on SQLite.
    """

    status: Literal["ok"]
    listening: bool | None


@router.get("/healthz", summary="Liveness", openapi_extra={"security": []})
async def healthz() -> Liveness:
    """Answers while the process runs; does not use the database."""
    return Liveness(status="ok")


@router.get(
    "/readyz",
    summary="Readiness",
    description="The database answers and has this program's schema; driver and sweeper run; "
    "clocks agree. A worker whose listening connection is broken can serve. Otherwise `reasons` of "
    "the problem names what is wrong: " + ", ".join(f"`{reason}`" for reason in REASONS) + ".",
    openapi_extra={"security": []},
)
async def readyz(request: Request) -> Readiness:
    co = service_of(request).coordinator
    try:
        async with asyncio.timeout(_CHECK_SECONDS):
            reasons = await run_in_threadpool(faults, co)
    except TimeoutError:
        reasons = ["database-silent"]
    if reasons:
        raise Refusal("unavailable", REASONS[reasons[0]], retry_after_s=5, reasons=reasons)
    return Readiness(status="ok", listening=co.listening)


@router.get(
    "/metrics",
    summary="Metrics",
    response_class=PlainTextResponse,
    # The coordinator's machine needs no token.
    openapi_extra={"security": [{}], **refusals("forbidden")},
)
async def metrics(request: Request, _: Annotated[object, Depends(bearer)]) -> Response:
    """Prometheus' text form. Operators; without a token only from the coordinator's machine, and
    only without a proxy.
    """
    if not _from_this_machine(request):
        require(await run_in_threadpool(actor_of, request), "metrics.read")
    text = await run_in_threadpool(service_of(request).metrics.text)
    return Response(text, headers={"Content-Type": CONTENT_TYPE, "Cache-Control": "no-store"})


def _from_this_machine(request: Request) -> bool:
    """Whether a request without a token comes from this machine and was not forwarded."""
    if service_of(request).settings.behind_proxy or "authorization" in request.headers:
        return False
    if any(name in request.headers for name in _FORWARDED):
        return False
    # A web page whose name resolves to this machine could otherwise read them through a browser.
    named = _HOST.fullmatch(request.headers.get("host", ""))
    if named is None or request.client is None:
        return False
    return is_loopback(request.client.host) and is_loopback(named[1].strip("[]"))
