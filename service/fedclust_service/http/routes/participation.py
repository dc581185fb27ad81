"""A site joins a session, reads its tasks, answers or refuses them, and leaves.

Waiting requests hold a coroutine, not a thread.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Any

from fastapi import Depends, Query, Request
from starlette.responses import Response

from fedclust.wire.models import Participation, ParticipationInfo, SubmissionReceipt, TaskRefusal
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
from fedclust_service.http.bodies import (
    AUDIT_HEAD_HEADER,
    check_repeated_keys,
    either_body,
    negotiate,
    reply_as,
    with_audit_head,
)
from fedclust_service.http.dependencies import (
    Caller,
    CallerOf,
    RoundNumber,
    SessionName,
    SiteName,
    allowed,
    bearer,
    bearer_token,
    context_of,
    for_site,
    service_of,
)
from fedclust_service.usecases import participation, submissions
from fedclust_service.usecases.damage import TEMPORARY, DataDamaged
from fedclust_service.usecases.submissions import Submitted, TaskView

router = api_router(prefix="/v1/sessions/{session}/participation", tags=["participation"])


@router.put(
    "",
    summary="Join a session",
    status_code=201,
    response_description="Joined.",
    responses={
        200: {
            "description": "Joined with the same body before; or joined late: asked from the next "
            "round.",
            "model": ParticipationInfo,
        }
    },
    openapi_extra=refusals(
        "forbidden",
        "wrong-state",
        "consent-mismatch",
        "consent-needed",
        "session-expired",
        "table-changed",
        "table-heads-needed",
        "version-unsupported",
        "late-joining-refused",
        "stored-data-damaged",
    ),
)
def join_session(
    caller: Annotated[Caller, allowed("session.join")],
    session: SessionName,
    body: Participation,
    response: Response,
) -> ParticipationInfo:
    """Sites. Names the SHA-256 of the definition that is consented to, further consents, the
    features that the site has, its own least group size, its size band, the heads of its protected
    table and what its SDK speaks. Repeating it changes nothing.
    """
    info, created = participation.join(*caller, session, body)
    response.status_code = 201 if created else 200
    return info


@router.delete(
    "",
    summary="Leave a session, or decline the invitation",
    openapi_extra=refusals("forbidden", "wrong-state"),
)
def leave_session(caller: CallerOf, session: SessionName) -> None:
    """Sites. What was stored still counts; nothing more is asked. Idempotent."""
    participation.leave(*caller, session)


@router.delete(
    "/{site}", summary="Exclude a site", openapi_extra=refusals("forbidden", "wrong-state")
)
def exclude_site(caller: CallerOf, session: SessionName, site: SiteName) -> None:
    """Its analyst and operators. What was stored still counts. Idempotent."""
    participation.exclude(*caller, session, site)


_TASK_HEADERS = headers(
    {"ETag": "Send it as If-None-Match with the next request.", **AUDIT_HEAD_HEADER}
)
tasks_router = api_router(tags=["tasks"])


def _wait_of(description: str) -> Any:
    """Return the parameter of the query for how long a request waits, in seconds."""
    return Query(ge=0, le=25, allow_inf_nan=False, description=description)


@tasks_router.get(
    "/v1/sessions/{session}/task",
    summary="What this site should do now",
    response_class=Response,
    responses={
        200: {
            "content": {JSON: {"schema": ref("TaskResponse")}, BINARY: BINARY_CONTENT},
            **_TASK_HEADERS,
        },
        304: {"description": "Nothing new.", **_TASK_HEADERS},
    },
    openapi_extra=refusals("forbidden", "not-acceptable", "stored-data-damaged", "unavailable"),
)
async def get_task(
    request: Request,
    _: Annotated[object, Depends(bearer)],
    session: SessionName,
    wait: Annotated[
        float, _wait_of("Seconds to wait for a change, if `If-None-Match` matches.")
    ] = 0.0,
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

    # Each look authenticates again: the token may have been revoked during the wait. In a thread,
    # because serialising a large task would block the event loop.
    def look(recorded: bool) -> tuple[TaskView, Response | None]:
        view = submissions.current_task(*asking, recorded=recorded)
        if view.digest in known or "*" in known:  # the client has this view already
            return view, None
        tag = {"ETag": task_tags(view.digest, [media])}
        return view, reply_as(media, view.response, 200, with_audit_head(co, tag))

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


TASK_ETAG = "Fedclust-Task-ETag"

_RECEIPT_HEADERS = headers(
    {
        TASK_ETAG: "The task's new ETags, one for each representation: send them as "
        "If-None-Match to wait for the next task. Absent if the task has changed again already.",
        **AUDIT_HEAD_HEADER,
    }
)
_RECEIPT = {
    "content": {JSON: {"schema": ref("SubmissionReceipt")}, BINARY: BINARY_CONTENT},
    **_RECEIPT_HEADERS,
}
submissions_router = api_router(tags=["submissions"])


@submissions_router.put(
    "/v1/sessions/{session}/rounds/{number}/submission",
    summary="Answer a round",
    status_code=201,
    response_description="Stored.",
    response_class=Response,
    responses={
        200: {"description": "These bytes were stored before.", **_RECEIPT},
        201: _RECEIPT,
    },
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {JSON: {"schema": ref("Submission")}, BINARY: BINARY_CONTENT},
        },
        **refusals(
            "forbidden",
            "not-addressed",
            "wrong-state",
            "submission-differs",
            "task-mismatch",
            "round-closed",
            "disclosure-refused",
            "not-acceptable",
            "stored-data-damaged",
        ),
    },
)
async def put_submission(
    request: Request,
    _: Annotated[object, Depends(bearer)],
    session: SessionName,
    number: RoundNumber,
    wait: Annotated[
        float, _wait_of("Seconds to wait for the next task, which then comes with the receipt.")
    ] = 0.0,
) -> Response:
    """Sites. Exactly once: the same bytes again give the first receipt at any time; other bytes are
    refused. A 2xx answer means that the submission is stored durably. `payload` null is an empty
    answer. With `wait` the receipt comes together with the next task, as `next`, or without it when
    the time is over, or at once if too many requests wait.
    """
    service, token = service_of(request), bearer_token(request)
    co, context = service.coordinator, context_of(request)
    submitted, media = await _store(request, token, session, number)

    def reply(view: TaskView | None, *, changed: bool = False) -> Response:
        receipt = submitted.receipt
        if changed and view is not None:
            receipt = SubmissionReceipt(**vars(receipt), next=view.response)
        sent = {} if view is None else {TASK_ETAG: task_tags(view.digest)}
        status = 201 if submitted.created else 200
        return reply_as(media, receipt, status, with_audit_head(co, sent))

    if not wait or submitted.view is None or not context.may_wait():
        return reply(submitted.view)
    known = {submitted.view.digest}

    def look() -> tuple[TaskView, Response | None]:
        view = submissions.current_task(co, token, session, known, context.identify, recorded=False)
        return view, None if view.digest in known else reply(view, changed=True)

    ends = time.monotonic() + min(wait, service.settings.long_poll_max)
    # The answer is stored, whatever keeps the next task from being read: reading it says so.
    with suppress(Refusal, DataDamaged, *TEMPORARY):
        following = await changed_view(request, session, submitted.view, ends, look)
        return following or reply(submitted.view)
    return reply(None)


async def _store(request: Request, token: str, session: str, number: int) -> tuple[Submitted, str]:
    """Store a submission; return also the media type of the answer.

    The body is dropped with this call: the caller may wait on.
    """
    co, identify = service_of(request).coordinator, context_of(request).identify
    actor, seen = await for_site(
        request, lambda: submissions.admit(co, token, session, number, identify)
    )
    answer = negotiate(request, [JSON, BINARY])
    content, media = await either_body(request)
    body = submissions.Body(content, media, check_repeated_keys if media == JSON else None)
    stored = await for_site(
        request, lambda: submissions.submit(co, actor, session, number, body, seen)
    )
    # The answer is stored even if its sender has gone.
    return await asyncio.shield(asyncio.wrap_future(stored)), answer


@submissions_router.put(
    "/v1/sessions/{session}/rounds/{number}/refusal",
    summary="Refuse a round's task",
    openapi_extra=refusals("forbidden", "wrong-state"),
)
def refuse_task(
    caller: Annotated[Caller, allowed("submission.put")],
    session: SessionName,
    number: RoundNumber,
    body: TaskRefusal,
) -> ParticipationInfo:
    """Sites. The task breaks a rule of the protocol or asks for something that the definition does
    not provide for. The site leaves the session with it; what was stored still counts. Repeating it
    changes nothing.
    """
    return participation.refuse(*caller, session, number, body)
