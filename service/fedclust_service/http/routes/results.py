"""The result of a completed session."""

from typing import Annotated

from fastapi import Query, Request
from starlette.responses import Response

from fedclust.result.tables import centroid_table
from fedclust.wire.models import ResultDocument
from fedclust.wire.submissions import BINARY, JSON
from fedclust_service.http.api_route import (
    BINARY_CONTENT,
    TAGGED,
    UNREADABLE,
    IfNoneMatch,
    api_router,
    refusals,
    tagged,
)
from fedclust_service.http.bodies import CSV, negotiate, reply_as
from fedclust_service.http.dependencies import CallerOf, SessionName
from fedclust_service.usecases import results

router = api_router(tags=["results"])
_TEXT = {"schema": {"type": "string"}}


@router.get(
    "/v1/sessions/{session}/result",
    summary="Read the result",
    response_model=ResultDocument,
    responses={**TAGGED, 200: {**TAGGED[200], "content": {BINARY: BINARY_CONTENT, CSV: _TEXT}}},
    openapi_extra=refusals("forbidden", "not-acceptable", "result-not-ready", *UNREADABLE),
)
def get_result(
    request: Request,
    caller: CallerOf,
    session: SessionName,
    k: Annotated[
        int | None,
        Query(
            ge=1,
            le=10_000,
            description="For a sweep: the number of clusters of the result to read.",
        ),
    ] = None,
    _known: IfNoneMatch = None,
) -> Response:
    """Its analyst, operators and its sites, each cut to what it may see: centroids in scaled and
    own units, sizes, quality, history, provenance. The CSV has one line for each cluster with its
    size and its centroid in own units. For a sweep, the result has one number of clusters (`choice`
    says why, `tied` what is about as good) and `sweep` holds all; `k` selects one. Excluded sites
    cannot read it.
    """
    media = negotiate(request, [JSON, BINARY, CSV])
    document = results.get_result(*caller, session, k)
    if media != CSV:
        return tagged(request, reply_as(media, document))
    headers = {
        "Vary": "Accept",
        "Content-Disposition": f'attachment; filename="{document.session}.csv"',
    }
    return tagged(request, Response(centroid_table(document), headers=headers, media_type=CSV))
