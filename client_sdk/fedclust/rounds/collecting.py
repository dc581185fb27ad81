"""When a round stops collecting answers: the rule of every coordinator."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TypeAlias

from fedclust.schema.run_config import Policy
from fedclust.schema.task import Contribution, Phase


class CollectedReason(StrEnum):
    """Why a round stopped collecting: ``close_reason``, unless the round failed."""

    ALL_ANSWERED = "all_answered"
    QUORUM_AT_DEADLINE = "quorum_at_deadline"
    OPERATOR = "operator"
    FAIL_AFTER = "fail_after"
    SITE_LEFT = "site_left"
    TASK_REFUSED = "task_refused"


class TurnoutFailure(StrEnum):
    """Why a round and its session failed: its sites did not answer as they should."""

    TOO_FEW_CONTRIBUTORS = "too_few_contributors"
    QUORUM_NOT_REACHED = "quorum_not_reached"
    TASK_REFUSED = "task_refused"


#: What people read of each failure.
FAILURES = {
    TurnoutFailure.TOO_FEW_CONTRIBUTORS: (
        "All sites of the round have answered, but fewer of them with contents than the session "
        "needs. Create a session with more sites, fewer clusters, or a smaller least group size."
    ),
    TurnoutFailure.QUORUM_NOT_REACHED: (
        "Too few sites answered the round by its deadline, or in the time for late answers after "
        "it. Create a new session with the sites that can answer, or with more time for a round."
    ),
    TurnoutFailure.TASK_REFUSED: (
        "Sites have refused a task, and fewer are left than the session needs. This happens when "
        "fedclust at the sites and at the coordinator differ, or when the coordinator asks for "
        "more than the definition says. Install the same version everywhere and create the "
        "session again."
    ),
}


@dataclass(frozen=True)
class Attendance:
    """Who has answered a round so far.

    Attributes
    ----------
    answers : list of Contribution
    pending : collection of str
        The addressed sites that have yet to answer.
    roster : list of str
        The sites that take part in the session, sorted.
    refused : bool
        Whether a site has refused a task of the session.
    """

    answers: list[Contribution]
    pending: Collection[str]
    roster: list[str]
    refused: bool = False


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
    """What a session's policy and a round's phase say about the end of collecting.

    Attributes
    ----------
    policy : Policy
    needs_all : bool
        Whether the round waits for every addressed site.
    optional : bool
        The session has a clustering without this round. If the round gets too few answers, they
        are not used, and the session does not fail.
    ends_with_site : bool
        The session completes when a site of the round leaves.
    """

    policy: Policy
    needs_all: bool
    optional: bool = False
    ends_with_site: bool = False

    @classmethod
    def of(cls, policy: Policy, phase: Phase | None, *, needs_all: bool) -> Rules:
        """Return the rules of a round; ``phase`` is None if this version does not know it."""
        if phase is None:
            return cls(policy, needs_all)
        return cls(policy, needs_all or phase.needs_all, phase.optional, phase.ends_with_site)

    @property
    def fail_after(self) -> timedelta:
        """How long the round may be overdue."""
        return timedelta(seconds=self.policy.fail_after_s)

    def quorum_of(self, turnout: Turnout) -> int:
        """Return how many answers with contents suffice if not all sites have answered."""
        return max(self.policy.quorum or turnout.joined, self.policy.min_sites)

    def spare(self, turnout: Turnout) -> int:
        """Return how many of the pending sites can be excluded without ending the session."""
        left = min(turnout.joined, turnout.nonempty + turnout.pending) - self.policy.sites_needed
        return max(0, min(left, turnout.pending))

    def lacks_sites(self, turnout: Turnout) -> bool:
        """Whether fewer than ``min_sites`` sites are left that can answer with contents."""
        return turnout.nonempty + turnout.pending < self.policy.min_sites

    def cannot_close(self, turnout: Turnout) -> bool:
        """Whether too few sites are left for the round to be aggregated."""
        return self.lacks_sites(turnout) and not self.optional


@dataclass(frozen=True)
class Wait:
    """The round continues to collect."""

    overdue: bool


#: The round waits, stops collecting and is aggregated for a reason, or fails with its session.
Decision: TypeAlias = Wait | CollectedReason | TurnoutFailure


def decide_round(
    turnout: Turnout,
    rules: Rules,
    *,
    late: bool,
    overdue_for: timedelta | None,
    asked: bool = False,
    refused: bool = False,
) -> Decision:
    """Decide whether a collecting round waits, is aggregated or fails.

    Call it after everything that can change the outcome: an answer, a departure, a moved deadline,
    an operator's request, the passing of time.

    Parameters
    ----------
    turnout : Turnout
    rules : Rules
    late : bool
        Whether the deadline has passed.
    overdue_for : timedelta or None
        How long the round has been overdue; None if it was not at the last decision.
    asked : bool
        Whether an operator asks to end the collecting.
    refused : bool
        Whether a site has refused a task of the session.

    Returns
    -------
    Decision
    """
    if rules.ends_with_site and turnout.gone:
        return CollectedReason.SITE_LEFT
    if refused and turnout.joined < rules.policy.min_sites and rules.lacks_sites(turnout):
        # Waiting changes nothing: a site that has refused a task does not come back.
        if rules.optional:
            return CollectedReason.TASK_REFUSED
        return TurnoutFailure.TASK_REFUSED
    if turnout.pending == 0:
        if turnout.nonempty >= rules.policy.min_sites or rules.optional:
            return CollectedReason.ALL_ANSWERED
        if turnout.joined >= rules.policy.min_sites:
            # All sites have answered: waiting changes nothing.
            return TurnoutFailure.TOO_FEW_CONTRIBUTORS
    elif not rules.needs_all and turnout.nonempty >= rules.quorum_of(turnout):
        if late:
            return CollectedReason.QUORUM_AT_DEADLINE
        if asked:
            return CollectedReason.OPERATOR
    overdue = late or turnout.joined < rules.policy.min_sites
    if overdue and overdue_for is not None and overdue_for >= rules.fail_after:
        if rules.optional:
            return CollectedReason.FAIL_AFTER
        return TurnoutFailure.QUORUM_NOT_REACHED
    return Wait(overdue)
