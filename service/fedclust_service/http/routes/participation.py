"""Sites join with their consent, leave, are excluded."""

from __future__ import annotations

from typing import Annotated

from starlette.responses import Response

from fedclust.wire.models import Participation, ParticipationInfo
from fedclust_service.domain.access import Actor
from fedclust_service.http.bodies import JsonBody, parse, reply
from fedclust_service.http.dependencies import (
    ActorOf,
    CoordinatorOf,
    SessionName,
    SiteName,
    allowed,
    api_router,
)
from fedclust_service.http.describe import described, ref
from fedclust_service.orchestration import participation

router = api_router(prefix="/v1/sessions/{session}/participation", tags=["participation"])


@router.put(
    "",
    operation_id="join_session",
    summary="Join a session",
    description="Sites. Names the SHA-256 of the definition that is consented to, further "
    "consents, the features that the site has, its own least group size, its size band, the heads "
    "of its protected table and what its SDK speaks. Repeating it changes nothing.",
    **described(
        {
            201: ("Joined.", ref(ParticipationInfo)),
            200: (
                "Joined with the same body before; or joined late: asked from the next round.",
                ref(ParticipationInfo),
            ),
        },
        "forbidden",
        "not-found",
        "wrong-state",
        "consent-mismatch",
        "consent-needed",
        "session-expired",
        "table-changed",
        "table-heads-needed",
        "version-unsupported",
        "late-joining-refused",
        "stored-data-damaged",
        body=ref(Participation),
    ),
)
def join(
    actor: Annotated[Actor, allowed("session.join")],
    co: CoordinatorOf,
    session: SessionName,
    body: JsonBody,
) -> Response:
    info, created = participation.join(co, actor, session, parse(Participation, body))
    return reply(info, 201 if created else 200)


@router.delete(
    "",
    operation_id="leave_session",
    summary="Leave a session, or decline the invitation",
    description="Sites. What was stored still counts; nothing more is asked. Idempotent.",
    **described({204: ("Left.", None)}, "forbidden", "not-found", "wrong-state"),
)
def leave(actor: ActorOf, co: CoordinatorOf, session: SessionName) -> Response:
    participation.leave(co, actor, session)
    return Response(status_code=204)


@router.delete(
    "/{site}",
    operation_id="exclude_site",
    summary="Exclude a site",
    description="Its analyst and operators. What was stored still counts. Idempotent.",
    **described({204: ("Excluded.", None)}, "forbidden", "not-found", "wrong-state"),
)
def exclude(actor: ActorOf, co: CoordinatorOf, session: SessionName, site: SiteName) -> Response:
    participation.exclude(co, actor, session, site)
    return Response(status_code=204)
