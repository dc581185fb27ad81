"""Figures that a site sees before it consents: how close its table's records are to its persons.

They are printed at the site (``fedclust check``) and never leave it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedclust.numeric.array_types import BoolArray, FloatArray, IntArray
from fedclust.protection.columns import SourceColumn
from fedclust.protection.table import ProtectedTable

#: The median distance is taken over so many of the table's persons, if there are more: it is then
#: known to one percentile.
_SAMPLE: Final = 16_384
#: With fewer persons than this many times p a column's spread is not known.
_ENOUGH: Final = 3
#: A step above this part of the records' standard deviation hides much of a column.
_COARSE: Final = 0.5


@dataclass(frozen=True)
class TableFigures:
    """How close a table's records are to the persons behind them. Never leaves the site.

    Attributes
    ----------
    n_persons, n_groups : int
    p : int
        The least number of persons behind a record.
    group_sizes : (int, int)
        The smallest and the largest.
    distance_sd : float or None
        Half of the persons are nearer to their group's record than this, in standard deviations:
        the root mean square of the differences in the numeric columns. None without such columns.
        Of large tables computed from every second, third, ... person, 16,384 or more.
    one_value : dict of str to float
        By column the share of persons in groups whose persons all have the same value. Whoever
        knows that somebody is in such a group knows the value.
    unreleased : dict of str to float
        By column the share of persons in groups that do not release it.
    steps : dict of str to float
        By numeric column the step to which it is rounded; 0 while it is not set.
    all_equal : tuple of str
        Columns whose records are all equal.
    coarse : tuple of str
        Columns whose step is above half the standard deviation of their records.
    units : mapping of str to str
        By column the unit of its numbers at the site; "" if unknown.
    """

    n_persons: int
    n_groups: int
    p: int
    group_sizes: tuple[int, int]
    distance_sd: float | None
    one_value: dict[str, float]
    unreleased: dict[str, float]
    steps: dict[str, float]
    all_equal: tuple[str, ...]
    coarse: tuple[str, ...]
    units: Mapping[str, str] = field(default_factory=dict)

    def step_text(self, name: str) -> str:
        """Return the step of a column with its unit; "" if it has none."""
        step = self.steps.get(name)
        return f"{step:g} {self.units.get(name, '')}".rstrip() if step else ""

    def warnings(self) -> list[str]:
        """Return which columns the table hardly shows, and what to do about it."""
        found = []
        if self.all_equal:
            found.append(
                f"All records are equal in {', '.join(self.all_equal)}: no session sees who differs"
                " there. Count such a trait as an outcome, or use a larger site."
            )
        if self.coarse:
            said = (
                f"{', '.join(self.coarse)}: rounded to more than half of the standard deviation of "
                "the records."
            )
            if self.n_persons < _ENOUGH * self.p:
                said += f" Wait for {_ENOUGH * self.p} persons, or subtract the usual value first."
            found.append(said)
        return found

    def by_column(self) -> list[list[str]]:
        """Return name, shares of persons and step of each column, under :data:`HEADINGS`."""
        return [
            [
                name,
                f"{self.one_value[name]:.1%}",
                f"{self.unreleased[name]:.1%}",
                self.step_text(name),
            ]
            for name in self.one_value
        ]


#: What :meth:`TableFigures.by_column` returns.
HEADINGS: Final = ("column", "in groups of one value", "not released", "rounded to")


def measure_table(
    table: ProtectedTable,
    blocks: Iterable[tuple[Sequence[SourceColumn], IntArray | NDArray[np.int32]]],
    p: int,
    units: Mapping[str, str] | None = None,
) -> TableFigures | None:
    """Compare a table with the persons that it was made from; None if there are none of them.

    Memory grows with the table, not with the persons.

    Parameters
    ----------
    table : ProtectedTable
    blocks : iterable of (sequence of SourceColumn, (n,) int)
        One value a person in at least the table's columns, and the group of each, -1 for none. The
        persons of a group may be in several blocks.
    p : int
    units : mapping of str to str, optional
        Of the columns' numbers.
    """
    m = len(table.sizes)
    equal = [_EqualValues(m) for _ in table.columns]
    persons, seen, stride = np.zeros(m, dtype=np.int64), 0, int(table.sizes.sum()) // _SAMPLE or 1
    sampled: list[list[FloatArray]] = [[] for _ in table.columns]
    sampled_groups = []
    for sources, rows in blocks:
        kept = rows >= 0
        groups = rows[kept].astype(np.int64)
        persons += np.bincount(groups, minlength=m)
        given = {source.name: source.values for source in sources}
        values = [given[name][kept] for name in table.names()]
        every = slice(-seen % stride, None, stride)
        seen += len(groups)
        sampled_groups.append(groups[every])
        for column, own, some in zip(equal, values, sampled, strict=True):
            column.add(own, groups)
            some.append(own[every].copy())
    n = int(persons.sum())
    if not n:
        return None
    released = dict(zip(table.names(), table.released, strict=True))
    known = {name: values[~np.isnan(values)] for name, values in released.items()}
    # Rounding means nothing where all records are 0 or 1.
    steps = {
        column.name: column.step
        for column in table.columns
        if column.n_levels is None and not np.isin(known[column.name], (0.0, 1.0)).all()
    }
    all_equal = tuple(name for name, v in known.items() if len(v) and (v == v[0]).all())
    return TableFigures(
        n_persons=n,
        n_groups=m,
        p=p,
        group_sizes=(int(table.sizes.min()), int(table.sizes.max())),
        distance_sd=_median_distance(
            table, list(map(np.concatenate, sampled)), np.concatenate(sampled_groups)
        ),
        one_value={
            name: float(persons[column.all_equal].sum() / n)
            for name, column in zip(released, equal, strict=True)
        },
        unreleased={
            name: float(persons[np.isnan(values)].sum() / n) for name, values in released.items()
        },
        steps=steps,
        all_equal=all_equal,
        coarse=tuple(
            name
            for name, step in steps.items()
            if len(known[name]) and name not in all_equal
            if _COARSE * known[name].std() < step
        ),
        units=units or {},
    )


class _EqualValues:
    """Which groups (m,) have one value of a column; a missing value differs from every other."""

    def __init__(self, m: int) -> None:
        self._first, self.all_equal = np.full(m, np.nan), np.ones(m, dtype=np.bool_)

    def add(self, values: FloatArray, groups: IntArray) -> None:
        begins = np.isnan(self._first[groups])
        self._first[groups[begins]] = values[begins]
        self.all_equal[groups[values != self._first[groups]]] = False


def _median_distance(
    table: ProtectedTable, values: Sequence[FloatArray], groups: IntArray
) -> float | None:
    """Return the persons' median distance to their group's record; None without numbers."""
    squares = []
    for column, own, released in zip(table.columns, values, table.released, strict=True):
        gaps = own - released[groups]
        known: BoolArray = ~np.isnan(gaps)
        variance = float(own[known].var()) if known.any() else 0.0
        if column.n_levels is None:
            scaled = np.divide(gaps**2, variance, out=np.zeros(len(own)), where=variance > 0.0)
            squares.append(np.where(known, scaled, 0.0))
    return float(np.median(np.sqrt(np.mean(squares, axis=0)))) if squares else None
