"""The table of a site: its groups, which of them are near, and the share of variance within."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedclust.protection import table as table_module
from fedclust.protection.columns import SourceColumn, TableColumn
from fedclust.protection.table import (
    ProtectedTable,
    TooFewPersons,
    find_neighbours,
    form_table,
    within_shares,
)
from support import reference_table as reference

FloatArray = NDArray[np.float64]
NAN = np.nan


def _numbers(n: int, d: int, seed: int = 0) -> list[SourceColumn]:
    values = np.random.default_rng(seed).normal(size=(n, d))
    return [SourceColumn(f"x{column}", values[:, column]) for column in range(d)]


def test_fewer_than_p_persons_have_no_table() -> None:
    with pytest.raises(TooFewPersons):
        form_table(_numbers(4, 2), 5)


def test_fewer_than_2p_persons_are_one_group() -> None:
    assert form_table(_numbers(9, 2), 5).sizes.tolist() == [9]
    assert len(form_table(_numbers(10, 2), 5).sizes) == 2


# --- neighbours -----------------------------------------------------------------------------------


def _table(records: FloatArray, sizes: NDArray[np.int64] | None = None) -> ProtectedTable:
    columns = tuple(TableColumn(f"x{j}", step=0.001) for j in range(records.shape[1]))
    released = tuple(np.ascontiguousarray(each) for each in records.T)
    sizes = np.full(len(records), 5) if sizes is None else sizes
    return ProtectedTable(columns, sizes, released, find_neighbours(columns, released, sizes))


def test_neighbours_are_the_nearest_other_groups_in_units_of_spread() -> None:
    rng = np.random.default_rng(0)
    records = rng.normal(size=(60, 3)) * [1.0, 1e3, 1e-3]
    scaled = records / records.std(axis=0)
    gaps = ((scaled[:, None] - scaled) ** 2).sum(axis=2)
    np.fill_diagonal(gaps, np.inf)

    neighbours = _table(records).neighbours

    assert sorted(neighbours[:, 0]) == list(range(60))
    for group, nearest in neighbours:
        # Points are rounded to integers.
        assert gaps[group, nearest] <= gaps[group].min() + 1e-3


def test_a_missing_record_is_at_the_mean_and_levels_are_apart() -> None:
    columns = (TableColumn("x", step=0.1), TableColumn("ward", 3, order=(0, 1, 2)))
    released = (np.array([0.0, 0.1, 10.0, NAN, 5.1]), np.array([0.0, 1.0, 1.0, 2.0, 2.0]))

    neighbours = dict(find_neighbours(columns, released, np.full(5, 5)).tolist())

    # 0 is nearer to 1 in x than anything else is; 3 has no x, and the ward of 4.
    assert neighbours[3] == 4
    assert neighbours[4] == 3


@pytest.mark.parametrize("m", [0, 1])
def test_lone_groups_have_no_neighbour(m: int) -> None:
    table = _table(np.ones((m, 2)))

    assert table.neighbours.shape == (0, 2)
    assert within_shares(np.ones((m, 2)), table.sizes, table.neighbours).tolist() == [0.05, 0.05]


def test_large_tables_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_module, "_SAMPLE", 100)
    records = np.random.default_rng(0).normal(size=(1_000, 2))

    neighbours = _table(records).neighbours

    assert 50 <= len(neighbours) <= 100
    assert len(np.unique(neighbours[:, 0])) == len(neighbours)
    assert (neighbours[:, 0] != neighbours[:, 1]).all()


# --- variance within groups -----------------------------------------------------------------------


@given(st.integers(0, 2**32 - 1))
def test_shares_are_those_of_plain_loops(seed: int) -> None:
    rng = np.random.default_rng(seed)
    m, d = int(rng.integers(2, 20)), int(rng.integers(1, 4))
    records = np.round(rng.normal(size=(m, d)), 1) * 10.0 ** rng.integers(-6, 7, d)
    records[rng.random((m, d)) < rng.choice([0.0, 0.3, 0.9])] = NAN
    sizes = rng.integers(5, 15, m)
    neighbours = rng.permutation([(a, int((a + rng.integers(1, m)) % m)) for a in range(m)])

    shares = within_shares(records, sizes, neighbours)

    assert ((shares >= 0.05) & (shares <= 0.8)).all()
    for column in range(d):
        expected = reference.within_share(
            records[:, column].tolist(), sizes.tolist(), neighbours.tolist()
        )
        assert shares[column] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("records", "share"),
    [
        ([0.0, 0.0, 10.0, 10.0], 0.05),  # neighbours are equal
        ([0.0, 10.0, 0.0, 10.0], 0.8),  # half of 100 over 25 is 2
        ([0.0, 4.0, 10.0, 14.0], 0.3),  # half of 16 over 29 is .28
        ([7.0, 7.0, 7.0, 7.0], 0.05),
        ([7.0, NAN, NAN, NAN], 0.05),
        ([NAN, NAN, NAN, NAN], 0.05),
        ([0.0, 4.0, 10.0, NAN], 0.45),  # half of 16 over 16.9 is .47
    ],
)
def test_shares_by_hand(records: list[float], share: float) -> None:
    values = np.array(records)[:, None]
    neighbours = np.array([[0, 1], [1, 0], [2, 3], [3, 2]])

    assert within_shares(values, np.full(4, 5), neighbours).tolist() == [share]
