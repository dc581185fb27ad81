"""What people see of sessions, and what needs an operator's attention."""

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
        Declared when it last joined.
    table_id : str or None
        The protected table that it answers from.
    separate_groups : bool
        Whether it accepted that this is another table than before.
    last_seen_at : datetime or None
        When it was last seen, in any session.
    asked, answered : bool
        In the latest round.
    bytes_in : int
        Bytes of the bodies of its stored answers.
    bytes_out : int
        Bytes of the tasks made for it, each counted once.
    refusals : int
        Number of its refused answers.
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
    """A site in a session: whether the latest round asks or asked it, and whether it answered."""

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
    """One session without its definition (empty), its latest round, and its sites by name."""

    session: Session
    scrubbed_at: datetime | None
    round: RoundOverview | None
    sites: tuple[SiteOverview, ...]

    def late_since(self, now: datetime) -> datetime | None:
        """Return the deadline of the open round if it has passed, else None."""
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
        When it began; for a token, when it ends.
    round : int or None
    detail : str or None
        Why a session failed; the token's id.
    """

    kind: str
    subject: str
    at: datetime
    round: int | None = None
    detail: str | None = None
