from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedclust.privacy import cuts
from fedclust.privacy.counting import PersonIndex
from fedclust.privacy.cuts import Meetings, Overlaps, candidate_cuts, components, small_cut


def least_cut(weights: np.ndarray) -> int:
    m = len(weights)
    sides = (np.arange(1, 1 << (m - 1))[:, None] >> np.arange(m)) & 1
    return int(((sides @ weights) * (1 - sides)).sum(axis=1).min())


def weight(weights: np.ndarray, side: np.ndarray) -> int:
    return int(weights[np.ix_(side, ~side)].sum())


@pytest.mark.parametrize("m", [2, 5, 10, 11, 12])
def test_a_least_cut_is_among_the_candidates(m: int) -> None:
    rng = np.random.default_rng(m)
    for _ in range(10):
        half = np.triu(rng.integers(0, 9, (m, m)) * (rng.random((m, m)) < 0.5), 1)
        half[np.arange(m - 1), np.arange(1, m)] += 1  # connected
        weights = half + half.T
        sides = list(candidate_cuts(weights))
        assert all(side.any() and not side.all() for side in sides)
        assert min(weight(weights, side) for side in sides) == least_cut(weights)
        if m <= 10:
            assert len({tuple(side) for side in sides}) == 2 ** (m - 1) - 1


def test_components_follow_chains() -> None:
    first, second = np.array([4, 3, 2, 6]), np.array([3, 2, 1, 7])
    assert components(9, first, second).tolist() == [0, 1, 1, 1, 1, 5, 6, 6, 8]
    assert components(3, first[:0], second[:0]).tolist() == [0, 1, 2]


@pytest.mark.parametrize("n_sets", [3, 4_000])
def test_overlaps_are_counted_whether_sets_are_few_or_many(n_sets: int) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, n_sets, 300), rng.integers(0, n_sets, 300)
    shared = Overlaps(a, b)
    pairs = sorted({(int(i), int(j)) for i, j in zip(a, b, strict=True)})
    assert list(zip(shared.first.tolist(), shared.second.tolist(), strict=True)) == pairs
    assert shared.rows.tolist() == [int(((a == i) & (b == j)).sum()) for i, j in pairs]


@pytest.mark.parametrize("limits", [{}, {"_TOGETHER": 0}, {"_MOST_PAIRS": 0}])
def test_what_sets_share_with_many_others_follows_them_as_rows_move(
    limits: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, limit in limits.items():
        monkeypatch.setattr(cuts, name, limit)
    rng = np.random.default_rng(1)
    index = PersonIndex(np.arange(200.0)[:, None])
    earlier = [rng.integers(0, width, 200).astype(np.uint8) for width in (2, 5, 9)]
    now = earlier[1].astype(np.int16)
    now[rng.random(200) < 0.02] = 5
    meetings = Meetings(now, 6, earlier)
    for _ in range(6):
        parted = meetings.parted(4).tolist()
        for number, then in enumerate(earlier):
            shared, known = Overlaps(now, then), meetings.with_one(number)
            assert known.first.tolist() == shared.first.tolist()
            assert known.second.tolist() == shared.second.tolist()
            assert known.rows.tolist() == shared.rows.tolist()
            begin, end = meetings.starts[number : number + 2]
            assert meetings.sizes[begin:end].tolist() == np.bincount(then).tolist()
            across = small_cut(now, then, index, 4, None)
            assert number in parted or not across.size
            assert across.tolist() == small_cut(now, then, index, 4, None, known).tolist()
        rows = rng.choice(200, 3, replace=False)
        before, after = now[rows], rng.integers(0, 6, 3).astype(np.int16)
        now[rows] = after
        meetings.move(rows, before, after)


def persons_in(rows: np.ndarray, persons: np.ndarray | None) -> int:
    return len(rows) if persons is None else len(set(persons[rows].tolist()))


@given(
    a=st.lists(st.integers(0, 3), min_size=12, max_size=24),
    moved=st.lists(st.tuples(st.integers(0, 23), st.integers(0, 3)), max_size=12),
    p=st.integers(2, 5),
    repeated=st.booleans(),
)
def test_finds_a_union_that_is_too_close_exactly_where_there_is_one(
    a: list[int], moved: list[tuple[int, int]], p: int, repeated: bool
) -> None:
    now = np.array(a, dtype=np.int64)
    then = now.copy()
    n = len(now) - len(now) % 2
    now, then = now[:n], then[:n]
    for row, cell in moved:
        # Both rows of a person move together, or cuts of many rows of few persons are rare.
        then[[row % n, (row ^ repeated) % n]] = cell
    persons = np.arange(n) // 2 if repeated else None
    index = PersonIndex(np.arange(float(n))[:, None], persons)
    rows = np.arange(n)
    across = small_cut(now, then, index, p, rows)
    subsets = [set(s) for r in range(5) for s in itertools.combinations(range(4), r)]
    close = False
    for left, right in itertools.product(subsets, subsets):
        inside, outside = np.isin(now, list(left)), np.isin(then, list(right))
        close |= 0 < persons_in(np.flatnonzero(inside != outside), persons) < p
    assert close == bool(across.size)
    if across.size:
        assert persons_in(across, persons) < p


def test_row_numbers_of_a_view_are_those_given() -> None:
    index = PersonIndex(np.arange(30.0)[:, None])
    rows = np.arange(10, 24)
    now = np.repeat([0, 1], 7)
    then = now.copy()
    then[0] = 1
    assert small_cut(now, then, index, 3, rows).tolist() == [0]
