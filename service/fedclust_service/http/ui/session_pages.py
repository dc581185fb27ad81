"""The list of sessions, one session, what it asks of a site, and what the site has sent."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property

from markupsafe import Markup
from starlette.responses import Response

from fedclust.definition import canonical
from fedclust.methods.registry import METHODS
from fedclust.result.dissimilarity import dissimilarity_text
from fedclust.result.drawing import inertia_chart
from fedclust.result.session_terms import SHORT, TECHNICAL, SessionTerms, feature_text
from fedclust.result.wording import isolated, value_text
from fedclust.result.worth_asking import asked_of_sites
from fedclust.schema.errors import TASK_RULES
from fedclust.schema.feature import Trajectory, clustered, outcomes_of
from fedclust.wire.models import Definition, RoundInfo, SessionEntry, SessionInfo, SitePresence
from fedclust.wire.submissions import JSON
from fedclust_service.domain.access import Actor, Refusal, Role
from fedclust_service.domain.notification import Channel, NotificationKind
from fedclust_service.domain.session import SessionState
from fedclust_service.http.ui.page_request import PageRequest, get
from fedclust_service.http.ui.rendering import address, attachment, listed
from fedclust_service.usecases import rounds, sessions
from fedclust_service.usecases.submissions import list_receipts

#: The most rounds of which the page tells; the latest.
SHOWN_ROUNDS = 25


@dataclass(frozen=True)
class SessionView:
    """One session with its latest rounds, as the reader may see it."""

    info: SessionInfo
    rounds: tuple[RoundInfo, ...]
    actor: Actor
    now: datetime
    #: Whether an invitation is mailed to the sites that have an address.
    mails: bool
    #: The address for sites.
    coordinator: str

    @property
    def address(self) -> str:
        """The page of the session."""
        return f"/ui/sessions/{self.info.name}"

    @property
    def ended(self) -> bool:
        """Whether nothing happens any more."""
        return self.info.state not in ("recruiting", "running", "held")

    @property
    def manages(self) -> bool:
        """Whether the reader may start, close, cancel and so on."""
        return self.actor.role is not Role.SITE

    @property
    def current(self) -> RoundInfo | None:
        """The latest round."""
        return self.rounds[-1] if self.rounds else None

    @property
    def collecting(self) -> RoundInfo | None:
        """The round that collects answers now."""
        current = self.current
        return current if current is not None and current.state == "collecting" else None

    @property
    def late_since(self) -> datetime | None:
        """The deadline of the open round, if it has passed."""
        open_ = self.collecting
        return open_.deadline if open_ is not None and self.now >= open_.deadline else None

    @property
    def fails_at(self) -> datetime | None:
        """When an overdue round fails the session at the latest."""
        open_ = self.collecting
        if open_ is None or not open_.overdue:
            return None
        return open_.deadline + timedelta(seconds=self.info.definition.policy.fail_after_s)

    @property
    def own(self) -> SitePresence | None:
        """The reader's own site."""
        if self.actor.role is not Role.SITE:
            return None
        return next((each for each in self.info.sites if each.name == self.actor.name), None)

    @property
    def joins_late(self) -> bool:
        """Whether sites may join after the start."""
        method = METHODS.get(self.info.definition.algorithm)
        return method is not None and method.joins_late

    @property
    def can_join(self) -> bool:
        """Whether the reader's site may join now."""
        expires = self.info.definition.expires
        opened = self.info.state == "recruiting" or (not self.ended and self.joins_late)
        return opened and (expires is None or self.now < expires)

    @property
    def needed(self) -> int:
        """How many sites the session needs to start and to go on."""
        return self.info.definition.policy.sites_needed

    @property
    def never_joined(self) -> bool:
        """Whether no site takes part, so that the session may be deleted."""
        return self.info.started_at is None and not self.names("joined")

    @cached_property
    def chart(self) -> Markup | None:
        """Inertia by round, from two rounds on."""
        points = [
            (each.number, each.metrics["inertia"])
            for each in self.rounds
            if math.isfinite(each.metrics.get("inertia", math.nan))
        ]
        # drawn by our own code, which escapes
        return Markup(inertia_chart(points).svg) if len(points) > 1 else None  # noqa: S704

    def names(self, *states: str) -> list[str]:
        """Return the sites in these states."""
        return [each.name for each in self.info.sites if each.state in states]

    def answered(self, shown: RoundInfo) -> list[str]:
        """Return the sites that have answered a round."""
        return [each.name for each in shown.sites if each.answered]

    def pending(self, shown: RoundInfo) -> list[str]:
        """Return the sites that take part and have not answered a round."""
        joined = set(self.names("joined"))
        return [each.name for each in shown.sites if not each.answered and each.name in joined]


