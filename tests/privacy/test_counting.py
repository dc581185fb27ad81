from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedclust.privacy import counting
from fedclust.privacy.counting import PersonIndex, distinct_views


def counted(rows: list[int], X: np.ndarray, persons: list[int] | None) -> int:
    if persons is not None:
        return len({persons[i] for i in rows})
    return min(len(rows), 1) if len({tuple(X[i] + 0.0) for i in rows}) <= 1 else len(rows)


@st.composite
def sites(draw: st.DrawFn) -> tuple[np.ndarray, list[int] | None]:
    n, d = draw(st.integers(1, 14)), draw(st.integers(1, 4))
    values = st.sampled_from([0.0, -0.0, 1.0, 2.0, 1e-300])
    X = np.array(draw(st.lists(st.lists(values, min_size=d, max_size=d), min_size=n, max_size=n)))
    persons = draw(st.none() | st.lists(st.integers(0, 5), min_size=n, max_size=n))
    return X, persons


@given(site=sites(), data=st.data(), p=st.integers(1, 6))
def test_counts_and_bounds_agree_with_counting_one_by_one(
    site: tuple[np.ndarray, list[int] | None], data: st.DataObject, p: int
) -> None:
    X, persons = site
    index = PersonIndex(X, None if persons is None else np.array(persons))
    rows = sorted(data.draw(st.sets(st.integers(0, len(X) - 1))))
    mask = np.zeros(len(X), dtype=bool)
    mask[rows] = True
    expected = counted(rows, X, persons)
    assert index.count(mask) == index.count(np.array(rows, dtype=np.intp)) == expected
    assert index.reaches(mask, p) == (expected >= p)
    assert index.allows(mask, p) == (expected == 0 or expected >= p)
    if len(rows) >= index.certain(p):
        assert expected >= p


@given(site=sites(), p=st.integers(1, 6))
def test_one_row_fewer_than_certain_may_not_suffice(
    site: tuple[np.ndarray, list[int] | None], p: int
) -> None:
    X, persons = site
    index = PersonIndex(X, None if persons is None else np.array(persons))
    fewer = index.certain(p) - 1
    if persons is not None and fewer <= len(X):
        by_weight = sorted(set(persons), key=persons.count, reverse=True)[: p - 1]
        rows = [i for i in range(len(X)) if persons[i] in by_weight]
        assert len(rows) == min(fewer, len(X)) or len(by_weight) < p - 1


def test_minus_zero_is_zero_and_column_order_matters() -> None:
    index = PersonIndex(np.array([[0.0, 1.0], [-0.0, 1.0], [1.0, 0.0]]))
    assert index.count(np.array([True, True, False])) == 1
    assert index.count(np.array([True, False, True])) == 2
    assert index.count(np.array([True, True, True])) == 3


def test_identical_rows_are_found_among_many_columns() -> None:
    rng = np.random.default_rng(3)
    X = rng.integers(0, 2, (500, 9)).astype(float)
    X[100:120] = X[7]
    index = PersonIndex(X)
    same = (X[7] == X).all(axis=1)
    assert index.count(same) == 1
    assert index.certain(5) == np.unique(X, axis=0, return_counts=True)[1].max() + 1
    same[np.flatnonzero(~same)[0]] = True
    assert index.count(same) == same.sum()


def test_rows_without_columns_are_identical() -> None:
    assert PersonIndex(np.zeros((4, 0))).n == 4
    assert PersonIndex(np.zeros((4, 0))).count(np.ones(4, dtype=bool)) == 1


def test_no_rows() -> None:
    index = PersonIndex(np.zeros((0, 3)))
    assert index.count(np.zeros(0, dtype=bool)) == 0
    assert index.certain(5) == 5


def test_persons_must_match_the_rows() -> None:
    with pytest.raises(ValueError, match="one person for each row"):
        PersonIndex(np.zeros((3, 1)), np.array([1, 2]))
    with pytest.raises(ValueError, match="two axes"):
        PersonIndex(np.zeros(3))


def test_views_are_distinct_and_leave_out_rare_features() -> None:
    index = PersonIndex(np.arange(40.0).reshape(8, 5))
    observed = np.ones((8, 5), dtype=bool)
    observed[0, 1] = observed[0, 2] = False
    observed[:5, 3] = False
    observed[1, 4] = False
    views, sendable = distinct_views(observed, index, 4)
    assert sendable.tolist() == [True, True, True, False, True]
    assert [view.tolist() for view in views] == [
        observed[:, 1].tolist(),
        observed[:, 4].tolist(),
    ]
    assert distinct_views(None, index, 4)[0] == ()


@pytest.mark.parametrize("table", [0, 1 << 20])
def test_pairs_are_counted_alike_by_tables_and_by_sorting(
    table: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "_TABLE", table)
    monkeypatch.setattr(counting, "_PART", 100)
    rng = np.random.default_rng(0)
    first, second = rng.integers(0, 9, 730).astype(np.uint8), rng.integers(0, 40, 730)

    keys, counts = counting.joined(first, second, 41)

    pairs, expected = np.unique(np.stack([first, second]), axis=1, return_counts=True)
    assert keys.tolist() == (pairs[0].astype(np.int64) * 41 + pairs[1]).tolist()
    assert counts.tolist() == expected.tolist()
    assert counting.tally(second, 41).tolist() == np.bincount(second, minlength=41).tolist()
