"""Unions of sets of two partitions that nearly coincide.

Take the sets of two partitions of the same rows as the nodes of a graph, joined by the rows they
share. Any union of sets of the one and any union of sets of the other part the nodes in two, and
the rows in which the two unions differ are those on that cut. Two payloads can be subtracted to
give away fewer than p persons only where a cut holds 1 to p - 1 of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedclust.privacy.counting import Labels, PersonIndex, highest, joined, stretches, tally

__all__ = ["Meetings", "Overlaps", "candidate_cuts", "components", "small_cut"]

IntVector = NDArray[np.int64]
RowNumbers = NDArray[np.intp]

#: Up to so many nodes every cut is looked at.
_EVERY_CUT: Final = 10
#: Beyond so many, none: finding the smallest takes time with their third power.
_MOST_NODES: Final = 64
#: Up to so many pairs of sets are kept in a table.
_MOST_PAIRS: Final = 1 << 22
#: Rows times partitions that are counted together.
_TOGETHER: Final = 1 << 20


class Overlaps:
    """Which sets of two partitions share rows, and how many.

    Attributes
    ----------
    first, second : (m,) int64
        Numbers of the two sets of each pair that shares rows, ascending.
    rows : (m,) int64
        How many rows they share, at least 1.
    """

    def __init__(self, a: Labels, b: Labels) -> None:
        width = highest(b) + 1
        pairs, self.rows = joined(a, b, max(width, 1))
        self.first, self.second = pairs // max(width, 1), pairs % max(width, 1)

    @classmethod
    def of(cls, first: IntVector, second: IntVector, rows: IntVector) -> Overlaps:
        """Return pairs that are known."""
        known = cls.__new__(cls)
        known.first, known.second, known.rows = first, second, rows
        return known


class Meetings:
    """How many rows the sets of a changing partition share with those of some others, each fixed.

    Parameters
    ----------
    now : (m,) int
        The set of each row in the one; it is written to as rows move.
    n_sets : int
        More than any of these.
    earlier : sequence of (n,) int
        The set of each row in the others.
    rows : (m,) intp, optional
        Which of their rows are looked at; by default all.

    Attributes
    ----------
    starts : (H + 1,) int64
        Where the sets of each of the others begin, all numbered through: the column of a set.
    sizes : (sets of all the others,) int64
        How many rows are in each.
    """

    def __init__(
        self,
        now: Labels,
        n_sets: int,
        earlier: Sequence[Labels],
        rows: RowNumbers | None = None,
    ) -> None:
        self._now, self._n_sets, self._earlier, self._rows = now, n_sets, earlier, rows
        widths = [highest(sets) + 1 for sets in earlier]
        self.starts = np.cumsum([0, *widths])
        total = int(self.starts[-1])
        self._stack: NDArray[np.int32] | None = None
        if len(earlier) and len(earlier) * len(now) <= _TOGETHER:
            begins = self.starts[:-1, None].astype(np.int32)
            self._stack = np.array([self._at(sets, None) for sets in earlier]) + begins
        #: Of which partition each set is.
        self._of = np.repeat(np.arange(len(earlier)), widths)
        #: (n_sets, sets of all the others); None: too large, and so looked for each time.
        self._table: IntVector | None = None
        self._pairs: tuple[IntVector, IntVector, IntVector] | None = None
        if n_sets * total <= _MOST_PAIRS:
            self._table = self._counted(now, None)
            self.sizes = self._table.sum(axis=0)
        else:
            each = zip(earlier, widths, strict=True)
            self.sizes = np.concatenate([tally(self._at(sets, None), own) for sets, own in each])

    def _at(self, sets: Labels, rows: RowNumbers | None) -> Labels:
        """Return the sets of the rows that are looked at, or of some of these."""
        if self._rows is not None:
            rows = self._rows if rows is None else self._rows[rows]
        return sets if rows is None else sets.take(rows)

    def _counted(self, places: Labels, rows: RowNumbers | None) -> IntVector:
        """Return the table (n_sets, sets of all the others) of some rows at ``places``."""
        total = int(self.starts[-1])
        if self._stack is not None:
            stack = self._stack if rows is None else self._stack[:, rows]
            keys = (places.astype(np.int64) * total + stack).reshape(-1)
            return np.bincount(keys, minlength=self._n_sets * total).reshape(self._n_sets, total)
        table = np.zeros((self._n_sets, total), dtype=np.int64)
        for sets, begin, end in zip(self._earlier, self.starts, self.starts[1:], strict=False):
            own, width = self._at(sets, rows), int(end - begin)
            for part in stretches(len(places)):
                keys = places[part] * np.int64(width) + own[part]
                counts = np.bincount(keys, minlength=self._n_sets * width)
                table[:, begin:end] += counts.reshape(self._n_sets, width)
        return table

    def move(self, rows: RowNumbers, before: Labels, after: Labels) -> None:
        """Take note that rows, by number, have moved."""
        self._pairs = None
        self._now[rows] = after
        if self._table is not None:
            self._table += self._counted(after, rows) - self._counted(before, rows)

    def pairs(self) -> tuple[IntVector, IntVector, IntVector]:
        """Return set, column and common rows of each pair that shares rows, (k,) each."""
        if self._pairs is None and self._table is not None:
            first, column = np.nonzero(self._table)
            self._pairs = first, column, self._table[first, column]
        elif self._pairs is None:
            each = [Overlaps(self._now, self._at(sets, None)) for sets in self._earlier]
            columns = [pair.second + begin for pair, begin in zip(each, self.starts, strict=False)]
            self._pairs = (
                np.concatenate([pair.first for pair in each]),
                np.concatenate(columns),
                np.concatenate([pair.rows for pair in each]),
            )
        return self._pairs

    def of(self, column: IntVector) -> tuple[IntVector, IntVector]:
        """Return which of the others the columns belong to, and the number of the set there."""
        number = self._of[column]
        return number, column - self.starts[number]

    def with_one(self, number: int) -> Overlaps:
        """Return the pairs with one of the others."""
        first, column, rows = self.pairs()
        own = np.flatnonzero(self._of[column] == number)
        return Overlaps.of(first[own], column[own] - self.starts[number], rows[own])

    def parted(self, enough: int) -> IntVector:
        """Return which of the others a small cut may lie between, ascending.

        Where sets that share ``enough`` rows are one, no row lies between any two of the rest.
        """
        first, column, rows = self.pairs()
        number = self._of[column]
        left = number * self._n_sets + first
        right = len(self._earlier) * self._n_sets + column
        strong = rows >= enough
        n_nodes = len(self._earlier) * self._n_sets + len(self._of)
        group = components(n_nodes, left[strong], right[strong])
        return np.unique(number[group[left] != group[right]])


def small_cut(
    a: Labels,
    b: Labels,
    index: PersonIndex,
    p: int,
    rows: RowNumbers | None,
    shared: Overlaps | None = None,
) -> RowNumbers:
    """Return which rows are on a cut of 1 to ``p`` - 1 persons between two partitions.

    Parameters
    ----------
    a, b : (m,) int64
        The sets of the two partitions that the rows ``rows`` belong to.
    index : PersonIndex
    p : int
    rows : (m,) intp or None
        None: all rows, in order.
    shared : Overlaps, optional
        Of ``a`` and ``b``, where it is known.

    Returns
    -------
    (k,) intp
        Positions in ``rows``; empty where no such cut was found. Every cut is looked at where, up
        to sets that share ``p`` persons, at most 10 remain in one piece; the least by rows and
        others where at most 64 do.
    """
    nothing = np.zeros(0, dtype=np.intp)
    certain = index.certain(p)
    if shared is None:
        shared = Overlaps(a, b)
    n_first = int(shared.first.max(initial=-1)) + 1
    width = int(shared.second.max(initial=-1)) + 1
    strong = shared.rows >= certain
    group = components(n_first + width, shared.first[strong], shared.second[strong] + n_first)
    # Once the sets that share p persons are one node, hardly anything is left of most graphs.
    left, right = group[shared.first], group[shared.second + n_first]
    parted = np.flatnonzero(left != right)
    if not parted.size:
        return nothing
    inner, ends = np.unique(np.stack([left[parted], right[parted]]), return_inverse=True)
    keys, numbers = shared.first[parted] * width + shared.second[parted], shared.rows[parted]

    def members(pairs: NDArray[np.bool_]) -> tuple[RowNumbers, RowNumbers]:
        """Return the rows of some of the parted pairs: positions, and numbers."""
        found = _positions(a, b, width, keys[pairs])
        return found, found if rows is None else rows[found]

    def reach(pairs: NDArray[np.bool_]) -> bool:
        return index.reaches(members(pairs)[1], p)

    ends, weights = _contract(ends.reshape(2, -1), numbers, inner.size, p, certain, reach)
    parts = components(len(weights), *np.nonzero(weights))
    for part in np.unique(parts):
        nodes = np.flatnonzero(parts == part)
        if not 1 < nodes.size <= _MOST_NODES:
            continue
        inside = weights[np.ix_(nodes, nodes)]
        cuts = _every_cut(nodes.size) if nodes.size <= _EVERY_CUT else _stacked(inside)
        crossed = ((cuts @ inside) * ~cuts).sum(axis=1)
        for cut in cuts[crossed < certain]:
            side = np.zeros(len(weights), dtype=np.bool_)
            side[nodes[cut]] = True
            across, theirs = members(side[ends[0]] != side[ends[1]])
            if not index.reaches(theirs, p):
                return across
    return nothing


def _positions(a: Labels, b: Labels, width: int, keys: IntVector) -> RowNumbers:
    """Return the positions of the rows whose two sets make one of the ``keys``."""
    found = [
        part.start + np.flatnonzero(np.isin(a[part] * np.int64(width) + b[part], keys))
        for part in stretches(len(a))
    ]
    return np.concatenate(found)


def _contract(
    ends: IntVector,
    rows: IntVector,
    n_nodes: int,
    p: int,
    certain: int,
    reach: Callable[[NDArray[np.bool_]], bool],
) -> tuple[IntVector, IntVector]:
    """Make one node of any two that share p persons, until there are none.

    ``ends`` (2, m) are the nodes that each pair of sets joins, by its ``rows`` (m,); ``reach`` says
    whether the rows of some pairs are p persons, as ``certain`` rows always are. Returns the new
    ends, and the (k, k) numbers of rows between the nodes that remain.
    """
    while True:
        weights = np.zeros((n_nodes, n_nodes), dtype=np.int64)
        np.add.at(weights, (ends[0], ends[1]), rows)
        weights += weights.T
        np.fill_diagonal(weights, 0)
        joined = weights >= certain
        for i, j in np.argwhere(np.triu((weights >= p) & ~joined)):
            between = ((ends[0] == i) & (ends[1] == j)) | ((ends[0] == j) & (ends[1] == i))
            joined[i, j] = reach(between)
        if not joined.any():
            return ends, weights
        numbers, group = np.unique(components(n_nodes, *np.nonzero(joined)), return_inverse=True)
        ends, n_nodes = group[ends], numbers.size


def components(n_nodes: int, first: NDArray[np.intp], second: NDArray[np.intp]) -> IntVector:
    """Return the (n_nodes,) component of each node of an undirected graph: its lowest node.

    Parameters
    ----------
    n_nodes : int
    first, second : (m,) int
        The ends of its edges.
    """
    labels = np.arange(n_nodes, dtype=np.int64)
    while True:
        lowest = np.minimum(labels[first], labels[second])
        spread = labels.copy()
        np.minimum.at(spread, first, lowest)
        np.minimum.at(spread, second, lowest)
        if np.array_equal(spread, labels):
            return labels
        labels = spread


def candidate_cuts(weights: NDArray[np.int64]) -> Iterator[NDArray[np.bool_]]:
    """Yield sides of cuts of a connected graph, among them one of least weight.

    All cuts of a graph of at most 10 nodes; of a larger one, the cut that ends each phase of
    Stoer & Wagner, "A simple min-cut algorithm", J. ACM 44 (1997), section 2.

    Parameters
    ----------
    weights : (m, m) int64
        Symmetric, with a diagonal of 0.

    Yields
    ------
    (m,) bool
        The nodes on one side.
    """
    m = weights.shape[0]
    if m <= _EVERY_CUT:
        yield from _every_cut(m)
        return
    weights = weights.copy()
    members = np.eye(m, dtype=np.bool_)
    alive = np.ones(m, dtype=np.bool_)
    for _ in range(m - 1):
        waiting = alive.copy()
        pull = np.zeros(m, dtype=np.int64)
        before = last = -1
        while waiting.any():
            before, last = last, int(np.where(waiting, pull, -1).argmax())
            waiting[last] = False
            pull += weights[last]
        yield members[last].copy()
        weights[before] += weights[last]
        weights[:, before] += weights[:, last]
        weights[before, before] = 0
        weights[last] = weights[:, last] = 0
        members[before] |= members[last]
        alive[last] = False


@functools.cache
def _every_cut(m: int) -> NDArray[np.bool_]:
    """Return the sides (c, m) of all cuts of m nodes; the last is never on it: each comes once."""
    sides: NDArray[np.bool_] = np.arange(1, 1 << (m - 1))[:, None] >> np.arange(m) & 1 == 1
    sides.flags.writeable = False
    return sides


def _stacked(weights: NDArray[np.int64]) -> NDArray[np.bool_]:
    return np.stack(list(candidate_cuts(weights)))
