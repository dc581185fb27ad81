"""How a site of ``kfed`` clusters its own points: Algorithm 1 as published, and what replaces it.

What it says and cites
    Dennis, Li & Smith, "Heterogeneity for the win: one-shot federated clustering", ICML 2021
    (PMLR 139): :func:`algorithm_1` is the sites' part, whose lines are named here.

:func:`own_cells` is the default variant's. Pure functions of points: nothing here knows a session.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedclust.methods.common.cluster_sums import ClusterSums, cluster_sums
from fedclust.methods.common.local_kmeans import local_kmeans
from fedclust.numeric.canonical import TIE_TOLERANCE, canonical_eigenbasis, tolerant_argmin
from fedclust.numeric.distances import nearest_centroid, squared_distances
from fedclust.schema.points import Points

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

#: Singular values no larger than this part of the largest are rounding.
_RANK = 1e-6
_MAX_ITERATIONS = 300


def algorithm_1(
    points: Points, n_cells: int, rng: np.random.Generator, *, project: bool = True
) -> ClusterSums:
    """Return a site's cells by Algorithm 1, lines 2 to 4.

    The 10-approximation of line 2 is one k-means++ seeding. Where no point lies within a third
    (line 3), the centre is the mean of the points nearest to its seed.
    """
    projected = points.X if not project else _projected(points, n_cells)
    seeds = plus_plus(projected, points.sizes, n_cells, rng)
    squares = squared_distances(projected, seeds)
    closest = tolerant_argmin(squares)
    core = np.full(len(closest), True)
    if len(seeds) > 1:
        ordered = np.partition(squares, 1, axis=1)
        # Line 3, squared: nine times the nearest is at most the second nearest.
        core = ordered[:, 0] <= ordered[:, 1] / 9.0 + TIE_TOLERANCE * ordered.max()
    inner = _means(points, np.where(core, closest, -1), len(seeds))
    voronoi = _means(points, closest, len(seeds))
    centres = np.where(inner.counts[:, None] > 0, inner.means, voronoi.means)
    return converged(points, centres[voronoi.counts > 0])


def plus_plus(
    X: FloatArray, weights: IntArray, n_seeds: int, rng: np.random.Generator
) -> FloatArray:
    """Return seeds (s, d) drawn from weighted points (m, d) by one plain k-means++ draw.

    Not the greedy form, which tries several candidates for each seed. Fewer than ``n_seeds`` where
    there are fewer distinct points.
    """
    seeds: list[FloatArray] = []
    gaps = np.ones(len(X))
    while len(seeds) < n_seeds and gaps.any():
        mass = np.cumsum(weights * gaps)
        place = int(np.searchsorted(mass, rng.random() * mass[-1], side="right"))
        seeds.append(X[min(place, len(X) - 1)])
        # Differences, not the expanded square: the gap between equal points must be 0.
        squares = ((X - seeds[-1]) ** 2).sum(axis=1)
        gaps = squares if len(seeds) == 1 else np.minimum(gaps, squares)
    return np.array(seeds)


def own_cells(
    points: Points,
    n_cells: int,
    n_init: int,
    rng: np.random.Generator,
    n_clusters: int | None = None,
) -> ClusterSums:
    """Return a site's cells by weighted k-means with restarts.

    With ``n_clusters``, K, it runs among the projections on the first :func:`directions`: a cell of
    two or three points in many dimensions is otherwise found by noise, and mixes clusters. Cells no
    more than these are large, and Lloyd goes on from the best among the points themselves.
    """
    if n_clusters is None:
        return local_kmeans(points, n_cells, n_init, rng)
    project, values = _singular(points)
    # Constant columns hold no noise, and would pass for such.
    varying = int((points.X[0] != points.X).any(axis=0).sum())
    kept = directions(values, (len(points.X), varying), n_clusters)
    if kept is None:
        return local_kmeans(points, n_cells, n_init, rng)
    projected = replace(points, X=project(kept), within=np.zeros(kept))
    centres = local_kmeans(projected, n_cells, n_init, rng).means
    found = _means(points, nearest_centroid(projected.X, centres), len(centres))
    return found if n_cells > kept else converged(points, found.means[found.counts > 0])


def directions(values: FloatArray, shape: tuple[int, ...], n_clusters: int) -> int | None:
    """Return how many singular vectors tell clusters apart, the others being noise.

    Those whose singular value is above the optimal threshold for noise of unknown size (Gavish &
    Donoho, "The optimal hard threshold for singular values is 4/sqrt(3)", 2014, equation 11), and
    never fewer than the root of K, rounded up: the clusters that a heterogeneous site holds
    (Definition 3.2) span as many, whether or not each stands out.

    Parameters
    ----------
    values : (r,) float64
        All singular values of a site's points, descending.
    shape : tuple of int
        (m, d), of the columns that vary.
    n_clusters : int
        K. Means of K clusters span up to K directions: where there are no more, all are kept.

    Returns
    -------
    int or None
        None: all of them.
    """
    if not values.any():
        return None
    # What is only rounding (constant or repeated columns) is no noise to measure.
    values = values[values > _RANK * values[0]]
    if len(values) <= n_clusters:
        return None
    beta = len(values) / max(shape)
    omega = 0.56 * beta**3 - 0.95 * beta**2 + 1.82 * beta + 1.43
    found = int((values > omega * np.median(values)).sum())
    return max(found, int(np.ceil(np.sqrt(n_clusters))))


def _projected(points: Points, n_vectors: int) -> FloatArray:
    """Return coordinates (m, r) in the span of the top singular vectors of X, not centred.

    Algorithm 1, line 2. Distances are those of the projections in the original space.
    """
    return points.X if n_vectors >= min(points.X.shape) else _singular(points)[0](n_vectors)


def _singular(points: Points) -> tuple[Callable[[int], FloatArray], FloatArray]:
    """Return what projects points on their first singular vectors, and all values, descending.

    A point counts as often as its persons, so that the noise of means of more persons, which is
    smaller, weighs as much as that of others. By the smaller of the two matrices of products.
    """
    roots = np.sqrt(points.sizes)[:, None]
    X = points.X * roots
    wide = X.shape[1] > len(X)
    # Once for all numbers of clusters of a sweep.
    if "singular" not in points.derived:
        squares, vectors = np.linalg.eigh(X @ X.T if wide else X.T @ X)
        vectors = canonical_eigenbasis(squares / max(float(squares[-1]), 1e-300), vectors)[:, ::-1]
        points.derived["singular"] = squares, vectors
    squares, vectors = points.derived["singular"]
    values = np.sqrt(np.maximum(squares[::-1], 0.0))
    if wide:
        return lambda r: np.asarray(vectors[:, :r] * values[:r] / roots), values
    return lambda r: np.asarray(points.X @ vectors[:, :r]), values


def _means(points: Points, labels: IntArray, n_cells: int) -> ClusterSums:
    """Add up points by cell, about the mean of all."""
    centre = np.average(points.X, axis=0, weights=points.sizes)
    return cluster_sums(points, labels, np.tile(centre, (n_cells, 1)))


def converged(points: Points, centres: FloatArray) -> ClusterSums:
    """Return the cells after Lloyd steps until no point changes its cell (Algorithm 1, line 4).

    From centres (K, d); one that no point is nearest to stays where it is.
    """
    labels = nearest_centroid(points.X, centres)
    for _ in range(_MAX_ITERATIONS):
        found = cluster_sums(points, labels, centres)
        centres = np.where(found.counts[:, None] > 0, found.means, centres)
        moved = nearest_centroid(points.X, centres)
        if np.array_equal(moved, labels):
            break
        labels = moved
    return found
