"""Operators, analysts and sites, and their tokens."""

import dataclasses
from collections.abc import Callable
from datetime import datetime, timedelta
from importlib.metadata import version
from typing import TypeVar

from fedclust.wire.models import (
    PROTOCOL_VERSION,
    Page,
    PrincipalCreate,
    PrincipalInfo,
    PrincipalPatch,
    TokenCreate,
    TokenInfo,
    TokenIssued,
    WhoAmI,
)
from fedclust_service.domain.access import (
    Actor,
    Principal,
    Refusal,
    Role,
    Token,
    absent,
    require,
    sees_account_details,
)
from fedclust_service.domain.tokens import TokenText, new_token, parse_token
from fedclust_service.store import SiteView, Store, Tx
from fedclust_service.usecases.access_queries import (
    is_part_of_slug,
    is_slug,
    name_in_list,
    page_of,
    read_cursor,
    show,
)
from fedclust_service.usecases.coordinator import Coordinator
from fedclust_service.usecases.unit_of_work import COORDINATOR, UnitOfWork, commit, reads, writes

T = TypeVar("T")
#: A session or a study has no more.
_MOST_SITES = 10_000


def _token_advice(role: Role | None) -> str:
    if role is Role.OPERATOR:
        return (
            "Another operator issues one (fedclust operator token NAME); without any, run "
            "fedclust-service operator-token on the coordinator's machine."
        )
    return "Ask the coordinator's operator for a new one."


# --- tokens ---------------------------------------------------------------------------------------


def authenticate(co: Coordinator, token: str) -> Actor:
    """Return the owner of a bearer token; Refusal ``unauthenticated``."""
    text, now = _parsed(token), co.clock.now()
    found = co.store.read("token.check", lambda tx: tx.tokens.with_owner(text.id))
    row, principal = _valid(co, text, found, now)
    _touch(co, row, principal, now)
    return _actor(row, principal)


def read_as_site(
    co: Coordinator,
    token: str,
    name: str,
    session: str,
    number: int | None,
    look: Callable[[Tx, Actor, SiteView | None], T],
    *,
    recorded: bool = True,
) -> T:
    """Authenticate a site and read its session and round, the latest for None, in one statement.

    ``look`` gets the session as the token's owner sees it as a site; the caller gets its refusals.
    ``recorded``: whether this counts as a use of the token. Refusal ``unauthenticated``.
    """
    text, now = _parsed(token), co.clock.now()

    def work(tx: Tx) -> tuple[Token, Principal, T]:
        asking = tx.site_views.by_token(text.id, session, number)
        row, principal = _valid(co, text, asking and asking[:2], now)
        return row, principal, look(tx, _actor(row, principal), asking and asking.seen)

    row, principal, value = co.store.read(name, work)
    if recorded:
        _touch(co, row, principal, now)
    return value


def _actor(row: Token, principal: Principal) -> Actor:
    return Actor(principal.role, principal.name, row.id, row.expires_at)


def _parsed(token: str) -> TokenText:
    text = parse_token(token)
    if text is None:
        why = "This is not a complete token: copy it again, from fcs_, fca_ or fco_ on."
        raise Refusal("unauthenticated", why)
    return text


def _valid(
    co: Coordinator, text: TokenText, found: tuple[Token, Principal] | None, now: datetime
) -> tuple[Token, Principal]:
    if found is None or not co.keys.verify(text, found[0].secret_hmac):
        why = f"This coordinator does not know the token. {_token_advice(text.role)}"
        raise Refusal("unauthenticated", why)
    check_valid(*found, now)
    return found


def check_valid(row: Token, principal: Principal, now: datetime) -> None:
    """Raise Refusal ``unauthenticated`` unless a known token is valid."""
    advice = _token_advice(principal.role)
    if row.revoked_at is not None:
        raise Refusal("unauthenticated", f"The token has been revoked. {advice}")
    if row.expires_at <= now:
        raise Refusal("unauthenticated", f"The token has expired. {advice}")
    if principal.disabled:
        role = principal.role.value
        why = f"The {role} of this token is disabled. Ask the coordinator's operator."
        raise Refusal("unauthenticated", why)


def _touch(co: Coordinator, row: Token, principal: Principal, now: datetime) -> None:
    def write(uow: UnitOfWork) -> None:
        touch_token(uow, row, principal, now)

    record_use(co, row.id, row.last_used_at, now, write)


def touch_token(uow: UnitOfWork, row: Token, principal: Principal, at: datetime) -> None:
    """Record when a token was last used and its owner last seen."""
    uow.tx.tokens.touch_used(row.id, at)
    uow.tx.principals.touch_seen(principal.id, at)


