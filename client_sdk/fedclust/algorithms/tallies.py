"""What a Lloyd step needs of a site's rows, in one pass: who is nearest, and the sums.

Rows are taken some hundred at a time, so that all that is done with them is done while they are
in the processor's cache: a product with the centroids, the lowest of each row, and products of the
cells' members with the rows' offsets from their own centroids and with the squares of these.
Offsets, because far from the origin sums of the rows themselves would cost digits: the mean is the
centroid and the mean offset, and the squares add up to the cost.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedclust.algorithms.assigning import STEP, Finder
from fedclust.algorithms.rows import Rows
from fedclust.privacy.counting import Labels
from fedclust.privacy.moments import CellMoments, cell_moments, merge_cells

__all__ = ["Tally", "assign", "cells_of", "tally"]

FloatArray = NDArray[np.float64]
Places = NDArray[np.int16]


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


class _Sums:
    """Adds up a :class:`Tally`, some rows at a time."""

    def __init__(self, points: FloatArray, *, by_column: bool) -> None:
        self._points, self._by_column = points, by_column
        n_cells, d = points.shape
        # One more place, for rows of no cell, whose number is -1.
        self._members = np.zeros((n_cells + 1, STEP))
        self._every = np.arange(STEP)
        self._own = np.empty((STEP, d))
        self._total = Tally.nothing(n_cells, d, by_column=by_column)
        self._last: Places = np.zeros(0, dtype=np.int16)

    def add(self, rows: FloatArray, labels: Places) -> None:
        """Take in some rows (m, d) with the cells (m,) they are in."""
        m = len(rows)
        members, own = self._members[:, :m], self._own[:m]
        self._members[self._last, self._every[: len(self._last)]] = 0.0
        members[labels, self._every[:m]] = 1.0
        self._last = labels
        # Rows of no cell are measured from the last point, and counted nowhere.
        self._points.take(labels, axis=0, out=own, mode="wrap")
        np.subtract(rows, own, out=own)
        inside = members[:-1]
        total = self._total
        total.offsets[:] += inside @ own
        if self._by_column:
            np.multiply(own, own, out=own)
            total.squares[:] += inside @ own
        else:
            total.squares[:, 0] += inside @ np.einsum("ij,ij->i", own, own)

    def total(self, labels: Labels) -> Tally:
        """Return the sums over all that was taken in, the cells of which were ``labels``."""
        counts = np.bincount(labels + 1, minlength=len(self._points) + 1)[1:]
        return replace(self._total, counts=counts)


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
        finders = [finder.another() for finder in self._finders]
        found = [np.empty(len(run), dtype=np.int16) for _ in finders]
        sums = [_Sums(each, by_column=self._by_column) for each in self._centroids]
        for at in range(0, len(run), STEP):
            some = run[at : at + STEP]
            for finder, nearest, adding in zip(finders, found, sums, strict=True):
                own = nearest[at : at + STEP]
                finder.find(some, own)
                adding.add(some, own)
        return [(own, adding.total(own)) for own, adding in zip(found, sums, strict=True)]


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
    for added in rows.map(functools.partial(_tallied, points, by_column), labels):
        total = total + added
    return total


def _tallied(points: FloatArray, by_column: bool, run: FloatArray, labels: Labels) -> Tally:
    adding = _Sums(points, by_column=by_column)
    for at in range(0, len(run), STEP):
        adding.add(run[at : at + STEP], labels[at : at + STEP].astype(np.int16))
    return adding.total(labels)
