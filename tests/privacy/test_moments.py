from __future__ import annotations

import itertools
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedclust.privacy.counting import PersonIndex
from fedclust.privacy.moments import (
    BLOCK_ROWS,
    CellMoments,
    FeatureMoments,
    cell_costs,
    cell_moments,
    merge_cells,
    merge_features,
    round_feature_prevalence,
    round_prevalence,
    total_moments,
)
from fedclust.privacy.shares import Shares


def exact(rows: np.ndarray) -> tuple[list[float], list[float]]:
    """Return means and M2 of rows in rational arithmetic."""
    columns = [[Fraction(float(x)) for x in column] for column in rows.T]
    means = [sum(column) / len(column) for column in columns]
    squares = [
        sum((x - mean) ** 2 for x in column) for column, mean in zip(columns, means, strict=True)
    ]
    return [float(m) for m in means], [float(s) for s in squares]


@pytest.mark.parametrize("offset", [0.0, 1e8])
def test_cells_agree_with_rational_arithmetic(offset: float) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(BLOCK_ROWS + 300, 3)) + offset
    labels = rng.integers(-1, 4, len(X))
    labels[labels == 2] = 1
    moments = cell_moments(X, labels, 4)
    for cell in (0, 1, 3):
        means, m2 = exact(X[labels == cell])
        assert moments.counts[cell] == (labels == cell).sum()
        np.testing.assert_allclose(moments.means[cell], means, rtol=4e-15, atol=1e-15)
        # Rounding of the offset itself: 1e8 has a unit in the last place of 1.5e-8.
        np.testing.assert_allclose(moments.m2[cell], m2, rtol=1e-12 if offset == 0 else 1e-7)
    assert moments.counts[2] == 0
    assert not moments.means[2].any()
    assert not moments.m2[2].any()


def test_a_large_offset_costs_the_spread_of_every_block_no_digits() -> None:
    """Raw sums of squares are wrong by percents here."""
    rng = np.random.default_rng(1)
    # Multiples of 1/8 are exact at 1e8, so that both must agree.
    X = np.round(rng.normal(size=(3 * BLOCK_ROWS, 2)) * 8) / 8
    labels = rng.integers(0, 3, len(X))
    near, far = cell_moments(X, labels, 3), cell_moments(X + 1e8, labels, 3)
    np.testing.assert_allclose(far.m2, near.m2, rtol=1e-9)
    total = total_moments(X + 1e8)
    np.testing.assert_allclose(total.m2, total_moments(X).m2, rtol=1e-9)
    np.testing.assert_allclose(total.means - 1e8, X.mean(axis=0), atol=2e-8)


