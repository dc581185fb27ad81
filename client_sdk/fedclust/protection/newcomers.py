"""Rule: newcomers wait until they are enough for groups of their own.

They may come in blocks: no group spans two of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedclust.numeric.array_types import FloatArray
from fedclust.protection.columns import SourceColumn, TableColumn
from fedclust.protection.groups import form_groups, least_for_site
from fedclust.protection.parts import (
    embed_persons,
    embed_presence,
    find_parts,
    newcomer_parts,
)
from fedclust.protection.records import find_middles, group_members
from fedclust.protection.table import ProtectedTable, TooFewPersons, find_neighbours

#: Newcomers in blocks are grouped when this many wait: more at a time gain little and take memory.
_BLOCK = 50_000


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
        By column, what :func:`fedclust.protection.records.find_middles` returns of these groups.
    """

    def __init__(
        self, sample: Sequence[SourceColumn], p: int, n_persons: int, least: int | None = None
    ) -> None:
        """Begin with a ``sample`` of about ``n_persons``; ``least`` is that of the table so far."""
        self._p, self._is_first = p, least is None
        self.n, self._expected = 0, max(n_persons, len(sample[0].values))
        if least is None:
            self.parts = find_parts(sample, p, self._expected)
        else:
            self.parts = newcomer_parts(least, len(sample))
        self.sizes = np.zeros(0, dtype=np.int64)
        self.found: list[list[FloatArray]] = [[] for _ in sample]
        self._groups = np.zeros(0, dtype=np.int32)
        self._waiting: list[tuple[NDArray[np.int32], Sequence[SourceColumn]]] = []
        self._grouped: set[int] = set()

    def add(self, sources: Sequence[SourceColumn]) -> None:
        """Add some persons, the same columns each time."""
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
            # All persons of a first table's small part are one group.
            is_whole = last and self._is_first and part not in self._grouped
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
        members = group_members(groups, len(sizes))
        for found, source in zip(self.found, sources, strict=True):
            found.append(find_middles(source.values, members, p, source.n_levels))
        self._groups[rows] = np.where(groups < 0, -1, groups + len(self.sizes))
        self.sizes = np.append(self.sizes, sizes)


def form_table(sources: Sequence[SourceColumn], p: int) -> ProtectedTable:
    """Form the protected table of persons who have no group yet, without a state.

    Raises
    ------
    TooFewPersons
        If there are fewer than ``p`` persons.
    """
    return form_by_blocks([sources], p)[0]


def form_by_blocks(
    blocks: Iterable[Sequence[SourceColumn]],
    p: int,
    sample: Sequence[SourceColumn] | None = None,
    n_persons: int = 0,
) -> tuple[ProtectedTable, NDArray[np.int32]]:
    """Do what :func:`form_table` does, and also return the group of each person (n,), -1 for none.

    ``sample`` and ``n_persons`` are as in :class:`fedclust.protection.recognition.PersonSource`.
    """
    newcomers, columns = None, []
    for sources in blocks:
        if newcomers is None and sources:
            newcomers = Newcomers(sample or sources, p, n_persons)
            columns = [TableColumn(each.name, each.n_levels) for each in sources]
        if newcomers is not None:
            newcomers.add(sources)
    if newcomers is None:
        raise TooFewPersons(0, p)
    groups, sizes = newcomers.finish(), newcomers.sizes
    if not len(sizes):
        raise TooFewPersons(newcomers.n, p)
    released = []
    for place, column in enumerate(columns):
        found = np.concatenate(newcomers.found[place])
        newcomers.found[place] = []
        columns[place], records = column.release(np.full(len(sizes), np.nan), found, sizes)
        released.append(records)
    neighbours = find_neighbours(columns, released, sizes)
    return ProtectedTable(tuple(columns), sizes, tuple(released), neighbours), groups
