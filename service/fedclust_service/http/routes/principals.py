"""Routes that register and disable sites, analysts and operators and issue their tokens."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from fedclust.wire.models import (
    PrincipalCreate,
    PrincipalInfo,
    PrincipalPatch,
    TokenCreate,
    TokenIssued,
)
from fedclust_service.domain.access import Actor, Role
from fedclust_service.http.bodies import JsonBody, OptionalJsonBody, parse, reply
from fedclust_service.http.dependencies import (
    NAME,
    ActorOf,
    CoordinatorOf,
    CursorOf,
    LimitOf,
    TokenId,
    allowed,
    api_router,
)
from fedclust_service.http.describe import described, page_of, ref
from fedclust_service.http.etags import TAG_HEADER, IfMatch, IfNoneMatch, tagged, unchanged
from fedclust_service.orchestration import principals

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
        **described(
            {
                201: ("Registered.", ref(PrincipalInfo)),
                200: ("It was registered with the same body before.", ref(PrincipalInfo)),
            },
            "forbidden",
            "name-taken",
            body=ref(PrincipalCreate),
        ),
    )
    def create(
        actor: Annotated[Actor, allowed("principal.create")], co: CoordinatorOf, body: JsonBody
    ) -> Response:
        request = parse(PrincipalCreate, body)
        info, created = principals.create_principal(co, actor, role, request)
        if not created:
            return reply(info)
        return reply(info, 201, {"Location": f"/v1/{many}/{info.name}"})

    @router.get(
        "",
        operation_id=f"list_{many}",
        summary=f"List {many}",
        description=f"{readers}. By name.",
        **described({200: (f"A page of {many}.", page_of(PrincipalInfo))}, "forbidden", "invalid"),
    )
    def index(
        actor: ActorOf, co: CoordinatorOf, limit: LimitOf = 50, cursor: CursorOf = None
    ) -> Response:
        return reply(principals.list_principals(co, actor, role, limit, cursor))

    @router.get(
        "/{name}",
        operation_id=f"get_{one}",
        summary=f"Read one {one}",
        description=f"{readers}. Tokens' ids and dates are shown to operators only.",
        **described(
            {200: (f"The {one}.", ref(PrincipalInfo)), 304: ("The client has it.", None)},
            "forbidden",
            "not-found",
            headers=TAG_HEADER,
        ),
    )
    def read(
        request: Request,
        actor: ActorOf,
        co: CoordinatorOf,
        name: PrincipalName,
        _known: IfNoneMatch = None,
    ) -> Response:
        document = principals.get_principal(co, actor, role, name)
        return tagged(request, reply(document), document)

    @router.patch(
        "/{name}",
        operation_id=f"change_{one}",
        summary=f"Change {article} {one}'s title, disable or enable it",
        description=f"Operators. The tokens of a disabled one stop working at once.{kept}",
        **described(
            {200: ("Changed.", ref(PrincipalInfo))},
            "forbidden",
            "not-found",
            "precondition-failed",
            *last,
            body=ref(PrincipalPatch),
        ),
    )
    def change(
        actor: Annotated[Actor, allowed("principal.change")],
        co: CoordinatorOf,
        name: PrincipalName,
        request: Request,
        body: JsonBody,
        _expected: IfMatch = None,
    ) -> Response:
        patch, check = parse(PrincipalPatch, body), unchanged(request)
        return reply(principals.patch_principal(co, actor, role, name, patch, check))

    @router.post(
        "/{name}/tokens",
        operation_id=f"issue_{one}_token",
        summary="Issue a token",
        description="Operators. The answer is the only place where the token is ever shown. "
        "Earlier tokens stay valid until they expire or are revoked.",
        **described(
            {201: ("Issued.", ref(TokenIssued))},
            "forbidden",
            "not-found",
            body=ref(TokenCreate),
            body_required=False,
        ),
    )
    def issue(
        actor: Annotated[Actor, allowed("token.issue")],
        co: CoordinatorOf,
        name: PrincipalName,
        body: OptionalJsonBody,
    ) -> Response:
        request = parse(TokenCreate, body)
        return reply(principals.issue_token(co, actor, role, name, request), 201)

    @router.delete(
        "/{name}/tokens/{token_id}",
        operation_id=f"revoke_{one}_token",
        summary="Revoke a token",
        description=f"Operators. It stops working at once; a second time changes nothing.{kept}",
        **described({204: ("Revoked.", None)}, "forbidden", "not-found", *last),
    )
    def revoke(
        actor: ActorOf, co: CoordinatorOf, name: PrincipalName, token_id: TokenId
    ) -> Response:
        principals.revoke_token(co, actor, role, name, token_id)
        return Response(status_code=204)

    return router


routers = (
    _router(Role.SITE, "Operators and analysts"),
    _router(Role.ANALYST, "Operators"),
    _router(Role.OPERATOR, "Operators"),
)
