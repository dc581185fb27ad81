"""The figures that a site sees of its own table, against plain computations over all persons."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedclust.protection import figures
from fedclust.protection.columns import LevelColumn, NumericColumn, SourceColumn
from fedclust.protection.figures import TableFigures, measure_table
from fedclust.protection.table import (
    ProtectedTable,
    encode_sources,
    form_table,
    group_persons,
)
from protection.drawn_sites import sites


def _formed(sources: list[SourceColumn], p: int) -> tuple[ProtectedTable, NDArray[np.int64]]:
    table = form_table(sources, p)
    return table, group_persons(table.columns, encode_sources(table.columns, sources), p)


def _expected(
    table: ProtectedTable, sources: list[SourceColumn], groups: NDArray[np.int64]
) -> TableFigures:
    """Compute the figures person by person."""
    one_value, fenced, unreleased = {}, {}, {}
    raw = {each.name: each.values for each in sources}
    squares = []
    for column, values in zip(table.columns, encode_sources(table.columns, sources), strict=True):
        members = [values[groups == group] for group in groups]
        alike = np.mean([len(set(own.tolist())) == 1 and own[0] == own[0] for own in members])
        lacks = np.mean([bool(np.isnan(own).any()) for own in members])
        names = column.names if isinstance(column, LevelColumn) else (column.name,)
        one_value |= dict.fromkeys(names, alike)
        unreleased |= dict.fromkeys(names, lacks)
        if isinstance(column, NumericColumn):
            own = raw[column.name]
            fenced[column.name] = np.mean((own < column.lower) | (own > column.upper))
            known = values[~np.isnan(values)]
            if len(known) and known.std() > 1e-9 * np.abs(known).max():
                means = np.array([np.nanmean([*each, np.nan]) for each in members])
                squares.append(np.nan_to_num((values - means) / known.std()) ** 2)
            else:
                squares.append(np.zeros(len(values)))
    distance = float(np.median(np.sqrt(np.mean(squares, axis=0)))) if squares else None
    sizes = (int(table.sizes.min()), int(table.sizes.max()))
    return TableFigures(
        len(groups), len(table.sizes), sizes, distance, one_value, fenced, unreleased
    )


@pytest.mark.filterwarnings("ignore:Mean of empty slice")
@given(sites(), st.data())
def test_the_figures_are_those_of_all_persons_in_whatever_blocks(
    site: tuple[list[SourceColumn], int], data: st.DataObject
) -> None:
    sources, p = site
    table, groups = _formed(sources, p)
    n = len(groups)
    cuts = sorted(data.draw(st.sets(st.integers(1, n - 1), max_size=4)))
    # Known persons of later files come in another order: groups cross blocks.
    order = np.random.default_rng(n).permutation(n)
    blocks = [
        (
            [SourceColumn(each.name, each.values[rows], each.n_levels) for each in sources],
            groups[rows],
        )
        for rows in np.split(order, cuts)
    ]

    found, expected = measure_table(table, blocks), _expected(table, sources, groups)

    assert found is not None
    assert (found.n_persons, found.n_groups) == (expected.n_persons, expected.n_groups)
    assert found.group_sizes == expected.group_sizes
    for name in ("one_value", "fenced", "unreleased"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name)), name
    assert found.distance_sd == pytest.approx(expected.distance_sd, abs=1e-6)


def test_the_distance_at_a_large_site_is_measured_on_a_sample(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(0)
    # Sorted: a sample of the first persons, or of the last, would be far off.
    values = np.sort(rng.exponential(size=9_000))
    sources = [SourceColumn("x", values), SourceColumn("y", rng.normal(size=9_000))]
    table, groups = _formed(sources, 5)
    blocks = [
        ([SourceColumn(each.name, each.values[part]) for each in sources], groups[part])
        for part in np.array_split(np.arange(9_000), 7)
    ]
    whole = measure_table(table, blocks)
    monkeypatch.setattr(figures, "_SAMPLE", 1_000)
    some = measure_table(table, blocks)

    assert whole is not None
    assert some is not None
    assert some.distance_sd != whole.distance_sd
    assert some.distance_sd == pytest.approx(whole.distance_sd, rel=0.1)
    assert (some.one_value, some.fenced) == (whole.one_value, whole.fenced)


def test_a_table_without_persons_has_no_figures() -> None:
    table, groups = _formed([SourceColumn("x", np.arange(20.0))], 5)
    assert measure_table(table, [([SourceColumn("x", np.zeros(0))], groups[:0])]) is None
