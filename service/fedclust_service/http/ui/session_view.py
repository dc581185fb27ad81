"""What the pages of one session show, read through the use cases of the API."""

import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property

from markupsafe import Markup

from fedclust.methods.registry import METHODS
from fedclust.result.drawing import inertia_chart
from fedclust.wire.models import RoundInfo, SessionInfo, SitePresence
from fedclust_service.domain.access import Actor, Role
from fedclust_service.domain.notification import Channel, NotificationKind
from fedclust_service.http.ui.page_request import PageRequest
from fedclust_service.usecases import rounds, sessions

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
    def can_join(self) -> bool:
        """Whether the reader's site may join now."""
        method = METHODS.get(self.info.definition.algorithm)
        expires = self.info.definition.expires
        late = method is not None and method.joins_late
        opened = self.info.state == "recruiting" or (not self.ended and late)
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
