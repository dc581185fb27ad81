"""Convergence: which round's centroids were best, and when to stop.

Two rounds are compared over the sites that answered both, if these reach the quorum. A change of
the roster discards the best round. A session has converged if ``PATIENCE`` successive comparable
rounds improve the best by at most ``tol``, relative.
"""

from collections.abc import Mapping

from fedclust.numeric.array_types import FloatArray
from fedclust.numeric.arrays import FloatMatrix
from fedclust.numeric.canonical import TIE_TOLERANCE
from fedclust.schema.model import Model
from fedclust.schema.run_config import RunConfig

#: Comparable rounds without improvement after which a session ends.
PATIENCE = 2


class Judged(Model):
    """A round's centroids and their cost at each site that answered.

    The cost is None for a site that answered empty. Such a round is compared at this site only
    with a round in which it answered empty, too.
    """

    centroids: FloatMatrix
    costs: dict[str, float | None]


class Judgement(Model):
    """The best round so far: part of a method's state.

    Attributes
    ----------
    roster : tuple of str
        Sites that the next round addresses.
    best : Judged or None
        The best round since the last change of the roster.
    stale : int
        Comparable rounds since the last improvement.
    """

    roster: tuple[str, ...] = ()
    best: Judged | None = None
    stale: int = 0

    @property
    def converged(self) -> bool:
        """Whether the best round has stopped improving."""
        return self.stale >= PATIENCE


def judge(
    judgement: Judgement,
    centroids: FloatArray,
    costs: Mapping[str, float | None],
    config: RunConfig,
    tol: float,
) -> Judgement:
    """Return the judgement after one more round.

    Parameters
    ----------
    judgement : Judgement
    centroids : (K, d) float64
        What the sites assigned their points to.
    costs : mapping of site to float or None
        Of every site that answered.
    config : RunConfig
        ``roster``: the sites that the next round addresses.
    tol : float
        Relative improvement below which a round counts as no improvement.
    """
    judged = Judged(centroids=centroids, costs=dict(sorted(costs.items())))
    quorum = config.policy.quorum or len(config.roster)
    if judgement.roster != config.roster:
        judgement = Judgement(roster=config.roster)
    best = judgement.best
    if best is None:
        # No later round could be compared with one that too few sites of the roster answered.
        present = sum(site in judged.costs for site in config.roster)
        return judgement if present < quorum else Judgement(roster=config.roster, best=judged)
    shared = [
        site
        for site, cost in judged.costs.items()
        if site in best.costs and (cost is None) == (best.costs[site] is None)
    ]
    if len(shared) < quorum:
        return judgement
    before = sum(best.costs[site] or 0.0 for site in shared)
    now = sum(judged.costs[site] or 0.0 for site in shared)
    # A cost may be negative: -1 times a log-likelihood is.
    stale = 0 if now < before - abs(before) * max(tol, TIE_TOLERANCE) else judgement.stale + 1
    better = now < before - abs(before) * TIE_TOLERANCE
    return Judgement(roster=config.roster, best=judged if better else best, stale=stale)
