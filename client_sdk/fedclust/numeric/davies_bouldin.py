"""The Davies-Bouldin index: how wide clusters are compared with the distances between them."""

from __future__ import annotations

import numpy as np

from fedclust.numeric.array_types import FloatArray, IntArray


def davies_bouldin(apart: FloatArray, counts: IntArray, distances: FloatArray) -> float | None:
    """Return the index over the clusters that hold persons; None with fewer than two of them.

    Parameters
    ----------
    apart : (K, K) float64
        Distances between centroids; infinite where two share no feature.
    counts : (K,) int64
        Persons.
    distances : (K,) float64
        Sums of the persons' distances from their centroid.
    """
    filled = counts > 0
    if filled.sum() < 2:
        return None
    spread = distances[filled] / counts[filled]
    apart = apart[filled][:, filled]
    # Clusters that share no feature, or that do not differ in those, are not compared.
    np.fill_diagonal(apart, np.inf)
    apart[apart == 0] = np.inf
    return float(((spread[:, None] + spread[None, :]) / apart).max(axis=1).mean())
