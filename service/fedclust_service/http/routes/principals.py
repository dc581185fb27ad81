"""Register and disable sites, analysts and operators; their tokens; sites' protected tables."""

from typing import Annotated

from fastapi import APIRouter, Path
from starlette.responses import Response

from fedclust.wire.models import (
    TABLE_ID,
    Page,
    PrincipalCreate,
    PrincipalInfo,
    PrincipalPatch,
    SiteTableInfo,
    TableAcceptance,
    TokenCreate,
    TokenIssued,
)
from fedclust_service.domain.access import Role
from fedclust_service.http.api_route import api_router, locate, refusals, same_before
from fedclust_service.http.dependencies import (
    NAME,
    Caller,
    CallerOf,
    CursorOf,
    LimitOf,
    SiteName,
    TokenId,
    allowed,
)
from fedclust_service.usecases import principals, site_tables

#: A token with the usual term, for a request without a body.
_DEFAULTS = TokenCreate()
PrincipalName = Annotated[str, Path(pattern=NAME, description="The name it was registered with.")]


# Longer than a screen because a route is its decorator: six routes with their descriptions.
def _router(role: Role, readers: str) -> APIRouter:
    one, many = role.value, f"{role.value}s"
    article = "a" if role is Role.SITE else "an"
    # At least one operator must keep a valid token.
    last = ["last-operator-token"] if role is Role.OPERATOR else []
    kept = " The last valid operator token stays." if last else ""
    router = api_router(prefix=f"/v1/{many}", tags=[many])

    @router.post(
        "",
        operation_id=f"create_{one}",
        summary=f"Register {article} {one}",
        description="Operators. The same body again gives the existing one; names are never "
        "reused.",
        status_code=201,
        responses=same_before(PrincipalInfo),
        openapi_extra=refusals("forbidden", "name-taken"),
    )
    def create(
        caller: Annotated[Caller, allowed("principal.create")],
        body: PrincipalCreate,
        response: Response,
    ) -> PrincipalInfo:
        info, created = principals.create_principal(*caller, role, body)
        locate(response, f"/v1/{many}/{info.name}", created=created)
        return info

    @router.get(
        "",
        operation_id=f"list_{many}",
        summary=f"List {many}",
        description=f"{readers}. By name.",
        openapi_extra=refusals("forbidden"),
    )
    def index(
        caller: CallerOf, limit: LimitOf = 50, cursor: CursorOf = None
    ) -> Page[PrincipalInfo]:
        return principals.list_principals(*caller, role, limit, cursor)

    @router.get(
        "/{name}",
        operation_id=f"get_{one}",
        summary=f"Read one {one}",
        description=f"{readers}. Tokens' ids and dates are shown to operators only.",
        openapi_extra=refusals("forbidden"),
    )
    def read(caller: CallerOf, name: PrincipalName) -> PrincipalInfo:
        return principals.get_principal(*caller, role, name)

    @router.patch(
        "/{name}",
        operation_id=f"change_{one}",
        summary=f"Change {article} {one}'s title, disable or enable it",
        description=f"Operators. The tokens of a disabled one stop working at once.{kept}",
        openapi_extra=refusals("forbidden", *last),
    )
    def change(
        caller: Annotated[Caller, allowed("principal.change")],
        name: PrincipalName,
        body: PrincipalPatch,
    ) -> PrincipalInfo:
        return principals.patch_principal(*caller, role, name, body)

    @router.post(
        "/{name}/tokens",
        operation_id=f"issue_{one}_token",
        summary="Issue a token",
        description="Operators. The answer is the only place where the token is ever shown. "
        "Earlier tokens stay valid until they expire or are revoked.",
        status_code=201,
        openapi_extra=refusals("forbidden"),
    )
    def issue(
        caller: Annotated[Caller, allowed("token.issue")],
        name: PrincipalName,
        body: TokenCreate = _DEFAULTS,
    ) -> TokenIssued:
        return principals.issue_token(*caller, role, name, body)

    @router.delete(
        "/{name}/tokens/{token_id}",
        operation_id=f"revoke_{one}_token",
        summary="Revoke a token",
        description=f"Operators. It stops working at once; a second time changes nothing.{kept}",
        openapi_extra=refusals("forbidden", *last),
    )
    def revoke(caller: CallerOf, name: PrincipalName, token_id: TokenId) -> None:
        principals.revoke_token(*caller, role, name, token_id)

    return router


routers = (
    _router(Role.SITE, "Operators and analysts"),
    _router(Role.ANALYST, "Operators"),
    _router(Role.OPERATOR, "Operators"),
)


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
