"""What a result says of new rows: cluster, next cluster, margin, and whether they lie outside.

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

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from fedclust.methods.common.assign import distances_to_clusters, keep_columns
from fedclust.numeric.array_types import BoolArray, FloatArray, IntArray
from fedclust.schema.encoding import Column
from fedclust.schema.result import ClusterProfile, Result
from fedclust.schema.scaling import binary_columns, own_bounds
from fedclust.wire.errors import of_extra

if TYPE_CHECKING:
    from pandas import DataFrame

#: Below this margin a row is close to the next cluster: on a straight line between two centroids
#: these are the places from .47 of the way on.
CLOSE: Final = 0.1
#: The columns of the table and of the label file.
DETAILS: Final = ("cluster", "second", "margin", "distance", "outside", "why")
_BY_ROW: Final = ("labels", "second", "margin", "distance", "outside")


@dataclass(frozen=True, repr=False)
class Predictions:
    """The cluster of each new row, how clear it is, and whether the row is like the session's.

    Attributes
    ----------
    labels : (n,) int64
        As ``predict`` returns them; -1 where missing values forbid a label.
    second : (n,) int64
        The next nearest cluster; -1 where there is none or it is not known.
    margin : (n,) float64
        (d2 - d1) / d2, with the distances d1 from the own cluster and d2 from the next one: 0
        halfway between the two, 1 on the own centroid. NaN where it is not known.
    distance : (n,) float64
        d1: from the centroid, or the nearest prototype, of the own cluster, in the scaled space.
    outside : (n,) int8
        1: the row lies outside what the model saw; 0: it does not; -1: not known.
    why : tuple of tuple of str
        Of each row that lies outside the features that do, the furthest first; at most three.
    ids : tuple of str or None
        The rows' identifiers, if an id column was named.
    probabilities : (n, K) float64 or None
        How probable each cluster is, NaN where missing values forbid a label; None where the method
        has no soft clusters.
    """

    labels: NDArray[np.int64]
    second: NDArray[np.int64]
    margin: NDArray[np.float64]
    distance: NDArray[np.float64]
    outside: NDArray[np.int8]
    why: tuple[tuple[str, ...], ...] = field(default=())
    ids: tuple[str, ...] | None = None
    probabilities: NDArray[np.float64] | None = None

    @classmethod
    def of(cls, parts: Sequence[Predictions], ids: tuple[str, ...] | None = None) -> Predictions:
        """Return the predictions of consecutive blocks of rows."""
        soft = [part.probabilities for part in parts if part.probabilities is not None]
        joined = {name: np.concatenate([getattr(each, name) for each in parts]) for name in _BY_ROW}
        why = tuple(names for part in parts for names in part.why)
        every = np.concatenate(soft) if soft else None
        return cls(**joined, why=why, ids=ids, probabilities=every)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def close(self) -> NDArray[np.bool_]:
        """Which rows (n,) are about as near to the next cluster: those with a margin below .1."""
        return np.asarray(self.margin < CLOSE)

    def __repr__(self) -> str:
        without = int((self.labels < 0).sum())
        parts = [f"{len(self)} rows", f"{len(self) - without} labelled"]
        parts.append(f"{int(self.close.sum())} close to another cluster")
        known = bool((self.outside >= 0).any())
        outside = f"{int((self.outside > 0).sum())} outside what the model saw"
        parts.append(outside if known else "outside what the model saw: not known")
        return f"Predictions: {', '.join(parts)}; to_frame()"

    def rows(self) -> Iterator[tuple[object, ...]]:
        """Return the values of :data:`DETAILS` of each row; None where there is none."""
        clear = {1: "yes", 0: "no", -1: None}
        columns: list[list[Any]] = [
            *([None if k < 0 else k for k in each.tolist()] for each in (self.labels, self.second)),
            *(
                [None if x != x else x for x in each.tolist()]
                for each in (self.margin, self.distance)
            ),
            [clear[known] for known in self.outside.tolist()],
            [", ".join(names) or None for names in self.why],
        ]
        return zip(*columns, strict=True)

    def to_frame(self) -> DataFrame:
        """Return a row for each row as a pandas DataFrame (the extra ``[data]``).

        The index are the identifiers, if an id column was named. ``outside`` is ``<NA>`` where it
        is not known. Of soft clusters the columns ``p0``, ``p1`` and so on are the probabilities.

        Returns
        -------
        DataFrame

        Raises
        ------
        UsageError
            pandas is not installed.
        """
        with of_extra("data", "to_frame needs pandas"):
            import pandas as pd
        outside = pd.array(self.outside > 0, dtype="boolean")
        outside[self.outside < 0] = pd.NA
        values = (self.labels, self.second, self.margin, self.distance, outside, self.why)
        columns = dict(zip(DETAILS, values, strict=True))
        if self.probabilities is not None:
            names = probability_names(self.probabilities.shape[1])
            columns |= dict(zip(names, self.probabilities.T, strict=True))
        return pd.DataFrame(columns, index=self.ids)


def probability_names(n_clusters: int) -> list[str]:
    """Return the names of the columns with the clusters' probabilities."""
    return [f"p{k}" for k in range(n_clusters)]


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


def place(
    result: Result,
    columns: Sequence[Column],
    rows: FloatArray,
    labels: IntArray,
    mask: BoolArray,
    probabilities: FloatArray | None,
    *,
    by_distance: bool,
) -> Predictions:
    """Say where labelled rows lie.

    Parameters
    ----------
    result : Result
    columns : sequence of Column, length d
    rows : (n, d) float64
        In own units.
    labels : (n,) int64
    mask : (d,) bool
        The columns that these rows have.
    probabilities : (n, K) float64 or None
    by_distance : bool
        Whether these are the labels of the nearest clusters.

    Returns
    -------
    Predictions
    """
    observed = np.where(mask, rows, np.nan)
    outside, why = find_outside(columns, result.profile, observed, labels)
    names = [dict.fromkeys(columns[j].feature for j in places) for places in why]
    second = np.full(len(rows), -1, dtype=np.int64)
    distance, margin = np.full((2, len(rows)), np.nan)
    placed = np.flatnonzero(labels >= 0)
    if by_distance and len(placed):
        # All rows, since which columns they have shows in all of them.
        apart = distances_to_clusters(result, keep_columns(result, rows, mask))[placed]
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
