"""Weighted k-means: of a site's points, and of all sites' cell means at the coordinator.

Few points take many starts, each to convergence. Where one start among all points would take
seconds, the starts are made in a sample, along the points' widest axes, and the best goes on.

References
----------
Arthur & Vassilvitskii, "k-means++: the advantages of careful seeding", SODA 2007.
Gonzalez, "Clustering to minimize the maximum intercluster distance", 1985 (farthest first).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from fedclust.numeric.canonical import (
    break_distance_ties,
    canonical_eigenbasis,
    coordinate_tolerance,
    nearest_tie_offsets,
    tolerant_argmax,
    tolerant_argmin,
)
from fedclust.numeric.distances import ROW_BLOCK
from fedclust.numeric.ward import affordable, ward_means

_MAX_ITERATIONS = 300
_TOLERANCE = 1e-12
_MAX_RESTARTS = 50
#: Multiply-adds that the random restarts may cost together, about ten iterations each.
_WORK = 2_000_000_000
#: The same of a site's own k-means, whose cells are but a start for the rounds that follow.
_SITE_WORK = 200_000_000
#: Where two restarts would cost more, they are made in a sample of so many points a cluster,
_SAMPLED = 50
_SAMPLE_RESTARTS = 8
#: Of these, the best so many go on among all points along their widest axes, unless their inertia
#: in the sample is this much above the lowest: what has missed a group does not catch up.
_CARRIED = 4
_HOPELESS = 1.01
#: Lloyd ends there at this relative improvement,
_FINE = 1e-5
#: and among all points at this: the rest is dear there, and the sites' own rows decide in the
#: rounds that follow.
_COARSE = 1e-4
#: Finding the axes may cost as much as so many iterations of Lloyd among all points.
_AXES_WORTH = 10
#: Relative difference in inertia up to which two partitions count as one (ALGORITHMS, fkm).
SAME_INERTIA = 1e-9

FloatArray = NDArray[np.float64]
Run = tuple[FloatArray, float]


def restart_count(n_points: int, n_features: int, n_clusters: int) -> int:
    """Return the number of random restarts: 50, fewer where they are dear, never below 2.

    A fixed rule of the sizes: a clock would make the result depend on the machine.
    """
    cost = 10 * n_points * n_features * n_clusters
    return int(np.clip(_WORK // max(cost, 1), 2, _MAX_RESTARTS))


def weighted_kmeans(
    points: FloatArray,
    weights: FloatArray,
    n_clusters: int,
    rng: np.random.Generator,
    n_restarts: int | None = None,
) -> FloatArray:
    """Cluster weighted points and return the centroids of the lowest weighted inertia.

    Parameters are those of :func:`best_partitions`.

    Returns
    -------
    (K', d) float64
        K' is the smaller of ``n_clusters`` and the number of distinct points.
    """
    return best_partitions(points, weights, n_clusters, rng, 1, n_restarts)[0]


def best_partitions(
    points: FloatArray,
    weights: FloatArray,
    n_clusters: int,
    rng: np.random.Generator,
    keep: int,
    n_restarts: int | None = None,
) -> list[FloatArray]:
    """Cluster weighted points from several starts and return the best partitions' centroids.

    Starts: one farthest-first (deterministic), then k-means++ restarts; where their number is left
    to a rule and it is affordable, one by Ward's agglomeration besides (deterministic).

    Parameters
    ----------
    points : (m, d) float64
    weights : (m,) float64, positive
    n_clusters : int
    rng : numpy.random.Generator
    keep : int
        The most partitions to return. Partitions whose inertia differs by no more than ``SAME``,
        relative, count as one.
    n_restarts : int, optional
        Random restarts of a site's own k-means; by default, and at the coordinator,
        :func:`restart_count`.

    Returns
    -------
    list of (K', d) float64
        Best first, all of one K': the smaller of ``n_clusters`` and the number of distinct
        points. Where there are too many points for several starts, one partition.
    """
    points, weights = _merge_equal(points, weights)
    if len(points) <= n_clusters:
        return [points]
    cloud = _Cloud(points, weights)
    if _too_many(points, n_clusters, _WORK if n_restarts is None else _SITE_WORK):
        return [_by_sample(cloud, n_clusters, rng)]
    if n_restarts is not None:
        return _distinct(_runs(cloud, n_clusters, rng, n_restarts), keep)
    runs = _runs(cloud, n_clusters, rng, restart_count(len(points), points.shape[1], n_clusters))
    if affordable(*points.shape):
        runs.append(_lloyd(cloud, ward_means(points, cloud.weights, n_clusters)))
    return _distinct(runs, keep)


def single_start_centroids(
    points: FloatArray, weights: FloatArray, n_clusters: int, rngs: Iterable[np.random.Generator]
) -> list[FloatArray]:
    """Return centroids (K', d) from each of some random starts, carried to convergence.

    Parameters and K' as for :func:`weighted_kmeans`, but a generator for each start.
    """
    points, weights = _merge_equal(points, weights)
    if len(points) <= n_clusters:
        return [points for _ in rngs]
    cloud = _Cloud(points, weights)
    return [_lloyd(cloud, _plus_plus(cloud, n_clusters, rng))[0] for rng in rngs]


def kmeans_plus_plus(
    points: FloatArray, weights: FloatArray, n_clusters: int, rng: np.random.Generator
) -> FloatArray:
    """Return points (K', d) drawn by weighted k-means++; K' as for :func:`weighted_kmeans`."""
    points, weights = _merge_equal(points, weights)
    return (
        points
        if len(points) <= n_clusters
        else _plus_plus(_Cloud(points, weights), n_clusters, rng)
    )


def sklearn_kmeans(
    points: FloatArray,
    weights: FloatArray,
    n_clusters: int,
    rng: np.random.Generator,
    n_restarts: int,
) -> FloatArray:
    """Return centroids (K', d) by scikit-learn's k-means: what published programs ran.

    Parameters and K' as for :func:`weighted_kmeans`; no farthest-first start among them.
    """
    seed = int(rng.integers(2**31))
    points, weights = _merge_equal(points, weights)
    if len(points) <= n_clusters:
        return points
    # Imported here: it takes seconds, and only the papers' variants need it.
    from sklearn.cluster import KMeans

    kmeans = KMeans(n_clusters, n_init=n_restarts, random_state=seed, algorithm="lloyd")
    labels = kmeans.fit(break_distance_ties(points), sample_weight=weights).labels_.astype(np.int64)
    return _Cloud(points, weights).means(labels, points[:n_clusters])


def _merge_equal(points: FloatArray, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the distinct points in lexicographic order, and their weights added up.

    Points that differ by rounding alone are one, or another processor would draw other seeds.
    Column by column, among the points that are still equal in all before: of real numbers the
    first column tells nearly all apart.
    """
    within = coordinate_tolerance(points)
    rank = np.zeros(len(points), dtype=np.intp)
    tied = np.arange(len(points))
    for j in range(points.shape[1]):
        if not len(tied):
            break
        tied = tied[np.lexsort((points[tied, j], rank[tied]))]
        before, values = rank[tied], points[tied, j]
        group = np.append(True, before[1:] != before[:-1])
        run = group | np.append(True, np.diff(values) > within)
        place = np.arange(len(tied))
        first = np.maximum.accumulate(np.where(run, place, 0))
        rank[tied] = before + first - np.maximum.accumulate(np.where(group, place, 0))
        alone = run & np.append(run[1:], True)
        tied = tied[~alone]
    _, chosen, inverse = np.unique(rank, return_index=True, return_inverse=True)
    mass = np.bincount(inverse.reshape(-1), weights=weights).astype(np.float64)
    # Adding 0.0 turns -0.0 into 0.0; they have counted as equal.
    merged = points[chosen]
    merged += 0.0
    return merged, mass


def _too_many(points: FloatArray, n_clusters: int, work: int) -> bool:
    """Whether two random restarts would cost more than all of them may."""
    size = points.shape[0] * points.shape[1] * n_clusters
    return 2 * 10 * size > work and len(points) > 2 * _SAMPLED * n_clusters


def _by_sample(cloud: _Cloud, n_clusters: int, rng: np.random.Generator) -> FloatArray:
    """Return the centroids of one Lloyd run among all points, started from a sample's best.

    The sample is drawn by weight, so that within it every point weighs the same. K centroids span
    at most K axes: along the K widest of the points, Lloyd is as good and costs K of d. A sample's
    own widest axes would not do: where clusters overlap, they are those of its noise.
    """
    size = _SAMPLED * n_clusters
    share = cloud.weights / cloud.weights.sum()
    chosen = np.sort(rng.choice(len(share), size, replace=False, p=share))
    if 2 * n_clusters > cloud.points.shape[1]:
        drawn = _Cloud(cloud.points[chosen], np.ones(size))
        runs = _runs(drawn, n_clusters, rng, _SAMPLE_RESTARTS)
        return _lloyd(cloud, _distinct(runs, 1)[0], _COARSE)[0]
    narrow = _Cloud(cloud.points @ cloud.widest(n_clusters), cloud.weights)
    drawn = _Cloud(narrow.points[chosen], np.ones(size))
    runs = _runs(drawn, n_clusters, rng, _SAMPLE_RESTARTS)
    limit = _HOPELESS * min(inertia for _, inertia in runs)
    starts = _distinct([run for run in runs if run[1] <= limit], _CARRIED)
    best = _distinct([_lloyd(narrow, start, _FINE) for start in starts], 1)[0]
    labels, _ = narrow.nearest(best)
    means = cloud.means(labels, np.zeros((n_clusters, cloud.points.shape[1])))
    return _lloyd(cloud, means, _COARSE)[0]


def _runs(cloud: _Cloud, n_clusters: int, rng: np.random.Generator, n_restarts: int) -> list[Run]:
    """Return (centroids, inertia) of every start, carried to convergence."""
    runs = [_lloyd(cloud, _farthest_first(cloud, n_clusters))]
    runs += [_lloyd(cloud, _plus_plus(cloud, n_clusters, rng)) for _ in range(n_restarts)]
    return runs


def _distinct(runs: list[Run], keep: int) -> list[FloatArray]:
    """Return the centroids of the best runs, no two of one inertia; ties to the earliest."""
    kept: list[tuple[float, int]] = []
    for number in sorted(range(len(runs)), key=lambda number: runs[number][1]):
        inertia = runs[number][1]
        if kept and inertia <= kept[-1][0] * (1.0 + SAME_INERTIA):
            kept[-1] = kept[-1][0], min(kept[-1][1], number)
        elif len(kept) < keep:
            kept.append((inertia, number))
        else:
            break
    return [runs[number][0] for _, number in kept]


class _Cloud:
    """Weighted points, with what distances from them need, computed once.

    About the weighted mean: far from the origin the expanded square would otherwise cancel away.
    """

    def __init__(self, points: FloatArray, weights: FloatArray) -> None:
        self.points, self.weights = points, weights
        self._origin = np.average(points, axis=0, weights=weights)
        self._centred = points - self._origin
        self._squares = np.einsum("ij,ij->i", self._centred, self._centred)

    def innermost(self) -> int:
        """Return the point nearest to the weighted mean."""
        return int(tolerant_argmin(self._squares))

    def widest(self, n_axes: int) -> FloatArray:
        """Return the orthonormal axes (d, n_axes) along which the points vary most, by weight.

        From points at even distances in their order, as many as ``_AXES_WORTH`` allows.
        """
        n_points, n_features = self.points.shape
        # The product is symmetric: half of it is computed.
        wanted = 2 * _AXES_WORTH * n_points * n_axes // n_features
        n_used = min(n_points, max(wanted, _SAMPLED * n_axes))
        used = np.arange(n_used) * n_points // n_used
        scatter = np.zeros((n_features, n_features))
        for begin in range(0, n_used, ROW_BLOCK):
            block = used[begin : begin + ROW_BLOCK]
            rows = self._centred[block] * np.sqrt(self.weights[block])[:, None]
            scatter += rows.T @ rows
        values, axes = np.linalg.eigh(scatter)
        return canonical_eigenbasis(values / max(float(values[-1]), 1e-300), axes)[:, -n_axes:]

    def from_points(self, seeds: NDArray[np.intp]) -> FloatArray:
        """Return squared distances (m, s) from points ``seeds`` (s,); 0 from themselves."""
        gaps = self._centred @ (-2.0 * self._centred[seeds].T)
        gaps += self._squares[:, None]
        gaps += self._squares[seeds]
        np.maximum(gaps, 0.0, out=gaps)
        gaps[seeds, np.arange(len(seeds))] = 0.0
        return gaps

    def nearest(self, centroids: FloatArray) -> tuple[NDArray[np.int64], FloatArray]:
        """Return the nearest centroid (m,) of every point and its weighted cost (m,)."""
        centres = centroids - self._origin
        norms = np.einsum("ij,ij->i", centres, centres)
        ranked = norms + nearest_tie_offsets(norms)
        labels = np.empty(len(self.points), dtype=np.int64)
        costs = np.empty(len(self.points))
        for begin in range(0, len(labels), ROW_BLOCK):
            block = slice(begin, begin + ROW_BLOCK)
            gaps = self._centred[block] @ (-2.0 * centres.T)
            gaps += ranked
            labels[block] = gaps.argmin(axis=1)
            costs[block] = gaps[np.arange(len(gaps)), labels[block]]
        costs += self._squares - (ranked - norms)[labels]
        return labels, self.weights * np.maximum(costs, 0.0)

    def means(self, labels: NDArray[np.int64], otherwise: FloatArray) -> FloatArray:
        """Return the weighted means (K, d) of the clusters; ``otherwise`` of those without points.

        Points are added in their order, whatever the platform's matrix product does.
        """
        n_clusters = len(otherwise)
        # Imported here: it takes a while, and few need it.
        from scipy.sparse import csc_array

        shape = (n_clusters, len(labels))
        members = csc_array((self.weights, labels, np.arange(len(labels) + 1)), shape=shape)
        mass = np.bincount(labels, weights=self.weights, minlength=n_clusters)[:, None]
        sums = members @ self._centred
        return np.where(mass > 0, sums / np.where(mass > 0, mass, 1.0) + self._origin, otherwise)


def _farthest_first(cloud: _Cloud, n_clusters: int) -> FloatArray:
    """Seeds (K, d): the point nearest the weighted mean, then always the farthest from all."""
    chosen = [cloud.innermost()]
    gap = cloud.from_points(np.array(chosen))[:, 0]
    while len(chosen) < n_clusters:
        chosen.append(int(tolerant_argmax(gap)))
        np.minimum(gap, cloud.from_points(np.array(chosen[-1:]))[:, 0], out=gap)
    return cloud.points[chosen]


def _plus_plus(cloud: _Cloud, n_clusters: int, rng: np.random.Generator) -> FloatArray:
    """Seeds (K, d) by weighted k-means++, greedy: of some draws, the one that lowers most."""
    n_trials = 2 + int(np.log(n_clusters))
    chosen = _draw(cloud.weights, rng, 1)
    gap = cloud.from_points(chosen)[:, 0]
    while len(chosen) < n_clusters:
        # Underflow can leave no mass although distinct points remain: then by weight alone.
        mass = cloud.weights * gap
        trials = _draw(mass if mass.sum() > 0 else cloud.weights, rng, n_trials)
        gaps = np.minimum(cloud.from_points(trials), gap[:, None])
        best = int(tolerant_argmin(cloud.weights @ gaps))
        chosen = np.append(chosen, trials[best])
        gap = gaps[:, best]
    return cloud.points[chosen]


def _draw(mass: FloatArray, rng: np.random.Generator, n: int) -> NDArray[np.intp]:
    """Return ``n`` points (n,), drawn by mass."""
    cumulative = np.cumsum(mass)
    drawn = np.searchsorted(cumulative, rng.random(n) * cumulative[-1], side="right")
    return np.asarray(np.minimum(drawn, len(mass) - 1), dtype=np.intp)


def _lloyd(cloud: _Cloud, centroids: FloatArray, tolerance: float = _TOLERANCE) -> Run:
    """Lloyd iterations to convergence; an empty cluster takes the dearest point."""
    previous = np.inf
    for _ in range(_MAX_ITERATIONS):
        labels, costs = cloud.nearest(centroids)
        inertia = float(costs.sum())
        if inertia >= previous * (1.0 - tolerance):
            break
        previous = inertia
        empty = np.flatnonzero(np.bincount(labels, minlength=len(centroids)) == 0)
        centroids = cloud.means(labels, centroids)
        for k in empty:
            dearest = int(tolerant_argmax(costs))
            centroids[k] = cloud.points[dearest]
            costs[dearest] = 0.0
    return centroids, inertia
