"""Rule: a group releases a column once, when all of its persons are there, and never again.

This keeps the condition of ``cohort`` for known groups; newcomers' groups (``update``) hold new
values only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedclust.numeric.array_types import BoolArray, ByteArray, FloatArray, IntArray
from fedclust.protection.cohort import Cohort, PinnedColumn
from fedclust.protection.columns import (
    NumericColumn,
    TableColumn,
    collect_distinct,
    source_names,
)
from fedclust.protection.records import GroupSums


@dataclass(frozen=True)
class UpdatedGroups:
    """The groups after a pass over the source.

    Attributes
    ----------
    p : int
    sizes : (m,) int64
    n_known : int
        Groups that existed before the pass; they come first.
    used : (m,) bool
    complete : (m,) bool
        Groups all of whose persons are in the source.
    groups : (n,) int32
        The group of each person who was known before.
    """

    p: int
    sizes: IntArray
    n_known: int
    used: BoolArray
    complete: BoolArray
    groups: NDArray[np.int32]


class ColumnUpdate:
    """One column of a cohort during a pass over a source.

    Attributes
    ----------
    column : TableColumn
    pinned : PinnedColumn or None
        Its releases so far; None for a new column.
    sums : GroupSums
    prints : (n, source columns) uint8
        Fingerprints of the known persons' values in this source.
    """

    def __init__(
        self, column: TableColumn, pinned: PinnedColumn | None, cohort: Cohort, n_earlier: int
    ) -> None:
        self.column, self.pinned = column, pinned
        self.sums = GroupSums(column)
        self.prints = np.zeros((len(cohort.keys), len(source_names(column))), np.uint8)
        #: By earlier measurement and group, the persons with another value than then.
        self._changed = np.zeros((n_earlier, len(cohort.sizes)), np.int64)
        #: Up to three distinct values of the known persons.
        self._distinct = np.zeros(0)

    def add_known(
        self,
        values: FloatArray,
        prints: ByteArray,
        changed: Sequence[BoolArray],
        index: IntArray,
        groups: IntArray,
        m: int,
    ) -> None:
        """Add known persons (n,), given their index in the cohort and their groups, of m.

        ``changed``, an array (n,) for each earlier measurement of the column, says whose value
        differs from it.
        """
        self.sums.add(values, groups, m)
        self.prints[index] = prints
        for counts, each in zip(self._changed, changed, strict=True):
            counts += np.bincount(groups[each], minlength=len(counts))
        self._distinct = collect_distinct(self._distinct, values)

    def drop_two_values(self, values: FloatArray) -> None:
        """Drop newcomers' values, in place, if their means would be counts."""
        if self.pinned is not None and self._are_counts(collect_distinct(np.zeros(0), values)):
            values[:] = np.nan

    def release(
        self, after: UpdatedGroups, rules: Mapping[str, str], new_prints: ByteArray
    ) -> tuple[PinnedColumn, bool]:
        """Return the column after this pass, and whether any group has decided in it.

        ``new_prints`` are the fingerprints of the newcomers who are in groups now.
        """
        m = len(after.sizes)
        self.sums.add(np.zeros(0), np.zeros(0, np.int64), m)
        before = extend_column(self.pinned or self._first(rules), m)
        # An absent person may have a value: a later file decides.
        now = after.used & ~before.decided & after.complete
        # Fewer persons who have changed could be computed from the two releases.
        now[: after.n_known] &= (self._changed >= after.p).all(axis=0)
        if self._are_counts(self._distinct):
            now[: after.n_known] = False
        released = before.released.copy()
        released[now] = self.sums.release(after.sizes, after.p)[now]
        prints = np.where(now[after.groups][:, None], self.prints, before.prints)
        column = replace(
            before,
            released=released,
            decided=before.decided | now,
            prints=np.concatenate([prints, new_prints]),
        )
        return column, bool(now.any())

    def _first(self, rules: Mapping[str, str]) -> PinnedColumn:
        """Return a new column that no group has released yet."""
        return PinnedColumn(
            self.column,
            tuple(rules[name] for name in source_names(self.column)),
            self.sums.share(),
            GroupSums(self.column).sums,
            np.zeros(0, bool),
            np.zeros_like(self.prints),
        )

    def _are_counts(self, distinct: FloatArray) -> bool:
        """Return whether a mean of these values reveals how many persons have each.

        So it does of two values that are more than a step apart.
        """
        if not isinstance(self.column, NumericColumn) or len(distinct) != 2:
            return False
        return bool(self.column.step < distinct[1] - distinct[0])


def extend_column(pinned: PinnedColumn, m: int, n: int | None = None) -> PinnedColumn:
    """Return a column with further groups, m in all, and persons, n in all, without releases."""
    fill = np.nan if pinned.released.ndim == 1 else 0.0
    return replace(
        pinned,
        released=pad(pinned.released, m, fill=fill),
        decided=pad(pinned.decided, m),
        prints=pinned.prints if n is None else pad(pinned.prints, n),
    )


def pad(array: NDArray[Any], length: int, *, fill: float = 0) -> NDArray[Any]:
    """Return an array with ``fill`` appended up to ``length``."""
    blank = np.full((length - len(array), *array.shape[1:]), fill, dtype=array.dtype)
    return np.concatenate([array, blank])


def is_released(released: FloatArray) -> BoolArray:
    """Return which groups (m,) release a column."""
    return np.asarray(~np.isnan(released) if released.ndim == 1 else released.sum(axis=1) > 0.0)
