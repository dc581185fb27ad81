"""What a Lloyd step needs of a site's rows, in one pass: who is nearest, and the sums.

Rows are taken some hundred at a time, so that all that is done with them is done while they are
in the processor's cache: their offsets from the centroids' mean, a product of these with the
centroids, the lowest of each row, and the sums of the offsets and of their squares by cell. Sums
about each cell's own centroid follow from these: the mean is the centroid and the mean offset, the
squares are the cost. Offsets, because far from the origin sums of the rows themselves would cost
digits; and where cells lie so far apart that the centroids' mean is far from most rows, they are
added up about their own centroids.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedclust.algorithms.assigning import STEP, Centre, Finder, centre_of
from fedclust.algorithms.rows import Rows
from fedclust.privacy.counting import Labels
from fedclust.privacy.moments import CellMoments, cell_moments, merge_cells

__all__ = ["Tally", "assign", "cells_of", "tally"]

FloatArray = NDArray[np.float64]
Places = NDArray[np.int16]

#: How many times a cell's squares about its point those about the centre may be: two digits.
_LOST = 64.0


@dataclass(frozen=True)
class Tally:
    """Sums over the rows of K cells, each about a point of its own.

    Attributes
    ----------
    counts : (K,) int64
    offsets : (K, d) float64
        Offsets of the rows from their cell's point, added up.
    squares : (K, d) or (K, 1) float64
        Their squares, by column or of all columns together.
    """

    counts: NDArray[np.int64]
    offsets: FloatArray
    squares: FloatArray

    @classmethod
    def nothing(cls, n_cells: int, d: int, *, by_column: bool) -> Tally:
        """Return the sums over no rows."""
        squares = np.zeros((n_cells, d if by_column else 1))
        return cls(np.zeros(n_cells, dtype=np.int64), np.zeros((n_cells, d)), squares)

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.counts + other.counts,
            self.offsets + other.offsets,
            self.squares + other.squares,
        )

    def moments(self, points: FloatArray) -> CellMoments:
        """Return counts and means; M2 is 0 everywhere, for it is not told by these sums alone."""
        divisor = np.maximum(self.counts, 1)[:, None]
        means = np.where(self.counts[:, None] > 0, points + self.offsets / divisor, 0.0)
        return CellMoments(self.counts, means, np.zeros_like(means))


class _Members:
    """Whose sum each of some rows goes to, as sparse matrices, made once for each shape."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, int], Any] = {}

    def of(self, places: Places, n_places: int) -> Any:
        """Return a matrix (n_places, m) with a 1 for each row's place (m,), until the next call.

        Its product with numbers of the rows adds these up by place, row after row, whatever the
        platform's matrix product does. Its ``indices`` are the places.
        """
        shape = n_places, len(places)
        if shape not in self._made:
            # Imported here: it takes a while, and few need it.
            from scipy.sparse import csc_array

            ends = np.arange(len(places) + 1, dtype=np.int32)
            parts = np.ones(len(places)), places.astype(np.int32), ends
            self._made[shape] = csc_array(parts, shape=shape)
        matrix = self._made[shape]
        matrix.indices[:] = places
        return matrix


class _Sums:
    """Adds up the offsets of rows, and the squares of these, by cell: some rows at a time."""

    def __init__(self, n_cells: int, d: int, members: _Members, *, by_column: bool) -> None:
        self._members, self._by_column = members, by_column
        self.nothing = True
        # The first place is for rows of no cell, whose number is -1.
        self._total = Tally.nothing(n_cells + 1, d, by_column=by_column)

    def add(self, offsets: FloatArray, labels: Places) -> None:
        """Take in some rows' offsets (m, d), which are written over, and their cells (m,)."""
        total, size = self._total, len(self._total.counts)
        members = self._members.of(labels + np.int16(1), size)
        total.counts[:] += np.bincount(members.indices, minlength=size)
        total.offsets[:] += members @ offsets
        if self._by_column:
            total.squares[:] += members @ np.multiply(offsets, offsets, out=offsets)
        else:
            squares = np.vecdot(offsets, offsets)
            total.squares[:, 0] += np.bincount(members.indices, squares, minlength=size)
        self.nothing = False

    def total(self) -> Tally:
        """Return the sums over all that was taken in."""
        total = self._total
        return Tally(total.counts[1:], total.offsets[1:], total.squares[1:])


