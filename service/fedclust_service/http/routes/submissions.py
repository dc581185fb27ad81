"""A site answers a round, or refuses its task."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import Depends, Request
from starlette.responses import Response

from fedclust.wire.models import ParticipationInfo, Receipt, TaskRefusal
from fedclust.wire.submissions import BINARY, JSON
from fedclust_service.domain.access import Actor
from fedclust_service.http.api_route import api_router
from fedclust_service.http.bodies import AUDIT_HEAD_HEADER, either_body, with_audit_head
from fedclust_service.http.body_limits import check_repeated_keys
from fedclust_service.http.dependencies import (
    CoordinatorOf,
    RoundNumber,
    SessionName,
    allowed,
    bearer,
    bearer_token,
    for_site,
    service_of,
)
from fedclust_service.http.describe import BINARY_CONTENT, headers, ref, refusals
from fedclust_service.http.etags import task_tags
from fedclust_service.http.request_context import context_of
from fedclust_service.usecases import participation, submissions

TASK_ETAG = "Fedclust-Task-ETag"

_HEADERS = headers(
    {
        TASK_ETAG: "The task's new ETags, one for each representation: send them as "
        "If-None-Match to wait for the next task. Absent if the task has changed again already.",
        **AUDIT_HEAD_HEADER,
    }
)
router = api_router(tags=["submissions"])


@router.put(
    "/v1/sessions/{session}/rounds/{number}/submission",
    summary="Answer a round",
    status_code=201,
    response_description="Stored.",
    response_model=Receipt,
    responses={
        200: {"description": "These bytes were stored before.", "model": Receipt, **_HEADERS},
        201: _HEADERS,
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
            "stored-data-damaged",
        ),
    },
)
async def put_submission(
    request: Request,
    _: Annotated[object, Depends(bearer)],
    session: SessionName,
    number: RoundNumber,
) -> Response:
    """Sites. Exactly once: the same bytes again give the first receipt at any time; other bytes are
    refused. A 2xx answer means that the submission is stored durably. `payload` null is an empty
    answer.
    """
    co, token = service_of(request).coordinator, bearer_token(request)
    asking = (co, token, session, number, context_of(request).identify)
    actor, seen = await for_site(request, lambda: submissions.admit(*asking))
    content, media = await either_body(request)
    body = submissions.Body(content, media, check_repeated_keys if media == JSON else None)
    stored = await for_site(
        request, lambda: submissions.submit(co, actor, session, number, body, seen)
    )
    # The answer is stored even if its sender has gone.
    submitted = await asyncio.shield(asyncio.wrap_future(stored))
    digest = submitted.task_digest
    sent = {} if digest is None else {TASK_ETAG: task_tags(digest)}
    return Response(
        submitted.receipt.model_dump_json(),
        201 if submitted.created else 200,
        with_audit_head(co, sent),
        media_type=JSON,
    )


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
