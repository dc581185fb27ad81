"""Every record is one that all persons of its group could have had.

Fix groups, steps, fences and levels, and replace every person by the group's record (where a group
releases counts, by persons who have these counts): the table must come out unchanged. So whatever
is certain about a released table also holds in a world of identical persons.
"""

from __future__ import annotations

import numpy as np
from hypothesis import given
from numpy.typing import NDArray

from fedclust.protection.columns import LevelColumn, NumericColumn, SourceColumn, TableColumn
from fedclust.protection.table import (
    ProtectedTable,
    encode_sources,
    form_table,
    group_persons,
    release_blocks,
)
from protection.drawn_sites import sites

FloatArray = NDArray[np.float64]


def alike_persons(table: ProtectedTable, groups: NDArray[np.int64]) -> list[SourceColumn]:
    """Return sources in which each person has the group's record, or one of its counts."""
    found: dict[str, FloatArray] = {}
    for column, released in zip(table.columns, table.released, strict=True):
        if isinstance(column, NumericColumn):
            found[column.name] = released[groups]
            continue
        codes = np.full(len(groups), np.nan)
        for group, counts in enumerate(released):
            members = np.flatnonzero(groups == group)
            held = np.repeat(np.arange(column.n_levels), counts.astype(np.int64))
            codes[members[: len(held)]] = held
        for name, meaning in zip(column.names, column.values, strict=True):
            known = ~np.isnan(codes)
            values = np.full(len(codes), np.nan)
            values[known] = np.array(meaning)[codes[known].astype(np.int64)]
            found[name] = values
    return [SourceColumn(name, values) for name, values in found.items()]


@given(sites())
def test_a_table_of_its_own_records_is_itself(site: tuple[list[SourceColumn], int]) -> None:
    sources, p = site
    table = form_table(sources, p)
    groups = group_persons(table.columns, encode_sources(table.columns, sources), p)

    alike = encode_sources(table.columns, alike_persons(table, groups))
    again = release_blocks(table.columns, [(alike, groups)], p)

    for before, after in zip(table.released, again.released, strict=True):
        np.testing.assert_array_equal(before, after)


@given(sites())
def test_every_count_and_group_is_of_at_least_p_persons(
    site: tuple[list[SourceColumn], int],
) -> None:
    sources, p = site
    table = form_table(sources, p)

    assert table.sizes.min() >= p
    assert table.sizes.sum() == len(sources[0].values)
    for column, released in zip(table.columns, table.released, strict=True):
        if isinstance(column, LevelColumn):
            _check_counts(column, released, table.sizes, p)


def _check_counts(
    column: TableColumn, released: FloatArray, sizes: NDArray[np.int64], p: int
) -> None:
    assert np.all((released == 0) | (released >= p)), column
    totals = released.sum(axis=1)
    assert np.all((totals == 0) | (totals == sizes)), column
    assert np.all((released > 0).sum(axis=1)[sizes < 2 * p] <= 1), column


@given(sites())
def test_the_order_of_persons_does_not_matter(site: tuple[list[SourceColumn], int]) -> None:
    sources, p = site
    n = len(sources[0].values)
    order = np.random.default_rng(n).permutation(n)
    shuffled = [SourceColumn(each.name, each.values[order], each.n_levels) for each in sources]

    here, there = form_table(sources, p), form_table(shuffled, p)

    assert here.columns == there.columns
    assert sorted(here.sizes) == sorted(there.sizes)
    for before, after in zip(here.released, there.released, strict=True):
        np.testing.assert_array_equal(np.sort(before, axis=0), np.sort(after, axis=0))
