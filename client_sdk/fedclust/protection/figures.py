"""Figures that a site sees before it consents: how close its table's records are to its persons.

They are printed at the site (``fedclust check``) and never leave it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from fedclust.numeric.array_types import FloatArray, IntArray
from fedclust.protection.columns import NumericColumn, SourceColumn, TableColumn, source_names
from fedclust.protection.records import GroupSums
from fedclust.protection.table import ProtectedTable, encode_sources

#: The median distance is taken over at least this many persons, if there are as many: it is then
#: known to one percentile.
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
        Half of the persons are nearer to their group's mean than this, in standard deviations:
        the root mean square of the differences in the numeric columns. None without such columns.
        Computed from at least 16,384 of more than 32,768 persons, spread over the source; the
        other figures are of all persons.
    one_value : dict of str to float
        By column the share of persons in groups whose persons all have the same value. Whoever
        knows that somebody is in such a group knows the value.
    fenced : dict of str to float
        By numeric column with fences the share of persons whose value counts as a fence.
    unreleased : dict of str to float
        By column the share of persons in groups that do not release it, because a person of the
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
    """Compare a table with the persons that it was made from; None if there are none of them.

    Memory grows with the table, not with the persons.

    Parameters
    ----------
    table : ProtectedTable
    blocks : iterable of (sequence of SourceColumn, (n,) int64)
        One value a person, and the group of each. The persons of a group may be in several blocks.
    """
    m = len(table.sizes)
    measured = [_ColumnFigures(column, m) for column in table.columns]
    persons, sample = np.zeros(m, dtype=np.int64), _Sample()
    for sources, groups in blocks:
        persons += np.bincount(groups, minlength=m)
        encoded = encode_sources(table.columns, sources)
        sample.add(encoded, groups)
        given = {source.name: source.values for source in sources}
        for column, values in zip(measured, encoded, strict=True):
            column.add(values, given, groups)
    n = int(persons.sum())
    if not n:
        return None
    one_value: dict[str, float] = {}
    fenced: dict[str, float] = {}
    unreleased: dict[str, float] = {}
    for each, released in zip(measured, table.released, strict=True):
        lacks = np.isnan(released) if released.ndim == 1 else released.sum(axis=1) == 0.0
        for name in source_names(each.column):
            one_value[name] = float(persons[each.all_equal].sum() / n)
            unreleased[name] = float(persons[lacks].sum() / n)
        if isinstance(each.column, NumericColumn):
            fenced[each.column.name] = each.n_fenced / n
    group_sizes = int(table.sizes.min()), int(table.sizes.max())
    distance = sample.median_distance(measured)
    return TableFigures(n, m, group_sizes, distance, one_value, fenced, unreleased)


class _ColumnFigures:
    """The figures of one column, by group (m,)."""

    def __init__(self, column: TableColumn, m: int) -> None:
        self.column, self.sums = column, GroupSums(column)
        #: A value of each group, and whether all of its persons have this value.
        self._first, self.all_equal = np.full(m, np.nan), np.ones(m, dtype=np.bool_)
        self.n_fenced = 0

    def add(self, values: FloatArray, given: Mapping[str, FloatArray], groups: IntArray) -> None:
        begins = np.isnan(self._first[groups])
        self._first[groups[begins]] = values[begins]
        # A missing value differs from every other.
        self.all_equal[groups[values != self._first[groups]]] = False
        if isinstance(self.column, NumericColumn):
            unfenced = given[self.column.name]
            beyond = (unfenced < self.column.lower) | (unfenced > self.column.upper)
            self.n_fenced += int(beyond.sum())
            self.sums.add(values, groups, len(self._first))

    def squares(self, origin: float, values: FloatArray, groups: IntArray) -> FloatArray:
        """Return squared differences (n,) to the group's mean, in variances; 0 if missing."""
        spread, sums = self.sums.spread(), self.sums
        # The sums of squares of equal values are rounding errors.
        if spread.total <= spread.n * (1e-9 * spread.mean) ** 2:
            return np.zeros(len(values))
        means = origin + sums.sums / np.maximum(sums.complete, 1)
        squares = (values - means[groups]) ** 2 * spread.n / spread.total
        return np.where(np.isnan(values), 0.0, squares)


class _Sample:
    """All persons; of many, every second, fourth, ... in the order of the source."""

    def __init__(self) -> None:
        self._stride = 1
        self._n_seen = self._n_kept = 0
        self._parts: list[tuple[FloatArray, IntArray]] = []

    def add(self, encoded: Sequence[FloatArray], groups: IntArray) -> None:
        while self._n_kept + len(groups[self._next()]) >= 2 * _SAMPLE:
            if self._parts:
                values, kept_groups = self._all()
                self._parts = [(values[:, ::2], kept_groups[::2])]
                self._n_kept = len(self._parts[0][1])
            self._stride *= 2
        kept = self._next()
        self._parts.append((np.stack([values[kept] for values in encoded]), groups[kept]))
        self._n_seen += len(groups)
        self._n_kept += len(self._parts[-1][1])

    def _next(self) -> slice:
        """Return which of the next persons are kept."""
        return slice(-self._n_seen % self._stride, None, self._stride)

    def _all(self) -> tuple[FloatArray, IntArray]:
        values, groups = zip(*self._parts, strict=True)
        return np.concatenate(values, axis=1), np.concatenate(groups)

    def median_distance(self, columns: Sequence[_ColumnFigures]) -> float | None:
        """Return the median distance to the group's mean; None without numeric columns."""
        values, groups = self._all()
        squares = [
            figures.squares(figures.column.origin, own, groups)
            for figures, own in zip(columns, values, strict=True)
            if isinstance(figures.column, NumericColumn)
        ]
        return float(np.median(np.sqrt(np.mean(squares, axis=0)))) if squares else None
