"""Weighted k-means that several methods share: local cells, sums over clusters, Lloyd steps.

Which round's centroids were best, and when to stop: two rounds are compared over the sites that
answered both, if these reach the quorum. A change of the roster discards the best round. A session
has converged if ``PATIENCE`` successive comparable rounds improve the best by at most ``tol``,
relative.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from fedclust.numeric import distances
from fedclust.numeric.array_types import FloatArray, IntArray
from fedclust.numeric.arrays import FloatMatrix, FloatTensor3, FloatVector, IntMatrix, IntVector
from fedclust.numeric.canonical import TIE_TOLERANCE
from fedclust.numeric.weighted_kmeans import restart_count, weighted_kmeans
from fedclust.protection.message_checks import (
    SLACK,
    check_costs,
    check_counts,
    check_empty,
    check_means,
    check_shapes,
    refuse_first,
)
from fedclust.schema.display import counted
from fedclust.schema.errors import RuleViolation
from fedclust.schema.method import no_centroids
from fedclust.schema.model import Model
from fedclust.schema.run_config import MAX_FOUND_CLUSTERS, RunConfig
from fedclust.schema.scaling import centroid_rule, median_rule, scaled_bounds
from fedclust.schema.size_bands import check_not_above
from fedclust.schema.task import (
    CentroidTask,
    Contribution,
    Disclosure,
    Phase,
    Points,
    SiteSide,
    SiteTask,
    payloads_of,
    with_payload,
)

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


#: Points per step: they stay in the second-level cache.
_CACHE_POINTS = 4096
_MAX_LOCAL_RESTARTS = 10

# --- Messages -------------------------------------------------------------------------------------


class CellsTask(Model):
    """Cluster your own points into at most ``n_clusters`` cells, with ``n_init`` restarts."""

    n_clusters: Annotated[int, Field(ge=1)]
    n_init: Annotated[int, Field(ge=1)]


class Cells(Model):
    """A site's local cells.

    Attributes
    ----------
    counts : (K,) int64
        Persons in each cell.
    means : (K, d) float64
        Scaled; 0 in an empty cell.
    """

    counts: IntVector
    means: FloatMatrix


class StepTask(CentroidTask):
    """Assign your points to the nearest of ``centroids`` (K, d), scaled; ties go to the first."""

    centroids: FloatMatrix


class Step(Model):
    """A site's part of one Lloyd step: additive, and of the same shape at every site.

    Attributes
    ----------
    counts : (K,) int64
        Persons.
    sums : (K, d) float64
        Scaled. With ``dissimilarity: gower`` (K, D): of the points' codes (``numeric.gower``).
    costs : (K,) float64
        Sums of squared distances of the points from the task's centroid, or of dissimilarities.
    """

    counts: IntVector
    sums: FloatMatrix
    costs: FloatVector


class Steps(Model):
    """A site's part of one Lloyd step of every candidate: additive.

    Attributes
    ----------
    counts : (c, K) int64
        Persons.
    sums : (c, K, d) float64
        Scaled.
    costs : (c, K) float64
        Sums of squared distances of the points from the candidate's centroid.
    """

    counts: IntMatrix
    sums: FloatTensor3
    costs: FloatMatrix

    def step(self, candidate: int) -> Step:
        """Return the part of one candidate."""
        return Step(**{name: array[candidate] for name, array in self})


#: What counts and sums over groups of persons can identify.
GROUP_SUMS = "Sums over whole groups of your protected table."


def disclosures(
    of: str = "",
    identifies: str = GROUP_SUMS,
    /,
    *,
    identify: Mapping[str, str] | None = None,
    **lines: str,
) -> tuple[Disclosure, ...]:
    """Return the lines about a message's fields that data protection officers read.

    Parameters
    ----------
    of : str
        The part of the message that the fields are in; by default the message itself.
    identifies : str
        What the fields can identify.
    identify : mapping of str to str, optional
        What single fields can identify instead.
    **lines : str
        By field its shape and meaning, such as ``"K numbers: How many of your persons ..."``.
    """
    found = []
    for field, line in lines.items():
        shape, _, meaning = line.partition(": ")
        name, own = f"{of}.{field}" if of else field, (identify or {}).get(field, identifies)
        found.append(Disclosure(field=name, shape=shape, meaning=meaning, identifies=own))
    return tuple(found)


def check_sizes(counts: IntArray, config: RunConfig, pointer: str = "/counts") -> None:
    """Check a site's counts (K,): each is 0 or at least p, and their sum fits its size band.

    Raises
    ------
    RuleViolation
        Also if all counts are 0: a site without persons answers empty.
    """
    check_counts(counts, config.p, pointer)
    if not counts.any():
        raise RuleViolation("empty", "a site that counts no persons answers empty", pointer)
    check_not_above(sum(int(count) for count in counts), config.size_band, pointer)


def check_cells(payload: Cells, n_cells: int, config: RunConfig, *, fewer: bool = False) -> None:
    """Raise RuleViolation unless ``payload`` holds ``n_cells`` valid local cells.

    ``fewer``: from 1 to ``n_cells``.
    """
    if fewer:
        n_cells = min(max(len(payload.counts), 1), n_cells)
    check_shapes(payload, counts=(n_cells,), means=(n_cells, len(config.columns)))
    check_sizes(payload.counts, config)
    check_cell_values(payload.counts, payload.means, config, "/means")
    known = np.where(config.mask, payload.counts[:, None], 0)
    check_means(known, payload.means, *scaled_bounds(config), "/means")


def check_cell_values(
    counts: IntArray, values: FloatArray, config: RunConfig, pointer: str
) -> None:
    """Raise RuleViolation unless values (K, d) are 0 in empty cells and in features not had."""
    check_empty(counts, values, pointer)
    message = "cell {}: the site joined without column {}, so its number there must be 0"
    refuse_first((values != 0) & ~config.mask, "mask", message, pointer)


def check_centroids(task: CentroidTask, config: RunConfig) -> None:
    """Check centroids (..., K, d), and their mask if they have one, that a task brings.

    Raises
    ------
    RuleViolation
        There are no centroids, or more than the definition allows, or they have other columns, or a
        mask without ``missing: mask``.
    """
    shape, most = task.centroids.shape, MAX_FOUND_CLUSTERS
    if isinstance(config.options.n_clusters, int):
        # With ``missing: mask`` the features may fall into parts that no site connects, at most one
        # for each feature, and each part may have K centroids.
        parts = len(config.features) if config.policy.missing == "mask" else 1
        most = config.options.n_clusters * parts
    if 0 in shape:
        raise RuleViolation("task", "a task names at least one centroid", "/parameters/centroids")
    if shape[-2] > most:
        message = f"the definition provides for {most} clusters"
        raise RuleViolation("task", message, "/parameters/centroids")
    check_shapes(task, "/parameters", centroids=(*shape[:-1], len(config.columns)))
    mask = getattr(task, "mask", None)
    if mask is not None:
        check_shapes(task, "/parameters", mask=shape)
        if not mask.all() and config.policy.missing != "mask":
            message = "no site lacks features in this session"
            raise RuleViolation("task", message, "/parameters/mask")


def check_step(payload: Step, centroids: FloatArray, config: RunConfig) -> None:
    """Raise RuleViolation unless ``payload`` is a valid Lloyd step from ``centroids`` (K, d)."""
    rule, k = median_rule(config), len(centroids)
    check_shapes(payload, counts=(k,), sums=(k, step_width(config)), costs=(k,))
    check_sizes(payload.counts, config)
    check_empty(payload.counts, payload.sums, "/sums")
    check_empty(payload.counts, payload.costs, "/costs")
    means = payload.sums / np.maximum(payload.counts, 1)[:, None]
    if rule is None:
        check_means(payload.counts, means, *scaled_bounds(config), "/sums")
        check_costs(payload.counts, payload.sums, payload.costs, centroids)
        return
    check_means(payload.counts, means, np.zeros(1), np.ones(1), "/sums")
    # No sum of absolute differences is below the difference of the sums.
    implied = np.abs(rule.means(means) - centroids).sum(axis=1) * payload.counts
    message = "the cost of cell {} is lower than its own mean implies"
    refuse_first(~(payload.costs >= implied * (1.0 - SLACK) - SLACK), "cost", message, "/costs")


def check_steps(payload: Steps, candidates: FloatArray, config: RunConfig) -> None:
    """Raise RuleViolation unless ``payload`` is a valid step from each candidate (c, K, d)."""
    c, k, _ = candidates.shape
    check_shapes(payload, counts=(c, k), sums=(c, k, step_width(config)), costs=(c, k))
    for i, centroids in enumerate(candidates):
        try:
            check_step(payload.step(i), centroids, config)
        except RuleViolation as error:
            _, field, *rest = error.pointer.split("/")
            raise RuleViolation(
                error.rule, f"candidate {i}: {error.message}", "/".join(["", field, str(i), *rest])
            ) from None


def step_width(config: RunConfig) -> int:
    """Return how many sums a Lloyd step has for each cluster: d, more with Gower's."""
    rule = median_rule(config)
    return len(config.columns) if rule is None else rule.width


