"""Rule: each group has at least p persons, none of whom is in another. Newcomers wait for enough.

All persons of a first table are newcomers. They may come in blocks: no group spans two of them.
Which persons are similar is found by :mod:`fedclust.numeric.microaggregation`. It decides how
useful the records are, but what protects them is true of any groups.

Persons of a first table are grouped within parts, by which columns they lack. Persons with exactly
the same missing columns are a part if they are at least 8p; all others are one part. Each part has
its least size L of a group: p without missing values, else up to 3p, so that groups release a
column with a probability of .9. L follows from counts rounded to p: it never shows that 1 to p - 1
persons lack a value.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fedclust.numeric.array_types import BoolArray, FloatArray, IntArray
from fedclust.numeric.microaggregation import form_groups
from fedclust.protection.columns import SourceColumn, find_middles, group_members

#: Persons with the same missing columns are a part of their own from this many times p on.
_PATTERN = 8
#: Groups are at most this many times p,
_MOST = 3
#: and large enough that a group releases a column with this probability.
_RELEASED = 0.9
#: Having a value counts in distances if fewer groups than this share would release the column:
#: otherwise a panel that few patients had would be in no group.
_RARE = 0.7
#: Means and variances are computed from so many equal steps between the clipped extremes: those of
#: up to 13 equally spaced values are exact, as all numbers up to 12 divide it.
_GRID = 27_720.0
#: All columns of having a value weigh as much together as two others times this.
_PRESENCE = 2.0


@dataclass(frozen=True)
class Parts:
    """The parts of a first table: k with one pattern of missing columns, and one of all others.

    Attributes
    ----------
    patterns : (k, d) bool
        The missing columns, of the largest part first.
    least : tuple of int
        The least size of a group in each of the k + 1 parts; later newcomers use the last.
    rare : (k + 1, d) bool
        Columns for which having a value counts in distances.
    others : int
        The part of persons with another pattern: the last, or the first if they are fewer than
        2p.
    """

    patterns: BoolArray
    least: tuple[int, ...]
    rare: BoolArray
    others: int

    def of(self, missing: BoolArray) -> IntArray:
        """Return the part (n,) of persons with these missing columns (n, d)."""
        parts = np.full(len(missing), self.others)
        for part, pattern in enumerate(self.patterns):
            parts[(missing == pattern).all(axis=1)] = part
        return parts


def one_part(least: int, n_columns: int) -> Parts:
    """Return the only part of persons who are grouped together, all of newcomers for example."""
    none = np.zeros((1, n_columns), np.bool_)
    return Parts(none[:0], (least,), none, others=0)


def find_parts(sources: Sequence[SourceColumn], p: int, n_persons: int) -> Parts:
    """Return the parts of a first table of about ``n_persons``, all or some of whom are given."""
    missing = np.column_stack([np.isnan(each.values) for each in sources])
    if not missing.any():
        return one_part(p, len(sources))
    distinct, places, counts = np.unique(
        np.packbits(missing, axis=1), axis=0, return_inverse=True, return_counts=True
    )
    places = places.ravel()
    large = np.flatnonzero(counts >= _PATTERN * p)
    # The largest first; of equally large ones the one with the first pattern.
    large = large[np.argsort(-counts[large], kind="stable")]
    patterns = np.unpackbits(distinct[large], axis=1, count=len(sources)).astype(np.bool_)
    is_other = ~np.isin(places, large)
    members = [*(places == each for each in large), is_other]
    others = len(large)
    if others and is_other.sum() < 2 * p:
        members[0], members[-1], others = members[0] | is_other, np.zeros_like(is_other), 0
    least, rare = zip(*(_least_size(missing[each], p, n_persons) for each in members), strict=True)
    return Parts(patterns, least, np.stack(rare), others)


def _least_size(missing: BoolArray, p: int, n_persons: int) -> tuple[int, BoolArray]:
    """Return L of a part, and the columns (d,) for which having a value counts in distances."""
    n, n_lacking = len(missing), missing.sum(axis=0)
    held = n - n_lacking >= p
    # Halves are rounded up.
    lacking = np.minimum((2 * n_lacking + p) // (2 * p) * p, n)
    shares = np.where(held, 1.0 - lacking / max(n, 1), 0.0)
    # A small table would show by its size that some persons lack a value.
    least = p
    if n_persons >= 2 * p and shares.any():
        sizes = range(p, _MOST * p + 1)
        least = next((size for size in sizes if _released(size, p, shares) >= _RELEASED), sizes[-1])
    return least, held & (shares < _RARE * p / least)


def _released(size: int, p: int, shares: FloatArray) -> float:
    """Return the probability that a group of this size releases a column, weighted by shares."""
    found = [_at_least(p, size, share) for share in shares.tolist()]
    return float(np.average(found, weights=shares))


@lru_cache(maxsize=4096)
def _at_least(p: int, size: int, share: float) -> float:
    # Imported here: only a first table with missing values needs it.
    from scipy.stats import binom

    return 1.0 if share == 1.0 else float(binom.sf(p - 1, size, share))


# --- from persons to points -----------------------------------------------------------------------


def embed_persons(sources: Sequence[SourceColumn], p: int) -> FloatArray:
    """Return points (n, width) whose distances say how similar persons are.

    Each column has a total variance of 1; missing values are at its mean. Numbers beyond the
    ``p``-th largest or smallest count as that one.
    """
    points = np.zeros((sum(each.n_levels or 1 for each in sources), len(sources[0].values)))
    end = 0
    for source in sources:
        end += _add_column(points[end:], source, p)
    return points[: max(end, 1)].T


def embed_presence(values: Sequence[FloatArray]) -> FloatArray:
    """Return points (n, width) whose distances say who of a part has a value of rare columns."""
    sources = [SourceColumn("", (~np.isnan(each)).astype(np.float64)) for each in values]
    return np.asarray(embed_persons(sources, 1) * _PRESENCE / np.sqrt(len(sources)))


def _add_column(points: FloatArray, source: SourceColumn, p: int) -> int:
    """Write a column into the first rows of ``points``, and return into how many."""
    values, missing = source.values, np.isnan(source.values)
    n_known = len(values) - int(missing.sum())
    if source.n_levels is None:
        if n_known < 2 * p:
            return 0
        scaled = points[:1]
        held = np.partition(values, (p - 1, n_known - p))  # NaN last
        lower, upper = held[p - 1], held[n_known - p]
        if lower == upper:
            return 0
        # Halved first: a difference of two large numbers may be infinite.
        np.subtract(np.clip(values, lower, upper) / 2.0, lower / 2.0, out=scaled[0])
        scaled *= _GRID / (upper / 2.0 - lower / 2.0)
        whole = np.rint(scaled)
        whole[:, missing] = 0.0
    else:
        scaled = points[: source.n_levels]
        scaled[:] = whole = values == np.arange(source.n_levels)[:, None]
    # Sums of whole numbers do not depend on the order of the persons: nor do ties.
    means = whole.sum(axis=1) / max(n_known, 1)
    variance = float(((whole**2).sum(axis=1) / max(n_known, 1) - means**2).sum())
    if not variance > 0.0:
        return 0
    scaled -= means[:, None]
    scaled /= np.sqrt(variance)
    scaled[:, missing] = 0.0
    return len(scaled)


#: Newcomers in blocks are grouped when this many wait: more at a time gain little and take memory.
_BLOCK = 50_000
#: A site has at most this many groups; the least size grows with larger sites.
MOST_GROUPS = 200_000


def least_for_site(least: int, n_persons: int) -> int:
    """Return the least size of a group at a site with ``n_persons``: ``least``, or more."""
    return max(least, -(-n_persons // MOST_GROUPS))


class Newcomers:
    """The persons of a source who have no group, numbered as they are added.

    Attributes
    ----------
    parts : Parts
    n : int
        Persons so far.
    sizes : (m,) int64
        Persons of each of their groups.
    found : list of list of (m, 2) or (m, L) float64
        By column, what decides the records of these groups; see ``fedclust.protection.columns``.
    """

    parts: Parts

    def __init__(
        self,
        p: int,
        sample: Sequence[SourceColumn] | None = None,
        n_persons: int = 0,
        least: int | None = None,
    ) -> None:
        """Begin with nobody.

        Of a first table, parts are found by a ``sample`` of its ``n_persons``, by default by the
        first persons. Of a table that exists, ``least`` is the least size of new groups.
        """
        self._p, self._sample, self._expected, self._least = p, sample, n_persons, least
        self.n, self.sizes = 0, np.zeros(0, dtype=np.int64)
        self.found: list[list[FloatArray]] = []
        self._groups = np.zeros(0, dtype=np.int32)
        self._waiting: list[tuple[NDArray[np.int32], Sequence[SourceColumn]]] = []
        self._grouped: set[int] = set()

    def _begin(self, sources: Sequence[SourceColumn]) -> None:
        """Find the parts."""
        given = {each.name: each for each in self._sample or sources}
        sample = [given[each.name] for each in sources]
        self._expected = max(self._expected, len(sample[0].values))
        self.found = [[] for _ in sample]
        if self._least is None:
            self.parts = find_parts(sample, self._p, self._expected)
        else:
            self.parts = one_part(self._least, len(sample))

    def add(self, sources: Sequence[SourceColumn]) -> None:
        """Add some persons, the same columns each time."""
        if not self.found:
            self._begin(sources)
        begin, self.n = self.n, self.n + len(sources[0].values)
        if self.n > len(self._groups):
            more = max(self.n, self._expected) - len(self._groups)
            self._groups = np.append(self._groups, np.full(more, -1, np.int32))
        self._waiting.append((np.arange(begin, self.n, dtype=np.int32), sources))
        if sum(len(rows) for rows, _ in self._waiting) >= _BLOCK:
            self._form(last=False)

    def finish(self) -> NDArray[np.int32]:
        """Return the group of each person (n,); -1 of those who wait."""
        if self._waiting:
            self._form(last=True)
        return self._groups[: self.n]

    def _form(self, *, last: bool) -> None:
        """Form groups of the persons who wait, in each part with enough of them."""
        rows = np.concatenate([rows for rows, _ in self._waiting])
        sources = [
            replace(each[0], values=np.concatenate([source.values for source in each]))
            if len(each) > 1
            else each[0]
            for each in zip(*(sources for _, sources in self._waiting), strict=True)
        ]
        self._waiting = []
        n, p = len(rows), self._p
        points = embed_persons(sources, p)
        part_of = self.parts.of(np.column_stack([np.isnan(each.values) for each in sources]))
        groups = np.full(n, -1)
        for part, least_of_part in enumerate(self.parts.least):
            own = np.flatnonzero(part_of == part)
            least = least_for_site(least_of_part, max(self._expected, n))
            # Of a first table, a part of 2p persons or more is one group if it has fewer than L.
            is_whole = last and self._least is None and part not in self._grouped
            if len(own) < least and not (is_whole and len(own) >= 2 * p):
                continue
            # Not copied where all persons are of one part.
            mine = own if len(own) < n else slice(None)
            values, similar = [each.values[mine] for each in sources], points[mine]
            if self.parts.rare[part].any():
                presence = [values[place] for place in np.flatnonzero(self.parts.rare[part])]
                similar = np.column_stack([similar, embed_presence(presence)])
            groups[own] = groups.max(initial=-1) + 1 + form_groups(similar, least, values)
            self._grouped.add(part)
        waits = np.flatnonzero(groups < 0)
        if len(waits):
            left = [replace(each, values=each.values[waits]) for each in sources]
            self._waiting.append((rows[waits], left))
        sizes = np.bincount(groups[groups >= 0])
        if (sizes < p).any():
            raise AssertionError("a group of fewer than p persons")
        members = group_members(groups, len(sizes))
        for found, source in zip(self.found, sources, strict=True):
            found.append(find_middles(source.values, members, p, source.n_levels))
        self._groups[rows] = np.where(groups < 0, -1, groups + len(self.sizes))
        self.sizes = np.append(self.sizes, sizes)
