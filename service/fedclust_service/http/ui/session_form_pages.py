"""The page with the form that creates a session, and its check while somebody types."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from starlette.responses import Response

from fedclust.client.session_request import dropped_text, inherit
from fedclust.definition import canonical, plan_of
from fedclust.errors import UsageError
from fedclust.json_text import read_json
from fedclust.methods.registry import METHODS
from fedclust.result.session_terms import SessionTerms
from fedclust.result.worth_asking import asked_of_sites, worth_lines
from fedclust.study import SessionRequest, StudyInfo
from fedclust.wire.codec import sha256
from fedclust.wire.models import Definition, PrincipalInfo, SessionCreate
from fedclust.wire.submissions import JSON
from fedclust_service.domain.access import Role, require
from fedclust_service.domain.refusal import Refusal
from fedclust_service.http.bodies import parse
from fedclust_service.http.body_limits import check_json_size
from fedclust_service.http.ui.form_field import SHOWN
from fedclust_service.http.ui.page_request import PageRequest, get, post
from fedclust_service.http.ui.rendering import attachment
from fedclust_service.http.ui.session_form import GUESSED_PERSONS, SessionForm
from fedclust_service.http.ui.session_form_sources import (
    after_button,
    form_of,
    new_form,
    read_form,
)
from fedclust_service.orchestration import principals, sessions, studies
from fedclust_service.orchestration.paging import MAX_PAGE

_PATH: Final = "/new-session"
#: Lines of the consent screen that creation decides: a seed that is drawn, and so the hash.
_NOT_YET: Final = frozenset({"seed", "definition"})
#: Refusals that no change of the form can lift.
FINAL: Final = frozenset({401, 403, 404})


def _open(page: PageRequest) -> Response:
    """Show an empty form, or one filled from another session or a study."""
    require(page.actor, "session.create")
    other, study = page.query("from"), _study(page, page.query("study"))
    if other is None:
        return _show(page, new_form(page.query("method"), study))
    definition = sessions.get_session(page.co, page.actor, other).definition
    return _show(page, _copied(page, definition, study))


def _copied(page: PageRequest, definition: Definition, study: StudyInfo | None) -> SessionForm:
    """Return the form of a session like another one, as ``session create --from`` copies it."""
    changes = {} if page.query("method") is None else {"algorithm": page.query("method")}
    if study is not None:
        changes["study"] = study.name
    body, dropped = inherit(definition, changes)
    known = study or _study(page, definition.study)
    form = form_of({name: value for name, value in body.items() if name != "name"}, known)
    notes = [f"Copied from {definition.name}. The new session needs its own name."]
    notes += [f"{dropped_text(definition, dropped)}."] if dropped else []
    return replace(form, notes=(*notes, *form.notes))


def _act(page: PageRequest) -> Response:
    """Create the session, or show the form again, changed as the pressed button says."""
    require(page.actor, "session.create")
    form, pressed = _read(page), page.form
    changed = after_button(form, pressed)
    if changed is not None:
        return _show(page, changed)
    if "load_json" in pressed:
        return _show(page, _pasted(page, form, pressed.get("definition_json", "")))
    if "create" not in pressed:
        return _show(page, form.checked(_check(page))[0])
    try:
        info, new = sessions.create_session(page.co, page.actor, _request(form.json.encode()))
    except Refusal as refusal:
        if refusal.status in FINAL:
            raise
        return _show(page, form.refused(refusal), status=refusal.status)
    notice = "session-created" if new else "session-created-before"
    return page.redirect(f"/ui/sessions/{info.name}", notice)


def _read(page: PageRequest) -> SessionForm:
    return read_form(page.form.multi_items(), _study(page, page.form.get("study")))


def _pasted(page: PageRequest, form: SessionForm, text: str) -> SessionForm:
    """Return the form of a definition that was pasted; what is no object changes nothing."""
    try:
        found = read_json(text, "the pasted text")
    except UsageError:
        found = None
    if isinstance(found, dict) and isinstance(found.get("definition"), dict):
        found = found["definition"]
    if not isinstance(found, dict):
        note = "The pasted text is no JSON object, {...}. Nothing was changed."
        return replace(form, notes=(*form.notes, note))
    named = found.get("study")
    study = form.study
    if isinstance(named, str):
        try:
            study = _study(page, named)
        except Refusal:
            note = "There is no study of the name in the pasted text that you may see."
            return replace(form, notes=(*form.notes, note))
    return form_of(found, study)


def _check_typed(page: PageRequest) -> Response:
    """Return what changes on the page while somebody types: messages, JSON, what leaves."""
    require(page.actor, "session.create")
    form = _read(page)
    form, definition = form.checked(_check(page))
    values = _values(page, form, definition)
    values |= {"form": form.while_typing(), "options_changed": options_changed(page, form)}
    return page.render("session_form_check.html", **values)


def options_changed(page: PageRequest, form: SessionForm) -> bool:
    """Return whether the page shows the options of another method or variant than is chosen."""
    posted = dict(page.form.multi_items())
    return page.form.get("shown_method", "") != form.method or any(
        name.startswith(SHOWN) and posted.get(name) != text for name, text in form.hidden
    )


def _download(page: PageRequest) -> Response:
    """Return the definition as a file for ``fedclust session create --file``."""
    require(page.actor, "session.create")
    return as_file(_read(page))


def as_file(form: SessionForm) -> Response:
    """Return what a form makes as a file to download."""
    name = form.body.get("name")
    safe = isinstance(name, str) and name.replace("-", "").isalnum() and name.isascii()
    file = name if safe and len(str(name)) < 64 else "definition"
    return attachment(form.json + "\n", JSON, f"{file}.json")


def _request(body: bytes) -> SessionCreate:
    check_json_size(body)
    return parse(SessionRequest, body).root


def _check(page: PageRequest) -> Callable[[bytes], Definition]:
    def check(body: bytes) -> Definition:
        return sessions.check_session(page.co, page.actor, _request(body))

    return check


def _study(page: PageRequest, name: str | None) -> StudyInfo | None:
    return studies.get_study(page.co, page.actor, name) if name else None


def enabled_sites(page: PageRequest) -> list[PrincipalInfo]:
    """Return the registered sites that are not disabled, by name."""
    found: list[PrincipalInfo] = []
    cursor: str | None = None
    while True:
        listed = principals.list_principals(page.co, page.actor, Role.SITE, MAX_PAGE, cursor)
        found += listed.items
        cursor = listed.next
        if cursor is None:
            return [each for each in found if not each.disabled]


def _values(page: PageRequest, form: SessionForm, definition: Definition | None) -> dict[str, Any]:
    return {
        "form": form,
        "kind": "session",
        "complete": definition is not None,
        "open": form.open,
        "wrong": len(form.while_typing().errors) + len(form.general),
        "worth": () if definition is None else _worth(form, definition),
        "consent": () if definition is None else _consent(page, definition),
    }


def _worth(form: SessionForm, definition: Definition) -> tuple[str, ...]:
    """Return what the outcomes cost, and whether they are worth it by the analyst's guesses."""
    lines = worth_lines(definition, persons=form.guessed_persons, shares=form.guessed_shares)
    cost = asked_of_sites(definition)
    return lines if cost is None else (f"Together: {cost}.", *lines)