def load_view(page: PageRequest) -> SessionView:
    """Return the session that the address names; Refusal ``not-found``."""
    co, name = page.co, page.param("session")
    info = sessions.get_session(*page.caller, name)
    shown: tuple[RoundInfo, ...] = ()
    if info.round is not None:
        after = str(max(0, info.round - SHOWN_ROUNDS))
        shown = rounds.list_rounds(*page.caller, name, SHOWN_ROUNDS, after).items
    out = co.outgoing
    mails = Channel.EMAIL in out.senders and NotificationKind.INVITED in out.kinds
    return SessionView(info, shown, page.actor, co.clock.now(), mails, page.coordinator_url)


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
    # Counted first: what happens while the page is made comes with its next question.
    changes = sessions.count_changes(*page.caller, page.param("session"))
    view = load_view(page)
    definition = view.info.definition
    method = METHODS.get(definition.algorithm)
    return page.render(
        "session.html",
        view=view,
        changes=changes,
        method=definition.algorithm if method is None else method.title,
        features=clustered(definition.features),
        outcomes=[feature_text(each) for each in outcomes_of(definition.features)],
        distance=dissimilarity_text(definition.policy, definition.features),
        points=asked_of_sites(definition),
        value_text=value_text,
        task_rules=TASK_RULES,
    )


def _live(page: PageRequest) -> Response:
    """Return what has changed on an open page; 204 if nothing has."""
    changes = sessions.count_changes(*page.caller, page.param("session"))
    if page.query("known") == str(changes):
        return Response(status_code=204)
    return page.render(
        "session_live.html",
        view=load_view(page),
        changes=changes,
        partial=True,
        task_rules=TASK_RULES,
    )


def _definition(page: PageRequest) -> Response:
    """Return the bytes whose hash sites consent to."""
    info = sessions.get_session(*page.caller, page.param("session"))
    return attachment(canonical(info.definition), JSON, f"{info.name}.json")


#: Headings of the consent screen that the page shows above all others.
_FIRST = {"session", "purpose"}
_PAGE_OF_RECEIPTS = 200


def _consent(page: PageRequest) -> Response:
    """Show the consent screen of the reader's site; analysts and operators choose the site."""
    info = sessions.get_session(*page.caller, page.param("session"))
    terms = _terms(page, info, _site_of(page, info))
    mark = _isolating(info.definition)
    shown = [
        (heading, [(line.startswith(" "), mark(line.strip())) for line in lines])
        for heading, lines in terms.sections()
        if heading not in _FIRST
    ]
    own = next((site for site in info.sites if site.name == terms.site), None)
    return page.render(
        "consent.html",
        info=info,
        terms=terms,
        own=own,
        short=[pair for pair in shown if pair[0] in SHORT],
        annex=[pair for pair in shown if pair[0] not in {*SHORT, *TECHNICAL}],
        technical=[(TECHNICAL[name], lines) for name, lines in shown if name in TECHNICAL],
    )


def _terms(page: PageRequest, info: SessionInfo, site: str) -> SessionTerms:
    definition, p = info.definition, info.definition.policy.min_group_size
    return SessionTerms(page.coordinator_url, site, info.asker, info.operator, definition, p)


def _isolating(definition: Definition) -> Callable[[str], str]:
    """Return what isolates an analyst's words in a line: they may be written from the right."""
    words = {definition.contact, definition.approval}
    for feature in definition.features:
        words |= {feature.name, feature.unit}
        words |= set() if isinstance(feature, Trajectory) else {*(feature.levels or ())}
    longest = sorted((word for word in words if not word.isascii()), key=len, reverse=True)
    pattern = re.compile("|".join(map(re.escape, longest)))  # of no words it changes nothing
    return lambda line: pattern.sub(lambda found: isolated(found[0]), line)


def _site_of(page: PageRequest, info: SessionInfo) -> str:
    if page.actor.role is Role.SITE:
        return page.actor.name
    wanted = page.query("site") or info.definition.sites[0]
    if wanted not in {site.name for site in info.sites}:
        raise Refusal("not-found", "The session invites no site of this name.")
    return wanted


def _receipts(page: PageRequest) -> Response:
    """List a site's submissions in a session, with what each phase discloses."""
    name = page.param("session")
    found = list_receipts(*page.caller, name, limit=_PAGE_OF_RECEIPTS, cursor=page.query("cursor"))
    info = sessions.get_session(*page.caller, name)
    phases = {each.phase for each in found.items}
    terms = _terms(page, info, page.actor.name)
    return page.render(
        "receipts.html",
        info=info,
        receipts=found.items,
        next_cursor=found.next,
        phases=[phase for phase in terms.phases if phase.name in phases],
    )


ROUTES = (
    get("/sessions", _list),
    get("/sessions/{session}", _session),
    get("/sessions/{session}/live", _live, used=False),
    get("/sessions/{session}/definition.json", _definition),
    get("/sessions/{session}/consent", _consent),
    get("/sessions/{session}/receipts", _receipts),
)
