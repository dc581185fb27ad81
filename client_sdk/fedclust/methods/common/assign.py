"""Labels of rows in own units by the centroids of a result."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedclust.numeric.distances import ROW_BLOCK, masked_squared_distances, nearest_centroid
from fedclust.schema.errors import RuleViolation
from fedclust.schema.model import Memory
from fedclust.schema.result import Result


def refuse_infinite(X: NDArray[np.float64], names: tuple[str, ...] = ()) -> None:
    """Refuse infinite values in rows (n, d); the RuleViolation names each column and count."""
    refuse_counted(np.isinf(X).sum(axis=0), names)


def refuse_counted(counts: NDArray[np.int64], names: tuple[str, ...] = ()) -> None:
    """Raise RuleViolation where any of the columns (d,) has infinite values, so many of them."""
    if counts.any():
        found = ", ".join(
            f"{names[j] if names else f'column {j}'!r}: {counts[j]}" for j in np.flatnonzero(counts)
        )
        raise RuleViolation(
            "finite", f"infinite values ({found}): replace them or mark them as missing"
        )


def scale_rows(result: Result, X: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return rows (n, d) in own units, scaled; missing values imputed where the session imputes."""
    rows = np.asarray(X, dtype=np.float64)
    if result.impute is not None:
        rows = np.where(np.isnan(rows), result.impute, rows)
    return result.space.to_scaled(rows)


def label_by_centroid(result: Result, X: NDArray[np.float64]) -> NDArray[np.int64]:
    """Label rows (n, d) in own units by the nearest prototype or centroid.

    -1 for rows with missing values. Where the session imputes, they are imputed and every row
    gets a label. Where it masks, columns without any value are features that these rows lack:
    the others decide; -1 where no cluster is known by any of those.
    """
    rows = np.asarray(X, dtype=np.float64)
    if rows.ndim != 2 or rows.shape[1] != result.centroids.shape[1]:
        raise RuleViolation(
            "shape", f"rows must have {result.centroids.shape[1]} columns, those of the session"
        )
    refuse_infinite(rows)
    has = ~np.isnan(rows).all(axis=0)
    if result.impute is not None:
        rows = np.where(np.isnan(rows), result.impute, rows)
    complete = ~np.isnan(rows).any(axis=1)
    labels = np.full(len(rows), -1, dtype=np.int64)
    space = result.space
    if result.mask is not None:
        known = result.mask[:, has]
        if known.any():
            scaled = space.to_scaled(rows)[:, has]
            labels[:] = nearest_centroid(scaled, result.centroids[:, has], known)
        return labels
    if result.prototypes is not None:
        of = np.array(result.prototype_labels, dtype=np.int64)
        labels[complete] = of[nearest_centroid(space.to_scaled(rows[complete]), result.prototypes)]
        return labels
    labels[complete] = nearest_centroid(space.to_scaled(rows[complete]), result.centroids)
    return labels


def squared_distances_to_centroids(result: Result, X: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return squared distances (n, K) of rows (n, d) in own units from the centroids, scaled.

    NaN for rows with missing values, which are imputed where the session imputes. Where it masks,
    over the features that a centroid is known by and the rows have, times d by their number.
    """
    rows = np.asarray(X, dtype=np.float64)
    refuse_infinite(rows)
    # Without a mask a value that is lacking anywhere is a missing one.
    has = np.asarray(~np.isnan(rows).all(axis=0) | (result.mask is None))
    if result.impute is not None:
        rows = np.where(np.isnan(rows), result.impute, rows)
    scaled = np.where(has, result.space.to_scaled(rows), 0.0)
    squares = np.empty((len(rows), len(result.centroids)))
    for begin in range(0, len(rows), ROW_BLOCK):
        block = scaled[begin : begin + ROW_BLOCK]
        squares[begin : begin + ROW_BLOCK] = masked_squared_distances(
            block, has, result.centroids, result.mask
        )
    return squares


def label(result: Result, X: NDArray[np.float64], memory: Memory | None) -> NDArray[np.int64]:
    """Label rows (n, d) in own units by the nearest centroid; ``memory`` plays no part."""
    del memory
    return label_by_centroid(result, X)
