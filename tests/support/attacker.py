"""One attacker for every method (ALGORITHMS, "Disclosure control", rule 8).

He holds every payload that one site sent in a session, and nothing else: statistics of sets of
rows whose members he does not know. He looks for records in single vectors, in differences of any
two statistics, in what totals leave when cells are taken off, and in unions of cells. Only to
judge him are the site's true rows used: a vector counts as recovered when it is one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray: TypeAlias = NDArray[np.float64]
#: Gives the vectors (m, d) of m candidates by their numbers.
_Vectors: TypeAlias = Callable[[NDArray[np.intp]], FloatArray]

#: A vector is a row when every feature agrees to this many of its standard deviations.
CLOSE = 1e-6
#: Up to so many cells and one rest, every union of them is tried.
_ALL_UNIONS_UP_TO = 9


@dataclass(frozen=True)
class Statistic:
    """Something a site sent about a set of its rows.

    Attributes
    ----------
    name : str
        For messages, such as ``"round 3, cell 2"``.
    count : int or None
        Rows in the set. None: the site did not say; ``vector`` is then looked at as it is.
    vector : (d,) float64
        Sum of the set's rows, scaled; any vector where ``count`` is None.
    group : str
        Cells of one partition share a group; "" for totals and single vectors.
    members : (n,) int64 or None
        1 for the rows in the set: for the judge, see :func:`recover`. None: not known.
    """

    name: str
    count: int | None
    vector: FloatArray
    group: str = ""
    members: NDArray[np.int64] | None = None


def cells(group: str, counts: ArrayLike, sums: ArrayLike) -> list[Statistic]:
    """Return the statistics of a partition: ``counts`` (K,) and scaled ``sums`` (K, d)."""
    pairs = zip(np.asarray(counts), np.asarray(sums, dtype=np.float64), strict=True)
    return [Statistic(f"{group}, cell {k}", int(n), s, group) for k, (n, s) in enumerate(pairs)]


def total(name: str, n: int, mean: ArrayLike) -> Statistic:
    """Return the statistic of all rows, from their number and scaled ``mean`` (d,)."""
    return Statistic(name, int(n), n * np.asarray(mean, dtype=np.float64))


def vectors(name: str, array: ArrayLike) -> list[Statistic]:
    """Return vectors (m, d) sent without a count: landmarks, anchors, seeds, in any units."""
    rows = np.asarray(array, dtype=np.float64)
    return [Statistic(f"{name}, vector {i}", None, row) for i, row in enumerate(rows)]


def recover(
    statistics: Iterable[Statistic],
    rows: FloatArray,
    rows_original: FloatArray | None = None,
    *,
    p: int,
    discrete: bool = False,
) -> set[int]:
    """Return the row numbers that the statistics give away.

    Parameters
    ----------
    statistics : iterable of Statistic
        All that the site sent in the session, in order.
    rows, rows_original : (n, d) float64
        The site's true rows, scaled and in their own units.
    p : int
        Differences of up to p - 1 rows are taken apart.
    discrete : bool
        The values are yes/no or few levels, and vectors coincide by chance. A row then counts as
        recovered only if fewer than ``p`` rows are equal to it and, where the members of the sets
        are known, one of them is in the difference, which concerns fewer than ``p`` rows: what
        differs between two cells of rounded prevalences may look like the record of somebody who
        is in neither, and four rows minus a fifth that equals one of them like that of the others.
        A mean of ``p`` rows or more that was rounded (rule 4) may be the majority's vector and is
        no finding;
        differences of two rows, which are nearly all equal to others, are not looked for.
        What this leaves out, :func:`small_differences` finds: it looks at no values.
    """
    return {row for row, _ in findings(statistics, rows, rows_original, p=p, discrete=discrete)}


def findings(
    statistics: Iterable[Statistic],
    rows: FloatArray,
    rows_original: FloatArray | None = None,
    *,
    p: int,
    discrete: bool = False,
) -> list[tuple[int, str]]:
    """Return each recovered row with how it was; parameters as for :func:`recover`."""
    statistics = list(statistics)
    sent = [item for item in statistics if item.count != 0]
    target = _Target(rows, p if discrete else None)
    original = None if rows_original is None else _Target(rows_original, p if discrete else None)
    found: list[tuple[int, str]] = []
    for item in sent:
        if discrete and _rests_on(item) >= p:
            continue
        vector = item.vector if item.count is None else item.vector / item.count
        for truth in (target, original):
            if truth is not None:
                found += [(row, f"{item.name} as sent") for row in truth.match_one(vector)]
    counted = [item for item in sent if item.count is not None]
    partitions = _partitions(statistics)
    rests = [partition.rest for partition in partitions if partition.rest is not None]
    found += _pairs([*counted, *rests], target, p, swaps=not discrete)
    for later, second in enumerate(partitions):
        for first in partitions[:later]:
            if len(first.counts) == len(second.counts):
                found += _same_unions(first, second, target, p, swaps=not discrete)
        for first in _compared(partitions[:later], second):
            found += _any_unions(first, second, target, p)
    return found


def small_prevalences(
    statistics: Iterable[Statistic],
    *,
    p: int,
    columns: NDArray[np.bool_],
    center: FloatArray,
    scale: FloatArray,
) -> list[str]:
    """Return where a yes/no feature is told to be true of 1 to ``p`` - 1 rows.

    Parameters
    ----------
    columns : (d,) bool
        Which features are yes/no.
    center, scale : (d,) float64
        Own units = scaled * scale + center.
    """
    told: list[str] = []
    for item in statistics:
        if not item.count:
            continue
        positives = item.vector * scale + item.count * center
        few = columns & (positives > 1e-6) & (positives < p - 1e-6)
        told += [f"{item.name}, feature {feature}" for feature in np.flatnonzero(few)]
    return told


def small_differences(partitions: Sequence[tuple[str, NDArray[np.int64]]], *, p: int) -> list[str]:
    """Return which comparisons of what was sent concern 1 to ``p`` - 1 rows.

    Values play no part, so that neither rounding nor chance hides or feigns anything: where two
    sets that were sent differ by a few rows, their difference is told, whatever it looks like.
    Every two sets of a session are compared, and the unions of sets of a partition with those of
    the one before and of its candidate's last.

    Parameters
    ----------
    partitions : sequence of (str, (n,) int64)
        What a site sent, in order: ``"round N, candidate"``, and the cell of each row, -1 for the
        rest.
    p : int
    """
    told: list[str] = []
    before: list[tuple[str, NDArray[np.int64]]] = []
    for name, labels in [("all rows", np.zeros_like(partitions[0][1])), *partitions]:
        sets = np.array([labels == k for k in np.unique(labels)], dtype=np.int64)
        nothing = np.zeros((1, labels.size), dtype=np.int64)
        others = [("nothing", nothing), *before]
        told += [f"{name} and {other}" for other, each in others if _few_apart(sets, each, p)]
        track = name.partition(", ")[2]
        same = [entry for entry in before if entry[0].partition(", ")[2] == track]
        for other, each in [*before[-1:], *same[-1:]]:
            if _few_apart(_unions(len(sets)) @ sets, _unions(len(each)) @ each, p):
                told.append(f"unions of {name} and {other}")
        if not any(np.array_equal(sets, each) for _, each in [*before[-1:], *same[-1:]]):
            before.append((name, sets))
    return told


def shares_given_back(
    sent: Sequence[tuple[NDArray[np.int64], NDArray[np.bool_]]],
    rows: NDArray[np.bool_],
    *,
    p: int,
) -> list[str]:
    """Return where two partitions tell that 1 to ``p`` - 1 rows have, or lack, a yes/no feature.

    The attacker is taken to know which shares are exact, the sets' members, and the total: so he
    knows how many have the feature in each cell of an exact share, and in all the rest together.
    He takes from every union of such sets all sets of the other partition that lie inside it.

    Parameters
    ----------
    sent : sequence of ((n,) int64, (K, b) bool)
        What a site sent: the cell of each row, -1 for the rest, and whose shares were rounded.
    rows : (n, b) bool
        Which rows have each feature.
    p : int
    """
    told: list[str] = []
    distinct = {(labels.tobytes(), flags.tobytes()): (labels, flags) for labels, flags in sent}
    partitions = list(distinct.values())
    if not partitions:
        return told
    for feature in range(rows.shape[1]):
        has = rows[:, feature].astype(np.float64)
        families: dict[bytes, NDArray[np.float64]] = {}
        for labels, flags in partitions:
            # Rows of rounded shares and of the rest make one set.
            hidden = np.append(True, flags[:, feature])[labels + 1]
            known = np.unique(np.where(hidden, -1, labels), return_inverse=True)[1].reshape(-1)
            sets = np.eye(int(known.max()) + 1)[:, known]
            families.setdefault(known.tobytes(), sets)
        known_sets = list(families.values())
        for number, second in enumerate(known_sets):
            for earlier, first in enumerate(known_sets[:number]):
                for outer, inner in ((first, second), (second, first)):
                    if _few_have(outer, inner, has, p):
                        told.append(f"feature {feature}, partitions {earlier} and {number}")
                        break
    return told


def levels_given_back(
    sent: Sequence[tuple[NDArray[np.int64], NDArray[np.bool_]]],
    rows: NDArray[np.bool_],
    blocks: Sequence[NDArray[np.int64]],
    *,
    p: int,
) -> list[str]:
    """As :func:`shares_given_back`, of who has any of some levels of a categorical feature.

    The attacker knows that the shares of all levels add up to 1: where all but one of a cell are
    exact he has that one, too, and the share of any of some levels is the sum of theirs.

    Parameters
    ----------
    sent, rows, p
        As for :func:`shares_given_back`.
    blocks : sequence of (L,) int64
        The columns of each feature's levels.
    """
    told: list[str] = []
    for number, block in enumerate(blocks):
        for chosen in _unions(len(block))[1:-1].astype(np.bool_):
            some = rows[:, block[chosen]].any(axis=1)[:, None]
            # All rows together: what single answers tell, and totals minus them.
            known = [(np.zeros(len(rows), dtype=np.int64), np.zeros((1, 1), dtype=np.bool_))]
            for labels, flags in sent:
                hidden = flags[:, block] & (flags[:, block].sum(axis=1) > 1)[:, None]
                either = hidden[:, chosen].any(axis=1) & hidden[:, ~chosen].any(axis=1)
                known.append((labels, np.asarray(either)[:, None]))
            found = shares_given_back(known, some, p=p)
            told += [f"feature {number}, levels {np.flatnonzero(chosen)}: {f}" for f in found]
    return told


def _few_have(outer: FloatArray, inner: FloatArray, has: FloatArray, p: int) -> bool:
    """Whether unions of ``outer`` (s, n), the sets of ``inner`` (t, n) in each taken off, do."""
    shared = outer @ inner.T
    having = (outer * has) @ inner.T
    unions = np.concatenate([np.eye(len(outer)), _unions(len(outer))])
    # Complements too: with many sets only pairs are tried, and all sets but one or two.
    unions = np.concatenate([unions, 1 - unions])
    inside = ((1 - unions) @ shared == 0).astype(np.float64)
    for table in (having, shared - having):
        left = unions @ table.sum(axis=1) - inside @ table.sum(axis=0)
        if ((left > 0) & (left < p)).any():
            return True
    return False


def _few_apart(a: NDArray[np.int64], b: NDArray[np.int64], p: int) -> bool:
    """Whether a set (s, n) of the one and a set (t, n) of the other differ by 1 to p - 1 rows."""
    # In float64 the product is BLAS's, and exact.
    shared = a.astype(np.float64) @ b.T.astype(np.float64)
    apart = a.sum(axis=1)[:, None] + b.sum(axis=1)[None, :] - 2.0 * shared
    return bool(((apart > 0) & (apart < p)).any())


def _rests_on(item: Statistic) -> float:
    """Return how many rows a statistic is of, by the judge's knowledge if he has any, else 0."""
    if item.members is not None:
        return int(item.members.sum())
    return item.count or 0


