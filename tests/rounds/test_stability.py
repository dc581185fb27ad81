"""Stability: resampled models, pairs, and what their tables say."""

from typing import Any

import numpy as np
import pytest

from fedclust.methods.common.kmeans_rounds import Cells
from fedclust.numeric.agreement import contingency_table
from fedclust.numeric.distances import nearest_centroid
from fedclust.numeric.random import server_rng
from fedclust.rounds import stability
from fedclust.rounds.stability import resampled_models, summarise
from fedclust.schema.result import Stability

CENTRES = np.array([[0.0, 0], [9, 0], [0, 9], [9, 9]])


def cells(n_sites: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return cells of four clusters: means, counts and sites."""
    rng = np.random.default_rng(seed)
    sites = np.repeat(np.arange(n_sites), 12)
    means = CENTRES[np.arange(len(sites)) % 4] + rng.normal(scale=0.7, size=(len(sites), 2))
    return means, rng.integers(5, 40, len(sites)), sites


def split(means: np.ndarray, counts: np.ndarray, sites: np.ndarray) -> list[Cells]:
    """Return the cells of each site."""
    return [Cells(counts=counts[sites == s], means=means[sites == s]) for s in np.unique(sites)]


def measured(means: np.ndarray, counts: np.ndarray, sites: np.ndarray, k: int) -> Stability:
    """Return the stability of the model of all cells, on the cells themselves."""
    models = resampled_models(split(means, counts, sites), k, n_models=40, min_sites=2, seed=1)
    final = nearest_centroid(means, stability._centroids(means, counts, k, np.random.default_rng()))
    labels = [nearest_centroid(means, model) for model in models]
    return summarise(np.array([contingency_table(final, x, counts, (k, k)) for x in labels]))


def test_clusters_that_are_there_are_found_again_and_others_are_not() -> None:
    drawn = cells(5, 0)
    right, split = measured(*drawn, 4), measured(*drawn, 6)
    assert right.n_models == 40
    assert (right.jaccard > 0.99).all()
    assert (right.recovered == 1.0).all()
    assert (right.dissolved == 0.0).all()
    assert right.consensus == pytest.approx(np.eye(4), abs=0.01)
    assert np.sort(split.jaccard)[:2].max() < 0.85


def test_every_k_has_the_same_samples_and_its_own_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    means, counts, sites = cells(4, 2)
    drawn: dict[int, list[np.ndarray]] = {2: [], 3: []}
    starts: list[int] = []

    def centroids(means: np.ndarray, weights: np.ndarray, k: int, *rest: Any) -> np.ndarray:
        drawn[k].append(weights)
        starts.append(rest[0].integers(2**32))
        return means[:k]

    monkeypatch.setattr(stability, "_centroids", centroids)
    for k in drawn:
        resampled_models(split(means, counts, sites), k, n_models=30, min_sites=3, seed=5)
    streams = [server_rng(5, f"resample-{b}-{k}") for k in drawn for b in range(30)]
    assert starts == [each.integers(2**32) for each in streams]
    assert np.array_equal(drawn[2], drawn[3])
    samples = np.array(drawn[2])
    by_site = np.array([samples[:, sites == site].sum(axis=1) for site in range(4)])
    there = (by_site > 0).sum(axis=0)
    assert there.min() == 3
    assert there.max() == 4
    assert samples.mean() == pytest.approx(counts.mean(), rel=0.05)


@pytest.mark.parametrize("min_sites", [2, 5, 8])
def test_samples_vary_as_much_as_a_bootstrap_of_all_persons(min_sites: int) -> None:
    sites = np.repeat(np.arange(8), 100)
    values = np.random.default_rng(0).normal(size=(800, 100))
    weights = stability._draw_weights(
        np.ones(800, np.int64), sites, n_models=500, min_sites=min_sites, seed=3
    )
    assert ((weights > 0).reshape(500, 8, 100).any(axis=2).sum(axis=1) >= min_sites).all()
    means = (weights @ values) / weights.sum(axis=1)[:, None]
    assert means.var(axis=0).mean() * 800 == pytest.approx(1.0, abs=0.15)


def test_fewer_cells_than_clusters_repeat_the_last_centroid() -> None:
    cells = [Cells(counts=np.array([9]), means=np.array([[value]])) for value in (0.0, 1.0)]
    models = resampled_models(cells, 4, n_models=3, min_sites=2, seed=0)
    assert models[:, :, 0].tolist() == [[0.0, 1.0, 1.0, 1.0]] * 3
