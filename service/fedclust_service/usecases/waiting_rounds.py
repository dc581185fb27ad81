"""The rounds that wait to be aggregated: where each is computed, and in which order."""

from collections.abc import Sequence
from datetime import datetime

from fedclust import rounds
from fedclust.definition import DefinitionError
from fedclust_service.store import DataDamaged, Tx, WaitingRound
from fedclust_service.usecases.core import CoordinatorCore, set_apart
from fedclust_service.usecases.definitions import plan_for

#: Reading so many bytes holds up this process for a second, whatever is computed from them.
_BYTES_PER_S = 50_000_000


class WaitingRounds:
    """Estimates each waiting round once. For one thread at a time."""

    def __init__(self, co: CoordinatorCore) -> None:
        self._co = co
        #: The rounds that waited at the last look: since when, and how long each takes.
        self._known: dict[int, tuple[datetime, float]] = {}

    def in_order(self, now: datetime) -> list[tuple[WaitingRound, bool]]:
        """Return the waiting rounds, each with whether a process of the pool aggregates it.

        The shortest comes first. What a round has waited counts as if it took that much less,
        so none waits for ever.
        """
        waiting, known = self._co.store.read("driver.look", lambda tx: self._look(tx, now))
        self._known = known
        ordered = sorted(
            (each for each in waiting if each.id in known),
            key=lambda each: known[each.id][1] - (now - known[each.id][0]).total_seconds(),
        )
        above_s, after = self._co.limits.pooled_above_s, self._co.limits.pooled_after
        return [(each, known[each.id][1] > above_s or each.attempts >= after) for each in ordered]

    def _look(
        self, tx: Tx, now: datetime
    ) -> tuple[Sequence[WaitingRound], dict[int, tuple[datetime, float]]]:
        waiting, known = tx.rounds.waiting(now), {}
        for each in waiting:
            with set_apart("driver", each.id):
                known[each.id] = self._known.get(each.id) or (now, _estimate(tx, each))
        return waiting, known


def _estimate(tx: Tx, waiting: WaitingRound) -> float:
    """Return how long the session's last round of this phase took, or what the engine expects."""
    count, n_bytes, measured = tx.rounds.effort(waiting)
    if measured is not None:
        return max(measured, n_bytes / _BYTES_PER_S)
    session = tx.sessions.get_by_id(waiting.session_id)
    if session is None:
        return 0.0
    try:
        return rounds.aggregation_seconds(plan_for(session), waiting.phase, count, n_bytes)
    except (DataDamaged, DefinitionError):
        # It fails at once, where it is aggregated.
        return 0.0
