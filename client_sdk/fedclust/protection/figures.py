"""What a protected table costs and shows, for the site's own eyes: `fedclust check` prints it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedclust.protection.columns import NumericColumn, SourceColumn, TableColumn, source_names
from fedclust.protection.records import GroupSums
from fedclust.protection.table import ProtectedTable, encode_sources

__all__ = ["TableFigures", "measure_table"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

#: At least so many persons say what the median distance is: it is then known to one percentile.
_SAMPLE: Final = 16_384


@dataclass(frozen=True)
class TableFigures:
    """How close a table's records are to the persons behind them. Never leaves the site.

    Attributes
    ----------
    n_persons, n_groups : int
    group_sizes : (int, int)
        The smallest and the largest.
    distance_sd : float or None
        Half of the persons are nearer to their group's mean than this: the root of the mean over
        the numeric columns of squared differences, in standard deviations. None without such
        columns. Of more than 32,768 persons at least 16,384 decide, spread over the source; the
        other figures are of all persons.
    one_value : dict of str to float
        By column the share of persons in groups whose persons all have the same value. Whoever
        knows that somebody is in such a group knows the value.
    fenced : dict of str to float
        By numeric column with fences the share of persons whose value counts as a fence.
    unreleased : dict of str to float
        By column the share of persons in groups that do not release it, since a person of the
        group has no value.
    """

    n_persons: int
    n_groups: int
    group_sizes: tuple[int, int]
    distance_sd: float | None
    one_value: dict[str, float]
    fenced: dict[str, float]
    unreleased: dict[str, float]


def measure_table(
    table: ProtectedTable, blocks: Iterable[tuple[Sequence[SourceColumn], IntArray]]
) -> TableFigures | None:
    """Compare a table with the persons that it was made from; None where there is none of them.

    Memory grows with the table, not with the persons.

    Parameters
    ----------
    table : ProtectedTable
    blocks : iterable of (sequence of SourceColumn, (n,) int64)
        One value a person, and the group of each. The persons of a group may be in several blocks.
    """
    m = len(table.sizes)
    measured = [_Column(column, m) for column in table.columns]
    persons, sample = np.zeros(m, dtype=np.int64), _Sample()
    for sources, groups in blocks:
        persons += np.bincount(groups, minlength=m)
        encoded = encode_sources(table.columns, sources)
        sample.add(encoded, groups)
        by_name = {source.name: source.values for source in sources}
        for column, values in zip(measured, encoded, strict=True):
            column.add(values, by_name, groups)
    n = int(persons.sum())
    if not n:
        return None
    one_value: dict[str, float] = {}
    fenced: dict[str, float] = {}
    unreleased: dict[str, float] = {}
    for each, released in zip(measured, table.released, strict=True):
        lacks = np.isnan(released) if released.ndim == 1 else released.sum(axis=1) == 0.0
        for name in source_names(each.column):
            one_value[name] = float(persons[each.alike].sum() / n)
            unreleased[name] = float(persons[lacks].sum() / n)
        if isinstance(each.column, NumericColumn):
            fenced[each.column.name] = each.n_fenced / n
    smallest, largest = int(table.sizes.min()), int(table.sizes.max())
    return TableFigures(
        n, m, (smallest, largest), sample.distance(measured), one_value, fenced, unreleased
    )


class _Column:
    """What is known of one column so far, by group (m,)."""

    def __init__(self, column: TableColumn, m: int) -> None:
        self.column, self.sums = column, GroupSums(column)
        #: A value of each group, and whether all of its persons have that one.
        self.first, self.alike = np.full(m, np.nan), np.ones(m, dtype=np.bool_)
        self.n_fenced = 0

    def add(self, values: FloatArray, by_name: Mapping[str, FloatArray], groups: IntArray) -> None:
        begins = np.isnan(self.first[groups])
        self.first[groups[begins]] = values[begins]
        # A missing value differs from every other.
        self.alike[groups[values != self.first[groups]]] = False
        if isinstance(self.column, NumericColumn):
            raw = by_name[self.column.name]
            self.n_fenced += int(((raw < self.column.lower) | (raw > self.column.upper)).sum())
            self.sums.add(values, groups, len(self.first))

    def squares(self, values: FloatArray, groups: IntArray) -> FloatArray:
        """Return the squared difference (n,) to the group's mean in variances; 0 if missing."""
        assert isinstance(self.column, NumericColumn)  # noqa: S101  (_Sample.distance)
        spread, sums = self.sums.spread(), self.sums
        # The sums of squares of equal values are rounding errors.
        if spread.whole <= spread.n * (1e-9 * spread.mean) ** 2:
            return np.zeros(len(values))
        means = self.column.origin + sums.sums / np.maximum(sums.complete, 1)
        gaps = (values - means[groups]) ** 2 * spread.n / spread.whole
        return np.where(np.isnan(values), 0.0, gaps)


class _Sample:
    """Every person, or of many every second, fourth, ... one in the order of the source."""

    def __init__(self) -> None:
        self._stride = 1
        self._seen = self._held = 0
        self._parts: list[tuple[FloatArray, IntArray]] = []

    def add(self, encoded: Sequence[FloatArray], groups: IntArray) -> None:
        while self._held + len(groups[self._kept()]) >= 2 * _SAMPLE:
            if self._parts:
                values, places = self._whole()
                self._parts = [(values[:, ::2], places[::2])]
                self._held = len(self._parts[0][1])
            self._stride *= 2
        kept = self._kept()
        self._parts.append((np.stack([values[kept] for values in encoded]), groups[kept]))
        self._seen += len(groups)
        self._held += len(self._parts[-1][1])

    def _kept(self) -> slice:
        return slice(-self._seen % self._stride, None, self._stride)

    def _whole(self) -> tuple[FloatArray, IntArray]:
        values, places = zip(*self._parts, strict=True)
        return np.concatenate(values, axis=1), np.concatenate(places)

    def distance(self, columns: Sequence[_Column]) -> float | None:
        """Return the median distance to the group's mean; None without numeric columns."""
        values, groups = self._whole()
        squares = [
            column.squares(own, groups)
            for column, own in zip(columns, values, strict=True)
            if isinstance(column.column, NumericColumn)
        ]
        return float(np.median(np.sqrt(np.mean(squares, axis=0)))) if squares else None