# --- At a site ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClusterSums:
    """Sums over the points of each cluster, weighted by their persons, in the scaled space.

    Attributes
    ----------
    counts : (K,) int64
        Persons.
    offsets : (K, d) float64
        Sums of the points' differences from their centroid.
    costs : (K,) float64
        Sums of squared distances from the centroid.
    centroids : (K, d) float64
        The origins of the offsets.
    """

    counts: IntArray
    offsets: FloatArray
    costs: FloatArray
    centroids: FloatArray

    @property
    def sums(self) -> FloatArray:
        """Sums of the points (K, d); 0 in an empty cluster."""
        return self.offsets + self.counts[:, None] * self.centroids

    @property
    def means(self) -> FloatArray:
        """Means of the points (K, d); 0 in an empty cluster."""
        shift = self.offsets / np.maximum(self.counts, 1)[:, None]
        return np.where(self.counts[:, None] > 0, self.centroids + shift, 0.0)


def cluster_sums(points: Points, labels: IntArray, centroids: FloatArray) -> ClusterSums:
    """Sum up points by cluster, relative to the centroid of each.

    Sums of offsets keep digits that sums of points far from the origin lose. The order of addition
    is fixed.

    Parameters
    ----------
    points : Points
    labels : (m,) int64
        The cluster of each point; -1 leaves it out.
    centroids : (K, d) float64
    """
    # Imported here: it takes a while.
    from scipy.sparse import csc_array

    n_clusters = len(centroids)
    counts, costs = np.zeros(n_clusters), np.zeros(n_clusters)
    offsets = np.zeros(centroids.shape)
    for start in range(0, len(labels), _CACHE_POINTS):
        chosen = start + np.flatnonzero(labels[start : start + _CACHE_POINTS] >= 0)
        own, sizes = labels[chosen], points.sizes[chosen].astype(np.float64)
        differences = points.X[chosen] - centroids[own]
        squares = np.einsum("ij,ij->i", differences, differences)
        counts += np.bincount(own, weights=sizes, minlength=n_clusters)
        costs += np.bincount(own, weights=sizes * squares, minlength=n_clusters)
        # Unlike a dense product, a sparse one adds in the order of the points on every processor.
        shape = (n_clusters, len(chosen))
        offsets += csc_array((sizes, own, np.arange(len(chosen) + 1)), shape=shape) @ differences
    return ClusterSums(counts.astype(np.int64), offsets, costs, centroids)


