"""Rule: a person belongs to one group for ever, and a group's releases never change.

A cohort is what a site remembers of its protected table. Known persons are answered from here,
never from the file. Every update keeps one condition:

    **Every released sum has at least p persons whose value in this column is in no sum that was
    released before.**

Take any combination of released sums. The last of them has at least p persons whose values no
earlier one holds, so these persons stay in the combination: none concerns 1 to p - 1 persons.

- Newcomers wait until they can form groups of their own: all their values are new.
- A new column of known groups: all its values are new. A group decides once all its persons are
  there: if one of them has no value, it does not release the column, then or later.
- Corrections: a group releases a column again only if p of its persons have values that none of
  the column's earlier releases had. Numbers are compared on the column's grid.
- Withdrawal: the group is no longer used. Its other persons may join groups of newcomers, each of
  which has p new persons without them.
- A column under another name is the same column: its earlier releases are used, and a group
  releases it again only under its own name.

Cohorts are kept on disk by ``fedclust.site.cohorts``. See docs/adr/0016-the-protected-table.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedclust.numeric.array_types import BoolArray, FloatArray, IntArray
from fedclust.protection.columns import NumericColumn, TableColumn, source_names
from fedclust.protection.fingerprints import person_keys
from fedclust.protection.table import ProtectedTable, TooFewPersons, unite_groups

#: The arrays of a cohort, by person and by group, and their types.
ARRAYS = {
    "keys": "S16",
    "groups": "int32",
    "withdrawn": "bool",
    "signatures": "uint64",
    "sizes": "int64",
    "used": "bool",
}


class CohortRefused(ValueError):
    """A source does not fit the cohort; ``rule`` names why, the message says what to do."""

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(message)
        self.rule = rule


@dataclass(frozen=True)
class PinnedColumn:
    """A table column, and what the groups have released of it.

    Attributes
    ----------
    column : TableColumn
    rules : tuple of str, one for each source column
        How it is read: its kind, codes and markers.
    share : float or None
        The share of variance within groups, from the column's first release.
    released : (m,) or (m, L) float64
        As in :class:`~fedclust.protection.table.ProtectedTable`.
    decided : (m,) bool
        Groups that released the column or never will.
    prints : (n, source columns, versions) uint8
        Fingerprints of the values in the releases so far.
    """

    column: TableColumn
    rules: tuple[str, ...]
    share: float | None
    released: FloatArray
    decided: BoolArray
    prints: NDArray[np.uint8]


@dataclass(frozen=True)
class Cohort:
    """The groups of n persons, and what these m groups have released.

    Attributes
    ----------
    table_id : str
        Random; it says nothing about the persons.
    p : int
    fences : bool
    has_ids : bool
        Without ids the cohort serves one file, whose rows are recognised by their values.
    base : tuple of str
        Source columns of the first table: persons are recognised by their values in these.
    keys : (n,) bytes of length 16, sorted
    groups : (n,) int32
    withdrawn : (n,) bool
    signatures : (n,) uint64
        Of the base columns when the person came; 0 if the file lacked one.
    sizes : (m,) int64
    used : (m,) bool
        False once a person of the group was withdrawn.
    columns : tuple of PinnedColumn
    aliases : mapping of str to str
        Later names of source columns, and the names under which they were pinned.
    """

    table_id: str
    p: int
    fences: bool
    has_ids: bool
    base: tuple[str, ...]
    keys: NDArray[Any]
    groups: NDArray[np.int32]
    withdrawn: BoolArray
    signatures: NDArray[np.uint64]
    sizes: IntArray
    used: BoolArray
    columns: tuple[PinnedColumn, ...]
    aliases: Mapping[str, str]

    @classmethod
    def empty(cls, table_id: str, p: int, *, fences: bool = True) -> Cohort:
        """Return a cohort without persons: a first table starts from it."""
        arrays = {name: np.zeros(0, dtype) for name, dtype in ARRAYS.items()}
        return cls(table_id, p, fences, True, (), **arrays, columns=(), aliases={})

    def rules(self) -> dict[str, str]:
        """Return how each pinned source column is read."""
        return {
            name: rule
            for pinned in self.columns
            for name, rule in zip(source_names(pinned.column), pinned.rules, strict=True)
        }

    def pinned_name(self, name: str) -> str:
        """Return the name under which a source column was pinned first."""
        return name if name in self.rules() else self.aliases.get(name, name)

    def find(self, keys: NDArray[Any]) -> IntArray:
        """Return the index of the person with each key (n,); -1 if unknown."""
        if not len(self.keys):
            return np.full(len(keys), -1)
        index = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[index] == keys, index, -1)

    def table_rows(self, secret: bytes, ids: Sequence[str]) -> IntArray:
        """Return the row of :meth:`table` that each person (n,) is part of; -1 if none."""
        index = self.find(person_keys(secret, ids)[0])
        groups = self.groups[index]
        is_used = (index >= 0) & self.used[groups] & ~self.withdrawn[index]
        return np.where(is_used, (np.cumsum(self.used) - 1)[groups], -1)

    def withdraw(self, secret: bytes, person: str) -> Cohort:
        """Return the cohort without a person, whose group is no longer used."""
        index = int(self.find(person_keys(secret, [person])[0])[0])
        if index < 0:
            raise CohortRefused(
                "unknown-person",
                "no group holds this person. Write the id as the file does. A person who waits "
                "for a group has released nothing: removing the rows from the file is enough",
            )
        withdrawn, used = self.withdrawn.copy(), self.used.copy()
        withdrawn[index], used[self.groups[index]] = True, False
        return replace(self, withdrawn=withdrawn, used=used)

    def table(
        self, names: Sequence[str], p: int = 0, apart: frozenset[str] = frozenset()
    ) -> ProtectedTable:
        """Return the protected table of some source columns.

        Parameters
        ----------
        names : sequence of str
            As the source calls them now. Columns joined with one of them are included.
        p : int
            If larger than the cohort's own p, the table is of unions of its groups.
        apart : frozenset of str
            Columns that do not count where similar groups are united.

        Raises
        ------
        KeyError
            If a column is not pinned.
        CohortRefused
            If two of the names stand for one column.
        TooFewPersons
            If the groups in use have fewer than ``p`` persons together.
        """
        called = {self.pinned_name(name): name for name in names}
        if unknown := set(called) - set(self.rules()):
            raise KeyError(min(unknown))
        for name in set(names) - set(called.values()):
            other = called[self.pinned_name(name)]
            raise CohortRefused(
                "same-column",
                f"columns {name!r} and {other!r} have the same values for most persons and count "
                "as one. A session can use one of them",
            )
        chosen = [each for each in self.columns if set(called) & set(source_names(each.column))]
        if not self.used.any():
            raise TooFewPersons(0, max(p, self.p))
        table = ProtectedTable(
            tuple(_rename(each.column, called) for each in chosen),
            self.sizes[self.used],
            tuple(each.released[self.used] for each in chosen),
            tuple(each.share for each in chosen),
        )
        return unite_groups(table, p, apart) if p > self.p else table


def _rename(column: TableColumn, names: Mapping[str, str]) -> TableColumn:
    if isinstance(column, NumericColumn):
        return replace(column, name=names.get(column.name, column.name))
    return replace(column, names=tuple(names.get(name, name) for name in column.names))
