"""Where new rows lie among the clusters: the next cluster, the margin, and whether outside.

A person lies outside what the sites' persons were like by a result's profile alone.
No extreme value leaves a site, so the result knows means, standard deviations and shares, but no
range. A person is compared with this profile:

- **Bounds.** A value outside the declared bounds.
- **A number** further from the mean of the person's cluster than a limit in standard
  deviations. Laboratory values have longer tails than a normal distribution, so the limit is that
  of exponential tails (Laplace), with 1 % shared between the d numbers: ``ln(d / .01) / sqrt(2)``.
- **Several numbers** that each are moderately far: the mean square of the distances in standard
  deviations, each counted as at most :data:`_CAPPED`, is above :data:`_MEAN_SQUARE`. It needs
  :data:`_SEVERAL` numbers.
- **A yes/no value or a level** that a smaller share of all persons has than 0.5 %, shared
  between all these columns. Not of the cluster's: its share counts groups, and some of their
  persons are nearer to another cluster.

``benchmarks/outside.py`` measures how many persons of the sessions themselves are outside, and how
many who were moved far away.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedclust.methods.common.assign import (
    distances_to_clusters,
    keep_columns,
    label_by_centroid,
)
from fedclust.numeric.array_types import BoolArray, FloatArray, IntArray
from fedclust.numeric.threads import one_thread
from fedclust.result.predictions import Predictions
from fedclust.schema.encoding import Column
from fedclust.schema.method import AnyMethod
from fedclust.schema.result import ClusterProfile, Result
from fedclust.schema.scaling import binary_columns, own_bounds

#: Share of the persons that the limits of the numbers, and of the other columns, are made for.
_NUMBERS, _SHARES = 0.01, 0.005
#: Calibrated by benchmarks/outside.py.
_CAPPED, _MEAN_SQUARE = 4.0, 5.0
#: Numbers that a person needs at least before their mean square is a limit.
_SEVERAL = 3
#: Least standard deviation of a cluster, in those of all persons: a few may agree by chance.
_LEAST_SPREAD = 0.25
#: Rows that are compared at a time: their arrays stay in the cache.
_ROWS = 1024
#: At most this many features say why a row lies outside.
_MOST_WHY = 3
#: What rounding adds to a column that is constant.
_ROUNDING = 1e-9


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
) -> Predictions:
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

    Returns
    -------
    Predictions
    """
    observed = rows if mask is None else np.where(mask, rows, np.nan)
    outside, why = find_outside(columns, result.profile, observed, labels)
    names = [dict.fromkeys(columns[j].feature for j in places) for places in why]
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
    most = tuple(tuple(each)[:_MOST_WHY] for each in names)
    return Predictions(labels, second, margin, distance, outside, most, None, probabilities)


def _margin(own: FloatArray, other: FloatArray) -> FloatArray:
    """Return (other - own) / other; 0 where both are 0, and never below 0 by rounding."""
    gap = np.maximum(other - own, 0.0)
    return np.divide(gap, other, out=np.zeros_like(gap), where=other > 0.0)


# --- outside --------------------------------------------------------------------------------------


def find_outside(
    columns: Sequence[Column],
    profile: ClusterProfile | None,
    rows: FloatArray,
    labels: IntArray,
) -> tuple[NDArray[np.int8], tuple[tuple[int, ...], ...]]:
    """Find the rows outside the profile of their cluster.

    Parameters
    ----------
    columns : sequence of Column, length d
    profile : ClusterProfile or None
    rows : (n, d) float64
        In the columns' own units; NaN where missing: these values do not count.
    labels : (n,) int64
        -1 for none.

    Returns
    -------
    found : (n,) int8
        1: outside; 0: not; -1: not known, without a label or a profile of the cluster.
    why : tuple of tuple of int
        Of each row the columns, by number, that lie outside, the furthest first; all that count
        where only several together do.
    """
    found = np.full(len(rows), -1, dtype=np.int8)
    why: list[tuple[int, ...]] = [()] * len(rows)
    if profile is None:
        return found, tuple(why)
    described: BoolArray = np.asarray(profile.known.any(axis=1))
    placed = np.flatnonzero((labels >= 0) & described[labels])
    for begin in range(0, len(placed), _ROWS):
        block = placed[begin : begin + _ROWS]
        excess = _excess(columns, profile, rows[block], labels[block])
        found[block] = (excess > 1.0).any(axis=1)
        for at in np.flatnonzero(found[block] > 0):
            far = np.flatnonzero(excess[at] > 1.0)
            why[block[at]] = tuple(far[np.argsort(-excess[at, far], kind="stable")].tolist())
    return found, tuple(why)


def _excess(
    columns: Sequence[Column],
    profile: ClusterProfile,
    rows: FloatArray,
    labels: IntArray,
) -> FloatArray:
    """Return how far each value (n, d) is: above 1 it is outside, 0 where unknown."""
    known = profile.known[labels] & ~np.isnan(rows)
    means, wide = profile.means[labels], profile.estimated_overall_deviations
    binary = binary_columns(columns)
    spread = np.maximum(profile.estimated_deviations, _LEAST_SPREAD * wide)[labels]
    spread = np.maximum(spread, _ROUNDING * np.maximum(np.abs(means), 1.0))
    numbers = known & ~binary
    apart = np.where(numbers, np.abs(rows - means) / spread, 0.0)
    most = math.log(max(int((~binary).sum()), 1) / _NUMBERS) / math.sqrt(2.0)
    excess = apart / most
    counts = numbers.sum(axis=1)
    capped = np.minimum(apart, _CAPPED)
    square = (capped**2).sum(axis=1) / np.maximum(counts, 1)
    # The columns that are furthest explain it, if no single one is outside.
    several = (counts >= _SEVERAL) & (square > _MEAN_SQUARE) & (excess <= 1.0).all(axis=1)
    excess[several] = np.where(
        capped[several] ** 2 > _MEAN_SQUARE, 1.0 + capped[several], excess[several]
    )
    # Of a level only that which a row has counts.
    levels = np.array([column.block is not None for column in columns], dtype=np.bool_)
    every = profile.overall_means
    shares = np.where(rows == 1.0, every, np.where(levels, 1.0, 1.0 - every))
    rare = known & binary & (shares < _SHARES / max(int(binary.sum()), 1))
    excess[rare] = 1.0 + (1.0 - shares[rare])
    lower, upper = own_bounds(columns)
    beyond = np.where(np.isnan(rows), 0.0, np.maximum(lower - rows, rows - upper))
    excess[beyond > _ROUNDING * np.maximum(np.abs(rows), 1.0)] = np.inf
    return excess
