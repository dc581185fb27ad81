"""How each column of a site's source is released: kind, grid, fences, levels.

These facts are read from the first table's persons and then kept: later persons are released by
the same rules, and no session can change them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "LevelColumn",
    "NumericColumn",
    "SourceColumn",
    "TableColumn",
    "clip_to_fences",
    "collect_distinct",
    "describe_columns",
    "encode_levels",
    "round_means",
    "snap_to_grid",
    "source_names",
]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

#: A value beyond the quartiles by this many interquartile ranges counts as that fence,
_FENCE = 3.0
#: unless it is nearer to the median than twice the value that this share of the persons is beyond,
#: or 2p of them where these are more: what so many persons have is no lone extreme.
_TAIL = 0.05
#: A numeric column of at most so many common values releases one of these.
_MOST_COMMON = 20
#: A mean is rounded to at most this part of the column's standard deviation. A quarter cost up to
#: .03 of inertia where clusters are narrow beside the column's spread.
_STEP_SHARE = 0.1
#: A grid finer than this many decimal digits is no grid.
_MOST_DECIMALS = 6


@dataclass(frozen=True)
class SourceColumn:
    """One column of a site's source, one value a person.

    Attributes
    ----------
    name : str
    values : (n,) float64
        Numbers, NaN where missing; of a column with levels their places from 0 on. Contiguous:
        passes over a column of a row-major matrix take several times as long.
    n_levels : int or None
        Number of declared levels; None for a numeric column.
    """

    name: str
    values: FloatArray
    n_levels: int | None = None


@dataclass(frozen=True)
class NumericColumn:
    """A numeric column: released as a group's mean, rounded.

    Attributes
    ----------
    name : str
    step : float
        Means are rounded to ``origin`` plus a multiple of it.
    origin : float
    lower, upper : float
        The fences: values beyond them count as these. Infinite where there is none.
    values : tuple of float
        Where nearly all persons have one of a few values, these: a group releases the one that is
        nearest to its mean. Empty for other columns.
    """

    name: str
    step: float
    origin: float
    lower: float
    upper: float
    values: tuple[float, ...] = ()


@dataclass(frozen=True)
class LevelColumn:
    """A column of levels: released as a group's counts.

    It stands for one categorical column, one column of two numbers, or several yes/no columns
    that logic ties together.

    Attributes
    ----------
    names : tuple of str
        The source columns.
    n_levels : int
    values : tuple of (tuple of float), one for each source column
        What each level means in that column: the number, or the place of the level.
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
        In the order of the sources; tied yes/no columns stand at the place of their first.
    """
    numeric: dict[str, NumericColumn] = {}
    levels: dict[str, LevelColumn] = {}
    two_valued: list[SourceColumn] = []
    for source in sources:
        if source.n_levels is not None:
            places = tuple(float(level) for level in range(source.n_levels))
            levels[source.name] = LevelColumn((source.name,), source.n_levels, (places,))
            continue
        # Sorted: sums do not depend on the order of the persons.
        values = np.sort(source.values[~np.isnan(source.values)])
        begins = np.flatnonzero(np.append(True, values[1:] != values[:-1])[: len(values)])
        if len(begins) == 2:
            two_valued.append(source)
        else:
            numeric[source.name] = _describe_numeric(source.name, values, begins, p, fences=fences)
    for column in _tie_yes_no(two_valued):
        levels[column.names[0]] = column
    found: list[TableColumn] = []
    for source in sources:
        if source.name in numeric:
            found.append(numeric[source.name])
        elif source.name in levels:
            found.append(levels[source.name])
    return tuple(found)


# --- numbers --------------------------------------------------------------------------------------


def _describe_numeric(
    name: str, values: FloatArray, begins: IntArray, p: int, *, fences: bool
) -> NumericColumn:
    """Describe a column by its sorted values, and the places where other values begin."""
    if not len(values):
        return NumericColumn(name, 1.0, 0.0, -np.inf, np.inf)
    lower, upper = _fences(values, p) if fences else (-np.inf, np.inf)
    grid, origin = _grid(values[begins])
    spread = float(np.clip(values, lower, upper).std())
    counts = np.diff(begins, append=len(values))
    common = counts >= p
    few = 2 <= common.sum() <= _MOST_COMMON and counts[~common].sum() < p
    held = tuple(values[begins[common]].tolist()) if few else ()
    return NumericColumn(name, max(grid, _below(spread)), origin, lower, upper, held)


def _fences(values: FloatArray, p: int) -> tuple[float, float]:
    """Return the fences of sorted values; infinite where half of them are alike."""
    tail = min(0.25, max(_TAIL, 2 * p / len(values)))
    places = np.array([tail, 0.25, 0.5, 0.75, 1.0 - tail]) * (len(values) - 1)
    below, above = values[np.floor(places).astype(int)], values[np.ceil(places).astype(int)]
    low, first, middle, third, high = below + (above - below) * (places % 1.0)
    if not third > first:
        return -np.inf, np.inf
    lower = min(first - _FENCE * (third - first), low - (middle - low))
    upper = max(third + _FENCE * (third - first), high + (high - middle))
    return float(lower), float(upper)


def _grid(values: FloatArray) -> tuple[float, float]:
    """Return the coarsest grid that holds all sorted values, and its origin; else (0, 0).

    Of equal values the grid is their last decimal digit.
    """
    for decimals in range(_MOST_DECIMALS + 1):
        scale = 10.0**decimals
        if max(-values[0], values[-1]) * scale > 2.0**52:
            break
        # A few first: of most columns these are enough to tell that there is no grid.
        if _are_whole(values[:100] * scale) and _are_whole(values * scale):
            numbers = np.rint(values * scale).astype(np.int64)
            step = int(np.gcd.reduce(numbers - numbers.min())) or 1
            unit = 10.0**-decimals
            return step * unit, int(numbers[0] % step) * unit
    return 0.0, 0.0


def _are_whole(values: FloatArray) -> bool:
    gaps = np.abs(values - np.rint(values))
    return bool(np.all(gaps <= 1e-9 * np.maximum(1.0, np.abs(values))))


def _below(spread: float) -> float:
    """Return the largest of 1, 2, 5 times a power of ten that is at most a tenth of ``spread``."""
    most = spread * _STEP_SHARE
    if not most > 0.0:
        return 0.0
    power = 10.0 ** np.floor(np.log10(most))
    fitting = [factor * power for factor in (1.0, 2.0, 5.0) if factor * power <= most]
    return float(fitting[-1] if fitting else 0.5 * power)


def clip_to_fences(column: NumericColumn, values: FloatArray) -> FloatArray:
    """Return values (n,) with those beyond the fences put on them; NaN stays."""
    return np.clip(values, column.lower, column.upper)


def round_means(column: NumericColumn, means: FloatArray) -> FloatArray:
    """Return what groups release for their means (m,), less the column's origin.

    That is the nearest multiple of the step; or the nearest common value, of two the lower.
    """
    # Nine decimals first: a mean half-way between two values is rounded the same everywhere.
    if column.values:
        common = np.array(column.values)
        whole = means + column.origin
        lower = np.clip(np.searchsorted(common, whole) - 1, 0, len(common) - 2)
        parts = (whole - common[lower]) / (common[lower + 1] - common[lower])
        return np.asarray(common[lower + (np.round(parts, 9) > 0.5)])
    if column.step > 0.0:
        means = np.rint(np.round(means / column.step, 9)) * column.step
    return means + column.origin


def snap_to_grid(column: NumericColumn, values: FloatArray) -> FloatArray:
    """Return values (n,) on the column's grid: those that differ by less say the same."""
    held = clip_to_fences(column, values)
    return np.rint((held - column.origin) / column.step) if column.step > 0.0 else held


