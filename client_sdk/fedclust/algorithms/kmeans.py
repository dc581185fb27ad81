"""Weighted k-means at the coordinator: from the sites' cell means to the first global centroids.

References
----------
Arthur & Vassilvitskii, "k-means++: the advantages of careful seeding", SODA 2007.
Gonzalez, "Clustering to minimize the maximum intercluster distance", 1985 (farthest first).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedclust.algorithms.assigning import squared_distances

_MAX_ITERATIONS = 300
_TOLERANCE = 1e-12
_MAX_RESTARTS = 50
#: Multiply-adds that the random restarts may cost together, about ten iterations each.
_WORK = 2_000_000_000


def restarts(n_points: int, n_features: int, n_clusters: int) -> int:
    """Return the number of random restarts: 50, fewer where they are dear, never below 2.

    A fixed rule of the sizes: a clock would make the result depend on the machine.
    """
    cost = 10 * n_points * n_features * n_clusters
    return int(np.clip(_WORK // max(cost, 1), 2, _MAX_RESTARTS))


def weighted_kmeans(
    points: NDArray[np.float64],
    weights: NDArray[np.float64],
    n_clusters: int,
    rng: np.random.Generator,
    n_restarts: int | None = None,
) -> NDArray[np.float64]:
    """Cluster weighted points and return the centroids of the lowest weighted inertia.

    Starts: one farthest-first (deterministic), then k-means++ restarts.

    Parameters
    ----------
    points : (m, d) float64
    weights : (m,) float64, positive
    n_clusters : int
    rng : numpy.random.Generator
    n_restarts : int, optional
        Random restarts; by default :func:`restarts`.

    Returns
    -------
    (K', d) float64
        K' is the smaller of ``n_clusters`` and the number of distinct points.
    """
    points, weights = _merge_equal(points, weights)
    if len(points) <= n_clusters:
        return points
    if n_restarts is None:
        n_restarts = restarts(len(points), points.shape[1], n_clusters)
    best, best_inertia = _lloyd(points, weights, _farthest_first(points, weights, n_clusters))
    for _ in range(n_restarts):
        seeds = _plus_plus(points, weights, n_clusters, rng)
        centroids, inertia = _lloyd(points, weights, seeds)
        if inertia < best_inertia:
            best, best_inertia = centroids, inertia
    return best


def _merge_equal(
    points: NDArray[np.float64], weights: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    distinct, inverse = np.unique(points + 0.0, axis=0, return_inverse=True)
    mass = np.zeros(len(distinct))
    np.add.at(mass, inverse.reshape(-1), weights)
    return distinct, mass


def _farthest_first(
    points: NDArray[np.float64], weights: NDArray[np.float64], n_clusters: int
) -> NDArray[np.float64]:
    """Seeds (K, d): the point nearest the weighted mean, then always the farthest from all."""
    mean = np.average(points, axis=0, weights=weights)
    chosen = [int(squared_distances(points, mean[None]).argmin())]
    gap = squared_distances(points, points[chosen[0]][None])[:, 0]
    while len(chosen) < n_clusters:
        chosen.append(int(gap.argmax()))
        np.minimum(gap, squared_distances(points, points[chosen[-1]][None])[:, 0], out=gap)
    return points[chosen]


def _plus_plus(
    points: NDArray[np.float64],
    weights: NDArray[np.float64],
    n_clusters: int,
    rng: np.random.Generator,
) -> NDArray[np.float64]:
    """Seeds (K, d) by weighted k-means++."""
    chosen = [_draw(weights, rng)]
    gap = squared_distances(points, points[chosen[0]][None])[:, 0]
    while len(chosen) < n_clusters:
        # Underflow can leave no mass although distinct points remain: then by weight alone.
        mass = weights * gap
        chosen.append(_draw(mass if mass.sum() > 0 else weights, rng))
        np.minimum(gap, squared_distances(points, points[chosen[-1]][None])[:, 0], out=gap)
    return points[chosen]


def _draw(mass: NDArray[np.float64], rng: np.random.Generator) -> int:
    cumulative = np.cumsum(mass)
    index = np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right")
    return int(min(index, len(mass) - 1))


def _lloyd(
    points: NDArray[np.float64], weights: NDArray[np.float64], centroids: NDArray[np.float64]
) -> tuple[NDArray[np.float64], float]:
    """Lloyd iterations to convergence; an empty cluster takes the dearest point."""
    centroids = centroids.copy()
    n_clusters = len(centroids)
    previous = np.inf
    rows = np.arange(len(points))
    for _ in range(_MAX_ITERATIONS):
        distances = squared_distances(points, centroids)
        labels = distances.argmin(axis=1)
        costs = weights * distances[rows, labels]
        inertia = float(costs.sum())
        if inertia >= previous * (1.0 - _TOLERANCE):
            break
        previous = inertia
        members = np.zeros((n_clusters, len(points)))
        members[labels, rows] = weights
        mass = members.sum(axis=1)
        filled = mass > 0
        centroids[filled] = (members @ points)[filled] / mass[filled, None]
        for k in np.flatnonzero(~filled):
            dearest = int(costs.argmax())
            centroids[k] = points[dearest]
            costs[dearest] = 0.0
    return centroids, inertia
