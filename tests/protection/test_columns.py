"""Grids, fences and levels are read from the first persons and hold for all later ones."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from fedclust.protection.columns import (
    LevelColumn,
    NumericColumn,
    SourceColumn,
    describe_columns,
    encode_levels,
    round_means,
)
from fedclust.protection.table import form_table

FloatArray = NDArray[np.float64]


def _numeric(values: FloatArray, *, fences: bool = True) -> NumericColumn:
    (column,) = describe_columns([SourceColumn("x", values)], 5, fences=fences)
    assert isinstance(column, NumericColumn)
    return column


@pytest.mark.parametrize(
    ("values", "step", "origin"),
    [
        (np.arange(20.0), 1.0, 0.0),
        (np.arange(20.0) / 4.0, 0.25, 0.0),
        (5.0 * np.arange(8.0) + 2.0, 5.0, 2.0),
        (36.0 + np.arange(5.0) / 10.0, 0.1, 0.0),
        (np.full(9, 7.0), 1.0, 0.0),
        (np.full(9, 0.25), 0.01, 0.0),
    ],
    ids=["whole", "quarters", "fives", "tenths", "one whole number", "one decimal number"],
)
def test_the_step_is_at_least_the_grid(values: FloatArray, step: float, origin: float) -> None:
    column = _numeric(values)

    assert column.step == pytest.approx(step)
    assert column.origin % column.step == pytest.approx(origin % column.step, abs=1e-9)


@pytest.mark.parametrize("scale", [1e-6, 0.3, 1.0, 7.0, 1e6])
def test_the_step_is_at_most_a_tenth_of_the_spread(scale: float) -> None:
    values = scale * np.random.default_rng(0).normal(size=500)

    step = _numeric(values).step / values.std()

    assert 0.04 <= step <= 0.1


def test_fences_are_three_interquartile_ranges_from_the_quartiles() -> None:
    values = np.append(np.arange(100.0), 1e6)

    assert _numeric(values).upper == 75.0 + 3.0 * 50.0
    assert _numeric(values).lower == 25.0 - 3.0 * 50.0
    assert _numeric(values, fences=False).upper == np.inf
    mostly_alike = np.append(np.zeros(100), [1.0, 2.0])
    assert _numeric(mostly_alike).upper == np.inf


def test_fences_keep_a_minority_that_is_no_lone_extreme() -> None:
    rng = np.random.default_rng(0)
    places = np.repeat([0.0, 20.0, 40.0], [80, 10, 10])
    values = places + rng.normal(size=100)

    column = _numeric(np.append(values, 1e6))

    assert values.max() < column.upper < 100.0
    assert _numeric(np.append(np.arange(100.0), np.full(9, 1e6))).upper == 81.0 + 3.0 * 54.0


def test_a_typing_error_does_not_make_a_fine_step() -> None:
    column = _numeric(np.append(np.arange(100) % 2.0, 0.5))

    assert column.values == (0.0, 1.0)
    assert round_means(column, np.array([0.0, 0.4, 0.5, 0.6, 1.0, 7.0])).tolist() == [
        *(0.0, 0.0, 0.0),
        *(1.0, 1.0, 1.0),
    ]


def test_few_values_without_a_grid_are_what_a_group_releases() -> None:
    doses = np.array([0.0, 2.5, 10.0, 40.0])
    column = _numeric(np.repeat(doses, 20))

    assert column.values == tuple(doses)
    means = np.array([0.0, 1.0, 6.0, 6.5, 24.9, 25.1, 40.0])
    assert round_means(column, means).tolist() == [0.0, 0.0, 2.5, 10.0, 10.0, 40.0, 40.0]
    assert _numeric(np.repeat(doses, 4)).values == (), "none is common"


def test_two_numbers_are_levels_whatever_they_are() -> None:
    (column,) = describe_columns([SourceColumn("sex", np.array([2.0, 1.0, 2.0, np.nan]))], 5)

    assert column == LevelColumn(("sex",), 2, ((1.0, 2.0),))


def test_columns_that_are_never_both_yes_are_one_column() -> None:
    blood = np.array([0, 1, 2, 3, 0, 1, 2, 3])
    sources = [SourceColumn(f"blood={level}", (blood == level).astype(float)) for level in range(4)]

    (column,) = describe_columns(sources, 5)

    assert isinstance(column, LevelColumn)
    assert column.names == tuple(source.name for source in sources)
    assert column.n_levels == 5
    codes = encode_levels(column, [source.values for source in sources])
    assert codes.tolist() == [1, 2, 3, 4, 1, 2, 3, 4]


def test_nested_columns_are_one_ordinal_column() -> None:
    age = np.array([50.0, 66.0, 71.0, 76.0, 60.0, 69.0, 80.0, 90.0, 64.0])
    cuts = (70.0, 65.0, 75.0)
    sources = [SourceColumn(f">={cut:g}", (age >= cut).astype(float)) for cut in cuts]

    (column,) = describe_columns(sources, 5)

    assert isinstance(column, LevelColumn)
    assert column.n_levels == 4
    values = {source.name: source.values for source in sources}
    codes = encode_levels(column, [values[name] for name in column.names])
    assert codes.tolist() == [0, 1, 2, 3, 0, 1, 3, 3, 0]


def test_columns_that_nobody_can_have_both_are_not_joined() -> None:
    rng = np.random.default_rng(0)
    died = np.repeat([1.0, 0.0], [236, 764])
    readmitted = np.where(died == 1.0, np.nan, rng.integers(0, 2, 1_000))
    male = rng.permutation(died)
    pregnant = np.where(male == 1.0, np.nan, rng.integers(0, 2, 1_000))
    values = {"died": died, "readmitted": readmitted, "male": male, "pregnant": pregnant}

    table = form_table([SourceColumn(name, each) for name, each in values.items()], 5)

    for name in ("died", "male"):
        released = table.values(name)
        assert not np.isnan(released).any()
        assert table.sizes @ released == pytest.approx(236)


def test_a_person_who_fits_no_level_has_none() -> None:
    first = np.array([1.0, 0.0, 0.0, 1.0])
    second = np.array([0.0, 1.0, 0.0, 0.0])
    (column,) = describe_columns([SourceColumn("a", first), SourceColumn("b", second)], 5)
    assert isinstance(column, LevelColumn)

    codes = encode_levels(column, [np.array([1.0, 1.0, np.nan]), np.array([1.0, 0.0, 0.0])])

    np.testing.assert_array_equal(codes, [np.nan, 1.0, np.nan])


def test_columns_that_go_together_freely_stay_apart() -> None:
    first = np.array([0.0, 0.0, 1.0, 1.0])
    second = np.array([0.0, 1.0, 0.0, 1.0])

    columns = describe_columns([SourceColumn("a", first), SourceColumn("b", second)], 5)

    assert len(columns) == 2
