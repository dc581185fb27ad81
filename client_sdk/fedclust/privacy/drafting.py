"""How a wanted partition becomes one that may be sent; the guard's working part."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedclust.privacy.counting import BoolVector, Labels, PersonIndex, stretches, tally
from fedclust.privacy.cuts import Meetings, small_cut
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
        self._wanted = self._kept(wanted, n_cells)
        self._begin(self._wanted)
        self._last: Places | None = None
        if last is not None:
            self._last = self._kept(last, n_cells)
        elif len(sent):
            self._last = self._nearest()
        self._found_at = 0
        #: Whether too much was sent for anything new to be judged.
        self.exhausted = False
        # One for all rows and one for each view; made when first needed.
        self._spans: list[tuple[RowNumbers | None, Span]] | None = None

    def _begin(self, places: Places) -> None:
        """Begin with a partition (n,), of which nothing is known."""
        self._now = self._kept(places)
        # Beside the earlier ones, within all rows and within each view.
        self._meetings: list[Meetings] = []
        for rows in (None, *self._views) if len(self._sent) else ():
            now = self._now if rows is None else self._now[rows]
            self._meetings.append(Meetings(now, self._rest + 1, self._sent, rows))
        # Sets that changed since they were last found to differ enough from everything sent.
        self._unchecked = set(range(self._rest + 1))
        self._counted: IntVector | None = None

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
        self._last = last
        self._begin(last)
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
        first, column, rows = self._meetings[0].pairs()
        number, second = self._meetings[0].of(column)
        cells = (first != self._rest) & (second > 0)
        n_sets = int(second.max(initial=0)) + 1
        forth = np.zeros((len(self._sent), self._rest + 1), dtype=np.int64)
        back = np.zeros((len(self._sent), n_sets), dtype=np.int64)
        np.maximum.at(forth, (number[cells], first[cells]), rows[cells])
        np.maximum.at(back, (number[cells], second[cells]), rows[cells])
        # Both ways: one large cell holds everything, but nothing is like it. The latest of equals.
        alike = np.minimum(forth.sum(axis=1), back.sum(axis=1))
        best = len(alike) - 1 - int(alike[::-1].argmax())
        nearest, pairs = self._sent[best], self._meetings[0].with_one(best)
        match = np.full(n_sets, self._rest, dtype=np.int16)
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
        if self._was_sent():
            return []
        close = self._close_to_one()
        if close is not None:
            return [close]
        parted = [set(meetings.parted(self._certain).tolist()) for meetings in self._meetings]
        for number in np.roll(np.arange(len(self._sent)), -self._found_at).tolist():
            for rows, meetings, numbers in zip(
                (None, *self._views), self._meetings, parted, strict=True
            ):
                if number not in numbers:
                    continue
                now = self._now if rows is None else self._now[rows]
                earlier = self._sent[number]
                then = earlier if rows is None else earlier.take(rows)
                shared = meetings.with_one(number)
                across = small_cut(now, then, self._index, self._p, rows, shared)
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
        _, column, _ = self._meetings[0].pairs()
        of_pairs, of_sets = (
            np.bincount(self._meetings[0].of(columns)[0], minlength=len(self._sent))
            for columns in (column, np.flatnonzero(self._meetings[0].sizes))
        )
        alike = of_pairs == np.count_nonzero(self._sizes())
        return bool((alike & (of_pairs == of_sets)).any())

    def _was_sent(self) -> bool:
        """Return whether the partition is an earlier one, with the same numbers."""
        first, column, _ = self._meetings[0].pairs()
        number, second = self._meetings[0].of(column)
        other = np.where(first == self._rest, 0, first + 1) != second
        return not np.bincount(number[other], minlength=len(self._sent)).all()

    def _close_to_one(self) -> int | None:
        """Return the lowest set that differs from one sent before by 1 to p - 1 persons.

        In some view, of those not looked at since they changed. Sets that share no row in a view
        differ there by both of them, whose sizes are in order.
        """
        doubtful: dict[int, list[tuple[int, int, int]]] = {}
        for view, meetings in enumerate(self._meetings):
            sizes = self._sizes()
            if view:
                sizes = tally(self._now[self._views[view - 1]], self._rest + 1)
            first, column, shared = meetings.pairs()
            differ = sizes[first] + meetings.sizes[column] - 2 * shared
            for pair in np.flatnonzero((differ > 0) & (differ < self._certain)).tolist():
                found = view, int(column[pair]), int(differ[pair])
                doubtful.setdefault(int(first[pair]), []).append(found)
        for place in sorted(self._unchecked):
            if any(self._too_few_apart(place, *found) for found in doubtful.get(place, ())):
                return place
            self._unchecked.discard(place)
        return None

    def _too_few_apart(self, place: int, view: int, column: int, differ: int) -> bool:
        """Return whether the rows in which two sets differ are fewer than p persons'."""
        if differ < self._p:
            return True
        number, other = self._meetings[view].of(np.array(column))
        apart = (self._now == place) != (self._sent[int(number)] == int(other))
        within = self._in_view[view]
        return not self._index.reaches(apart if within is None else apart & within, self._p)

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
        before = self._now[rows]
        self._unchecked.update(np.unique(before).tolist(), np.unique(places).tolist())
        self._now[rows] = places
        for number, meetings in enumerate(self._meetings):
            view = self._in_view[number]
            if view is None:
                meetings.move(rows, before, places)
                continue
            inside = view[rows]
            own = np.searchsorted(self._views[number - 1], rows[inside])
            meetings.move(own, before[inside], places[inside])
        self._counted = None
