"""Quality figures against scikit-learn's and against loops over rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.metrics import davies_bouldin_score

from fedclust.algorithms import evaluation, lloyd
from fedclust.algorithms.base import (
    Contribution,
    Feature,
    Policy,
    Result,
    RuleViolation,
    RunConfig,
    SiteData,
    SiteTask,
    Space,
)
from fedclust.algorithms.finishing import merged, raw_result
from fedclust.algorithms.totals import SitePart


def _config(d: int, p: int = 1, kind: Any = "numeric") -> RunConfig:
    return RunConfig(
        options=lloyd.Config(n_clusters=2),
        features=tuple(Feature(name=f"x{j}", kind=kind) for j in range(d)),
        policy=Policy(min_group_size=p, scaling="none"),
        roster=("a", "b"),
        p=p,
        space=Space.identity(d),
    )


def _measure(
    X: np.ndarray, centroids: np.ndarray, config: RunConfig, rows: int | None = None
) -> evaluation.Evaluation:
    firsts, cells = merged(centroids)
    task = SiteTask(
        evaluation.NAME,
        evaluation.EvaluationTask(centroids=centroids[firsts], cells=cells),
        SitePart(rows=rows),
    )
    payload, _ = evaluation.local_step(task, SiteData(X), config, {})
    assert isinstance(payload, evaluation.Evaluation)
    evaluation.check(task, payload, config)
    return payload


def _raw(centroids: np.ndarray, config: RunConfig) -> Result:
    return raw_result(centroids, config)


@pytest.mark.parametrize("offset", [0.0, 1e5])
def test_sums_over_sites_give_the_pooled_quality(offset: float) -> None:
    rng = np.random.default_rng(0)
    centroids = rng.normal(size=(4, 3)) + offset
    sites = {"a": rng.normal(size=(40, 3)) + offset, "b": rng.normal(size=(90, 3)) + offset}
    config = _config(3)
    answers = [Contribution(site, _measure(X, centroids, config), 1) for site, X in sites.items()]
    outcome = evaluation.aggregate(_raw(centroids, config), answers, config)
    X = np.concatenate(list(sites.values()))
    gaps = np.sqrt(((X[:, None] - centroids) ** 2).sum(axis=2))
    ordered = np.sort(gaps, axis=1)
    silhouette = ((ordered[:, 1] - ordered[:, 0]) / ordered[:, 1]).mean()

    assert outcome.quality is not None
    assert outcome.quality.n_rows == 130
    assert outcome.quality.inertia == pytest.approx((gaps.min(axis=1) ** 2).sum())
    assert outcome.quality.simplified_silhouette == pytest.approx(silhouette)
    assert outcome.sizes == tuple(np.bincount(gaps.argmin(axis=1), minlength=4))


def test_davies_bouldin_is_scikit_learns_when_centroids_are_means() -> None:
    rng = np.random.default_rng(1)
    X = np.concatenate([rng.normal(c, 0.3, size=(30, 2)) for c in (0, 3, 9)])
    labels = np.repeat(np.arange(3), 30)
    centroids = np.array([X[labels == k].mean(axis=0) for k in range(3)])
    config = _config(2)
    answers = [Contribution("a", _measure(X, centroids, config), 1)]
    outcome = evaluation.aggregate(_raw(centroids, config), answers, config)

    assert outcome.quality is not None
    assert outcome.quality.davies_bouldin == pytest.approx(davies_bouldin_score(X, labels))


def test_one_cluster_has_no_silhouette_and_no_davies_bouldin() -> None:
    X = np.random.default_rng(2).normal(size=(20, 2))
    config = _config(2)
    answers = [Contribution("a", _measure(X, np.zeros((1, 2)), config), 1)]
    outcome = evaluation.aggregate(_raw(np.zeros((1, 2)), config), answers, config)

    assert outcome.quality is not None
    assert outcome.quality.simplified_silhouette is None
    assert outcome.quality.davies_bouldin is None
    assert outcome.quality.inertia == pytest.approx((X**2).sum())


def test_a_row_on_its_centroid_counts_one_and_repeated_centroids_are_one() -> None:
    X = np.array([[0.0], [0.0], [1.0], [1.0]])
    payload = _measure(X, np.array([[0.0], [1.0], [0.0]]), _config(1))

    assert payload.counts.tolist() == [2, 2]
    assert payload.silhouettes.tolist() == [2.0, 2.0]
    assert payload.distances.tolist() == payload.costs.tolist() == [0.0, 0.0]


def test_distances_do_not_give_a_rounded_prevalence_back() -> None:
    """Two sets that differ in how few have the property look the same in every number."""
    config = _config(2, p=5, kind="binary")
    centroids = np.array([[0.1, 0.2], [3.0, 3.0]])
    payloads = []
    for rare in (1, 2):
        X = np.zeros((40, 2))
        X[:rare, 0] = 1.0
        X[:8, 1] = 1.0
        payloads.append(_measure(X, centroids, config))
    first, second = payloads

    assert first.counts.tolist() == second.counts.tolist() == [40, 0]
    for name in ("costs", "distances", "silhouettes"):
        np.testing.assert_allclose(getattr(first, name), getattr(second, name), rtol=1e-12)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"counts": np.array([39, 1])}, "smallest-count"),
        ({"counts": np.array([39, 0])}, "complement"),
        ({"silhouettes": np.array([41.0, 0.0])}, "silhouettes"),
        ({"distances": np.array([-1.0, 0.0])}, "distances"),
        ({"distances": np.array([1e6, 0.0])}, "distances"),
        ({"costs": np.array([1.0, 1.0])}, "empty-cell"),
        ({"costs": np.zeros(3)}, "shape"),
        ({"means": np.zeros((2, 3))}, "shape"),
        ({"means": np.ones((2, 2))}, "empty-cell"),
        ({"m2": np.array([[-1.0, 1.0], [0.0, 0.0]])}, "spread"),
        ({"m2": np.array([[1e6, 1.0], [0.0, 0.0]])}, "cost"),
    ],
)
def test_check_refuses_what_cannot_be(change: dict[str, Any], rule: str) -> None:
    config = _config(2, p=5)
    X = np.random.default_rng(3).normal(size=(40, 2))
    centroids = np.array([[0.0, 0.0], [50.0, 50.0]])
    payload = _measure(X, centroids, config, rows=40)
    task = SiteTask(
        evaluation.NAME,
        evaluation.EvaluationTask(centroids=centroids, cells=np.array([0, 1])),
        SitePart(rows=40),
    )

    with pytest.raises(RuleViolation) as caught:
        evaluation.check(task, payload.model_copy(update=change), config)
    assert caught.value.rule == rule


def test_sizes_that_would_tell_another_sites_few_rows_are_suppressed() -> None:
    config = _config(1, p=5)
    centroids = np.array([[0.0], [9.0]])
    counts = {"a": [30, 20], "b": [3, 30]}
    answers = [
        Contribution(
            site,
            evaluation.Evaluation(
                counts=np.array(n),
                costs=np.ones(2),
                distances=np.ones(2),
                silhouettes=np.ones(2),
                means=np.ones((2, 1)),
                m2=np.ones((2, 1)),
            ),
            p=2,
        )
        for site, n in counts.items()
    ]
    outcome = evaluation.aggregate(_raw(centroids, config), answers, config)

    # The second would give the first back: the number of all rows is public.
    assert outcome.quality is not None
    assert outcome.quality.n_rows == 83
    assert outcome.sizes == (None, None)
    assert outcome.profile is None


def _with_patterns(*numbers: int) -> np.ndarray:
    """Return yes/no rows with three features; ``numbers`` of each of the eight patterns."""
    patterns = np.array([[i >> 2 & 1, i >> 1 & 1, i & 1] for i in range(8)], dtype=float)
    return np.repeat(patterns, numbers, axis=0)


def test_sums_of_distances_do_not_count_who_gave_which_answers() -> None:
    """Known sums of irrational distances can be solved for the number of each pattern."""
    config = _config(3, p=5, kind="binary")
    centroids = np.array([[0.45, 0.52, 0.61], [5.0, 5.0, 5.0]])
    one, none = _with_patterns(6, 6, 6, 6, 6, 6, 6, 1), _with_patterns(7, 5, 5, 7, 5, 7, 7, 0)
    np.testing.assert_array_equal(one.sum(axis=0), none.sum(axis=0))
    answers = [_measure(rows, centroids, config) for rows in (one, none)]

    # Shares alike, so all else is alike: nobody learns that one person said yes to all three.
    np.testing.assert_array_equal(answers[0].counts, answers[1].counts)
    np.testing.assert_allclose(answers[0].costs, answers[1].costs, rtol=1e-12)
    np.testing.assert_allclose(answers[0].distances[0], np.sqrt(43 * answers[0].costs[0]))
    assert not np.isclose(
        answers[0].distances[0], np.sqrt(((one - centroids[0]) ** 2).sum(axis=1)).sum(), rtol=1e-6
    )


@pytest.mark.parametrize("owners", [None, "one each", "few"])
def test_patterns_of_enough_persons_are_measured_row_by_row(owners: str | None) -> None:
    config = _config(3, p=5, kind="binary")
    centroids = np.array([[0.45, 0.52, 0.61], [5.0, 5.0, 5.0]])
    X = _with_patterns(*[6] * 8)
    persons = {None: None, "one each": np.arange(48), "few": np.arange(48) // 2}[owners]
    task = SiteTask(
        evaluation.NAME,
        evaluation.EvaluationTask(centroids=centroids, cells=np.array([0, 1])),
        SitePart(),
    )
    payload, _ = evaluation.local_step(task, SiteData(X, persons), config, {})
    by_row = np.sqrt(((X - centroids[0]) ** 2).sum(axis=1)).sum()

    assert isinstance(payload, evaluation.Evaluation)
    # Two rows a person: each pattern is that of three persons.
    assert np.isclose(payload.distances[0], by_row, rtol=1e-9) == (owners != "few")
