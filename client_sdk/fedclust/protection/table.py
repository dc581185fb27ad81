"""Rule: everything that leaves a site is computed from this table of groups and their records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedclust.numeric.array_types import FloatArray, IntArray
from fedclust.protection.columns import SourceColumn, TableColumn
from fedclust.protection.groups import to_integers
from fedclust.protection.parts import embed_persons

#: Nearest other groups are searched for at most this many groups, spread over the table.
_SAMPLE = 500
#: Groups compared with all others at once.
_BLOCK = 20
#: The share of variance within groups is a multiple of this, and at least this,
_SHARE_STEP = 0.05
#: and at most this: the rest could not be scaled up.
_MOST_SHARE = 0.8


class TooFewPersons(ValueError):
    """A site has fewer than p persons: it has no table and sends only empty submissions."""

    def __init__(self, n: int, p: int) -> None:
        super().__init__(f"{n} persons: a group has at least {p}")


@dataclass(frozen=True)
class ProtectedTable:
    """The released records of a site's groups.

    Attributes
    ----------
    columns : tuple of TableColumn
    sizes : (m,) int64
        Persons in each group.
    released : tuple of (m,) float64, one for each column
        The rounded middle value, or the index of the commonest level; NaN where a group does not
        release the column.
    neighbours : (k, 2) int64
        Groups, and the group that is nearest to each over all columns that the site has released.
    """

    columns: tuple[TableColumn, ...]
    sizes: IntArray
    released: tuple[FloatArray, ...]
    neighbours: IntArray

    def sorted_by_value(self) -> ProtectedTable:
        """Return the table with its groups sorted by what they release.

        Otherwise the last digits of sums, and drawn points, would depend on the order of persons.
        """
        order = self.order()
        released = tuple(each[order] for each in self.released)
        places = np.argsort(order)
        return replace(
            self, sizes=self.sizes[order], released=released, neighbours=places[self.neighbours]
        )

    def order(self) -> IntArray:
        """Return the rows (m,) of the groups, sorted by what they release."""
        return order_records(self.released, self.sizes)

    def names(self) -> tuple[str, ...]:
        """Return the source columns that the table holds."""
        return tuple(column.name for column in self.columns)

    def column(self, name: str) -> TableColumn:
        """Return a column; KeyError if the table does not have it."""
        return self.columns[self._place(name)]

    def values(self, name: str) -> FloatArray:
        """Return what the groups release of a column (m,); KeyError if the table has it not."""
        return self.released[self._place(name)]

    def _place(self, name: str) -> int:
        try:
            return self.names().index(name)
        except ValueError:
            raise KeyError(name) from None


def order_records(released: Sequence[FloatArray], sizes: IntArray) -> IntArray:
    """Return the rows (m,) of groups, sorted by what they release, then by size."""
    return np.lexsort((*released, sizes))


def embed_records(columns: Sequence[TableColumn], released: Sequence[FloatArray]) -> FloatArray:
    """Return points (m, width) whose distances say how similar records are."""
    sources = [
        SourceColumn(column.name, values, column.n_levels)
        for column, values in zip(columns, released, strict=True)
    ]
    return embed_persons(sources, 1)


# --- variance within groups -----------------------------------------------------------------------


def find_neighbours(
    columns: Sequence[TableColumn], released: Sequence[FloatArray], sizes: IntArray
) -> IntArray:
    """Return groups and their nearest other group (k, 2); of equally near ones the first by value.

    Of many groups, some that are spread over the table.
    """
    m = len(sizes)
    if m < 2:
        return np.zeros((0, 2), dtype=np.int64)
    order = order_records(released, sizes)
    # Sums of products of integers are exact, so that every processor finds the same groups.
    points = to_integers(embed_records(columns, released))[order].astype(np.float64)
    squares = (points**2).sum(axis=1)
    chosen = np.arange(0, m, -(-m // _SAMPLE))
    nearest = np.empty(len(chosen), dtype=np.int64)
    for begin in range(0, len(chosen), _BLOCK):
        rows = chosen[begin : begin + _BLOCK]
        gaps = squares - 2.0 * (points[rows] @ points.T)
        gaps[np.arange(len(rows)), rows] = np.inf
        nearest[begin : begin + _BLOCK] = gaps.argmin(axis=1)
    return np.column_stack([order[chosen], order[nearest]])


def within_shares(values: FloatArray, sizes: IntArray, neighbours: IntArray) -> FloatArray:
    """Return the share of each column's variance that lies within groups, from records alone.

    Half the squared difference between a group's record and that of the nearest other group, over
    the variance of the records; rounded.

    Parameters
    ----------
    values : (m, d) float64
        Records in any units; NaN where a group does not release a column.
    sizes : (m,) int64
    neighbours : (k, 2) int64
        See :class:`ProtectedTable`.

    Returns
    -------
    (d,) float64
        From .05 to .8.
    """
    groups, nearest = neighbours.T
    halves = (values[groups] - values[nearest]) ** 2 / 2.0
    within = _mean_of_known(halves, sizes[groups])
    total = _mean_of_known((values - _mean_of_known(values, sizes)) ** 2, sizes)
    shares = np.divide(within, total, out=np.zeros(len(total)), where=total > 0.0)
    steps = np.rint(np.round(np.minimum(shares, _MOST_SHARE) / _SHARE_STEP, 9))
    return np.asarray(np.maximum(steps, 1.0) / round(1.0 / _SHARE_STEP))


def _mean_of_known(values: FloatArray, sizes: IntArray) -> FloatArray:
    """Return the mean (d,) of values (m, d) weighted by persons, without NaN; 0 of none."""
    known = ~np.isnan(values)
    weights = np.where(known, sizes[:, None], 0)
    totals = (np.where(known, values, 0.0) * weights).sum(axis=0)
    return np.asarray(totals / np.maximum(weights.sum(axis=0), 1))
