"""Labels of rows by the centroids of a result, and their distances from these.

Rows come in own units, the units of the site's data; distances are in the scaled space.
"""

from collections.abc import Sized

import numpy as np

from fedclust.numeric import distances
from fedclust.numeric.array_types import BoolArray, FloatArray, IntArray
from fedclust.numeric.canonical import tolerant_argmax
from fedclust.schema.errors import RuleViolation
from fedclust.schema.method import Probabilities
from fedclust.schema.model import Memory
from fedclust.schema.result import Result


def refuse_infinite(X: FloatArray, names: tuple[str, ...] = ()) -> None:
    """Raise RuleViolation if rows (n, d) hold infinite values; name each column and its count."""
    counts = np.isinf(X).sum(axis=0)
    if counts.any():
        found = ", ".join(
            f"{names[j] if names else f'column {j}'!r}: {counts[j]}" for j in np.flatnonzero(counts)
        )
        raise RuleViolation(
            "finite", f"infinite values ({found}): replace them or mark them as missing"
        )


def check_mapping(clusters: Sized, n: int) -> None:
    """Raise RuleViolation unless a result has one cluster for each of ``n`` cells or centres.

    Whatever the rows are: otherwise a refusal would say that a row is near the last of them.
    """
    if len(clusters) != n:
        message = "one cluster is needed for each cell of the site"
        raise RuleViolation("mapping", message, "/mapping")


def keep_columns(result: Result, rows: FloatArray, mask: BoolArray) -> FloatArray:
    """Return rows (n, d) that have the columns of ``mask`` (d,) and no others."""
    if result.mask is not None and result.impute is not None:
        # Here, or whether a value is imputed would depend on the other rows' values.
        rows = np.where(np.isnan(rows), result.impute, rows)
    return np.where(mask, rows, np.nan)


def scale_rows(result: Result, X: FloatArray) -> FloatArray:
    """Return rows (n, d) in the scaled space, with missing values imputed if the session imputes.

    Parameters
    ----------
    result : Result
    X : (n, d) float64
        In own units.
    """
    rows = np.asarray(X, dtype=np.float64)
    if result.impute is not None:
        rows = np.where(np.isnan(rows), result.impute, rows)
    return result.space.to_scaled(rows)


def label_by_centroid(result: Result, X: FloatArray) -> IntArray:
    """Label rows by the nearest centroid, or by the cluster of the nearest prototype.

    Parameters
    ----------
    result : Result
    X : (n, d) float64
        In own units. With ``missing: mask`` a column without any value is a feature that these
        rows lack; the other columns decide.

    Returns
    -------
    (n,) int64
        -1 for a row with missing values that the session does not impute, and for all rows if no
        centroid is known in any of their features.

    Raises
    ------
    RuleViolation
        The number of columns is wrong, or values are infinite.
    """
    rows = _checked_rows(result, X)
    present = ~np.isnan(rows).all(axis=0)
    scaled = scale_rows(result, rows)
    labels = np.full(len(rows), -1, dtype=np.int64)
    if result.mask is not None:
        known = result.mask[:, present]
        if known.any():
            labels[:] = distances.nearest_centroid(
                scaled[:, present], result.centroids[:, present], known
            )
        return labels
    complete = ~np.isnan(scaled).any(axis=1)
    if result.prototypes is None:
        gower = result.dissimilarity == "gower"
        nearest = distances.nearest_by_gower if gower else distances.nearest_centroid
        labels[complete] = nearest(scaled[complete], result.centroids)
    else:
        clusters = np.array(result.prototype_labels, dtype=np.int64)
        labels[complete] = clusters[distances.nearest_centroid(scaled[complete], result.prototypes)]
    return labels


#: The key of a site's memory for the scaled means (c, d) of its cells, if these label its rows.
CELLS_KEY = "cells"


def label_by_cells(result: Result, X: FloatArray, memory: Memory | None) -> IntArray:
    """Label rows (n, d) in own units by the cluster of the site's nearest cell.

    Parameters
    ----------
    result : Result
    X : (n, d) float64
    memory : dict or None
        Of the site. If it holds no cells, or the result has no mapping of them, rows get the
        nearest centroid: new rows, and those of a site that joined later.

    Returns
    -------
    (n,) int64
        -1 for incomplete rows.
    """
    labels = label_by_centroid(result, X)
    cells = (memory or {}).get(CELLS_KEY)
    if cells is None or not result.mapping:
        return labels
    (clusters,) = result.mapping.values()
    check_mapping(clusters, len(cells))
    complete = labels >= 0
    own = distances.nearest_centroid(scale_rows(result, X)[complete], cells)
    labels[complete] = np.array(clusters, dtype=np.int64)[own]
    return labels


