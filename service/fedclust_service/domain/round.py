"""A round: one exchange of tasks and answers with some sites.

A round collects answers, then it is aggregated, then it is closed. Or it fails.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Self

from fedclust_service.domain.session import ParticipationState, SessionState, Transition, next_state


class RoundState(StrEnum):
    COLLECTING = "collecting"
    AGGREGATING = "aggregating"
    CLOSED = "closed"
    FAILED = "failed"


ROUND_TRANSITIONS = (
    Transition(RoundState.COLLECTING, RoundState.AGGREGATING, "all answered, deadline or operator"),
    Transition(
        RoundState.COLLECTING, RoundState.FAILED, "too few contributors, or overdue too long"
    ),
    Transition(RoundState.AGGREGATING, RoundState.CLOSED, "aggregated"),
    Transition(RoundState.AGGREGATING, RoundState.FAILED, "the aggregation failed"),
)


class FailureReason(StrEnum):
    """Why a round and its session failed, for a reason of the coordinator's own."""

    AGGREGATION_ERROR = "aggregation_error"
    AGGREGATION_TIMEOUT = "aggregation_timeout"
    VERSION_UNSUPPORTED = "version_unsupported"
    STORED_DATA_DAMAGED = "stored_data_damaged"


@dataclass(frozen=True, kw_only=True)
class Round:
    """A round of a session; ``common`` is the canonical binary form of the task's common part.

    A process has the right to aggregate it as long as it holds the lease: ``lease_holder`` names
    the process, ``lease_token`` the lease. ``attempts`` counts how often a driver has taken it"""

    id: int
    session_id: int
    number: int
    phase: str
    state: RoundState
    needs_all: bool
    opened_at: datetime
    deadline: datetime
    overdue_since: datetime | None = None
    closed_at: datetime | None = None
    close_reason: str | None = None
    lease_token: str | None = None
    lease_holder: str | None = None
    lease_expires_at: datetime | None = None
    attempts: int = 0
    aggregation_s: float | None = None
    metrics: dict[str, float] | None = None
    #: Last, so that SQLite reads the other columns without reading a long value's pages.
    common: bytes

    def to(self, state: RoundState, **changes: Any) -> Self:
        """Return the round in another state; IllegalTransition if no row allows the change."""
        return replace(self, state=next_state(ROUND_TRANSITIONS, self.state, state), **changes)


@dataclass(frozen=True, kw_only=True)
class Addressee:
    """A site that a round addresses, with its part of the task.

    ``released`` is set when the site left, was excluded or refused the task without an answer.
    """

    round_id: int
    site: str
    task_digest: str
    released: bool = False
    site_part: bytes


# --- what a site should do ------------------------------------------------------------------------


class TaskStatus(StrEnum):
    INVITED = "invited"
    WAITING = "waiting"
    WORK = "work"
    ANSWERED = "answered"
    LEFT = "left"
    ENDED = "ended"


def status_of(
    session: SessionState,
    participation: ParticipationState,
    current: RoundState | None,
    *,
    addressed: bool,
    answered: bool,
) -> TaskStatus:
    """Return what a site should do; ``current`` is the state of the session's latest round.

    A site that has answered gets the same status while the round collects and while it is
    aggregated, so that its long poll does not wake in between.
    """
    if session.ended:
        return TaskStatus.ENDED
    if participation.gone:
        return TaskStatus.LEFT
    if participation is ParticipationState.INVITED:
        return TaskStatus.INVITED
    if not addressed or current is None:
        return TaskStatus.WAITING
    if answered:
        return TaskStatus.ANSWERED
    return TaskStatus.WORK if current is RoundState.COLLECTING else TaskStatus.WAITING


@dataclass(frozen=True)
class Submission:
    """A stored answer.

    ``sha256`` and ``size`` are those of the body as it was sent. ``payload`` is the canonical
    binary form of its contents; it is None for an empty answer and after scrubbing.
    """

    session_id: int
    round_id: int
    site: str
    phase: str
    sha256: str
    size: int
    empty: bool
    received_at: datetime
    payload: bytes | None
