"""Gower's dissimilarity: absolute differences over ranges, and clusters' medians and modes.

Gower, "A general coefficient of similarity and some of its properties", Biometrics 27, 1971. A
number counts with its absolute difference over its range, a category with 0 or 1; the dissimilarity
is the mean over features, each times its weight. In the space of ``schema.scaling.declared_space``
it is the sum of the columns' absolute differences.

The centre with the least sum of dissimilarities holds medians and modes. Medians do not follow from
sums of values. They follow from sums of codes: a number's range is cut into ``N_CELLS`` cells, and
the code of a value says how much of each cell lies below it. From a cluster's mean codes the cost
of every border between two cells is known exactly, so the best of these borders is found exactly.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedclust.numeric.array_types import FloatArray, IntArray
from fedclust.numeric.canonical import TIE_TOLERANCE, tolerant_argmin
from fedclust.numeric.distances import ROW_BLOCK
from fedclust.numeric.modes import ModeRule

#: Cells of a number's range. A centre's number is one of their borders.
N_CELLS = 100


def gower_dissimilarities(X: FloatArray, centroids: FloatArray) -> FloatArray:
    """Return the dissimilarities (n, K) of scaled rows (n, d) and centroids (K, d)."""
    found = np.zeros((len(X), len(centroids)))
    for values, centres in zip(X.T, centroids.T, strict=True):
        found += np.abs(values[:, None] - centres)
    return found


def own_dissimilarities(X: FloatArray, centroids: FloatArray, labels: IntArray) -> FloatArray:
    """Return the dissimilarity (n,) of each scaled row (n, d) and the centroid of its label."""
    found = np.zeros(len(X))
    for values, centres in zip(X.T, centroids.T, strict=True):
        found += np.abs(values - centres[labels])
    return found


def nearest_by_gower(X: FloatArray, centroids: FloatArray) -> IntArray:
    """Return the index (n,) of the nearest centroid of each row; ties go to the lowest index."""
    labels = np.empty(len(X), dtype=np.int64)
    for begin in range(0, len(X), ROW_BLOCK):
        block = slice(begin, begin + ROW_BLOCK)
        labels[block] = tolerant_argmin(gower_dissimilarities(X[block], centroids))
    return labels


@dataclass(frozen=True)
class MedianRule:
    """Codes of points, and the centroids that follow from clusters' mean codes.

    A code has ``N_CELLS`` entries for a number and one for any other column, from 0 to 1.

    Attributes
    ----------
    blocks : sequence of (L,) int64
        The columns of each yes/no feature and each category, as in :class:`ModeRule`.
    ones : (d,) float64
        The scaled value of a number's upper bound, and of a share of 1; that of the others is 0.
    """

    blocks: Sequence[IntArray]
    ones: FloatArray

    @property
    def widths(self) -> IntArray:
        """Entries (d,) of each column in a code."""
        found = np.full(len(self.ones), N_CELLS, dtype=np.int64)
        for block in self.blocks:
            found[block] = 1
        return found

    @property
    def width(self) -> int:
        """Entries of a code."""
        return int(self.widths.sum())

    def add_up(
        self, X: FloatArray, sizes: IntArray, labels: IntArray, n_clusters: int
    ) -> FloatArray:
        """Return the sums (K, D) of the codes of weighted points (m, d) with ``labels`` (m,)."""
        parts = []
        for values, one, width in zip(X.T, self.ones, self.widths, strict=True):
            shares = np.clip(values / one, 0.0, 1.0)
            if width == 1:
                sums = np.bincount(labels, weights=sizes * shares, minlength=n_clusters)
                parts.append(sums[:, None])
                continue
            places = shares * N_CELLS
            cells = np.minimum(places.astype(np.int64), N_CELLS - 1)
            flat = labels * N_CELLS + cells
            shape, length = (n_clusters, N_CELLS), n_clusters * N_CELLS
            held = np.bincount(flat, weights=sizes, minlength=length).reshape(shape)
            partly = np.bincount(flat, weights=sizes * (places - cells), minlength=length)
            above = held[:, ::-1].cumsum(axis=1)[:, ::-1] - held
            parts.append(above + partly.reshape(shape))
        return np.concatenate(parts, axis=1)

    def means(self, codes: FloatArray) -> FloatArray:
        """Return clusters' means (K, d), scaled, from their mean codes (K, D)."""
        starts = np.append(0, np.cumsum(self.widths)[:-1])
        return np.asarray(np.add.reduceat(codes, starts, axis=1) / self.widths * self.ones)

    def __call__(self, codes: FloatArray) -> FloatArray:
        """Return the centroids (K, d), scaled, of clusters with mean codes (K, D).

        Of two borders of the same cost a number gets the lower one.
        """
        centroids = self.means(codes)
        ends = np.cumsum(self.widths)
        for j, (width, end) in enumerate(zip(self.widths, ends, strict=True)):
            if width > 1:
                # The share of persons above a cell's middle falls from cell to cell.
                above = codes[:, end - width : end] > 0.5 + TIE_TOLERANCE
                centroids[:, j] = above.sum(axis=1) * (self.ones[j] / N_CELLS)
        return ModeRule(self.blocks, self.ones)(centroids)
