"""The pages with the form that defines a session, or a study."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from starlette.responses import Response

from fedclust.client.session_request import dropped_text, inherit
from fedclust.definition import canonical, plan_of
from fedclust.definition.json_text import read_json
from fedclust.definition.study import SessionRequest, StudyCreate, StudyInfo
from fedclust.errors import UsageError
from fedclust.methods.registry import METHODS
from fedclust.result.session_terms import SessionTerms
from fedclust.result.worth_asking import asked_of_sites, worth_lines
from fedclust.wire.codec import sha256
from fedclust.wire.models import Definition, PrincipalInfo, SessionCreate
from fedclust.wire.submissions import JSON
from fedclust_service.domain.access import Role, require
from fedclust_service.domain.refusal import Refusal
from fedclust_service.http.bodies import parse
from fedclust_service.http.body_limits import check_json_size
from fedclust_service.http.ui.page_request import PageRequest, get, post
from fedclust_service.http.ui.rendering import attachment
from fedclust_service.http.ui.session_form import COLUMNS, MORE, PATIENTS, SessionForm, row_fields
from fedclust_service.http.ui.study_pages import points_of_study
from fedclust_service.usecases import principals, sessions, studies
from fedclust_service.usecases.paging import MAX_PAGE

#: Lines of the consent screen that creation decides: a seed that is drawn, and so the hash.
_NOT_YET: Final = frozenset({"seed", "definition"})
#: Refusals that no change of the form can lift.
_FINAL: Final = frozenset({401, 403, 404})
#: Empty rows below those that are filled in.
_SPARE_ROWS: Final = 3


def _open(kind: str, page: PageRequest) -> Response:
    """Show an empty form, or one filled from another session, a study, or with a method."""
    require(page.actor, f"{kind}.create")
    study, other, method = (page.query(each) for each in ("study", "from", "method"))
    form = SessionForm(kind, _study(page, study))
    changes = {"algorithm": method} if method in METHODS else {}
    if other is None:
        return _show(page, form.filled(changes))
    definition = sessions.get_session(page.co, page.actor, other).definition
    form = replace(form, study=form.study or _study(page, definition.study))
    body, dropped = inherit(definition, {**changes, **({"study": study} if study else {})})
    form = form.filled({name: value for name, value in body.items() if name != "name"})
    notes = [f"Copied from {definition.name}. The new session needs its own name."]
    notes += [f"{dropped_text(definition, dropped)}."] if dropped else []
    return _show(page, replace(form, notes=(*notes, *form.notes)))


def _act(kind: str, page: PageRequest) -> Response:
    """Create what the form defines, or show the form again, changed as the pressed button says."""
    require(page.actor, f"{kind}.create")
    form, pressed = _read(kind, page), page.form
    body, pasted = form.json, pressed.get("definition", "")
    if "load" in pressed or "create_json" in pressed:
        try:
            form, body = _of_json(page, form, pasted), pasted
        except UsageError as error:
            form = replace(form, notes=(*form.notes, str(error)))
            status = 200 if "load" in pressed else 422
            return _show(page, form, status=status, pasted=pasted)
    elif "more" in pressed:
        after = max(form.rows, default=-1) + 1
        form = replace(form, rows=(*form.rows, *range(after, after + 2 * _SPARE_ROWS)))
    form, made = form.checked(_check(kind, page))
    if "create" not in pressed and "create_json" not in pressed:
        return _show(page, form, made)
    if form.refusals and "create_json" not in pressed:
        return _show(page, form, status=422)
    try:
        if kind == "study":
            study, _ = studies.create_study(page.co, page.actor, _request(kind, body))
            return page.redirect(f"/ui/studies/{study.name}", "study-created")
        info, new = sessions.create_session(page.co, page.actor, _request(kind, body))
    except Refusal as refusal:
        if refusal.status in _FINAL:
            raise
        known = form.errors or form.missing or form.general
        return _show(page, form if known else form.refused(refusal), status=refusal.status)
    notice = "session-created" if new else "session-created-before"
    return page.redirect(f"/ui/sessions/{info.name}", notice)


def _download(kind: str, page: PageRequest) -> Response:
    """Return the definition as a file for ``fedclust session create --file``."""
    require(page.actor, f"{kind}.create")
    form = _read(kind, page)
    name = str(form.body.get("name") or "definition")
    safe = name.replace("-", "").isalnum() and name.isascii() and len(name) < 64
    return attachment(form.json + "\n", JSON, f"{name if safe else 'definition'}.json")


def _read(kind: str, page: PageRequest) -> SessionForm:
    """Return the form that was posted, without the row whose button removes it."""
    items = page.form.multi_items()
    texts = {name: text.strip() for name, text in items if name[:1] == "/" and name != "/sites"}
    filled = (name for name, text in texts.items() if text)
    numbers = [name.split("/")[2] for name in filled if name.startswith("/features/")]
    rows = {int(n): None for n in numbers if n.isdecimal() and n.isascii() and len(n) < 7}
    rows.pop(int(page.form.get("remove", "") or -1), None)
    return SessionForm(
        kind,
        _study(page, page.form.get("study")) if kind == "session" else None,
        {name: text for name, text in texts.items() if text},
        tuple(rows),
        tuple(dict.fromkeys(text for name, text in items if name == "/sites")),
    )


def _of_json(page: PageRequest, form: SessionForm, text: str) -> SessionForm:
    """Return the form of a definition that was pasted; UsageError if it is none."""
    try:
        found = read_json(text, "the pasted text")
    except UsageError:
        found = None
    if isinstance(found, dict) and isinstance(found.get("definition"), dict):
        found = found["definition"]
    if not isinstance(found, dict):
        raise UsageError("The pasted text is no JSON object, {...}. Nothing was changed.")
    named = found.get("study")
    try:
        study = _study(page, named) if isinstance(named, str) else form.study
    except Refusal:
        note = "There is no study of the name in the pasted text that you may see."
        raise UsageError(note) from None
    defaults = found.pop("defaults", None)
    return SessionForm(form.kind, study).filled({**found, **(defaults or {})})


def _request(kind: str, body: str | bytes) -> Any:
    sent = body.encode("utf-8", "replace") if isinstance(body, str) else body
    check_json_size(sent)
    return parse(StudyCreate, sent) if kind == "study" else parse(SessionRequest, sent).root


def _check(kind: str, page: PageRequest) -> Callable[[bytes], Any]:
    def check(body: bytes) -> Any:
        request = _request(kind, body)
        if kind == "session":
            return sessions.check_session(page.co, page.actor, request)
        studies.check_new_study(page.co, page.actor, request)
        return request

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


def _worth(form: SessionForm, made: SessionCreate | StudyCreate) -> tuple[str, ...]:
    """Return what the outcomes cost, and whether they are worth it by the analyst's guesses."""
    if isinstance(made, StudyCreate):
        return points_of_study(made.features)
    persons = form.patients and form.patients * len(made.sites)
    lines = worth_lines(made, persons=persons, shares=form.shares)
    cost = asked_of_sites(made)
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


