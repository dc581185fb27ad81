"""The rounds that wait to be aggregated: where each is computed, and in which order."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from datetime import datetime

import structlog

from fedclust import rounds
from fedclust.definition import DefinitionError
from fedclust_service.store import DataDamaged, Tx, WaitingRound
from fedclust_service.usecases.core import CoordinatorCore, set_apart
from fedclust_service.usecases.definitions import plan_for

log = structlog.get_logger(__name__)
#: Reading so many bytes holds up this process for a second, whatever is computed from them.
_BYTES_PER_S = 50_000_000


@dataclass(frozen=True)
class Candidate:
    """A waiting round, and whether it is aggregated in a process of the pool."""

    id: int
    session_id: int
    pooled: bool


class WaitingRounds:
    """Estimates each waiting round once. For one thread at a time."""

    def __init__(self, co: CoordinatorCore) -> None:
        self._co = co
        #: The rounds that waited at the last look: since when, and how long each takes.
        self._known: dict[int, tuple[datetime, float]] = {}

    def in_order(self, now: datetime) -> list[Candidate]:
        """Return the waiting rounds, the shortest first.

        What a round has waited counts as if it took that much less, so none waits for ever.
        """
        waiting = self._co.store.read("driver.look", lambda tx: tx.rounds.waiting(now))
        known = {}
        for each in waiting:
            with set_apart("driver", each.id):
                known[each.id] = self._known.get(each.id) or (now, self._seconds(each))
        self._known = known
        ordered = sorted(
            (each for each in waiting if each.id in known),
            key=lambda each: known[each.id][1] - (now - known[each.id][0]).total_seconds(),
        )
        return [self._candidate(each, known[each.id][1]) for each in ordered]

    def _candidate(self, each: WaitingRound, seconds: float) -> Candidate:
        long = seconds > self._co.limits.pooled_above_s
        return Candidate(
            each.id, each.session_id, long or each.attempts >= self._co.limits.pooled_after
        )

    def _seconds(self, each: WaitingRound) -> float:
        try:
            return self._co.store.read("driver.weigh", functools.partial(_estimate, each))
        except (DataDamaged, DefinitionError):
            # It fails at once, where it is aggregated.
            return 0.0


def _estimate(waiting: WaitingRound, tx: Tx) -> float:
    """Return how long the session's last round of this phase took, or what the engine expects."""
    count, n_bytes = tx.submissions.size(waiting.id)
    measured = tx.rounds.last_seconds(waiting.session_id, waiting.phase)
    if measured is not None:
        return max(measured, n_bytes / _BYTES_PER_S)
    session = tx.sessions.get_by_id(waiting.session_id)
    if session is None:
        return 0.0
    return rounds.aggregation_seconds(plan_for(session), waiting.phase, count, n_bytes)
