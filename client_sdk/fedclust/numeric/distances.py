"""Squared distances of rows from centroids, and the nearest centroid of each row."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedclust.numeric.canonical import nearest_tie_offsets, tolerant_argmin

#: Rows handled at once: bounds memory. Part of no result, for every row stands alone.
ROW_BLOCK = 8192
#: Rows in a step of a pass that does several things with each: these stay in the second cache.
STEP = 1024


def squared_distances(
    X: NDArray[np.float64], centroids: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return squared Euclidean distances (n, K) of rows (n, d) from centroids (K, d).

    One matrix product, about the centroids' mean: far from the origin the expanded square would
    otherwise cancel away.
    """
    origin = centroids.mean(axis=0)
    rows, centres = X - origin, centroids - origin
    product = rows @ (-2.0 * centres.T)
    product += np.einsum("ij,ij->i", rows, rows)[:, None]
    product += np.einsum("ij,ij->i", centres, centres)
    return np.asarray(np.maximum(product, 0.0, out=product))


def masked_squared_distances(
    X: NDArray[np.float64],
    mask: NDArray[np.bool_],
    centroids: NDArray[np.float64],
    known: NDArray[np.bool_] | None,
) -> NDArray[np.float64]:
    """Return squared distances (n, K) of rows from centroids over the features that both have.

    The mean over the shared features, times d, so that rows that lack different features can be
    compared; the plain squared distance where nothing is lacking; infinite where none is shared.

    Parameters
    ----------
    X : (n, d) float64
        Rows that all have the features of ``mask`` (d,).
    centroids : (K, d) float64
    known : (K, d) bool or None
        Where they are known; None: everywhere.
    """
    if mask.all() and (known is None or known.all()):
        return squared_distances(X, centroids)
    shared = np.broadcast_to(mask, centroids.shape) if known is None else known & mask
    counts = shared.sum(axis=1)
    rows, centres = X[:, mask], centroids[:, mask]
    offsets = shared[:, mask].astype(np.float64)
    # About the mean of what is known: expanded squares would cancel away far from the origin.
    origin = (centres * offsets).sum(axis=0) / np.maximum(offsets.sum(axis=0), 1.0)
    rows, centres = rows - origin, (centres - origin) * offsets
    squares = rows**2 @ offsets.T - 2.0 * (rows @ centres.T) + (centres**2).sum(axis=1)
    squares = np.maximum(squares, 0.0) * (X.shape[1] / np.maximum(counts, 1))
    squares[:, counts == 0] = np.inf
    return np.asarray(squares)


def first_occurrences(centroids: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the indices, ascending, of the first of each group of equal centroids (K, d)."""
    first: dict[bytes, int] = {}
    # Adding 0.0 turns -0.0, which is the same value, into 0.0.
    for k, centroid in enumerate(centroids + 0.0):
        first.setdefault(centroid.tobytes(), k)
    return np.array(list(first.values()), dtype=np.int64)


class Centre:
    """A ``point`` (d,) amid some centroids, and up to ``m`` rows as offsets from it."""

    def __init__(self, point: NDArray[np.float64], m: int) -> None:
        self.point = point
        self._points = _repeated(point, m)
        self._offsets = np.empty_like(self._points)

    def offsets(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the offsets (m, d), float64, of rows (m, d); until the next call."""
        m = len(rows)
        return np.subtract(rows, self._points[:m], out=self._offsets[:m])


def centre_of(centroids: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean (d,) of the distinct ones of some centroids (K, d)."""
    return np.asarray(centroids[first_occurrences(centroids)].mean(axis=0))


class Finder:
    """Finds the nearest of some centroids (K, d), up to ``m`` rows at a time.

    Among equal centroids the first takes all rows: a matrix product may give equal columns
    different last bits, so the others do not compete. Ties, but for rounding, go to the lowest.
    """

    def __init__(self, centroids: NDArray[np.float64], m: int = 0) -> None:
        kept = first_occurrences(centroids)
        self._kept = None if len(kept) == len(centroids) else kept
        # About their mean: far from the origin the expanded square would otherwise cancel away.
        point = centre_of(centroids)
        centres = centroids[kept] - point
        self._directions = np.ascontiguousarray(-2.0 * centres.T)
        squares = np.einsum("ij,ij->i", centres, centres)
        self._norms = squares + nearest_tie_offsets(squares)
        self.centre = Centre(point, m)
        self._every_norm = _repeated(self._norms, m)
        self._gaps = np.empty_like(self._every_norm)

    def find(self, rows: NDArray[np.float64], out: NDArray[np.int64]) -> NDArray[np.float64]:
        """Write the nearest centroid of each row (m, d), float32 or float64, to ``out`` (m,).

        Returns the rows' offsets (m, d) from ``centre``, until the next call.
        """
        m = len(rows)
        centred = self.centre.offsets(rows)
        # Squared distances less the row's own square, which is the same for all centroids.
        gaps = np.matmul(centred, self._directions, out=self._gaps[:m])
        gaps += self._every_norm[:m]
        found = gaps.argmin(axis=1)
        out[...] = found if self._kept is None else self._kept[found]
        return centred


def _repeated(row: NDArray[np.float64], m: int) -> NDArray[np.float64]:
    """Return a row (d,) ``m`` times: to broadcast a short one costs more."""
    rows = np.empty((m, len(row)))
    rows[:] = row
    return rows


def nearest_centroid(
    X: NDArray[np.float64],
    centroids: NDArray[np.float64],
    known: NDArray[np.bool_] | None = None,
) -> NDArray[np.int64]:
    """Return the index of the nearest centroid (K, d) of each row (n, d); see :class:`Finder`.

    With ``known`` (K, d) only known entries count, see :func:`masked_squared_distances`; a row that
    shares no feature with any centroid goes to the first.
    """
    labels = np.empty(len(X), dtype=np.int64)
    if not len(X):
        return labels
    if known is None or known.all():
        finder = Finder(centroids, min(STEP, len(X)))
        for begin in range(0, len(X), STEP):
            finder.find(X[begin : begin + STEP], labels[begin : begin + STEP])
        return labels
    kept = first_occurrences(np.column_stack([centroids * known, known]))
    distinct, seen = centroids[kept], known[kept]
    every = np.ones(centroids.shape[1], dtype=np.bool_)
    for begin in range(0, len(X), ROW_BLOCK):
        squares = masked_squared_distances(X[begin : begin + ROW_BLOCK], every, distinct, seen)
        labels[begin : begin + ROW_BLOCK] = kept[tolerant_argmin(squares)]
    return labels
