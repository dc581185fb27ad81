"""Rule: a person belongs to one group for ever, and what a group has released never changes.

A cohort is what a site remembers of its protected table. Known persons are answered from here,
never from the file:

- Values that change in the file change nothing: a later measurement is a column of its own.
- Withdrawal: the group is no longer used, and its other persons join no other group.

``fedclust.site.cohorts`` keeps cohorts on disk.

A cohort recognises persons and values without storing either. It stores hashes keyed with the
site's own secret. Whoever has the secret can test a guess of an id or a value, so the state is as
confidential as the site's rows.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedclust.numeric.array_types import (
    BoolArray,
    ByteArray,
    FloatArray,
    IntArray,
    KeyArray,
    WordArray,
)
from fedclust.protection.columns import TableColumn
from fedclust.protection.table import ProtectedTable, TooFewPersons, find_neighbours

#: Bits of a number that are left out, about four decimal digits: the mean of a person's rows may
#: differ in the last ones if the rows come in another order.
_LOST_BITS = 16
_MISSING = np.uint64(0x7FF8 << 48)


def person_keys(secret: bytes, ids: Iterable[str]) -> tuple[KeyArray, WordArray]:
    """Return each person's key, and the mask for the person's fingerprints, which is not stored.

    Returns
    -------
    keys : (n,) bytes of length 16
        The first half of HMAC-SHA256 of the id.
    masks : (n,) uint64
        From the other half.
    """
    digests = b"".join(hmac.digest(secret, each.encode(), "sha256") for each in ids)
    raw = np.frombuffer(digests, dtype=np.uint8).reshape(-1, 32)
    keys = np.ascontiguousarray(raw[:, :16]).view("S16").ravel()
    return keys, np.ascontiguousarray(raw[:, 16:24]).view("<u8").ravel().astype(np.uint64)


def row_ids(first: int, n: int) -> list[str]:
    """Return the ids of n rows without ids, from row number ``first`` on."""
    # No source has ids that begin with this character.
    return [f"\0{first + place}" for place in range(n)]


def column_seed(secret: bytes, name: str) -> np.uint64:
    """Return a seed by which equal values of two columns get different fingerprints."""
    digest = hmac.digest(secret, b"column " + name.encode(), "sha256")
    return np.uint64(int.from_bytes(digest[:8], "little"))


def fingerprints(values: FloatArray, masks: WordArray, seed: np.uint64) -> ByteArray:
    """Return a byte (n,) for each person's value; two values share it in 1 of 256 cases."""
    mixed = _mix(_mix(_value_bits(values) ^ masks) ^ seed)
    return (mixed >> np.uint64(56)).astype(np.uint8)


def _value_bits(values: FloatArray) -> WordArray:
    bits = (values + 0.0).view(np.uint64)  # + 0.0: minus zero is zero
    bits = np.where(np.isnan(values), _MISSING, bits)
    return np.asarray((bits + np.uint64(1 << (_LOST_BITS - 1))) >> np.uint64(_LOST_BITS))


def _mix(words: WordArray) -> WordArray:
    """Return words each bit of which depends on all bits (the finaliser of SplitMix64)."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(words ^ (words >> np.uint64(31)))


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
    rule : str
        How it is read: its codes and markers.
    released : (m,) float64
        As in :class:`~fedclust.protection.table.ProtectedTable`.
    complete : (m,) bool
        Groups all of whose persons were in a file with this column.
    prints : (n,) uint8
        Fingerprints of the values that each person had when the group released the column.
    """

    column: TableColumn
    rule: str
    released: FloatArray
    complete: BoolArray
    prints: ByteArray

    def extended(self, m: int) -> PinnedColumn:
        """Return the column with further groups, m in all."""
        released, complete = pad(self.released, m, fill=np.nan), pad(self.complete, m)
        return replace(self, released=released, complete=complete)


@dataclass(frozen=True)
class Unions:
    """Unions of a cohort's m groups for a larger p; see ``fedclust.protection.update``.

    Attributes
    ----------
    p : int
    labels : (m,) int32
        The union of each group; -1 for groups that wait, or whose union ended.
    released : (u, columns) float64
        NaN where a union does not release a pinned column, or has not decided.
    decided : (u, columns) bool
    """

    p: int
    labels: NDArray[np.int32]
    released: FloatArray
    decided: BoolArray

    def without(self, used: BoolArray) -> Unions:
        """Return these after a withdrawal: a union ends with any of its groups (m,)."""
        ended = np.isin(self.labels, self.labels[~used[: len(self.labels)]])
        return replace(self, labels=np.where(ended, np.int32(-1), self.labels))


