"""Nearest centroids: one routine for every method, at a site and for new rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedclust.algorithms.base import Result, RuleViolation, Space

#: Rows handled at once: bounds memory. Part of no result, for every row stands alone.
BLOCK = 8192


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


def first_occurrences(centroids: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the indices, ascending, of the first of each group of equal centroids (K, d)."""
    # Adding 0.0 turns -0.0 into 0.0: the two compare equal but do not sort as one.
    _, first = np.unique(centroids + 0.0, axis=0, return_index=True)
    return np.sort(first).astype(np.int64)


def nearest(X: NDArray[np.float64], centroids: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the index of the nearest centroid (K, d) of each row (n, d); ties to the lowest.

    Among equal centroids the first takes all rows: a matrix product may give equal columns
    different last bits, so the others do not compete.
    """
    kept = first_occurrences(centroids)
    distinct = centroids[kept]
    labels = np.empty(len(X), dtype=np.int64)
    for begin in range(0, len(X), BLOCK):
        block = slice(begin, begin + BLOCK)
        labels[block] = kept[squared_distances(X[block], distinct).argmin(axis=1)]
    return labels


def refuse_infinite(X: NDArray[np.float64], names: tuple[str, ...] = ()) -> None:
    """Refuse infinite values in rows (n, d); the RuleViolation names each column and count."""
    counts = np.isinf(X).sum(axis=0)
    if counts.any():
        found = ", ".join(
            f"{names[j] if names else f'column {j}'!r}: {counts[j]}" for j in np.flatnonzero(counts)
        )
        raise RuleViolation(
            "finite", f"infinite values ({found}): replace them or mark them as missing"
        )


def label_by_centroid(result: Result, X: NDArray[np.float64]) -> NDArray[np.int64]:
    """Label rows (n, d) in own units by the nearest centroid; -1 for rows with missing values.

    Where the session imputes, missing values are imputed and every row gets a label.
    """
    rows = np.asarray(X, dtype=np.float64)
    if rows.ndim != 2 or rows.shape[1] != result.centroids.shape[1]:
        raise RuleViolation(
            "shape", f"rows must have {result.centroids.shape[1]} columns, those of the session"
        )
    refuse_infinite(rows)
    if result.impute is not None:
        rows = np.where(np.isnan(rows), result.impute, rows)
    complete = ~np.isnan(rows).any(axis=1)
    labels = np.full(len(rows), -1, dtype=np.int64)
    space = Space(result.center, result.scale)
    if complete.all():
        return nearest(space.to_scaled(rows), result.centroids)
    labels[complete] = nearest(space.to_scaled(rows[complete]), result.centroids)
    return labels
