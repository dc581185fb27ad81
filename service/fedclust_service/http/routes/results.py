"""The result of a completed session."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from fedclust.results import centroid_table
from fedclust.wire.models import AssignmentRequest, Assignments, ResultDocument
from fedclust_service.domain.access import Actor
from fedclust_service.http.bodies import (
    BINARY,
    CSV,
    JSON,
    EitherBody,
    negotiate,
    parse,
    reply,
    reply_as,
)
from fedclust_service.http.context import ActorOf, CoordinatorOf, SessionName, allowed
from fedclust_service.http.describe import described, ref
from fedclust_service.orchestration import results

router = APIRouter(tags=["results"])
_TEXT = {"schema": {"type": "string"}}
_BINARY = {"schema": {"type": "string", "format": "binary"}}


@router.get(
    "/v1/sessions/{session}/result",
    operation_id="get_result",
    summary="Read the result",
    description="Its analyst, operators and its sites, each cut to what it may see: centroids in "
    "scaled and own units, sizes with small ones suppressed, quality, history, provenance. As "
    "CSV: one line a cluster with its size and its centroid in own units. Of a sweep the "
    "recommended number of clusters, and all of them in `sweep`; with `k` that one alone. Not for "
    "a site that was excluded.",
    **described(
        {
            200: (
                "The result.",
                {JSON: {"schema": ref(ResultDocument)}, BINARY: _BINARY, CSV: _TEXT},
            )
        },
        "unauthenticated",
        "forbidden",
        "not-found",
        "not-acceptable",
        "result-not-ready",
        "invalid",
        "stored-data-damaged",
    ),
)
def get_result(
    request: Request,
    actor: ActorOf,
    co: CoordinatorOf,
    session: SessionName,
    k: Annotated[
        int | None,
        Query(ge=1, le=10_000, description="Of a sweep: the result with so many clusters."),
    ] = None,
) -> Response:
    media = negotiate(request, [JSON, BINARY, CSV])
    document = results.get_result(co, actor, session, k)
    if media != CSV:
        return reply_as(media, document)
    headers = {
        "Vary": "Accept",
        "Content-Disposition": f'attachment; filename="{document.session}.csv"',
    }
    return Response(centroid_table(document), headers=headers, media_type=CSV)


@router.post(
    "/v1/sessions/{session}/assignments",
    operation_id="assign_cells",
    summary="Find the clusters of a site that took no part",
    description="Its analyst, operators, and sites that were invited and never joined. For each "
    "cell, given by its mean in the features' own units and the number of its rows, the nearest "
    "cluster of the result; ``features`` names the columns where the session lets sites lack some. "
    "Every cell needs the session's smallest count of rows; at most "
    f"{results.MAX_CELLS:,} at once. Nothing of them is stored; that it was asked is audited. A "
    "site that reads the result needs no request: its SDK labels its rows.",
    **described(
        {200: ("The cluster of each cell, in order.", ref(Assignments))},
        "unauthenticated",
        "forbidden",
        "not-found",
        "result-not-ready",
        "wrong-state",
        "malformed-request",
        "request-timeout",
        "body-too-large",
        "unsupported-media-type",
        "invalid",
        "disclosure-refused",
        "stored-data-damaged",
        body={JSON: {"schema": ref(AssignmentRequest)}, BINARY: _BINARY},
    ),
)
def assign_cells(
    actor: Annotated[Actor, allowed("result.assign")],
    co: CoordinatorOf,
    session: SessionName,
    body: EitherBody,
) -> Response:
    content, media = body
    request = parse(AssignmentRequest, content, media)
    return reply(results.assign(co, actor, session, request))
