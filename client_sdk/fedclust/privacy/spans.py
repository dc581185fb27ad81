"""What can be computed from all sums of a session together, however they are combined.

Every sum that was sent is linear in the rows. By adding and subtracting sums, as many as one
likes and in any multiples, a group of rows can be singled out exactly where a combination of the
sets that were sent is zero outside the group (Chin & Ozsoyoglu, "Auditing and inference control in
statistical databases", IEEE Trans. Softw. Eng. 8 (1982), 574-582). Rows that are together in every
set make one *atom*; a combination is constant on it. The span of the sets holds an atom where the
atom, as a vector of length 1, keeps all its length when projected onto the span.
"""

from __future__ import annotations

import copy
import hashlib
import threading
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedclust.privacy.counting import Labels, PersonIndex, joined, stretches, tally

__all__ = ["Span", "span_of"]

IntVector = NDArray[np.int64]
FloatArray = NDArray[np.float64]
RowNumbers = NDArray[np.intp]

#: Beyond so many sets, or rows times partitions, combinations are not looked for and nothing new
#: is sent: memory grows with the sets' square, and with the rows of each partition.
_MOST_SETS: Final = 4_000
_MOST_PLACES: Final = 200_000_000
#: Spans kept from one partition to the next, the last used first: so many, of so many bytes.
_MOST_KEPT: Final = 64
_MOST_BYTES: Final = 1 << 29
_KEPT: list[Span] = []
_LOCK: Final = threading.Lock()
#: Beyond so many atoms of too few persons, pairs of them are not looked for.
_MOST_PAIRED: Final = 1_500
#: Eigenvalues below this, of sets of length 1, are those of sets that add nothing.
_NOTHING: Final = 1e-9
#: The share of a squared length that is all of it but for rounding.
_ALL: Final = 1.0 - 1e-6
#: Test vectors, and the squared length below which what is left of them is looked at closely.
_N_TESTS: Final = 4
_LITTLE: Final = 1e-3

# Multipliers of the splitmix64 finaliser.
_FACTORS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_STEP = np.uint64(0x9E3779B97F4A7C15)


