"""The protected table of a site: one record and a number of persons for each group."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedclust.protection.columns import (
    LevelColumn,
    NumericColumn,
    SourceColumn,
    TableColumn,
    clip_to_fences,
    describe_columns,
    encode_levels,
    source_names,
)
from fedclust.protection.groups import form_groups, least_group_size
from fedclust.protection.records import GroupSums, Spread, release_counts

__all__ = [
    "ProtectedTable",
    "TooFewPersons",
    "embed_persons",
    "encode_sources",
    "form_table",
    "form_table_by_blocks",
    "group_persons",
    "has_levels",
    "person_values",
    "release_blocks",
    "unite_groups",
]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


#: Groups are of 2p persons where at least this share of the columns can release counts,
_COUNTED_SHARE = 0.1
#: and where there are at least so many times p persons: some seven groups of 2p.
_COUNTED_PERSONS = 20


class TooFewPersons(ValueError):
    """A site has fewer than p persons: it has no table and answers every round empty."""


@dataclass(frozen=True)
class ProtectedTable:
    """What every computation of a site for others starts from.

    Attributes
    ----------
    columns : tuple of TableColumn
    sizes : (m,) int64
        Persons in each group.
    released : tuple of float64 arrays, one for each column
        Of a numeric column the means (m,), NaN where a group does not release it. Of a column of
        levels the counts (m, L); a row of zeros where a group does not release it.
    shares : tuple of (float or None), one for each column
        Of a numeric column the share of its variance within groups, rounded; else None.
    """

    columns: tuple[TableColumn, ...]
    sizes: IntArray
    released: tuple[FloatArray, ...]
    shares: tuple[float | None, ...]

    def sorted_by_value(self) -> ProtectedTable:
        """Return the table with its groups in the order of what they release.

        Groups are numbered by their persons. The last digits of sums, and draws of points, would
        depend on that order.
        """
        order = np.lexsort(np.column_stack([*self.released, self.sizes]).T)
        released = tuple(each[order] for each in self.released)
        return ProtectedTable(self.columns, self.sizes[order], released, self.shares)

    def names(self) -> tuple[str, ...]:
        """Return the source columns that the table holds."""
        return tuple(name for column in self.columns for name in source_names(column))

    def values(self, name: str) -> FloatArray:
        """Return what the groups release of one source column.

        Returns
        -------
        (m,) or (m, L) float64
            Of a column of numbers the mean, of a yes/no column the mean as well; of a column with
            declared levels the share of each. NaN where a group does not release it.

        Raises
        ------
        KeyError
            If the table has no such column.
        """
        for column, released in zip(self.columns, self.released, strict=True):
            if isinstance(column, NumericColumn) and column.name == name:
                return released
            if isinstance(column, LevelColumn) and name in column.names:
                return _decoded(column, column.names.index(name), released)
        raise KeyError(name)


def _decoded(column: LevelColumn, place: int, counts: FloatArray) -> FloatArray:
    shares = _shares(counts)
    meaning = np.array(column.values[place])
    if len(column.names) == 1 and column.n_levels > 2:
        return shares
    return np.asarray(shares @ meaning)


# --- persons --------------------------------------------------------------------------------------


def person_values(
    sources: Sequence[SourceColumn], persons: IntArray, by_vote: Collection[str] = ()
) -> tuple[SourceColumn, ...]:
    """Return one value for each person: the mean of the rows, or the commonest value.

    Parameters
    ----------
    sources : sequence of SourceColumn
        One value a row.
    persons : (n rows,) int64
        The person of each row, numbered from 0.
    by_vote : collection of str
        The yes/no columns, whose commonest value counts as it does for columns of levels. Of
        values that are equally common the smallest counts.
    """
    count = int(persons.max(initial=-1)) + 1
    return tuple(
        _most_common(source, persons, count)
        if source.n_levels is not None or source.name in by_vote
        else _person_means(source, persons, count)
        for source in sources
    )


def _person_means(source: SourceColumn, persons: IntArray, count: int) -> SourceColumn:
    present = ~np.isnan(source.values)
    kept = persons[present]
    sums = np.bincount(kept, weights=source.values[present], minlength=count)
    rows = np.bincount(kept, minlength=count)
    means = np.divide(sums, rows, out=np.full(count, np.nan), where=rows > 0)
    return SourceColumn(source.name, means)


def _most_common(source: SourceColumn, persons: IntArray, count: int) -> SourceColumn:
    present = ~np.isnan(source.values)
    distinct, places = np.unique(source.values[present], return_inverse=True)
    pairs, votes = np.unique(persons[present] * max(len(distinct), 1) + places, return_counts=True)
    voters, choices = np.divmod(pairs, max(len(distinct), 1))
    # By person, and then the most votes last; of equal votes the smallest value.
    order = np.lexsort((-choices, votes, voters))
    found = np.full(count, np.nan)
    found[voters[order]] = distinct[choices[order]]
    return SourceColumn(source.name, found, source.n_levels)


# --- the table ------------------------------------------------------------------------------------


def form_table(sources: Sequence[SourceColumn], p: int, *, fences: bool = True) -> ProtectedTable:
    """Form the protected table of persons who have no group yet.

    Parameters
    ----------
    sources : sequence of SourceColumn
        One value a person.
    p : int
        The least number of persons behind every number.
    fences : bool
        Whether extremes count as a fence.

    Raises
    ------
    TooFewPersons
        If there are fewer than ``p`` persons.
    """
    columns = describe_columns(sources, p, fences=fences)
    return form_table_by_blocks(columns, [sources], p, len(sources[0].values))


def form_table_by_blocks(
    columns: Sequence[TableColumn], blocks: Iterable[Sequence[SourceColumn]], p: int, n_persons: int
) -> ProtectedTable:
    """Form the protected table of persons who come in blocks; groups do not cross blocks.

    Parameters
    ----------
    columns : sequence of TableColumn
    blocks : iterable of (sequence of SourceColumn)
        One value a person.
    p : int
    n_persons : int
        In all blocks together.

    Raises
    ------
    TooFewPersons
        If a block has fewer than ``p`` persons.
    """
    encoded = (encode_sources(columns, sources) for sources in blocks)
    grouped = ((each, group_persons(columns, each, p, n_persons)) for each in encoded)
    return release_blocks(columns, grouped, p)


def group_persons(
    columns: Sequence[TableColumn],
    encoded: Sequence[FloatArray],
    p: int,
    n_persons: int | None = None,
) -> IntArray:
    """Return the group of each person (n,).

    Persons with the same missing columns are grouped together where there are at least p of them.

    Parameters
    ----------
    columns : sequence of TableColumn
    encoded : sequence of (n,) float64, one for each column
        As :func:`encode_sources` returns them.
    p : int
    n_persons : int, optional
        Persons of the site, where these are some of them.

    Raises
    ------
    TooFewPersons
        If there are fewer than ``p`` persons.
    """
    n = len(encoded[0])
    if n < p:
        raise TooFewPersons(f"{n} persons: a group has at least {p}")
    counted = sum(
        isinstance(column, LevelColumn) and _second(values, column.n_levels) >= p
        for column, values in zip(columns, encoded, strict=True)
    )
    larger = _gain_from_counts(counted, len(columns), n_persons or n, p)
    least = least_group_size(n_persons or n, p, has_levels=larger)
    points = embed_persons(columns, encoded)
    missing = np.stack([np.isnan(each) for each in encoded])
    if not missing.any():
        return form_groups(points, least)
    patterns = _patterns(missing, p)
    groups = np.empty(n, dtype=np.int64)
    first = 0
    for pattern in range(int(patterns.max()) + 1):
        members = np.flatnonzero(patterns == pattern)
        # Equal points stay in this order: it does not depend on that of the persons.
        members = members[np.lexsort(missing[:, members])]
        labels = form_groups(points[members], least)
        groups[members] = first + labels
        first += int(labels.max()) + 1
    return groups


def has_levels(columns: Sequence[TableColumn]) -> bool:
    """Return whether a table has yes/no columns or columns of levels."""
    return any(isinstance(column, LevelColumn) for column in columns)


def _gain_from_counts(counted: int, n_columns: int, n: int, p: int) -> bool:
    """Whether groups of 2p, which release counts, tell more than groups of p.

    All columns pay for the larger groups, so that they need enough columns with counts, and enough
    persons: few groups mix what many keep apart.
    """
    return counted >= _COUNTED_SHARE * n_columns and counted > 0 and n >= _COUNTED_PERSONS * p


def _second(codes: FloatArray, n_levels: int) -> int:
    """Return how many persons have the second commonest level.

    Where these are fewer than p, no group can release them, and larger groups gain nothing.
    """
    known = codes[~np.isnan(codes)].astype(np.int64)
    return int(np.sort(np.bincount(known, minlength=max(n_levels, 2)))[-2])


def embed_persons(columns: Sequence[TableColumn], encoded: Sequence[FloatArray]) -> FloatArray:
    """Return points (n, width) whose distances say how similar persons are."""
    blocks = (
        values[None]
        if isinstance(column, NumericColumn)
        else np.where(np.isnan(values), np.nan, values == np.arange(column.n_levels)[:, None])
        for column, values in zip(columns, encoded, strict=True)
    )
    return _side_by_side(columns, blocks, len(encoded[0]))


def release_blocks(
    columns: Sequence[TableColumn],
    blocks: Iterable[tuple[Sequence[FloatArray], IntArray]],
    p: int,
) -> ProtectedTable:
    """Return the records of groups that do not cross blocks.

    Parameters
    ----------
    columns : sequence of TableColumn
    blocks : iterable of (list of (n,) float64, (n,) int64)
        Persons' values as :func:`encode_sources` returns them, and their groups, which are numbered
        from 0 in each block.
    p : int
    """
    sizes: list[IntArray] = []
    released: list[list[FloatArray]] = [[] for _ in columns]
    spreads = [Spread() for _ in columns]
    for encoded, groups in blocks:
        sizes.append(np.bincount(groups))
        for place, (column, values) in enumerate(zip(columns, encoded, strict=True)):
            tally = GroupSums(column)
            tally.add(values, groups, len(sizes[-1]))
            released[place].append(tally.release(sizes[-1], p))
            spreads[place] += tally.spread()
    shares = tuple(
        spread.share() if isinstance(column, NumericColumn) else None
        for column, spread in zip(columns, spreads, strict=True)
    )
    whole = tuple(map(np.concatenate, released))
    return ProtectedTable(tuple(columns), np.concatenate(sizes), whole, shares)


def encode_sources(
    columns: Sequence[TableColumn], sources: Sequence[SourceColumn]
) -> list[FloatArray]:
    """Return the values (n,) of each table column: fenced numbers, or levels; NaN where missing."""
    by_name: Mapping[str, FloatArray] = {source.name: source.values for source in sources}
    return [
        clip_to_fences(column, by_name[column.name])
        if isinstance(column, NumericColumn)
        else encode_levels(column, [by_name[name] for name in column.names])
        for column in columns
    ]


def _side_by_side(
    columns: Sequence[TableColumn], blocks: Iterable[FloatArray], n: int
) -> FloatArray:
    """Return points whose distances shape the groups.

    Each column is centred and scaled to a total variance of 1. Missing values are at the mean.

    Parameters
    ----------
    columns : sequence of TableColumn
    blocks : iterable of (width, n) float64, one for each column
        A row of numbers, or a row for each level.
    n : int

    Returns
    -------
    (n, d) float64
    """
    width = sum(column.n_levels if isinstance(column, LevelColumn) else 1 for column in columns)
    points = np.zeros((width, n))
    end = 0
    for block in blocks:
        missing = np.isnan(block)
        # Sorted: sums, and so ties, do not depend on the order of the persons.
        known = np.sort(block, axis=1)[:, : n - int(missing[0].sum())]
        spread = float(np.sqrt(known.var(axis=1).sum())) if known.size else 0.0
        if spread > 0.0:
            scaled = points[end : end + len(block)]
            np.subtract(block, known.mean(axis=1, keepdims=True), out=scaled)
            scaled /= spread
            scaled[missing] = 0.0
            end += len(block)
    return points[: max(end, 1)].T


def _patterns(missing: NDArray[np.bool_], p: int) -> IntArray:
    """Return a class for each person: those with the same missing columns (columns, n).

    A pattern of fewer than ``p`` persons joins the one that differs in the fewest columns.
    """
    labels = np.zeros(missing.shape[1], dtype=np.int64)
    for eight in np.packbits(missing, axis=0):
        labels = np.unique(labels * 256 + eight, return_inverse=True)[1]
    _, first, counts = np.unique(labels, return_index=True, return_counts=True)
    kinds = missing[:, first].T
    parent = np.arange(len(kinds))
    masks, counts = kinds.copy(), counts.copy()
    while True:
        alive = np.flatnonzero(parent == np.arange(len(kinds)))
        small = alive[counts[alive] < p]
        if not len(small) or len(alive) == 1:
            break
        joining = int(small[counts[small].argmin()])
        others = alive[alive != joining]
        apart = (masks[others] != masks[joining]).sum(axis=1)
        into = int(others[np.lexsort((-counts[others], apart))[0]])
        parent[parent == joining] = into
        counts[into] += counts[joining]
        masks[into] |= masks[joining]
    return np.unique(parent[labels], return_inverse=True)[1].astype(np.int64)


# --- a larger p -----------------------------------------------------------------------------------


def unite_groups(table: ProtectedTable, p: int) -> ProtectedTable:
    """Return the table of unions of whole groups, for a session or site with a larger ``p``.

    A union's record is the weighted mean of its groups' released records (levels: their added
    counts). Nothing is computed from persons.

    Raises
    ------
    TooFewPersons
        If all groups together have fewer than ``p`` persons.
    """
    n = int(table.sizes.sum())
    if n < p:
        raise TooFewPersons(f"{n} persons: a group has at least {p}")
    table = table.sorted_by_value()
    blocks = (values[None] if values.ndim == 1 else _shares(values).T for values in table.released)
    points = _side_by_side(table.columns, blocks, len(table.sizes))
    counted = sum(
        values.ndim == 2 and np.sort(values.sum(axis=0))[-2:].min() >= p
        for values in table.released
    )
    larger = _gain_from_counts(counted, len(table.columns), n, p)
    least = least_group_size(n, p, has_levels=larger)
    labels = form_groups(points, least, table.sizes)
    m = int(labels.max()) + 1
    sizes = np.bincount(labels, weights=table.sizes, minlength=m).astype(np.int64)
    released: list[FloatArray] = []
    shares: list[float | None] = []
    for column, values, share in zip(table.columns, table.released, table.shares, strict=True):
        if isinstance(column, NumericColumn):
            sums = np.bincount(labels, weights=values * table.sizes, minlength=m)
            released.append(sums / sizes)
            shares.append(_share_of_unions(values, table.sizes, share or 0.0, labels, released[-1]))
        else:
            shares.append(None)
            counts = np.zeros((m, column.n_levels), dtype=np.int64)
            np.add.at(counts, labels, values.astype(np.int64))
            counts[counts.sum(axis=1) < sizes] = 0
            released.append(release_counts(counts, p).astype(np.float64))
    return ProtectedTable(table.columns, sizes, tuple(released), tuple(shares))


def _share_of_unions(
    means: FloatArray, sizes: IntArray, share: float, labels: IntArray, united: FloatArray
) -> float:
    """Return the share of variance within unions, from what their groups released."""
    known = ~np.isnan(united)[labels]
    if not known.any():
        return share
    means, sizes, united = means[known], sizes[known], united[labels][known]
    whole = np.average((means - np.average(means, weights=sizes)) ** 2, weights=sizes)
    lost = np.average((means - united) ** 2, weights=sizes)
    return float(share + (1.0 - share) * lost / whole) if whole > 0.0 else share


def _shares(counts: FloatArray) -> FloatArray:
    totals = counts.sum(axis=1, keepdims=True)
    shares = np.full(counts.shape, np.nan)
    np.divide(counts, totals, out=shares, where=totals > 0)
    return shares
