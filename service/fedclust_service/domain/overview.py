"""How things stand: what people are shown of sessions, and operators of what needs attention."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from fedclust_service.domain.round import RoundState
from fedclust_service.domain.session import ParticipationState, Session


@dataclass(frozen=True)
class SiteOverview:
    """One site in one session.

    Attributes
    ----------
    site : str
    state : ParticipationState
    sdk_version : str or None
        As it said when it last joined.
    table_id : str or None
        The protected table that it answers from.
    separate_groups : bool
        Whether it joined knowing that this is another table than before.
    last_seen_at : datetime or None
        When it was last heard of, in any session.
    asked, answered : bool
        In the latest round.
    bytes_in : int
        Of its stored answers, as they were sent.
    bytes_out : int
        Of the tasks that were made for it, each counted once.
    refusals : int
        Its answers that were refused.
    """

    site: str
    state: ParticipationState
    sdk_version: str | None
    table_id: str | None
    separate_groups: bool
    last_seen_at: datetime | None
    asked: bool
    answered: bool
    bytes_in: int
    bytes_out: int
    refusals: int


@dataclass(frozen=True)
class RoundOverview:
    """A round without its task."""

    number: int
    phase: str
    state: RoundState
    opened_at: datetime
    deadline: datetime
    overdue_since: datetime | None


@dataclass(frozen=True)
class Presence:
    """A site in a session, and whether it is or was asked in the latest round and answered it."""

    site: str
    state: ParticipationState
    asked: bool
    answered: bool


@dataclass(frozen=True)
class Attendance:
    """A session's latest round and its sites by name."""

    round: RoundOverview | None
    sites: tuple[Presence, ...]


@dataclass(frozen=True)
class SessionOverview:
    """One session, its latest round, and its sites by name. The definition is left out (empty)."""

    session: Session
    scrubbed_at: datetime | None
    round: RoundOverview | None
    sites: tuple[SiteOverview, ...]

    def late_since(self, now: datetime) -> datetime | None:
        """Return since when the open round waits beyond its deadline, if it does.

        A session that ends closes or fails its round, so only a running one waits.
        """
        current = self.round
        if current is None or current.state is not RoundState.COLLECTING:
            return None
        return current.deadline if now >= current.deadline else None


@dataclass(frozen=True)
class Concern:
    """Something that an operator should look at.

    Attributes
    ----------
    kind : str
        ``round-late``, ``round-stuck``, ``session-failed`` or ``token-expiring``.
    subject : str
        The session's name, or ``role:name`` of the token's owner.
    at : datetime
        Since when; when the token ends.
    round : int or None
    detail : str or None
        Why a session failed; the token's id.
    """

    kind: str
    subject: str
    at: datetime
    round: int | None = None
    detail: str | None = None