class _Target:
    """The true rows, in standard deviations, indexed by a projection to compare many at once."""

    def __init__(self, rows: FloatArray, rarer_than: int | None) -> None:
        deviation = rows.std(axis=0)
        self._unit = np.where(deviation > 0, deviation, 1.0)
        self._rows = rows / self._unit
        self._axis = np.random.default_rng(0).normal(size=rows.shape[1]) / self._unit
        self._reach = CLOSE * float(np.abs(self._axis * self._unit).sum())
        self._rare = np.ones(len(rows), dtype=np.bool_)
        self._discrete = rarer_than is not None
        if rarer_than is not None:
            same = np.unique(self._rows, axis=0, return_inverse=True, return_counts=True)
            self._rare = same[2][same[1].reshape(-1)] < rarer_than
        self._places = rows @ self._axis
        self._order = np.argsort(self._places)
        self._gaps: tuple[FloatArray, NDArray[np.intp], NDArray[np.intp]] | None = None

    def equal(self, row: int) -> NDArray[np.bool_]:
        """Return which rows (n,) are equal to one."""
        return np.asarray(np.abs(self._rows - self._rows[row]).max(axis=1) <= CLOSE)

    @property
    def discrete(self) -> bool:
        """Whether vectors coincide by chance."""
        return self._discrete

    def project(self, sums: FloatArray) -> FloatArray:
        """Return where vectors (m, d) fall on the axis, (m,)."""
        return np.asarray(sums @ self._axis)

    def match(self, places: FloatArray, vectors: _Vectors) -> list[tuple[int, int]]:
        """Return (candidate, row) for candidates equal to a row.

        ``places`` (m,) are the candidates' projections; ``vectors`` gives those of some numbers.
        """
        hits, at = _near(places, self._places[self._order], self._reach)
        rows = self._order[at]
        return [
            (int(i), int(row))
            for i, row in self._agreeing(hits, rows, vectors, self._rows)
            if self._rare[row]
        ]

    def match_one(self, vector: FloatArray) -> list[int]:
        """Return the rows equal to a vector (d,)."""
        found = self.match(
            self.project(vector[None]), lambda i: vector[None].repeat(i.size, axis=0)
        )
        return [row for _, row in found]

    def match_swaps(self, places: FloatArray, vectors: _Vectors) -> list[tuple[int, int]]:
        """Return (candidate, row) for candidates that are the difference of two rows."""
        if self._gaps is None:
            first, second = np.triu_indices(len(self._rows), 1)
            gaps = self._places[first] - self._places[second]
            order = np.argsort(gaps)
            self._gaps = gaps[order], first[order], second[order]
        gaps, first, second = self._gaps
        found: list[tuple[int, int]] = []
        for sign in (1.0, -1.0):
            hits, at = _near(sign * places, gaps, self._reach)
            apart = sign * (self._rows[first[at]] - self._rows[second[at]])
            chosen = self._agreeing(hits, np.arange(at.size), vectors, apart)
            for i, which in chosen:
                found += [(int(i), int(first[at[which]])), (int(i), int(second[at[which]]))]
        return found

    def _agreeing(
        self,
        hits: NDArray[np.intp],
        rows: NDArray[np.intp],
        vectors: _Vectors,
        truth: FloatArray,
    ) -> Iterator[tuple[int, int]]:
        for begin in range(0, hits.size, 10_000):
            i, row = hits[begin : begin + 10_000], rows[begin : begin + 10_000]
            gap = np.abs(vectors(i) / self._unit - truth[row]).max(axis=1)
            yield from zip(i[gap <= CLOSE].tolist(), row[gap <= CLOSE].tolist(), strict=True)


