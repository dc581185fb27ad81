"""What was accepted of a site's protected tables; operators accept another chain."""

from typing import Annotated

from fastapi import Path

from fedclust.wire.models import TABLE_ID, Page, SiteTableInfo, TableAcceptance
from fedclust_service.http.api_route import api_router, refusals
from fedclust_service.http.dependencies import (
    Caller,
    CallerOf,
    CursorOf,
    LimitOf,
    SiteName,
    allowed,
)
from fedclust_service.usecases import site_tables

router = api_router(prefix="/v1/sites/{site}/tables", tags=["sites"])


@router.get("", summary="List a site's protected tables", openapi_extra=refusals("forbidden"))
def list_site_tables(
    caller: CallerOf, site: SiteName, limit: LimitOf = 50, cursor: CursorOf = None
) -> Page[SiteTableInfo]:
    """Operators, and the site itself: a site whose state was restored sees whether it lacks a
    change. Number and head of the change that was accepted last, by the tables' ids.
    """
    return site_tables.list_tables(*caller, site, limit, cursor)


@router.put(
    "/{table_id}",
    summary="Accept a chain of a site's protected table",
    openapi_extra=refusals("forbidden"),
)
def accept_site_table(
    caller: Annotated[Caller, allowed("table.accept")],
    site: SiteName,
    table_id: Annotated[str, Path(pattern=TABLE_ID, description="The table's id.")],
    body: TableAcceptance,
) -> SiteTableInfo:
    """Operators. For a site that asks for it, because its store was restored from a backup and no
    newer one is left. The next join must have this head at this number. A second time changes
    nothing.
    """
    return site_tables.accept_table(*caller, site, table_id, body)
