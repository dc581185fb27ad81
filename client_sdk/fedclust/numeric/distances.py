"""Distances from rows to centroids, the nearest centroid of each row, and where centroids go.

k-prototypes (Huang, "Extensions to the k-means algorithm for clustering large data sets with
categorical values", Data Mining and Knowledge Discovery 2, 1998): his cost of a point is the
squared distance of its numbers from the centroid's, and gamma for each category in which it
differs. Where a category's columns hold 1 for the level and 0 for the others, times the root of
gamma / 2, the squared distance to a centroid of such columns is that cost. So sums of points are
enough to move a centroid.

Gower's dissimilarity ("A general coefficient of similarity and some of its properties", Biometrics
27, 1971): a number counts with its absolute difference over its range, a category with 0 or 1; the
dissimilarity is the mean over features, each times its weight. In the space of
``schema.scaling.declared_space`` it is the sum of the columns' absolute differences.

The centre with the least sum of Gower's dissimilarities holds medians and modes. Medians do not
follow from sums of values. They follow from sums of codes: a number's range is cut into ``N_CELLS``
cells, and the code of a value says how much of each cell lies below it. From a cluster's mean codes
the cost of every border between two cells is known exactly, so the best of these borders is found
exactly.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from fedclust.numeric.array_types import BoolArray, FloatArray, IntArray
from fedclust.numeric.canonical import TIE_TOLERANCE, tolerant_argmax, tolerant_argmin

#: Rows per matrix product where memory is the limit. Does not affect results.
ROW_BLOCK = 8192
#: Rows per step in nearest_centroid: its buffers stay in the second-level cache.
_CACHE_ROWS = 1024
#: Squared distances to centroids count as equal if they differ by at most this, relative to the
#: squared width of all centroids. A larger value would treat centroids as equal that are a
#: millionth of the width apart.
_NEAREST_TIE_TOLERANCE = 1e-14


def squared_distances(X: FloatArray, centroids: FloatArray) -> FloatArray:
    """Return squared Euclidean distances (n, K) from rows (n, d) to centroids (K, d).

    By one matrix product, relative to the centroids' mean: far from the origin the expanded square
    loses digits by cancellation.
    """
    origin = centroids.mean(axis=0)
    rows, centres = X - origin, centroids - origin
    squares = rows @ (-2.0 * centres.T)
    squares += np.einsum("ij,ij->i", rows, rows)[:, None]
    squares += np.einsum("ij,ij->i", centres, centres)
    return np.asarray(np.maximum(squares, 0.0, out=squares))


def masked_squared_distances(
    X: FloatArray, mask: BoolArray, centroids: FloatArray, known: BoolArray | None
) -> FloatArray:
    """Return squared distances (n, K) from rows to centroids over the features that both have.

    The mean squared difference over the shared features, times d, so that distances over different
    features are comparable. Infinite where no feature is shared.

    Parameters
    ----------
    X : (n, d) float64
    mask : (d,) bool
        The features that the rows have.
    centroids : (K, d) float64
    known : (K, d) bool or None
        The entries of ``centroids`` that are known. None: all.
    """
    if mask.all() and (known is None or known.all()):
        return squared_distances(X, centroids)
    shared = np.broadcast_to(mask, centroids.shape) if known is None else known & mask
    counts = shared.sum(axis=1)
    rows, centres = X[:, mask], centroids[:, mask]
    weights = shared[:, mask].astype(np.float64)
    # Relative to the mean of the known entries: see squared_distances.
    origin = (centres * weights).sum(axis=0) / np.maximum(weights.sum(axis=0), 1.0)
    rows, centres = rows - origin, (centres - origin) * weights
    squares = rows**2 @ weights.T - 2.0 * (rows @ centres.T) + (centres**2).sum(axis=1)
    squares = np.maximum(squares, 0.0) * (X.shape[1] / np.maximum(counts, 1))
    squares[:, counts == 0] = np.inf
    return np.asarray(squares)


def first_occurrences(centroids: FloatArray) -> IntArray:
    """Return the ascending indices (K',) of the first of each set of equal centroids (K, d)."""
    first: dict[bytes, int] = {}
    # Adding 0.0 turns -0.0 into 0.0, which is the same value.
    for k, centroid in enumerate(centroids + 0.0):
        first.setdefault(centroid.tobytes(), k)
    return np.array(list(first.values()), dtype=np.int64)


def nearest_tie_offsets(squared_norms: FloatArray) -> FloatArray:
    """Return offsets (K,) that, added to squared distances, let the first centroid win ties.

    Parameters
    ----------
    squared_norms : (K,) float64
        The centroids' squared lengths. The offsets are far above rounding errors and far below
        differences between distinct centroids.
    """
    scale = _NEAREST_TIE_TOLERANCE * squared_norms.max(initial=0.0)
    return np.asarray(scale * np.arange(len(squared_norms)))


def nearest_centroid(
    X: FloatArray, centroids: FloatArray, known: BoolArray | None = None
) -> IntArray:
    """Return the index (n,) of the nearest centroid of each row; ties go to the lowest index.

    Parameters
    ----------
    X : (n, d) float32 or float64
    centroids : (K, d) float64
    known : (K, d) bool, optional
        The entries of ``centroids`` that count, as in :func:`masked_squared_distances`. A row that
        shares no feature with any centroid gets index 0.
    """
    if known is not None and not known.all():
        return _nearest_known_centroid(X, centroids, known)
    labels = np.empty(len(X), dtype=np.int64)
    # A matrix product may give equal columns different last bits: only the first one competes.
    kept = first_occurrences(centroids)
    origin = centroids[kept].mean(axis=0)
    centres = centroids[kept] - origin
    directions = np.ascontiguousarray(-2.0 * centres.T)
    norms = np.einsum("ij,ij->i", centres, centres)
    norms += nearest_tie_offsets(norms)
    for begin in range(0, len(X), _CACHE_ROWS):
        block = slice(begin, begin + _CACHE_ROWS)
        # Squared distances less the row's own square, which all centroids share.
        gaps = (X[block] - origin) @ directions + norms
        labels[block] = kept[gaps.argmin(axis=1)]
    return labels


def _nearest_known_centroid(X: FloatArray, centroids: FloatArray, known: BoolArray) -> IntArray:
    labels = np.empty(len(X), dtype=np.int64)
    kept = first_occurrences(np.column_stack([centroids * known, known]))
    all_features = np.ones(centroids.shape[1], dtype=np.bool_)
    for begin in range(0, len(X), ROW_BLOCK):
        rows = X[begin : begin + ROW_BLOCK]
        squares = masked_squared_distances(rows, all_features, centroids[kept], known[kept])
        labels[begin : begin + ROW_BLOCK] = kept[tolerant_argmin(squares)]
    return labels


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
