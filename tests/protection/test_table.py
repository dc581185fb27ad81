"""The table of a site: persons, missing values, unions for a larger p, what it costs."""

from __future__ import annotations

import numpy as np
import pytest

from fedclust.protection.columns import LevelColumn, SourceColumn
from fedclust.protection.figures import measure_table
from fedclust.protection.table import (
    TooFewPersons,
    encode_sources,
    form_table,
    group_persons,
    person_values,
    unite_groups,
)


def _numbers(n: int, d: int, seed: int = 0) -> list[SourceColumn]:
    values = np.random.default_rng(seed).normal(size=(n, d))
    return [SourceColumn(f"x{column}", values[:, column]) for column in range(d)]


def test_fewer_than_p_persons_have_no_table() -> None:
    with pytest.raises(TooFewPersons):
        form_table(_numbers(4, 2), 5)


def test_fewer_than_2p_persons_are_one_group() -> None:
    assert form_table(_numbers(9, 2), 5).sizes.tolist() == [9]
    assert len(form_table(_numbers(10, 2), 5).sizes) == 2


def test_columns_of_levels_need_groups_of_2p() -> None:
    sources = [*_numbers(400, 2), SourceColumn("sex", np.arange(400) % 2.0)]

    table = form_table(sources, 5)

    assert table.sizes.min() >= 10
    assert table.sizes.max() < 20


def test_the_table_returns_each_source_column() -> None:
    blood = np.arange(400) % 3
    levels = [SourceColumn(f"blood={level}", (blood == level).astype(float)) for level in range(3)]
    sources = [*_numbers(400, 1), *levels, SourceColumn("ward", blood.astype(float), 3)]

    table = form_table(sources, 5)

    together = sum(table.values(f"blood={level}") for level in range(3))
    np.testing.assert_allclose(together, 1.0)
    shares = np.column_stack([table.values(f"blood={level}") for level in range(3)])
    np.testing.assert_allclose(table.values("ward"), shares)
    means = table.values("x0")
    assert np.average(means, weights=table.sizes) == pytest.approx(
        sources[0].values.mean(), abs=0.05
    )
    with pytest.raises(KeyError):
        table.values("y")


def test_a_person_is_one_point() -> None:
    rows = [
        SourceColumn("age", np.array([60.0, 62.0, 40.0, np.nan])),
        SourceColumn("smoker", np.array([1.0, 1.0, 0.0, 1.0])),
        SourceColumn("ward", np.array([2.0, 2.0, np.nan, np.nan]), 4),
    ]

    age, smoker, ward = person_values(rows, np.array([0, 0, 1, 1]), {"smoker"})

    assert age.values.tolist() == [61.0, 40.0]
    assert smoker.values.tolist() == [1.0, 0.0]
    np.testing.assert_array_equal(ward.values, [2.0, np.nan])


def test_a_rare_pattern_of_missing_values_costs_its_group_only_that_column() -> None:
    sources = _numbers(200, 3)
    lacking = sources[1].values.copy()
    lacking[:2] = np.nan
    sources[1] = SourceColumn("x1", lacking)

    table = form_table(sources, 5)

    lost = np.isnan(table.values("x1"))
    assert 1 <= lost.sum() <= 2
    assert not np.isnan(table.values("x0")).any()


def test_a_common_pattern_of_missing_values_has_groups_of_its_own() -> None:
    sources = _numbers(200, 3)
    lacking = sources[1].values.copy()
    lacking[::3] = np.nan
    sources[1] = SourceColumn("x1", lacking)
    columns = form_table(sources, 5).columns
    groups = group_persons(columns, encode_sources(columns, sources), 5)

    for group in range(int(groups.max()) + 1):
        assert len(set(np.isnan(lacking[groups == group]))) == 1


def test_many_patterns_give_one_table_in_any_order_of_persons() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(2_500, 24))
    values[rng.random(values.shape) < 0.3] = np.nan
    assert len(np.unique(np.isnan(values), axis=0)) > 2_000

    first, second = (
        form_table([SourceColumn(f"x{j}", each) for j, each in enumerate(rows.T)], 5)
        for rows in (values, rng.permutation(values))
    )

    assert first.sizes.min() >= 5
    for one, other in zip(first.released, second.released, strict=True):
        np.testing.assert_array_equal(np.sort(one), np.sort(other))


@pytest.mark.parametrize("p", [7, 20, 60])
def test_a_larger_p_unites_whole_groups(p: int) -> None:
    sources = [*_numbers(300, 3), SourceColumn("sex", np.arange(300) % 2.0)]
    table = form_table(sources, 5)

    united = unite_groups(table, p)

    assert united.sizes.sum() == 300
    # So few persons make too few groups of 2p: these are of p, and tell the commonest level.
    assert united.sizes.min() >= (2 * p if p == 7 else p)
    for column, counts in zip(united.columns, united.released, strict=True):
        if isinstance(column, LevelColumn):
            assert np.all((counts == 0) | (counts >= p))
    for name in ("x0", "x1", "x2"):
        before = np.average(table.values(name), weights=table.sizes)
        after = np.average(united.values(name), weights=united.sizes)
        assert after == pytest.approx(before)


def test_a_union_needs_p_persons() -> None:
    with pytest.raises(TooFewPersons):
        unite_groups(form_table(_numbers(30, 2), 5), 31)


def test_the_figures_compare_records_with_persons() -> None:
    sources = _numbers(1_000, 2)
    alike = SourceColumn("hospital", np.ones(1_000))
    far = SourceColumn("far", np.append(np.arange(999.0), 1e9))
    table = form_table([*sources, alike, far], 5)
    groups = group_persons(table.columns, encode_sources(table.columns, [*sources, alike, far]), 5)

    figures = measure_table(table, [([*sources, alike, far], groups)])

    assert figures is not None
    assert (figures.n_persons, figures.n_groups) == (1_000, len(table.sizes))
    assert figures.one_value["hospital"] == 1.0
    assert figures.one_value["x0"] == 0.0
    assert figures.fenced["far"] == 0.001
    assert figures.distance_sd is not None
    assert 0.0 < figures.distance_sd < 0.5
