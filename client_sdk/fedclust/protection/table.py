"""Rule: everything that leaves a site is computed from this table of groups and their records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedclust.numeric.array_types import FloatArray, IntArray
from fedclust.protection.columns import SourceColumn, TableColumn
from fedclust.protection.groups import to_integers, value_order
from fedclust.protection.parts import embed_persons

#: Nearest other groups are searched for at most this many groups, spread over the table.
_SAMPLE = 500
#: Groups that these are compared with at once.
_BLOCK = 1_000
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

    def values(self, name: str) -> FloatArray:
        """Return what the groups release of a column (m,); KeyError if the table has it not."""
        return dict(zip(self.names(), self.released, strict=True))[name]


def order_records(released: Sequence[FloatArray], sizes: IntArray) -> IntArray:
    """Return the rows (m,) of groups, sorted by size, then by what they release, last first."""
    return value_order([sizes, *reversed(released)])


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
    points = to_integers(embed_records(columns, released))
    chosen = np.arange(0, m, -(-m // _SAMPLE))
    own = np.column_stack([points[order[chosen]].astype(np.float64), np.ones(len(chosen))])
    nearest, best = chosen.copy(), np.full(len(chosen), -np.inf)
    for begin in range(0, m, _BLOCK):
        others = points[order[begin : begin + _BLOCK]].astype(np.float64)
        # Half of what the square of the first is above the squared distance.
        closeness = own @ np.column_stack([others, (others**2).sum(axis=1) / -2.0]).T
        here = np.flatnonzero((chosen >= begin) & (chosen < begin + len(others)))
        closeness[here, chosen[here] - begin] = -np.inf
        found = closeness.argmax(axis=1)
        closest = closeness[np.arange(len(own)), found]
        nearest = np.where(closest > best, begin + found, nearest)
        best = np.maximum(closest, best)
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
    return np.array([_within_share(column, sizes, neighbours) for column in values.T])


def _within_share(values: FloatArray, sizes: IntArray, neighbours: IntArray) -> float:
    groups, nearest = neighbours.T
    within = _mean_of_known((values[groups] - values[nearest]) ** 2 / 2.0, sizes[groups])
    total = _mean_of_known((values - _mean_of_known(values, sizes)) ** 2, sizes)
    share = min(within / total, _MOST_SHARE) if total > 0.0 else 0.0
    return max(round(round(share / _SHARE_STEP, 9)), 1) / round(1.0 / _SHARE_STEP)


def _mean_of_known(values: FloatArray, sizes: IntArray) -> float:
    """Return the mean of values (m,) weighted by persons, without NaN; 0 of none."""
    known = ~np.isnan(values)
    return float((values[known] * sizes[known]).sum()) / max(int(sizes[known].sum()), 1)
