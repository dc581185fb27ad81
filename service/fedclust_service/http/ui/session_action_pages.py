"""What an analyst or an operator does to a session: each with a page that says the consequence."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from starlette.responses import Response

from fedclust.methods.registry import METHODS
from fedclust.schema.times import write_time
from fedclust.wire.models import PrincipalInfo, SessionPatch
from fedclust_service.domain.access import Role, absent, require
from fedclust_service.domain.refusal import Refusal
from fedclust_service.http.ui.filled_form import checked
from fedclust_service.http.ui.page_request import PageRequest, get, post
from fedclust_service.http.ui.session_view import SessionView, listed, load_view
from fedclust_service.orchestration import participation, principals, rounds, sessions

#: Longer times for the open round, in seconds.
_LONGER = (("1 hour", 3_600), ("1 day", 86_400), ("1 week", 604_800))
_PAGE = 200


def _confirm(
    page: PageRequest, action: str, view: SessionView, refusal: Refusal | None, **values: object
) -> Response:
    """Return the page of an action; with ``refusal``, what stands against it."""
    return page.render(
        f"session_{action}.html",
        status=200 if refusal is None or page.request.method == "GET" else refusal.status,
        view=view,
        refusal=refusal,
        listed=listed,
        **values,
    )


def _managed(page: PageRequest) -> SessionView:
    require(page.actor, "session.manage")
    return load_view(page)


def _done(
    page: PageRequest, act: Callable[[], object], show: Callable[[Refusal], Response], notice: str
) -> Response:
    """Do it and lead back to the session; show a refusal on the page of the action."""
    try:
        act()
    except Refusal as refusal:
        if refusal.status not in (409, 422):
            raise
        return show(refusal)
    return page.redirect(f"/ui/sessions/{page.param('session')}", notice)


# --- start, cancel, delete ------------------------------------------------------------------------


def _show_start(page: PageRequest, refused: Refusal | None = None) -> Response:
    view = _managed(page)
    joined = len(view.names("joined"))
    if refused is None and view.info.state != "recruiting":
        refused = Refusal("wrong-state", "The session has started already, or it has ended.")
    if refused is None and joined < view.needed:
        refused = Refusal(
            "quorum-missing",
            f"{joined} of the {view.needed} sites that the session needs have joined. Wait for the "
            "others, or invite more.",
        )
    if refused is None and view.info.cannot_start:
        refused = Refusal("sites-unsuitable", view.info.cannot_start)
    method = METHODS.get(view.info.definition.algorithm)
    late = method is not None and method.joins_late
    return _confirm(page, "start", view, refused, method_joins_late=late)


def _start(page: PageRequest) -> Response:
    return _done(
        page,
        lambda: sessions.start_session(page.co, page.actor, page.param("session")),
        lambda refusal: _show_start(page, refusal),
        "session-started",
    )


def _show_retry(page: PageRequest, refused: Refusal | None = None) -> Response:
    require(page.actor, "session.retry")
    view = load_view(page)
    if refused is None and view.info.state != "held":
        refused = Refusal("wrong-state", "The session is not held.")
    return _confirm(page, "retry", view, refused)


def _retry(page: PageRequest) -> Response:
    return _done(
        page,
        lambda: sessions.retry_session(page.co, page.actor, page.param("session")),
        lambda refusal: _show_retry(page, refusal),
        "session-retried",
    )


def _show_cancel(page: PageRequest, refused: Refusal | None = None) -> Response:
    view = _managed(page)
    if refused is None and view.ended:
        refused = Refusal("wrong-state", "The session has ended already.")
    return _confirm(page, "cancel", view, refused)


def _cancel(page: PageRequest) -> Response:
    return _done(
        page,
        lambda: sessions.cancel_session(page.co, page.actor, page.param("session")),
        lambda refusal: _show_cancel(page, refusal),
        "session-cancelled",
    )


def _show_delete(page: PageRequest, refused: Refusal | None = None) -> Response:
    view = _managed(page)
    if refused is None and not view.never_joined:
        refused = Refusal("wrong-state", "Sites joined this session, so it stays.")
    return _confirm(page, "delete", view, refused)


def _delete(page: PageRequest) -> Response:
    try:
        sessions.delete_session(page.co, page.actor, page.param("session"))
    except Refusal as refusal:
        if refusal.status != 409:
            raise
        return _show_delete(page, refusal)
    return page.redirect("/ui/sessions", "session-deleted")


# --- the open round -------------------------------------------------------------------------------


def _number(page: PageRequest) -> int:
    number = page.param("number")
    if not (number.isascii() and number.isdigit() and len(number) < 10):
        raise absent("round")
    return int(number)


def _show_close(page: PageRequest, refused: Refusal | None = None) -> Response:
    view, number = _managed(page), _number(page)
    if refused is None:
        refused = rounds.why_not_closed(page.co, page.actor, view.info.name, number)
    shown = next((each for each in view.rounds if each.number == number), None)
    if shown is None:
        raise absent("round")
    return _confirm(page, "close", view, refused, round=shown)


def _close(page: PageRequest) -> Response:
    name, number = page.param("session"), _number(page)
    return _done(
        page,
        lambda: rounds.close_round(page.co, page.actor, name, number),
        lambda refusal: _show_close(page, refusal),
        "round-closed",
    )


def _show_deadline(page: PageRequest, refused: Refusal | None = None) -> Response:
    view = _managed(page)
    open_ = view.collecting
    if open_ is None:
        refused = Refusal("wrong-state", "No round of this session is collecting answers now.")
    begin = view.now if open_ is None else max(view.now, open_.deadline)
    longer = [(label, begin + timedelta(seconds=seconds)) for label, seconds in _LONGER]
    choices = [(label, at, write_time(at)) for label, at in longer]
    return _confirm(page, "deadline", view, refused, round=open_, choices=choices)


def _move_deadline(page: PageRequest) -> Response:
    def act() -> None:
        chosen = _time(page.form.get("at") or page.form.get("deadline", ""))
        if chosen <= page.co.clock.now():
            raise Refusal(
                "invalid", "This time has passed. To end the round now, close it instead."
            )
        body = SessionPatch(deadline=chosen)
        sessions.patch_session(page.co, page.actor, page.param("session"), body)

    require(page.actor, "session.manage")
    return _done(page, act, lambda refusal: _show_deadline(page, refusal), "deadline-moved")


def _time(text: str) -> datetime:
    """Read a time; one without a zone, as browsers' fields give it, is in UTC."""
    try:
        read = datetime.fromisoformat(text)
        return read.replace(tzinfo=UTC) if read.tzinfo is None else read.astimezone(UTC)
    except (ValueError, OverflowError):
        raise Refusal("invalid", "Give a date and a time, such as 2026-03-01 12:00.") from None


