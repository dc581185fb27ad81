"""Parts by missing columns, the least size L of their groups, and the points that are grouped."""

from collections.abc import Sequence
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedclust.protection import groups
from fedclust.protection.columns import SourceColumn
from fedclust.protection.groups import embed_persons, embed_presence, find_parts
from support import reference_table as reference
from support.cohorts import Memory, given_groups

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


def _columns(missing: BoolArray) -> list[SourceColumn]:
    values = np.random.default_rng(0).normal(size=missing.shape)
    values[missing] = np.nan
    return [SourceColumn(f"x{place}", each) for place, each in enumerate(values.T)]


def _lacking(n: int, *counts: int) -> BoolArray:
    """Return who lacks which column: the first persons the first one, the last the second."""
    missing = np.zeros((n, len(counts)), np.bool_)
    for place, count in enumerate(counts):
        missing[:count, place] = True
        missing[:, place] = missing[:, place][:: 1 - 2 * (place % 2)]
    return missing


# --- parts ----------------------------------------------------------------------------------------


@st.composite
def missing_values(draw: st.DrawFn) -> tuple[BoolArray, int]:
    """Draw a few patterns of missing columns, some common, and p."""
    p = draw(st.integers(3, 5))
    d = draw(st.integers(1, 5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    patterns = rng.random((draw(st.integers(1, 4)), d)) < 0.4
    sizes = [p, 2 * p - 1, 2 * p, 7 * p, 8 * p - 1, 8 * p, 10 * p]
    counts = draw(st.lists(st.sampled_from(sizes), min_size=len(patterns), max_size=len(patterns)))
    missing = np.repeat(patterns, counts, axis=0)
    few = rng.random(missing.shape) < draw(st.sampled_from([0.0, 0.01, 0.1]))
    return rng.permutation(missing ^ few), p


@given(missing_values())
def test_persons_who_lack_the_same_columns_are_a_part_if_they_are_many(
    case: tuple[BoolArray, int],
) -> None:
    missing, p = case
    n = len(missing)
    expected = reference.find_parts(missing.tolist(), p)

    parts = find_parts(_columns(missing), p, n)

    labels = parts.of(missing)
    found = [np.flatnonzero(labels == part).tolist() for part in np.unique(labels)]
    own = sorted(map(len, expected), reverse=True)
    if len(own) > 1 and own[0] - own[1] < 2 * p:
        # Of two largest parts, either may have taken in the others.
        assert sorted(map(len, found), reverse=True)[2:] == own[2:]
        return
    assert sorted(found) == sorted(sorted(part) for part in expected)
    for part, members in enumerate(found):
        lacking = missing[members].sum(axis=0).tolist()
        least = reference.least_size(len(members), lacking, p) if n >= 2 * p else p
        assert parts.least[part] == least
    others = [part for part in expected if len({tuple(row) for row in missing[part]}) > 1]
    others += [part for part in expected if len(part) < 8 * p]
    if len(others) == 1 and 8 * p > len(others[0]):
        assert parts.least[-1] == parts.least[found.index(others[0])]


def test_newcomers_form_no_parts_and_need_the_others_least_size() -> None:
    memory = Memory(3)
    missing = np.zeros((24 + 20 + 30, 2), np.bool_)
    missing[24:44, 0] = np.arange(20) % 2
    missing[24:44, 1] = ~missing[24:44, 0]
    missing[44:, 0] = np.arange(30) % 2
    sources, ids = _columns(missing), [f"P{i}" for i in range(74)]

    def first(n: int) -> list[SourceColumn]:
        return [SourceColumn(each.name, each.values[:n]) for each in sources]

    memory.update_sources(ids[:44], first(44))
    least = memory.cohort.least
    assert least == reference.least_size(20, [10, 10], 3) > 3

    assert memory.update_sources(ids[: 44 + least - 1], first(44 + least - 1)).groups == 0
    assert memory.update_sources(ids[: 44 + least], first(44 + least)).groups == 1
    assert memory.update_sources(ids, first(74), any_persons=True).waiting == 0
    assert (memory.cohort.sizes[-2:] >= least).all()


# --- the least size of a group --------------------------------------------------------------------


def _least(n: int, p: int, *lacking: int) -> int:
    (least,) = find_parts(_columns(_lacking(n, *lacking)), p, n).least
    return least


@pytest.mark.parametrize(
    ("n", "lacking", "least"),
    [
        (30, [0], 5),
        (30, [2], 5),  # rounded to 0
        (30, [3], 7),  # rounded to 5: P(Bin(6, 25/30) >= 5) is .74, and of 7 .90
        (30, [7], 7),
        (30, [8], 10),
        (30, [15], 14),
        (30, [25], 15),
        (30, [26], 5),  # fewer than p have the column
        (30, [8, 0], 9),
        (30, [8, 26], 10),
        (9, [3], 5),  # fewer than 2p persons
        (10, [3], 14),
    ],
)
def test_least_sizes_by_hand(n: int, lacking: list[int], least: int) -> None:
    assert _least(n, 5, *lacking) == least
    assert reference.least_size(n, lacking, 5) == least or n < 10


@pytest.mark.parametrize("p", [3, 5])
def test_the_least_size_never_shows_that_fewer_than_p_lack_a_value_real_record(p: int) -> None:
    """All states of one and of two columns at small sites."""
    for n in range(2 * p, 8 * p):
        one = [(lacking,) for lacking in range(n + 1)]
        two = [(first, second) for first in range(n + 1) for second in range(first + 1)]
        for states in (one, two if n <= 4 * p else []):
            by_least: dict[int, list[Sequence[int]]] = {}
            for state in states:
                found = _least(n, p, *state)
                assert found == reference.least_size(n, state, p), (n, state)
                by_least.setdefault(found, []).append(state)
            assert not _shown(by_least, p), (n, p)


def _shown(by_least: dict[int, list[Sequence[int]]], p: int) -> list[int]:
    """Return the sizes that show that 1 to p - 1 persons lack a column."""
    return [
        least
        for least, states in by_least.items()
        if any(all(0 < state[place] < p for state in states) for place in range(len(states[0])))
    ]


def test_without_rounding_it_would_show_that() -> None:
    found = 0
    for n in range(10, 40):
        by_least: dict[int, list[Sequence[int]]] = {}
        for lacking in range(n + 1):
            share, size = (n - lacking) / n, 5
            while lacking <= n - 5 and size < 15 and reference.chance_of_p(size, share, 5) < 0.9:
                size += 1
            by_least.setdefault(size, []).append((lacking,))
        found += len(_shown(by_least, 5))
    assert found > 20


def test_a_site_of_fewer_than_2p_persons_has_groups_of_p_for_ever() -> None:
    for n in range(5, 10):
        for lacking in range(n + 1):
            memory = Memory(5)
            ids = [f"P{i}" for i in range(n)]
            memory.update_sources(ids, _columns(_lacking(n, lacking, 0)))
            assert memory.cohort.sizes.tolist() == [n]
            assert memory.cohort.least == 5


@given(st.integers(0, 2**32 - 1))
def test_groups_have_the_least_size_of_their_part_and_less_than_twice_it(seed: int) -> None:
    rng = np.random.default_rng(seed)
    p, n = int(rng.integers(3, 6)), int(rng.integers(10, 120))
    missing = rng.random((n, 4)) < rng.choice([0.0, 0.02, 0.2, 0.5], 4)
    memory, ids = Memory(p), [f"P{i}" for i in range(n)]

    memory.update_sources(ids, _columns(missing))

    groups, cohort = memory.groups_of(ids), memory.cohort
    assert (groups >= 0).all()
    for part in reference.find_parts(missing.tolist(), p):
        lacking = missing[part].sum(axis=0).tolist()
        least = reference.least_size(len(part), lacking, p) if n >= 2 * p else p
        sizes = cohort.sizes[sorted(set(groups[part]))]
        assert sizes.sum() == len(part)
        assert sizes.max() < 2 * least
        assert sizes.min() >= min(least, len(part))


def test_a_very_large_site_has_larger_groups() -> None:
    assert groups.least_for_site(5, 1_000) == 5
    assert groups.least_for_site(5, 8 * groups.MOST_GROUPS + 1) == 9


def test_no_partition_makes_a_group_of_fewer_than_p_persons() -> None:
    memory = Memory(5)
    with (
        given_groups(lambda n: np.arange(n) // 8, 5),
        pytest.raises(AssertionError, match="fewer than p persons"),
    ):
        memory.update_sources([f"P{i}" for i in range(20)], _columns(_lacking(20, 0)))
    assert memory.cohorts == []


# --- distances ------------------------------------------------------------------------------------


@given(st.integers(0, 2**32 - 1), st.integers(3, 6))
def test_values_beyond_the_pth_largest_or_smallest_count_as_that_one(seed: int, p: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2 * p, 80))
    values = rng.normal(size=n)
    values[rng.random(n) < 0.1] = np.nan
    known = np.flatnonzero(~np.isnan(values))
    known = known[np.argsort(values[known])]
    wild = values.copy()
    if len(known) >= 2 * p:
        wild[known[: p - 1]] = -(10.0 ** rng.uniform(1, 12, p - 1))
        wild[known[1 - p :]] = 10.0 ** rng.uniform(1, 12, p - 1)

    tame, there = (embed_persons([SourceColumn("x", each)], p) for each in (values, wild))

    np.testing.assert_array_equal(tame, there)
    assert (there[np.isnan(values)] == 0.0).all(), "a missing value is at the mean"
    if len(known) > 2 * p:
        moved = wild.copy()
        moved[known[p - 1]] -= 1.0
        assert not np.array_equal(embed_persons([SourceColumn("x", moved)], p), there)


def _scattered(n: int) -> list[SourceColumn]:
    """Return columns with so many patterns of missing values that none is a part of its own."""
    rng = np.random.default_rng(n)
    values = np.where(rng.random((n, 6)) < 0.4, np.nan, rng.normal(size=(n, 6)))
    return [SourceColumn(f"scattered{j}", each) for j, each in enumerate(values.T)]


def test_columns_have_variance_1_and_having_a_rare_one_counts() -> None:
    rng = np.random.default_rng(0)
    common, rare, other = rng.normal(size=(3, 200)) * [[5.0], [0.1], [1.0]]
    rare[20:], other[rng.permutation(200)[20:]] = np.nan, np.nan
    levels = rng.integers(0, 3, 200).astype(np.float64)
    sources = [
        SourceColumn("common", common),
        SourceColumn("rare", rare),
        SourceColumn("other", other),
        SourceColumn("levels", levels, 3),
    ]
    (is_rare,) = find_parts([*sources, *_scattered(200)], 5, 200).rare

    assert is_rare.tolist() == [False, True, True, *([False] * 7)]
    points = embed_persons(sources, 5)
    presence = embed_presence([rare, other])

    assert points.shape == (200, 1 + 1 + 1 + 3)
    variances = points.var(axis=0)
    clipped = np.clip(common, *np.sort(common)[[4, -5]])
    np.testing.assert_allclose(points[:, 0], (clipped - clipped.mean()) / clipped.std(), rtol=1e-4)
    assert variances[3:6].sum() == pytest.approx(1.0)
    np.testing.assert_allclose(presence.var(axis=0), (2.0 / np.sqrt(2.0)) ** 2)
    assert len(np.unique(presence[:, 0])) == 2


def test_columns_are_scaled_over_all_parts_and_having_a_value_within_one() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(120, 4))
    values[:40, 0] += 10.0
    values[:40, 1] = np.nan  # a part of its own, of those with a large first value
    values[80:, 2], values[80:, 3] = np.where(
        np.arange(40) % 2, [[1.0], [np.nan]], [[np.nan], [1.0]]
    )
    values[40:80, 3] = np.where(np.arange(40) % 3, np.nan, 1.0)
    seen: list[FloatArray] = []

    def form_groups(points: FloatArray, least: int, ties: Sequence[FloatArray]) -> FloatArray:
        seen.append(points)
        return np.zeros(len(points), np.int64)

    with mock.patch.object(groups, "form_groups", form_groups):
        Memory(3).update_sources(
            [f"P{i}" for i in range(120)],
            [SourceColumn(f"x{j}", each) for j, each in enumerate(values.T)],
        )

    assert len(seen) > 1
    first = np.concatenate([points[:, 0] for points in seen])
    assert first.mean() == pytest.approx(0.0, abs=1e-4)
    low, high = np.sort(values[:, 0])[[2, -3]]
    expected = (high - low) / np.clip(values[:, 0], low, high).std()
    assert np.ptp(first) == pytest.approx(expected, rel=1e-4)
    for points in seen:
        # Indicators follow the columns: they are centred within the part.
        assert np.abs(points[:, 4:].mean(axis=0)).max(initial=0.0) < 1e-12


@pytest.mark.parametrize("n_known", [4, 5, 40, 60, 70, 100, 200])
def test_having_a_value_counts_for_columns_that_p_persons_and_few_have(n_known: int) -> None:
    values = np.full(200, np.nan)
    values[:n_known] = np.arange(n_known)
    sources = [SourceColumn("x", values), *_scattered(200)]

    parts = find_parts(sources, 5, 200)

    (least,) = parts.least
    counts = 5 <= n_known < 0.7 * 5 / least * 200
    assert parts.rare.tolist() == [[counts, *([False] * 6)]]


def test_a_panel_of_few_patients_is_not_lost() -> None:
    rng = np.random.default_rng(1)
    values = rng.normal(size=(300, 10))
    had = rng.permutation(300)[:36]
    for person in set(range(300)) - set(had.tolist()):
        values[person, 8:] = np.nan
    values[rng.random(values.shape) < 0.1] = np.nan
    memory = Memory(5)

    memory.update_sources(
        [f"P{i}" for i in range(300)], [SourceColumn(f"x{j}", v) for j, v in enumerate(values.T)]
    )

    table = memory.cohort.table(["x8", "x9"])
    for name in ("x8", "x9"):
        releasing = ~np.isnan(table.values(name))
        assert table.sizes[releasing].sum() >= 24
