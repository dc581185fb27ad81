"""What an attacker makes of the answers that a site sent: statistics, whatever the method."""

from __future__ import annotations

from collections.abc import Iterable

from fedclust.algorithms.base import Space
from fedclust.simulate import SimulationResult, TraceEntry
from support.attacker import Statistic, cells, total, vectors


def statistics_of(result: SimulationResult, site: str) -> list[Statistic]:
    """Return every statistic of rows that a site sent in a session, scaled.

    Raises
    ------
    AssertionError
        For a payload of a form that nobody has told this attacker to read.
    """
    space = Space(result.result_.center, result.result_.scale)
    entries = [entry for entry in result.trace_ if entry.site == site]
    return [item for entry in entries for item in _statistics(entry, space)]


def _statistics(entry: TraceEntry, space: Space) -> Iterable[Statistic]:
    payload = entry.payload
    if payload is None:
        return []
    name = f"round {entry.round}, {entry.phase}"
    fields = set(type(payload).model_fields)
    found: list[Statistic] = []
    if fields == {"n", "observed", "mean", "m2"}:
        scaled = space.to_scaled(payload.mean)
        found.append(total(name, payload.n, scaled))
        found += vectors(f"{name}, own units", payload.mean[None])
    elif {"counts", "sums"} <= fields:
        found += cells(name, payload.counts, payload.sums)
    elif {"counts", "means"} <= fields:
        found += cells(name, payload.counts, payload.counts[:, None] * payload.means)
    else:
        # Sums over rows that are no vectors: nothing to compare a record with.
        known = {"counts", "costs", "distances", "silhouettes"}
        assert fields == known, f"teach the attacker to read {type(payload).__name__}"
    if getattr(payload, "totals", None) is not None:
        found.append(total(f"{name}, totals", payload.totals.n, payload.totals.mean))
    return found
