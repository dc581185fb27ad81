"""Weighted k-means and nearest centroids against brute force."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedclust.numeric import weighted_kmeans as kmeans
from fedclust.numeric.distances import nearest_centroid, squared_distances
from fedclust.numeric.ward import ward_means
from fedclust.numeric.weighted_kmeans import (
    SAME_INERTIA,
    best_partitions,
    restart_count,
    weighted_kmeans,
)
from support.site_rows import least_inertia


def _inertia(points: np.ndarray, weights: np.ndarray, centroids: np.ndarray) -> float:
    gaps = ((points[:, None] - centroids) ** 2).sum(axis=2).min(axis=1)
    return float((weights * gaps).sum())


@pytest.mark.parametrize("seed", range(3))
def test_it_finds_the_optimum_of_small_problems(seed: int) -> None:
    rng = np.random.default_rng(seed)
    points, weights = rng.normal(size=(8, 2)), rng.integers(1, 50, size=8).astype(float)
    centroids = weighted_kmeans(points, weights, 3, np.random.default_rng(0))

    assert _inertia(points, weights, centroids) == pytest.approx(
        least_inertia(points, 3, weights)[0]
    )


@given(arrays(np.float64, (7, 2), elements=st.integers(-2, 2).map(float)), st.integers(1, 9))
@settings(max_examples=60)
def test_repeated_points_give_one_centroid_per_distinct_point(points: np.ndarray, k: int) -> None:
    distinct = np.unique(points + 0.0, axis=0)
    centroids = weighted_kmeans(points, np.ones(7), k, np.random.default_rng(0), n_restarts=2)

    assert len(centroids) == min(k, len(distinct))
    assert len(np.unique(centroids, axis=0)) == len(centroids)
    if len(distinct) <= k:
        np.testing.assert_array_equal(centroids, distinct)


def test_partitions_are_distinct_and_the_best_come_first() -> None:
    points, weights = np.random.default_rng(7).normal(size=(80, 2)), np.ones(80)
    found = best_partitions(points, weights, 9, np.random.default_rng(0), 6)
    inertias = [_inertia(points, weights, centroids) for centroids in found]

    assert len(found) == 6
    assert all(b > a * (1 + SAME_INERTIA / 2) for a, b in pairwise(inertias))
    best = weighted_kmeans(points, weights, 9, np.random.default_rng(0))
    np.testing.assert_array_equal(found[0], best)


@pytest.mark.parametrize("d", [3, 60])
def test_starts_from_a_sample_reach_the_inertia_of_starts_among_all_points(
    monkeypatch: pytest.MonkeyPatch, d: int
) -> None:
    rng = np.random.default_rng(8)
    centres = 4 * rng.normal(size=(6, d))
    points = np.concatenate([rng.normal(c, 1.0, size=(200, d)) for c in centres])
    weights = rng.integers(1, 9, size=1200).astype(float)
    full = weighted_kmeans(points, weights, 6, np.random.default_rng(0))
    monkeypatch.setattr(kmeans, "_MAX_WORK", 1)
    drawn = weighted_kmeans(points, weights, 6, np.random.default_rng(0))

    assert _inertia(points, weights, drawn) <= 1.001 * _inertia(points, weights, full)
    again = weighted_kmeans(points, weights, 6, np.random.default_rng(0))
    assert again.tobytes() == drawn.tobytes()


@pytest.mark.parametrize("worth", [10, 2])
def test_the_widest_axes_are_those_of_the_groups_not_of_noise(
    monkeypatch: pytest.MonkeyPatch, worth: int
) -> None:
    """Groups less than one deviation apart along each of 120 axes; a sample of 200 is all noise."""
    monkeypatch.setattr(kmeans, "_AXES_ITERATIONS", worth)
    rng = np.random.default_rng(4)
    centres = rng.normal(size=(4, 120)) * 0.3
    points = np.repeat(centres, 3000, axis=0) + rng.normal(size=(12_000, 120))
    weights = rng.integers(1, 9, size=12_000).astype(float)
    # A light point far away is wide, unless it counts by its weight.
    points[0], weights[0] = 50.0, 1e-3
    cloud = kmeans._Cloud(points, weights)
    axes = cloud.widest_axes(4)

    np.testing.assert_allclose(axes.T @ axes, np.eye(4), atol=1e-12)
    between = centres - centres.mean(axis=0)
    kept = (between @ axes) ** 2
    assert kept.sum() > 0.8 * (between**2).sum()


def test_a_start_that_missed_a_group_is_discarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve groups in pairs: of eight draws some miss one of a pair, and a sample shows which."""
    rng = np.random.default_rng(5)
    centres = np.repeat(9 * rng.normal(size=(6, 40)), 2, axis=0) + rng.normal(size=(12, 40))
    points = np.repeat(centres, 200, axis=0) + rng.normal(size=(2400, 40))
    monkeypatch.setattr(kmeans, "_MAX_WORK", 1)
    real, large = kmeans._lloyd, []

    def lloyd(cloud: kmeans._Cloud, *rest: Any) -> Any:
        large.append(len(cloud.points) == 2400)
        return real(cloud, *rest)

    monkeypatch.setattr(kmeans, "_lloyd", lloyd)
    found = weighted_kmeans(points, np.ones(2400), 12, np.random.default_rng(0))
    assert squared_distances(centres, found).min(axis=1).max() < 1.0
    # One start along the axes, and its end among all points.
    assert sum(large) == 2
    monkeypatch.setattr(kmeans, "_MAX_RELATIVE_INERTIA", np.inf)
    large.clear()
    weighted_kmeans(points, np.ones(2400), 12, np.random.default_rng(0))
    assert sum(large) > 2


