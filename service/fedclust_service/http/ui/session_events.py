"""Tell an open page that its session has changed, as server-sent events.

The page then asks for what it shows, so that it always shows what a reload would.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from fedclust_service.domain.refusal import Refusal
from fedclust_service.http.dependencies import service_of
from fedclust_service.http.request_context import context_of
from fedclust_service.http.routes.events import (
    NOTHING,
    RETRY,
    STREAM,
    EventStream,
    batches,
    read_number,
)
from fedclust_service.http.sign_in_cookie import cookie_of
from fedclust_service.http.ui.page_request import open_route
from fedclust_service.usecases.coordinator import Coordinator
from fedclust_service.usecases.events import EventBatch, read_events
from fedclust_service.usecases.sign_ins import signed_in_again

#: Many sites that answer at once make a page load one or two times.
LEAST_PAUSE_SECONDS = 1.0


async def _events(request: Request) -> Response:
    cookie, co = cookie_of(request), service_of(request).coordinator
    if cookie is None:
        raise Refusal("unauthenticated", "Sign in to see this page.")
    session = str(request.path_params["session"])
    last = request.headers.get("Last-Event-ID") or request.query_params.get("after")
    after = read_number(last)

    def read(after: int) -> EventBatch:
        return read_events(co, lambda tx: signed_in_again(co, tx, cookie), session, after)

    first = await run_in_threadpool(read, after)
    if first.ended and not first.events:
        return Response(status_code=204)
    if co.sealer.streams.closed:
        raise Refusal("unavailable", "The coordinator restarts; ask again.", retry_after_s=2)
    if context_of(request).head:
        return Response(None, 200, media_type=STREAM)
    return EventStream(_changes(co, session, read, first))


async def _changes(
    co: Coordinator, session: str, read: Callable[[int], EventBatch], first: EventBatch
) -> AsyncIterator[bytes]:
    yield RETRY
    last = first.last
    async for batch in batches(co, session, read, first):
        if batch is None:
            yield NOTHING
            continue
        last = batch.last
        yield _message("changed", last)
        if batch.ended:
            yield _message("ended", last)
            return
        await asyncio.sleep(LEAST_PAUSE_SECONDS)
    if not co.sealer.streams.closed:  # the sign-in has ended
        yield _message("changed", last)


def _message(event: str, number: int) -> bytes:
    # Without data a browser ignores an event.
    return f"id: {number}\nevent: {event}\ndata: {number}\n\n".encode()


ROUTES = (open_route("/sessions/{session}/events", _events, "GET"),)
