"""Judging rounds: which centroids were best, and when to stop (ALGORITHMS, "Common rules").

Rounds are compared over the sites that answered both, if these reach the quorum. A roster change
restarts the best ever. Converged: the best not improved by more than ``tol``, relative, in two
successive comparable rounds.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fedclust.numeric.arrays import FloatMatrix
from fedclust.numeric.canonical import TIE_TOLERANCE
from fedclust.schema.model import Model
from fedclust.schema.run_config import RunConfig

#: Comparable rounds without improvement that end a session.
PATIENCE = 2


class Judged(Model):
    """A round's centroids with what they cost at every site that answered.

    A site that answered empty and whose totals are unknown has no cost (None): it is compared
    only with a round in which it had none either.
    """

    centroids: FloatMatrix
    costs: dict[str, float | None]


class Judgement(Model):
    """The running judgement of a session: part of a method's state."""

    roster: tuple[str, ...] = ()
    best: Judged | None = None
    stale: int = 0

    @property
    def converged(self) -> bool:
        """Whether the best has stopped improving."""
        return self.stale >= PATIENCE


def quorum(config: RunConfig) -> int:
    """Return the sites that two rounds must share to be compared."""
    return config.policy.quorum or len(config.roster)


def judge(
    judgement: Judgement,
    centroids: NDArray[np.float64],
    costs: Mapping[str, float | None],
    config: RunConfig,
    tol: float,
) -> Judgement:
    """Take one more round into the judgement.

    Parameters
    ----------
    judgement : Judgement
    centroids : (K, d) float64
        What the sites were asked to assign to.
    costs : mapping of site to float or None
        Of every site that answered, its rest included.
    config : RunConfig
        ``roster``: the sites that the next round would address.
    tol : float
        Relative improvement below which the best counts as not improved.
    """
    judged = Judged(centroids=centroids, costs=dict(sorted(costs.items())))
    if judgement.roster != config.roster:
        judgement = Judgement(roster=config.roster)
    best = judgement.best
    if best is None:
        # A round that too few of the present roster answered could never be compared with.
        present = sum(site in judged.costs for site in config.roster)
        if present < quorum(config):
            return judgement
        return Judgement(roster=config.roster, best=judged)
    shared = [
        site
        for site, cost in judged.costs.items()
        if site in best.costs and (cost is None) == (best.costs[site] is None)
    ]
    if len(shared) < quorum(config):
        return judgement
    before = sum(best.costs[site] or 0.0 for site in shared)
    now = sum(judged.costs[site] or 0.0 for site in shared)
    stale = 0 if now < before * (1.0 - max(tol, TIE_TOLERANCE)) else judgement.stale + 1
    better = now < before * (1.0 - TIE_TOLERANCE)
    return Judgement(roster=config.roster, best=judged if better else best, stale=stale)