def test_the_number_of_restarts_falls_with_size() -> None:
    sizes = [restart_count(m, 30, 8) for m in (10, 10_000, 100_000, 10_000_000)]

    assert sizes[0] == 50
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] == 2


@pytest.mark.parametrize("offset", [0.0, 1e8])
def test_distances_keep_their_digits_far_from_zero(offset: float) -> None:
    rng = np.random.default_rng(3)
    X, centroids = rng.integers(-9, 9, (50, 3)) + offset, rng.integers(-9, 9, (4, 3)) + offset
    exact = ((X[:, None] - centroids) ** 2).sum(axis=2)

    np.testing.assert_allclose(squared_distances(X, centroids), exact, rtol=1e-9, atol=1e-5)


@given(
    arrays(np.float64, (20, 2), elements=st.floats(-100, 100)),
    arrays(np.float64, (5, 2), elements=st.integers(-3, 3).map(float)),
)
def test_equal_centroids_never_share_rows(X: np.ndarray, centroids: np.ndarray) -> None:
    labels = nearest_centroid(X, centroids)

    for k in range(5):
        earlier = (centroids[:k] == centroids[k]).all(axis=1).any()
        assert not (earlier and (labels == k).any())
    gaps = ((X[:, None] - centroids) ** 2).sum(axis=2)
    chosen = gaps[np.arange(20), labels]
    np.testing.assert_allclose(chosen, gaps.min(axis=1), rtol=1e-9, atol=1e-9)


def test_agglomeration_is_one_of_the_default_starts() -> None:
    """Means of few rows are far out, where random starts go and end higher."""
    rng = np.random.default_rng(3)
    middles = rng.normal(size=(64, 100)) * 0.6
    counts = rng.integers(1, 12, 640).astype(float)
    noise = rng.normal(size=(640, 100)) * 1.4 / np.sqrt(counts)[:, None]
    points = np.repeat(middles, 10, axis=0) + noise

    def inertia(centroids: np.ndarray) -> float:
        return float((counts * squared_distances(points, centroids).min(axis=1)).sum())

    merged = inertia(ward_means(points, counts, 64))
    chosen = weighted_kmeans(points, counts, 64, np.random.default_rng(0))
    drawn = weighted_kmeans(points, counts, 64, np.random.default_rng(0), n_restarts=5)
    assert inertia(chosen) <= merged < inertia(drawn)
