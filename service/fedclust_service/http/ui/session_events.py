"""Tell an open page that its session has changed, as server-sent events.

The page then asks for what it shows, so that it always shows what a reload would.
"""

import asyncio
from collections.abc import AsyncIterator
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from fedclust_service.http.dependencies import service_of
from fedclust_service.http.routes.events import NOTHING, Batches, block, read_number, stream_events
from fedclust_service.http.sign_in import cookie_of
from fedclust_service.http.ui.page_request import open_route
from fedclust_service.usecases.events import FOR_ALL, Event, EventBatch, read_events
from fedclust_service.usecases.sign_ins import signed_in

#: Many sites that answer at once make a page load one or two times.
LEAST_PAUSE_SECONDS = 1.0


#: What changes the page of a result.
_OF_NAMES = frozenset({"result.named"})


async def _events(wanted: frozenset[str], request: Request) -> Response:
    cookie, co = cookie_of(request) or "", service_of(request).coordinator
    session = str(request.path_params["session"])
    known = request.headers.get("Last-Event-ID") or request.query_params.get("after")

    # A stream may live longer than its sign-in.
    def read(after: int) -> EventBatch:
        return read_events(co, signed_in(co, cookie, used=False).actor, session, after, wanted)

    async def changes(batches: Batches) -> AsyncIterator[bytes]:
        last = read_number(known)
        async for batch in batches:
            if batch is None:
                yield NOTHING
                continue
            last = batch.last
            yield block(Event(last, "changed", {}))
            if batch.ended:
                yield block(Event(last, "ended", {}))
                return
            await asyncio.sleep(LEAST_PAUSE_SECONDS)
        if not co.sealer.streams.closed:  # the sign-in has ended
            yield block(Event(last, "changed", {}))

    return await stream_events(request, session, read, known, changes)


ROUTES = (
    open_route("/sessions/{session}/events", partial(_events, FOR_ALL), "GET"),
    open_route("/sessions/{session}/names/events", partial(_events, _OF_NAMES), "GET"),
)
