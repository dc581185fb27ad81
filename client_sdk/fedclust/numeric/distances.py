"""Squared distances from rows to centroids, and the nearest centroid of each row."""

import numpy as np

from fedclust.numeric.array_types import BoolArray, FloatArray, IntArray
from fedclust.numeric.canonical import tolerant_argmin

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
