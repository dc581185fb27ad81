"""Ward's agglomeration of weighted points: a tree, and a deterministic start for k-means.

References
----------
Ward, "Hierarchical grouping to optimize an objective function", JASA 1963.
Murtagh, "A survey of recent advances in hierarchical clustering algorithms", 1983 (the
nearest-neighbour chain, which finds the same merges in O(m^2 d)).
"""

import math

import numpy as np

from fedclust.numeric.array_types import FloatArray, IntArray
from fedclust.numeric.canonical import TIE_TOLERANCE, tolerant_argmin, tolerant_argsort

#: The most multiply-adds of one agglomeration, which takes about _PASSES passes over all pairs.
_MAX_WORK = 4_000_000_000
_PASSES = 6


def affordable_points(n_features: int) -> int:
    """Return the most points with so many features to agglomerate: some seconds."""
    return math.isqrt(_MAX_WORK // (_PASSES * max(n_features, 1)))


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
    groups = cut_merges(ward_merges(points, weights), n_clusters)
    return group_means(points, weights, groups)


def ward_merges(points: FloatArray, weights: FloatArray) -> FloatArray:
    """Return all merges of points (m, d) with weights (m,), those that add least inertia first.

    Returns
    -------
    (m - 1, 3) float64
        Of each merge a point of each of the two groups, and the inertia that it adds.
    """
    merges = _merges(points, weights)
    # The chain finds merges out of order. A merge never costs less than those it contains.
    return merges[tolerant_argsort(merges[:, 2])]


def cut_merges(
    merges: FloatArray | IntArray, n_clusters: int, n_points: int | None = None
) -> IntArray:
    """Return the group (m,) of each point once ``n_clusters`` are left of m.

    Groups are numbered by their first points. By default m is one more than there are merges.
    """
    size = n_points or len(merges) + 1
    group = np.arange(size)
    for first, second in merges[: max(size - n_clusters, 0), :2].astype(np.intp):
        a, b = group[first], group[second]
        group[group == max(a, b)] = min(a, b)
    return np.unique(group, return_inverse=True)[1].astype(np.int64)


def group_means(points: FloatArray, weights: FloatArray, groups: IntArray) -> FloatArray:
    """Return the weighted means (K, d) of the groups of points (m, d)."""
    sizes = np.bincount(groups, weights=weights)
    sums = np.zeros((len(sizes), points.shape[1]))
    np.add.at(sums, groups, points * weights[:, None])
    return sums / sizes[:, None]


def _merges(points: FloatArray, weights: FloatArray) -> FloatArray:
    """Return :func:`ward_merges` in the order in which the chain finds them."""
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
