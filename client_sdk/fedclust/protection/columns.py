"""Rule: a column's rounding step, fences and levels are set once, and no session changes them.

They are read from the persons of the first table. Later persons are released by the same ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from fedclust.numeric.array_types import FloatArray, IntArray

#: A fence lies this many interquartile ranges beyond the quartile, or further out (_TAIL).
_FENCE = 3.0
#: A fence is at least twice as far from the median as the value beyond which this share of the
#: persons lies, or 2p persons if these are more: a value that so many have is no lone extreme.
_TAIL = 0.05
#: A numeric column with at most this many common values releases one of them.
_MOST_COMMON = 20
#: The rounding step is at most this part of the column's standard deviation. A quarter cost up to
#: .03 of inertia where clusters are narrow compared with the column's spread.
_STEP_SHARE = 0.1
#: Values with more decimal digits than this have no grid.
_MOST_DECIMALS = 6


@dataclass(frozen=True)
class SourceColumn:
    """One column of a site's source, one value a person.

    Attributes
    ----------
    name : str
    values : (n,) float64
        Numbers, or indices of levels; NaN where missing. Contiguous: passes over a column of a
        row-major matrix take several times as long.
    n_levels : int or None
        Number of declared levels; None for a numeric column.
    """

    name: str
    values: FloatArray
    n_levels: int | None = None


@dataclass(frozen=True)
class NumericColumn:
    """A numeric column: a group releases its mean, rounded.

    Attributes
    ----------
    name : str
    step, origin : float
        Means are rounded to ``origin`` plus a multiple of ``step``.
    lower, upper : float
        The fences: values beyond them count as these. Infinite where there is none.
    values : tuple of float
        If nearly all persons have one of a few values, these: a group releases the one nearest to
        its mean. Else empty.
    """

    name: str
    step: float
    origin: float
    lower: float
    upper: float
    values: tuple[float, ...] = ()


@dataclass(frozen=True)
class LevelColumn:
    """A column of levels: a group releases the number of persons at each level.

    It stands for one categorical column, one column with two values, or several yes/no columns
    that depend on each other logically.

    Attributes
    ----------
    names : tuple of str
        The source columns.
    n_levels : int
    values : tuple of (tuple of float), one for each source column
        The column's value at each level: a number, or the index of a source level.
    """

    names: tuple[str, ...]
    n_levels: int
    values: tuple[tuple[float, ...], ...]


TableColumn: TypeAlias = NumericColumn | LevelColumn


def source_names(column: TableColumn) -> tuple[str, ...]:
    """Return the source columns that a table column stands for."""
    return (column.name,) if isinstance(column, NumericColumn) else column.names


def describe_columns(
    sources: Sequence[SourceColumn], p: int, *, fences: bool = True
) -> tuple[TableColumn, ...]:
    """Decide how the columns of a source are released.

    Parameters
    ----------
    sources : sequence of SourceColumn
        Of the same persons.
    p : int
        The least number of persons behind every released number.
    fences : bool
        Whether extremes count as a fence. Without fences, lone extremes are not protected.

    Returns
    -------
    tuple of TableColumn
        In the order of the sources. A column of several yes/no columns takes the place of the
        first of them.
    """
    described: dict[str, TableColumn] = {}
    yes_no: list[SourceColumn] = []
    for source in sources:
        if source.n_levels is not None:
            levels = tuple(float(level) for level in range(source.n_levels))
            described[source.name] = LevelColumn((source.name,), source.n_levels, (levels,))
            continue
        # Sorted: sums do not depend on the order of the persons.
        values = np.sort(source.values[~np.isnan(source.values)])
        starts = np.flatnonzero(np.append(True, values[1:] != values[:-1])[: len(values)])
        if len(starts) == 2:
            yes_no.append(source)
        else:
            described[source.name] = _describe_numeric(source.name, values, starts, p, fences)
    described |= {column.names[0]: column for column in _join_yes_no(yes_no)}
    return tuple(described[source.name] for source in sources if source.name in described)


# --- numbers --------------------------------------------------------------------------------------


def _describe_numeric(
    name: str, values: FloatArray, starts: IntArray, p: int, fences: bool
) -> NumericColumn:
    """Describe a column by its sorted values, and the index at which each distinct one starts."""
    if not len(values):
        return NumericColumn(name, 1.0, 0.0, -np.inf, np.inf)
    lower, upper = _find_fences(values, p) if fences else (-np.inf, np.inf)
    grid, origin = _find_grid(values[starts])
    step = max(grid, _rounding_step(float(np.clip(values, lower, upper).std())))
    counts = np.diff(starts, append=len(values))
    common = counts >= p
    few = 2 <= common.sum() <= _MOST_COMMON and counts[~common].sum() < p
    common_values = tuple(values[starts[common]].tolist()) if few else ()
    return NumericColumn(name, step, origin, lower, upper, common_values)


def _find_fences(values: FloatArray, p: int) -> tuple[float, float]:
    """Return the fences of sorted values; infinite if the interquartile range is 0."""
    tail = min(0.25, max(_TAIL, 2 * p / len(values)))
    ranks = np.array([tail, 0.25, 0.5, 0.75, 1.0 - tail]) * (len(values) - 1)
    below, above = values[np.floor(ranks).astype(int)], values[np.ceil(ranks).astype(int)]
    low, first, median, third, high = below + (above - below) * (ranks % 1.0)
    if not third > first:
        return -np.inf, np.inf
    lower = min(first - _FENCE * (third - first), low - (median - low))
    upper = max(third + _FENCE * (third - first), high + (high - median))
    return float(lower), float(upper)


def _find_grid(values: FloatArray) -> tuple[float, float]:
    """Return step and origin of the coarsest decimal grid that holds all sorted values.

    (0, 0) if there is none. If all values are equal, the step is their last decimal digit.
    """
    for decimals in range(_MOST_DECIMALS + 1):
        scale = 10.0**decimals
        if max(-values[0], values[-1]) * scale > 2.0**52:
            break
        # The first 100 values rule out a grid for most columns that have none.
        if _all_whole(values[:100] * scale) and _all_whole(values * scale):
            numbers = np.rint(values * scale).astype(np.int64)
            step = int(np.gcd.reduce(numbers - numbers.min())) or 1
            unit = 10.0**-decimals
            return step * unit, int(numbers[0] % step) * unit
    return 0.0, 0.0


def _all_whole(values: FloatArray) -> bool:
    gaps = np.abs(values - np.rint(values))
    return bool(np.all(gaps <= 1e-9 * np.maximum(1.0, np.abs(values))))


def _rounding_step(sd: float) -> float:
    """Return the largest of 1, 2, 5 times a power of ten that is at most a tenth of ``sd``."""
    most = sd * _STEP_SHARE
    if not most > 0.0:
        return 0.0
    power = 10.0 ** np.floor(np.log10(most))
    fitting = [factor * power for factor in (1.0, 2.0, 5.0) if factor * power <= most]
    return float(fitting[-1] if fitting else 0.5 * power)


def clip_to_fences(column: NumericColumn, values: FloatArray) -> FloatArray:
    """Return values (n,), those beyond a fence replaced by it; NaN stays."""
    return np.clip(values, column.lower, column.upper)


def round_means(column: NumericColumn, means: FloatArray) -> FloatArray:
    """Return what groups release for their means (m,), given less the column's origin.

    The nearest multiple of the step; or the nearest common value, the lower of two.
    """
    # Nine decimals first: a mean half-way between two values is rounded the same everywhere.
    if column.values:
        common = np.array(column.values)
        shifted = means + column.origin
        lower = np.clip(np.searchsorted(common, shifted) - 1, 0, len(common) - 2)
        parts = (shifted - common[lower]) / (common[lower + 1] - common[lower])
        return np.asarray(common[lower + (np.round(parts, 9) > 0.5)])
    if column.step > 0.0:
        means = np.rint(np.round(means / column.step, 9)) * column.step
    return means + column.origin


def snap_to_grid(column: NumericColumn, values: FloatArray) -> FloatArray:
    """Return values (n,) as multiples of the column's step: smaller differences do not count."""
    clipped = clip_to_fences(column, values)
    return np.rint((clipped - column.origin) / column.step) if column.step > 0.0 else clipped


