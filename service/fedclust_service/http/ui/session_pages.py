"""The list of sessions, and the page of one session."""

from starlette.responses import Response

from fedclust.definition import canonical
from fedclust.methods.registry import METHODS
from fedclust.result.dissimilarity import dissimilarity_text
from fedclust.result.session_terms import feature_text
from fedclust.result.wording import value_text
from fedclust.result.worth_asking import asked_of_sites
from fedclust.schema.errors import TASK_RULES
from fedclust.schema.feature import clustered, outcomes_of
from fedclust.wire.models import SessionEntry
from fedclust.wire.submissions import JSON
from fedclust_service.domain.session import SessionState
from fedclust_service.http.ui.address import address
from fedclust_service.http.ui.page_request import PageRequest, get
from fedclust_service.http.ui.rendering import attachment, listed
from fedclust_service.http.ui.session_view import load_view
from fedclust_service.usecases import sessions
from fedclust_service.usecases.events import newest_number

_LIST = "/ui/sessions"
#: The most names that a line of the list holds.
_NAMES = 3


def _list(page: PageRequest) -> Response:
    wanted, study = page.query("state"), page.query("study")
    state = next((each for each in SessionState if each.value == wanted), None)
    cursor = page.query("cursor")
    found = sessions.list_sessions(*page.caller, cursor=cursor, state=state, study=study)
    kept = {"state": state.value if state else "", "study": study or ""}
    return page.render(
        "sessions.html",
        lines=[_line(page.actor.name, entry) for entry in found.items],
        states=[each.value for each in SessionState],
        filters=kept,
        filtered=any(kept.values()),
        further=found.next and address(_LIST, **kept, cursor=found.next),
        first=address(_LIST, **kept) if cursor else None,
    )


def _line(reader: str, entry: SessionEntry) -> dict[str, object]:
    """Return what a line of the list says, so that the template has little to do."""
    sites = entry.sites
    late = [each.name for each in sites if each.late and entry.deadline]
    own = next((each for each in sites if each.name == reader), None)
    state: str = "" if own is None else own.state
    if own is not None and own.state == "joined" and entry.state == "running":
        state = "answered" if own.answered else "late" if own.name in late else state
    invited = state == "invited" and entry.state == "recruiting"
    return {
        "entry": entry,
        "joined": sum(each.state == "joined" for each in sites),
        "asked": sum(each.answered is not None for each in sites),
        "answered": sum(each.answered is True for each in sites),
        "late": listed(late, _NAMES),
        "own_state": state,
        # What the session waits for from the reader's site.
        "waits_for": "decision" if invited else "answer" * (state == "late"),
    }


def _session(page: PageRequest) -> Response:
    # Read first: what happens while the page is made is an event that its stream still brings.
    newest = newest_number(page.co)
    view = load_view(page)
    definition = view.info.definition
    method = METHODS.get(definition.algorithm)
    return page.render(
        "session.html",
        view=view,
        newest=newest,
        method=definition.algorithm if method is None else method.title,
        features=clustered(definition.features),
        outcomes=[feature_text(each) for each in outcomes_of(definition.features)],
        distance=dissimilarity_text(definition.policy, definition.features),
        points=asked_of_sites(definition),
        value_text=value_text,
        task_rules=TASK_RULES,
    )


def _live(page: PageRequest) -> Response:
    return page.render(
        "session_live.html",
        view=load_view(page),
        partial=True,
        task_rules=TASK_RULES,
    )


def _definition(page: PageRequest) -> Response:
    """Return the bytes whose hash sites consent to."""
    info = sessions.get_session(*page.caller, page.param("session"))
    return attachment(canonical(info.definition), JSON, f"{info.name}.json")


ROUTES = (
    get("/sessions", _list),
    get("/sessions/{session}", _session),
    get("/sessions/{session}/live", _live, used=False),
    get("/sessions/{session}/definition.json", _definition),
)
