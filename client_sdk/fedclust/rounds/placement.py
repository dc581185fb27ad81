"""Where new rows lie among the clusters: the next cluster, the margin, and whether outside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedclust.methods.common.assign import distances_to_clusters, label_by_centroid
from fedclust.numeric.array_types import BoolArray, FloatArray, IntArray
from fedclust.numeric.threads import one_thread
from fedclust.rounds.outside import OutsideLimits, find_outside, outside_limits
from fedclust.rounds.plan import Plan
from fedclust.rounds.site import keep_columns, label, probabilities
from fedclust.schema.encoding import Column
from fedclust.schema.method import AnyMethod
from fedclust.schema.model import Memory
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


def place(
    plan: Plan,
    result: Result,
    X: FloatArray,
    memory: Memory | None = None,
    site: str | None = None,
    mask: BoolArray | None = None,
) -> Placement:
    """Label new rows as :func:`~fedclust.rounds.label` does, and say where they lie.

    Parameters
    ----------
    plan : Plan
    result : Result
    X : (n, d) float64
        In own units.
    memory : dict, optional
        That of the site which labels.
    site : str, optional
    mask : (d,) bool, optional
        The columns that these rows have.
    """
    rows = np.asarray(X, dtype=np.float64)
    labels = label(plan, result, rows, memory, site, mask, new=True)
    limits = outside_limits(plan.columns)
    by_distance = goes_by_distance(plan.method, result)
    found = _placement(result, plan.columns, limits, rows, labels, mask, by_distance=by_distance)
    return replace(found, probabilities=probabilities(plan, result, rows, memory))


def place_by_distance(
    result: Result,
    columns: Sequence[Column],
    limits: OutsideLimits,
    X: FloatArray,
    mask: BoolArray | None = None,
) -> Placement:
    """Do what :func:`place` does for a result of which only the nearest cluster counts."""
    rows = np.asarray(X, dtype=np.float64)
    labels = label_by_distance(result, rows, mask)
    return _placement(result, columns, limits, rows, labels, mask, by_distance=True)


def label_by_distance(result: Result, X: FloatArray, mask: BoolArray | None = None) -> IntArray:
    """Label new rows by the nearest cluster; the labels of :func:`place_by_distance`."""
    rows = np.asarray(X, dtype=np.float64)
    with one_thread():
        return label_by_centroid(result, rows if mask is None else keep_columns(result, rows, mask))


def _placement(
    result: Result,
    columns: Sequence[Column],
    limits: OutsideLimits,
    rows: FloatArray,
    labels: IntArray,
    mask: BoolArray | None,
    *,
    by_distance: bool,
) -> Placement:
    observed = rows if mask is None else np.where(mask, rows, np.nan)
    outside = find_outside(columns, result.profile, limits, observed, labels)
    names = tuple(
        tuple(dict.fromkeys(columns[j].feature for j in places)) for places in outside.why
    )
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
    return Placement(labels, second, distance, margin, outside.found, names)


def _margin(own: FloatArray, other: FloatArray) -> FloatArray:
    """Return (other - own) / other; 0 where both are 0, and never below 0 by rounding."""
    gap = np.maximum(other - own, 0.0)
    return np.divide(gap, other, out=np.zeros_like(gap), where=other > 0.0)
