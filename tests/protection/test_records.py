"""Released counts are the nearest allowed ones; released means show nobody's value for certain."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedclust.protection.columns import NumericColumn
from fedclust.protection.records import GroupSums, release_counts

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@given(st.integers(3, 6), st.lists(st.integers(0, 12), min_size=2, max_size=4))
def test_counts_are_the_nearest_that_are_zero_or_p(p: int, counts: list[int]) -> None:
    total = sum(counts)
    released = release_counts(np.array([counts]), p)[0]

    assert released.sum() == total
    if total < 2 * p:
        assert released.max() == total
        assert counts[int(released.argmax())] == max(counts)
        return
    allowed = (
        each
        for each in itertools.product(range(total + 1), repeat=len(counts))
        if sum(each) == total and all(one == 0 or one >= p for one in each)
    )
    best = min(math.dist(each, counts) for each in allowed)
    assert math.dist(released, counts) == pytest.approx(best)


def test_a_group_that_lacks_a_column_releases_no_counts() -> None:
    assert release_counts(np.array([[0, 0, 0]]), 5).tolist() == [[0, 0, 0]]


def _means(column: NumericColumn, values: FloatArray, groups: IntArray) -> list[float]:
    sums = GroupSums(column)
    for half in (slice(None, len(values) // 2), slice(len(values) // 2, None)):
        sums.add(values[half], groups[half], int(groups.max()) + 1)
    return sums.release(np.bincount(groups), 5).tolist()


def _certain(groups: list[tuple[int, ...]], answers: list[float], p: int) -> int:
    """Return for how many answers 1 to p - 1 persons certainly have one of some values."""
    sets = [set(each) for size in range(1, 7) for each in itertools.combinations(range(7), size)]
    found = 0
    for answer in set(answers):
        worlds = [
            group for group, released in zip(groups, answers, strict=True) if released == answer
        ]
        found += any(
            all(0 < sum(value in values for value in group) < p for group in worlds)
            for values in sets
        )
    return found


def test_a_rounded_mean_of_whole_numbers_shows_no_value_for_certain() -> None:
    groups = list(itertools.combinations_with_replacement(range(7), 5))
    column = NumericColumn("score", 1.0, 0.0, -math.inf, math.inf)
    persons = np.array(groups, dtype=np.float64).ravel()
    members = np.repeat(np.arange(len(groups)), 5)

    rounded = _means(column, persons, members)
    exact = [sum(group) / 5 for group in groups]

    assert _certain(groups, rounded, 5) == 0
    assert _certain(groups, exact, 5) == 24, "the attack finds what exact means give away"


def test_a_mean_half_way_between_two_steps_is_rounded_to_the_even_one() -> None:
    column = NumericColumn("temperature", 0.1, 0.0, -math.inf, math.inf)
    values = np.array([36.1, 36.2, 36.2, 36.3])

    means = _means(column, values, np.array([0, 0, 1, 1]))

    np.testing.assert_allclose(means, [36.2, 36.2])


def test_a_group_with_one_missing_value_releases_no_mean() -> None:
    column = NumericColumn("age", 1.0, 0.0, -math.inf, math.inf)

    means = _means(column, np.array([1.0, np.nan, 3.0, 5.0]), np.array([0, 0, 1, 1]))

    assert math.isnan(means[0])
    assert means[1] == 4.0
