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

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedclust.algorithms.base import Memory, RunConfig, SiteData
from fedclust.algorithms.releasing import index_of
from fedclust.algorithms.spaces import binary_columns
from fedclust.privacy.counting import PersonIndex
from fedclust.privacy.shares import Shares

__all__ = ["NAME", "few_differ", "tellable"]

FloatArray = NDArray[np.float64]
IntVector = NDArray[np.int64]
Flags = NDArray[np.bool_]

#: The place of what was told in a site's memory.
NAME = "spreads"
#: Rows of a set that are looked at first: with many values among these, none is the usual one.
_FIRST = 64
#: Rows by which columns are ranked.
_RANKED = 4_096


def few_differ(values: FloatArray, rows: IntVector, index: PersonIndex, p: int) -> bool:
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
    data: SiteData, labels: IntVector, m2: FloatArray, config: RunConfig, memory: Memory
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
        self._known: dict[int, FloatArray] = {}
        self._pair: IntVector | None = None
        self._told = told

    def hold(self, labels: IntVector, m2: FloatArray) -> Flags:
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
            for cell in range(len(m2)):
                held[cell, self._numeric] = self._few(np.flatnonzero(labels == cell))
            held = self._hidden(labels, held, m2)
        return held

    def _hidden(self, labels: IntVector, few: Flags, m2: FloatArray) -> Flags:
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

    def _properties(self, usual: list[tuple[int, float]]) -> Shares:
        """Return who has another value than the usual one, for each column and value."""
        n, b = len(self._data.X), len(usual)
        other = np.zeros((n, b))
        for place, (j, value) in enumerate(usual):
            other[:, place] = self._seen(j) & (self._data.X[:, j] != value)
        columns = [j for j, _ in usual]
        return Shares(
            other,
            self._index,
            self._p,
            columns=np.ones(b, dtype=np.bool_),
            center=np.zeros(b),
            scale=np.ones(b),
            blocks=[np.flatnonzero(np.array(columns) == j) for j in sorted(set(columns))],
            both=False,
            roughly=True,
        )

    def _usual(self, labels: IntVector) -> list[tuple[int, float]]:
        """Return the columns and values that all but a few rows of some known set may share."""
        found: set[tuple[int, float]] = set()
        before = [then.astype(np.int64) for then, _ in self._told]
        for then in [np.zeros_like(labels), *before]:
            width = int(then.max(initial=0)) + 2
            arcs = np.unique((labels + 1) * width + then + 1, return_inverse=True)[1].reshape(-1)
            order = np.argsort(arcs, kind="stable")
            sizes = np.bincount(arcs)
            places = np.minimum(np.arange(_FIRST), sizes[:, None] - 1)
            sample = order[(np.cumsum(sizes) - sizes)[:, None] + places]
            for j in self._numeric.tolist():
                found |= {(j, value) for value in self._dominant(j, arcs, sample)}
        return sorted(found)

    def _dominant(self, j: int, arcs: IntVector, sample: IntVector) -> list[float]:
        """Return the values that p rows have in those of the sets where few have another.

        ``arcs`` (n,) is the set of each row, ``sample`` some rows of each.
        """
        column, seen = self._data.X[:, j], self._seen(j)
        possible = np.ones(len(sample), dtype=np.bool_)
        if self._weights is None and self._data.observed is None:
            # Rows with different values are different persons' then.
            distinct = (np.diff(np.sort(column[sample], axis=1), axis=1) != 0).sum(axis=1) + 1
            possible = distinct <= self._p
        rows = np.flatnonzero(possible[arcs] & seen) if possible.any() else arcs[:0]
        if not rows.size or not (values := self._shared(j)).size:
            return []
        weights = None if self._weights is None else self._weights[rows]
        sizes = np.bincount(arcs[rows], weights, minlength=len(sample))
        place = np.searchsorted(values, column[rows])
        place = np.where(values[np.minimum(place, values.size - 1)] == column[rows], place, -1)
        own, of = np.unique(arcs[rows] * (values.size + 1) + place + 1, return_inverse=True)
        having = np.bincount(of.reshape(-1), weights)
        arc, value = own // (values.size + 1), own % (values.size + 1) - 1
        light = (value >= 0) & (sizes[arc] - having < self._p)
        counts = np.bincount(of.reshape(-1))
        together = np.bincount(value[light], counts[light], minlength=values.size)
        return [float(values[i]) for i in np.flatnonzero(together >= self._p)]

    def _beside(self) -> IntVector:
        """Return the two numeric columns, by number, with the most values among the first rows."""
        first = self._data.X[:_RANKED]
        values = [len(np.unique(first[:, j])) for j in self._numeric]
        return self._numeric[np.argsort(values, kind="stable")[::-1][:2]]

    def _shared(self, j: int) -> FloatArray:
        """Return the values of a column that p rows share."""
        if j not in self._known:
            values, counts = np.unique(self._data.X[self._seen(j), j], return_counts=True)
            self._known[j] = values[counts >= self._p]
        return self._known[j]

    def _seen(self, j: int) -> Flags:
        """Return which rows (n,) have a value of a column."""
        observed = self._data.observed
        return np.ones(len(self._data.X), dtype=np.bool_) if observed is None else observed[:, j]

    def _few(self, rows: NDArray[np.intp]) -> Flags:
        """Return in which numeric columns (m,) few of some rows, by number, have another value."""
        few = np.zeros(len(self._numeric), dtype=np.bool_)
        for i, j in enumerate(self._numeric.tolist()):
            known = rows[self._seen(j)[rows]]
            if not known.size:
                continue
            if self._data.persons is None:
                # Rows with different values are different persons' then.
                first = np.unique(self._data.X[known[:_FIRST], j])
                if len(first) > self._p:
                    continue
            few[i] = few_differ(self._data.X[known, j], known, self._index, self._p)
        return few
