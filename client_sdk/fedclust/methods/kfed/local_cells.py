"""How a site of ``kfed`` clusters its own points: Algorithm 1 as published, and its replacement.

:func:`algorithm_1` is the site's part in Dennis, Li & Smith, "Heterogeneity for the win: one-shot
federated clustering", ICML 2021 (PMLR 139). :func:`restarted_cells` is the default variant's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from fedclust.methods.common.kmeans_rounds import ClusterSums, cluster_sums, local_kmeans
from fedclust.numeric.array_types import FloatArray, IntArray
from fedclust.numeric.canonical import TIE_TOLERANCE, canonical_eigenbasis, tolerant_argmin
from fedclust.numeric.distances import nearest_centroid, squared_distances
from fedclust.schema.points import Points

#: Singular values up to this share of the largest are rounding errors.
_RANK_TOLERANCE = 1e-6
_MAX_ITERATIONS = 300


def algorithm_1(
    points: Points, n_cells: int, rng: np.random.Generator, *, project: bool = True
) -> ClusterSums:
    """Return a site's cells by Algorithm 1, lines 2 to 4.

    The 10-approximation of line 2 is one k-means++ seeding. If no point is three times nearer to a
    seed than to the others (line 3), the centre is the mean of the points nearest to that seed.

    Parameters
    ----------
    points : Points
        Scaled.
    n_cells : int
        k', the most cells.
    rng : numpy.random.Generator
    project : bool
        Whether to seed among the projections on the first k' singular vectors (line 2).
    """
    X = _project_points(points, n_cells) if project else points.X
    seeds = draw_seeds(X, points.sizes, n_cells, rng)
    squares = squared_distances(X, seeds)
    closest = tolerant_argmin(squares)
    core = np.full(len(closest), True)
    if len(seeds) > 1:
        ordered = np.partition(squares, 1, axis=1)
        # Line 3, squared: nine times the nearest is at most the second nearest.
        core = ordered[:, 0] <= ordered[:, 1] / 9.0 + TIE_TOLERANCE * ordered.max()
    core_sums = _sum_cells(points, np.where(core, closest, -1), len(seeds))
    voronoi = _sum_cells(points, closest, len(seeds))
    centres = np.where(core_sums.counts[:, None] > 0, core_sums.means, voronoi.means)
    return lloyd_to_convergence(points, centres[voronoi.counts > 0])


def draw_seeds(
    X: FloatArray, weights: IntArray, n_seeds: int, rng: np.random.Generator
) -> FloatArray:
    """Return seeds (s, d) drawn from weighted points (m, d) by plain, not greedy, k-means++.

    Fewer than ``n_seeds`` if there are fewer distinct points.
    """
    seeds: list[FloatArray] = []
    gaps = np.ones(len(X))
    while len(seeds) < n_seeds and gaps.any():
        mass = np.cumsum(weights * gaps)
        drawn = int(np.searchsorted(mass, rng.random() * mass[-1], side="right"))
        seeds.append(X[min(drawn, len(X) - 1)])
        # Differences, not the expanded square: the gap between equal points must be 0.
        squares = ((X - seeds[-1]) ** 2).sum(axis=1)
        gaps = squares if len(seeds) == 1 else np.minimum(gaps, squares)
    return np.array(seeds)


def restarted_cells(
    points: Points,
    n_cells: int,
    n_init: int,
    rng: np.random.Generator,
    n_clusters: int | None = None,
) -> ClusterSums:
    """Return a site's cells by weighted k-means with restarts.

    Small cells in many dimensions follow noise and mix clusters. With ``n_clusters`` k-means
    therefore runs among the projections on the singular vectors of :func:`count_directions`. If
    there are no more cells than these vectors, the cells are large, and Lloyd continues from the
    result among the points themselves.

    Parameters
    ----------
    points : Points
        Scaled.
    n_cells, n_init : int
        The most cells, and the restarts.
    rng : numpy.random.Generator
    n_clusters : int, optional
        K, to project.
    """
    kept = None
    if n_clusters is not None:
        project, values = _singular_projection(points)
        # Constant columns hold no noise and must not count as dimensions of it.
        varying = int((points.X[0] != points.X).any(axis=0).sum())
        kept = count_directions(values, (len(points.X), varying), n_clusters)
    if kept is None:
        return local_kmeans(points, n_cells, n_init, rng)
    projected = replace(points, X=project(kept), within=np.zeros(kept))
    centres = local_kmeans(projected, n_cells, n_init, rng).means
    found = _sum_cells(points, nearest_centroid(projected.X, centres), len(centres))
    if n_cells > kept:
        return found
    return lloyd_to_convergence(points, found.means[found.counts > 0])


def count_directions(values: FloatArray, shape: tuple[int, int], n_clusters: int) -> int | None:
    """Return the number of singular vectors that separate clusters; the others are noise.

    Those with a singular value above the optimal threshold for noise of unknown level (Gavish &
    Donoho, "The optimal hard threshold for singular values is 4/sqrt(3)", 2014, equation 11), and
    at least sqrt(K): the clusters of a heterogeneous site (Definition 3.2) span as many directions.

    Parameters
    ----------
    values : (r,) float64
        All singular values of a site's points, descending.
    shape : tuple of int
        (m, d), of the columns that vary.
    n_clusters : int
        K. The means of K clusters span up to K directions.

    Returns
    -------
    int or None
        None: all, because there are at most K.
    """
    if not values.any():
        return None
    # Values from constant or repeated columns are rounding errors, not noise.
    values = values[values > _RANK_TOLERANCE * values[0]]
    if len(values) <= n_clusters:
        return None
    beta = len(values) / max(shape)
    omega = 0.56 * beta**3 - 0.95 * beta**2 + 1.82 * beta + 1.43
    found = int((values > omega * np.median(values)).sum())
    return max(found, int(np.ceil(np.sqrt(n_clusters))))


def _project_points(points: Points, n_vectors: int) -> FloatArray:
    """Return coordinates (m, r) in the span of the first singular vectors of X, not centred.

    Algorithm 1, line 2. Distances are those of the projections in the original space.
    """
    if n_vectors >= min(points.X.shape):
        return points.X
    return _singular_projection(points)[0](n_vectors)


def _singular_projection(points: Points) -> tuple[Callable[[int], FloatArray], FloatArray]:
    """Return a function that projects points on r singular vectors, and all values, descending.

    Points are weighted by persons: the mean of more persons has less noise, and so all noise has
    the same level. Computed from the smaller of the two matrices of products.
    """
    roots = np.sqrt(points.sizes)[:, None]
    X = points.X * roots
    wide = X.shape[1] > len(X)
    # Cached for the other numbers of clusters of a sweep.
    if "singular" not in points.derived:
        squares, vectors = np.linalg.eigh(X @ X.T if wide else X.T @ X)
        vectors = canonical_eigenbasis(squares / max(float(squares[-1]), 1e-300), vectors)[:, ::-1]
        points.derived["singular"] = squares, vectors
    squares, vectors = points.derived["singular"]
    values = np.sqrt(np.maximum(squares[::-1], 0.0))
    if wide:
        return lambda r: np.asarray(vectors[:, :r] * values[:r] / roots), values
    return lambda r: np.asarray(points.X @ vectors[:, :r]), values


def _sum_cells(points: Points, labels: IntArray, n_cells: int) -> ClusterSums:
    """Sum up points by cell, relative to the mean of all points."""
    centre = np.average(points.X, axis=0, weights=points.sizes)
    return cluster_sums(points, labels, np.tile(centre, (n_cells, 1)))


def lloyd_to_convergence(points: Points, centres: FloatArray) -> ClusterSums:
    """Run Lloyd steps until no point changes its cell (Algorithm 1, line 4).

    Starts from ``centres`` (K, d). A centre without points keeps its place.
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