def collect_distinct(known: FloatArray, values: FloatArray) -> FloatArray:
    """Return up to three different values, sorted, of those ``known`` and of ``values`` (n,)."""
    # The first values of most columns are enough.
    for some in (values[:1_000], values):
        if len(known) > 2:
            break
        known = np.union1d(known, np.unique(some[~np.isnan(some)])[:3])[:3]
    return known


# --- levels ---------------------------------------------------------------------------------------


def _tie_yes_no(sources: Sequence[SourceColumn]) -> list[LevelColumn]:
    """Join yes/no columns that logic ties together: exclusive ones, and nested ones."""
    # The larger number is yes.
    pairs = {each.name: np.unique(each.values[~np.isnan(each.values)]) for each in sources}
    yes = {each.name: each.values == pairs[each.name][1] for each in sources}
    known = {each.name: ~np.isnan(each.values) for each in sources}

    def together(first: str, second: str, one: bool, other: bool) -> bool:
        both = known[first] & known[second]
        return bool(np.any(both & (yes[first] == one) & (yes[second] == other)))

    left = [each.name for each in sources]
    found: list[LevelColumn] = []
    while left:
        first = left.pop(0)
        exclusive, chain = [first], [first]
        for other in left:
            if all(not together(each, other, True, True) for each in exclusive):
                exclusive.append(other)
            if all(
                not together(each, other, False, True) or not together(each, other, True, False)
                for each in chain
            ):
                chain.append(other)
        if len(exclusive) >= len(chain):
            members, meanings = exclusive, _exclusive_levels(len(exclusive))
        else:
            members = sorted(chain, key=lambda name: -int(np.sum(yes[name] & known[name])))
            meanings = _nested_levels(len(chain))
        left = [name for name in left if name not in members]
        values = tuple(
            tuple(float(pairs[name][has]) for has in meaning)
            for name, meaning in zip(members, meanings, strict=True)
        )
        names = tuple(members)
        if first != names[0]:  # the column stands at the place of its first source
            at = names.index(first)
            names = (first, *names[:at], *names[at + 1 :])
            values = (values[at], *values[:at], *values[at + 1 :])
        found.append(LevelColumn(names, len(meanings[0]), values))
    return found


def _exclusive_levels(count: int) -> list[list[int]]:
    """Return whether each column is yes at each level: none of them, the first, the second, …"""
    return [[int(level == place + 1) for level in range(count + 1)] for place in range(count)]


def _nested_levels(count: int) -> list[list[int]]:
    """Return whether each column is yes at each level: none, the commonest, the two commonest…"""
    return [[int(level > place) for level in range(count + 1)] for place in range(count)]


def encode_levels(column: LevelColumn, values: Sequence[FloatArray]) -> FloatArray:
    """Return the level (n,) of each person, NaN where there is none.

    A person whose values fit no level, which only later persons can be, has none.

    Parameters
    ----------
    column : LevelColumn
    values : sequence of (n,) float64
        One for each of the column's source columns.
    """
    codes = np.full(len(values[0]), np.nan)
    for level in range(column.n_levels - 1, -1, -1):
        fits = np.ones(len(codes), dtype=np.bool_)
        for meaning, each in zip(column.values, values, strict=True):
            fits &= each == meaning[level]
        codes[fits] = level
    return codes