class _Run:
    """The sums of a run about its cells' points (K, d), from rows' offsets from one centre.

    What the sums about the centre are, less what they would be if all rows of a cell were at its
    point. Where that is nearly all of them it costs digits, and the rows' offsets from their own
    points are added up, which takes longer: for those cells, or at once for all where the first
    rows say that most will need it, or where columns count each by itself (of yes and no, a cell
    often has one alone).
    """

    def __init__(
        self, points: FloatArray, centre: FloatArray, members: _Members, *, by_column: bool
    ) -> None:
        self._points, self._members, self._by_column = points, members, by_column
        self._shift = points - centre
        self._from_own = by_column
        self._sums = self._nothing()

    def add(self, rows: FloatArray, centred: FloatArray, labels: Places) -> None:
        """Take in some rows (m, d), their offsets from the centre and their cells (m,)."""
        if self._from_own:
            self._sums.add(self._own_offsets(rows, labels), labels)
            return
        first = self._sums.nothing
        self._sums.add(centred, labels)
        if first:
            found, kept = self._about_points()
            if 2 * found.counts[kept].sum() < found.counts.sum():
                self._from_own, self._sums = True, self._nothing()
                self.add(rows, centred, labels)

    def total(self, run: FloatArray, labels: Labels) -> Tally:
        """Return the sums over all that was taken in: the ``run`` (m, d) and its cells (m,)."""
        if self._from_own:
            return self._sums.total()
        found, kept = self._about_points()
        if kept.all():
            return found
        # The last of the chosen is for rows of no cell, whose number is -1.
        sums, numbers = self._nothing(), np.flatnonzero(np.append(~kept, False)[labels])
        for at in range(0, len(numbers), STEP):
            some = numbers[at : at + STEP]
            own = labels[some].astype(np.int16)
            sums.add(self._own_offsets(run[some], own), own)
        again, kept = sums.total(), kept[:, None]
        return Tally(
            found.counts,
            np.where(kept, found.offsets, again.offsets),
            np.where(kept, found.squares, again.squares),
        )

    def _nothing(self) -> _Sums:
        n_cells, d = self._points.shape
        return _Sums(n_cells, d, self._members, by_column=self._by_column)

    def _about_points(self) -> tuple[Tally, NDArray[np.bool_]]:
        """Return the sums about the points, and which of them (K,) have their digits."""
        about = self._sums.total()
        offsets = about.offsets - about.counts[:, None] * self._shift
        squares = about.squares - np.vecdot(self._shift, about.offsets + offsets)[:, None]
        # Not true of NaN either: what overflows about the centre need not about the points.
        kept = squares * _LOST >= about.squares
        return Tally(about.counts, offsets, squares), kept[:, 0]

    def _own_offsets(self, rows: FloatArray, labels: Places) -> FloatArray:
        # Rows of no cell are measured from the last point, and counted nowhere.
        own = self._points.take(labels, axis=0, mode="wrap")
        return np.subtract(rows, own, out=own)


def assign(
    rows: Rows, centroids: Sequence[FloatArray], *, by_column: bool = False
) -> list[tuple[Places, Tally]]:
    """Return the nearest of each of several sets of centroids (K, d), and the sums about them.

    ``by_column``: whether each column's squares are wanted by themselves.

    Returns
    -------
    list of ((n,) int16, Tally)
        For each set. Among equal centroids the first has all rows; ties to the lowest.
    """
    labels = [rows.array(np.int16) for _ in centroids]
    tallies = [Tally.nothing(*each.shape, by_column=by_column) for each in centroids]
    start = 0
    for found in rows.map(_Assigning(centroids, by_column)):
        end = start + len(found[0][0])
        for i, (own, added) in enumerate(found):
            labels[i][start:end] = own
            tallies[i] = tallies[i] + added
        start = end
    return list(zip(labels, tallies, strict=True))


class _Assigning:
    """Assigns a run of rows to each of several sets of centroids, and adds up."""

    def __init__(self, centroids: Sequence[FloatArray], by_column: bool) -> None:
        self._centroids, self._by_column = centroids, by_column
        self._finders = [Finder(each) for each in centroids]

    def __reduce__(self) -> tuple[type[_Assigning], tuple[Sequence[FloatArray], bool]]:
        # What travels is what it was made of.
        return _Assigning, (self._centroids, self._by_column)

    def __call__(self, run: FloatArray) -> list[tuple[Places, Tally]]:
        # Runs may be at work at the same time.
        finders = [finder.another(min(STEP, len(run))) for finder in self._finders]
        found = [np.empty(len(run), dtype=np.int16) for _ in finders]
        members = _Members()
        sums = [
            _Run(each, finder.centre.point, members, by_column=self._by_column)
            for each, finder in zip(self._centroids, finders, strict=True)
        ]
        for at in range(0, len(run), STEP):
            some = run[at : at + STEP]
            for finder, nearest, adding in zip(finders, found, sums, strict=True):
                own = nearest[at : at + STEP]
                adding.add(some, finder.find(some, own), own)
        return [(own, adding.total(run, own)) for own, adding in zip(found, sums, strict=True)]


def cells_of(rows: Rows, labels: Labels, n_cells: int) -> CellMoments:
    """Return ``moments.cell_moments`` of rows, in one pass."""
    merged: CellMoments | None = None
    for part in rows.map(functools.partial(_run_cells, n_cells), labels):
        merged = part if merged is None else merge_cells(merged, part)
    if merged is None:
        return cell_moments(np.empty((0, rows.shape[1])), labels, n_cells)
    return merged


def _run_cells(n_cells: int, run: FloatArray, labels: Labels) -> CellMoments:
    return cell_moments(run, labels, n_cells)


def tally(rows: Rows, labels: Labels, points: FloatArray, *, by_column: bool = False) -> Tally:
    """Return the sums over cells about ``points`` (K, d); ``labels`` (n,), -1 leaves a row out."""
    total = Tally.nothing(*points.shape, by_column=by_column)
    going = functools.partial(_tallied, points, centre_of(points), by_column)
    for added in rows.map(going, labels):
        total = total + added
    return total


def _tallied(
    points: FloatArray, point: FloatArray, by_column: bool, run: FloatArray, labels: Labels
) -> Tally:
    centre = Centre(point, min(STEP, len(run)))
    adding = _Run(points, point, _Members(), by_column=by_column)
    for at in range(0, len(run), STEP):
        some = run[at : at + STEP]
        adding.add(some, centre.offsets(some), labels[at : at + STEP].astype(np.int16))
    return adding.total(run, labels)
