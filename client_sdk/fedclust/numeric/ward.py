"""Ward's agglomeration of weighted points: a start for k-means that no draw can spoil.

References
----------
Ward, "Hierarchical grouping to optimize an objective function", JASA 1963.
Murtagh, "A survey of recent advances in hierarchical clustering algorithms", 1983 (the chain of
nearest neighbours, which finds the same merges in O(m^2 d)).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedclust.numeric.canonical import TIE_TOLERANCE, tolerant_argmin, tolerant_argsort

FloatArray = NDArray[np.float64]
#: Multiply-adds that an agglomeration may take; about six passes over all pairs.
_WORK = 4_000_000_000


def affordable(n_points: int, n_features: int) -> bool:
    """Whether so many points may be agglomerated: a fixed rule of the sizes."""
    return 6 * n_points * n_points * n_features <= _WORK


def ward_means(points: FloatArray, weights: FloatArray, n_clusters: int) -> FloatArray:
    """Merge points until ``n_clusters`` are left, always the pair that costs least inertia.

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
    # The chain finds merges out of order; Ward's costs never fall from child to parent.
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
    """Return (m - 1, 3): a point of each of the two groups, and what their merger costs."""
    origin = np.average(points, axis=0, weights=weights)
    centres, mass = points - origin, weights.astype(np.float64)
    squares = np.einsum("ij,ij->i", centres, centres)
    alive = np.ones(len(points), dtype=np.bool_)
    found: list[tuple[float, float, float]] = []
    chain: list[int] = []
    links: list[float] = []
    while len(found) < len(points) - 1:
        if not chain:
            chain.append(int(alive.argmax()))
        while True:
            last = chain[-1]
            gaps = squares + squares[last] - 2.0 * (centres @ centres[last])
            costs = np.maximum(gaps, 0.0) * (mass * mass[last] / (mass + mass[last]))
            costs[~alive] = np.inf
            # The one before is nearest unless another is nearer; those before it never are, but for
            # rounding, which must not bring the chain back to them.
            costs[chain] = np.inf
            nearest = int(tolerant_argmin(costs))
            if links and costs[nearest] >= links[-1] * (1.0 - TIE_TOLERANCE):
                break
            chain.append(nearest)
            links.append(float(costs[nearest]))
        keep, gone = sorted(chain[-2:])
        found.append((keep, gone, links.pop()))
        del chain[-2:], links[-1:]
        whole = mass[keep] + mass[gone]
        centres[keep] = (mass[keep] * centres[keep] + mass[gone] * centres[gone]) / whole
        squares[keep] = centres[keep] @ centres[keep]
        mass[keep], alive[gone] = whole, False
    return np.array(found).reshape(-1, 3)