def collect_distinct(found: FloatArray, values: FloatArray) -> FloatArray:
    """Return up to three distinct values, sorted, of those ``found`` before and ``values`` (n,)."""
    # The first values of most columns are enough.
    for some in (values[:1_000], values):
        if len(found) > 2:
            break
        found = np.union1d(found, np.unique(some[~np.isnan(some)])[:3])[:3]
    return found


# --- levels ---------------------------------------------------------------------------------------


def _join_yes_no(sources: Sequence[SourceColumn]) -> list[LevelColumn]:
    """Join yes/no columns of which no person has two (exclusive), or which imply others (nested).

    Counts of the single columns could be subtracted from one another. Among the persons who have
    both columns, each must take both values: else a column that is known for survivors alone would
    be exclusive with death, and the joined column would lose every death.
    """
    # The larger number is yes.
    pairs = {each.name: np.unique(each.values[~np.isnan(each.values)]) for each in sources}
    yes = {each.name: each.values == pairs[each.name][1] for each in sources}
    present = {each.name: ~np.isnan(each.values) for each in sources}

    def may_occur(first: str, second: str, one: bool, other: bool) -> bool:
        both = present[first] & present[second]
        of_first, of_second = yes[first][both], yes[second][both]
        if not all(each.any() and not each.all() for each in (of_first, of_second)):
            return True
        return bool(np.any((of_first == one) & (of_second == other)))

    remaining = [each.name for each in sources]
    joined: list[LevelColumn] = []
    while remaining:
        first = remaining.pop(0)
        exclusive, nested = [first], [first]
        for other in remaining:
            if all(not may_occur(each, other, True, True) for each in exclusive):
                exclusive.append(other)
            if all(
                not may_occur(each, other, False, True) or not may_occur(each, other, True, False)
                for each in nested
            ):
                nested.append(other)
        if len(exclusive) >= len(nested):
            # Level 0: none of them; level k: the k-th.
            members = exclusive
            is_yes = np.eye(len(members), len(members) + 1, 1, dtype=np.int64)
        else:
            # Level k: the k commonest.
            members = sorted(nested, key=lambda name: -int(np.sum(yes[name] & present[name])))
            is_yes = np.triu(np.ones((len(members), len(members) + 1), dtype=np.int64), 1)
        remaining = [name for name in remaining if name not in members]
        values = {
            name: tuple(pairs[name][levels].tolist())
            for name, levels in zip(members, is_yes, strict=True)
        }
        # The first source column names the place in the table.
        names = (first, *(name for name in members if name != first))
        joined.append(LevelColumn(names, len(members) + 1, tuple(values[name] for name in names)))
    return joined


def encode_levels(column: LevelColumn, values: Sequence[FloatArray]) -> FloatArray:
    """Return the level (n,) of each person; NaN if the values fit none, as later persons' may.

    Parameters
    ----------
    column : LevelColumn
    values : sequence of (n,) float64
        One for each of the column's source columns.
    """
    codes = np.full(len(values[0]), np.nan)
    for level in range(column.n_levels - 1, -1, -1):
        fits = np.ones(len(codes), dtype=np.bool_)
        for level_values, each in zip(column.values, values, strict=True):
            fits &= each == level_values[level]
        codes[fits] = level
    return codes