def probabilities_of_rows(
    probabilities: Probabilities, result: Result, X: FloatArray, memory: Memory | None
) -> FloatArray:
    """Return the clusters' probabilities (n, K) of rows in own units.

    Parameters
    ----------
    probabilities : callable
        The method's.
    result : Result
    X : (n, d) float64
        In own units.
    memory : dict or None
        Of the site that labels.

    Returns
    -------
    (n, K) float64
        NaN for a row with missing values that the session does not impute.

    Raises
    ------
    RuleViolation
        The number of columns is wrong, or values are infinite.
    """
    scaled = scale_rows(result, _checked_rows(result, X))
    complete = ~np.isnan(scaled).any(axis=1)
    found = np.full((len(scaled), len(result.centroids)), np.nan)
    found[complete] = probabilities(result, scaled[complete], memory)
    return found


def label_by_probability(
    probabilities: Probabilities, result: Result, X: FloatArray, memory: Memory | None
) -> IntArray:
    """Label rows by the most probable cluster; ties go to the first, -1 where there is none.

    Parameters are those of :func:`probabilities_of_rows`.
    """
    found = probabilities_of_rows(probabilities, result, X, memory)
    known = ~np.isnan(found).any(axis=1)
    labels = np.full(len(found), -1, dtype=np.int64)
    labels[known] = tolerant_argmax(found[known])
    return labels


def _checked_rows(result: Result, X: FloatArray) -> FloatArray:
    """Return rows as an array; RuleViolation unless they have the session's columns, finite."""
    rows = np.asarray(X, dtype=np.float64)
    if rows.ndim != 2 or rows.shape[1] != result.centroids.shape[1]:
        raise RuleViolation(
            "shape", f"rows must have {result.centroids.shape[1]} columns, those of the session"
        )
    refuse_infinite(rows)
    return rows


def dissimilarities_to_centroids(result: Result, X: FloatArray) -> FloatArray:
    """Return the dissimilarities (n, K) of rows and the result's centroids in the scaled space.

    They are squared distances, except with ``dissimilarity: gower``.

    With ``missing: mask`` over the features that a centroid and the rows have, as
    :func:`~fedclust.numeric.distances.masked_squared_distances` compares them.

    Parameters
    ----------
    result : Result
    X : (n, d) float64
        In own units. Rows with missing values that the session does not impute get NaN.

    Raises
    ------
    RuleViolation
        Values are infinite.
    """
    rows = np.asarray(X, dtype=np.float64)
    refuse_infinite(rows)
    # Without a mask a column without values is missing, not a feature that the rows lack.
    present = np.asarray(~np.isnan(rows).all(axis=0) | (result.mask is None))
    scaled = np.where(present, scale_rows(result, rows), 0.0)
    squares = np.empty((len(rows), len(result.centroids)))
    for begin in range(0, len(rows), distances.ROW_BLOCK):
        block = slice(begin, begin + distances.ROW_BLOCK)
        if result.dissimilarity == "gower":
            squares[block] = distances.gower_dissimilarities(scaled[block], result.centroids)
            continue
        squares[block] = distances.masked_squared_distances(
            scaled[block], present, result.centroids, result.mask
        )
    return squares


def as_distances(result: Result, dissimilarities: FloatArray) -> FloatArray:
    """Return distances: the roots of squared distances, but Gower's dissimilarities themselves."""
    gower = result.dissimilarity == "gower"
    return dissimilarities if gower else np.asarray(np.sqrt(dissimilarities))


def distances_to_clusters(result: Result, X: FloatArray) -> FloatArray:
    """Return distances (n, K) in the scaled space from rows to the result's clusters.

    To the nearest prototype of each cluster if the result has prototypes, infinite for a cluster
    without one; otherwise to its centroid, see :func:`dissimilarities_to_centroids`.
    """
    if result.prototypes is None:
        return as_distances(result, dissimilarities_to_centroids(result, X))
    rows = np.asarray(X, dtype=np.float64)
    refuse_infinite(rows)
    scaled = scale_rows(result, rows)
    of = np.array(result.prototype_labels, dtype=np.int64)
    squares = np.full((len(rows), len(result.centroids)), np.inf)
    for begin in range(0, len(rows), distances.ROW_BLOCK):
        block = slice(begin, begin + distances.ROW_BLOCK)
        every = distances.squared_distances(scaled[block], result.prototypes)
        for k in np.unique(of):
            squares[block, k] = every[:, of == k].min(axis=1)
    return np.asarray(np.sqrt(squares))
