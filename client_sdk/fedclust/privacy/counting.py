"""How many persons a set of rows stands for.

With a column of person identifiers (never sent), its distinct persons. Without, its rows; but a
set whose rows are all identical counts as one person, since its mean is that person's record.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["BoolVector", "PersonIndex", "distinct_views"]

BoolVector: TypeAlias = NDArray[np.bool_]

# Multipliers of the splitmix64 finaliser: a bijection of 64 bits that spreads every input bit.
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_STEP = np.uint64(0x9E3779B97F4A7C15)


class PersonIndex:
    """Counts the persons behind any set of a site's rows.

    Parameters
    ----------
    X : (n, d) float64
        The site's rows, scaled or not, without NaN.
    persons : (n,) int64, optional
        Which person each row belongs to. None: each row is a person, and a set of identical rows
        is one person.

    Attributes
    ----------
    n : int
        Number of rows.
    declared : bool
        Whether ``persons`` was given.
    """

    def __init__(self, X: NDArray[np.float64], persons: NDArray[np.int64] | None = None) -> None:
        X = np.asarray(X)
        if X.ndim != 2:
            raise ValueError("rows are an array of two axes")
        self.n = int(X.shape[0])
        self.declared = persons is not None
        # _group: the person of a row, or the class of rows identical to it (-1: unlike all others).
        if persons is None:
            self._group = _identity_classes(X)
            sizes = np.bincount(self._group[self._group >= 0])
        else:
            if np.shape(persons) != (self.n,):
                raise ValueError("persons must name one person for each row")
            self._group = np.unique(persons, return_inverse=True)[1].reshape(-1)
            sizes = np.bincount(self._group)
        self._sizes = np.sort(sizes)[::-1].astype(np.int64)

    def certain(self, p: int) -> int:
        """Return the smallest number of rows that always stands for at least ``p`` persons."""
        if p <= 1:
            return 1
        if self.declared:
            return int(self._sizes[: p - 1].sum()) + 1
        largest = int(self._sizes[0]) if self._sizes.size else 1
        return max(p, largest + 1)

    def count(self, rows: BoolVector | NDArray[np.intp]) -> int:
        """Return the number of persons in a set of rows, given as a mask or as row numbers."""
        groups = self._group[rows]
        if groups.size == 0:
            return 0
        if self.declared:
            return int(np.unique(groups).size)
        identical = groups[0] >= 0 and bool((groups == groups[0]).all())
        return 1 if identical else int(groups.size)

    def weights(self) -> NDArray[np.float64] | None:
        """Return weights (n,) that never add up to more than a set's persons; None for all 1.

        Where rows stand for persons, identical rows count one by one here.
        """
        if not self.declared:
            return None
        return np.asarray(1.0 / np.bincount(self._group)[self._group])

    def reaches(self, rows: BoolVector | NDArray[np.intp], p: int) -> bool:
        """Return whether a set of rows stands for at least ``p`` persons."""
        size = int(np.count_nonzero(rows)) if rows.dtype == np.bool_ else int(rows.size)
        if size < p:
            return False
        return size >= self.certain(p) or self.count(rows) >= p

    def allows(self, rows: BoolVector | NDArray[np.intp], p: int) -> bool:
        """Return whether a set of rows stands for no person or for at least ``p``."""
        empty = not rows.any() if rows.dtype == np.bool_ else rows.size == 0
        return empty or self.reaches(rows, p)


def distinct_views(
    observed: NDArray[np.bool_] | None, index: PersonIndex, p: int
) -> tuple[tuple[BoolVector, ...], BoolVector]:
    """Return the row sets that features' sums concern, and which features may be sent at all.

    Parameters
    ----------
    observed : (n, d) bool or None
        False where a value is missing or imputed; None: every value was observed.
    index : PersonIndex
    p : int

    Returns
    -------
    views : tuple of (n,) bool
        Each distinct set of rows in which some sendable feature was observed, without the set of
        all rows. For ``Guard(views=...)``.
    sendable : (d,) bool
        False for features observed in fewer than ``p`` persons: to be treated as not observed at
        all. Empty where ``observed`` is None.
    """
    if observed is None:
        return (), np.zeros(0, dtype=np.bool_)
    columns = np.ascontiguousarray(observed.T)
    sendable = np.array([index.reaches(column, p) for column in columns], dtype=np.bool_)
    views: dict[bytes, BoolVector] = {}
    for column in columns[sendable]:
        if not column.all():
            views.setdefault(np.packbits(column).tobytes(), column)
    return tuple(views.values()), sendable


def _identity_classes(X: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return (n,) class numbers of identical rows; -1 for rows unlike any other.

    Rows are compared by a 64-bit hash, column by column, and only those that still have a twin go
    on: on continuous data few do after the first. Two different rows with one hash would be taken
    for identical, which withholds more, never less.
    """
    n, d = X.shape
    classes = np.full(n, -1, dtype=np.int64)
    rows = np.arange(n)
    hashes = np.zeros(n, dtype=np.uint64)
    next_look = 1
    for j in range(d):
        column = X[:, j] if rows.size == n else X[rows, j]
        # Adding 0.0 makes -0.0 and 0.0, which are the same value, the same bits.
        bits = np.ascontiguousarray(column, dtype=np.float64) + 0.0
        hashes = _mix((hashes + _STEP) ^ bits.view(np.uint64))
        if j + 1 in (next_look, d):
            next_look *= 2
            _, inverse, counts = np.unique(hashes, return_inverse=True, return_counts=True)
            twins = counts[inverse] > 1
            rows, hashes = rows[twins], hashes[twins]
            if rows.size == 0:
                return classes
    classes[rows] = np.unique(hashes, return_inverse=True)[1]
    return classes


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * _MIX[0]
    z = (z ^ (z >> np.uint64(27))) * _MIX[1]
    mixed: NDArray[np.uint64] = z ^ (z >> np.uint64(31))
    return mixed
