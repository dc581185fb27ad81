"""Weighted k-means: of a site's points, and of all sites' cell means at the coordinator.

With few points, k-means runs from many starts, each to convergence. Where one start among all
points would take seconds, the starts run in a sample, projected on the points' widest axes, and
the best of them continues among all points.

References
----------
Arthur & Vassilvitskii, "k-means++: the advantages of careful seeding", SODA 2007.
Gonzalez, "Clustering to minimize the maximum intercluster distance", 1985 (farthest first).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from fedclust.numeric.array_types import FloatArray, IntArray
from fedclust.numeric.canonical import (
    break_distance_ties,
    canonical_eigenbasis,
    coordinate_tolerance,
    tolerant_argmax,
    tolerant_argmin,
)
from fedclust.numeric.distances import ROW_BLOCK, CentroidRule, keep_means, nearest_tie_offsets
from fedclust.numeric.threads import one_thread
from fedclust.numeric.ward import affordable_points, ward_means

#: Centroids (K, d) and their weighted inertia.
Run = tuple[FloatArray, float]

_MAX_ITERATIONS = 300
#: Relative improvement of the inertia below which Lloyd iterations stop.
_TOLERANCE = 1e-12
_MAX_RESTARTS = 50
#: A random restart takes about this many iterations.
_ITERATIONS_PER_RESTART = 10
#: The most multiply-adds of all random restarts together,
_MAX_WORK = 2_000_000_000
#: and of a site's own k-means, whose cells only start the rounds that follow.
_MAX_SITE_WORK = 200_000_000
#: Where two restarts would cost more, they run in a sample of this many points per cluster.
_SAMPLE_PER_CLUSTER = 50
_SAMPLE_RESTARTS = 8
#: The best starts in the sample continue among all points along their widest axes. Discard those
#: more than 1 % worse than the best: they missed a cluster.
_MAX_CONTINUED = 4
_MAX_RELATIVE_INERTIA = 1.01
#: Tolerance along the widest axes,
_AXES_TOLERANCE = 1e-5
#: and among all points, where iterations are expensive and the sites' rounds refine the result.
_FULL_TOLERANCE = 1e-4
#: Finding the axes may cost as much as this many Lloyd iterations among all points.
_AXES_ITERATIONS = 10
#: Relative difference in inertia up to which two partitions count as equal.
SAME_INERTIA = 1e-9


def restart_count(n_points: int, n_features: int, n_clusters: int) -> int:
    """Return the number of random restarts: 50, fewer for large problems, at least 2.

    Depends on sizes only: a time limit would make the result depend on the machine.
    """
    cost = _ITERATIONS_PER_RESTART * n_points * n_features * n_clusters
    return int(np.clip(_MAX_WORK // max(cost, 1), 2, _MAX_RESTARTS))


def weighted_kmeans(
    points: FloatArray,
    weights: FloatArray,
    n_clusters: int,
    rng: np.random.Generator,
    n_restarts: int | None = None,
    rule: CentroidRule = keep_means,
) -> FloatArray:
    """Cluster weighted points and return the centroids of lowest weighted inertia.

    Parameters are those of :func:`best_partitions`.

    Returns
    -------
    (K', d) float64
        K' is the smaller of ``n_clusters`` and the number of distinct points.
    """
    return best_partitions(points, weights, n_clusters, rng, 1, n_restarts, rule)[0]


def best_partitions(
    points: FloatArray,
    weights: FloatArray,
    n_clusters: int,
    rng: np.random.Generator,
    keep: int,
    n_restarts: int | None = None,
    rule: CentroidRule = keep_means,
) -> list[FloatArray]:
    """Cluster weighted points from several starts and return the best partitions' centroids.

    The starts are farthest-first (deterministic) and k-means++ restarts; without ``n_restarts``
    also Ward's agglomeration (deterministic), if the points are few enough.

    Parameters
    ----------
    points : (m, d) float64
    weights : (m,) float64, positive
    n_clusters : int
    rng : numpy.random.Generator
    keep : int
        The most partitions to return. Partitions count as equal if their inertias differ by at
        most ``SAME_INERTIA``, relative.
    n_restarts : int, optional
        Random restarts of a site's own k-means. Default, and always at the coordinator:
        :func:`restart_count`.
    rule : CentroidRule
        What makes clusters' centroids of their means.

    Returns
    -------
    list of (K', d) float64
        Best first. K' is the smaller of ``n_clusters`` and the number of distinct points. A single
        partition where there are too many points for several starts.
    """
    points, weights = _merge_equal_points(points, weights)
    if len(points) <= n_clusters:
        return [rule(points)]
    cloud = _Cloud(points, weights, rule)
    max_work = _MAX_WORK if n_restarts is None else _MAX_SITE_WORK
    if _needs_sample(points, n_clusters, max_work):
        return [_kmeans_by_sample(cloud, n_clusters, rng)]
    if n_restarts is not None:
        return _best_distinct(_run_starts(cloud, n_clusters, rng, n_restarts), keep)
    n_restarts = restart_count(len(points), points.shape[1], n_clusters)
    runs = _run_starts(cloud, n_clusters, rng, n_restarts)
    if len(points) <= affordable_points(points.shape[1]):
        runs.append(_lloyd(cloud, ward_means(points, cloud.weights, n_clusters)))
    return _best_distinct(runs, keep)


def single_start_centroids(
    points: FloatArray,
    weights: FloatArray,
    n_clusters: int,
    rngs: Iterable[np.random.Generator],
    rule: CentroidRule = keep_means,
) -> list[FloatArray]:
    """Run k-means to convergence from one k-means++ start per generator.

    Other parameters and K' are those of :func:`weighted_kmeans`.

    Returns
    -------
    list of (K', d) float64
        One for each of ``rngs``.
    """
    points, weights = _merge_equal_points(points, weights)
    if len(points) <= n_clusters:
        return [rule(points) for _ in rngs]
    cloud = _Cloud(points, weights, rule)
    return [_lloyd(cloud, _plus_plus(cloud, n_clusters, rng))[0] for rng in rngs]


def kmeans_plus_plus(
    points: FloatArray, weights: FloatArray, n_clusters: int, rng: np.random.Generator
) -> FloatArray:
    """Return points (K', d) drawn by greedy weighted k-means++.

    Parameters and K' are those of :func:`weighted_kmeans`.
    """
    points, weights = _merge_equal_points(points, weights)
    if len(points) <= n_clusters:
        return points
    return _plus_plus(_Cloud(points, weights), n_clusters, rng)


def sklearn_kmeans(
    points: FloatArray,
    weights: FloatArray,
    n_clusters: int,
    rng: np.random.Generator,
    n_restarts: int,
) -> FloatArray:
    """Return centroids (K', d) by scikit-learn's k-means, which the papers' programs use.

    Parameters and K' are those of :func:`weighted_kmeans`; there is no farthest-first start.
    """
    seed = int(rng.integers(2**31))
    points, weights = _merge_equal_points(points, weights)
    if len(points) <= n_clusters:
        return points
    # Imported here: it takes seconds, and only the papers' variants need it.
    from sklearn.cluster import KMeans

    kmeans = KMeans(n_clusters, n_init=n_restarts, random_state=seed, algorithm="lloyd")
    with one_thread():
        kmeans.fit(break_distance_ties(points), sample_weight=weights)
    labels = kmeans.labels_.astype(np.int64)
    return _Cloud(points, weights).means(labels, points[:n_clusters])


def _merge_equal_points(points: FloatArray, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the distinct points in lexicographic order, and their summed weights.

    Points that differ by rounding are merged, or another processor would draw other seeds. Column
    by column, among the points still equal in all columns before: with real numbers the first
    column separates nearly all.
    """
    tolerance = coordinate_tolerance(points)
    rank = np.zeros(len(points), dtype=np.intp)
    tied = np.arange(len(points))
    for j in range(points.shape[1]):
        if not len(tied):
            break
        tied = tied[np.lexsort((points[tied, j], rank[tied]))]
        old_rank, values = rank[tied], points[tied, j]
        # Where a set of points of one rank begins, and where a run of equal values within it.
        set_start = np.append(True, old_rank[1:] != old_rank[:-1])
        run_start = set_start | np.append(True, np.diff(values) > tolerance)
        position = np.arange(len(tied))
        first_of_run = np.maximum.accumulate(np.where(run_start, position, 0))
        first_of_set = np.maximum.accumulate(np.where(set_start, position, 0))
        rank[tied] = old_rank + first_of_run - first_of_set
        unique = run_start & np.append(run_start[1:], True)
        tied = tied[~unique]
    _, chosen, inverse = np.unique(rank, return_index=True, return_inverse=True)
    mass = np.bincount(inverse.reshape(-1), weights=weights).astype(np.float64)
    # Adding 0.0 turns -0.0 into 0.0.
    return points[chosen] + 0.0, mass


def _needs_sample(points: FloatArray, n_clusters: int, max_work: int) -> bool:
    """Return whether two random restarts among all points would cost more than ``max_work``."""
    cost = _ITERATIONS_PER_RESTART * points.shape[0] * points.shape[1] * n_clusters
    return 2 * cost > max_work and len(points) > 2 * _SAMPLE_PER_CLUSTER * n_clusters


def _kmeans_by_sample(cloud: _Cloud, n_clusters: int, rng: np.random.Generator) -> FloatArray:
    """Return centroids (K, d) of a Lloyd run among all points, started from a sample's best.

    The sample is drawn by weight, so its points weigh the same. K centroids span at most K axes:
    along the K widest axes of the points Lloyd is as good and costs K / d as much. The sample's
    own widest axes would not do: where clusters overlap, they are axes of its noise.
    """
    size = _SAMPLE_PER_CLUSTER * n_clusters
    share = cloud.weights / cloud.weights.sum()
    chosen = np.sort(rng.choice(len(share), size, replace=False, p=share))
    project = 2 * n_clusters <= cloud.points.shape[1]
    narrow = cloud
    if project:
        narrow = _Cloud(cloud.points @ cloud.widest_axes(n_clusters), cloud.weights)
    sample = _Cloud(narrow.points[chosen], np.ones(size), narrow.rule)
    runs = _run_starts(sample, n_clusters, rng, _SAMPLE_RESTARTS)
    if not project:
        return _lloyd(cloud, _best_distinct(runs, 1)[0], _FULL_TOLERANCE)[0]
    limit = _MAX_RELATIVE_INERTIA * min(inertia for _, inertia in runs)
    starts = _best_distinct([run for run in runs if run[1] <= limit], _MAX_CONTINUED)
    best = _best_distinct([_lloyd(narrow, start, _AXES_TOLERANCE) for start in starts], 1)[0]
    labels, _ = narrow.nearest(best)
    means = cloud.means(labels, np.zeros((n_clusters, cloud.points.shape[1])))
    return _lloyd(cloud, means, _FULL_TOLERANCE)[0]


def _run_starts(
    cloud: _Cloud, n_clusters: int, rng: np.random.Generator, n_restarts: int
) -> list[Run]:
    """Run Lloyd to convergence from farthest-first and from each k-means++ start."""
    runs = [_lloyd(cloud, _seed_farthest_first(cloud, n_clusters))]
    runs += [_lloyd(cloud, _plus_plus(cloud, n_clusters, rng)) for _ in range(n_restarts)]
    return runs


def _best_distinct(runs: list[Run], keep: int) -> list[FloatArray]:
    """Return the centroids of the best runs with distinct inertias; ties go to the earliest."""
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
    """Weighted points, with what their distances need computed once.

    Distances are relative to the weighted mean: far from the origin the expanded square loses
    digits by cancellation.
    """

    def __init__(
        self, points: FloatArray, weights: FloatArray, rule: CentroidRule = keep_means
    ) -> None:
        self.points, self.weights, self.rule = points, weights, rule
        self._origin = np.average(points, axis=0, weights=weights)
        self._centred = points - self._origin
        self.squares = np.einsum("ij,ij->i", self._centred, self._centred)

    def widest_axes(self, n_axes: int) -> FloatArray:
        """Return orthonormal axes (d, n_axes) of largest weighted variance.

        Computed from evenly spaced points, as many as ``_AXES_ITERATIONS`` allows.
        """
        n_points, n_features = self.points.shape
        # The product is symmetric: BLAS computes half of it.
        wanted = 2 * _AXES_ITERATIONS * n_points * n_axes // n_features
        n_used = min(n_points, max(wanted, _SAMPLE_PER_CLUSTER * n_axes))
        used = np.arange(n_used) * n_points // n_used
        scatter = np.zeros((n_features, n_features))
        for begin in range(0, n_used, ROW_BLOCK):
            block = used[begin : begin + ROW_BLOCK]
            rows = self._centred[block] * np.sqrt(self.weights[block])[:, None]
            scatter += rows.T @ rows
        values, axes = np.linalg.eigh(scatter)
        return canonical_eigenbasis(values / max(float(values[-1]), 1e-300), axes)[:, -n_axes:]

    def squared_distances_from(self, seeds: NDArray[np.intp]) -> FloatArray:
        """Return squared distances (m, s) from points ``seeds`` (s,); 0 from themselves."""
        squares = self._centred @ (-2.0 * self._centred[seeds].T)
        squares += self.squares[:, None]
        squares += self.squares[seeds]
        np.maximum(squares, 0.0, out=squares)
        squares[seeds, np.arange(len(seeds))] = 0.0
        return squares

    def nearest(self, centroids: FloatArray) -> tuple[IntArray, FloatArray]:
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
        costs += self.squares - (ranked - norms)[labels]
        return labels, self.weights * np.maximum(costs, 0.0)

    def means(self, labels: IntArray, fallback: FloatArray) -> FloatArray:
        """Return the clusters' weighted means (K, d), and ``fallback`` (K, d) of empty clusters.

        The sparse product adds points in their order on every platform.
        """
        n_clusters = len(fallback)
        # Imported here: it takes a while, and few callers need it.
        from scipy.sparse import csc_array

        shape = (n_clusters, len(labels))
        members = csc_array((self.weights, labels, np.arange(len(labels) + 1)), shape=shape)
        mass = np.bincount(labels, weights=self.weights, minlength=n_clusters)[:, None]
        sums = members @ self._centred
        return np.where(mass > 0, sums / np.where(mass > 0, mass, 1.0) + self._origin, fallback)


def _seed_farthest_first(cloud: _Cloud, n_clusters: int) -> FloatArray:
    """Return seeds (K, d): the innermost point, then each time the one farthest from all seeds."""
    chosen = [int(tolerant_argmin(cloud.squares))]
    gap = cloud.squared_distances_from(np.array(chosen))[:, 0]
    while len(chosen) < n_clusters:
        chosen.append(int(tolerant_argmax(gap)))
        np.minimum(gap, cloud.squared_distances_from(np.array(chosen[-1:]))[:, 0], out=gap)
    return cloud.points[chosen]


def _plus_plus(cloud: _Cloud, n_clusters: int, rng: np.random.Generator) -> FloatArray:
    """Return seeds (K, d) by greedy weighted k-means++: the best of several draws for each seed."""
    n_trials = 2 + int(np.log(n_clusters))
    chosen = _draw_points(cloud.weights, rng, 1)
    gap = cloud.squared_distances_from(chosen)[:, 0]
    while len(chosen) < n_clusters:
        # Underflow can leave no mass although distinct points remain: then draw by weight alone.
        mass = cloud.weights * gap
        trials = _draw_points(mass if mass.sum() > 0 else cloud.weights, rng, n_trials)
        gaps = np.minimum(cloud.squared_distances_from(trials), gap[:, None])
        best = int(tolerant_argmin(cloud.weights @ gaps))
        chosen = np.append(chosen, trials[best])
        gap = gaps[:, best]
    return cloud.points[chosen]


def _draw_points(mass: FloatArray, rng: np.random.Generator, n: int) -> NDArray[np.intp]:
    """Draw the indices (n,) of ``n`` points with probability proportional to ``mass`` (m,)."""
    cumulative = np.cumsum(mass)
    drawn = np.searchsorted(cumulative, rng.random(n) * cumulative[-1], side="right")
    return np.asarray(np.minimum(drawn, len(mass) - 1), dtype=np.intp)


def _lloyd(cloud: _Cloud, centroids: FloatArray, tolerance: float = _TOLERANCE) -> Run:
    """Run Lloyd iterations to convergence; an empty cluster moves to the point of highest cost."""
    previous = np.inf
    for _ in range(_MAX_ITERATIONS):
        centroids = cloud.rule(centroids)
        labels, costs = cloud.nearest(centroids)
        inertia = float(costs.sum())
        if inertia >= previous * (1.0 - tolerance):
            break
        previous = inertia
        empty = np.flatnonzero(np.bincount(labels, minlength=len(centroids)) == 0)
        centroids = cloud.means(labels, centroids)
        for k in empty:
            farthest = int(tolerant_argmax(costs))
            centroids[k] = cloud.points[farthest]
            costs[farthest] = 0.0
    return centroids, inertia