class Span:
    """What the partitions sent so far, and the total, tell of a set of rows.

    Parameters
    ----------
    sent : sequence of (m,) int
        The set that each of the rows belongs to in each partition.
    rows : (m,) intp or None
        Their numbers; None: all rows, in order.
    index : PersonIndex
    p : int
        Smallest number of persons.

    Attributes
    ----------
    affordable : bool
        Whether there are few enough sets and atoms to look at their combinations.
    """

    def __init__(
        self, sent: Sequence[Labels], rows: RowNumbers | None, index: PersonIndex, p: int
    ) -> None:
        self._index, self._p, self._rows = index, p, rows
        self._n = index.n if rows is None else rows.size
        #: A digest of each partition.
        self._sent: list[bytes] = []
        self._atom = self._array()
        #: (H + 1, A): the set of each atom in each partition, counted within it.
        self._places = np.zeros((0, min(1, self._n)), dtype=np.int16)
        self._widths = np.zeros(0, dtype=np.int64)
        self._start = np.zeros(0, dtype=np.int64)
        self._overlap = np.zeros((0, 0))
        self._lengths = np.zeros(0)
        self._basis = np.zeros((0, 0))
        self._tests = np.zeros((0, _N_TESTS))
        self.affordable = True
        # The total comes first, as a partition of one set; each set has a number of its own.
        self._add(np.zeros(self._n, dtype=np.uint8))
        self._take_up(sent)

    def extended(self, sent: Sequence[Labels], digests: list[bytes], index: PersonIndex) -> Span:
        """Return the span of ``sent`` (H, m), whose first partitions are those known.

        One is taken up after the other: what comes out does not depend on how many are taken up
        at a time, so a site that starts anew decides as one that has been running.
        """
        more = copy.copy(self)
        more._index, more._sent = index, list(digests)
        more._take_up(sent[len(self._sent) :])
        return more

    def begins(self, digests: list[bytes], rows: RowNumbers | None, n: int, p: int) -> bool:
        """Return whether this is the span of the first of some partitions of the same rows."""
        return (
            (self._p, self._n) == (p, n)
            and self._sent == digests[: len(self._sent)]
            and (self._rows is None) == (rows is None)
            and (self._rows is None or rows is None or np.array_equal(self._rows, rows))
        )

    @property
    def n_bytes(self) -> int:
        """Memory that it takes, but for little."""
        large = (self._atom, self._places, self._overlap, self._basis)
        return sum(array.nbytes for array in large)

    def _array(self) -> NDArray[np.int32]:
        """Return zeros (m,)."""
        if self._rows is None:
            return np.asarray(self._index.room(np.int32))
        return np.zeros(self._n, dtype=np.int32)

    def _take_up(self, sent: Sequence[Labels]) -> None:
        for places in sent:
            if self.affordable:
                self._add(places)

    def _add(self, places: Labels) -> None:
        """Put the sets of one more partition (m,) behind those known."""
        width = int(places.max(initial=0)) + 1
        n_sets = int(self._widths.sum())
        if n_sets + width > _MOST_SETS or (len(self._widths) + 1) * places.size > _MOST_PLACES:
            self.affordable = False
            return
        keys, counts, self._atom = self._parted(places, width)
        own_places = (keys % width).astype(np.int16)
        self._places = np.concatenate([self._places[:, keys // width], own_places[None]])
        self._widths = np.append(self._widths, width)
        self._start = np.append(self._start, n_sets)
        if not places.size:
            return
        sizes = counts.astype(np.float64)
        shared = self._overlaps(self._places[-1].astype(np.int64), width, sizes)
        overlap = np.zeros((n_sets + width, n_sets + width))
        overlap[:n_sets, :n_sets] = self._overlap
        overlap[:, n_sets:] = shared
        overlap[n_sets:, :] = shared.T
        self._overlap = overlap
        own = np.sqrt(np.maximum(np.diag(overlap)[n_sets:], 1.0))
        self._lengths = np.append(self._lengths, own)
        # What the new sets, of length 1, add to the basis; then once more, for the digits that
        # taking one nearly parallel vector off another costs.
        known = self._basis @ (shared[:n_sets] / self._lengths[:n_sets, None] / own)
        present = np.diag((np.diag(overlap)[n_sets:] > 0).astype(np.float64))
        turn = _orthonormal(present - known.T @ known)
        fresh = np.concatenate([-turn @ known.T @ self._basis, turn], axis=1)
        basis = np.pad(self._basis, ((0, 0), (0, width)))
        unit = overlap / np.outer(self._lengths, self._lengths)
        fresh -= ((fresh @ unit) @ basis.T) @ basis
        fresh = _orthonormal((fresh @ unit) @ fresh.T) @ fresh
        self._basis = np.concatenate([basis, fresh])
        on_atoms = self._tested(self._atom, counts.size)
        sums = np.concatenate(
            [
                _added(place, on_atoms, int(own))
                for own, place in zip(self._widths, self._places, strict=True)
            ]
        )
        self._tests = self._basis @ (sums / self._lengths[:, None])

    def _parted(self, places: Labels, width: int) -> tuple[IntVector, IntVector, NDArray[np.int32]]:
        """Part the atoms by the sets of one more partition (m,).

        Returns the new ones, as (a,) ``old * width + set``, their rows (a,), and each row's (m,).
        """
        keys, counts = joined(self._atom, places, width)
        atom = self._array()
        for part in stretches(self._n):
            atom[part] = np.searchsorted(keys, self._atom[part] * np.int64(width) + places[part])
        return keys, counts, atom

    def _tested(self, atom: NDArray[np.int32], n_atoms: int) -> FloatArray:
        """Return the sums (a, t) of the test vectors over atoms."""
        sums = np.zeros((n_atoms, _N_TESTS))
        for part in stretches(self._n):
            vectors = _tests(self._n, part)
            for i, vector in enumerate(vectors):
                sums[:, i] += np.bincount(atom[part], vector, minlength=n_atoms)
        return sums

    def told(self, now: Labels) -> RowNumbers:
        """Return which rows sending one more partition would single out.

        Parameters
        ----------
        now : (m,) int64
            The set of each of the rows in that partition.

        Returns
        -------
        (k,) intp
            Positions in ``rows`` of 1 to p - 1 persons that a combination of sums is about: one
            atom, or two where not too many are small. Empty where there are none; all positions
            where there are too many sets to look (``affordable``).
        """
        nothing = np.zeros(0, dtype=np.intp)
        if now.size == 0:
            return nothing
        if not self.affordable:
            return np.arange(now.size)
        sizes = tally(now, int(now.max()) + 1)
        used = np.flatnonzero(sizes)
        width = used.size
        number = np.zeros(sizes.size, dtype=np.int16)
        number[used] = np.arange(width)
        keys, counts, atom = self._parted(number[now], width)
        few = self._few(atom, counts)
        if few.size == 0:
            return nothing
        # What the new sets, of length 1, add to the basis.
        overlaps = self._overlaps(keys % width, width, counts.astype(np.float64), keys // width)
        lengths = np.sqrt(sizes[used].astype(np.float64))
        known = self._basis @ (overlaps / self._lengths[:, None] / lengths)
        turn = _orthonormal(np.eye(width) - known.T @ known)
        old, new, weights = keys[few] // width, keys[few] % width, np.sqrt(counts[few])
        pairs = self._p > 2 and few.size <= _MOST_PAIRED
        chosen = np.arange(few.size)
        if not pairs:
            chosen = self._doubtful(keys, atom, few, old, new, weights, lengths, known, turn)
        parts = self._parts(old[chosen], new[chosen], weights[chosen], lengths, known, turn)
        share = (parts**2).sum(axis=0)
        found = chosen[share > _ALL]
        if found.size:
            theirs = np.zeros(keys.size, dtype=np.bool_)
            theirs[few[found]] = True
            return np.flatnonzero(theirs[atom])
        return self._pair(atom, few, parts, share) if pairs else nothing

    def _parts(
        self,
        old: IntVector,
        new: IntVector,
        weights: FloatArray,
        lengths: FloatArray,
        known: FloatArray,
        turn: FloatArray,
    ) -> FloatArray:
        """Return what atoms, as vectors of length 1, have of each vector of the basis, (r, a)."""
        unit = np.zeros((self._lengths.size, old.size))
        unit[self._start[:, None] + self._places[:, old], np.arange(old.size)] = 1.0
        before = self._basis @ (unit / self._lengths[:, None])
        added = (np.arange(lengths.size)[:, None] == new) / lengths[:, None] - known.T @ before
        parts: FloatArray = np.concatenate([before, turn @ added]) * weights
        return parts

    def _doubtful(
        self,
        keys: IntVector,
        atom: NDArray[np.int32],
        few: IntVector,
        old: IntVector,
        new: IntVector,
        weights: FloatArray,
        lengths: FloatArray,
        known: FloatArray,
        turn: FloatArray,
    ) -> IntVector:
        """Return positions in ``few`` of the atoms that may be told, all that are among them.

        What is left of any vector, once its projection onto the span is taken off, is 0 at an
        atom that the span holds; at others it is next to 0 by chance alone.
        """
        on_atoms = self._tested(atom, keys.size)
        sums = _added(keys % lengths.size, on_atoms, lengths.size)
        fresh = turn.T @ (turn @ (sums / lengths[:, None] - known.T @ self._tests))
        on_old = self._basis.T @ (self._tests - known @ fresh) / self._lengths[:, None]
        on_new = fresh / lengths[:, None]
        value = on_new[new]
        for start, place in zip(self._start, self._places, strict=True):
            value += on_old[start + place[old]]
        own = on_atoms[few] / weights[:, None]
        left = own - value * weights[:, None]
        return np.flatnonzero((left**2).sum(axis=1) < _LITTLE)

    def _numbers(self, rows: RowNumbers) -> RowNumbers:
        return rows if self._rows is None else self._rows[rows]

    def _few(self, atom: NDArray[np.int32], counts: IntVector) -> IntVector:
        """Return the atoms of fewer than p persons."""
        small = counts < self._index.certain(self._p)
        unsure = np.flatnonzero(small & (counts >= self._p))
        if unsure.size:
            order, ends = np.argsort(atom, kind="stable"), np.cumsum(counts)
            for number in unsure:
                rows = order[ends[number] - counts[number] : ends[number]]
                small[number] = not self._index.reaches(self._numbers(rows), self._p)
        return np.flatnonzero(small)

    def _pair(
        self, atom: NDArray[np.int32], few: IntVector, parts: FloatArray, share: FloatArray
    ) -> RowNumbers:
        """Return the rows of two atoms of fewer than p persons that a combination is about."""
        # What is left of one, its projection taken off, is a multiple of what is left of the other.
        left = np.sqrt(1.0 - share)
        alike = np.triu(((parts.T @ parts) / np.outer(left, left)) ** 2 > _ALL, 1)
        for i, j in np.argwhere(alike):
            both = np.flatnonzero((atom == few[i]) | (atom == few[j]))
            if not self._index.reaches(self._numbers(both), self._p):
                return both
        return np.zeros(0, dtype=np.intp)

    def _overlaps(
        self,
        sets: IntVector,
        width: int,
        sizes: FloatArray,
        atoms: IntVector | None = None,
    ) -> FloatArray:
        """Return how many rows each set sent before shares with each of ``width`` sets.

        ``sets`` (a,) are those of ``atoms``, all of them in order by default, of ``sizes`` rows.
        """
        shared = [
            np.bincount(
                (place if atoms is None else place[atoms]) * np.int64(width) + sets,
                sizes,
                minlength=int(own) * width,
            ).reshape(int(own), width)
            for own, place in zip(self._widths, self._places, strict=True)
        ]
        return np.concatenate(shared)


def span_of(
    sent: Sequence[Labels],
    rows: RowNumbers | None,
    index: PersonIndex,
    p: int,
    digests: list[bytes] | None = None,
) -> Span:
    """Return ``Span(sent, rows, index, p)``, from one made before where that saves work.

    ``digests``: one for each partition, no two of them alike, where they are known.
    """
    if digests is None:
        digests = [hashlib.blake2b(places.tobytes()).digest() for places in sent]
    n = index.n if rows is None else rows.size
    with _LOCK:
        known = [span for span in _KEPT if span.begins(digests, rows, n, p)]
    span = max(known, key=lambda span: len(span._sent), default=None)
    if span is None:
        span = Span([], rows, index, p)
    span = span.extended(sent, digests, index)
    with _LOCK:
        _KEPT[:] = [span, *(other for other in _KEPT if other not in known)][:_MOST_KEPT]
        while len(_KEPT) > 1 and sum(each.n_bytes for each in _KEPT) > _MOST_BYTES:
            _KEPT.pop()
    return span


def _added(places: NDArray[np.integer[Any]], values: FloatArray, n: int) -> FloatArray:
    """Return the sums (n, t) of values (a, t) by place (a,)."""
    return np.stack([np.bincount(places, column, minlength=n) for column in values.T], axis=1)


def _orthonormal(products: FloatArray) -> FloatArray:
    """Return combinations (r, k) of k vectors that make an orthonormal basis of their span.

    ``products`` (k, k) are the vectors' inner products.
    """
    values, vectors = np.linalg.eigh(products)
    kept = values > _NOTHING
    combinations: FloatArray = (vectors[:, kept] / np.sqrt(values[kept])).T
    return combinations


def _spread(n: int, first: int = 1) -> NDArray[np.uint64]:
    """Return n numbers of 64 bits, always the same, that look drawn at random."""
    z = np.arange(first, first + n, dtype=np.uint64) * _STEP
    for shift, factor in zip((30, 27), _FACTORS, strict=True):
        z = (z ^ (z >> np.uint64(shift))) * factor
    mixed: NDArray[np.uint64] = z ^ (z >> np.uint64(31))
    return mixed


def _tests(m: int, part: slice) -> FloatArray:
    """Return a part of the test vectors (t, m): independent entries of mean 0 and variance 1."""
    n = part.stop - part.start
    numbers = np.stack([_spread(n, (1 << 32) + i * m + part.start) for i in range(_N_TESTS)])
    vectors: FloatArray = (numbers / 2.0**63 - 1.0) * np.sqrt(3.0)
    return vectors
