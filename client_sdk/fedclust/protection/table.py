"""Rule: everything that leaves a site is computed from this table of groups and their records.

Persons become points, points become groups (``groups``), and groups release records (``records``).
A larger p is served by unions of whole groups, computed from released records alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from fedclust.numeric.array_types import BoolArray, FloatArray, IntArray
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
from fedclust.protection.groups import cut_into_blocks, form_groups, least_group_size
from fedclust.protection.records import GroupSums, Spread, release_counts

#: Groups of 2p release counts, groups of p only the commonest level. All columns pay for larger
#: groups, so they pay off only if at least this share of the columns can release counts,
_COUNTED_SHARE = 0.1
#: and with at least this many times p persons, about seven groups of 2p.
_COUNTED_PERSONS = 20


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
        """Return the table with its groups sorted by what they release.

        Otherwise the last digits of sums, and drawn points, would depend on the order of persons.
        """
        order = self.order()
        released = tuple(each[order] for each in self.released)
        return ProtectedTable(self.columns, self.sizes[order], released, self.shares)

    def order(self) -> IntArray:
        """Return the rows (m,) of the groups, sorted by what they release."""
        return np.lexsort(np.column_stack([*self.released, self.sizes]).T)

    def names(self) -> tuple[str, ...]:
        """Return the source columns that the table holds."""
        return tuple(name for column in self.columns for name in source_names(column))

    def values(self, name: str) -> FloatArray:
        """Return what the groups release of one source column.

        Returns
        -------
        (m,) or (m, L) float64
            The mean of a column of numbers or a yes/no column; the share of each level of a column
            with declared levels. NaN where a group does not release it.

        Raises
        ------
        KeyError
            If the table has no such column.
        """
        for column, released in zip(self.columns, self.released, strict=True):
            if name not in source_names(column):
                continue
            if isinstance(column, NumericColumn):
                return released
            shares = _level_shares(released)
            if len(column.names) == 1 and column.n_levels > 2:
                return shares
            return np.asarray(shares @ np.array(column.values[column.names.index(name)]))
        raise KeyError(name)


# --- persons --------------------------------------------------------------------------------------


def person_values(
    sources: Sequence[SourceColumn], persons: IntArray, by_vote: Collection[str] = ()
) -> tuple[SourceColumn, ...]:
    """Return one value for each person, given the person of each row (n rows,), from 0.

    The mean of the person's rows; for columns of levels, and the yes/no columns ``by_vote``, the
    commonest value, or the smallest of equally common ones.
    """
    n_persons = int(persons.max(initial=-1)) + 1
    return tuple(
        _most_common(source, persons, n_persons)
        if source.n_levels is not None or source.name in by_vote
        else _person_means(source, persons, n_persons)
        for source in sources
    )


def _person_means(source: SourceColumn, persons: IntArray, n_persons: int) -> SourceColumn:
    present = ~np.isnan(source.values)
    kept = persons[present]
    sums = np.bincount(kept, weights=source.values[present], minlength=n_persons)
    rows = np.bincount(kept, minlength=n_persons)
    means = np.divide(sums, rows, out=np.full(n_persons, np.nan), where=rows > 0)
    return SourceColumn(source.name, means)


def _most_common(source: SourceColumn, persons: IntArray, n_persons: int) -> SourceColumn:
    present = ~np.isnan(source.values)
    distinct, codes = np.unique(source.values[present], return_inverse=True)
    width = max(len(distinct), 1)
    pairs, votes = np.unique(persons[present] * width + codes, return_counts=True)
    voters, choices = np.divmod(pairs, width)
    # The last entry of each person stays: the most votes; of equal votes the smallest value.
    order = np.lexsort((-choices, votes, voters))
    chosen = np.full(n_persons, np.nan)
    chosen[voters[order]] = distinct[choices[order]]
    return SourceColumn(source.name, chosen, source.n_levels)


# --- the table ------------------------------------------------------------------------------------


def form_table(sources: Sequence[SourceColumn], p: int, *, fences: bool = True) -> ProtectedTable:
    """Form the protected table of persons who have no group yet; see :func:`describe_columns`.

    Raises
    ------
    TooFewPersons
        If there are fewer than ``p`` persons.
    """
    columns = describe_columns(sources, p, fences=fences)
    return form_table_by_blocks(columns, [sources], p, len(sources[0].values))


def form_table_by_blocks(
    columns: Sequence[TableColumn],
    blocks: Iterable[Sequence[SourceColumn]],
    p: int,
    n_persons: int,
) -> ProtectedTable:
    """Form the protected table of ``n_persons`` who come in blocks; no group spans two blocks.

    Raises
    ------
    TooFewPersons
        If a block has fewer than ``p`` persons.
    """
    encoded = (encode_sources(columns, sources) for sources in blocks)
    grouped = ((each, group_persons(columns, each, p, n_persons)) for each in encoded)
    return release_blocks(columns, grouped, p)


def encode_sources(
    columns: Sequence[TableColumn], sources: Sequence[SourceColumn]
) -> list[FloatArray]:
    """Return each table column's values (n,): fenced numbers, or levels; NaN where missing."""
    values = {source.name: source.values for source in sources}
    return [
        clip_to_fences(column, values[column.name])
        if isinstance(column, NumericColumn)
        else encode_levels(column, [values[name] for name in column.names])
        for column in columns
    ]


