"""Rule: a group releases the middle value of its persons, once at least p of them have a value.

Of numbers it releases the middle value, rounded to a step; of levels the commonest. Give every
person of the group this value, and the group releases the same. So whatever a record proves is
also true of a group of identical persons.

The first records that are not all 0 set the step and the centre, or the order of levels. Later
records do not change them. Persons who wait for a group, and groups that do not release the column,
change nothing.

``found`` is what decides a record: of numbers (m, 2) the two middle values of each group, of levels
(m, L) how many of its persons have each. It is NaN for a
group that releases nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedclust.numeric.array_types import FloatArray, IntArray

#: From this number of groups on, the spread of their middle values tells the step.
_SPREAD_GROUPS = 3
#: The step is at most this part of the standard deviation of the groups' middle values,
_STEP_OF_SD = 10
#: or at most this part of the largest middle value,
_STEP_OF_LARGEST = 2_000
#: or of that with fewer groups, or middle values that are all equal.
_STEP_OF_LARGEST_FEW = 200
#: Differences of so many units in the last place are rounding errors.
_LAST_DIGITS = 8


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
        Number of declared levels; None for a numeric column. A yes/no column is numeric.
    """

    name: str
    values: FloatArray
    n_levels: int | None = None


@dataclass(frozen=True)
class TableColumn:
    """How groups release a column.

    Attributes
    ----------
    name : str
    n_levels : int or None
        As in :class:`SourceColumn`.
    step : float
        Numbers are rounded to its multiples. 0 while it is not set: all records are 0 so far.
    centre : float
        Of two middle values, the one nearer to this is released. It never leaves the site.
    order : tuple of int
        The levels, the commonest first; of equally common levels of a group the first is released.
    """

    name: str
    n_levels: int | None = None
    step: float = 0.0
    centre: float = 0.0
    order: tuple[int, ...] = ()

    @property
    def is_set(self) -> bool:
        """Whether step and centre, or the order of levels, are set."""
        return self.step > 0.0 if self.n_levels is None else bool(self.order)

    def release(
        self, before: FloatArray, found: FloatArray, sizes: IntArray
    ) -> tuple[TableColumn, FloatArray]:
        """Return the column, and all that groups of these sizes (m,) have released of it (m,).

        ``before`` (m,) is what they had released, NaN for nothing, and ``found`` that of groups
        that release now.
        """
        now, column, released = ~np.isnan(found[:, 0]), self, before.copy()
        if now.any():
            if not self.is_set:
                # What was released before it was set were zeros.
                some = now | ~np.isnan(before)
                column = self._set_by(np.where(now[:, None], found, 0.0)[some], sizes[some])
            released[now] = column.records(found[now])
        return column, released

    def _set_by(self, found: FloatArray, sizes: IntArray) -> TableColumn:
        """Return the column, set by groups that all release it."""
        if self.n_levels is not None:
            shares = found / found.sum(axis=1, keepdims=True)
            frequencies = (shares * sizes[:, None]).sum(axis=0)
            return replace(self, order=tuple(np.argsort(-frequencies, kind="stable").tolist()))
        # Halved first: a sum of two large numbers may be infinite.
        centre = weighted_mean(found[:, 0] / 2.0 + found[:, 1] / 2.0, sizes)
        step = find_step(choose_nearer(found, centre), sizes)
        return replace(self, step=step, centre=centre) if step > 0.0 else self

    def records(self, found: FloatArray) -> FloatArray:
        """Return the records (m,) of groups that all release the column."""
        if self.n_levels is not None:
            order = np.array(self.order, dtype=np.int64)
            return np.asarray(order[found[:, order].argmax(axis=1)], dtype=np.float64)
        if not self.is_set:
            return np.zeros(len(found))
        return round_to_step(choose_nearer(found, self.centre), self.step)


# --- what decides a record ------------------------------------------------------------------------


def group_members(groups: IntArray | NDArray[np.int32], n_groups: int) -> IntArray:
    """Return the persons of each group as a matrix (m, largest size), filled up with -1.

    ``groups`` (n,) are from 0; a negative number is no group.
    """
    order = np.argsort(groups, kind="stable")
    order = order[np.searchsorted(groups[order], 0) :]
    sizes = np.bincount(groups[order], minlength=n_groups)
    width = int(sizes.max(initial=1))
    members = np.full((n_groups, width), -1, dtype=np.int64)
    members[np.arange(width) < sizes[:, None]] = order
    return members


def find_middles(
    values: FloatArray, members: IntArray, p: int, n_levels: int | None = None
) -> FloatArray:
    """Return ``found`` for groups, from a column's values (n,) and their :func:`group_members`.

    NaN for a group in which fewer than ``p`` persons have a value.
    """
    held = np.append(values, np.nan)[members]
    n_known = (~np.isnan(held)).sum(axis=1)
    if n_levels is None:
        held.sort(axis=1)  # NaN last
        rows = np.arange(len(held))
        lower = np.maximum(n_known - 1, 0) // 2
        found = np.column_stack([held[rows, lower], held[rows, n_known // 2]])
    else:
        levels = np.arange(n_levels)
        found = np.stack([(held == level).sum(axis=1) for level in levels], axis=1).astype(float)
    found[n_known < p] = np.nan
    return found


def choose_nearer(found: FloatArray, centre: float) -> FloatArray:
    """Return which of two middle values (m, 2) is nearer to the centre, else the lower (m,)."""
    lower, upper = found[:, 0], found[:, 1]
    last_digits = _LAST_DIGITS * np.spacing(np.maximum(np.abs(lower), np.abs(upper)))
    return np.where(upper - centre < centre - lower - last_digits, upper, lower)


# --- the step -------------------------------------------------------------------------------------


def find_step(middles: FloatArray, sizes: IntArray) -> float:
    """Return the step for groups' middle values (m,), weighted by persons; 0 if all are 0."""
    largest = float(np.abs(middles).max())
    sd = 0.0
    if len(middles) >= _SPREAD_GROUPS and (middles != middles[0]).any():
        # In parts of the largest: squares of large numbers may be infinite.
        parts = middles / largest
        sd = largest * math.sqrt(weighted_mean((parts - weighted_mean(parts, sizes)) ** 2, sizes))
    if sd > 0.0:
        return _one_two_five(max(sd / _STEP_OF_SD, largest / _STEP_OF_LARGEST))
    return _one_two_five(largest / _STEP_OF_LARGEST_FEW)


def weighted_mean(values: FloatArray, sizes: IntArray) -> float:
    """Return the mean of values (m,), the same in every order of the groups."""
    return math.fsum((values * sizes).tolist()) / float(sizes.sum())


def _one_two_five(most: float) -> float:
    """Return the largest of 1, 2 and 5 times a power of ten that is at most ``most``."""
    if not most > 0.0:
        return 0.0
    power = math.floor(math.log10(most))
    steps = [float(f"{factor}e{place}") for place in (power - 1, power) for factor in (1, 2, 5)]
    return max((step for step in steps if step <= most), default=0.0)


def round_to_step(values: FloatArray, step: float) -> FloatArray:
    """Return the nearest multiples of a step, as the decimal numbers that they are."""
    # Nine decimals first: a value half-way between two multiples is rounded the same everywhere.
    multiples = np.rint(np.round(values / step, 9))
    factor, _, power = f"{step:.0e}".partition("e")
    places = -int(power)
    if places > 0:
        return np.asarray(multiples * float(factor) / 10.0**places + 0.0)
    return np.asarray(multiples * step + 0.0)
