"""Every record is one that all persons of its group could have had.

Fix groups, steps, fences and levels, and replace every person by the group's record (where a group
releases counts, by persons who have these counts): the table must come out unchanged. So whatever
is certain about a released table also holds in a world of identical persons.
"""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedclust.protection.columns import LevelColumn, NumericColumn, Source, TableColumn
from fedclust.protection.table import (
    ProtectedTable,
    encode_sources,
    form_table,
    group_persons,
    release,
)

FloatArray = NDArray[np.float64]
MAKERS = ("whole", "decimals", "continuous", "skewed", "constant", "yes-no", "codes", "levels")


@st.composite
def sites(draw: st.DrawFn) -> tuple[list[Source], int]:
    """Draw a site's columns and its p."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    p = draw(st.integers(3, 6))
    n = draw(st.integers(p, 90))
    names = draw(st.lists(st.sampled_from(MAKERS), min_size=1, max_size=6))
    missing = draw(st.sampled_from((0.0, 0.0, 0.02, 0.3)))
    sources = []
    for place, kind in enumerate(names):
        values = _values(kind, n, rng)
        values[rng.random(n) < missing] = np.nan
        sources.append(Source(f"{kind}-{place}", values, 4 if kind == "levels" else None))
    if "yes-no" in names and draw(st.booleans()):
        first = sources[names.index("yes-no")].values
        sources.append(Source("nested", np.where(rng.random(n) < 0.5, first, 0.0 * first)))
        sources.append(Source("exclusive", np.where(rng.random(n) < 0.5, 1.0 - first, 0.0 * first)))
    return sources, p


def _values(kind: str, n: int, rng: np.random.Generator) -> FloatArray:
    match kind:
        case "whole":
            return rng.integers(0, 7, n).astype(np.float64)
        case "decimals":
            return np.round(rng.normal(37.0, 1.0, n), 1)
        case "continuous":
            return rng.normal(0.0, 10.0 ** rng.integers(-6, 7), n) + rng.choice([0.0, 1e6])
        case "skewed":
            return np.exp(rng.normal(0.0, 3.0, n))
        case "constant":
            return np.full(n, 0.1)
        case "yes-no":
            return (rng.random(n) < rng.choice([0.02, 0.3, 0.5])).astype(np.float64)
        case "codes":
            return rng.choice([1.0, 2.0], n)
        case _:
            return rng.integers(0, 4, n).astype(np.float64)


def alike_persons(table: ProtectedTable, groups: NDArray[np.int64]) -> list[Source]:
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
    return [Source(name, values) for name, values in found.items()]


@given(sites())
def test_a_table_of_its_own_records_is_itself(site: tuple[list[Source], int]) -> None:
    sources, p = site
    table = form_table(sources, p)
    groups = group_persons(table.columns, encode_sources(table.columns, sources), p)

    again = release(table.columns, alike_persons(table, groups), groups, p)

    for before, after in zip(table.released, again.released, strict=True):
        np.testing.assert_array_equal(before, after)


@given(sites())
def test_every_count_and_group_is_of_at_least_p_persons(site: tuple[list[Source], int]) -> None:
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
    told = released.sum(axis=1)
    assert np.all((told == 0) | (told == sizes)), column
    assert np.all((released > 0).sum(axis=1)[sizes < 2 * p] <= 1), column


@given(sites())
def test_the_order_of_persons_does_not_matter(site: tuple[list[Source], int]) -> None:
    sources, p = site
    n = len(sources[0].values)
    order = np.random.default_rng(n).permutation(n)
    shuffled = [Source(each.name, each.values[order], each.n_levels) for each in sources]

    here, there = form_table(sources, p), form_table(shuffled, p)

    assert here.columns == there.columns
    assert sorted(here.sizes) == sorted(there.sizes)
    for before, after in zip(here.released, there.released, strict=True):
        np.testing.assert_array_equal(np.sort(before, axis=0), np.sort(after, axis=0))
