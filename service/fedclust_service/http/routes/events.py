"""Server-sent events of a session. A stream holds a coroutine while it waits, nothing else."""

import json
import re
from collections.abc import AsyncIterator, Callable
from typing import Annotated, TypeAlias

from fastapi import Header, Path, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from fedclust.wire.models import AuditHead
from fedclust_service.domain.access import Refusal, wrong_field
from fedclust_service.http.api_route import api_router
from fedclust_service.http.dependencies import (
    CallerOf,
    SessionName,
    bearer_token,
    context_of,
    service_of,
)
from fedclust_service.usecases import audit
from fedclust_service.usecases.coordinator import Coordinator
from fedclust_service.usecases.events import Event, EventBatch, read_events
from fedclust_service.usecases.principals import authenticate

router = api_router(tags=["events"])
STREAM = "text/event-stream"
#: Proxies and firewalls close connections that are silent for longer.
KEEP_ALIVE_SECONDS = 15.0
#: The line that only keeps a stream's connection open.
NOTHING = b": nothing new\n\n"
#: What is read one after another; None when nothing happened for a while.
Batches: TypeAlias = AsyncIterator[EventBatch | None]
_NUMBER = re.compile(r"[0-9]{1,18}")
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
_SCHEMA = {
    "type": "string",
    "description": "`id:` a rising number, `event:` what happened, `data:` a JSON object; "
    "lines that begin with a colon keep the connection open.",
}


@router.get(
    "/v1/sessions/{session}/events",
    summary="Follow a session's events",
    response_description="Events, until the session has ended.",
    response_class=Response,
    responses={
        200: {"content": {STREAM: {"schema": _SCHEMA}}},
        204: {"description": "The session has ended and nothing follows."},
    },
)
async def watch_events(
    request: Request,
    caller: CallerOf,
    session: SessionName,
    last_event_id: Annotated[
        str | None,
        Header(description="The last `id` that was read; the stream continues after it."),
    ] = None,
) -> Response:
    """Its analyst, operators and its sites, as server-sent events: from the session's start, or
    after `Last-Event-ID`. The stream ends with the session's end event; 204 tells a reader who has
    that event that nothing follows. Sites learn that other sites answered, but no counts.
    """
    co, token = caller.co, bearer_token(request)

    # A stream may live longer than its token.
    def read(after: int) -> EventBatch:
        return read_events(co, authenticate(co, token, recorded=False), session, after)

    async def lines(batches: Batches) -> AsyncIterator[bytes]:
        async for each in batches:
            yield NOTHING if each is None else b"".join(map(block, each.events))

    return await stream_events(request, session, read, last_event_id, lines)


async def stream_events(
    request: Request,
    session: str,
    read: Callable[[int], EventBatch],
    last_event_id: str | None,
    lines: Callable[[Batches], AsyncIterator[bytes]],
) -> Response:
    """Return a session's events after the last that was read as a stream of ``lines``.

    204 if none will follow. The caller gets the refusals of ``read``.
    """
    co = service_of(request).coordinator
    first = await run_in_threadpool(read, read_number(last_event_id))
    if first.ended and not first.events:
        return Response(status_code=204)
    if co.sealer.streams.closed:
        raise Refusal("unavailable", "The coordinator restarts; ask again.", retry_after_s=2)
    if context_of(request).head:  # only the headers
        head = Response(None, 200, _HEADERS, STREAM)
        del head.headers["Content-Length"]
        return head

    async def content() -> AsyncIterator[bytes]:
        yield b"retry: 2000\n\n"
        async for each in lines(_batches(co, session, read, first)):
            yield each

    context_of(request).stream = True
    return StreamingResponse(content(), 200, _HEADERS, STREAM)


async def _batches(
    co: Coordinator, session: str, read: Callable[[int], EventBatch], batch: EventBatch
) -> Batches:
    """Yield a batch and those that follow, and None when nothing happened for a while.

    It ends with the session, with the coordinator, and when ``read`` refuses: the reader's token
    is revoked or expired, and a new request says which.
    """
    while True:
        if batch.events:
            yield batch
        if batch.ended:
            return
        if not batch.more:
            news = await co.sealer.streams.wait(session, batch.last, KEEP_ALIVE_SECONDS)
            if co.sealer.streams.closed:
                return
            if not news:
                yield None
        try:
            batch = await run_in_threadpool(read, batch.last)
        except Refusal:
            return


def block(event: Event) -> bytes:
    """Return an event as a stream holds it."""
    data = json.dumps(event.data, sort_keys=True, separators=(",", ":"))
    return f"id: {event.number}\nevent: {event.action}\ndata: {data}\n\n".encode()


def read_number(last_event_id: str | None) -> int:
    """Return the number after which a stream continues: 0 for none."""
    if not last_event_id:
        return 0
    if not _NUMBER.fullmatch(last_event_id):
        detail = "Send the id of an event, or no Last-Event-ID."
        raise wrong_field("/Last-Event-ID", "number", "not an event's id", detail)
    return int(last_event_id)


@router.get("/v1/audit/heads/{number}", summary="The hash of a sealed audit entry")
def get_audit_head(
    caller: CallerOf,
    number: Annotated[
        int, Path(ge=1, le=2**53 - 1, description="The entry's number in the chain, from 1.")
    ],
) -> AuditHead:
    """Any token. Sites note number and hash of the last sealed entry with each submission
    (`Fedclust-Audit-Head`). If that entry now has another hash or is gone, the trail was rewritten
    or cut. The answer contains only the hash.
    """
    return audit.head_at(*caller, number)
