"""What a protected table costs and shows, for the site's own eyes: `fedclust check` prints it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedclust.protection.columns import NumericColumn, Source, source_names
from fedclust.protection.table import ProtectedTable, encode_sources

__all__ = ["TableFigures", "measure_table"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


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
        columns.
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
    table: ProtectedTable, sources: Sequence[Source], groups: IntArray
) -> TableFigures:
    """Compare a table with the persons that it was made from.

    Parameters
    ----------
    table : ProtectedTable
    sources : sequence of Source
        One value a person.
    groups : (n,) int64
        The group of each person.
    """
    n, m = len(groups), len(table.sizes)
    by_name = {source.name: source.values for source in sources}
    squares = np.zeros(n)
    n_numeric = 0
    one_value: dict[str, float] = {}
    fenced: dict[str, float] = {}
    unreleased: dict[str, float] = {}
    encoded = encode_sources(table.columns, sources)
    for column, values, released in zip(table.columns, encoded, table.released, strict=True):
        alike = _spans(values, groups, m) == 0.0
        lacks = np.isnan(released) if released.ndim == 1 else released.sum(axis=1) == 0.0
        for name in source_names(column):
            one_value[name] = float(alike[groups].mean())
            unreleased[name] = float(lacks[groups].mean())
        if isinstance(column, NumericColumn):
            raw = by_name[column.name]
            fenced[column.name] = float(np.mean((raw < column.lower) | (raw > column.upper)))
            squares += _squared_distances(values, groups, m)
            n_numeric += 1
    distance = float(np.median(np.sqrt(squares / n_numeric))) if n_numeric else None
    smallest, largest = int(table.sizes.min()), int(table.sizes.max())
    return TableFigures(n, m, (smallest, largest), distance, one_value, fenced, unreleased)


def _spans(values: FloatArray, groups: IntArray, m: int) -> FloatArray:
    """Return each group's largest minus smallest value; NaN where a person has none."""
    highest, lowest = np.full(m, -np.inf), np.full(m, np.inf)
    with np.errstate(invalid="ignore"):
        np.maximum.at(highest, groups, values)
        np.minimum.at(lowest, groups, values)
    return np.asarray(highest - lowest)


def _squared_distances(values: FloatArray, groups: IntArray, m: int) -> FloatArray:
    """Return the squared difference (n,) to the group's mean in variances; 0 where missing."""
    known = ~np.isnan(values)
    spread = float(values[known].std()) if known.any() else 0.0
    if spread == 0.0:
        return np.zeros(len(values))
    filled = np.where(known, values, 0.0)
    sizes = np.maximum(np.bincount(groups, weights=known, minlength=m), 1.0)
    means = np.bincount(groups, weights=filled, minlength=m) / sizes
    return np.asarray(np.where(known, ((filled - means[groups]) / spread) ** 2, 0.0))
