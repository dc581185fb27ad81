"""Groups keep their least size, do not depend on the order of points, and lose little."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_digits

from fedclust.numeric import microaggregation
from fedclust.numeric.microaggregation import form_groups

FloatArray = NDArray[np.float64]


@given(
    st.integers(1, 400), st.integers(1, 8), st.integers(1, 5), st.booleans(), st.integers(0, 999)
)
def test_groups_have_the_least_size_to_twice_that_less_one(
    n: int, least: int, d: int, ties: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    points = rng.integers(0, 3, (n, d)).astype(np.float64) if ties else rng.normal(size=(n, d))

    sizes = np.bincount(form_groups(points, least))

    assert sizes.sum() == n
    if n < 2 * least:
        assert len(sizes) == 1 or least == 1
    else:
        assert sizes.min() >= least
        assert sizes.max() <= max(1, 2 * least - 1)


@pytest.mark.parametrize("ward", [True, False])
def test_blocks_and_halving_keep_the_least_size(
    monkeypatch: pytest.MonkeyPatch, ward: bool
) -> None:
    if not ward:
        monkeypatch.setattr(microaggregation, "_MOST_FOR_WARD", 100)
    points = np.random.default_rng(0).normal(size=(5_003, 3))
    order = np.random.default_rng(1).permutation(len(points))

    labels = form_groups(points, 5)
    sizes = np.bincount(labels)

    assert sizes.min() >= 5
    assert sizes.max() <= 9
    np.testing.assert_array_equal(form_groups(points[order], 5), labels[order])


def test_points_are_ordered_as_by_all_their_coordinates() -> None:
    points = np.random.default_rng(0).integers(0, 4, (2_000, 5)).astype(np.float64)

    order = microaggregation.value_order(list(points.T))

    np.testing.assert_array_equal(points[order], points[np.lexsort(points.T[::-1])])


def test_a_least_size_above_what_is_cut_at_once_is_kept() -> None:
    points = np.random.default_rng(0).normal(size=(10_500, 2))

    assert np.bincount(form_groups(points, 5_000)).tolist() == [5_250, 5_250]


def test_cuts_do_not_depend_on_the_order_of_sums() -> None:
    rng = np.random.default_rng(0)
    whole = microaggregation.to_integers(rng.standard_t(2, (3_000, 7)) + 1e3).astype(np.float64)
    order = rng.permutation(len(whole))

    axis = microaggregation._principal_axes(whole[None])[0]

    np.testing.assert_array_equal(axis, microaggregation._principal_axes(whole[order][None])[0])
    np.testing.assert_array_equal(whole @ axis, [math.fsum(row * axis) for row in whole])


def test_halving_follows_the_direction_of_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(microaggregation, "_MOST_FOR_WARD", 100)
    rng = np.random.default_rng(0)
    points = rng.normal(size=(9_000, 1)) * rng.normal(size=6) + 1e-3 * rng.normal(size=(9_000, 6))

    assert _within(points, form_groups(points, 5)) < 1e-4


def _within(points: FloatArray, labels: NDArray[np.int64]) -> float:
    """Return the share of variance within groups."""
    sums = np.stack([np.bincount(labels, weights=column) for column in points.T], axis=1)
    means = sums / np.bincount(labels)[:, None]
    gaps = points - points.mean(axis=0)
    return float(((points - means[labels]) ** 2).sum() / (gaps**2).sum())


def test_small_clusters_are_not_mixed() -> None:
    rng = np.random.default_rng(0)
    sizes = rng.integers(6, 14, 12)
    cluster = np.repeat(np.arange(12), sizes)
    points = rng.normal(0.0, 20.0, (12, 8))[cluster] + rng.normal(size=(len(cluster), 8))

    labels = form_groups(points, 5)

    assert all(len(set(cluster[labels == group])) == 1 for group in range(labels.max() + 1))


@pytest.mark.parametrize(
    ("load", "most"),
    [(load_breast_cancer, 0.253), (load_digits, 0.192)],
    ids=["breast cancer", "digits"],
)
def test_variance_within_groups_is_that_of_ward_with_exchanges(load, most: float) -> None:
    points = load().data.astype(np.float64)
    if load is load_breast_cancer:
        points = points / points.std(axis=0)

    assert _within(points, form_groups(points, 5)) <= most


def test_ties_order_equal_points_whatever_their_order() -> None:
    rng = np.random.default_rng(0)
    points, tie = rng.integers(0, 2, (60, 2)).astype(np.float64), rng.permutation(60).astype(float)
    order = rng.permutation(60)

    labels = form_groups(points, 5, [tie])

    np.testing.assert_array_equal(form_groups(points[order], 5, [tie[order]]), labels[order])
