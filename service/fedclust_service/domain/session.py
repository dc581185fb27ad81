"""A session, its study and the sites that take part in it: states, transitions as a table."""

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Self, TypeVar


@dataclass(frozen=True)
class Study:
    """A study. It never changes.

    ``definition`` is the canonical JSON of the fields that its creator sent, ``definition_sha256``
    its hash. ``created_by`` is the creator's key.
    """

    id: int
    name: str
    definition: bytes
    definition_sha256: str
    created_by: str
    created_at: datetime


S = TypeVar("S", bound=StrEnum)


class IllegalTransition(RuntimeError):
    """A change of state that no row allows: a defect of the caller, not a user's mistake."""


@dataclass(frozen=True)
class Transition:
    """One allowed change of state. ``why`` labels the arrow in the docs' diagram."""

    source: StrEnum
    target: StrEnum
    why: str


def next_state(table: tuple[Transition, ...], source: S, target: S) -> S:
    """Return ``target`` if the table has a row for the change; IllegalTransition otherwise."""
    if not any(row.source == source and row.target == target for row in table):
        raise IllegalTransition(f"{type(source).__name__}: {source.value} -> {target.value}")
    return target


class SessionState(StrEnum):
    RECRUITING = "recruiting"
    RUNNING = "running"
    HELD = "held"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        return self in (self.COMPLETED, self.FAILED, self.CANCELLED)

    @property
    def under_way(self) -> bool:
        """Whether the session has started and not ended."""
        return self in (self.RUNNING, self.HELD)


class ParticipationState(StrEnum):
    INVITED = "invited"
    JOINED = "joined"
    LEFT = "left"
    EXCLUDED = "excluded"
    REFUSED = "refused"

    @property
    def gone(self) -> bool:
        """Whether the site takes part no more, which cannot be undone."""
        return self in (self.LEFT, self.EXCLUDED, self.REFUSED)


SESSION_TRANSITIONS = (
    Transition(SessionState.RECRUITING, SessionState.RUNNING, "started"),
    Transition(SessionState.RECRUITING, SessionState.CANCELLED, "cancelled"),
    Transition(SessionState.RECRUITING, SessionState.FAILED, "version no longer supported"),
    Transition(SessionState.RUNNING, SessionState.COMPLETED, "the method is done"),
    Transition(
        SessionState.RUNNING, SessionState.FAILED, "a round failed, or version no longer supported"
    ),
    Transition(SessionState.RUNNING, SessionState.CANCELLED, "cancelled"),
    Transition(SessionState.RUNNING, SessionState.HELD, "processes of a round died"),
    Transition(SessionState.HELD, SessionState.RUNNING, "tried again"),
    Transition(SessionState.HELD, SessionState.CANCELLED, "cancelled"),
    Transition(
        SessionState.HELD,
        SessionState.FAILED,
        "data damaged, or version no longer supported",
    ),
)

PARTICIPATION_TRANSITIONS = (
    Transition(ParticipationState.INVITED, ParticipationState.JOINED, "joins with consent"),
    Transition(ParticipationState.INVITED, ParticipationState.LEFT, "declines"),
    Transition(ParticipationState.INVITED, ParticipationState.EXCLUDED, "excluded"),
    Transition(ParticipationState.JOINED, ParticipationState.LEFT, "leaves"),
    Transition(ParticipationState.JOINED, ParticipationState.EXCLUDED, "excluded"),
    Transition(ParticipationState.JOINED, ParticipationState.REFUSED, "refuses a task"),
)


@dataclass(frozen=True)
class Session:
    """A clustering session.

    ``definition`` is the canonical JSON that was frozen at creation, ``definition_sha256`` its
    hash, and ``request_sha256`` the hash of the request, before the seed was drawn. ``version``
    increases with every change that a request may wait for. ``study`` is the name of its study.
    ``deaths`` counts the processes that died while they aggregated its open round. ``failure`` says
    why a session has failed, or why it is held. ``scrubbed_at`` is when its payloads were deleted.
    """

    id: int
    name: str
    algorithm: str
    method_version: int
    definition: bytes
    definition_sha256: str
    request_sha256: str
    created_by: str
    state: SessionState
    version: int
    created_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None
    stopped_because: str | None = None
    failure: str | None = None
    scrubbed_at: datetime | None = None
    study: str | None = None
    held_at: datetime | None = None
    deaths: int = 0

    def to(self, state: SessionState, **changes: Any) -> Self:
        """Return the session in another state; IllegalTransition if no row allows the change."""
        return replace(self, state=next_state(SESSION_TRANSITIONS, self.state, state), **changes)


@dataclass(frozen=True)
class Participation:
    """One site in one session, with its declarations.

    ``refused_task`` is the rule that a task broke which the site refused: one of `TASK_RULES`.
    ``table_id`` names the protected table that it answers from. ``separate_groups`` is set if the
    site accepted that this is another table of the same persons, ``other_persons`` if it approved
    persons whom its tables did not know. ``points_short`` is set if it answers no outcomes, because
    its allowance has too few points.
    """

    session_id: int
    site: str
    state: ParticipationState
    invited_at: datetime
    definition_sha256: str | None = None
    two_sites_with: str | None = None
    protection_none: bool = False
    features: tuple[str, ...] = ()
    min_group_size: int | None = None
    size_band: str | None = None
    sdk_version: str | None = None
    joined_at: datetime | None = None
    left_at: datetime | None = None
    table_id: str | None = None
    separate_groups: bool = False
    refused_task: str | None = None
    other_persons: bool = False
    points_short: bool = False

    def to(self, state: ParticipationState, **changes: Any) -> Self:
        """Return the site in another state; IllegalTransition if no row allows the change."""
        table = PARTICIPATION_TRANSITIONS
        return replace(self, state=next_state(table, self.state, state), **changes)
