"""A site answers a round, or refuses its task."""

import asyncio
import time
from contextlib import suppress
from typing import Annotated

from fastapi import Depends, Query, Request
from starlette.responses import Response

from fedclust.wire.models import ParticipationInfo, SubmissionReceipt, TaskRefusal
from fedclust.wire.submissions import BINARY, JSON
from fedclust_service.domain.access import Actor, Refusal
from fedclust_service.http.api_route import (
    BINARY_CONTENT,
    api_router,
    headers,
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
    CoordinatorOf,
    RoundNumber,
    SessionName,
    allowed,
    bearer,
    bearer_token,
    context_of,
    for_site,
    service_of,
)
from fedclust_service.http.routes.tasks import changed_view
from fedclust_service.usecases import participation, submissions, tasks
from fedclust_service.usecases.damage import TEMPORARY, DataDamaged
from fedclust_service.usecases.submissions import Submitted
from fedclust_service.usecases.tasks import TaskView

TASK_ETAG = "Fedclust-Task-ETag"

_HEADERS = headers(
    {
        TASK_ETAG: "The task's new ETags, one for each representation: send them as "
        "If-None-Match to wait for the next task. Absent if the task has changed again already.",
        **AUDIT_HEAD_HEADER,
    }
)
_RECEIPT = {
    "content": {JSON: {"schema": ref("SubmissionReceipt")}, BINARY: BINARY_CONTENT},
    **_HEADERS,
}
_NEXT_WAIT = Query(
    ge=0,
    le=25,
    allow_inf_nan=False,
    description="Seconds to wait for the next task, which then comes with the receipt.",
)
router = api_router(tags=["submissions"])


@router.put(
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
    wait: Annotated[float, _NEXT_WAIT] = 0.0,
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
        view = tasks.current_task(co, token, session, known, context.identify, recorded=False)
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


@router.put(
    "/v1/sessions/{session}/rounds/{number}/refusal",
    summary="Refuse a round's task",
    openapi_extra=refusals("forbidden", "wrong-state"),
)
def refuse_task(
    actor: Annotated[Actor, allowed("submission.put")],
    co: CoordinatorOf,
    session: SessionName,
    number: RoundNumber,
    body: TaskRefusal,
) -> ParticipationInfo:
    """Sites. The task breaks a rule of the protocol or asks for something that the definition does
    not provide for. The site leaves the session with it; what was stored still counts. Repeating it
    changes nothing.
    """
    return participation.refuse(co, actor, session, number, body)
