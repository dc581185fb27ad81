"""Which sums of squared deviations (M2) of a site's cells may be told, column by column.

Mean and M2 of rows of which all but a few share a value tell what these few have. So it is held
back where fewer than p persons of a cell have another than the usual value (:func:`few_differ`).
What is held back must not follow from what is told: the totals are known, so the rest and all cells
that are held back in a column are one set of rows by subtraction, and where a session tells of
several partitions, as a sweep does, so are sets of one of them taken from sets of another. Who has
another value than the usual one is a yes/no property, and in no set that is known do 1 to p - 1
persons have it: what :mod:`fedclust.privacy.shares` looks after.

The cost of a cell is the sum over its columns. Where one is held back so is another, always the
same beside all, and another one beside that: of two unknown numbers only the sum is told.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedclust.algorithms.base import Memory, RunConfig, SiteData
from fedclust.algorithms.releasing import index_of
from fedclust.algorithms.spaces import binary_columns
from fedclust.privacy.counting import Labels, PersonIndex, row_hashes
from fedclust.privacy.shares import Shares

__all__ = ["NAME", "few_differ", "tellable"]

FloatArray = NDArray[np.float64]
IntVector = NDArray[np.int64]
Flags = NDArray[np.bool_]
#: Values of a column, or their digests where memory does not hold the rows: equal where they are.
Values: TypeAlias = NDArray[Any]

#: The place of what was told in a site's memory.
NAME = "spreads"
#: Rows of a set that are looked at first: with many values among these, none is the usual one.
_FIRST = 64
#: So many sets are looked for one by one, which takes less memory than to sort the rows.
_FEW_SETS = 64
#: Rows by which columns are ranked.
_RANKED = 4_096


def few_differ(values: Values, rows: NDArray[np.intp], index: PersonIndex, p: int) -> bool:
    """Return whether too few of some rows (m,), by number, have another than the usual value.

    ``values`` (m,) are theirs.
    """
    distinct, of, counts = np.unique(values, return_inverse=True, return_counts=True)
    usual = rows[of == counts.argmax()]
    if len(distinct) > 2 and not index.reaches(usual, p):
        return False
    others = rows[of != counts.argmax()]
    return not (index.allows(others, p) and index.allows(usual, p))


def tellable(
    data: SiteData, labels: Labels, m2: FloatArray, config: RunConfig, memory: Memory
) -> tuple[Flags, Memory]:
    """Return which M2 (K, d) of a partition may be told, and the memory that records them.

    Those of yes/no columns follow from their shares: they may.

    Parameters
    ----------
    data : SiteData
        Scaled rows.
    labels : (n,) int64
        The cell of each row; -1 for the rest, of which nothing is told.
    m2 : (K, d) float64
        The cells'.
    config : RunConfig
    memory : dict
        The session's memory at this site.
    """
    before = tuple(memory.get(NAME, ()))
    told = [(np.frombuffer(rows, dtype="<i2"), np.asarray(held)) for rows, held in before]
    held = _Spreads(data, config, told).hold(labels, m2)
    kept = (*before, (labels.astype("<i2").tobytes(), held))
    numeric = config.mask & ~binary_columns(config.columns)
    return ~(held & numeric), {**memory, NAME: kept}


class _Spreads:
    """What may be told of the M2 of partitions of a site's rows, given what was told before.

    Parameters
    ----------
    data : SiteData
        Scaled rows.
    config : RunConfig
    told : sequence of ((n,) int16, (K, d) bool)
        Partitions before, and what was held back of each.
    """

    def __init__(
        self, data: SiteData, config: RunConfig, told: Sequence[tuple[NDArray[np.int16], Flags]]
    ) -> None:
        self._data, self._p, self._index = data, config.p, index_of(data)
        self._numeric = np.flatnonzero(config.mask & ~binary_columns(config.columns))
        self._weights = self._index.weights()
        #: The values that p rows share, of the columns in which that was asked.
        self._known: dict[int, Values] = {}
        #: Of the columns that were asked for, what tells their values apart.
        self._columns: dict[int, Values] = {}
        self._pair: IntVector | None = None
        self._told = told

    def hold(self, labels: Labels, m2: FloatArray) -> Flags:
        """Return which M2 (K, d) of a partition are held back.

        Parameters
        ----------
        labels : (n,) int64
            Cell of each row, -1 for the rest.
        m2 : (K, d) float64
            The cells'.
        """
        held = np.zeros(m2.shape, dtype=np.bool_)
        if self._p > 1:
            held[:, self._numeric] = self._few(labels, len(m2))
            held = self._hidden(labels, held, m2)
        return held

    def _hidden(self, labels: Labels, few: Flags, m2: FloatArray) -> Flags:
        """Return the flags with all that has to be held back so that ``few`` may not be told."""
        usual = self._usual(labels)
        columns = np.array([j for j, _ in usual], dtype=np.int64)
        shares = self._properties(usual)
        before = [(then, flags[:, columns]) for then, flags in self._told]
        while True:
            held = self._with_others(few, m2)
            if not usual:
                return held
            found = shares.to_round(labels, len(held), before, held[:, columns])
            if not (found & ~held[:, columns]).any():
                return held
            for place, j in enumerate(columns):
                few[:, j] |= found[:, place]

    def _with_others(self, few: Flags, m2: FloatArray) -> Flags:
        """Return the flags with what, beside the cost, would tell the rest of a cell."""
        held = few.copy()
        cells = np.flatnonzero(few.any(axis=1))
        if not cells.size:
            return held
        if self._pair is None:
            self._pair = self._beside()
        held[cells, self._pair[0]] = True
        held[cells, self._pair[-1]] |= few[cells, self._pair[0]]
        for cell in cells:
            spread = self._numeric[m2[cell, self._numeric] > 0]
            hidden = held[cell, spread]
            # Behind a constant nothing is hidden.
            if hidden.sum() == 1 and hidden.size > 1:
                held[cell, spread[(int(hidden.argmax()) + 1) % spread.size]] = True
        return held

    def _properties(self, usual: list[tuple[int, Any]]) -> Shares:
        """Return who has another value than the usual one, for each column and value."""
        columns, b = [j for j, _ in usual], len(usual)
        sides = self._data.rows.array(np.bool_, 2, b)
        for place, (j, value) in enumerate(usual):
            sides[0, place] = self._seen(j) & (self._columns[j] != value)
        return Shares(
            self._data.X,
            self._index,
            self._p,
            columns=np.ones(b, dtype=np.bool_),
            center=np.zeros(b),
            scale=np.ones(b),
            blocks=[np.flatnonzero(np.array(columns) == j) for j in sorted(set(columns))],
            sides=sides,
            both=False,
            roughly=True,
        )

    def _usual(self, labels: Labels) -> list[tuple[int, Any]]:
        """Return the columns and values that all but a few rows of some known set may share."""
        found: set[tuple[int, Any]] = set()
        for then in [None, *(then for then, _ in self._told)]:
            arcs = labels + 1
            if then is not None:
                width = int(then.max(initial=0)) + 2
                pairs = arcs.astype(np.int64) * width + then + 1
                arcs = np.unique(pairs, return_inverse=True)[1].reshape(-1)
            possible = self._possible(_members(arcs))
            columns = possible.any(axis=0)
            self._fetch(self._numeric[columns])
            for j, sets in zip(self._numeric[columns].tolist(), possible.T[columns], strict=True):
                found |= {(j, value) for value in self._dominant(j, arcs, sets)}
        return sorted(found)

    def _dominant(self, j: int, arcs: Labels, possible: Flags) -> list[Any]:
        """Return the values that p rows have in those of the sets where few have another.

        ``arcs`` (n,) is the set of each row, ``possible`` (a,) which sets are to be looked at.
        """
        column = self._columns[j]
        rows = np.flatnonzero(possible[arcs] & self._seen(j))
        if not rows.size or not (values := self._shared(j)).size:
            return []
        weights = None if self._weights is None else self._weights[rows]
        own_arcs = arcs[rows].astype(np.int64)
        sizes = np.bincount(own_arcs, weights, minlength=len(possible))
        place = np.searchsorted(values, column[rows])
        place = np.where(values[np.minimum(place, values.size - 1)] == column[rows], place, -1)
        own, of = np.unique(own_arcs * (values.size + 1) + place + 1, return_inverse=True)
        having = np.bincount(of.reshape(-1), weights)
        arc, value = own // (values.size + 1), own % (values.size + 1) - 1
        light = (value >= 0) & (sizes[arc] - having < self._p)
        counts = np.bincount(of.reshape(-1))
        together = np.bincount(value[light], counts[light], minlength=values.size)
        return [values[i].item() for i in np.flatnonzero(together >= self._p)]

    def _beside(self) -> IntVector:
        """Return the two numeric columns, by number, with the most values among the first rows."""
        first = self._data.rows.take(np.arange(min(self._index.n, _RANKED)))
        values = [len(np.unique(first[:, j])) for j in self._numeric]
        return self._numeric[np.argsort(values, kind="stable")[::-1][:2]]

    def _shared(self, j: int) -> Values:
        """Return the values of a column that p rows share."""
        if j not in self._known:
            values, counts = np.unique(self._columns[j][self._seen(j)], return_counts=True)
            self._known[j] = values[counts >= self._p]
        return self._known[j]

    def _seen(self, j: int) -> Flags:
        """Return which rows (n,) have a value of a column."""
        observed = self._data.observed
        return np.ones(self._index.n, dtype=np.bool_) if observed is None else observed[:, j]

    def _few(self, labels: Labels, n_cells: int) -> Flags:
        """Return in which numeric columns few of a cell's rows have another value, (K, m)."""
        cells = _members(labels, range(n_cells))
        unsure = self._possible(cells)
        self._fetch(self._numeric[unsure.any(axis=0)])
        for cell, i in np.argwhere(unsure):
            j = int(self._numeric[i])
            rows = np.flatnonzero((labels == cell) & self._seen(j))
            values = self._columns[j][rows]
            unsure[cell, i] = len(rows) > 0 and few_differ(values, rows, self._index, self._p)
        return unsure

    def _possible(self, sets: list[NDArray[np.intp]]) -> Flags:
        """Return where few may have another value, (S, m), by the first rows (f,) of each set."""
        possible = np.ones((len(sets), len(self._numeric)), dtype=np.bool_)
        if self._weights is None and self._data.observed is None:
            # Rows with different values are different persons' then.
            taken = self._data.rows.take(np.concatenate([*sets, np.empty(0, dtype=np.intp)]))
            ends = np.cumsum([len(rows) for rows in sets])
            for place, first in enumerate(np.split(taken[:, self._numeric], ends[:-1])):
                steps = np.diff(np.sort(first, axis=0), axis=0) != 0
                possible[place] = (steps.sum(axis=0) < self._p) & (len(first) > 0)
        return possible

    def _fetch(self, columns: Iterable[int]) -> None:
        """Make what tells the values of some columns apart, in one pass where one is needed."""
        wanted = [int(j) for j in columns if int(j) not in self._columns]
        if not wanted:
            return
        if isinstance(self._data.X, np.ndarray):
            self._columns |= {j: self._data.X[:, j] for j in wanted}
            return
        room, start = self._data.rows.array(np.uint64, len(wanted)), 0
        for part in self._data.rows.map(partial(_digests, wanted)):
            room[:, start : start + part.shape[1]] = part
            start += part.shape[1]
        self._columns |= dict(zip(wanted, room, strict=True))


def _members(labels: Labels, numbers: Iterable[int] | None = None) -> list[NDArray[np.intp]]:
    """Return the first rows, by number, of each set, ``_FIRST`` at most; by default of all sets."""
    if numbers is not None:
        return [np.flatnonzero(labels == number)[:_FIRST] for number in numbers]
    sizes = np.bincount(labels)
    if len(sizes) <= _FEW_SETS:
        return _members(labels, range(len(sizes)))
    order = np.argsort(labels, kind="stable")
    starts = np.cumsum(sizes) - sizes
    return [order[at : at + min(n, _FIRST)] for at, n in zip(starts, sizes, strict=True)]


def _digests(columns: list[int], run: FloatArray) -> NDArray[np.uint64]:
    return np.stack([row_hashes(run[:, [j]]) for j in columns])
