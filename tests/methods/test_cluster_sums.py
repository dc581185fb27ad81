"""Weighted sums over clusters, and moments of sets, against repeated rows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedclust.methods.common import kmeans_rounds as module
from fedclust.methods.common.kmeans_rounds import check_sizes, cluster_sums
from fedclust.numeric.moments import Moments, merge_moments, no_moments
from fedclust.schema.task import Points
from support.points import config_of, violation


def _points(rng: np.random.Generator, m: int, d: int, offset: float = 0.0) -> Points:
    return Points(rng.normal(size=(m, d)) + offset, rng.integers(1, 9, m), np.zeros(d))


@pytest.mark.parametrize("offset", [0.0, 1e7])
@pytest.mark.parametrize("step", [7, 4096])
def test_weighted_sums_equal_sums_over_repeated_rows(
    offset: float, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CACHE_POINTS", step)
    rng = np.random.default_rng(0)
    points, centroids = _points(rng, 50, 3, offset), rng.normal(size=(5, 3)) + offset
    labels = rng.integers(-1, 4, 50)
    found = cluster_sums(points, labels, centroids)
    rows, of = np.repeat(points.X, points.sizes, axis=0), np.repeat(labels, points.sizes)

    assert found.counts.dtype == np.int64
    for k in range(5):
        own = rows[of == k]
        assert found.counts[k] == len(own)
        np.testing.assert_allclose(found.sums[k], own.sum(axis=0), rtol=1e-12)
        np.testing.assert_allclose(
            found.costs[k], ((own - centroids[k]) ** 2).sum(), rtol=1e-7, atol=1e-12
        )
        mean = own.mean(axis=0) if len(own) else np.zeros(3)
        np.testing.assert_allclose(found.means[k], mean, rtol=1e-12)
    assert found.counts[4] == 0


def test_means_far_from_the_origin_keep_their_digits() -> None:
    """Added up as they are, points at 1e12 would lose what tells them apart."""
    rng = np.random.default_rng(1)
    near = rng.normal(size=(200, 1))
    points = Points(near + 1e12, np.full(200, 5), np.zeros(1))
    found = cluster_sums(points, np.zeros(200, dtype=np.int64), np.array([[1e12]]))

    np.testing.assert_allclose(found.means[0] - 1e12, (points.X - 1e12).mean(axis=0), atol=2e-4)


def test_sums_without_points_are_zero() -> None:
    points = _points(np.random.default_rng(2), 9, 2)
    found = cluster_sums(points, np.full(9, -1), np.ones((3, 2)))

    assert not found.counts.any()
    assert not found.sums.any()
    assert not found.means.any()


def test_counts_add_up_to_no_more_than_the_size_band_has() -> None:
    config = config_of(None, d=1, p=5, size_band="<50")
    check_sizes(np.array([40, 9]), config)
    assert violation(check_sizes, np.array([40, 10]), config).rule == "size-band"


@given(st.lists(st.lists(st.floats(-1e3, 1e3), max_size=6), min_size=1, max_size=5))
def test_merged_moments_are_those_of_the_union(sets: list[list[float]]) -> None:
    merged = no_moments((1,))
    for values in sets:
        x = np.array(values)
        mean = x.mean() if len(x) else 0.0
        one = (np.array([value]) for value in (float(len(x)), mean, ((x - mean) ** 2).sum()))
        merged = merge_moments(merged, Moments(*one))
    whole = np.concatenate([np.array(values) for values in sets])

    assert merged.n[0] == len(whole)
    if len(whole):
        np.testing.assert_allclose(merged.mean[0], whole.mean(), atol=1e-9)
        np.testing.assert_allclose(merged.m2[0], len(whole) * whole.var(), rtol=1e-9, atol=1e-7)
