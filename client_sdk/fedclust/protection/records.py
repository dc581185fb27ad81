"""The record that a group releases: one that all of its persons could have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedclust.protection.columns import NumericColumn, TableColumn, round_means

__all__ = ["GroupSums", "Spread", "release_counts"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

#: The released share of variance within groups is a multiple of this, and at least this.
_SHARE_STEP = 0.05


@dataclass(frozen=True)
class Spread:
    """Sums of squares of a numeric column's n values: about their mean, and within groups."""

    n: int = 0
    mean: float = 0.0
    whole: float = 0.0
    within: float = 0.0

    def __add__(self, other: Spread) -> Spread:
        n = self.n + other.n
        if not n:
            return self
        # Chan's merging of means and squares.
        apart = other.mean - self.mean
        whole = self.whole + other.whole + apart**2 * self.n * other.n / n
        mean = self.mean + apart * other.n / n
        return Spread(n, mean, whole, self.within + other.within)

    def share(self) -> float:
        """Return the share of variance within groups, rounded."""
        share = self.within / self.whole if self.whole > 0.0 else 0.0
        return round(max(_SHARE_STEP, round(share / _SHARE_STEP) * _SHARE_STEP), 2)


class GroupSums:
    """What the persons of each group add up to in one column; additive over blocks of persons.

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
        self._shift: float | None = None
        self._squares = 0.0

    def add(self, values: FloatArray, groups: IntArray, n_groups: int) -> None:
        """Add encoded values (n,) of persons in ``groups`` (n,), which count from 0."""
        present = ~np.isnan(values)
        if not present.all():
            values, groups = values[present], groups[present]
        self.complete = _grown(self.complete, n_groups)
        self.complete += np.bincount(groups, minlength=n_groups)
        self.sums = _grown(self.sums, n_groups)
        if not isinstance(self.column, NumericColumn):
            width = self.column.n_levels
            places = groups * width + values.astype(np.int64)
            counts = np.bincount(places, minlength=n_groups * width)
            self.sums += counts.reshape(n_groups, width)
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
            Rounded means or common values, NaN where a person of the group has no value; or
            counts, zeros there.
        """
        complete = (self.complete == sizes) & (sizes > 0)
        if not isinstance(self.column, NumericColumn):
            counts = np.where(complete[:, None], self.sums, 0.0).astype(np.int64)
            return release_counts(counts, p).astype(np.float64)
        means = self.sums / np.maximum(self.complete, 1)
        return np.where(complete, round_means(self.column, means), np.nan)

    def share(self) -> float | None:
        """Return the share of a numeric column's variance within groups, rounded."""
        if not isinstance(self.column, NumericColumn):
            return None
        return self.spread().share()

    def spread(self) -> Spread:
        """Return the sums of squares of a numeric column."""
        if self._shift is None or not isinstance(self.column, NumericColumn):
            return Spread()
        sums = self.sums + self.complete * (self.column.origin - self._shift)
        n, shifted = int(self.complete.sum()), float(sums.sum())
        whole = self._squares - shifted**2 / n
        within = self._squares - float((sums**2 / np.maximum(self.complete, 1)).sum())
        return Spread(n, self._shift + shifted / n, whole, within)


def _grown(array: NDArray[np.generic], length: int) -> NDArray[Any]:
    """Return an array with zeros appended up to ``length``."""
    missing = np.zeros((length - len(array), *array.shape[1:]), dtype=array.dtype)
    return np.concatenate([array, missing])


def release_counts(counts: IntArray, p: int) -> IntArray:
    """Return the counts that groups release for the levels of a column.

    Each is 0 or at least ``p``, and they add up to the group's size. They are the nearest such
    counts in squares. A group of fewer than ``2p`` releases its commonest level alone. Of equal
    choices the one with fewer levels counts, then the one with the earlier levels.

    Parameters
    ----------
    counts : (m, L) int64
        Persons by group and level. A row of zeros stays.
    p : int

    Returns
    -------
    (m, L) int64
    """
    kinds, place = np.unique(counts, axis=0, return_inverse=True)
    return np.stack([_nearest(kind, p) for kind in kinds])[place.ravel()]


def _nearest(counts: IntArray, p: int) -> IntArray:
    total = int(counts.sum())
    order = np.argsort(-counts, kind="stable")
    best = np.zeros_like(counts)
    least = np.inf
    for kept in range(1, min(len(counts), max(total // p, 1)) + 1):
        draft = np.zeros_like(counts)
        chosen = order[:kept]
        draft[chosen] = _fill(counts[chosen], total, p if kept > 1 else 0)
        distance = float(((draft - counts) ** 2).sum())
        if distance < least:
            best, least = draft, distance
    return best


def _fill(counts: IntArray, total: int, p: int) -> IntArray:
    """Return the nearest counts that are at least ``p`` each and add up to ``total``."""
    found = np.maximum(counts, p)
    while found.sum() < total:
        found[int((found - counts).argmin())] += 1
    while found.sum() > total:
        excess = np.where(found > p, found - counts, np.iinfo(np.int64).min)
        found[int(excess.argmax())] -= 1
    return found
