"""What a site of ``dual`` computes: its node problem, and what of its solution it may tell.

The answer is the node problem's own assignment or none. A partition that the guard would change is
another assignment, whose value nobody has proven.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedclust.algorithms import guarded_lloyd as lloyd
from fedclust.algorithms.assigning import nearest
from fedclust.algorithms.base import (
    LocalAnswer,
    Memory,
    RuleViolation,
    RunConfig,
    SiteData,
    SiteTask,
)
from fedclust.algorithms.dual_answers import (
    DUAL,
    PRIMAL,
    DualAnswer,
    DualPart,
    DualTask,
    PrimalAnswer,
    PrimalTask,
    digest_of,
    objective_of,
    region_of,
)
from fedclust.algorithms.dual_masters import SiteModel
from fedclust.algorithms.dual_region import Region
from fedclust.algorithms.local_cells import lay_base, packed, unpacked
from fedclust.algorithms.releasing import Released, release, site_totals
from fedclust.algorithms.spaces import scaled_bounds
from fedclust.privacy.checks import check_shape
from fedclust.privacy.counting import Labels
from fedclust.privacy.moments import total_moments

#: Relative: by how much less than the cost a solved problem's value is told.
_TOLD_WITHIN = 1e-7


def local_step(
    task: SiteTask, data: SiteData, config: RunConfig, rng: np.random.Generator, memory: Memory
) -> LocalAnswer:
    """Answer a task from a site's scaled rows (n, d)."""
    if task.phase == DUAL:
        return _solve(task.common, task.site, data, config, memory)
    if task.phase == PRIMAL:
        return _measure(task.common, data, config, memory)
    return lloyd.local_step(task, data, config, rng, memory)


def _solve(
    task: DualTask, part: DualPart, data: SiteData, config: RunConfig, memory: Memory
) -> LocalAnswer:
    # Imported here: the compiled kernel is loaded only where the method runs.
    from fedclust.algorithms.dual_nodes import solve_node

    n_clusters, d = task.references.shape
    check_shape(part.multipliers, (n_clusters, d), "/site/multipliers")
    if digest_of(part.multipliers) != part.digest:
        raise RuleViolation("task", "the task's multipliers do not have their digest", "/site")
    region = region_of(task, config)
    if region.part is not None and config.p > 1:
        # Whoever chooses boxes chooses centroids: by what is told of each, and what is not, a
        # single row that lies apart could be searched for.
        return _held_back(part, n_clusters, d), memory
    before = memory.get(DUAL)
    solution = solve_node(
        data.X - task.origin,
        part.multipliers.copy(),
        region,
        solver=config.options.node_solver,
        node_limit=config.options.node_limit,
        start=None if before is None else unpacked(before).astype(np.int64),
    )
    limited = not solution.complete and solution.n_nodes >= config.options.node_limit
    # Never sent, and not what was sent: where the next search begins.
    memory = {**memory, DUAL: packed(solution.labels)}
    released, after = release(data, config, memory, solution.labels, n_clusters, DUAL)
    sent = _told(solution.labels, released, n_clusters)
    if not sent.any():
        return _held_back(part, n_clusters, d), memory
    counts, means = released.moments.counts, released.moments.means
    if sent.all():
        # From the moments that leave, so that both ends come to the same.
        n_rows = counts.astype(np.float64)
        sums = n_rows[:, None] * (means - task.origin) * (counts > 0)[:, None]
        best = region.optimal_centroids(n_rows, sums, part.multipliers)[0]
        lower, upper = scaled_bounds(config)
        answer = DualAnswer(
            digest=part.digest,
            sent=sent,
            counts=counts,
            means=means,
            centroids=np.clip(best + task.origin, lower, upper),
            value=_tellable(
                solution.bound,
                SiteModel(counts=counts, sums=sums, square=_square(task, data, config)),
                best,
                part.multipliers,
                region,
                config.p,
            ),
            limited=limited,
        )
        return answer, after
    # Each told cluster by itself: what holds it apart from one that is not told would tell of that.
    alone = _alone(counts, means - task.origin, part.multipliers, region) + task.origin
    answer = DualAnswer(
        digest=part.digest,
        sent=sent,
        counts=np.where(sent, counts, 0),
        means=np.where(sent[:, None], means, 0.0),
        centroids=np.where(sent[:, None], alone, 0.0),
        limited=limited,
    )
    return answer, after


