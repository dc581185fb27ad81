from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedclust.protection.message_checks import (
    check_costs,
    check_counts,
    check_empty,
    check_means,
    check_shape,
)
from fedclust.schema.errors import RuleViolation

INF = np.inf


def counts(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def refused(rule: str, pointer: str, check: Callable[..., None], *given: Any) -> str:
    with pytest.raises(RuleViolation) as refusal:
        check(*given)
    assert refusal.value.rule == rule
    assert refusal.value.pointer == pointer
    return refusal.value.message


def test_counts_are_none_or_enough() -> None:
    check_counts(counts(0, 5, 6), 5)
    for wrong in (4, 1, -1, -5):
        message = refused("smallest-count", "/counts/1", check_counts, counts(5, wrong), 5)
        assert message == "the count of cell 1 must be 0 or at least 5"


def test_an_empty_cell_has_no_numbers() -> None:
    check_empty(counts(0, 5), np.array([[0.0, 0.0], [1.0, 2.0]]), "/sums")
    sums = np.array([[0.0, 1e-300], [1.0, 2.0]])
    refused("empty-cell", "/sums/0", check_empty, counts(0, 5), sums, "/sums")
    costs = np.array([0.0, 3.0])
    refused("empty-cell", "/costs/1", check_empty, counts(5, 0), costs, "/costs")


def test_means_lie_within_bounds_up_to_rounding() -> None:
    lower, upper = np.array([0.0, -INF]), np.array([1e6, INF])
    inside = np.array([[1e6 * (1 + 1e-10), 1e300], [-5.0, 0.0]])
    check_means(counts(5, 0), inside, lower, upper)
    for value in (1e6 * (1 + 1e-8), -1.0, INF, np.nan):
        means = np.array([[0.0, 0.0], [value, 0.0]])
        cells = (counts(5, 5), means, lower, upper)
        message = refused("bounds", "/means/1/0", check_means, *cells)
        assert message == "cell 1: the mean of feature 0 lies outside its declared bounds"


def test_means_of_features_counted_apart() -> None:
    means, bounds = np.array([[9.0, 9.0]]), (np.zeros(2), np.ones(2))
    refused("bounds", "/means/0/1", check_means, np.array([[0, 5]]), means, *bounds)


@given(
    seed=st.integers(0, 1_000),
    offset=st.sampled_from([0.0, 1e3, 1e8]),
    spread=st.sampled_from([0.0, 1e-3, 1.0]),
)
def test_honest_costs_pass_and_costs_below_their_mean_do_not(
    seed: int, offset: float, spread: float
) -> None:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(30, 3)) * spread + offset
    labels = rng.integers(0, 3, 30)
    centroids = rng.normal(size=(3, 3)) + offset
    sizes = np.bincount(labels, minlength=3)
    sums = np.stack([X[labels == k].sum(axis=0) for k in range(3)])
    costs = np.bincount(labels, ((X - centroids[labels]) ** 2).sum(axis=1), minlength=3)
    check_costs(sizes, sums, costs, centroids)
    if offset < 1e8:
        means = sums / np.maximum(sizes, 1)[:, None]
        implied = sizes * ((means - centroids) ** 2).sum(axis=1)
        wrong = int(implied.argmax())
        costs[wrong] = 0.99 * implied[wrong]
        refused("cost", f"/costs/{wrong}", check_costs, sizes, sums, costs, centroids)


@pytest.mark.parametrize("cost", [-1e-9, np.nan])
def test_costs_are_not_negative_even_of_empty_cells(cost: float) -> None:
    sums, costs = np.zeros((2, 1)), np.array([1.0, cost])
    refused("cost", "/costs/1", check_costs, counts(5, 0), sums, costs, sums)


def test_shapes() -> None:
    check_shape(np.zeros((2, 3)), (2, 3), "/sums")
    message = refused("shape", "/sums", check_shape, np.zeros(6), (2, 3), "/sums")
    assert message == "an array of shape 2 x 3 is needed here"