def _show(
    page: PageRequest, form: SessionForm, made: Any = None, *, status: int = 200, pasted: str = ""
) -> Response:
    """Return the page; after a refusal (``status``) it also names what is missing.

    A check while typing takes parts of it, and not the list of sites.
    """
    if status != 200:
        needed = dict.fromkeys(form.missing, ("this is required",))
        form = replace(form, errors={**needed, **form.errors})
    registered = [] if form.study or page.partial else enabled_sites(page)
    names = {each.name for each in registered}
    after = max(form.rows, default=-1) + 1
    return page.render(
        "session_form.html",
        status=status,
        form=form,
        pasted=pasted,
        refused=status != 200,
        complete=made is not None,
        worth=() if made is None else _worth(form, made),
        consent=_consent(page, made) if isinstance(made, Definition) else (),
        methods=METHODS.values(),
        patients=PATIENTS,
        rows=list(map(row_fields, (*form.rows, *range(after, after + _SPARE_ROWS)))),
        columns=COLUMNS,
        more=MORE,
        sites=registered,
        further=[name for name in form.sites if name not in names],
    )


ROUTES = tuple(
    route
    for kind in ("session", "study")
    for route in (
        get(f"/new-{kind}", functools.partial(_open, kind)),
        post(f"/new-{kind}", functools.partial(_act, kind)),
        post(f"/new-{kind}/file", functools.partial(_download, kind)),
    )
)
