"""A site's own clustering: where seeds come from, and rows far from all others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.cluster import kmeans_plusplus

from fedclust import simulate
from fedclust.algorithms import local_cells
from fedclust.algorithms.base import SiteData
from fedclust.privacy.counting import PersonIndex


@pytest.mark.parametrize("n_clusters", [2, 7, 40])
def test_seeds_are_those_of_scikit_learn(n_clusters: int) -> None:
    X = np.random.default_rng(n_clusters).normal(size=(120, 4)) * 3.0
    seeding = local_cells._Seeding(X)
    ours, theirs = np.random.RandomState(5), np.random.RandomState(5)
    for _ in range(4):
        seeds = seeding(X, n_clusters, ours)
        assert np.array_equal(seeds, kmeans_plusplus(X, n_clusters, random_state=theirs)[0])


def test_seeds_of_few_distinct_rows_repeat() -> None:
    X = np.repeat(np.eye(3), 20, axis=0)
    labels = local_cells.local_kmeans(X, 16, 10, np.random.default_rng(0))
    assert len(np.unique(labels)) == 3
    assert all(len(np.unique(labels[i : i + 20])) == 1 for i in (0, 20, 40))


def _with_one_far(far: float) -> dict[str, NDArray[np.float64]]:
    sites = {}
    for seed, name in enumerate("abc"):
        rows = np.random.default_rng(seed).normal(size=(60, 2))
        rows[30:, 0] += 8.0
        rows[0] = far
        sites[name] = rows
    return sites


@pytest.mark.parametrize("scaling", ["standard", "none"])
@pytest.mark.parametrize("method", ["lloyd", "fkm", "kfed"])
def test_one_far_row_a_site_does_not_end_a_session(method: str, scaling: str) -> None:
    """It takes a cell of its own, which may not be sent, nor may then the only other one."""
    for far in (30.0, 1e4):
        policy = {"scaling": scaling}
        result = simulate(method, _with_one_far(far), config={"n_clusters": 2}, policy=policy)
        assert len(result.result_.centroids) == 2
        assert result.result_.quality is not None
        for labels in result.labels_.values():
            groups = labels[1:30], labels[30:]
            if far < 100.0:
                assert [len(np.unique(group)) for group in groups] == [1, 1]
                assert groups[0][0] != groups[1][0]


def _set_aside(X: NDArray[np.float64], p: int, **known: Any) -> NDArray[np.int64]:
    data = SiteData(X, index=PersonIndex(X, known.get("persons")))
    rng = np.random.default_rng(0)
    labels = local_cells.local_kmeans(X, 2, 3, rng)
    return local_cells.without_outliers(data, p, 2, 3, rng, labels)


def test_few_far_rows_join_the_nearest_cell_and_more_stay_out() -> None:
    rng = np.random.default_rng(1)
    X = rng.normal(size=(60, 2))
    X[30:, 0] += 8.0
    own = local_cells.local_kmeans(X, 2, 3, np.random.default_rng(0))
    assert np.array_equal(_set_aside(X, 5), own)
    X[0], X[1] = [-900.0, 0.0], [500.0, 400.0]
    labels = _set_aside(X, 5)
    assert labels[0] == labels[2]
    assert labels[1] == labels[30]
    assert len(np.unique(labels[2:30])) == len(np.unique(labels[30:])) == 1
    assert labels[2] != labels[30]
    # Each on its own, and together as many as a cell needs.
    X[:5] = [[1e3, 0], [0, 1e4], [-1e5, 0], [0, -1e6], [1e7, 1e7]]
    labels = _set_aside(X, 5)
    assert (labels[:5] == -1).all()
    assert labels[5] != labels[30]
    # Of few persons no cell can be made.
    persons = np.minimum(np.arange(60), 3)
    assert (_set_aside(X, 5, persons=persons) == -1).all()