def _near(
    places: FloatArray, known: FloatArray, reach: float
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return all pairs (i, j) with places[i] within reach of known[j]; ``known`` is sorted."""
    begin = np.searchsorted(known, places - reach)
    number = np.searchsorted(known, places + reach) - begin
    hits = np.repeat(np.arange(places.size), number)
    within = np.arange(hits.size) - np.repeat(np.cumsum(number) - number, number)
    return hits, begin[hits] + within


@dataclass(frozen=True)
class _Partition:
    """The cells of one group and, where a total is known, the rest as the last of them."""

    name: str
    counts: NDArray[np.int64]
    sums: FloatArray
    rest: Statistic | None
    members: NDArray[np.int64] | None = None

    def unions(self) -> NDArray[np.int64]:
        """Return (s, m) 0-1 rows: all unions of few sets, the pairs of many."""
        return _unions(len(self.counts))


def _unions(m: int) -> NDArray[np.int64]:
    """Return (s, m) 0-1 rows: all unions of few sets, the pairs of many."""
    if m <= _ALL_UNIONS_UP_TO:
        return (np.arange(1, 1 << m)[:, None] >> np.arange(m)) & 1
    first, second = np.triu_indices(m, 1)
    chosen = np.zeros((first.size, m), dtype=np.int64)
    chosen[np.arange(first.size), first] = chosen[np.arange(first.size), second] = 1
    return chosen


def _partitions(statistics: Sequence[Statistic]) -> list[_Partition]:
    whole = next((s for s in statistics if s.count is not None and not s.group), None)
    groups: dict[str, list[Statistic]] = {}
    for item in statistics:
        if item.group and item.count is not None:
            groups.setdefault(item.group, []).append(item)
    partitions: list[_Partition] = []
    for name, members in groups.items():
        counts = np.array([item.count for item in members], dtype=np.int64)
        sums = np.array([item.vector for item in members])
        rest = None
        inside = _members(members)
        if whole is not None and whole.count is not None:
            left = whole.count - int(counts.sum())
            outside = None if inside is None else 1 - inside.sum(axis=0)
            rest = Statistic(f"{name}, rest", left, whole.vector - sums.sum(axis=0), name, outside)
            counts, sums = np.append(counts, left), np.vstack([sums, rest.vector])
            inside = _members([*members, rest])
        before = partitions[-1] if partitions else None
        repeated = (
            before is not None
            and np.array_equal(before.counts, counts)
            and np.array_equal(before.sums, sums)
        )
        if not repeated:
            rest = rest if rest and rest.count else None
            partitions.append(_Partition(name, counts, sums, rest, inside))
    return partitions


def _members(sets: Sequence[Statistic]) -> NDArray[np.int64] | None:
    """Return the members (m, n) of sets of rows; None where those of any are not known."""
    known = [item.members for item in sets if item.members is not None]
    return np.array(known) if len(known) == len(sets) else None


def _compared(before: Sequence[_Partition], second: _Partition) -> list[_Partition]:
    """Return the partitions whose every union is subtracted from every one of ``second``.

    The one sent just before and the last one of the same phase and candidate; all, where
    ``second`` is the first of its own. Groups are called ``round N, phase[, candidate]``.
    """
    track = second.name.partition(", ")[2]
    same = [first for first in before if first.name.partition(", ")[2] == track]
    if not same:
        return list(before)
    return same[-1:] if same[-1] is before[-1] else [before[-1], same[-1]]


def _pairs(
    sets: Sequence[Statistic], target: _Target, p: int, *, swaps: bool
) -> list[tuple[int, str]]:
    """Subtract every two sets of rows from each other."""
    if not sets:
        return []
    # Nothing at all is one of the sets: a difference from it is a set by itself.
    empty = None if sets[0].members is None else np.zeros_like(sets[0].members)
    sets = [*sets, Statistic("nothing", 0, np.zeros_like(sets[0].vector), members=empty)]
    inside = _members(sets)
    counts = np.array([item.count for item in sets], dtype=np.int64)
    sums = np.array([item.vector for item in sets])
    first, second = np.triu_indices(len(sets), 1)
    return _compare(
        counts[first] - counts[second],
        target.project(sums)[first] - target.project(sums)[second],
        lambda i: sums[first[i]] - sums[second[i]],
        lambda i: f"{sets[first[i]].name} minus {sets[second[i]].name}",
        target,
        p,
        swaps=swaps,
        members=None if inside is None else lambda i: inside[first[i]] - inside[second[i]],
    )


def _same_unions(
    a: _Partition, b: _Partition, target: _Target, p: int, *, swaps: bool
) -> list[tuple[int, str]]:
    """Subtract unions of the cells of one number."""
    unions = a.unions()
    gap = a.sums - b.sums
    return _compare(
        unions @ (a.counts - b.counts),
        unions @ target.project(gap),
        lambda i: unions[i] @ gap,
        lambda i: f"cells {np.flatnonzero(unions[i])} of {a.name} and {b.name}",
        target,
        p,
        swaps=swaps,
        members=_both(a, b, lambda x, y, i: unions[i] @ (x - y)),
    )


def _any_unions(a: _Partition, b: _Partition, target: _Target, p: int) -> list[tuple[int, str]]:
    """Subtract every union of one partition from every union of the other."""
    left, right = a.unions(), b.unions()
    counts = (left @ a.counts)[:, None] - (right @ b.counts)[None, :]
    places = (left @ target.project(a.sums))[:, None] - (right @ target.project(b.sums))[None, :]
    width = len(right)
    return _compare(
        counts.reshape(-1),
        places.reshape(-1),
        lambda i: left[i // width] @ a.sums - right[i % width] @ b.sums,
        lambda i: (
            f"cells {np.flatnonzero(left[i // width])} of {a.name} minus "
            f"cells {np.flatnonzero(right[i % width])} of {b.name}"
        ),
        target,
        p,
        swaps=False,
        members=_both(a, b, lambda x, y, i: left[i // width] @ x - right[i % width] @ y),
    )


def _both(
    a: _Partition,
    b: _Partition,
    difference: Callable[[NDArray[np.int64], NDArray[np.int64], int], NDArray[np.int64]],
) -> Callable[[int], NDArray[np.int64]] | None:
    """Return what gives the members of a difference, where those of both partitions are known."""
    if a.members is None or b.members is None:
        return None
    x, y = a.members, b.members
    return lambda i: difference(x, y, i)


def _compare(
    counts: NDArray[np.int64],
    places: FloatArray,
    vectors: _Vectors,
    name_of: Callable[[int], str],
    target: _Target,
    p: int,
    *,
    swaps: bool,
    members: Callable[[int], NDArray[np.int64]] | None,
) -> list[tuple[int, str]]:
    """Return the rows that differences give away, given their counts and projections (m,)."""
    few = np.flatnonzero((counts != 0) & (np.abs(counts) < max(p, 2)))
    found = target.match(
        places[few] / counts[few],
        lambda i: vectors(few[i]) / counts[few[i]][:, None],
    )
    if target.discrete and members is not None:
        concerned = {i: members(int(few[i])) for i, _ in found}
        found = [
            (i, row)
            for i, row in found
            if concerned[i][target.equal(row)].any() and np.abs(concerned[i]).sum() < p
        ]
    told = [(row, f"{name_of(int(few[i]))}, {counts[few[i]]} rows") for i, row in found]
    if swaps:
        same = np.flatnonzero((counts == 0) & (np.abs(places) > 1e-6))
        found = target.match_swaps(places[same], lambda i: vectors(same[i]))
        told += [(row, f"{name_of(int(same[i]))}, a swap") for i, row in found]
    return told
