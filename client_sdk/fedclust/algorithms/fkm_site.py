"""What a site of ``fkm`` computes: every candidate's Lloyd step, and the paper's own steps.

The lines named are those of Algorithm 1, whose coordinator's are in ``fkm``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedclust.algorithms import guarded_lloyd as lloyd
from fedclust.algorithms.assigning import nearest, squared_distances
from fedclust.algorithms.base import LocalAnswer, Memory, RunConfig, SiteData, SiteTask, Totals
from fedclust.algorithms.canonical import ascending, highest
from fedclust.algorithms.fkm_answers import (
    CandidatesTask,
    Means,
    MeansTask,
    Seeds,
    SeedsTask,
    Steps,
)
from fedclust.algorithms.kmeans import plus_plus_rows
from fedclust.algorithms.local_cells import LOCAL, settled
from fedclust.algorithms.releasing import by_column, refuse_cells, release, site_totals
from fedclust.algorithms.tallies import assign
from fedclust.privacy.checks import check_shape
from fedclust.privacy.moments import cell_moments

#: The guard's names for the two partitions of a round of the paper's.
_MEMBERS, _COUNTED = "members", "counted"


def local_step(
    task: SiteTask, data: SiteData, config: RunConfig, rng: np.random.Generator, memory: Memory
) -> LocalAnswer:
    """Answer a task from a site's scaled rows (n, d)."""
    if task.phase == "seeds":
        return _seeds(task.common, data, config, rng, memory)
    if task.phase == "means":
        return _means(task.common, data, config, memory)
    if task.phase == "candidates":
        asked = task.site is not None and task.site.totals
        totals = site_totals(data, config) if asked else None
        return _steps(task.common, data, config, memory, totals)
    return lloyd.local_step(task, data, config, rng, memory)


def _steps(
    task: CandidatesTask, data: SiteData, config: RunConfig, memory: Memory, totals: Totals | None
) -> LocalAnswer:
    check_shape(task.centroids, (len(task.names), *task.centroids.shape[1:]), "/parameters/names")
    cells = memory.get(LOCAL)
    shape = (len(task.names), task.centroids.shape[1], data.rows.shape[1])
    check_shape(task.centroids, shape, "/parameters/centroids")
    refuse_cells(shape[1])
    steps = []
    # All candidates in one pass over the rows.
    found = assign(data.rows, list(task.centroids), by_column=by_column(config))
    for name, centroids, (labels, sums) in zip(task.names, task.centroids, found, strict=True):
        # Every candidate's guard goes back to the same cells; the first round uses them up.
        base = memory if cells is None else {**memory, LOCAL: cells}
        wanted = settled(data, centroids, config.p, labels)
        known = sums if wanted is labels else None
        step, memory = lloyd.add_up(centroids, data, config, base, name, (wanted, known))
        steps.append(step)
    if totals is None and not any(step.counts.any() for step in steps):
        return None, memory
    payload = Steps(
        counts=np.stack([step.counts for step in steps]),
        sums=np.stack([step.sums for step in steps]),
        costs=np.stack([step.costs for step in steps]),
        totals=totals,
    )
    return payload, memory


def _seeds(
    task: SeedsTask, data: SiteData, config: RunConfig, rng: np.random.Generator, memory: Memory
) -> LocalAnswer:
    """Algorithm 1, lines 3 to 5. The program sent the rows drawn; here their cells' means go."""
    X, seed = data.X, int(rng.integers(2**31))
    labels = nearest(X, plus_plus_rows(X, task.n_clusters, seed))
    released, memory = release(data, config, memory, labels, task.n_clusters, LOCAL)
    if released.empty:
        return None, memory
    return Seeds(counts=released.moments.counts, means=released.moments.means), memory


def _means(task: MeansTask, data: SiteData, config: RunConfig, memory: Memory) -> LocalAnswer:
    """Algorithm 1, lines 13 to 18.

    As in the authors' program the means are those of the rows nearest to the global centres (one
    iteration), and S_i counts the rows nearest to the means. So two partitions leave the site, and
    each by itself obeys the rules; a mean without a count, or without members, goes unused.
    """
    X, centroids = data.X, task.centroids
    n_clusters = len(centroids)
    check_shape(centroids, (n_clusters, X.shape[1]), "/parameters/centroids")
    labels = nearest(X, centroids)
    if not task.drop_empty:
        labels = refill(X, labels, centroids, config.p)
    moments = cell_moments(X, labels, n_clusters)
    used = np.flatnonzero(moments.counts)
    counted = used[nearest(X, moments.means[used])]
    by_member, memory = release(data, config, memory, labels, n_clusters, _MEMBERS)
    by_mean, memory = release(data, config, memory, counted, n_clusters, _COUNTED)
    if by_member.empty and by_mean.empty:
        return None, memory
    payload = Means(
        members=by_member.moments.counts,
        means=by_member.moments.means,
        counts=by_mean.moments.counts,
    )
    return payload, memory


def refill(
    X: NDArray[np.float64], labels: NDArray[np.int64], centroids: NDArray[np.float64], p: int
) -> NDArray[np.int64]:
    """Return labels (n,) in which centres without rows take rows far from their own.

    What scikit-learn does, and with it the authors' program where empty centres are not dropped:
    there such a centre moves to the row farthest from its own centre. Here it takes that row and
    the p - 1 nearest to it, for no mean of fewer may be sent.
    """
    labels = labels.copy()
    gaps = ((X - centroids[labels]) ** 2).sum(axis=1)
    for empty in np.flatnonzero(np.bincount(labels, minlength=len(centroids)) == 0):
        free = np.flatnonzero(gaps >= 0)
        if len(free) < p:
            break
        farthest = X[highest(gaps)]
        order = ascending(squared_distances(X[free], farthest[None])[:, 0])
        labels[free[order[:p]]] = empty
        gaps[free[order[:p]]] = -1.0
    return labels
