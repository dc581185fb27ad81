"""Rule: how a column is released is set when it is first released, and never changed.

It is read from what groups release, never from single persons: persons who wait for a group, and
groups that do not release the column, change nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

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

    def set_by(self, found: FloatArray, sizes: IntArray) -> TableColumn:
        """Return the column, set by the groups that release it first.

        Parameters
        ----------
        found : (m, 2) or (m, L) float64
            As :func:`fedclust.protection.records.find_middles` returns it.
        sizes : (m,) int64
        """
        if self.n_levels is not None:
            shares = found / found.sum(axis=1, keepdims=True)
            frequencies = (shares * sizes[:, None]).sum(axis=0)
            return replace(self, order=tuple(np.argsort(-frequencies, kind="stable").tolist()))
        # Halved first: a sum of two large numbers may be infinite.
        centre = weighted_mean(found[:, 0] / 2.0 + found[:, 1] / 2.0, sizes)
        step = find_step(choose_nearer(found, centre), sizes)
        return replace(self, step=step, centre=centre) if step > 0.0 else self

    def release(
        self, before: FloatArray, found: FloatArray, sizes: IntArray
    ) -> tuple[TableColumn, FloatArray]:
        """Return the column, and all that groups have released of it.

        Parameters
        ----------
        before : (m,) float64
            What they have released so far; NaN for nothing.
        found : (m, 2) or (m, L) float64
            See :meth:`set_by`; NaN for groups that release nothing now.
        sizes : (m,) int64
        """
        now, column, released = ~np.isnan(found[:, 0]), self, before.copy()
        if now.any():
            if not self.is_set:
                # What was released before it was set were zeros.
                some = now | ~np.isnan(before)
                column = self.set_by(np.where(now[:, None], found, 0.0)[some], sizes[some])
            released[now] = column.records(found[now])
        return column, released

    def records(self, found: FloatArray) -> FloatArray:
        """Return the records (m,) of groups, given their middle values or counts of levels."""
        if self.n_levels is not None:
            order = np.array(self.order, dtype=np.int64)
            return np.asarray(order[found[:, order].argmax(axis=1)], dtype=np.float64)
        if not self.is_set:
            return np.zeros(len(found))
        return round_to_step(choose_nearer(found, self.centre), self.step)


def choose_nearer(found: FloatArray, centre: float) -> FloatArray:
    """Return which of two middle values (m, 2) is nearer to the centre, else the lower (m,)."""
    lower, upper = found[:, 0], found[:, 1]
    last_digits = _LAST_DIGITS * np.spacing(np.maximum(np.abs(lower), np.abs(upper)))
    return np.where(upper - centre < centre - lower - last_digits, upper, lower)


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
