"""How many persons a set of rows stands for.

With a column of person identifiers (never sent), its distinct persons. Without, its rows; but a
set whose rows are all identical counts as one person, since its mean is that person's record.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "BoolVector",
    "Labels",
    "PersonIndex",
    "Room",
    "distinct_views",
    "highest",
    "joined",
    "row_hashes",
    "stretches",
    "tally",
]

BoolVector: TypeAlias = NDArray[np.bool_]
#: Numbers of cells or sets, one for each row.
Labels: TypeAlias = NDArray[np.integer[Any]]

# Multipliers of the splitmix64 finaliser: a bijection of 64 bits that spreads every input bit.
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_STEP = np.uint64(0x9E3779B97F4A7C15)
#: Rows looked at together where there may be more than memory holds.
_PART = 1 << 15
#: Rows that are hashed together: what is made of them stays in the cache.
_TILE = 512
#: Pairs of numbers that are counted in a table.
_TABLE = 1 << 20
#: Makes arrays of zeros: of a shape and a type.
Room: TypeAlias = Callable[[tuple[int, ...], type[np.generic]], NDArray[Any]]


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
    total : int
        Persons behind all rows.
    """

    def __init__(self, X: NDArray[np.float64], persons: NDArray[np.int64] | None = None) -> None:
        X = np.asarray(X)
        if X.ndim != 2:
            raise ValueError("rows are an array of two axes")
        if persons is not None and np.shape(persons) != X.shape[:1]:
            raise ValueError("persons must name one person for each row")
        group: NDArray[np.int64] | None
        if persons is None:
            group = _identity_classes(X)
            sizes = np.bincount(group[group >= 0])
        else:
            group = np.unique(persons, return_inverse=True)[1].reshape(-1)
            sizes = np.bincount(group)
        self._set(int(X.shape[0]), persons is not None, group if sizes.size else None, sizes)
        self._room: Room = np.zeros

    @classmethod
    def of_keys(cls, keys: NDArray[Any], *, persons: bool, room: Room) -> PersonIndex:
        """Return the index of rows that are not in memory.

        Parameters
        ----------
        keys : (n,) of 64 bits
            Of each row :func:`row_hashes`, or with ``persons`` its person's number.
        persons : bool
        room : callable
            ``(shape, dtype) -> array`` of zeros, for what is kept of each row.
        """
        index = cls.__new__(cls)
        known = _repeated(keys.view(np.uint64), 1 if persons else 2)
        group, sizes = None, np.zeros(0, dtype=np.int64)
        if known.size:
            group = room(keys.shape, np.int32)
            sizes = np.zeros(known.size, dtype=np.int64)
            for start in range(0, len(keys), _PART):
                own = keys[start : start + _PART].view(np.uint64)
                place = np.minimum(np.searchsorted(known, own), known.size - 1)
                place = np.where(known[place] == own, place, -1)
                group[start : start + _PART] = place
                sizes += np.bincount(place + 1, minlength=known.size + 1)[1:]
        index._set(len(keys), persons, group, sizes)
        index._room = room
        return index

    def _set(self, n: int, declared: bool, group: Labels | None, sizes: NDArray[np.int64]) -> None:
        self.n, self.declared = n, declared
        # The person of a row, or the class of rows identical to it (-1: unlike all others); None
        # where no two rows are identical.
        self._group = group
        self._sizes = np.sort(sizes)[::-1].astype(np.int64)
        #: What the guard sent of these rows, by digest: the same arrays from round to round.
        self.sent: dict[bytes, Labels] = {}
        self.total = len(sizes) if declared else n
        if not declared and sizes.size and self._sizes[0] == n:
            self.total = 1

    def room(self, kind: type[np.generic], *shape: int) -> NDArray[Any]:
        """Return an array (*shape, n) of zeros for something of each row."""
        return self._room((*shape, self.n), kind)

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
        if self._group is None:
            return _size(rows)
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
        if not self.declared or self._group is None:
            return None
        weights: NDArray[np.float64] = self.room(np.float64)
        np.divide(1.0, np.bincount(self._group)[self._group], out=weights)
        return weights

    def reaches(self, rows: BoolVector | NDArray[np.intp], p: int) -> bool:
        """Return whether a set of rows stands for at least ``p`` persons."""
        size = _size(rows)
        if size < p:
            return False
        return size >= self.certain(p) or self.count(rows) >= p

    def allows(self, rows: BoolVector | NDArray[np.intp], p: int) -> bool:
        """Return whether a set of rows stands for no person or for at least ``p``."""
        empty = not rows.any() if rows.dtype == np.bool_ else rows.size == 0
        return empty or self.reaches(rows, p)


