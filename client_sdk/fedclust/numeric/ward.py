"""Ward's agglomeration of weighted points: a deterministic start for k-means.

References
----------
Ward, "Hierarchical grouping to optimize an objective function", JASA 1963.
Murtagh, "A survey of recent advances in hierarchical clustering algorithms", 1983 (the
nearest-neighbour chain, which finds the same merges in O(m^2 d)).
"""

from __future__ import annotations

import numpy as np

from fedclust.numeric.array_types import FloatArray
from fedclust.numeric.canonical import TIE_TOLERANCE, tolerant_argmin, tolerant_argsort

#: The most multiply-adds of one agglomeration, which takes about _PASSES passes over all pairs.
_MAX_WORK = 4_000_000_000
_PASSES = 6


def ward_is_affordable(n_points: int, n_features: int) -> bool:
    """Return whether points (n_points, n_features) are few enough to agglomerate."""
    return _PASSES * n_points * n_points * n_features <= _MAX_WORK


def ward_means(points: FloatArray, weights: FloatArray, n_clusters: int) -> FloatArray:
    """Merge points into ``n_clusters`` groups, each time the pair that adds the least inertia.

    Parameters
    ----------
    points : (m, d) float64
        At least ``n_clusters``.
    weights : (m,) float64, positive
    n_clusters : int

    Returns
    -------
    (K, d) float64
        The weighted means of the groups, in the order of their first points.
    """
    size = len(points)
    merges = _merges(points, weights)
    # The chain finds merges out of order. A merge never costs less than those it contains.
    order = tolerant_argsort(merges[:, 2])[: size - n_clusters]
    group = np.arange(size)
    for first, second in merges[order, :2].astype(np.intp):
        a, b = group[first], group[second]
        group[group == max(a, b)] = min(a, b)
    kept, labels = np.unique(group, return_inverse=True)
    sums = np.zeros((len(kept), points.shape[1]))
    np.add.at(sums, labels, points * weights[:, None])
    return sums / np.bincount(labels, weights=weights)[:, None]


def _merges(points: FloatArray, weights: FloatArray) -> FloatArray:
    """Return (m - 1, 3): a point of each of the two groups, and the cost of merging them."""
    origin = np.average(points, axis=0, weights=weights)
    centres, mass = points - origin, weights.astype(np.float64)
    squares = np.einsum("ij,ij->i", centres, centres)
    alive = np.ones(len(points), dtype=np.bool_)
    merges: list[tuple[float, float, float]] = []
    chain: list[int] = []
    links: list[float] = []
    while len(merges) < len(points) - 1:
        if not chain:
            chain.append(int(alive.argmax()))
        while True:
            last = chain[-1]
            gaps = squares + squares[last] - 2.0 * (centres @ centres[last])
            costs = np.maximum(gaps, 0.0) * (mass * mass[last] / (mass + mass[last]))
            costs[~alive] = np.inf
            # Exclude earlier links: only by rounding could one of them be nearest again.
            costs[chain] = np.inf
            nearest = int(tolerant_argmin(costs))
            if links and costs[nearest] >= links[-1] * (1.0 - TIE_TOLERANCE):
                break
            chain.append(nearest)
            links.append(float(costs[nearest]))
        kept, gone = sorted(chain[-2:])
        merges.append((kept, gone, links.pop()))
        del chain[-2:], links[-1:]
        total = mass[kept] + mass[gone]
        centres[kept] = (mass[kept] * centres[kept] + mass[gone] * centres[gone]) / total
        squares[kept] = centres[kept] @ centres[kept]
        mass[kept], alive[gone] = total, False
    return np.array(merges).reshape(-1, 3)
