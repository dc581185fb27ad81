"""Which shares of yes/no features are rounded, in a cell and over a session (rule 4).

Take one feature. A partition tells how many rows have it in each cell whose share goes out exact,
and, with the total, in all that is left: the rest and the cells whose shares go rounded, together.
These are the sets that are *known*. Two partitions tell more by subtraction: where a union V of
known sets of the one lies inside a union U of known sets of the other, how many in U without V.
No other difference of the two is a set of rows, but for disjoint unions of such. So for any two
partitions of a session, in U without V, the persons who have the feature and those who lack it
number 0 or at least p each. While they do not, a share of the new partition goes rounded, which
makes one set of two known ones; with all of them rounded, it tells the total alone.

Unions are not tried one after another. Take the known sets as nodes, and for each set of rows that
two of them share an arc from A, of the one partition, to B, of the other. Choosing U and V is to
choose nodes such that with B goes every A that shares rows with it; U without V are the rows on
arcs that leave what was chosen. Hence a least cut tells whether any has too few.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedclust.privacy.counting import BoolVector, Labels, PersonIndex, stretches
from fedclust.privacy.moments import sides_of

__all__ = ["Shares"]

FloatArray = NDArray[np.float64]
IntVector = NDArray[np.int64]
Flags = NDArray[np.bool_]

#: Numbers of persons, by pair of sets, feature and side, beyond which all shares go rounded.
_MOST_NUMBERS: Final = 1 << 23
#: Bits of a float64 that hold whole numbers.
_BITS: Final = 53
#: Slack of comparisons of sums of weights.
_SLACK: Final = 1e-6


class Shares:
    """The yes/no features of a site's rows.

    Parameters
    ----------
    X : (n, d) float64
        Scaled rows: own units = X * scale + center.
    index : PersonIndex
    p : int
        Smallest number of persons.
    columns : (d,) bool
        Which features are yes/no: b of them.
    center, scale : (d,) float64
        The scaled space.
    observed : (n, d) bool, optional
        False where a value was imputed: such rows count for neither side.
    blocks : sequence of (L,) int64
        The columns, by number, of the levels of each categorical feature.
    roughly : bool
        Whether more cells than need be may be rounded, for which no least cut is looked for.
    sides : (2, b, n) or (1, b, n) bool, optional
        ``moments.sides_of`` these rows, where it is known; nothing is then asked of ``X``. Of one
        side, only those who have a feature are counted, not those who lack it.
    """

    def __init__(
        self,
        X: FloatArray,
        index: PersonIndex,
        p: int,
        *,
        columns: BoolVector,
        center: FloatArray,
        scale: FloatArray,
        observed: NDArray[np.bool_] | None = None,
        blocks: Sequence[IntVector] = (),
        roughly: bool = False,
        sides: NDArray[np.bool_] | None = None,
    ) -> None:
        self._index, self._p, self._columns = index, p, np.asarray(columns)
        #: The features, by number, whose shares are rounded together: of each (b,).
        self._groups = _groups(self._columns, blocks)
        #: (s, b, n): the rows that have each feature, and those that lack it if these count.
        self._sides = (
            sides_of(X, self._columns, center, scale, observed) if sides is None else sides
        )
        self._complete, self._roughly = observed is None and len(self._sides) == 2, roughly
        self._packed: list[FloatArray] | None = None
        self._weights = index.weights()
        self._each = max(1, _BITS // max(index.n.bit_length(), 1))
        if self._weights is not None:
            self._each = 1

    @property
    def n_features(self) -> int:
        """How many features are yes/no."""
        return int(self._sides.shape[1])

    def spread(self, rounded: Flags) -> Flags:
        """Return flags (K, b) of the yes/no features as flags (K, d) of all."""
        flags = np.zeros((rounded.shape[0], self._columns.size), dtype=np.bool_)
        flags[:, self._columns] = rounded
        return flags

    def to_round(
        self,
        labels: Labels,
        n_cells: int,
        before: Sequence[tuple[NDArray[np.int16], Flags]] = (),
        hidden: Flags | None = None,
    ) -> Flags:
        """Return which shares of a partition to round, (K, b).

        In every cell, the persons with and the persons without a property number 0 or at least
        ``p`` each, and so they do in the rest and the cells to round together, and in what can be
        known by subtracting what was sent before. The smallest exact cells are rounded until so.

        Parameters
        ----------
        labels : (n,) int
            Cell of each row; -1 leaves a row out.
        n_cells : int
        before : sequence of ((n,) int16, (K', b) bool)
            The partitions sent before in the session, and which of their shares were rounded.
        hidden : (K, b) bool, optional
            Shares that go rounded in any case.
        """
        rounded = np.zeros((n_cells, self.n_features), dtype=np.bool_)
        if not self.n_features:
            return rounded
        counts = _counted(labels, n_cells)[1:]
        if hidden is not None:
            rounded |= hidden
        # How many rows of either side are in the rest, 0, and in each cell c, 1 + c.
        rows = np.zeros((*self._sides.shape[:2], n_cells + 1), dtype=np.int64)
        for place in np.ndindex(rows.shape[:2]):
            rows[place] = _counted(labels, n_cells, self._sides[place])
        firsts = np.array([own[0] for own in self._groups])
        rounded = rounded[:, firsts]
        unsettled = self._unsettled(rows, rounded)
        for first in np.unique(firsts):
            own = self._groups[first]
            if unsettled[own].any():
                rounded[:, own] = self._within(own, labels, counts, rows, rounded[:, first])
        if len(before):
            self._across(labels, counts, rows, before, rounded)
        return rounded & (counts > 0)[:, None]

    def _unsettled(self, rows: IntVector, rounded: Flags) -> BoolVector:
        """Return for which features (b,) :meth:`_within` may round more, by numbers of rows."""
        certain = self._index.certain(self._p)
        exact = rows[:, :, 1:] * ~rounded.T
        hidden = rows.sum(axis=2) - exact.sum(axis=2)
        few = ((exact > 0) & (exact < certain)).any(axis=2) | ((hidden > 0) & (hidden < certain))
        return np.asarray(few.any(axis=0))

    def _within(
        self,
        group: IntVector,
        labels: Labels,
        counts: IntVector,
        rows: IntVector,
        rounded: BoolVector,
    ) -> Flags:
        """Return which shares of a group to round, (K, 1), for what the partition tells by itself.

        Totals minus the exact cells give what the other cells and the rest hold together.
        """
        certain = self._index.certain(self._p)
        sides = self._sides[:, group].reshape(-1, labels.size)
        of_sides = rows[:, group].reshape(-1, rows.shape[2])
        rounded = rounded.copy()
        for side, sizes in zip(sides, of_sides, strict=True):
            rounded |= (sizes[1:] > 0) & (sizes[1:] < self._p)
            for cell in np.flatnonzero((sizes[1:] > 0) & (sizes[1:] < certain) & ~rounded):
                rounded[cell] = not self._index.reaches(side & (labels == cell), self._p)
        exact = [cell for cell in np.argsort(counts, kind="stable") if not rounded[cell]]
        for cell in (cell for cell in exact if counts[cell]):
            hidden = np.append(True, rounded)
            sizes = of_sides @ hidden
            doubtful = np.flatnonzero((sizes > 0) & (sizes < certain))
            if not (sizes[doubtful] < self._p).any() and all(
                self._index.reaches(sides[i] & hidden[labels + 1], self._p) for i in doubtful
            ):
                break
            rounded[cell] = True
        return rounded[:, None]

    def _across(
        self,
        labels: Labels,
        counts: IntVector,
        rows: IntVector,
        before: Sequence[tuple[NDArray[np.int16], Flags]],
        rounded: Flags,
    ) -> None:
        """Round more shares, in ``rounded`` (K, b), until no difference tells of too few."""
        unsure = np.ones(self.n_features, dtype=np.bool_)
        while unsure.any():
            changed = np.zeros_like(unsure)
            for then, flags in before:
                open_ = unsure & ~rounded[counts > 0].all(axis=0)
                if not open_.any():
                    break
                if 2 * self.n_features * (counts.size + 1) * (len(flags) + 1) > _MOST_NUMBERS:
                    rounded[:] = True
                    return
                tables = self._shared(labels, counts.size, then, len(flags))
                arcs = self._doubtful(tables, rounded, flags)
                for feature in np.flatnonzero(open_ & arcs.any(axis=(0, 2, 3))):
                    if self._roughly:
                        now, own = rounded[:, feature], self._groups[feature]
                        told = arcs[:, feature, 1:].any(axis=(0, 2)) & ~now & (counts > 0)
                        now |= told if told.any() else counts > 0
                        rounded[:, own] = self._within(own, labels, counts, rows, now)
                        changed[own] = True
                        continue
                    table = tables[:, feature]
                    while True:
                        now, own = rounded[:, feature], self._groups[feature]
                        cell = self._told(table, now, flags[:, feature], counts)
                        if cell is None:
                            break
                        now[cell] = True
                        rounded[:, own] = self._within(own, labels, counts, rows, now)
                        changed[own] = True
            unsure = changed

    def _shared(
        self, labels: Labels, n_cells: int, then: NDArray[np.int16], n_then: int
    ) -> FloatArray:
        """Return how many persons at least of each side two sets share, (s, b, K + 1, K' + 1).

        Place 0 is the rest, 1 + c cell c. Weights of rows add up; whole numbers of several
        features are added up in one float64.
        """
        width = n_then + 1
        size = (n_cells + 1) * width
        keys = (labels.astype(np.int64) + 1) * width + (then.astype(np.int64) + 1)
        if self._packed is None:
            self._packed = self._pack()
        base = float(1 << (_BITS // self._each))
        sums = []
        for packed in self._packed:
            several = np.bincount(keys, packed, minlength=size).astype(np.float64)
            for _ in range(self._each - 1):
                higher = np.floor(several / base)
                sums.append(several - higher * base)
                several = higher
            sums.append(several)
        table = np.array(sums)
        b = self.n_features
        sides = [table[:b]]
        if len(self._sides) == 2:
            sides.append(table[b] - table[:b] if self._complete else table[b : 2 * b])
        return np.stack(sides).reshape(len(sides), b, n_cells + 1, width)

    def _pack(self) -> list[FloatArray]:
        """Return what :meth:`_shared` adds up, (n,) each: some columns as digits of one number.

        Those of who has each feature; then those of who lacks it, or one of all rows.
        """
        base = float(1 << (_BITS // self._each))
        columns = [*self._sides[0]]
        if len(self._sides) == 2:
            columns += [np.ones_like(columns[0])] if self._complete else [*self._sides[1]]
        packed = []
        for first in range(0, len(columns), self._each):
            numbers = np.zeros(columns[0].size)
            for power, column in enumerate(columns[first : first + self._each]):
                numbers += column * (base**power if self._weights is None else self._weights)
            packed.append(numbers)
        return packed

    def _doubtful(self, tables: FloatArray, rounded: Flags, flags: Flags) -> Flags:
        """Return the arcs (s, b, K + 1, K' + 1) for which :meth:`_told` may give a cell."""
        known = _known(tables, rounded, flags)
        arcs = np.zeros(known.shape, dtype=np.bool_)
        light = (known > _SLACK) & (known < self._p - _SLACK)
        some = np.flatnonzero(light.any(axis=(0, 2, 3)))
        if some.size:
            known = known[:, some]
            arcs[:, some] = _arcs(known, known.sum(axis=0) > _SLACK, self._p)
        return arcs

    def _told(
        self, table: FloatArray, rounded: BoolVector, flags: BoolVector, counts: IntVector
    ) -> int | None:
        """Return the exact cell to round because of one partition sent before; None if all is well.

        Parameters
        ----------
        table : (s, K + 1, K' + 1)
            See :meth:`_shared`, of one feature.
        rounded, flags : (K,), (K',) bool
            Which shares of the two partitions are rounded.
        counts : (K,) int64
        """
        known = _known(table[:, None], rounded[:, None], flags[:, None])[:, 0]
        exact = np.flatnonzero(~rounded & (counts > 0))
        if not exact.size:
            return None
        shared = known.sum(axis=0) > _SLACK
        for side in known:
            chosen = small_difference(side, shared, self._p)
            if chosen is None:
                continue
            first, second = chosen
            # The sets with rows in the difference, else those that it is taken from.
            involved = first & (side[:, ~second].sum(axis=1) > 0)
            for cells in (involved[1:], first[1:], ~first[1:]):
                among = exact[cells[exact]]
                if among.size:
                    return int(among[counts[among].argmin()])
        return None


def _counted(labels: Labels, n_cells: int, chosen: BoolVector | None = None) -> IntVector:
    """Return how many of the chosen rows are in the rest, 0, and in each cell c, 1 + c."""
    counts = np.zeros(n_cells + 1, dtype=np.int64)
    for part in stretches(len(labels)):
        own = labels[part] if chosen is None else labels[part][chosen[part]]
        counts += np.bincount(own + 1, minlength=n_cells + 1)
    return counts


def _groups(columns: BoolVector, blocks: Sequence[IntVector]) -> list[IntVector]:
    """Return, for each yes/no feature, by number those that go with it, itself included."""
    number = np.cumsum(columns) - 1
    together = {int(j): number[block] for block in blocks for j in block}
    return [together.get(int(j), number[j : j + 1]) for j in np.flatnonzero(columns)]


def _known(tables: FloatArray, rounded: Flags, flags: Flags) -> FloatArray:
    """Return tables (s, b, a, c) in which the sets of rounded shares are part of set 0, the rest.

    ``rounded`` (a - 1, b) and ``flags`` (c - 1, b) say which, for either partition.
    """
    known = tables
    for hidden in (rounded, flags):
        apart = np.zeros((hidden.shape[1], 1, hidden.shape[0] + 1))
        apart[:, 0, 1:] = hidden.T
        known = np.where(apart.swapaxes(1, 2) > 0, 0.0, known) + np.where(
            np.arange(known.shape[2])[:, None] == 0, apart @ known, 0.0
        )
        known = known.swapaxes(2, 3)
    return known


def small_difference(
    weights: FloatArray, shared: Flags, p: int
) -> tuple[BoolVector, BoolVector] | None:
    """Return unions U and V, V inside U, with more than 0 and less than p in U without V.

    Parameters
    ----------
    weights : (a, c) float64
        How many each set of the one partition shares with each of the other.
    shared : (a, c) bool
        Whether they share any rows, counted or not.
    p : int

    Returns
    -------
    ((a,) bool, (c,) bool) or None
        Either of them may be empty or everything. None: there are no such unions.
    """
    for i, j in np.argwhere(_arcs(weights, shared, p)):
        cut = _least_cut(weights, shared, int(i), int(j), p - _SLACK)
        if cut is not None:
            return cut
    return None


def _arcs(weights: FloatArray, shared: Flags, p: int) -> Flags:
    """Return the arcs (..., a, c) of less than ``p`` that some difference has rows on.

    With A goes every B that it shares ``p`` with, and with B every A that it shares rows with.
    """
    if weights.shape[-2] > weights.shape[-1]:
        # What is outside U and V makes differences of the other partition's, the same ones.
        return _arcs(weights.swapaxes(-1, -2), shared.swapaxes(-1, -2), p).swapaxes(-1, -2)
    heavy, light = weights >= p - _SLACK, (weights > _SLACK) & (weights < p - _SLACK)
    if not light.any():
        return light
    onward = heavy.astype(np.float32)
    steps = onward @ shared.swapaxes(-1, -2).astype(np.float32) > 0
    steps |= np.eye(steps.shape[-1], dtype=np.bool_)
    while True:
        taken = steps.astype(np.float32)
        further = taken @ taken > 0
        if np.array_equal(further, steps):
            break
        steps = further
    together = taken @ onward > 0
    return light & ~together


def _least_cut(
    weights: FloatArray, shared: Flags, source: int, sink: int, enough: float
) -> tuple[BoolVector, BoolVector] | None:
    """Return the U and V of less than ``enough`` apart, ``source`` in U and ``sink`` not in V.

    The greatest flow, by shortest augmenting paths (Edmonds & Karp 1972), until it is enough:
    an arc from A to B carries what they share, one from B to A anything.
    """
    #: What more each arc from A to B carries, less what flows back from B to A.
    left = weights.copy()
    flow = 0.0
    while flow < enough:
        reached, path = _path(left, shared, source, sink)
        if path is None:
            return reached
        firsts, seconds = path
        least = float(left[firsts, seconds].min())
        left[firsts, seconds] -= least
        left[firsts[1:], seconds[:-1]] += least
        flow += least
    return None


def _path(
    left: FloatArray, shared: Flags, source: int, sink: int
) -> tuple[tuple[BoolVector, BoolVector], tuple[IntVector, IntVector] | None]:
    """Return the sets reached from ``source``, and a shortest path to ``sink`` if there is one.

    A path visits the sets of the one partition and of the other in turn, (k,) each.
    """
    first = np.zeros(left.shape[0], dtype=np.bool_)
    second = np.zeros(left.shape[1], dtype=np.bool_)
    # From which set each was reached.
    of_first = np.full(first.size, -1, dtype=np.int64)
    of_second = np.full(second.size, -1, dtype=np.int64)
    first[source] = True
    new = np.array([source])
    while new.size:
        open_arcs = left[new] > _SLACK
        fresh = np.flatnonzero(open_arcs.any(axis=0) & ~second)
        of_second[fresh] = new[open_arcs[:, fresh].argmax(axis=0)]
        second[fresh] = True
        if second[sink] or not fresh.size:
            break
        arcs = shared[:, fresh]
        new = np.flatnonzero(arcs.any(axis=1) & ~first)
        of_first[new] = fresh[arcs[new].argmax(axis=1)]
        first[new] = True
    if not second[sink]:
        return (first, second), None
    firsts, seconds = [int(of_second[sink])], [sink]
    while firsts[-1] != source:
        seconds.append(int(of_first[firsts[-1]]))
        firsts.append(int(of_second[seconds[-1]]))
    path = np.array(firsts[::-1], dtype=np.int64), np.array(seconds[::-1], dtype=np.int64)
    return (first, second), path
