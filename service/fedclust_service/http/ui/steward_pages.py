"""What a session asks of a site, before it joins, and what the site has sent."""

import re
from collections.abc import Callable

from markupsafe import Markup
from starlette.responses import Response

from fedclust.result.session_terms import SHORT, TECHNICAL, SessionTerms
from fedclust.schema.feature import Trajectory
from fedclust.wire.models import Definition, SessionInfo
from fedclust_service.domain.access import Refusal, Role
from fedclust_service.http.ui.page_request import PageRequest, get
from fedclust_service.http.ui.rendering import name_element
from fedclust_service.usecases import sessions
from fedclust_service.usecases.submissions import list_receipts

#: Headings of the consent screen that the page shows above all others.
_FIRST = {"session", "purpose"}
_PAGE_OF_RECEIPTS = 200


def _consent(page: PageRequest) -> Response:
    """Show the consent screen of the reader's site; analysts and operators choose the site."""
    info = sessions.get_session(*page.caller, page.param("session"))
    site, url = _site_of(page, info), page.coordinator_url
    terms = _terms(info, site, url)
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
        address=page.coordinator_url,
    )


def _terms(info: SessionInfo, site: str, url: str) -> SessionTerms:
    definition, p = info.definition, info.definition.policy.min_group_size
    return SessionTerms(url, site, info.asker, info.operator, definition, p)


def _isolating(definition: Definition) -> Callable[[str], Markup]:
    """Return what isolates an analyst's words in a line: they may be written from the right."""
    words = {definition.contact, definition.approval}
    for feature in definition.features:
        words |= {feature.name, feature.unit}
        words |= set() if isinstance(feature, Trajectory) else {*(feature.levels or ())}
    longest = sorted((word for word in words if not word.isascii()), key=len, reverse=True)
    pattern = re.compile(f"({'|'.join(map(re.escape, longest))})") if longest else None

    def isolate(line: str) -> Markup:
        parts = [line] if pattern is None else pattern.split(line)
        return Markup("").join(
            name_element(part) if place % 2 else part for place, part in enumerate(parts)
        )

    return isolate


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
    site, url = page.actor.name, page.coordinator_url
    terms = _terms(info, site, url)
    return page.render(
        "receipts.html",
        info=info,
        receipts=found.items,
        next_cursor=found.next,
        phases=[phase for phase in terms.phases if phase.name in phases],
    )


ROUTES = (
    get("/sessions/{session}/consent", _consent),
    get("/sessions/{session}/receipts", _receipts),
)
