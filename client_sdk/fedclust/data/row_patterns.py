"""What ``fedclust check`` finds across the columns of a source. Nothing here is sent.

Rows that are far out in many columns, and columns whose absence equals a yes/no column.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedclust.data.row_source import RowBlock, matrix_of
from fedclust.schema.feature import Feature

#: A value so many robust standard deviations from the median is far out. No value of a normal
#: column is, one in 70 of a lognormal one (sd of the logarithm 1), and missing codes and wrong
#: units usually are by hundreds.
FAR: Final = 10.0
#: The robust standard deviation is from the first of these quantiles that differs from its
#: opposite. Fewer than 5 % of wild rows hardly change it, where an ordinary one would follow them.
_TAILS: Final = (0.25, 0.05)
#: So many rows are named.
_NAMED: Final = 5
#: Absence equals a side of a yes/no column if at most this share of the smaller side differs: a
#: few values are missing for another reason. Of columns that do not depend on each other far more.
_DIFFERING: Final = 0.05
#: In fewer rows two columns are often equal by chance.
_LEAST_ROWS: Final = 3


@dataclass(frozen=True)
class RowsFarOut:
    """Rows that are far out in at least half of the numeric features, and at least two.

    Attributes
    ----------
    rows : int
    columns : int
        The numeric features that were compared.
    unit : {"line", "row"}
    first : tuple of int
        The numbers of the first of them.
    """

    rows: int
    columns: int
    unit: str
    first: tuple[int, ...]


@dataclass(frozen=True)
class Absence:
    """Features that have no value just where a yes/no column has one of its values."""

    features: tuple[str, ...]
    column: str
    value: str


class FarRows:
    """Finds rows that are far out.

    Medians and deviations are those of the first block, in the scale of each feature's transform.
    """

    def __init__(self, features: Sequence[Feature]) -> None:
        self._features = features
        self._scales: dict[int, tuple[float, float]] | None = None
        self._count, self._first = 0, list[int]()

    def add(self, block: RowBlock, values: Sequence[NDArray[Any]]) -> None:
        """Examine a block of rows, given the session's values of each feature."""
        scaled = {
            place: _scaled(feature, own)
            for place, (feature, own) in enumerate(zip(self._features, values, strict=True))
            if feature.kind == "numeric"
        }
        if self._scales is None:
            found = {place: _robust_scale(own) for place, own in scaled.items()}
            self._scales = {place: scale for place, scale in found.items() if scale[1] > 0.0}
        n_far = np.zeros(len(block), dtype=np.int64)
        for place, (median, deviation) in self._scales.items():
            n_far += np.abs(scaled[place] - median) > FAR * deviation
        far = np.flatnonzero(n_far >= max(2.0, len(self._scales) / 2))
        self._count += len(far)
        for row in far[: _NAMED - len(self._first)].tolist():
            self._first.append(block.start + row if block.numbers is None else block.numbers[row])

    def found(self, unit: str) -> RowsFarOut | None:
        """Return the rows that are far out, if there are any."""
        if not self._count:
            return None
        return RowsFarOut(self._count, len(self._scales or ()), unit, tuple(self._first))

    def furthest(
        self, place: int, least: float, most: float
    ) -> tuple[float, float] | tuple[None, None]:
        """Return which of a feature's extremes is further from the median, and how far.

        In robust standard deviations; Nones if the feature has none.
        """
        scale = (self._scales or {}).get(place)
        if scale is None:
            return None, None
        median, deviation = scale
        ends = np.array([least, most])
        distances = np.abs(_scaled(self._features[place], ends) - median) / deviation
        further = int(distances.argmax())
        return float(ends[further]), float(distances[further])


def _scaled(feature: Feature, values: NDArray[np.float64]) -> NDArray[np.float64]:
    return values if feature.transform == "none" else matrix_of((feature,), (values,))[:, 0]


def _robust_scale(values: NDArray[np.float64]) -> tuple[float, float]:
    """Return the median of values (n,) and their robust standard deviation; 0 if there is none."""
    given = values[~np.isnan(values)]
    if not len(given):
        return 0.0, 0.0
    shares = [0.5, *_TAILS, *(1.0 - tail for tail in _TAILS)]
    median, *quantiles = np.quantile(given, shares).tolist()
    lower, upper = quantiles[: len(_TAILS)], quantiles[len(_TAILS) :]
    for tail, low, high in zip(_TAILS, lower, upper, strict=True):
        if high > low:
            return median, (high - low) / (2.0 * NormalDist().inv_cdf(1.0 - tail))
    return median, 0.0


class AbsenceCounts:
    """Compares where features have no value with the two sides of each yes/no column.

    The first ``n_features`` of the columns are features; the others are those of outcomes alone.
    """

    def __init__(self, columns: Sequence[Feature], n_features: int) -> None:
        self._columns, self._n_features = columns, n_features
        #: By place of a yes/no column its two values.
        self._values = {
            place: each.levels or ("0", "1")
            for place, each in enumerate(columns)
            if each.kind == "binary" or len(each.levels or ()) == 2
        }
        q = 2 * len(self._values)
        self._n, self._missing = 0, np.zeros(n_features, dtype=np.int64)
        self._sides = np.zeros(q, dtype=np.int64)
        self._both = np.zeros((n_features, q), dtype=np.int64)

    def add(self, values: Sequence[NDArray[Any]]) -> None:
        """Count in a block of rows, given the session's values of each column."""
        if not self._values:
            return
        # Products of float32 are fast, and exact below 2^24 rows.
        sides = np.array(
            [values[place] == side for place in self._values for side in (0, 1)], dtype=np.float32
        )
        absent = {}
        for place in range(self._n_features):
            own = values[place]
            missing = own < 0 if own.dtype.kind == "i" else np.isnan(own)
            if missing.any():
                absent[place] = missing
        self._n += len(values[0])
        self._sides += np.count_nonzero(sides, axis=1)
        if absent:
            places, missing = list(absent), np.array(list(absent.values()), dtype=np.float32)
            self._missing[places] += np.count_nonzero(missing, axis=1)
            self._both[places] += (missing @ sides.T).astype(np.int64)

    @property
    def found(self) -> tuple[Absence, ...]:
        """The sides of yes/no columns that the absence of a feature equals."""
        differing = self._missing[:, None] + self._sides - 2 * self._both
        smaller = np.minimum(self._sides, self._n - self._sides)
        equal = (smaller >= _LEAST_ROWS) & (differing <= _DIFFERING * smaller)
        sides = [(place, value) for place, own in self._values.items() for value in own]
        return tuple(
            Absence(
                tuple(self._columns[j].name for j in np.flatnonzero(own).tolist()),
                self._columns[place].name,
                value,
            )
            for (place, value), own in zip(sides, equal.T, strict=True)
            if own.any()
        )