def _consent(page: PageRequest, definition: Definition) -> list[tuple[str, tuple[str, ...]]]:
    """Return what the first site would read, as far as it is known before the session exists."""
    terms = SessionTerms(
        coordinator=str(page.request.base_url).rstrip("/"),
        site=definition.sites[0],
        session=definition.name,
        analyst=page.actor.name,
        definition=definition,
        definition_sha256=sha256(canonical(definition)),
        plan=plan_of(definition),
        p=definition.policy.min_group_size,
    )
    return [each for each in terms.sections() if each[0] not in _NOT_YET]


def _show(page: PageRequest, form: SessionForm, *, status: int = 200) -> Response:
    """Return the page; after a refusal to create (``status``) every message is shown."""
    form, definition = (form, None) if status != 200 else form.checked(_check(page))
    return show_form(page, form, _values(page, form, definition), status)


def show_form(
    page: PageRequest, form: SessionForm, values: Mapping[str, Any], status: int
) -> Response:
    """Return the page of a form with what it shows of it."""
    registered = [] if form.study is not None else enabled_sites(page)
    names = {each.name for each in registered}
    refused = status != 200
    return page.render(
        "session_form.html",
        status=status,
        **{**values, "form": form if refused else form.while_typing()},
        refused=refused,
        methods=[METHODS[name] for name in METHODS],
        sites=registered,
        persons_field=GUESSED_PERSONS,
        further=[name for name in form.sites if name not in names],
    )


ROUTES = (
    get(_PATH, _open),
    post(_PATH, _act),
    post(f"{_PATH}/check", _check_typed),
    post(f"{_PATH}/file", _download),
)