def test_a_mapped_file_gives_the_same_bits(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    X = rng.normal(size=(2 * BLOCK_ROWS + 17, 5))
    labels = rng.integers(-1, 3, len(X))
    np.save(tmp_path / "rows.npy", X)
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    here, there = cell_moments(X, labels, 3), cell_moments(mapped, labels, 3)
    assert here.means.tobytes() == there.means.tobytes()
    assert here.m2.tobytes() == there.m2.tobytes()
    assert total_moments(X).m2.tobytes() == total_moments(mapped).m2.tobytes()


def test_blocks_merged_by_hand_give_the_same_bits() -> None:
    rng = np.random.default_rng(3)
    X = rng.normal(size=(BLOCK_ROWS + 100, 2))
    labels = rng.integers(0, 3, len(X))
    first = cell_moments(X[:BLOCK_ROWS], labels[:BLOCK_ROWS], 3)
    second = cell_moments(X[BLOCK_ROWS:], labels[BLOCK_ROWS:], 3)
    merged, whole = merge_cells(first, second), cell_moments(X, labels, 3)
    assert merged.m2.tobytes() == whole.m2.tobytes()
    parts = merge_features(total_moments(X[:BLOCK_ROWS]), total_moments(X[BLOCK_ROWS:]))
    assert parts.means.tobytes() == total_moments(X).means.tobytes()


@given(
    values=st.lists(st.integers(-50, 50), min_size=2, max_size=30),
    at=st.integers(0, 30),
)
def test_merging_is_as_good_as_adding_up_at_once(values: list[int], at: int) -> None:
    X = np.array(values, dtype=float)[:, None]
    at = min(at, len(X))
    merged = merge_features(total_moments(X[:at]), total_moments(X[at:]))
    means, m2 = exact(X)
    assert merged.counts[0] == len(values)
    assert merged.means[0] == pytest.approx(means[0], abs=1e-12)
    assert merged.m2[0] == pytest.approx(m2[0], abs=1e-9)


def test_totals_look_at_observed_values_only() -> None:
    X = np.array([[1.0, np.nan], [3.0, 5.0], [np.nan, 7.0], [8.0, np.nan]])
    moments = total_moments(X, ~np.isnan(X))
    assert moments.counts.tolist() == [3, 2]
    np.testing.assert_allclose(moments.means, [4.0, 6.0])
    np.testing.assert_allclose(moments.m2, [26.0, 2.0])
    nothing = total_moments(X, np.zeros_like(X, dtype=bool))
    assert nothing.counts.tolist() == [0, 0]
    assert nothing.means.tolist() == nothing.m2.tolist() == [0.0, 0.0]


def test_no_rows_and_no_cells() -> None:
    assert cell_moments(np.zeros((0, 2)), np.zeros(0, dtype=np.int64), 3).counts.tolist() == [0] * 3
    assert cell_moments(np.ones((4, 2)), np.full(4, -1), 0).means.shape == (0, 2)
    assert cell_moments(np.ones((4, 2)), np.full(4, -1), 2).counts.tolist() == [0, 0]


def test_costs_from_moments_are_the_costs_of_the_rows() -> None:
    rng = np.random.default_rng(4)
    X, labels = rng.normal(size=(60, 3)) + 5, rng.integers(0, 2, 60)
    centroids = rng.normal(size=(2, 3)) + 5
    costs = cell_costs(cell_moments(X, labels, 2), centroids)
    direct = [((X[labels == k] - centroids[k]) ** 2).sum() for k in range(2)]
    np.testing.assert_allclose(costs, direct, rtol=1e-12)


# --- prevalences ----------------------------------------------------------------------------------


def shares(
    values: np.ndarray,
    labels: np.ndarray,
    p: int,
    *,
    persons: np.ndarray | None = None,
    center: float = 0.0,
    scale: float = 1.0,
    observed: np.ndarray | None = None,
) -> CellMoments:
    """Return rounded moments of one yes/no column beside one that tells all rows apart."""
    X = np.column_stack([(values - center) / scale, np.arange(len(values), dtype=float)])
    seen = None if observed is None else np.column_stack([observed, np.ones_like(observed)])
    n_cells = int(labels.max()) + 1
    space = {"center": np.array([center, 0.0]), "scale": np.array([scale, 1.0])}
    yes_no = Shares(
        X, PersonIndex(X, persons), p, columns=np.array([True, False]), observed=seen, **space
    )
    rounded = yes_no.spread(yes_no.to_round(labels, n_cells))
    return round_prevalence(cell_moments(X, labels, n_cells), rounded, p, **space)


@given(
    positives=st.integers(0, 30),
    negatives=st.integers(0, 30),
    p=st.integers(2, 7),
    scale=st.sampled_from([1.0, 0.25]),
)
def test_a_prevalence_rests_on_p_persons_or_is_rounded(
    positives: int, negatives: int, p: int, scale: float
) -> None:
    n = positives + negatives
    if n < p:
        return
    center = 0.5
    values = np.repeat([1.0, 0.0], [positives, negatives])
    moments = shares(values, np.zeros(n, dtype=np.int64), p, center=center, scale=scale)
    mean = moments.means[0, 0] * scale + center
    m2 = moments.m2[0, 0] * scale**2
    if all(side == 0 or side >= p for side in (positives, negatives)):
        assert mean == pytest.approx(positives / n)
        assert m2 == pytest.approx(positives * negatives / n, abs=1e-9)
        return
    steps = mean * n / p
    assert mean == pytest.approx(1.0) or steps == pytest.approx(round(steps), abs=1e-9)
    assert 0.0 <= mean <= 1.0 + 1e-12
    assert abs(mean - positives / n) <= p / (2 * n) + 1e-12
    assert m2 == pytest.approx(n * mean * (1 - mean), abs=1e-9)
    # What is next to it is left alone.
    assert moments.means[0, 1] == pytest.approx((n - 1) / 2)


def test_what_is_rounded_away_is_in_no_number_that_follows() -> None:
    """One positive in twelve and two of them: the same mean, M2 and cost."""
    labels = np.zeros(12, dtype=np.int64)
    one, two = np.zeros(12), np.zeros(12)
    one[3], two[[3, 8]] = 1.0, 1.0
    a, b = shares(one, labels, 5), shares(two, labels, 5)
    assert a.means[0, 0] == b.means[0, 0] == 0.0
    assert a.m2[0, 0] == b.m2[0, 0] == 0.0
    centroids = np.array([[0.3, 5.5]])
    assert cell_costs(a, centroids) == cell_costs(b, centroids)
    assert a.sums.tobytes() == b.sums.tobytes()


def test_prevalence_counts_persons_not_rows() -> None:
    values = np.repeat([1.0, 0.0], [6, 18])
    labels = np.zeros(24, dtype=np.int64)
    persons = np.concatenate([[0, 0, 0, 1, 1, 1], np.arange(2, 20)])
    assert shares(values, labels, 5).means[0, 0] == 0.25
    rounded = shares(values, labels, 5, persons=persons).means[0, 0]
    assert rounded == pytest.approx(5 / 24)


def test_prevalence_is_looked_at_in_each_cell() -> None:
    values = np.array([1.0] * 6 + [0.0] * 6 + [1.0] * 1 + [0.0] * 9 + [1.0] * 5)
    labels = np.repeat([0, 1, -1], [12, 10, 5])
    moments = shares(values, labels, 5)
    assert moments.means[:, 0].tolist() == [0.5, 0.0]


def test_totals_minus_exact_cells_give_no_small_prevalence_back() -> None:
    """Cell 1 has one positive, and no rest hides it: the smaller exact cell is rounded too."""
    values = np.array([1.0] * 6 + [0.0] * 6 + [1.0] * 1 + [0.0] * 9 + [1.0] * 9 + [0.0] * 9)
    labels = np.repeat([0, 1, 2], [12, 10, 18])
    moments = shares(values, labels, 5)
    assert moments.means[:, 0].tolist() == [pytest.approx(5 / 12), 0.0, 0.5]


@given(
    p=st.integers(2, 5),
    cells=st.lists(st.tuples(st.integers(1, 14), st.integers(1, 14)), min_size=1, max_size=5),
    rest=st.tuples(st.integers(0, 14), st.integers(0, 14)),
)
def test_what_totals_leave_over_is_none_or_enough(
    p: int, cells: list[tuple[int, int]], rest: tuple[int, int]
) -> None:
    # A multiple of p would be rounded to itself, and could not be told from an exact one.
    cells = [(positives + (positives % p == 0), negatives) for positives, negatives in cells]
    groups = [*cells, rest]
    labels = np.repeat([*range(len(cells)), -1], [sum(group) for group in groups])
    values = np.concatenate([np.repeat([1.0, 0.0], group) for group in groups])
    moments = shares(values, labels, p)
    shown = np.array([positives / (positives + negatives) for positives, negatives in cells])
    exact = np.abs(moments.means[:, 0] - shown) < 1e-12
    left = np.array([rest] + [cell for cell, told in zip(cells, exact, strict=True) if not told])
    assert not exact.any() or all(n == 0 or n >= p for n in left.sum(axis=0))
    assert all(min(cell) >= p for cell, told in zip(cells, exact, strict=True) if told)


def test_imputed_values_count_for_neither_side() -> None:
    """Twelve observed negatives, one observed positive, seven imputed at one half."""
    values = np.concatenate([np.zeros(12), [1.0], np.full(7, 0.6)])
    observed = np.repeat([True, False], [13, 7])
    labels = np.zeros(20, dtype=np.int64)
    mean = shares(values, labels, 5, observed=observed).means[0, 0]
    assert mean == pytest.approx(0.25)
    enough = np.concatenate([np.zeros(7), np.ones(6), np.full(7, 0.6)])
    exact_mean = shares(enough, labels, 5, observed=observed).means[0, 0]
    assert exact_mean == pytest.approx(enough.mean())


def test_totals_are_rounded_alike() -> None:
    values = np.zeros((40, 2))
    values[0, 0] = 1.0
    values[:10, 1] = 1.0
    X = np.column_stack([values, np.arange(40.0)])
    index = PersonIndex(X)
    columns = np.array([True, True, False])
    moments = round_feature_prevalence(
        total_moments(X), X, index, 5, columns=columns, center=np.zeros(3), scale=np.ones(3)
    )
    assert moments.means.tolist() == [0.0, 0.25, 19.5]
    assert moments.m2[0] == 0.0
    nothing = FeatureMoments(np.zeros(3, dtype=np.int64), np.zeros(3), np.zeros(3))
    untouched = round_feature_prevalence(
        nothing, X, index, 5, columns=columns, center=np.zeros(3), scale=np.ones(3)
    )
    assert untouched.means.tolist() == [0.0, 0.0, 0.0]


# --- Levels ---------------------------------------------------------------------------------------


def shown(counts: Sequence[int], p: int) -> tuple[int, ...]:
    """Return how many rows of a cell seem to have each level, its shares rounded."""
    n, d = sum(counts), len(counts)
    moments = cell_moments(np.eye(d)[np.repeat(np.arange(d), counts)], np.zeros(n, int), 1)
    space = {"center": np.full(d, 0.3), "scale": np.full(d, 0.7)}
    scaled = CellMoments(moments.counts, (moments.means - 0.3) / 0.7, moments.m2 / 0.49)
    flags = np.ones((1, d), dtype=bool)
    kept = round_prevalence(scaled, flags, p, blocks=[np.arange(d)], **space)
    shares = kept.means[0] * 0.7 + 0.3
    np.testing.assert_allclose(kept.m2[0] * 0.49, n * shares * (1 - shares), atol=1e-9)
    seem = np.round(shares * n)
    np.testing.assert_allclose(shares * n, seem, atol=1e-9)
    return tuple(int(count) for count in seem)


@given(
    counts=st.lists(st.integers(0, 40), min_size=2, max_size=6).filter(lambda c: sum(c) >= 7),
    p=st.integers(2, 7),
)
def test_rounded_levels_could_be_exact_ones(counts: list[int], p: int) -> None:
    seem = shown(counts, p)
    assert sum(seem) == sum(counts)
    assert all(count == 0 or count >= p for count in seem)
    assert max(abs(a - b) for a, b in zip(seem, counts, strict=True)) < 2 * p
    # Whoever has just these is shown the same: nobody can tell that they were rounded.
    assert shown(seem, p) == seem


def fitting(counts: tuple[int, ...], rule: Any) -> list[tuple[int, ...]]:
    """Return all that would be shown as these counts are."""
    n, seen = sum(counts), rule(counts)
    every = itertools.product(range(n + 1), repeat=len(counts) - 1)
    return [
        (*first, n - sum(first))
        for first in every
        if sum(first) <= n and rule((*first, n - sum(first))) == seen
    ]


def pinned(counts: tuple[int, ...], rule: Any, p: int) -> bool:
    """Whether who knows the rule learns that some levels are those of 1 to ``p`` - 1 rows."""
    candidates = np.array(fitting(counts, rule))
    for chosen in itertools.product([False, True], repeat=len(counts)):
        sums = np.unique(candidates[:, list(chosen)].sum(axis=1))
        if sums.size == 1 and 0 < sums[0] < p:
            return True
    return False


@settings(max_examples=40, deadline=None)
@given(
    counts=st.lists(st.integers(0, 6), min_size=2, max_size=3).filter(lambda c: sum(c) >= 5),
    p=st.integers(2, 5),
)
def test_no_count_of_a_level_follows_from_rounded_shares(counts: list[int], p: int) -> None:
    assert not pinned(tuple(counts), lambda c: shown(c, p), p)


@pytest.mark.parametrize("first_takes_the_rest", [False, True])
def test_levels_rounded_each_by_itself_are_pinned(first_takes_the_rest: bool) -> None:
    """Why the others are not rounded as yes/no features are, the first one given what is left."""

    def each(counts: tuple[int, ...]) -> tuple[int, ...]:
        n = sum(counts)
        alone = [min(round(count / 5) * 5, n) for count in counts]
        return (max(n - sum(alone[1:]), 0), *alone[1:]) if first_takes_the_rest else tuple(alone)

    counts = (0, 8, 3, 3) if first_takes_the_rest else (2, 12)
    assert pinned(counts, each, 5)
    assert not pinned(counts, lambda c: shown(c, 5), 5)


def test_totals_of_levels_are_exact_or_rounded_together() -> None:
    places = np.repeat([0, 1, 2], [3, 20, 27])
    rows = np.column_stack([np.eye(3)[places], places == 1, np.arange(50.0)])
    columns = np.array([True, True, True, True, False])
    space = {"columns": columns, "center": np.zeros(5), "scale": np.ones(5)}
    index, blocks = PersonIndex(rows), [np.arange(3)]
    few = round_feature_prevalence(total_moments(rows), rows, index, 5, blocks=blocks, **space)
    np.testing.assert_allclose(few.means * 50, [5, 20, 25, 20, 24.5 * 50], rtol=1e-12)
    enough = round_feature_prevalence(total_moments(rows), rows, index, 3, blocks=blocks, **space)
    np.testing.assert_allclose(enough.means[:3] * 50, [3, 20, 27], rtol=1e-12)
    observed = np.ones(rows.shape, dtype=bool)
    observed[:, :3] = False
    nothing = total_moments(rows, observed)
    kept = round_feature_prevalence(
        nothing, rows, index, 5, blocks=blocks, observed=observed, **space
    )
    assert not kept.means[:3].any()
