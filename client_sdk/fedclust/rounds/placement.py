"""Where new rows lie among the clusters: the next cluster, the margin, and whether outside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedclust.methods.common.assign import distances_to_clusters, label_by_centroid
from fedclust.numeric.array_types import BoolArray, FloatArray, IntArray
from fedclust.numeric.threads import one_thread
from fedclust.rounds.outside import find_outside
from fedclust.rounds.site import keep_columns
from fedclust.schema.encoding import Column
from fedclust.schema.method import AnyMethod
from fedclust.schema.result import Result


@dataclass(frozen=True)
class Placement:
    """Where rows lie among the clusters.

    Attributes
    ----------
    labels : (n,) int64
        -1 where missing values forbid a label.
    second : (n,) int64
        The next nearest cluster; -1 where there is none or it is not known.
    distance : (n,) float64
        From the own cluster's centroid, or its nearest prototype, in the scaled space; NaN where
        it is not known.
    margin : (n,) float64
        (d2 - d1) / d2 with the distances from the own cluster and from the next one: 0 halfway
        between them, 1 on the centroid. It is the simplified silhouette of the row.
    outside : (n,) int8
        Whether the row lies outside what the model saw: 1, 0, or -1 for not known.
    why : tuple of tuple of str
        The features of each row that lie outside, the furthest first.
    probabilities : (n, K) float64 or None
        How probable each cluster is; None where the method has no soft clusters.
    """

    labels: IntArray
    second: IntArray
    distance: FloatArray
    margin: FloatArray
    outside: NDArray[np.int8]
    why: tuple[tuple[str, ...], ...]
    probabilities: FloatArray | None = None


def goes_by_distance(method: AnyMethod, result: Result) -> bool:
    """Return whether new rows belong to the nearest centroid or prototype of a result."""
    needs_memory = method.by_prototypes and result.prototypes is None
    return method.probabilities is None and not needs_memory


def label_by_distance(result: Result, X: FloatArray, mask: BoolArray | None = None) -> IntArray:
    """Label new rows by the nearest cluster; see :func:`place`."""
    rows = np.asarray(X, dtype=np.float64)
    with one_thread():
        return label_by_centroid(result, rows if mask is None else keep_columns(result, rows, mask))


def place(
    result: Result,
    columns: Sequence[Column],
    rows: FloatArray,
    labels: IntArray,
    mask: BoolArray | None = None,
    *,
    by_distance: bool,
    probabilities: FloatArray | None = None,
) -> Placement:
    """Say where labelled rows lie.

    Parameters
    ----------
    result : Result
    columns : sequence of Column, length d
    rows : (n, d) float64
        In own units.
    labels : (n,) int64
    mask : (d,) bool, optional
        The columns that these rows have.
    by_distance : bool
        Whether these are the labels of the nearest clusters.
    probabilities : (n, K) float64, optional
    """
    observed = rows if mask is None else np.where(mask, rows, np.nan)
    outside, why = find_outside(columns, result.profile, observed, labels)
    names = tuple(tuple(dict.fromkeys(columns[j].feature for j in places)) for places in why)
    second = np.full(len(rows), -1, dtype=np.int64)
    distance, margin = np.full((2, len(rows)), np.nan)
    placed = np.flatnonzero(labels >= 0)
    if by_distance and len(placed):
        kept = rows if mask is None else keep_columns(result, rows, mask)
        # All rows, since which columns they have shows in all of them.
        apart = distances_to_clusters(result, kept)[placed]
        own, at = labels[placed], np.arange(len(placed))
        distance[placed] = apart[at, own]
        apart[at, own] = np.inf
        nearest = apart.argmin(axis=1)
        next_one = apart[at, nearest]
        is_there = np.isfinite(next_one)
        second[placed[is_there]] = nearest[is_there]
        margin[placed[is_there]] = _margin(distance[placed][is_there], next_one[is_there])
    return Placement(labels, second, distance, margin, outside, names, probabilities)


def _margin(own: FloatArray, other: FloatArray) -> FloatArray:
    """Return (other - own) / other; 0 where both are 0, and never below 0 by rounding."""
    gap = np.maximum(other - own, 0.0)
    return np.divide(gap, other, out=np.zeros_like(gap), where=other > 0.0)
