"""Centroids of k-prototypes: means of numbers, the commonest level of a category.

Huang, "Extensions to the k-means algorithm for clustering large data sets with categorical values",
Data Mining and Knowledge Discovery 2, 1998. His cost of a point is the squared distance of its
numbers from the centroid's, and gamma for each category in which it differs. Where a category's
columns hold 1 for the level and 0 for the others, times the root of gamma / 2, the squared distance
to a centroid of such columns is that cost. So sums of points are enough to move a centroid.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from fedclust.numeric.array_types import FloatArray, IntArray
from fedclust.numeric.canonical import tolerant_argmax

#: What makes clusters' centroids (K, d) of their means (K, d).
CentroidRule: TypeAlias = Callable[[FloatArray], FloatArray]


def keep_means(means: FloatArray) -> FloatArray:
    """Return the means: the centroids of k-means."""
    return means


@dataclass(frozen=True)
class ModeRule:
    """Replaces a category's shares by its commonest level; of equal ones the first, or no.

    Attributes
    ----------
    blocks : sequence of (L,) int64
        The columns of each category: one for a yes/no feature, otherwise one for each level.
    ones : (d,) float64
        The scaled value of a share of 1; that of 0 is 0.
    """

    blocks: Sequence[IntArray]
    ones: FloatArray

    def __call__(self, means: FloatArray) -> FloatArray:
        """Return the centroids (K, d) of clusters with ``means`` (K, d)."""
        centroids = means.copy()
        for block in self.blocks:
            shares = means[:, block] / self.ones[block]
            if len(block) == 1:
                shares = np.column_stack([1.0 - shares, shares])
            modes = np.eye(shares.shape[1])[tolerant_argmax(shares)][:, -len(block) :]
            centroids[:, block] = modes * self.ones[block]
        return centroids
