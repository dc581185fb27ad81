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

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

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
#: Up to so many values of all columns, all are numbered without asking which may be needed.
_FEW_VALUES = 1 << 18
#: Values that are counted together.
_PART = 1 << 20


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


@dataclass(frozen=True)
class _Numbered:
    """The values of a column, of which those that p rows share are numbered.

    Attributes
    ----------
    of : (n,) int32
        Of each row: 1 and up for these values, ascending; 0 for another; ``unseen`` for none.
    unseen : int
        One more than there are such values.
    """

    of: NDArray[np.int32]
    unseen: int


class _Counts(NamedTuple):
    """How often what occurs in each set, for some columns: (r,) each but the last.

    Attributes
    ----------
    column, number, which : int64
        Which of the columns, by place; a number of its values; the set.
    rows : int64
        How many rows.
    mass : float64 or int64
        Their weights, added up.
    seen : (m, s) float64 or int64
        Weights of all rows with a value, by column and set.
    """

    column: IntVector
    number: IntVector
    which: IntVector
    rows: IntVector
    mass: NDArray[Any]
    seen: NDArray[Any]


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
        #: Of the columns that were asked for, what tells their values apart.
        self._columns: dict[int, Values] = {}
        #: The same in numbers, from one partition of these rows to the next.
        self._numbered: dict[int, _Numbered] = data.derived.setdefault(f"{NAME}, {self._p}", {})
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
        columns, numbers = self._usual(labels)
        shares = self._properties(columns, numbers)
        before = [(then, flags[:, columns]) for then, flags in self._told]
        while True:
            held = self._with_others(few, m2)
            if not columns.size:
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

    def _properties(self, columns: IntVector, numbers: IntVector) -> Shares:
        """Return who has another value than the usual one, for each column and value's number."""
        b = len(columns)
        sides = self._data.rows.array(np.bool_, 1, b)
        for side, j, number in zip(sides[0], columns.tolist(), numbers.tolist(), strict=True):
            known = self._numbered[j]
            np.not_equal(known.of, number, out=side)
            side &= known.of != known.unseen
        return Shares(
            self._data.X,
            self._index,
            self._p,
            columns=np.ones(b, dtype=np.bool_),
            center=np.zeros(b),
            scale=np.ones(b),
            blocks=[np.flatnonzero(columns == j) for j in np.unique(columns)],
            sides=sides,
            roughly=True,
        )

    def _usual(self, labels: Labels) -> tuple[IntVector, IntVector]:
        """Return the columns and values that all but a few rows of some known set may share.

        The values by number, (b,) either; ascending.
        """
        found: dict[int, Flags] = {}
        for then in [None, *(then for then, _ in self._told)]:
            sets = labels + 1 if then is None else _crossed(labels, then)
            left = self._without_numbers()
            if left.size:
                self._number(left[self._possible(_members(sets), left).any(axis=0)])
            for own, counts in self._counted(sets, self._shared()):
                # Fewer than p have another, and of those with it there are p in all such sets.
                others = counts.seen[counts.column, counts.which] - counts.mass
                light = (counts.number > 0) & (others < self._p)
                ends = self._ends(own)
                light &= counts.number < ends[counts.column]
                shape = (len(own), int(ends.max()))
                place = np.ravel_multi_index((counts.column[light], counts.number[light]), shape)
                together = np.bincount(place, counts.rows[light], minlength=shape[0] * shape[1])
                for j, enough in zip(own, together.reshape(shape) >= self._p, strict=True):
                    known = found.setdefault(j, np.zeros(self._numbered[j].unseen, dtype=np.bool_))
                    known |= enough[: known.size]
        pairs = [(j, number) for j in sorted(found) for number in np.flatnonzero(found[j])]
        columns, numbers = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        return columns, numbers

    def _counted(
        self, sets: Labels, columns: Sequence[int]
    ) -> Iterator[tuple[Sequence[int], _Counts]]:
        """Yield how often each number occurs in each of the ``sets`` (n,), by some columns."""
        n_sets, step = int(sets.max(initial=0)) + 1, max(1, _PART // max(self._index.n, 1))
        for first in range(0, len(columns), step):
            own = columns[first : first + step]
            ends = self._ends(own)
            starts = np.cumsum(ends + 1) - ends - 1
            numbers = np.stack([self._numbered[j].of for j in own])
            keys = (numbers + starts[:, None]) * np.int64(n_sets) + sets
            size = int(starts[-1] + ends[-1] + 1) * n_sets
            found, rows, mass = _occurring(keys, size, self._weights)
            number, which = np.divmod(found, n_sets)
            column = np.searchsorted(starts, number, side="right") - 1
            number -= starts[column]
            if self._weights is None:
                known = number < ends[column]
                at = column[known] * n_sets + which[known]
                seen = np.bincount(at, rows[known], minlength=len(own) * n_sets)
            else:
                known = numbers != ends[:, None]
                at = (np.arange(len(own))[:, None] * n_sets + sets)[known]
                weights = np.broadcast_to(self._weights, known.shape)[known]
                seen = np.bincount(at, weights, minlength=len(own) * n_sets)
            yield own, _Counts(column, number, which, rows, mass, seen.reshape(len(own), n_sets))

    def _ends(self, columns: Sequence[int]) -> IntVector:
        return np.array([self._numbered[j].unseen for j in columns], dtype=np.int64)

    def _shared(self) -> list[int]:
        """Return the columns, ascending, of which it is known that p rows share a value."""
        return [int(j) for j in self._with_numbers() if self._numbered[int(j)].unseen > 1]

    def _with_numbers(self) -> IntVector:
        """Return the numeric columns whose values have numbers, ascending."""
        return np.array([j for j in self._numeric if int(j) in self._numbered], dtype=np.int64)

    def _without_numbers(self) -> IntVector:
        """Return the numeric columns whose values have no numbers yet."""
        return np.array([j for j in self._numeric if int(j) not in self._numbered], dtype=np.int64)

    def _number(self, columns: Iterable[int]) -> None:
        """Number the values of some columns."""
        wanted = [int(j) for j in columns if int(j) not in self._numbered]
        self._fetch(wanted)
        for j in wanted:
            column, seen = self._columns[j], self._seen(j)
            values, counts = np.unique(column[seen], return_counts=True)
            values = values[counts >= self._p]
            of = self._data.rows.array(np.int32)
            if values.size:
                place = np.minimum(np.searchsorted(values, column), values.size - 1)
                np.copyto(of, place + 1, where=values[place] == column, casting="unsafe")
            of[~seen] = values.size + 1
            self._numbered[j] = _Numbered(of, values.size + 1)

    def _beside(self) -> IntVector:
        """Return the two numeric columns, by number, with the most values among the first rows."""
        first = self._data.rows.take(np.arange(min(self._index.n, _RANKED)))
        values = [len(np.unique(first[:, j])) for j in self._numeric]
        return self._numeric[np.argsort(values, kind="stable")[::-1][:2]]

    def _seen(self, j: int) -> Flags:
        """Return which rows (n,) have a value of a column."""
        observed = self._data.observed
        return np.ones(self._index.n, dtype=np.bool_) if observed is None else observed[:, j]

    def _few(self, labels: Labels, n_cells: int) -> Flags:
        """Return in which numeric columns few of a cell's rows have another value, (K, m)."""
        if self._index.n * len(self._numeric) <= _FEW_VALUES:
            self._number(self._numeric)
        unsure = np.zeros((n_cells, len(self._numeric)), dtype=np.bool_)
        left = self._without_numbers()
        if left.size:
            possible = self._possible(_members(labels, range(n_cells)), left)
            self._number(left[possible.any(axis=0)])
            unsure[:, np.isin(self._numeric, left)] = possible
        few = self._by_counts(labels, unsure)
        self._fetch(self._numeric[unsure.any(axis=0)])
        for cell, i in np.argwhere(unsure):
            j = int(self._numeric[i])
            rows = np.flatnonzero((labels == cell) & self._seen(j))
            values = self._columns[j][rows]
            few[cell, i] = len(rows) > 0 and few_differ(values, rows, self._index, self._p)
        return few

    def _by_counts(self, labels: Labels, unsure: Flags) -> Flags:
        """Return where few have another value, (K, m), as far as numbers of rows tell.

        Of columns whose values have numbers; ``unsure`` is set where rows have to be looked at. Of
        a value without a number there are fewer than p.
        """
        few = np.zeros_like(unsure)
        certain, columns = self._index.certain(self._p), self._with_numbers()
        place = np.searchsorted(self._numeric, columns)
        for own, counts in self._counted(labels + 1, columns.tolist()):
            known = counts.number < self._ends(own)[counts.column]
            numbered = known & (counts.number > 0)
            shape = len(own), len(unsure) + 1
            seen, usual, most = np.zeros((3, *shape), dtype=np.int64)
            np.add.at(seen, (counts.column[known], counts.which[known]), counts.rows[known])
            at = counts.column[numbered], counts.which[numbered]
            np.maximum.at(usual, at, counts.rows[numbered])
            others = ~numbered & known
            at = counts.column[others], counts.which[others]
            most[at] = np.minimum(counts.rows[others], self._p - 1)
            differ = seen - usual
            # No fewer than these differ, and where p persons share the usual value, just these.
            open_ = (seen > 0) & (seen - np.maximum(usual, most) < certain)
            clear = (usual >= certain) & ((differ < self._p) | (differ >= certain))
            unsure[:, place[: len(own)]] = (open_ & ~clear).T[1:]
            few[:, place[: len(own)]] = (clear & (differ > 0) & (differ < self._p)).T[1:]
            place = place[len(own) :]
        return few

    def _possible(self, sets: list[NDArray[np.intp]], columns: IntVector) -> Flags:
        """Return where few may have another value, (S, m), by the first rows (f,) of each set."""
        possible = np.ones((len(sets), len(columns)), dtype=np.bool_)
        if self._weights is None and self._data.observed is None:
            # Rows with different values are different persons' then.
            taken = self._data.rows.take(np.concatenate([*sets, np.empty(0, dtype=np.intp)]))
            ends = np.cumsum([len(rows) for rows in sets])
            for place, first in enumerate(np.split(taken[:, columns], ends[:-1])):
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


def _crossed(labels: Labels, then: Labels) -> IntVector:
    """Return the set (n,) of rows that share both a cell or rest, -1, of either partition."""
    width = int(then.max(initial=-1)) + 2
    pairs = (labels.astype(np.int64) + 1) * width + then + 1
    size = (int(labels.max(initial=-1)) + 2) * width
    number: IntVector
    if size > _PART:
        number = np.unique(pairs, return_inverse=True)[1].reshape(-1)
        return number
    number = (np.cumsum(np.bincount(pairs, minlength=size) > 0) - 1)[pairs]
    return number


def _occurring(
    keys: IntVector, size: int, weights: FloatArray | None
) -> tuple[IntVector, IntVector, NDArray[Any]]:
    """Return which keys (m, n) below ``size`` occur, how often, and the weights (n,) added up."""
    every = keys.reshape(-1)
    each = None if weights is None else np.broadcast_to(weights, keys.shape).reshape(-1)
    if size <= max(4 * every.size, _PART):
        table = np.bincount(every, minlength=size)
        found = np.flatnonzero(table)
        rows = table[found]
        if each is None:
            return found, rows, rows
        return found, rows, np.bincount(every, each, minlength=size)[found]
    found, of, rows = np.unique(every, return_inverse=True, return_counts=True)
    return found, rows, rows if each is None else np.bincount(of.reshape(-1), each)


def _digests(columns: list[int], run: FloatArray) -> NDArray[np.uint64]:
    return np.stack([row_hashes(run[:, [j]]) for j in columns])
