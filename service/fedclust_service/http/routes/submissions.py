"""A site answers a round."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from starlette.responses import Response

from fedclust.wire.models import Receipt
from fedclust_service.domain.access import Actor
from fedclust_service.http.bodies import EitherBody, reply
from fedclust_service.http.context import CoordinatorOf, RoundNumber, SessionName, allowed
from fedclust_service.http.describe import described, ref
from fedclust_service.http.openapi import SUBMISSION
from fedclust_service.http.sealed_head import SEALED_HEAD, with_head
from fedclust_service.orchestration import rounds

router = APIRouter(tags=["submissions"])
TASK_ETAG = "Fedclust-Task-ETag"


@router.put(
    "/v1/sessions/{session}/rounds/{number}/submission",
    operation_id="put_submission",
    summary="Answer a round",
    description="Sites. Exactly once: the same bytes again give the first receipt, whatever has "
    "happened since; other bytes are refused. A 2xx answer means that the submission is stored "
    "durably. `payload` null is an empty answer.",
    **described(
        {
            201: ("Stored.", ref(Receipt)),
            200: ("These bytes were stored before.", ref(Receipt)),
        },
        "unauthenticated",
        "forbidden",
        "not-found",
        "not-addressed",
        "wrong-state",
        "submission-differs",
        "task-mismatch",
        "round-closed",
        "request-timeout",
        "body-too-large",
        "unsupported-media-type",
        "invalid",
        "disclosure-refused",
        body=SUBMISSION,
        headers={
            TASK_ETAG: "The task's ETag from now on: wait with it for what comes next. Absent "
            "where something new is to be read already.",
            **SEALED_HEAD,
        },
    ),
)
def put_submission(
    actor: Annotated[Actor, allowed("submission.put")],
    co: CoordinatorOf,
    session: SessionName,
    number: RoundNumber,
    body: EitherBody,
) -> Response:
    content, media = body
    submitted = rounds.submit(co, actor, session, number, content, media)
    status = 201 if submitted.created else 200
    headers = {TASK_ETAG: submitted.task_etag} if submitted.task_etag is not None else {}
    return reply(submitted.receipt, status, with_head(co, headers))
