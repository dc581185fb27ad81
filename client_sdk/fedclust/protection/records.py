"""Rule: a group releases a record that all of its persons could have.

A numeric mean is rounded, a count is 0 or at least p, and a column is released only if every
person of the group has a value. Replacing every person by the group's record gives the same table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedclust.numeric.array_types import FloatArray, IntArray
from fedclust.protection.columns import NumericColumn, TableColumn, round_means

#: The released share of variance within groups is a multiple of this, and at least this.
_SHARE_STEP = 0.05


@dataclass(frozen=True)
class Spread:
    """Sums of squares of a numeric column's n values: about their mean, and within groups."""

    n: int = 0
    mean: float = 0.0
    total: float = 0.0
    within: float = 0.0

    def __add__(self, other: Spread) -> Spread:
        """Merge two sets of values (Chan, Golub and LeVeque 1979)."""
        n = self.n + other.n
        if not n:
            return self
        gap = other.mean - self.mean
        total = self.total + other.total + gap**2 * self.n * other.n / n
        mean = self.mean + gap * other.n / n
        return Spread(n, mean, total, self.within + other.within)

    def share(self) -> float:
        """Return the share of variance within groups, rounded."""
        share = self.within / self.total if self.total > 0.0 else 0.0
        return round(max(_SHARE_STEP, round(share / _SHARE_STEP) * _SHARE_STEP), 2)


class GroupSums:
    """The sums of each group's persons in one column; additive over blocks of persons.

    Attributes
    ----------
    column : TableColumn
    complete : (m,) int64
        Persons that have a value.
    sums : (m,) or (m, L) float64
        Of numbers, the sums of the differences to the column's origin: sums of numbers on the grid
        are exact. Of levels, the counts.
    """

    def __init__(self, column: TableColumn) -> None:
        self.column = column
        self.complete = np.zeros(0, dtype=np.int64)
        self.sums = np.zeros(0 if isinstance(column, NumericColumn) else (0, column.n_levels))
        #: Squares are of differences to this: those to a far origin would lose digits.
        self._shift: float | None = None
        self._squares = 0.0

    def add(self, values: FloatArray, groups: IntArray, n_groups: int) -> None:
        """Add encoded values (n,) of persons in ``groups`` (n,), which count from 0."""
        present = ~np.isnan(values)
        if not present.all():
            values, groups = values[present], groups[present]
        self.complete = _extend(self.complete, n_groups)
        self.complete += np.bincount(groups, minlength=n_groups)
        self.sums = _extend(self.sums, n_groups)
        if not isinstance(self.column, NumericColumn):
            n_levels = self.column.n_levels
            cells = groups * n_levels + values.astype(np.int64)
            counts = np.bincount(cells, minlength=n_groups * n_levels)
            self.sums += counts.reshape(n_groups, n_levels)
            return
        self.sums += np.bincount(groups, weights=values - self.column.origin, minlength=n_groups)
        if self._shift is None and len(values):
            self._shift = float(values.mean())
        if self._shift is not None:
            self._squares += float(((values - self._shift) ** 2).sum())

    def release(self, sizes: IntArray, p: int) -> FloatArray:
        """Return what groups of ``sizes`` (m,) release.

        Returns
        -------
        (m,) or (m, L) float64
            Rounded means or common values, or counts. NaN, or zeros, for a group in which a person
            has no value.
        """
        complete = (self.complete == sizes) & (sizes > 0)
        if not isinstance(self.column, NumericColumn):
            counts = np.where(complete[:, None], self.sums, 0.0).astype(np.int64)
            return release_counts(counts, p).astype(np.float64)
        means = self.sums / np.maximum(self.complete, 1)
        return np.where(complete, round_means(self.column, means), np.nan)

    def share(self) -> float | None:
        """Return a numeric column's share of variance within groups, rounded; else None."""
        return self.spread().share() if isinstance(self.column, NumericColumn) else None

    def spread(self) -> Spread:
        """Return the sums of squares of a numeric column."""
        if self._shift is None or not isinstance(self.column, NumericColumn):
            return Spread()
        sums = self.sums + self.complete * (self.column.origin - self._shift)
        n, shifted = int(self.complete.sum()), float(sums.sum())
        total = self._squares - shifted**2 / n
        within = self._squares - float((sums**2 / np.maximum(self.complete, 1)).sum())
        return Spread(n, self._shift + shifted / n, total, within)


def _extend(array: NDArray[np.generic], length: int) -> NDArray[Any]:
    """Return an array with zeros appended up to ``length``."""
    zeros = np.zeros((length - len(array), *array.shape[1:]), dtype=array.dtype)
    return np.concatenate([array, zeros])


def release_counts(counts: IntArray, p: int) -> IntArray:
    """Return the counts that groups release for the levels of a column.

    Of all counts that are 0 or at least ``p`` and add up to the group's size, the nearest in
    squares; of equally near ones those with fewer levels, then with earlier levels. A group of
    fewer than ``2p`` therefore releases its commonest level alone.

    Parameters
    ----------
    counts : (m, L) int64
        Persons by group and level. A row of zeros stays.
    p : int

    Returns
    -------
    (m, L) int64
    """
    distinct, places = np.unique(counts, axis=0, return_inverse=True)
    return np.stack([_nearest_counts(each, p) for each in distinct])[places.ravel()]


def _nearest_counts(counts: IntArray, p: int) -> IntArray:
    total = int(counts.sum())
    order = np.argsort(-counts, kind="stable")
    best, least = np.zeros_like(counts), np.inf
    for n_kept in range(1, min(len(counts), max(total // p, 1)) + 1):
        kept = order[:n_kept]
        candidate = np.zeros_like(counts)
        candidate[kept] = _raise_to_least(counts[kept], total, p if n_kept > 1 else 0)
        distance = float(((candidate - counts) ** 2).sum())
        if distance < least:
            best, least = candidate, distance
    return best


def _raise_to_least(counts: IntArray, total: int, p: int) -> IntArray:
    """Return the nearest counts that are at least ``p`` each and add up to ``total``."""
    found = np.maximum(counts, p)
    while found.sum() < total:
        found[int((found - counts).argmin())] += 1
    while found.sum() > total:
        excess = np.where(found > p, found - counts, np.iinfo(np.int64).min)
        found[int(excess.argmax())] -= 1
    return found