def local_kmeans(
    points: Points,
    n_clusters: int,
    n_init: int,
    rng: np.random.Generator,
    rule: distances.CentroidRule = distances.keep_means,
) -> ClusterSums:
    """Cluster a site's scaled points by weighted k-means.

    Parameters
    ----------
    points : Points
    n_clusters : int
    n_init : int
        Random restarts, in addition to a farthest-first start.
    rng : numpy.random.Generator
    rule : CentroidRule

    Returns
    -------
    ClusterSums
        Of ``n_clusters`` cells, or of as many as there are distinct points if these are fewer.
    """
    weights = points.sizes.astype(np.float64)
    centres = weighted_kmeans(points.X, weights, n_clusters, rng, n_restarts=n_init, rule=rule)
    return cluster_sums(points, distances.nearest_centroid(points.X, centres), centres)


def local_restarts(n_points: int, n_features: int, n_cells: int) -> int:
    """Return the default restarts of a site's k-means: 10, fewer at a large site, at least 2."""
    return min(restart_count(n_points, n_features, n_cells), _MAX_LOCAL_RESTARTS)


def local_starts(n_init: int | None) -> str:
    """Return from where a site's weighted k-means starts, for a method's description."""
    if n_init is None:
        number = "10 random starts (fewer at a large site, at least 2)"
    else:
        number = counted(n_init, "random start")
    return f"{number} and one farthest-first start"


def find_cells(task: SiteTask[CellsTask], site: SiteSide) -> Cells:
    """Return a site's local cells, with empty ones up to the number asked for."""
    asked, rule = task.common, centroid_rule(site.config)
    found = local_kmeans(site.points, asked.n_clusters, asked.n_init, site.rng, rule)
    return pad_cells(found.counts, found.means, asked.n_clusters)


def pad_cells(counts: IntArray, means: FloatArray, n_cells: int) -> Cells:
    """Return ``n_cells`` cells: those of counts (m,) and means (m, d), then empty ones."""
    lacking = n_cells - len(counts)
    return Cells(counts=np.pad(counts, (0, lacking)), means=np.pad(means, ((0, lacking), (0, 0))))


