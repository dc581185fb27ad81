"""Sites, analysts and operators, and their tokens."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

from starlette.responses import Response
from starlette.routing import Route

from fedclust.wire.models import (
    PrincipalCreate,
    PrincipalInfo,
    PrincipalPatch,
    TableAcceptance,
    TableId,
    TokenCreate,
    TokenInfo,
)
from fedclust_service.domain.access import Refusal, Role, absent, require, sees_account_details
from fedclust_service.http.ui.page_request import (
    Action,
    FilledForm,
    PageRequest,
    checked,
    get,
    post,
)
from fedclust_service.http.ui.rendering import address
from fedclust_service.usecases import principals, site_tables
from fedclust_service.usecases.attention import EXPIRING_IN

#: The forms of the page of an account before somebody fills them in.
_EMPTY = {
    "form": FilledForm(),
    "days": FilledForm({"expires_in_days": str(TokenCreate().expires_in_days)}),
    "chain": FilledForm(),
}


@dataclass(frozen=True)
class KnownToken:
    """A token as its page shows it; ``state`` is a badge."""

    info: TokenInfo
    state: str
    own: bool


@dataclass(frozen=True)
class Person:
    """A site, an analyst or an operator as pages show it.

    ``state`` is a badge and ``label`` its words; ``valid_until`` is the end of the last valid
    token. Who may not see tokens sees none.
    """

    role: Role
    info: PrincipalInfo
    tokens: tuple[KnownToken, ...]
    valid_until: datetime | None
    state: str
    label: str

    @property
    def path(self) -> str:
        """The address of its page."""
        return f"{_path(self.role)}/{self.info.name}"


def _path(role: Role) -> str:
    return f"/ui/{role.value}s"


def _person(page: PageRequest, role: Role, info: PrincipalInfo) -> Person:
    now = page.co.clock.now()
    tokens = tuple(_known(page, each, now) for each in reversed(info.tokens or ()))
    valid = [each.info.expires_at for each in tokens if each.state in ("valid", "expiring")]
    until = max(valid, default=None)
    if info.disabled:
        state, label = "disabled", "disabled"
    elif info.tokens is None:
        state, label = "valid", "enabled"
    elif until is None:
        state, label = "late", "no valid token"
    elif until <= now + EXPIRING_IN:
        state, label = "expiring", "token ends soon"
    else:
        state, label = "valid", "enabled"
    return Person(role, info, tokens, until, state, label)


def _known(page: PageRequest, info: TokenInfo, now: datetime) -> KnownToken:
    if info.revoked_at is not None:
        state = "revoked"
    elif info.expires_at <= now:
        state = "expired"
    else:
        state = "expiring" if info.expires_at <= now + EXPIRING_IN else "valid"
    return KnownToken(info, state, info.id == page.actor.token_id)


def _find(role: Role, page: PageRequest) -> Person:
    info = principals.get_principal(*page.caller, role, page.param("name"))
    return _person(page, role, info)


# --- the list, and a new one ----------------------------------------------------------------------


def _list(role: Role, page: PageRequest) -> Response:
    part, cursor = (page.query("name") or "").strip().lower() or None, page.query("cursor")
    found = principals.list_principals(*page.caller, role, cursor=cursor, part=part)
    people = [_person(page, role, each) for each in found.items]
    more = found.next and address(_path(role), name=part, cursor=found.next)
    return page.render(
        "people.html",
        role=role,
        people=people,
        part=part or "",
        older=more,
        first=address(_path(role), name=part) if cursor else None,
        whole=sees_account_details(page.actor),
    )


def _register_form(role: Role, page: PageRequest) -> Response:
    require(page.actor, "principal.create")
    return page.render("person_register.html", role=role, form=FilledForm())


def _register(role: Role, page: PageRequest) -> Response:
    require(page.actor, "principal.create")
    form = _typed(page, "name", "title", "email")
    try:
        body = checked(
            PrincipalCreate,
            {name: text for name, text in form.texts.items() if text or name == "name"},
        )
        info, created = principals.create_principal(*page.caller, role, body)
    except Refusal as refusal:
        said = "This name is taken. Choose another one, or open the page of that name."
        taken = replace(form, errors={"name": said})
        form = taken if refusal.slug == "name-taken" else form.refused(refusal)
        return page.render("person_register.html", role=role, form=form, status=refusal.status)
    notice = "registered" if created else "registered-before"
    return page.redirect(f"{_path(role)}/{info.name}", notice)


def _typed(page: PageRequest, *names: str) -> FilledForm:
    return FilledForm({name: page.form.get(name, "").strip() for name in names})


def _whole(text: str) -> int | str:
    """Return a number; other text as it is, which the model refuses at its field."""
    return int(text) if text.isdecimal() and len(text) < 11 else text


# --- one of them ----------------------------------------------------------------------------------


def _show(role: Role, page: PageRequest) -> Response:
    return _shown(page, _find(role, page))


def _shown(
    page: PageRequest, person: Person, *, status: int = 200, **forms: FilledForm
) -> Response:
    """Return the page; ``forms`` are those that were filled in: form, days or chain."""
    whole, tables = sees_account_details(page.actor), None
    if whole and person.role is Role.SITE:
        cursor = page.query("tables")
        tables = site_tables.list_tables(*page.caller, person.info.name, cursor=cursor)
    return page.render(
        "person.html",
        status=status,
        person=person,
        whole=whole,
        tables=tables,
        further=tables and tables.next and address(person.path, tables=tables.next),
        **{**_EMPTY, **forms},
    )


def _shown_again(role: Role, page: PageRequest, refusal: Refusal, **forms: FilledForm) -> Response:
    """Return the page with the messages of a refusal; a refusal without messages has its own."""
    if not refusal.errors:
        raise refusal
    return _shown(page, _find(role, page), status=refusal.status, **forms)


def _change(role: Role, page: PageRequest) -> Response:
    require(page.actor, "principal.change")
    form = _typed(page, "title", "email")
    try:
        body = checked(PrincipalPatch, form.texts)
        info = principals.patch_principal(*page.caller, role, page.param("name"), body)
    except Refusal as refusal:
        return _shown_again(role, page, refusal, form=form.refused(refusal))
    return page.redirect(f"{_path(role)}/{info.name}", "changed")


def _switch(role: Role, *, disabled: bool) -> Action:
    what = "disable" if disabled else "enable"

    def act(page: PageRequest) -> None:
        body = PrincipalPatch(disabled=disabled)
        principals.patch_principal(*page.caller, role, page.param("name"), body)

    return _confirmed(role, what, what, "principal.change", act, f"{what}d")


def _confirmed(
    role: Role, what: str, path: str, right: str, act: Callable[[PageRequest], None], notice: str
) -> Action:
    """Return an action on an account, or on the token in its address; ``what`` is its verb."""

    def show(page: PageRequest) -> dict[str, object]:
        person, token_id = _find(role, page), page.request.path_params.get("token")
        token = None if token_id is None else _token(person, token_id)
        return {"person": person, "what": what, "token": token}

    person = f"{_path(role)}/{{name}}"
    below = f"{person.removeprefix('/ui')}/{path}"
    return Action(below, "person_confirm.html", right, show, act, notice, person)


# --- tokens ---------------------------------------------------------------------------------------


def _issue(role: Role, page: PageRequest) -> Response:
    require(page.actor, "token.issue")
    form = _typed(page, "expires_in_days")
    days = form.texts["expires_in_days"]
    try:
        body = checked(TokenCreate, {"expires_in_days": _whole(days)})
        issued = principals.issue_token(*page.caller, role, page.param("name"), body)
    except Refusal as refusal:
        return _shown_again(role, page, refusal, days=form.refused(refusal))
    # The only answer that holds the token; a redirect could not carry it.
    return page.render(
        "token_issued.html",
        person=_find(role, page),
        issued=issued,
        coordinator=page.coordinator_url,
    )


def _token(person: Person, token_id: str) -> KnownToken:
    for each in person.tokens:
        if each.info.id == token_id:
            return each
    raise absent("token")


def _revoke(role: Role) -> Action:
    def act(page: PageRequest) -> None:
        principals.revoke_token(*page.caller, role, page.param("name"), page.param("token"))

    path = "tokens/{token}/revoke"
    return _confirmed(role, "revoke", path, "token.revoke", act, "token-revoked")


# --- a site's protected tables --------------------------------------------------------------------


class _TypedTable(TableAcceptance):
    table_id: TableId


def _accept_table(page: PageRequest) -> Response:
    require(page.actor, "table.accept")
    form, name = _typed(page, "table_id", "number", "head"), page.param("name")
    try:
        body = checked(_TypedTable, {**form.texts, "number": _whole(form.texts["number"])})
        site_tables.accept_table(*page.caller, name, body.table_id, body)
    except Refusal as refusal:
        return _shown_again(Role.SITE, page, refusal, chain=form.refused(refusal))
    return page.redirect(f"{_path(Role.SITE)}/{name}", "table-accepted")


def _routes(role: Role) -> tuple[Route, ...]:
    many, one = f"/{role.value}s", f"/{role.value}s/{{name}}"

    return (
        get(many, partial(_list, role)),
        # A name may be any word: below `/sites`, this address could be a site's.
        get(f"/register{many}", partial(_register_form, role)),
        post(f"/register{many}", partial(_register, role)),
        get(one, partial(_show, role)),
        post(one, partial(_change, role)),
        *_switch(role, disabled=True).routes,
        *_switch(role, disabled=False).routes,
        post(f"{one}/tokens", partial(_issue, role)),
        *_revoke(role).routes,
    )


ROUTES = (
    *(route for role in (Role.SITE, Role.ANALYST, Role.OPERATOR) for route in _routes(role)),
    post("/sites/{name}/tables", _accept_table),
)
