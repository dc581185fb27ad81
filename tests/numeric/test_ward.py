"""Ward's agglomeration against scipy's, and where rounding could trap it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.cluster.hierarchy import fcluster, linkage

from fedclust.numeric.ward import affordable_points, ward_means


def _in_order(means: np.ndarray) -> np.ndarray:
    return means[np.lexsort(means.T[::-1])]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("equal", [True, False])
@pytest.mark.parametrize("k", [1, 2, 7, 40])
def test_it_merges_as_scipy_does_with_as_many_rows_as_weights(
    seed: int, equal: bool, k: int
) -> None:
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(40, 3)) + 1e4
    weights = np.full(40, 1) if equal else rng.integers(1, 6, 40)
    rows = np.repeat(points, weights, axis=0)
    labels = fcluster(linkage(rows, "ward"), k, "maxclust")
    means = np.array([rows[labels == label].mean(axis=0) for label in np.unique(labels)])
    found = ward_means(points, 2.5 * weights, k)
    np.testing.assert_allclose(_in_order(found), _in_order(means), rtol=1e-12)


@settings(max_examples=60)
@given(
    arrays(np.float64, st.tuples(st.integers(1, 24), st.integers(1, 3)), elements=st.floats(-3, 3)),
    st.integers(1, 24),
)
def test_ties_and_equal_points_give_k_groups_with_all_the_weight(
    points: np.ndarray, k: int
) -> None:
    k = min(k, len(points))
    weights = np.arange(1.0, len(points) + 1)
    found = ward_means(points, weights, k)
    assert found.shape == (k, points.shape[1])
    assert np.isfinite(found).all()
    if k == 1:
        np.testing.assert_allclose(found[0], np.average(points, axis=0, weights=weights), atol=1e-9)


def test_it_terminates_on_a_grid_of_equal_distances() -> None:
    grid = np.stack(np.meshgrid(*[np.arange(9) * 0.1] * 2), axis=-1).reshape(-1, 2)
    assert ward_means(grid, np.ones(81), 9).shape == (9, 2)


def test_affordability_depends_on_sizes_only() -> None:
    assert affordable_points(100) > 2_000
    assert affordable_points(784) < 1_000
    assert affordable_points(10) > 8_000


@pytest.mark.parametrize("scale", [1e-9, 1e-12, 1e-15])
def test_points_closer_than_rounding_give_k_groups(scale: float) -> None:
    """Where distances are rounding alone, they contradict one another."""
    rng = np.random.default_rng(0)
    points = np.repeat(rng.normal(size=(3, 4)), 60, axis=0) + scale * rng.normal(size=(180, 4))
    for k in (3, 8, 50):
        assert ward_means(points, np.ones(180), k).shape == (k, 4)
