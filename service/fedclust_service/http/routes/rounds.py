"""Rounds without payloads: who answered, who is late, why a round ended."""

from fedclust.wire.models import Page, RoundInfo
from fedclust_service.http.api_route import api_router, refusals
from fedclust_service.http.dependencies import (
    ActorOf,
    CoordinatorOf,
    CursorOf,
    LimitOf,
    RoundNumber,
    SessionName,
)
from fedclust_service.usecases import rounds

router = api_router(prefix="/v1/sessions/{session}/rounds", tags=["rounds"])


@router.get("", summary="List a session's rounds")
def list_rounds(
    actor: ActorOf,
    co: CoordinatorOf,
    session: SessionName,
    limit: LimitOf = 50,
    cursor: CursorOf = None,
) -> Page[RoundInfo]:
    """Its analyst, operators and its sites. Of other sites, a site reads only the names and whether
    they answered.
    """
    return rounds.list_rounds(co, actor, session, limit, cursor)


@router.get("/{number}", summary="Read a round")
def get_round(
    actor: ActorOf, co: CoordinatorOf, session: SessionName, number: RoundNumber
) -> RoundInfo:
    """State, phase, deadline, who answered, metrics and timings."""
    return rounds.get_round(co, actor, session, number)


@router.post(
    "/{number}/close",
    summary="Close a round before its deadline",
    openapi_extra=refusals("forbidden", "wrong-state", "quorum-missing", "needs-all-sites"),
)
def close_round(
    actor: ActorOf, co: CoordinatorOf, session: SessionName, number: RoundNumber
) -> RoundInfo:
    """Its analyst and operators; the quorum must have answered, and a phase that needs all its
    sites refuses. Idempotent.
    """
    return rounds.close_round(co, actor, session, number)
