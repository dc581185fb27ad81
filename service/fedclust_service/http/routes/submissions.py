"""A site answers a round."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from fedclust.wire.models import Receipt
from fedclust_service.domain.access import Actor, require
from fedclust_service.http.bodies import BINARY, JSON, either_body, reply
from fedclust_service.http.context import (
    RoundNumber,
    SessionName,
    bearer,
    bearer_token,
    for_site,
    service_of,
)
from fedclust_service.http.describe import described, ref
from fedclust_service.http.parts import check_keys
from fedclust_service.http.sealed_head import SEALED_HEAD, with_head
from fedclust_service.http.trace import trace_of
from fedclust_service.orchestration import principals, rounds
from fedclust_service.orchestration.rounds import Admitted

TASK_ETAG = "Fedclust-Task-ETag"
_BINARY = {"schema": {"type": "string", "format": "binary"}}

router = APIRouter(tags=["submissions"])


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
async def put_submission(
    request: Request,
    _: Annotated[object, Depends(bearer)],
    session: SessionName,
    number: RoundNumber,
) -> Response:
    co, token = service_of(request).coordinator, bearer_token(request)

    # Who asks and what is asked are read in one transaction, before anything of the body is.
    def look(tx: Any, actor: Actor, seen: Any) -> tuple[Actor, Admitted | None]:
        trace_of(request).actor = actor
        require(actor, "submission.put")
        return actor, rounds.foreseen(tx, seen)

    asking = (co, token, "submission.look", session, number, look)
    actor, seen = await for_site(request, lambda: principals.read_as_site(*asking))
    content, media = await either_body(request)
    check = check_keys if media == JSON else None
    stored = await for_site(
        request, lambda: rounds.submit(co, actor, session, number, content, media, seen, check)
    )
    # What is under way is stored whether or not its sender still waits.
    submitted = await asyncio.shield(asyncio.wrap_future(stored))
    headers = {} if submitted.task_etag is None else {TASK_ETAG: submitted.task_etag}
    return reply(submitted.receipt, 201 if submitted.created else 200, with_head(co, headers))