def group_persons(
    columns: Sequence[TableColumn],
    encoded: Sequence[FloatArray],
    p: int,
    n_persons: int | None = None,
) -> IntArray:
    """Return the group (n,) of each of a site's persons, or of some of its ``n_persons``.

    Persons with the same missing columns are grouped together if there are at least p of them.

    Raises
    ------
    TooFewPersons
        If there are fewer than ``p`` persons.
    """
    n = len(encoded[0])
    if n < p:
        raise TooFewPersons(n, p)
    counts = [
        np.bincount(values[~np.isnan(values)].astype(np.int64), minlength=max(column.n_levels, 2))
        for column, values in zip(columns, encoded, strict=True)
        if isinstance(column, LevelColumn)
    ]
    larger = _releases_counts(counts, len(columns), n_persons or n, p)
    least = least_group_size(n_persons or n, p, has_levels=larger)
    points = embed_persons(columns, encoded)
    missing = np.stack([np.isnan(each) for each in encoded])
    if not missing.any():
        return form_groups(points, least)
    patterns = _missing_patterns(missing, p)
    # Equal points keep this order, which does not depend on the order of persons.
    order = np.lexsort([*missing, patterns])
    groups = np.empty(n, dtype=np.int64)
    first = 0
    for members in np.split(order, np.cumsum(np.bincount(patterns))[:-1]):
        labels = form_groups(points[members], least)
        groups[members] = first + labels
        first += int(labels.max()) + 1
    return groups


def _releases_counts(
    counts: Sequence[FloatArray | IntArray], n_columns: int, n: int, p: int
) -> bool:
    """Return whether groups of ``n`` persons are larger, from the counts of each level column.

    A column with fewer than p persons at its second commonest level releases no counts.
    """
    counted = sum(int(np.sort(each)[-2:].min()) >= p for each in counts)
    return counted > 0 and counted >= _COUNTED_SHARE * n_columns and n >= _COUNTED_PERSONS * p


def embed_persons(columns: Sequence[TableColumn], encoded: Sequence[FloatArray]) -> FloatArray:
    """Return points (n, width) whose distances say how similar persons are."""
    blocks = (
        values[None]
        if isinstance(column, NumericColumn)
        else np.where(np.isnan(values), np.nan, values == np.arange(column.n_levels)[:, None])
        for column, values in zip(columns, encoded, strict=True)
    )
    return _standardize(columns, blocks, len(encoded[0]))


def _standardize(
    columns: Sequence[TableColumn], blocks: Iterable[FloatArray], n: int
) -> FloatArray:
    """Return points (n, width): each column centred, with a total variance of 1.

    A block (1 or L, n) is a row of numbers, or a row for each level. Missing values are at the
    mean.
    """
    width = sum(column.n_levels if isinstance(column, LevelColumn) else 1 for column in columns)
    points = np.zeros((width, n))
    end = 0
    for block in blocks:
        missing = np.isnan(block)
        # Sorted: sums, and so ties, do not depend on the order of the persons.
        known = np.sort(block, axis=1)[:, : n - int(missing[0].sum())]
        sd = float(np.sqrt(known.var(axis=1).sum())) if known.size else 0.0
        if sd > 0.0:
            scaled = points[end : end + len(block)]
            np.subtract(block, known.mean(axis=1, keepdims=True), out=scaled)
            scaled /= sd
            scaled[missing] = 0.0
            end += len(block)
    return points[: max(end, 1)].T


def _missing_patterns(missing: BoolArray, p: int) -> IntArray:
    """Return a class (n,) for persons with the same missing columns, from ``missing`` (columns, n).

    A pattern of fewer than ``p`` persons joins the one that differs in the fewest columns. Many
    patterns are first cut into blocks, which makes the time linear in their number.
    """
    labels = np.zeros(missing.shape[1], dtype=np.int64)
    for eight_columns in np.packbits(missing, axis=0):
        labels = np.unique(labels * 256 + eight_columns, return_inverse=True)[1]
    _, first, counts = np.unique(labels, return_index=True, return_counts=True)
    masks = missing[:, first].T.astype(np.float64)
    blocks = cut_into_blocks(masks, p)
    order = np.argsort(blocks, kind="stable")
    parent = np.empty(len(masks), dtype=np.int64)
    for block in np.split(order, np.cumsum(np.bincount(blocks))[:-1]):
        parent[block] = block[_join_small(masks[block], counts[block], p)]
    return np.unique(parent[labels], return_inverse=True)[1].astype(np.int64)


