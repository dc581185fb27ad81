"""A site answers a round."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Annotated

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from fedclust.wire.models import Receipt
from fedclust_service.domain.access import Actor, require
from fedclust_service.http.bodies import BINARY, JSON, EitherBody, either_body, reply
from fedclust_service.http.context import (
    CoordinatorOf,
    RoundNumber,
    SessionName,
    allowed,
    bearer_token,
    service_of,
)
from fedclust_service.http.describe import described, ref
from fedclust_service.http.direct import direct, named, numbered
from fedclust_service.http.sealed_head import SEALED_HEAD, with_head
from fedclust_service.http.trace import trace_of
from fedclust_service.orchestration import principals, rounds
from fedclust_service.orchestration.coordinator import Coordinator
from fedclust_service.orchestration.rounds import Admitted, Submitted

TASK_ETAG = "Fedclust-Task-ETag"
_ACTION = "submission.put"
_BINARY = {"schema": {"type": "string", "format": "binary"}}


def _plain(request: Request) -> Awaitable[Response] | None:
    session, number = named(request), numbered(request)
    if session is None or number is None:
        return None
    return _submission(request, session, number)


async def _submission(request: Request, session: str, number: int) -> Response:
    """As `put_submission`; who asks and what is asked are read in one transaction."""
    co, token = service_of(request).coordinator, bearer_token(request)

    def look() -> tuple[Actor, Admitted | None]:
        actor, seen = principals.read_as(
            co,
            token,
            "submission.look",
            lambda tx, actor: (actor, rounds.foreseen(tx, actor, session, number)),
        )
        trace_of(request).actor = actor
        require(actor, _ACTION)
        return actor, seen

    actor, seen = await run_in_threadpool(look)
    content, media = await either_body(request)

    def submit() -> Response:
        return _receipt(co, rounds.submit(co, actor, session, number, content, media, seen))

    return await run_in_threadpool(submit)


router = APIRouter(tags=["submissions"], route_class=direct(_plain))


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
        "stored-data-damaged",
        body={JSON: {"schema": ref("Submission")}, BINARY: _BINARY},
        headers={
            TASK_ETAG: "The task's ETag from now on: wait with it for what comes next. Absent "
            "where something new is to be read already.",
            **SEALED_HEAD,
        },
    ),
)
def put_submission(
    actor: Annotated[Actor, allowed(_ACTION)],
    co: CoordinatorOf,
    session: SessionName,
    number: RoundNumber,
    body: EitherBody,
) -> Response:
    content, media = body
    return _receipt(co, rounds.submit(co, actor, session, number, content, media))


def _receipt(co: Coordinator, submitted: Submitted) -> Response:
    status = 201 if submitted.created else 200
    headers = {TASK_ETAG: submitted.task_etag} if submitted.task_etag is not None else {}
    return reply(submitted.receipt, status, with_head(co, headers))
