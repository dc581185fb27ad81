"""Rule: a person belongs to one group for ever, and a group's releases never change.

A cohort is what a site remembers of its protected table. Known persons are answered from here,
never from the file. Every update keeps one condition:

    **Every released sum has at least p persons whose value in this column is in no sum that was
    released before.**

Take any combination of released sums. The last of them has at least p persons whose values no
earlier one holds, so these persons stay in the combination: none concerns 1 to p - 1 persons.

- Newcomers wait until they can form groups of their own: all their values are new.
- A new column of known groups: all its values are new. A group decides once all its persons are
  there: if one of them has no value, it does not release the column, then or later. A column that
  has the values of a released one is refused; of a later measurement, a group releases only what
  p of its persons have changed.
- Corrections: none is released.
- Withdrawal: the group is no longer used. Its other persons may join groups of newcomers, each of
  which has p new persons without them.

Cohorts are kept on disk by ``fedclust.site.cohorts``. See docs/adr/0016-the-protected-table.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedclust.numeric.array_types import BoolArray, FloatArray, IntArray
from fedclust.protection.columns import TableColumn, source_names
from fedclust.protection.fingerprints import person_keys, row_ids
from fedclust.protection.table import ProtectedTable, TooFewPersons, unite_groups

#: The arrays of a cohort, by person and by group, and their types.
ARRAYS = {
    "keys": "S16",
    "groups": "int32",
    "withdrawn": "bool",
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
    prints : (n, source columns) uint8
        Fingerprints of the values that each person had when the group decided.
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
        Without ids a person is recognised by the number of the row.
    keys : (n,) bytes of length 16, sorted
    groups : (n,) int32
    withdrawn : (n,) bool
    sizes : (m,) int64
    used : (m,) bool
        False once a person of the group was withdrawn.
    columns : tuple of PinnedColumn
    """

    table_id: str
    p: int
    fences: bool
    has_ids: bool
    keys: NDArray[Any]
    groups: NDArray[np.int32]
    withdrawn: BoolArray
    sizes: IntArray
    used: BoolArray
    columns: tuple[PinnedColumn, ...]

    @classmethod
    def empty(cls, table_id: str, p: int, *, fences: bool = True, has_ids: bool = True) -> Cohort:
        """Return a cohort without persons: a first table starts from it."""
        arrays = {name: np.zeros(0, dtype) for name, dtype in ARRAYS.items()}
        return cls(table_id, p, fences, has_ids, **arrays, columns=())

    def rules(self) -> dict[str, str]:
        """Return how each pinned source column is read."""
        return {
            name: rule
            for pinned in self.columns
            for name, rule in zip(source_names(pinned.column), pinned.rules, strict=True)
        }

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
        """Return the cohort without a person, whose group is no longer used.

        Without ids ``person`` is the number of the row, from 1.
        """
        if not self.has_ids and person.isdecimal():
            person = row_ids(int(person), 1)[0]
        index = int(self.find(person_keys(secret, [person])[0])[0])
        if index < 0:
            raise CohortRefused(
                "unknown-person",
                "no group holds this person. Write the id as the file does, or the number of the "
                "row (the first is 1) if the groups were formed without ids. A person who waits "
                "for a group has released nothing: removing the rows from the file is enough",
            )
        withdrawn, used = self.withdrawn.copy(), self.used.copy()
        withdrawn[index], used[self.groups[index]] = True, False
        return replace(self, withdrawn=withdrawn, used=used)

    def table(self, names: Sequence[str], p: int = 0) -> ProtectedTable:
        """Return the protected table of some source columns.

        Parameters
        ----------
        names : sequence of str
            Columns joined with one of them are included.
        p : int
            If larger than the cohort's own p, the table is of unions of its groups.

        Raises
        ------
        KeyError
            If a column is not pinned.
        TooFewPersons
            If the groups in use have fewer than ``p`` persons together.
        """
        if unknown := set(names) - set(self.rules()):
            raise KeyError(min(unknown))
        chosen = [each for each in self.columns if set(names) & set(source_names(each.column))]
        if not self.used.any():
            raise TooFewPersons(0, max(p, self.p))
        table = ProtectedTable(
            tuple(each.column for each in chosen),
            self.sizes[self.used],
            tuple(each.released[self.used] for each in chosen),
            tuple(each.share for each in chosen),
        )
        return unite_groups(table, p) if p > self.p else table