# --- its sites ------------------------------------------------------------------------------------


def _show_exclude(page: PageRequest, refused: Refusal | None = None) -> Response:
    view = _managed(page)
    site = next((each for each in view.info.sites if each.name == page.param("site")), None)
    if site is None:
        raise absent("site in this session")
    if refused is None and view.ended:
        refused = Refusal("wrong-state", "The session has ended: a site cannot leave it any more.")
    if refused is None and site.state in ("left", "excluded", "refused"):
        refused = Refusal("wrong-state", "This site takes no part in the session any more.")
    left = [name for name in view.names("joined") if name != site.name]
    return _confirm(page, "exclude", view, refused, site=site, left=left)


def _exclude(page: PageRequest) -> Response:
    name, site = page.param("session"), page.param("site")
    return _done(
        page,
        lambda: participation.exclude(page.co, page.actor, name, site),
        lambda refusal: _show_exclude(page, refusal),
        "site-excluded",
    )


def _show_invite(page: PageRequest, refused: Refusal | None = None) -> Response:
    view = _managed(page)
    if refused is None and view.info.state in ("failed", "cancelled"):
        refused = Refusal("wrong-state", "The session has ended without a result.")
    known = {each.name for each in view.info.sites}
    sites = [each for each in _sites(page) if each.name not in known and not each.disabled]
    return _confirm(page, "invite", view, refused, sites=sites, chosen=set(_chosen(page)))


def _sites(page: PageRequest) -> list[PrincipalInfo]:
    found: list[PrincipalInfo] = []
    cursor: str | None = None
    while True:
        some = principals.list_principals(page.co, page.actor, Role.SITE, _PAGE, cursor)
        found += some.items
        if some.next is None:
            return found
        cursor = some.next


def _chosen(page: PageRequest) -> list[str]:
    return list(dict.fromkeys(page.form.getlist("site")))


def _invite(page: PageRequest) -> Response:
    def act() -> None:
        chosen = _chosen(page)
        if not chosen:
            raise Refusal("invalid", "Choose a site at least.")
        if not set(chosen) <= {each.name for each in _sites(page)}:
            raise Refusal("invalid", "One of these sites is not registered any more.")
        body = checked(SessionPatch, {"invite": chosen})
        sessions.patch_session(page.co, page.actor, page.param("session"), body)

    require(page.actor, "session.manage")
    return _done(page, act, lambda refusal: _show_invite(page, refusal), "sites-invited")


_SESSION = "/sessions/{session}"
_ROUND = f"{_SESSION}/rounds/{{number}}/close"
_SITE = f"{_SESSION}/sites/{{site}}/exclude"

ROUTES = (
    get(f"{_SESSION}/start", _show_start),
    post(f"{_SESSION}/start", _start),
    get(f"{_SESSION}/retry", _show_retry),
    post(f"{_SESSION}/retry", _retry),
    get(f"{_SESSION}/cancel", _show_cancel),
    post(f"{_SESSION}/cancel", _cancel),
    get(f"{_SESSION}/delete", _show_delete),
    post(f"{_SESSION}/delete", _delete),
    get(_ROUND, _show_close),
    post(_ROUND, _close),
    get(f"{_SESSION}/deadline", _show_deadline),
    post(f"{_SESSION}/deadline", _move_deadline),
    get(_SITE, _show_exclude),
    post(_SITE, _exclude),
    get(f"{_SESSION}/invite", _show_invite),
    post(f"{_SESSION}/invite", _invite),
)