def tally(numbers: Labels, n: int) -> NDArray[np.int64]:
    """Return how often each of the numbers 0 to n - 1 occurs, (n,).

    ``np.bincount`` of all at once would make eight bytes of each first.
    """
    counts = np.zeros(n, dtype=np.int64)
    for part in stretches(len(numbers)):
        counts += np.bincount(numbers[part], minlength=n)
    return counts


def highest(numbers: Labels) -> int:
    """Return the highest number, -1 where there are none."""
    return int(numbers.max()) if len(numbers) else -1


def stretches(n: int) -> Iterator[slice]:
    """Yield slices of n rows that are looked at together, in order."""
    for start in range(0, n, _PART):
        yield slice(start, min(start + _PART, n))


def joined(
    first: Labels, second: Labels, width: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return which pairs of numbers the rows have in two arrays (n,), and how many rows each.

    Returns
    -------
    keys : (m,) int64
        ``first * width + second``, ascending; ``width`` is more than any of the second.
    counts : (m,) int64
    """
    # By tables where these are no longer than the rows; else by sorting.
    size = (highest(first) + 1) * width
    if size <= _TABLE:
        table = np.zeros(size, dtype=np.int64)
        for part in stretches(len(first)):
            keys = first[part] * np.int64(width) + second[part]
            table += np.bincount(keys, minlength=size)
        found = np.flatnonzero(table)
        return found, table[found]
    known, counts = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    for part in stretches(len(first)):
        own, number = np.unique(first[part] * np.int64(width) + second[part], return_counts=True)
        every, place = np.unique(np.concatenate([known, own]), return_inverse=True)
        counts = np.bincount(place, np.concatenate([counts, number]), minlength=len(every))
        known, counts = every, counts.astype(np.int64)
    return known, counts


def _size(rows: BoolVector | NDArray[np.intp]) -> int:
    return int(np.count_nonzero(rows)) if rows.dtype == np.bool_ else int(rows.size)


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
    sendable = np.zeros(observed.shape[1], dtype=np.bool_)
    views: dict[bytes, BoolVector] = {}
    for j in range(observed.shape[1]):
        column = np.ascontiguousarray(observed[:, j])
        sendable[j] = index.reaches(column, p)
        if not sendable[j] or column.all():
            continue
        known = hashlib.blake2b(np.packbits(column).tobytes()).digest()
        if known not in views:
            views[known] = index.room(np.bool_)
            views[known][:] = column
    return tuple(views.values()), sendable


def row_hashes(X: NDArray[np.float64]) -> NDArray[np.uint64]:
    """Return a number (n,) of 64 bits for each row (n, d): the same for rows that are identical."""
    hashes = np.empty(len(X), dtype=np.uint64)
    # A weight for each column: the same values in other columns are another row.
    weights = _mix(_STEP * np.arange(1, X.shape[1] + 1, dtype=np.uint64)) | np.uint64(1)
    for start in range(0, len(X), _TILE):
        # Adding 0.0 makes -0.0 and 0.0, which are the same value, the same bits.
        bits = np.add(X[start : start + _TILE], 0.0, dtype=np.float64).view(np.uint64)
        # Whole numbers end in zeros, as doubles: all bits have to count before they are added up.
        bits ^= bits >> np.uint64(32)
        bits *= _MIX[0]
        bits ^= bits >> np.uint64(29)
        np.einsum("ij,j->i", bits, weights, out=hashes[start : start + _TILE])
    return _mix(hashes)


def _hashed(hashes: NDArray[np.uint64], column: NDArray[np.float64]) -> NDArray[np.uint64]:
    # Adding 0.0 makes -0.0 and 0.0, which are the same value, the same bits.
    bits = np.ascontiguousarray(column, dtype=np.float64) + 0.0
    return _mix((hashes + _STEP) ^ bits.view(np.uint64))


def _repeated(keys: NDArray[np.uint64], least: int) -> NDArray[np.uint64]:
    """Return, ascending, the keys that occur at least so often, looked for part by part."""
    n_bits = max(int(keys.size // _PART).bit_length(), 1)
    shift = np.uint64(64 - n_bits)
    found = []
    for part in range(1 << n_bits):
        own = [
            some[some >> shift == part]
            for some in (keys[at : at + _PART] for at in range(0, keys.size, _PART))
        ]
        if own:
            values, counts = np.unique(np.concatenate(own), return_counts=True)
            found.append(values[counts >= least])
    return np.concatenate(found) if found else np.zeros(0, dtype=np.uint64)


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
        hashes = _hashed(hashes, column)
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
