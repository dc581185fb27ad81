"""How a wanted partition becomes one that may be sent; the guard's working part."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedclust.privacy.counting import BoolVector, Labels, PersonIndex, stretches, tally
from fedclust.privacy.cuts import Overlaps, small_cut
from fedclust.privacy.spans import Span, span_of

__all__ = ["Draft"]

IntVector = NDArray[np.int64]
Places = NDArray[np.int16]
RowNumbers = NDArray[np.intp]


class Draft:
    """A wanted partition on its way to one that may be sent.

    Within, cells are numbered 0 to K - 1 and the rest is K, so that ascending order is the order
    of the rule: lowest index first, the rest last. "Set" means a cell or the rest.

    Parameters
    ----------
    index : PersonIndex
    p : int
        Smallest number of persons.
    views : sequence of (n,) bool
        Row sets within which every rule holds as well.
    sent : sequence of (n,) int
        Partitions sent before in the session: 0 is their rest, 1 + c their cell c.
    digests : sequence of bytes
        One for each of these, no two of them alike.
    wanted : (n,) int16
        Wanted cell of each row; -1 for none.
    n_cells : int
    last : (n,) int16, optional
        The candidate's last sent partition.
    """

    def __init__(
        self,
        index: PersonIndex,
        p: int,
        views: Sequence[BoolVector],
        sent: Sequence[Labels],
        digests: Sequence[bytes],
        wanted: Places,
        n_cells: int,
        last: NDArray[np.int16] | None,
    ) -> None:
        self._index, self._p, self._certain = index, p, index.certain(p)
        self._rest = n_cells
        self._views = [np.flatnonzero(view) for view in views]
        # None: every row.
        self._in_view: list[BoolVector | None] = [None, *views]
        self._sent, self._digests = sent, list(digests)
        self._n_sets = 1 + max((int(earlier.max(initial=0)) for earlier in sent), default=0)
        self._earlier = [self._tally(rows) for rows in (None, *self._views)]
        self._wanted = self._kept(wanted, n_cells)
        self._now = self._kept(self._wanted)
        self._counted: IntVector | None = None
        self._last: Places | None = None
        if last is not None:
            self._last = self._kept(last, n_cells)
        elif len(sent):
            self._last = self._nearest()
        # Sets that changed since they were last found to differ enough from everything sent.
        self._unchecked = set(range(n_cells + 1))
        self._found_at = 0
        #: Whether too much was sent for anything new to be judged.
        self.exhausted = False
        # One for all rows and one for each view; made when first needed.
        self._spans: list[tuple[RowNumbers | None, Span]] | None = None

    def _kept(self, cells: Places, rest: int | None = None) -> Places:
        """Return a copy (n,), with the number of the ``rest`` in place of -1."""
        copy: Places = self._index.room(np.int16)
        copy[:] = cells
        if rest is not None:
            copy[copy < 0] = rest
        return copy

    def settled(self) -> Places:
        """Return the (n,) cell numbers of a partition that may be sent, -1 for the rest.

        Where settling withholds rows, the last partition is tried whole, and of the two the one
        that leaves more rows in the cell they are wanted in is taken.
        """
        last = None if self._last is None else self._kept(self._last)
        self._settle()
        if last is None or not ((self._now == self._rest) & (self._wanted != self._rest)).any():
            return self._numbered(self._now)
        first = self._now
        self._last, self._now = last, self._kept(last)
        self._unchecked, self._counted = set(range(self._rest + 1)), None
        self._settle()
        if self._served(self._now) <= self._served(first):
            return self._numbered(first)
        return self._numbered(self._now)

    def _served(self, places: Places) -> int:
        return int(np.count_nonzero((places == self._wanted) & (places != self._rest)))

    def _numbered(self, places: Places) -> Places:
        places[places == self._rest] = -1
        return places

    def _nearest(self) -> Places:
        """Return the earlier partition most like the wanted one, its cells renumbered to match.

        It stands in for the last partition of a candidate that has none.
        """
        best, nearest, pairs = -1, self._sent[0], Overlaps(self._now, self._now)
        for earlier in self._sent[::-1]:
            shared = Overlaps(self._now, earlier)
            cells = (shared.first != self._rest) & (shared.second > 0)
            forth = np.zeros(self._rest + 1, dtype=np.int64)
            back = np.zeros(self._n_sets, dtype=np.int64)
            np.maximum.at(forth, shared.first[cells], shared.rows[cells])
            np.maximum.at(back, shared.second[cells], shared.rows[cells])
            # Both ways: one large cell holds everything, but nothing is like it.
            alike = min(int(forth.sum()), int(back.sum()))
            if alike > best:
                best, nearest, pairs = alike, earlier, shared
        match = np.full(self._n_sets, self._rest, dtype=np.int16)
        free = np.ones(self._rest, dtype=np.bool_)
        for pair in np.argsort(-pairs.rows, kind="stable"):
            cell, earlier_set = int(pairs.first[pair]), int(pairs.second[pair])
            if cell == self._rest or earlier_set == 0 or match[earlier_set] != self._rest:
                continue
            if free[cell]:
                match[earlier_set], free[cell] = cell, False
        # A cell that overlaps with none takes any number that is left.
        left = 1 + np.flatnonzero(match[1:] == self._rest)
        spare = np.flatnonzero(free)[: left.size]
        match[left[: spare.size]] = spare
        stand_in: Places = self._index.room(np.int16)
        for part in stretches(self._index.n):
            stand_in[part] = match[nearest[part]]
        return stand_in

    def _settle(self) -> None:
        """Change the partition until it may be sent.

        It ends. Closing takes a cell out for good, so there are at most K closings. Between two
        of them only undoing happens, and each undoing lowers the number of rows whose place
        differs from the last partition's.

        It ends well. With every cell closed all rows are in the rest, and that is allowed: what
        is left of the total without earlier cells and rests is a union of the other sets of that
        earlier partition, each of which was sent with 0 or at least p persons in every view, so
        the union has 0 or at least p as well. Nor does the total add to what the sums tell
        together: it was taken to be known before.
        """
        while True:
            self._settle_sizes()
            places = self._too_close()
            if not places:
                return
            if any(self._undo(place) for place in places):
                continue
            if (self._now == self._rest).all():
                return
            self._close(places[0] if places[0] != self._rest else self._smallest())

    def _settle_sizes(self) -> None:
        """Withhold small cells, then further cells until the rest is 0 or at least p persons."""
        for cell in sorted(self._unchecked - {self._rest}):
            if not self._large_enough(cell):
                self._close(cell)
        while not self._large_enough(self._rest) and (self._now != self._rest).any():
            self._close(self._smallest())

    def _large_enough(self, place: int) -> bool:
        if not self._views:
            size = int(self._sizes()[place])
            if not size or size >= self._certain:
                return True
        rows = self._rows_of(place)
        return all(
            self._index.allows(rows if view is None else rows[view[rows]], self._p)
            for view in self._in_view
        )

    def _smallest(self) -> int:
        """Return the cell of fewest rows among those that have any."""
        sizes = self._sizes()[: self._rest]
        return int(np.where(sizes > 0, sizes, self._now.size + 1).argmin())

    def _sizes(self) -> IntVector:
        """Return how many rows are in each set (K + 1,)."""
        if self._counted is None:
            self._counted = tally(self._now, self._rest + 1)
        return self._counted

    def _too_close(self) -> list[int]:
        """Return sets to change because of a difference of too few persons; none where all is well.

        The lowest set that is too close to one sent before; else the sets at the rows by which a
        union is too close to a union sent before, lowest first; else what :meth:`_told` gives.
        """
        if not len(self._sent):
            self._unchecked.clear()
            return []
        # A partition that was sent before was looked at then, and every later one beside it.
        if any(self._is(earlier) for earlier in self._sent):
            return []
        for place in sorted(self._unchecked):
            if self._close_to_one(place):
                return [place]
            self._unchecked.discard(place)
        for number in np.roll(np.arange(len(self._sent)), -self._found_at).tolist():
            for rows in (None, *self._views):
                now = self._now if rows is None else self._now[rows]
                earlier = self._sent[number]
                then = earlier if rows is None else earlier.take(rows)
                across = small_cut(now, then, self._index, self._p, rows)
                if across.size:
                    # Where one was found the next is likely: begin there after the change.
                    self._found_at = number
                    return [int(place) for place in np.unique(now[across])]
        return self._told()

    def _told(self) -> list[int]:
        """Return sets to change because all sums together would tell of too few persons.

        The sets of these persons, lowest first, then the others: who is told of need not have
        moved.
        """
        if not len(self._sent):
            return []
        if self._spans is None:
            every = span_of(self._sent, None, self._index, self._p, self._digests)
            self._spans = [(None, every)]
            for view in self._views:
                within = [earlier.take(view) for earlier in self._sent]
                self._spans.append((view, span_of(within, view, self._index, self._p)))
        if self._tells_nothing_new():
            return []
        self.exhausted = not all(span.affordable for _, span in self._spans)
        for rows, span in self._spans:
            now = self._now if rows is None else self._now[rows]
            told = span.told(now)
            if told.size:
                theirs = np.unique(now[told])
                others = np.setdiff1d(np.arange(self._rest + 1), theirs)
                return [*theirs.tolist(), *others.tolist()]
        return []

    def _tells_nothing_new(self) -> bool:
        """Whether all rows are in the rest, or all sets are those of one partition sent before."""
        if (self._now == self._rest).all():
            return True
        n_now = np.count_nonzero(self._sizes())
        for earlier, sizes in zip(self._sent[::-1], self._earlier[0][::-1], strict=True):
            pairs = Overlaps(self._now, earlier)
            if pairs.rows.size == n_now == np.count_nonzero(sizes):
                return True
        return False

    def _close_to_one(self, place: int) -> bool:
        """Return whether a set differs from one sent before by 1 to p - 1 persons in some view.

        Sets that share no row in a view differ there by both of them, whose sizes are in order.
        """
        members = self._rows_of(place)
        for view, sizes in zip(self._in_view, self._earlier, strict=True):
            rows = members if view is None else members[view[members]]
            shared = self._tally(rows)
            differ = rows.size + sizes - 2 * shared
            doubtful = (shared > 0) & (differ > 0) & (differ < self._certain)
            if (differ[doubtful] < self._p).any():
                return True
            for earlier, number in np.argwhere(doubtful):
                apart = (self._now == place) != (self._sent[earlier] == number)
                if view is not None:
                    apart &= view
                if not self._index.reaches(apart, self._p):
                    return True
        return False

    def _tally(self, rows: RowNumbers | None) -> IntVector:
        """Return how many of the rows are in each set of each earlier partition, (H, sets)."""
        table = np.zeros((len(self._sent), self._n_sets), dtype=np.int64)
        for own, earlier in zip(table, self._sent, strict=True):
            own += tally(earlier if rows is None else earlier.take(rows), self._n_sets)
        return table

    def _is(self, earlier: Labels) -> bool:
        """Return whether the partition is an earlier one, with the same numbers."""
        for part in stretches(self._now.size):
            now = self._now[part]
            if not np.array_equal(np.where(now == self._rest, 0, now + 1), earlier[part]):
                return False
        return True

    def _rows_of(self, place: int) -> RowNumbers:
        return np.flatnonzero(self._now == place)

    def _undo(self, place: int) -> bool:
        """Put back the rows that came to or left a set since the last partition; False if none."""
        if self._last is None:
            return False
        touching = (self._now == place) | (self._last == place)
        rows = np.flatnonzero(touching & (self._now != self._last))
        if rows.size == 0:
            return False
        self._move(rows, self._last[rows])
        return True

    def _close(self, cell: int) -> None:
        """Put a cell's rows into the rest, where later undoings leave them."""
        rows = self._rows_of(cell)
        self._move(rows, np.full(rows.size, self._rest, dtype=np.int16))
        if self._last is not None:
            self._last[self._last == cell] = self._rest

    def _move(self, rows: RowNumbers, places: Places) -> None:
        self._unchecked.update(np.unique(self._now[rows]).tolist(), np.unique(places).tolist())
        self._now[rows] = places
        self._counted = None