def _told(labels: Labels, released: Released, n_clusters: int) -> NDArray[np.bool_]:
    """Return which clusters (K,) of an assignment may be told: none, unless they go as they are.

    A cluster in the rest is not told. Where the guard moved rows between clusters, or a share had
    to be rounded, nothing is: the numbers would be those of another assignment.
    """
    kept = released.labels
    moved = (kept >= 0) & (kept != labels)
    if moved.any() or released.rounded.any():
        return np.zeros(n_clusters, dtype=np.bool_)
    whole = np.bincount(labels, minlength=n_clusters)
    left = np.bincount(kept[kept >= 0], minlength=n_clusters)
    if ((left != 0) & (left != whole)).any() or not left.any():
        return np.zeros(n_clusters, dtype=np.bool_)
    return np.asarray(left == whole)


def _square(task: DualTask, data: SiteData, config: RunConfig) -> float:
    """Return the sum of all rows' squared lengths about the origin, as it follows from the totals.

    From the site's own: what the task says of them may be made up.
    """
    totals = site_totals(data, config)
    mean = totals.mean - task.origin
    return float(totals.m2.sum() + totals.n * float(mean @ mean))


def _tellable(
    bound: float,
    model: SiteModel,
    centroids: NDArray[np.float64],
    mu: NDArray[np.float64],
    region: Region,
    p: int,
) -> float:
    """Return the bound as it may be told: what the told numbers cost, where that is the optimum.

    Where the search met its limit, its bound is what some few rows cost, and rounds of known
    multipliers would solve for them, however coarsely it is told. What holds for any rows is told
    then. With p = 1 nothing is protected, and the bound goes as it is.
    """
    # No rows cost less than nothing: proven for any.
    least = float(np.minimum(mu * region.boxes.lower, mu * region.boxes.upper).sum())
    if p <= 1:
        return max(bound, least)
    # As far below on every search: how near this one came would be of the rows again.
    cost = objective_of(model, centroids, mu)
    shown = cost - _TOLD_WITHIN * (model.square + abs(least))
    return max(shown, least) if bound >= shown else least


def _alone(
    counts: NDArray[np.int64],
    means: NDArray[np.float64],
    multipliers: NDArray[np.float64],
    region: Region,
) -> NDArray[np.float64]:
    """Return each cluster's centroid (K, d) in its box, whatever the others are."""
    lower, upper = region.boxes
    free = means - multipliers / (2.0 * np.maximum(counts, 1))[:, None]
    corner = np.where(multipliers > 0, lower, np.where(multipliers < 0, upper, 0.0))
    return np.clip(np.where((counts > 0)[:, None], free, corner), lower, upper)


def _held_back(part: DualPart, n_clusters: int, d: int) -> DualAnswer:
    return DualAnswer(
        digest=part.digest,
        sent=np.zeros(n_clusters, dtype=np.bool_),
        counts=np.zeros(n_clusters, dtype=np.int64),
        means=np.zeros((n_clusters, d)),
        centroids=np.zeros((n_clusters, d)),
    )


def _measure(task: PrimalTask, data: SiteData, config: RunConfig, memory: Memory) -> LocalAnswer:
    n_clusters, d = task.centroids.shape[1:]
    check_shape(task.centroids, (len(task.names), n_clusters, data.X.shape[1]), "/parameters")
    told = _exact_totals(data, config)
    counts, sums, costs, exact = [], [], [], []
    for name, centroids in zip(task.names, task.centroids, strict=True):
        memory = lay_base(centroids, data, config, memory, name)
        wanted = nearest(data.X, centroids)
        released, memory = release(data, config, memory, wanted, n_clusters, name)
        moments = released.moments
        apart = (moments.means - centroids) ** 2 * moments.counts[:, None]
        counts.append(moments.counts)
        sums.append(moments.sums)
        costs.append((moments.m2 + apart).sum(axis=1))
        exact.append(told and not released.rounded.any())
    answer = PrimalAnswer(
        counts=np.array(counts).reshape(-1, n_clusters),
        sums=np.array(sums).reshape(-1, n_clusters, d),
        costs=np.array(costs).reshape(-1, n_clusters),
        exact=np.array(exact, dtype=np.bool_),
    )
    return answer, memory


def _exact_totals(data: SiteData, config: RunConfig) -> bool:
    """Return whether what was told of all rows is exact: the rest is reckoned from it."""
    told, own = site_totals(data, config), total_moments(data.X)
    return np.array_equal(told.mean, own.means.reshape(-1))
