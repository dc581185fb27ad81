"""Stability: resampled models, pairs, the gap statistic, and what they say of K."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from fedclust.engine import stability
from fedclust.engine.stability import (
    N_SPLITS,
    band,
    clusters_by_gap,
    clusters_by_prediction_strength,
    count_ambiguous_pairs,
    gap_statistic,
    resampled_models,
    split_models,
    summarise,
)
from fedclust.numeric.agreement import contingency_table
from fedclust.numeric.distances import nearest_centroid
from fedclust.schema.evidence import Stability

CENTRES = np.array([[0.0, 0], [9, 0], [0, 9], [9, 9]])


def cells(n_sites: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return cells of four clusters: means, counts and sites."""
    rng = np.random.default_rng(seed)
    sites = np.repeat(np.arange(n_sites), 12)
    means = CENTRES[np.arange(len(sites)) % 4] + rng.normal(scale=0.7, size=(len(sites), 2))
    return means, rng.integers(5, 40, len(sites)), sites


def measured(means: np.ndarray, counts: np.ndarray, sites: np.ndarray, k: int) -> Stability:
    """Return the stability of the model of all cells, on the cells themselves."""
    models = resampled_models(means, counts, sites, k, n_models=40, min_sites=2, seed=1)
    splits = split_models(means, counts, k, seed=1)
    labels = [nearest_centroid(means, model) for model in models]
    final = nearest_centroid(means, stability._centroids(means, counts, k, np.random.default_rng()))
    tables = [contingency_table(final, each, counts, (k, k)) for each in labels]
    halves = [nearest_centroid(means, model) for model in splits]
    pairs = zip(halves[::2], halves[1::2], strict=True)
    split_tables = [contingency_table(*pair, counts, (k, k)) for pair in pairs]
    return summarise(
        np.array(tables), np.array(split_tables), count_ambiguous_pairs(np.array(labels), counts)
    )


def test_clusters_that_are_there_are_found_again_and_others_are_not() -> None:
    drawn = cells(5, 0)
    right, split = measured(*drawn, 4), measured(*drawn, 6)
    assert right.n_models == 40
    assert (right.jaccard > 0.99).all()
    assert (right.recovered == 1.0).all()
    assert (right.dissolved == 0.0).all()
    assert right.consensus == pytest.approx(np.eye(4), abs=0.01)
    assert right.ambiguous_share == 0.0
    assert right.prediction_strength == pytest.approx(1.0, abs=0.01)
    assert np.sort(split.jaccard)[:2].max() < 0.85
    assert split.prediction_strength is not None
    assert split.prediction_strength < 0.8
    assert split.ambiguous_share is not None
    assert split.ambiguous_share > 0.01


def test_every_k_is_measured_on_the_same_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    means, counts, sites = cells(4, 2)
    drawn: dict[int, list[np.ndarray]] = {2: [], 3: []}

    def centroids(means: np.ndarray, weights: np.ndarray, k: int, *_: object) -> np.ndarray:
        drawn[k].append(weights)
        return means[:k]

    monkeypatch.setattr(stability, "_centroids", centroids)
    for k in drawn:
        resampled_models(means, counts, sites, k, n_models=30, min_sites=3, seed=5)
        split_models(means, counts, k, seed=5)
    assert np.array_equal(drawn[2], drawn[3])
    samples, halves = np.array(drawn[2][:30]), np.array(drawn[2][30:])
    assert len(halves) == 2 * N_SPLITS
    assert (halves[::2] + halves[1::2] == counts).all()
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
    means, counts = np.array([[0.0], [1.0]]), np.array([9, 9])
    models = resampled_models(means, counts, np.array([0, 1]), 4, n_models=3, min_sites=2, seed=0)
    assert models[:, :, 0].tolist() == [[0.0, 1.0, 1.0, 1.0]] * 3


def test_pairs_are_those_of_a_loop_over_persons(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    clear = rng.integers(3, size=15)
    labels = np.where(rng.random((20, 15)) < 0.07, rng.integers(3, size=(20, 15)), clear)
    sizes = rng.integers(1, 4, 15)
    persons = np.repeat(np.arange(15), sizes)
    expected = [0, 0, 0]
    for i, j in combinations(persons, 2):
        joined = int((labels[:, i] == labels[:, j]).sum())
        expected[0 if joined <= 2 else 2 if joined >= 18 else 1] += 1
    assert min(expected) > 0
    assert count_ambiguous_pairs(labels, sizes).tolist() == expected
    monkeypatch.setattr(stability, "_PAIR_BLOCK", 7)
    assert count_ambiguous_pairs(labels, sizes).tolist() == expected
    many = np.tile(labels, 4), np.tile(sizes, 4)
    monkeypatch.setattr(stability, "_MAX_PAIRED", 15)
    chosen = np.arange(15) * 60 // 15
    found = count_ambiguous_pairs(*many)
    assert found.tolist() == count_ambiguous_pairs(many[0][:, chosen], many[1][chosen]).tolist()


def test_gap_of_even_persons_is_0_and_smaller_references_change_little(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = np.random.default_rng(8).uniform(size=(600, 2))
    box = np.array([[0.0, 0.0], [1.0, 1.0]])
    total = float(((rows - rows.mean(axis=0)) ** 2).sum())
    centroids = stability._centroids(rows, np.ones(600, np.int64), 3, np.random.default_rng(0))
    inertia = 600 * stability._mean_cost(rows, centroids)

    def gaps() -> tuple[float, float, float]:
        return gap_statistic(
            inertia=inertia, total=total, n_persons=600, n_clusters=3, box=box, seed=4
        )

    gap, error, of_one = gaps()
    assert abs(gap) < 0.1
    assert abs(of_one) < 0.1
    assert 0.005 < error < 0.05
    monkeypatch.setattr(stability, "_REFERENCE_PERSONS", 200)
    smaller = gaps()
    assert smaller == pytest.approx((gap, error, of_one), abs=0.03)


def says(strength: float | None, gap: float | None = None, one: float | None = None) -> Stability:
    none = np.zeros(0)
    return Stability(
        n_models=1,
        jaccard=none,
        recovered=none,
        dissolved=none,
        consensus=np.zeros((0, 0)),
        prediction_strength=strength,
        gap=gap,
        gap_error=None if gap is None else 0.1,
        gap_of_one=one,
    )


def test_prediction_strength_takes_the_largest_strong_k_and_1_without_any() -> None:
    strong = {2: says(0.9), 3: says(0.8), 4: says(0.5)}
    assert clusters_by_prediction_strength(strong) == 3
    assert clusters_by_prediction_strength({2: says(0.7), 3: says(0.79)}) == 1
    assert clusters_by_prediction_strength({2: says(None)}) is None


def test_gap_takes_the_smallest_k_within_an_error_of_the_best() -> None:
    assert clusters_by_gap({2: says(None, 1.05, 1.0), 3: says(None, 1.09, 1.0)}) == 1
    assert clusters_by_gap({2: says(None, 1.05, 1.0), 3: says(None, 2.0, 1.0)}) == 3
    rising = {2: says(None, 1.5, 1.0), 3: says(None, 2.0, 1.0), 4: says(None, 2.05, 1.0)}
    assert clusters_by_gap(rising) == 3
    assert clusters_by_gap({2: says(None, 1.5, 1.0)}) == 2
    assert clusters_by_gap({2: says(0.9)}) is None


def test_bands_are_hennigs() -> None:
    assert [band(value) for value in (0.59, 0.6, 0.75, 0.85)] == [
        "not to be trusted",
        "a pattern whose members are doubtful",
        "stable",
        "highly stable",
    ]
