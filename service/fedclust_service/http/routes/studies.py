"""Studies: defined, read, deleted."""

from typing import Annotated

from starlette.responses import Response

from fedclust.definition.study import StudyCreate, StudyInfo
from fedclust.wire.models import Page
from fedclust_service.domain.access import Actor
from fedclust_service.http.api_route import NO_CONTENT, api_router, locate, refusals, same_before
from fedclust_service.http.dependencies import (
    ActorOf,
    CoordinatorOf,
    CursorOf,
    LimitOf,
    StudyName,
    allowed,
)
from fedclust_service.usecases import studies

router = api_router(prefix="/v1/studies", tags=["studies"])


@router.post(
    "",
    summary="Define a study",
    status_code=201,
    responses=same_before(StudyInfo),
    openapi_extra=refusals("forbidden", "name-taken", "stored-data-damaged"),
)
def create_study(
    actor: Annotated[Actor, allowed("study.create")],
    co: CoordinatorOf,
    body: StudyCreate,
    response: Response,
) -> StudyInfo:
    """Analysts and operators. What several sessions of the same sites have in common. It never
    changes. The same body by the same creator again gives the existing study.
    """
    info, created = studies.create_study(co, actor, body)
    locate(response, f"/v1/studies/{info.name}", created=created)
    return info


@router.get("", summary="List studies")
def list_studies(
    actor: ActorOf, co: CoordinatorOf, limit: LimitOf = 50, cursor: CursorOf = None
) -> Page[StudyInfo]:
    """Operators see all studies, analysts those they created, sites those that name them. Newest
    first. Damaged ones are left out.
    """
    return studies.list_studies(co, actor, limit, cursor)


@router.get("/{study}", summary="Read a study", openapi_extra=refusals("stored-data-damaged"))
def get_study(actor: ActorOf, co: CoordinatorOf, study: StudyName) -> StudyInfo:
    """What its sessions have in common, and the names of those that the token may see. For a site
    `approval`, `expires`, `sites`, `features` and `defaults` are null.
    """
    return studies.get_study(co, actor, study)


@router.delete(
    "/{study}",
    summary="Delete a study without sessions",
    **NO_CONTENT,
    openapi_extra=refusals("forbidden", "wrong-state"),
)
def delete_study(
    actor: Annotated[Actor, allowed("study.manage")], co: CoordinatorOf, study: StudyName
) -> None:
    """Its analyst and operators. Afterwards its name can be used again. While it has sessions it
    stays (409 `wrong-state`). The same person may repeat the request.
    """
    studies.delete_study(co, actor, study)