def site_lloyd_step(
    centroids: FloatArray, points: Points, rule: distances.MedianRule | None = None
) -> Step:
    """Return a site's part of one Lloyd step from ``centroids`` (K, d); ``rule`` is Gower's."""
    if rule is not None:
        return _site_median_step(centroids, points, rule)
    sums = cluster_sums(points, distances.nearest_centroid(points.X, centroids), centroids)
    return Step(counts=sums.counts, sums=sums.sums, costs=sums.costs)


def site_lloyd_steps(
    candidates: FloatArray, points: Points, rule: distances.MedianRule | None = None
) -> Steps:
    """Return a site's part of one Lloyd step from each candidate (c, K, d)."""
    steps = [site_lloyd_step(each, points, rule) for each in candidates]
    names = Step.model_fields
    return Steps(**{name: np.stack([getattr(step, name) for step in steps]) for name in names})


def _site_median_step(centroids: FloatArray, points: Points, rule: distances.MedianRule) -> Step:
    n_clusters = len(centroids)
    labels = distances.nearest_by_gower(points.X, centroids)
    apart = distances.own_dissimilarities(points.X, centroids, labels) * points.sizes
    counts = np.bincount(labels, weights=points.sizes, minlength=n_clusters)
    costs = np.bincount(labels, weights=apart, minlength=n_clusters)
    return Step(
        counts=counts.astype(np.int64),
        sums=rule.add_up(points.X, points.sizes, labels, n_clusters),
        costs=costs.astype(np.float64),
    )


# --- The phases -----------------------------------------------------------------------------------


CELLS: Phase = Phase(
    name="cells",
    once=True,
    summary="Each site clusters its own records; the cells' means give the first centroids.",
    task=CellsTask,
    payload=Cells,
    local_step=find_cells,
    check=lambda task, sent, config: check_cells(sent, task.common.n_clusters, config),
    discloses=disclosures(
        counts="K numbers: How many of your persons are in each cell of your own clustering.",
        means="K x d numbers: The mean of each column over each cell, scaled.",
    ),
)
STEP: Phase = Phase(
    name="lloyd",
    summary="Each site assigns its records to the nearest centroid and adds them up.",
    task=StepTask,
    payload=Step,
    local_step=lambda task, site: site_lloyd_step(
        task.common.centroids, site.points, median_rule(site.config)
    ),
    check=lambda task, sent, config: check_step(sent, task.common.centroids, config),
    discloses=disclosures(
        counts="K numbers: How many of your persons are nearest to each centroid.",
        sums="K x d numbers: The sum of each column over these, scaled.",
        costs="K numbers: How far their records lie from the centroid, squared and added up.",
    ),
)


# --- At the coordinator ---------------------------------------------------------------------------


def collect_cells(contributions: Sequence[Contribution]) -> tuple[FloatArray, FloatArray]:
    """Return the means (m, d) of all cells that the sites sent, and their counts (m,)."""
    sent = payloads_of(contributions, Cells).values()
    counts = np.concatenate([cells.counts for cells in sent])
    means = np.concatenate([cells.means for cells in sent])
    return means[counts > 0], counts[counts > 0].astype(np.float64)


def combine_steps(
    centroids: FloatArray, contributions: Sequence[Contribution], config: RunConfig
) -> tuple[FloatArray, dict[str, float | None], dict[str, float]]:
    """Combine the sites' parts of one Lloyd step.

    Returns
    -------
    moved : (K, d) float64
        The new centroids; one that is empty at every site keeps its place.
    costs : dict of site to float or None
        The cost of ``centroids`` at each site; None if it answered empty.
    metrics : dict
        ``inertia`` and ``centroid_shift``.
    """
    counts = np.zeros(len(centroids), dtype=np.int64)
    sums = np.zeros((len(centroids), step_width(config)))
    costs: dict[str, float | None] = {}
    for contribution in with_payload(contributions, Step):
        sent = contribution.payload
        costs[contribution.site] = None if sent is None else float(sent.costs.sum())
        if sent is not None:
            counts += sent.counts
            sums += sent.sums
    moved = centroids.copy()
    filled = counts > 0
    rule = median_rule(config) or centroid_rule(config)
    moved[filled] = rule(sums[filled] / counts[filled, None])
    metrics = {
        "inertia": float(sum(cost or 0.0 for cost in costs.values())),
        "centroid_shift": float(np.sqrt(((moved - centroids) ** 2).sum(axis=1).max())),
    }
    return moved, costs, metrics


def best_centroids(judgement: Judgement, last: FloatArray | None) -> FloatArray:
    """Return the best round's centroids (K, d), or the last ones if no round was judged."""
    if judgement.best is not None:
        return judgement.best.centroids
    if last is None:
        raise no_centroids()
    return last