def record_use(
    co: Coordinator,
    key: str,
    last_used_at: datetime | None,
    now: datetime,
    write: Callable[[UnitOfWork], None],
) -> None:
    """Have a use of ``key`` written, unless its last recorded use is recent or being written."""
    fresh = now - timedelta(seconds=co.limits.token_touch_s)
    if (last_used_at is not None and last_used_at > fresh) or key in co.touching:
        return
    co.touching.add(key)
    # The request does not wait for this. After a failure the next request tries again.
    written = co.touches.commit("tokens", write)
    written.add_done_callback(lambda _: co.touching.discard(key))


def whoami(co: Coordinator, actor: Actor) -> WhoAmI:
    """Return the caller as this coordinator knows it."""
    known = co.store.read("whoami", lambda tx: tx.principals.get(actor.role, actor.name))
    return show(
        WhoAmI,
        actor,
        email=None if known is None else known.email,
        server_version=version("fedclust"),
        protocol_version=PROTOCOL_VERSION,
    )


@writes("token.issue", "token.issue")
def issue_token(
    uow: UnitOfWork, actor: Actor, role: Role, name: str, body: TokenCreate
) -> TokenIssued:
    """Issue another token (operators); its secret is shown only once."""
    return _issue(uow, actor, principal_named(uow.tx, role, name), body)


def _issue(
    uow: UnitOfWork, actor: Actor | str, principal: Principal, body: TokenCreate
) -> TokenIssued:
    text = new_token(principal.role)
    expires_at = uow.now + timedelta(days=body.expires_in_days)
    uow.tx.tokens.add(Token(text.id, principal.id, uow.co.keys.sign(text), uow.now, expires_at))
    uow.audit(actor, "token.issued", principal.key, token_id=text.id)
    return TokenIssued(id=text.id, token=text.reveal(), expires_at=expires_at)


@writes("token.revoke", "token.revoke")
def revoke_token(uow: UnitOfWork, actor: Actor, role: Role, name: str, token_id: str) -> None:
    """Revoke a token (operators). Idempotent.

    The last valid operator token cannot be revoked: Refusal ``last-operator-token``.
    """
    _lock(uow.tx, role)
    principal = principal_named(uow.tx, role, name)
    row = uow.tx.tokens.get(token_id) if token_id.isalnum() else None
    if row is None or row.principal_id != principal.id:
        raise absent("token")
    if uow.tx.tokens.revoke(token_id, uow.now):
        _shut_out(uow, principal)
        uow.audit(actor, "token.revoked", principal.key, token_id=token_id)


def _lock(tx: Tx, role: Role) -> None:
    """Make transactions that may remove an operator's last token run one after another."""
    if role is Role.OPERATOR:
        tx.principals.lock(role)


def _shut_out(uow: UnitOfWork, principal: Principal) -> None:
    """End a site's waiting requests; refuse the transaction if it left no valid operator token."""
    role = principal.role
    if role is Role.SITE:
        uow.tx.sessions.touch_open(principal.name)
    if role is Role.OPERATOR and not uow.tx.tokens.any_valid(role, uow.now):
        raise Refusal(
            "last-operator-token",
            "Issue another operator token first (fedclust operator token NAME). A token that is "
            "lost or stolen is replaced on the coordinator's machine: fedclust-service "
            "operator-token.",
        )


def bootstrap_operator(co: Coordinator, name: str = "operator") -> str:
    """Return a new operator token, made on the coordinator's machine.

    This registers the operator if necessary and enables a disabled one. Earlier tokens stay valid:
    revoke those that were lost.
    """

    def work(uow: UnitOfWork) -> str:
        principals = uow.tx.principals
        principal = principals.get(Role.OPERATOR, name)
        if principal is None:
            principal = principals.add(Role.OPERATOR, name, "")
            uow.audit(COORDINATOR, "operator.created", principal.key)
        if principal.disabled:
            principals.update(dataclasses.replace(principal, disabled=False))
            uow.audit(COORDINATOR, "operator.enabled", principal.key)
        return _issue(uow, COORDINATOR, principal, TokenCreate()).token

    return commit(co, "token.bootstrap", work)


def void_tokens(store: Store) -> None:
    """Revoke all tokens and end all sign-ins, because their secret key is lost.

    This needs no key, so that it can come before a new one.
    """

    def work(tx: Tx) -> None:
        count = tx.tokens.revoke_all(tx.now)
        tx.sign_ins.end_every(tx.now)
        tx.audit.append(COORDINATOR, "token.all_revoked", "database", {"count": count}, tx.now)

    store.run_tx("token.void", work)