def _join_small(masks: FloatArray, counts: IntArray, p: int) -> IntArray:
    """Return the pattern (m,) that each one joins, until none that is left has fewer than ``p``.

    The smallest pattern joins the one that differs in the fewest columns, or the largest of these,
    which then lacks the columns of both. ``masks`` (m, columns) hold 0 and 1.
    """
    parent, persons = np.arange(len(masks)), counts.sum()
    # A pattern that has joined another has no persons.
    counts, masks = counts.copy(), masks.copy()
    for _ in range(len(masks) - 1):
        joining = int(np.where(counts > 0, counts, persons + 1).argmin())
        if counts[joining] >= p:
            break
        n_different = np.abs(masks - masks[joining]).sum(axis=1)
        distances = np.where(counts > 0, n_different * (persons + 1) - counts, np.inf)
        distances[joining] = np.inf
        into = int(distances.argmin())
        parent[parent == joining] = into
        counts[into] += counts[joining]
        counts[joining] = 0
        masks[into] = np.maximum(masks[into], masks[joining])
    return parent


def release_blocks(
    columns: Sequence[TableColumn],
    blocks: Iterable[tuple[Sequence[FloatArray], IntArray]],
    p: int,
) -> ProtectedTable:
    """Return the table of groups that do not span blocks.

    A block is persons' values as :func:`encode_sources` returns them, and their groups (n,),
    numbered from 0 in each block.
    """
    sizes: list[IntArray] = []
    released: list[list[FloatArray]] = [[] for _ in columns]
    spreads = [Spread() for _ in columns]
    for encoded, groups in blocks:
        sizes.append(np.bincount(groups))
        for j, (column, values) in enumerate(zip(columns, encoded, strict=True)):
            sums = GroupSums(column)
            sums.add(values, groups, len(sizes[-1]))
            released[j].append(sums.release(sizes[-1], p))
            spreads[j] += sums.spread()
    shares = tuple(
        spread.share() if isinstance(column, NumericColumn) else None
        for column, spread in zip(columns, spreads, strict=True)
    )
    records = tuple(map(np.concatenate, released))
    return ProtectedTable(tuple(columns), np.concatenate(sizes), records, shares)


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
    labels = union_labels(table, p)
    order = table.order()
    table, labels = table.sorted_by_value(), labels[order]
    m = int(labels.max()) + 1
    sizes = np.bincount(labels, weights=table.sizes, minlength=m).astype(np.int64)
    released: list[FloatArray] = []
    shares: list[float | None] = []
    for column, values, share in zip(table.columns, table.released, table.shares, strict=True):
        if isinstance(column, NumericColumn):
            sums = np.bincount(labels, weights=values * table.sizes, minlength=m)
            released.append(sums / sizes)
            shares.append(_union_share(values, table.sizes, share or 0.0, labels, released[-1]))
        else:
            shares.append(None)
            added = np.zeros((m, column.n_levels), dtype=np.int64)
            np.add.at(added, labels, values.astype(np.int64))
            added[added.sum(axis=1) < sizes] = 0
            released.append(release_counts(added, p).astype(np.float64))
    return ProtectedTable(table.columns, sizes, tuple(released), tuple(shares))


def union_labels(table: ProtectedTable, p: int) -> IntArray:
    """Return the union (m,) of each group: its row in what :func:`unite_groups` returns.

    Raises
    ------
    TooFewPersons
        If all groups together have fewer than ``p`` persons.
    """
    n = int(table.sizes.sum())
    if n < p:
        raise TooFewPersons(n, p)
    order = table.order()
    # Sorted: the unions do not depend on the order of the groups.
    table = table.sorted_by_value()
    counts = [
        values.sum(axis=0)
        for column, values in zip(table.columns, table.released, strict=True)
        if isinstance(column, LevelColumn)
    ]
    larger = _releases_counts(counts, len(table.columns), n, p)
    least = least_group_size(n, p, has_levels=larger)
    blocks = (
        values[None] if values.ndim == 1 else _level_shares(values).T for values in table.released
    )
    points = _standardize(table.columns, blocks, len(table.sizes))
    labels = np.empty(len(order), dtype=np.int64)
    labels[order] = form_groups(points, least, table.sizes)
    return labels


def _union_share(
    means: FloatArray, sizes: IntArray, share: float, labels: IntArray, union_means: FloatArray
) -> float:
    """Return the share of variance within unions, from what their groups released."""
    known = ~np.isnan(union_means)[labels]
    if not known.any():
        return share
    means, sizes, union_means = means[known], sizes[known], union_means[labels][known]
    total = np.average((means - np.average(means, weights=sizes)) ** 2, weights=sizes)
    lost = np.average((means - union_means) ** 2, weights=sizes)
    return float(share + (1.0 - share) * lost / total) if total > 0.0 else share


def _level_shares(counts: FloatArray) -> FloatArray:
    """Return the share of each level (m, L); NaN for a group that does not release the column."""
    totals = counts.sum(axis=1, keepdims=True)
    shares = np.full(counts.shape, np.nan)
    np.divide(counts, totals, out=shares, where=totals > 0)
    return shares
