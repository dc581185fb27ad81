"""Rule: each group has at least p persons, none of whom is in another. Newcomers wait for enough.

All persons of a first table are newcomers. They may come in blocks: no group spans two of them.
Which persons are similar is found by :mod:`fedclust.numeric.microaggregation`. It decides how
useful the records are, but what protects them is true of any groups.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedclust.numeric.array_types import FloatArray
from fedclust.numeric.microaggregation import form_groups
from fedclust.protection.columns import SourceColumn, find_middles, group_members
from fedclust.protection.parts import Parts, embed_persons, embed_presence, find_parts, one_part

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
