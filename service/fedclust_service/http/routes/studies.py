"""Studies: defined, read, deleted."""

from __future__ import annotations

from typing import Annotated

from starlette.responses import Response

from fedclust.study import StudyCreate, StudyInfo
from fedclust_service.domain.access import Actor
from fedclust_service.http.bodies import JsonBody, parse, reply
from fedclust_service.http.dependencies import (
    ActorOf,
    CoordinatorOf,
    CursorOf,
    LimitOf,
    StudyName,
    allowed,
    api_router,
)
from fedclust_service.http.describe import described, page_of, ref
from fedclust_service.orchestration import studies

router = api_router(prefix="/v1/studies", tags=["studies"])


@router.post(
    "",
    operation_id="create_study",
    summary="Define a study",
    description="Analysts and operators. What several sessions of the same sites have in common. "
    "It never changes. The same body by the same creator again gives the existing study.",
    **described(
        {
            201: ("Created.", ref(StudyInfo)),
            200: ("It was created with the same body before.", ref(StudyInfo)),
        },
        "forbidden",
        "name-taken",
        "stored-data-damaged",
        body=ref(StudyCreate),
    ),
)
def create(
    actor: Annotated[Actor, allowed("study.create")], co: CoordinatorOf, body: JsonBody
) -> Response:
    info, created = studies.create_study(co, actor, parse(StudyCreate, body))
    if not created:
        return reply(info)
    return reply(info, 201, {"Location": f"/v1/studies/{info.name}"})


@router.get(
    "",
    operation_id="list_studies",
    summary="List studies",
    description="Operators see all studies, analysts those they created, sites those that name "
    "them. Newest first. Damaged ones are left out.",
    **described({200: ("A page of studies.", page_of(StudyInfo))}, "invalid"),
)
def index(
    actor: ActorOf, co: CoordinatorOf, limit: LimitOf = 50, cursor: CursorOf = None
) -> Response:
    return reply(studies.list_studies(co, actor, limit, cursor))


@router.get(
    "/{study}",
    operation_id="get_study",
    summary="Read a study",
    description="What its sessions have in common, and the names of those that the token may see. "
    "For a site `approval`, `expires`, `sites`, `features` and `defaults` are null.",
    **described({200: ("The study.", ref(StudyInfo))}, "not-found", "stored-data-damaged"),
)
def read(actor: ActorOf, co: CoordinatorOf, study: StudyName) -> Response:
    return reply(studies.get_study(co, actor, study))


@router.delete(
    "/{study}",
    operation_id="delete_study",
    summary="Delete a study without sessions",
    description="Its analyst and operators. Afterwards its name can be used again. While it has "
    "sessions it stays (409 `wrong-state`). The same person may repeat the request.",
    **described({204: ("Deleted.", None)}, "forbidden", "not-found", "wrong-state"),
)
def delete(
    actor: Annotated[Actor, allowed("study.manage")], co: CoordinatorOf, study: StudyName
) -> Response:
    studies.delete_study(co, actor, study)
    return Response(status_code=204)
