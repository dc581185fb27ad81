"""What a site should do now. Waiting requests hold a coroutine, not a thread."""

import time
from collections.abc import Callable
from typing import Annotated

from fastapi import Depends, Query, Request
from starlette.responses import Response

from fedclust.wire.submissions import BINARY, JSON
from fedclust_service.domain.access import Refusal
from fedclust_service.http.api_route import (
    BINARY_CONTENT,
    IfNoneMatch,
    api_router,
    headers,
    known_tasks,
    ref,
    refusals,
    task_tags,
)
from fedclust_service.http.bodies import AUDIT_HEAD_HEADER, negotiate, reply_as, with_audit_head
from fedclust_service.http.dependencies import (
    SessionName,
    bearer,
    bearer_token,
    context_of,
    for_site,
    service_of,
)
from fedclust_service.usecases import tasks
from fedclust_service.usecases.coordinator import Coordinator
from fedclust_service.usecases.tasks import TaskView

_HEADERS = headers({"ETag": "Send it as If-None-Match with the next request.", **AUDIT_HEAD_HEADER})
router = api_router(tags=["tasks"])
WaitOf = Annotated[
    float,
    Query(
        ge=0,
        le=25,
        allow_inf_nan=False,
        description="Seconds to wait for a change, if `If-None-Match` matches.",
    ),
]


@router.get(
    "/v1/sessions/{session}/task",
    summary="What this site should do now",
    response_class=Response,
    responses={
        200: {
            "content": {JSON: {"schema": ref("TaskResponse")}, BINARY: BINARY_CONTENT},
            **_HEADERS,
        },
        304: {"description": "Nothing new.", **_HEADERS},
    },
    openapi_extra=refusals("forbidden", "not-acceptable", "stored-data-damaged", "unavailable"),
)
async def get_task(
    request: Request,
    _: Annotated[object, Depends(bearer)],
    session: SessionName,
    wait: WaitOf = 0.0,
    _known: IfNoneMatch = None,
) -> Response:
    """Sites. Without an If-None-Match that matches it answers at once; with one it waits at most
    `wait` seconds for a change and gives 304. The ETag belongs to one representation, JSON or
    binary, and covers all but `progress`.
    """
    service = service_of(request)
    co = service.coordinator
    token, media = bearer_token(request), negotiate(request, [JSON, BINARY])
    known = known_tasks(request, media)
    ends = time.monotonic() + min(wait, service.settings.long_poll_max)
    asking = (co, token, session, known, context_of(request).identify)

    # Each look authenticates again: the token may have been revoked during the wait.
    def look(recorded: bool) -> tuple[TaskView, Response | None]:
        return _view_response(co, tasks.current_task(*asking, recorded=recorded), known, media)

    view, response = await for_site(request, lambda: look(True))
    response = response or await changed_view(request, session, view, ends, lambda: look(False))
    if response is not None:
        return response
    if wait and co.notifier.closed:
        raise Refusal("unavailable", "The coordinator restarts; ask again.", retry_after_s=2)
    tag = {"ETag": task_tags(view.digest, [media])}
    return Response(status_code=304, headers={**tag, "Vary": "Accept"})


async def changed_view(
    request: Request,
    session: str,
    view: TaskView,
    ends: float,
    look: Callable[[], tuple[TaskView, Response | None]],
) -> Response | None:
    """Wait until ``look`` returns a response; None if the time or the coordinator ends before.

    ``view`` is what the client knows, ``ends`` a time of `time.monotonic`.
    """
    notifier = service_of(request).coordinator.notifier
    while (left := ends - time.monotonic()) > 0:
        await notifier.wait(session, view.version, left)
        if notifier.closed:
            break
        view, response = await for_site(request, look)
        if response is not None:
            return response
    return None


def _view_response(
    co: Coordinator, view: TaskView, known: set[str], media: str
) -> tuple[TaskView, Response | None]:
    """Return a view with its response; None if the client has this view already.

    Call it in a thread: serialising a large task would block the event loop.
    """
    if view.digest in known or "*" in known:
        return view, None
    tag = {"ETag": task_tags(view.digest, [media])}
    return view, reply_as(media, view.response, 200, with_audit_head(co, tag))