# --- principals -----------------------------------------------------------------------------------


@writes("principal.create", "principal.create")
def create_principal(
    uow: UnitOfWork, actor: Actor, role: Role, body: PrincipalCreate
) -> tuple[PrincipalInfo, bool]:
    """Register a principal (operators). False if the same request registered it before."""
    tx = uow.tx
    there = tx.principals.get(role, body.name)
    if there is not None:
        if there.title != body.title or body.email not in (None, there.email):
            raise Refusal(
                "name-taken",
                f"Another {role.value} has this name, with another title or e-mail address. "
                "Change it with PATCH, or choose another name.",
            )
        return _principal_info(tx, actor, there), False
    added = tx.principals.add(role, body.name, body.title, body.email)
    uow.audit(actor, f"{role.value}.created", added.key)
    return _principal_info(tx, actor, added), True


def list_principals(
    co: Coordinator,
    actor: Actor,
    role: Role,
    limit: int = 50,
    cursor: str | None = None,
    part: str | None = None,
) -> Page[PrincipalInfo]:
    """List sites (operators, analysts), analysts or operators (operators), by name.

    ``part`` limits the list to names that contain it.
    """
    require(actor, f"{role.value}.read")
    after = read_cursor(cursor, name_in_list)
    if part is not None and not is_part_of_slug(part):
        return Page(items=(), next=None)

    def work(tx: Tx) -> Page[PrincipalInfo]:
        rows = tx.principals.list(role, limit + 1, after, part)
        return page_of(_principal_infos(tx, actor, *rows), limit, "name", lambda each: each)

    return co.store.read("principal.list", work)


@reads("site.read", "principal.list")
def enabled_sites(tx: Tx, _: Actor) -> list[PrincipalInfo]:
    """Return the registered sites that are not disabled, by name, without email and tokens."""
    rows = [each for each in tx.principals.list(Role.SITE, _MOST_SITES) if not each.disabled]
    return [show(PrincipalInfo, each, email=None, tokens=None) for each in rows]


def get_principal(co: Coordinator, actor: Actor, role: Role, name: str) -> PrincipalInfo:
    """Return one principal; only operators see its tokens' metadata."""
    require(actor, f"{role.value}.read")
    return co.store.read(
        "principal.get", lambda tx: _principal_info(tx, actor, principal_named(tx, role, name))
    )


@writes("principal.change", "principal.change")
def patch_principal(
    uow: UnitOfWork, actor: Actor, role: Role, name: str, body: PrincipalPatch
) -> PrincipalInfo:
    """Change a title or an e-mail address, disable or enable (operators).

    The last operator with a valid token cannot be disabled: Refusal ``last-operator-token``.
    """
    _lock(uow.tx, role)
    before = principal_named(uow.tx, role, name)
    after = dataclasses.replace(
        before,
        title=before.title if body.title is None else body.title,
        email=before.email if body.email is None else body.email or None,
        disabled=before.disabled if body.disabled is None else body.disabled,
    )
    if after != before:
        uow.tx.principals.update(after)
    if after.title != before.title:
        uow.audit(actor, f"{role.value}.titled", after.key)
    if after.email != before.email:
        uow.audit(actor, f"{role.value}.addressed", after.key)
    if after.disabled != before.disabled:
        _shut_out(uow, after)
        done = "disabled" if after.disabled else "enabled"
        uow.audit(actor, f"{role.value}.{done}", after.key)
    return _principal_info(uow.tx, actor, after)


def principal_named(tx: Tx, role: Role, name: str) -> Principal:
    """Return a principal; Refusal ``not-found`` if there is none."""
    principal = tx.principals.get(role, name) if is_slug(name) else None
    if principal is None:
        raise absent(role.value)
    return principal


def _principal_info(tx: Tx, actor: Actor, principal: Principal) -> PrincipalInfo:
    return _principal_infos(tx, actor, principal)[0]


def _principal_infos(tx: Tx, actor: Actor, *found: Principal) -> list[PrincipalInfo]:
    if not sees_account_details(actor):
        return [show(PrincipalInfo, each, email=None, tokens=None) for each in found]
    tokens: dict[int, list[TokenInfo]] = {each.id: [] for each in found}
    for token in tx.tokens.list_for(*tokens):
        tokens[token.principal_id].append(show(TokenInfo, token))
    return [show(PrincipalInfo, each, tokens=tuple(tokens[each.id])) for each in found]
