"""The page with the form that creates a study, and its check while somebody types."""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response

from fedclust.study import StudyCreate
from fedclust_service.domain.access import require
from fedclust_service.domain.refusal import Refusal
from fedclust_service.http.bodies import parse
from fedclust_service.http.body_limits import check_json_size
from fedclust_service.http.ui.page_request import PageRequest, get, post
from fedclust_service.http.ui.session_form_pages import (
    FINAL,
    as_file,
    options_changed,
    show_form,
)
from fedclust_service.http.ui.session_form_sources import after_button, new_form, read_form
from fedclust_service.http.ui.study_form import StudyForm
from fedclust_service.http.ui.study_pages import points_of_study
from fedclust_service.orchestration import studies

_PATH: Final = "/new-study"


def _open(page: PageRequest) -> Response:
    require(page.actor, "study.create")
    return _show(page, StudyForm.like(new_form(None), ""))


def _act(page: PageRequest) -> Response:
    """Create the study, or show the form again, changed as the pressed button says."""
    require(page.actor, "study.create")
    form = _read(page)
    changed = after_button(form, page.form)
    if changed is not None or "create" not in page.form:
        return _show(page, changed or form)
    try:
        info, _ = studies.create_study(page.co, page.actor, _request(form.json.encode()))
    except Refusal as refusal:
        if refusal.status in FINAL:
            raise
        return _show(page, form.refused(refusal), status=refusal.status)
    return page.redirect(f"/ui/studies/{info.name}", "study-created")


def _check_typed(page: PageRequest) -> Response:
    require(page.actor, "study.create")
    form = _read(page)
    checked, values = _checked(page, form)
    values |= {"form": checked.while_typing(), "options_changed": options_changed(page, form)}
    return page.render("session_form_check.html", **values)


def _download(page: PageRequest) -> Response:
    require(page.actor, "study.create")
    return as_file(_read(page))


def _read(page: PageRequest) -> StudyForm:
    form = read_form(page.form.multi_items(), None)
    return StudyForm.like(form, form.method if page.form.get("/algorithm") else "")


def _request(body: bytes) -> StudyCreate:
    check_json_size(body)
    return parse(StudyCreate, body)


def _checked(page: PageRequest, form: StudyForm) -> tuple[StudyForm, dict[str, Any]]:
    """Return a form that is being filled in with its messages, and what the page shows of it."""

    def check(body: bytes) -> StudyCreate:
        request = _request(body)
        studies.check_new_study(page.co, page.actor, request)
        return request

    form, request = form.checked(check)
    return form, {
        "kind": "study",
        "complete": request is not None,
        "open": form.open,
        "wrong": len(form.while_typing().errors) + len(form.general),
        "worth": () if request is None else points_of_study(request.features),
        "consent": (),
    }


def _show(page: PageRequest, form: StudyForm, *, status: int = 200) -> Response:
    """Return the page; after a refusal to create (``status``) every message is shown."""
    checked, values = _checked(page, form)
    return show_form(page, form if status != 200 else checked, values, status)


ROUTES = (
    get(_PATH, _open),
    post(_PATH, _act),
    post(f"{_PATH}/check", _check_typed),
    post(f"{_PATH}/file", _download),
)