@dataclass(frozen=True)
class Cohort:
    """The groups of n persons, and what these m groups have released.

    Methods that take ``p`` answer for the groups, or, if it is larger than the cohort's own p, for
    their unions.

    Attributes
    ----------
    table_id : str
        Random; it says nothing about the persons.
    p : int
    least : int
        Newcomers form groups of at least so many.
    has_ids : bool
        Without ids a person is recognised by the number of the row.
    keys : (n,) bytes of length 16, sorted
    groups : (n,) int32
    withdrawn : (n,) bool
    sizes : (m,) int64
    used : (m,) bool
        False once a person of the group was withdrawn.
    columns : tuple of PinnedColumn
    unions : tuple of Unions
    """

    table_id: str
    p: int
    least: int
    has_ids: bool
    keys: KeyArray
    groups: NDArray[np.int32]
    withdrawn: BoolArray
    sizes: IntArray
    used: BoolArray
    columns: tuple[PinnedColumn, ...]
    unions: tuple[Unions, ...]

    @classmethod
    def empty(cls, table_id: str, p: int, *, has_ids: bool = True) -> Cohort:
        """Return a cohort without persons: a first table starts from it."""
        arrays = {name: np.zeros(0, dtype) for name, dtype in ARRAYS.items()}
        return cls(table_id, p, p, has_ids, **arrays, columns=(), unions=())

    def rules(self) -> dict[str, str]:
        """Return how each pinned column is read."""
        return {pinned.column.name: pinned.rule for pinned in self.columns}

    def find(self, keys: KeyArray) -> IntArray:
        """Return the index of the person with each key (n,); -1 if unknown."""
        if not len(self.keys):
            return np.full(len(keys), -1)
        index = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[index] == keys, index, -1)

    def unions_for(self, p: int) -> Unions:
        """Return the unions for ``p``, none if there are none yet."""
        blank = np.zeros((0, len(self.columns)))
        none = Unions(p, np.zeros(0, np.int32), blank, blank.astype(np.bool_))
        return next((each for each in self.unions if each.p == p), none)

    def table_rows(self, secret: bytes, ids: Sequence[str], p: int = 0) -> IntArray:
        """Return the row of :meth:`table` that each person (n,) is part of; -1 if none."""
        index = self.find(person_keys(secret, ids)[0])
        rows, known = np.full(len(index), -1), index >= 0
        rows[known] = self._served(p)[1][self.groups[index[known]]]
        return rows

    def _served(self, p: int) -> tuple[IntArray, IntArray]:
        """Return the groups or unions of :meth:`table`, and its row for each group (m,), or -1."""
        labels = np.where(self.used, np.arange(len(self.sizes)), -1)
        if p > self.p:
            labels = pad(self.unions_for(p).labels.astype(np.int64), len(self.sizes), fill=-1)
        served = np.unique(labels[labels >= 0])
        return served, np.where(labels >= 0, np.searchsorted(served, labels), -1)

    def table(self, names: Sequence[str], p: int = 0) -> ProtectedTable:
        """Return the protected table of some columns.

        Raises
        ------
        KeyError
            If a column is not pinned.
        TooFewPersons
            If no group, or no union for ``p``, is in use.
        """
        if unknown := set(names) - set(self.rules()):
            raise KeyError(min(unknown))
        served, rows = self._served(p)
        if not len(served):
            raise TooFewPersons(int(self.sizes[self.used].sum()), max(p, self.p))
        sizes = np.bincount(rows[rows >= 0], weights=self.sizes[rows >= 0]).astype(np.int64)
        columns = [pinned.column for pinned in self.columns]
        released = [pinned.released for pinned in self.columns]
        if p > self.p:
            released = list(pad(self.unions_for(p).released.T, len(columns), fill=np.nan))
        released = [each[served] for each in released]
        kept = [place for place, column in enumerate(columns) if column.name in set(names)]
        return ProtectedTable(
            tuple(columns[place] for place in kept),
            sizes,
            tuple(released[place] for place in kept),
            find_neighbours(columns, released, sizes),
        )

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
        unions = tuple(each.without(used) for each in self.unions)
        return replace(self, withdrawn=withdrawn, used=used, unions=unions)


def pad(array: NDArray[Any], length: int, *, fill: float = 0) -> NDArray[Any]:
    """Return an array with ``fill`` appended up to ``length``."""
    blank = np.full((length - len(array), *array.shape[1:]), fill, dtype=array.dtype)
    return np.concatenate([array, blank])
