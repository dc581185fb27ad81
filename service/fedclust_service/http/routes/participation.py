"""Sites join with their consent, leave, are excluded."""

from typing import Annotated

from starlette.responses import Response

from fedclust.wire.models import Participation, ParticipationInfo
from fedclust_service.domain.access import Actor
from fedclust_service.http.api_route import NO_CONTENT, api_router, refusals
from fedclust_service.http.dependencies import (
    ActorOf,
    CoordinatorOf,
    SessionName,
    SiteName,
    allowed,
)
from fedclust_service.usecases import participation

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
    actor: Annotated[Actor, allowed("session.join")],
    co: CoordinatorOf,
    session: SessionName,
    body: Participation,
    response: Response,
) -> ParticipationInfo:
    """Sites. Names the SHA-256 of the definition that is consented to, further consents, the
    features that the site has, its own least group size, its size band, the heads of its protected
    table and what its SDK speaks. Repeating it changes nothing.
    """
    info, created = participation.join(co, actor, session, body)
    response.status_code = 201 if created else 200
    return info


@router.delete(
    "",
    summary="Leave a session, or decline the invitation",
    **NO_CONTENT,
    openapi_extra=refusals("forbidden", "wrong-state"),
)
def leave_session(actor: ActorOf, co: CoordinatorOf, session: SessionName) -> None:
    """Sites. What was stored still counts; nothing more is asked. Idempotent."""
    participation.leave(co, actor, session)


@router.delete(
    "/{site}",
    summary="Exclude a site",
    **NO_CONTENT,
    openapi_extra=refusals("forbidden", "wrong-state"),
)
def exclude_site(actor: ActorOf, co: CoordinatorOf, session: SessionName, site: SiteName) -> None:
    """Its analyst and operators. What was stored still counts. Idempotent."""
    participation.exclude(co, actor, session, site)
