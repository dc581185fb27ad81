"""The pages with the form that defines a session, or a study."""

import functools
from dataclasses import replace
from typing import Any, Final

from starlette.responses import Response

from fedclust.client.session_request import inherit
from fedclust.data.definition_warnings import definition_warnings
from fedclust.definition.json_text import read_json
from fedclust.definition.study import SessionRequest, StudyCreate, StudyInfo
from fedclust.methods.registry import METHODS
from fedclust.result.session_terms import SessionTerms
from fedclust.result.worth_asking import asked_of_sites, points_of_study, worth_lines
from fedclust.wire.errors import UsageError
from fedclust.wire.models import Definition
from fedclust.wire.submissions import JSON
from fedclust_service.domain.access import Refusal, require
from fedclust_service.http.bodies import check_json_size, parse
from fedclust_service.http.ui.page_request import PageRequest, get, post
from fedclust_service.http.ui.rendering import attachment
from fedclust_service.http.ui.session_form import (
    ASKED,
    COLUMNS,
    SessionForm,
    input_id,
    only_of,
    row_fields,
)
from fedclust_service.usecases import principals, sessions

#: Lines of the consent screen that creation decides: a seed that is drawn, and so the hash.
_NOT_YET: Final = frozenset({"seed", "definition"})


def _open(kind: str, page: PageRequest) -> Response:
    """Show an empty form, or one filled from another session, a study, or with a method."""
    require(page.actor, f"{kind}.create")
    study, other, method = (page.query(each) for each in ("study", "from", "method"))
    form = SessionForm(kind, _study(page, study))
    changes = {"algorithm": method} if method in METHODS else {}
    if other is None:
        return _show(page, form.filled(changes))
    definition = sessions.get_session(*page.caller, other).definition
    form = replace(form, study=form.study or _study(page, definition.study))
    body, dropped = inherit(definition, {**changes, **({"study": study} if study else {})})
    form = form.filled({name: value for name, value in body.items() if name != "name"})
    notes = [f"Copied from {definition.name}. The new session needs its own name."]
    notes += [f"{dropped}."] if dropped else []
    return _show(page, replace(form, notes=(*notes, *form.notes)))


def _act(kind: str, page: PageRequest) -> Response:
    """Create what the form defines, or show the form again, changed as the pressed button says."""
    require(page.actor, f"{kind}.create")
    form, pressed = _read(kind, page), page.form
    create = "create" in pressed and page.own_form
    if not page.own_form:
        form = replace(form, notes=("You signed in again. Look at the form, and press again.",))
    if "file" in pressed:
        return attachment(form.json + "\n", JSON, "definition.json")
    if "load" in pressed:
        pasted = pressed.get("definition", "")
        try:
            form = _of_json(page, form, pasted)
        except UsageError as error:
            return _show(page, replace(form, notes=(*form.notes, str(error))), pasted=pasted)
    form, made = form.checked(functools.partial(_check, kind, page))
    if form.refusals or not create:
        return _show(page, form, made, status=422 if create else 200)
    make = sessions.create_session if kind == "session" else sessions.create_study
    try:
        info, new = make(*page.caller, _request(kind, form.json.encode()))
    except Refusal as refusal:
        return _show(page, form.refused(refusal) if made else form, status=refusal.status)
    place = f"/ui/{'sessions' if kind == 'session' else 'studies'}/{info.name}"
    return page.redirect(place, f"{kind}-created{'' if new else '-before'}")


def _read(kind: str, page: PageRequest) -> SessionForm:
    """Return the form that was posted, without the row whose button removes it."""
    removed = f"/features/{page.form.get('remove')}/"
    study = _study(page, page.form.get("study")) if kind == "session" else None
    texts = {name: text.strip() for name, text in page.form.multi_items() if name[:1] == "/"}
    texts |= {"/sites": ", ".join(dict.fromkeys(page.form.getlist("/sites")))}
    kept = {at: text for at, text in texts.items() if text and not at.startswith(removed)}
    return SessionForm(kind, study, kept)


def _of_json(page: PageRequest, form: SessionForm, text: str) -> SessionForm:
    """Return the form of a definition that was pasted; UsageError if it is none."""
    found = read_json(text, "the pasted text")
    found = found.get("definition", found) if isinstance(found, dict) else None
    if not isinstance(found, dict):
        raise UsageError("The pasted text is no JSON object, {...}. Nothing was changed.")
    named, defaults = found.get("study"), found.pop("defaults", None)
    try:
        study = _study(page, named) if isinstance(named, str) else form.study
    except Refusal:
        raise UsageError("You see no study of the name in the pasted text.") from None
    given = defaults if isinstance(defaults, dict) else {}
    return SessionForm(form.kind, study).filled({**found, **given})


def _request(kind: str, body: bytes) -> Any:
    check_json_size(body)
    return parse(StudyCreate, body) if kind == "study" else parse(SessionRequest, body).root


def _check(kind: str, page: PageRequest, body: bytes) -> Any:
    check = sessions.check_session if kind == "session" else sessions.check_new_study
    return check(*page.caller, _request(kind, body))


def _study(page: PageRequest, name: str | None) -> StudyInfo | None:
    return sessions.get_study(*page.caller, name) if name else None


def _worth(form: SessionForm, made: Any) -> tuple[str, ...]:
    """Return what the outcomes cost, and whether they are worth it by the analyst's guesses."""
    if not isinstance(made, Definition):
        points = made and points_of_study(made.features)
        return (points,) if points else ()
    persons = form.patients and form.patients * len(made.sites)
    lines = worth_lines(made, persons=persons, shares=form.shares)
    cost = asked_of_sites(made)
    return lines if cost is None else (f"Together: {cost}.", *lines)


def _show(
    page: PageRequest, form: SessionForm, made: Any = None, *, status: int = 200, pasted: str = ""
) -> Response:
    """Return the page; after a refusal (``status``) it also names what is missing.

    A check while typing takes parts of it: neither the list of sites nor the table.
    """
    if status != 200:
        needed = dict.fromkeys(form.missing, ("this is required",))
        form = replace(form, errors={**needed, **form.errors})
    form = replace(form, bands=sessions.known_bands(*page.caller, form.sites))
    alone = not (form.study or page.partial)
    registered = principals.enabled_sites(*page.caller) if alone else ()
    titles = {each.name: each.title or "" for each in registered}
    read_by_sites: Any = ()
    if isinstance(made, Definition):
        asked = page.coordinator_url, made.sites[0], page.actor.name, page.co.operator, made
        read_by_sites = SessionTerms(*asked, made.policy.min_group_size).sections()
    return page.render(
        "session_form.html",
        status=status,
        form=form,
        pasted=pasted,
        refused=status != 200,
        complete=made is not None,
        worth=_worth(form, made),
        warnings=[*definition_warnings(made)] if isinstance(made, Definition) else (),
        consent=[each for each in read_by_sites if each[0] not in _NOT_YET],
        methods=METHODS,
        rows=() if page.partial else (*form.rows, max(form.rows, default=-1) + 1),
        row=row_fields(),
        only_of=only_of(),
        columns=COLUMNS,
        asked=ASKED,
        input_id=input_id,
        sites=dict.fromkeys(form.sites, "not registered") | titles,
    )


ROUTES = tuple(
    make(f"/new-{kind}", functools.partial(show, kind))
    for kind in ("session", "study")
    for make, show in ((get, _open), (functools.partial(post, again=True), _act))
)
