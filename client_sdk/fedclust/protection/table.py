"""Rule: everything that leaves a site is computed from this table of groups and their records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedclust.numeric.array_types import FloatArray, IntArray
from fedclust.numeric.microaggregation import to_integers, value_order
from fedclust.protection.columns import SourceColumn, TableColumn
from fedclust.protection.groups import Newcomers, embed_persons

#: Nearest other groups are searched for at most this many groups, spread over the table.
_SAMPLE = 500
#: Pairs of groups that are compared at once.
_PAIRS = 2**21
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

    def step(self, name: str) -> float:
        """Return the step of a column; KeyError if the table has it not."""
        return {column.name: column.step for column in self.columns}[name]


def form_table(sources: Sequence[SourceColumn], p: int) -> ProtectedTable:
    """Form the protected table of persons who are not recognised again.

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
    newcomers = Newcomers(p, sample, n_persons)
    for sources in blocks:
        if sources:
            newcomers.add(sources)
            columns = [TableColumn(each.name, each.n_levels) for each in sources]
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


def order_records(released: Sequence[FloatArray], sizes: IntArray) -> IntArray:
    """Return the rows (m,) of groups, sorted by size, then by what they release, last first."""
    return value_order([sizes, *reversed(released)])


def embed_records(columns: Sequence[TableColumn], released: Sequence[FloatArray]) -> FloatArray:
    """Return points (m, width) whose distances say how similar records are."""
    pairs = zip(columns, released, strict=True)
    return embed_persons([SourceColumn(c.name, values, c.n_levels) for c, values in pairs], 1)


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
    halves = (points**2).sum(axis=1) / 2.0
    chosen = np.arange(0, m, -(-m // _SAMPLE))
    nearest = []
    for some in np.array_split(chosen, -(-len(chosen) * m // _PAIRS)):
        # Half of what the square of the first is above the squared distance.
        closeness = points[some] @ points.T - halves
        closeness[np.arange(len(some)), some] = -np.inf
        nearest.append(closeness.argmax(axis=1))
    return np.column_stack([order[chosen], order[np.concatenate(nearest)]])


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
