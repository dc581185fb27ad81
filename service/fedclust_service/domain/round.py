"""A round: one exchange of tasks and answers with some sites, and the rules that end it.

A round collects answers, then it is aggregated, then it is closed. Or it fails.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from fedclust_service.domain.session import ParticipationState, SessionState
from fedclust_service.domain.transition import Transition


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


class CollectedReason(StrEnum):
    """Why a round stopped collecting: ``close_reason``, unless the round failed."""

    ALL_ANSWERED = "all_answered"
    QUORUM_AT_DEADLINE = "quorum_at_deadline"
    OPERATOR = "operator"
    FAIL_AFTER = "fail_after"
    SITE_LEFT = "site_left"
    TASK_REFUSED = "task_refused"


class FailureReason(StrEnum):
    """Why a round and its session failed, other than a failure of the method."""

    TOO_FEW_CONTRIBUTORS = "too_few_contributors"
    QUORUM_NOT_REACHED = "quorum_not_reached"
    TASK_REFUSED = "task_refused"
    AGGREGATION_ERROR = "aggregation_error"
    AGGREGATION_TIMEOUT = "aggregation_timeout"
    VERSION_UNSUPPORTED = "version_unsupported"
    STORED_DATA_DAMAGED = "stored_data_damaged"


@dataclass(frozen=True)
class Lease:
    """The right to aggregate a round. ``holder`` names the process, ``token`` the lease."""

    token: str
    holder: str
    expires_at: datetime


@dataclass(frozen=True, kw_only=True)
class Round:
    """A round of a session; ``common`` is the canonical binary form of the task's common part.

    ``attempts`` counts how often a driver has taken it"""

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
    lease: Lease | None = None
    attempts: int = 0
    aggregation_s: float | None = None
    metrics: dict[str, float] | None = None
    #: Last, so that SQLite reads the other columns without reading a long value's pages.
    common: bytes


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


# --- when a round stops collecting ----------------------------------------------------------------


@dataclass(frozen=True)
class Turnout:
    """Counts of a round's sites and answers."""

    #: Addressed sites that have neither answered nor been released.
    pending: int
    answered: int
    #: Answers with contents, including those of sites that have left since.
    nonempty: int
    #: Addressed sites that still take part. Sites that joined later do not count.
    joined: int
    #: Addressed sites that left without an answer.
    gone: int = 0


@dataclass(frozen=True)
class Rules:
    """What a session's policy and a round's phase say about the end of collecting."""

    min_sites: int
    quorum: int | None
    fail_after: timedelta
    needs_all: bool
    #: The session has a clustering without this round. If the round gets too few answers, they are
    #: not used, and the session does not fail.
    optional: bool = False
    #: The session completes when a site of the round leaves.
    ends_with_site: bool = False

    def quorum_of(self, turnout: Turnout) -> int:
        """Return how many answers with contents suffice if not all sites have answered."""
        named = turnout.joined if self.quorum is None else self.quorum
        return max(named, self.min_sites)

    @property
    def needed(self) -> int:
        """How many sites the session needs as long as it runs."""
        return max(self.min_sites, self.quorum or 0)

    def spare(self, turnout: Turnout) -> int:
        """Return how many of the pending sites can be excluded without ending the session."""
        left = min(turnout.joined, turnout.nonempty + turnout.pending) - self.needed
        return max(0, min(left, turnout.pending))

    def lacks_sites(self, turnout: Turnout) -> bool:
        """Whether fewer than ``min_sites`` sites are left that can answer with contents."""
        return turnout.nonempty + turnout.pending < self.min_sites

    def cannot_close(self, turnout: Turnout) -> bool:
        """Whether too few sites are left for the round to be aggregated."""
        return self.lacks_sites(turnout) and not self.optional


@dataclass(frozen=True)
class Wait:
    """The round continues to collect."""

    overdue: bool


@dataclass(frozen=True)
class Aggregate:
    """The round stops collecting and is aggregated."""

    reason: CollectedReason


@dataclass(frozen=True)
class Fail:
    """Round and session fail."""

    reason: FailureReason


def decide_round(
    turnout: Turnout,
    rules: Rules,
    *,
    deadline: datetime,
    overdue_since: datetime | None,
    now: datetime,
    asked: bool = False,
    refused: bool = False,
) -> Wait | Aggregate | Fail:
    """Decide whether a collecting round waits, is aggregated or fails.

    Call it after everything that can change the outcome: an answer, a departure, a moved deadline,
    an operator's request (``asked``), the passing of time. ``refused``: whether a site has refused
    a task of the session.
    """
    if rules.ends_with_site and turnout.gone:
        return Aggregate(CollectedReason.SITE_LEFT)
    if refused and turnout.joined < rules.min_sites and rules.lacks_sites(turnout):
        # Waiting changes nothing: a site that has refused a task does not come back.
        if rules.optional:
            return Aggregate(CollectedReason.TASK_REFUSED)
        return Fail(FailureReason.TASK_REFUSED)
    if turnout.pending == 0:
        if turnout.nonempty >= rules.min_sites or rules.optional:
            return Aggregate(CollectedReason.ALL_ANSWERED)
        if turnout.joined >= rules.min_sites:
            # All sites have answered: waiting changes nothing.
            return Fail(FailureReason.TOO_FEW_CONTRIBUTORS)
    elif not rules.needs_all and turnout.nonempty >= rules.quorum_of(turnout):
        if now >= deadline:
            return Aggregate(CollectedReason.QUORUM_AT_DEADLINE)
        if asked:
            return Aggregate(CollectedReason.OPERATOR)
    overdue = now >= deadline or turnout.joined < rules.min_sites
    if overdue and overdue_since is not None and now >= overdue_since + rules.fail_after:
        if rules.optional:
            return Aggregate(CollectedReason.FAIL_AFTER)
        return Fail(FailureReason.QUORUM_NOT_REACHED)
    return Wait(overdue)


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
