"""Pages for operators: the coordinator, the audit trail."""

from typing import Annotated

from fastapi import Query, Request

from fedclust.schema.model import SLUG
from fedclust.schema.times import Timestamp
from fedclust.wire.models import Page
from fedclust_service.domain.access import AuditSearch
from fedclust_service.http.api_route import api_router, refusals
from fedclust_service.http.dependencies import NAME, CallerOf, CursorOf, LimitOf, service_of
from fedclust_service.usecases import admin

router = api_router(prefix="/v1/admin", tags=["admin"])


@router.get("/overview", summary="Overview of the coordinator", openapi_extra=refusals("forbidden"))
def get_overview(request: Request, caller: CallerOf) -> admin.Overview:
    """Operators. Sessions and rounds by state; what needs attention (rounds past their deadline,
    aggregations whose worker died, sessions that cannot start or failed within a week, tokens that
    end within two weeks and have no successor, at most 50 of each; an old backup; a disk that is
    nearly full); the last backup, the database's size, what is free on the coordinator's disk, how
    far clocks differ, versions.
    """
    return admin.overview(*caller, service_of(request).settings.data_dir)


@router.get("/audit", summary="The audit trail", openapi_extra=refusals("forbidden"))
def list_audit(
    caller: CallerOf,
    limit: LimitOf = 50,
    cursor: CursorOf = None,
    session: Annotated[str | None, Query(pattern=NAME, description="Only this session.")] = None,
    actor: Annotated[
        str | None,
        Query(
            pattern=rf"^(coordinator|(site|analyst|operator):{SLUG})$",
            description="Only entries of this actor: `site:north`, `analyst:ada`, `coordinator`.",
        ),
    ] = None,
    action: Annotated[
        str | None,
        Query(
            pattern=r"^[a-z_]{1,40}\.[a-z_]{1,40}$",
            description="Only this action, such as `round.closed`.",
        ),
    ] = None,
    since: Annotated[
        Timestamp | None, Query(description="Only entries from this time on; RFC 3339 with offset.")
    ] = None,
    until: Annotated[
        Timestamp | None, Query(description="Only entries before this time; RFC 3339 with offset.")
    ] = None,
) -> Page[admin.AdminAuditEntry]:
    """Operators, newest first. `number` and `hash` are null for the second or so until an entry is
    sealed.
    """
    search = AuditSearch(subject=session, actor=actor, action=action, since=since, until=until)
    return admin.list_audit(*caller, limit, cursor, search)
