"""What an analyst or an operator does to a session: each with a page that says the consequence."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, timedelta
from typing import TypeAlias

from fedclust.result.first_screen import in_words
from fedclust.schema.times import read_time, write_time
from fedclust.wire.models import SessionPatch
from fedclust_service.domain.access import Actor, Refusal, absent
from fedclust_service.http.ui.page_request import Action, PageRequest, checked
from fedclust_service.http.ui.result_pages import number_of_clusters, read_shown
from fedclust_service.http.ui.session_pages import SessionView, load_view
from fedclust_service.usecases import participation, principals, rounds, sessions
from fedclust_service.usecases.coordinator import Coordinator

#: Longer times for the open round, in seconds.
_LONGER = (("1 hour", 3_600), ("1 day", 86_400), ("1 week", 604_800))


#: What a page shows besides its session. Its ``refusal`` is what stands against the action.
_Shown: TypeAlias = Mapping[str, object]


def _action(
    name: str,
    notice: str,
    show: Callable[[PageRequest, SessionView], _Shown],
    act: Callable[[PageRequest], object],
    path: str = "",
    *,
    right: str = "session.manage",
    leads_to: str = "/ui/sessions/{session}",
) -> Action:
    """Return an action with the page ``session_NAME.html`` at ``path`` below the session."""

    def values(page: PageRequest) -> dict[str, object]:
        view = load_view(page)
        return {"view": view, **show(page, view)}

    below, template = f"/sessions/{{session}}/{path or name}", f"session_{name}.html"
    return Action(below, template, right, values, act, notice, leads_to)


def _patch(page: PageRequest, body: SessionPatch) -> None:
    sessions.patch_session(*page.caller, page.param("session"), body)


# --- start, cancel, delete ------------------------------------------------------------------------


def _on(use_case: Callable[[Coordinator, Actor, str], object]) -> Callable[[PageRequest], object]:
    """Return the action that is a use case of the session alone."""
    return lambda page: use_case(*page.caller, page.param("session"))


def _nothing(_page: PageRequest, _view: SessionView) -> _Shown:
    """Show the session alone. Where its state does not allow the action, the use case says so."""
    return {}


# --- the open round -------------------------------------------------------------------------------


def _number(page: PageRequest) -> int:
    number = page.param("number")
    if not (number.isascii() and number.isdigit() and len(number) < 10):
        raise absent("round")
    return int(number)


def _show_close(page: PageRequest, view: SessionView) -> _Shown:
    number = _number(page)
    against = rounds.why_not_closed(*page.caller, view.info.name, number)
    shown = next((each for each in view.rounds if each.number == number), None)
    if shown is None:
        raise absent("round")
    return {"refusal": against, "round": shown}


def _close(page: PageRequest) -> None:
    rounds.close_round(*page.caller, page.param("session"), _number(page))


def _show_deadline(_: PageRequest, view: SessionView) -> _Shown:
    open_ = view.collecting
    if open_ is None:
        raise sessions.not_collecting()
    begin = max(view.now, open_.deadline)
    longer = [(label, begin + timedelta(seconds=seconds)) for label, seconds in _LONGER]
    choices = [(label, at, write_time(at)) for label, at in longer]
    return {"round": open_, "choices": choices}


def _move_deadline(page: PageRequest) -> None:
    chosen = read_time(page.form.get("at") or page.form.get("deadline", ""), UTC)
    if chosen is None:
        raise Refusal("invalid", "Give a date and a time, such as 2026-03-01 12:00.")
    if chosen <= page.co.clock.now():
        raise Refusal("invalid", "This time has passed. To end the round now, close it instead.")
    _patch(page, SessionPatch(deadline=chosen))


# --- its sites ------------------------------------------------------------------------------------


def _show_exclude(page: PageRequest, view: SessionView) -> _Shown:
    site = next((each for each in view.info.sites if each.name == page.param("site")), None)
    if site is None:
        raise absent("site in this session")
    left = [name for name in view.names("joined") if name != site.name]
    return {"site": site, "left": left}


def _exclude(page: PageRequest) -> None:
    participation.exclude(*page.caller, page.param("session"), page.param("site"))


def _show_invite(page: PageRequest, view: SessionView) -> _Shown:
    known = {each.name for each in view.info.sites}
    sites = [each for each in principals.enabled_sites(*page.caller) if each.name not in known]
    return {"sites": sites, "chosen": set(_chosen(page))}


def _chosen(page: PageRequest) -> list[str]:
    return list(dict.fromkeys(page.form.getlist("site")))


def _invite(page: PageRequest) -> None:
    chosen = _chosen(page)
    if not chosen:
        raise Refusal("invalid", "Choose a site at least.")
    _patch(page, checked(SessionPatch, {"invite": chosen}))


def _show_names(page: PageRequest, view: SessionView) -> _Shown:
    """Show an input for each cluster of the K of the address."""
    typed = page.form.getlist("name")
    read, k = read_shown(page, view.info, None), len(typed) or number_of_clusters(page, "k")
    shown = read.facts if k in (None, len(read.facts.clusters)) else replace(read, k=k).facts
    names = typed or shown.given_names
    about = [in_words(cluster) for cluster in shown.clusters]
    return {"clusters": list(zip(about, names, strict=False))}


def _name(page: PageRequest) -> None:
    body = checked(SessionPatch, {"cluster_names": page.form.getlist("name")})
    if not body.cluster_names:
        raise Refusal("invalid", "Give each cluster a name.")
    _patch(page, body)


_ACTIONS = (
    _action("start", "session-started", _nothing, _on(sessions.start_session)),
    _action(
        "retry", "session-retried", _nothing, _on(sessions.retry_session), right="session.retry"
    ),
    _action("cancel", "session-cancelled", _nothing, _on(sessions.cancel_session)),
    _action(
        *("delete", "session-deleted", _nothing, _on(sessions.delete_session)),
        leads_to="/ui/sessions",
    ),
    _action("close", "round-closed", _show_close, _close, "rounds/{number}/close"),
    _action("deadline", "deadline-moved", _show_deadline, _move_deadline),
    _action("exclude", "site-excluded", _show_exclude, _exclude, "sites/{site}/exclude"),
    _action("invite", "sites-invited", _show_invite, _invite),
    _action(
        "names", "clusters-named", _show_names, _name, leads_to="/ui/sessions/{session}/result"
    ),
)
ROUTES = tuple(route for action in _ACTIONS for route in action.routes)
