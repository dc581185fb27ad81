"""overlap: several rounds of k-means among sites that have different features."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score

from fedclust.algorithms import overlap
from fedclust.algorithms.base import (
    Contribution,
    Done,
    Feature,
    MethodFailure,
    Next,
    Policy,
    RuleViolation,
    RunConfig,
    SiteData,
    SiteTask,
    Space,
)
from fedclust.algorithms.lloyd import Cells
from fedclust.simulate import SimulationResult, simulate
from support.attacker import findings
from support.hospitals import breast_cancer
from support.traces import statistics_of

OPEN = {
    "scaling": "none",
    "missing": "mask",
    "min_group_size": 2,
    "protection": "none",
    "min_sites": 1,
}
CENTRES = np.array([[0.0, 0.0, 0.0, 9.0], [9.0, 0.0, 9.0, 0.0], [0.0, 9.0, 9.0, 9.0]])
MASKS = {"a": [1, 1, 1, 0], "b": [0, 1, 1, 1], "c": [1, 0, 1, 1]}


def _federation(
    n: int = 30, seed: int = 0, held: dict[str, list[int]] | None = None
) -> tuple[dict[str, NDArray[np.float64]], dict[str, NDArray[np.int64]]]:
    """Return sites' rows, NaN where they lack the feature, and the rows' clusters."""
    rng = np.random.default_rng(seed)
    truth = {site: np.repeat((held or {}).get(site, [0, 1, 2]), n) for site in MASKS}
    rows = {}
    for site, y in truth.items():
        whole = CENTRES[y] + rng.normal(size=(len(y), 4))
        rows[site] = np.where(np.array(MASKS[site], dtype=bool), whole, np.nan)
    return rows, truth


def _run(sites: Any, policy: Any = None, **config: Any) -> SimulationResult:
    config = {"n_clusters": 3, **config}
    return simulate("overlap", sites, config=config, policy={**OPEN, **(policy or {})}, seed=3)


def _ari(result: SimulationResult, truth: dict[str, NDArray[np.int64]]) -> float:
    return float(
        adjusted_rand_score(
            np.concatenate([truth[site] for site in sorted(truth)]),
            np.concatenate([result.labels_[site] for site in sorted(truth)]),
        )
    )


def _config(p: int = 2, **options: Any) -> RunConfig:
    masks = {site: np.array(mask, dtype=bool) for site, mask in MASKS.items()}
    return RunConfig(
        options=overlap.Config(**{"n_clusters": 2, **options}),
        features=tuple(Feature(name=name, lower=-50, upper=50) for name in "wxyz"),
        policy=Policy(min_group_size=p, min_sites=1, scaling="none", missing="mask"),
        roster=("a", "b", "c"),
        p=p,
        space=Space.identity(4),
        masks=masks,
        mask=masks["a"],
    )


def _state(centroids: Any, mask: Any = None, **update: Any) -> overlap.State:
    values = np.array(centroids, dtype=float)
    known = np.ones(values.shape, dtype=bool) if mask is None else np.array(mask, dtype=bool)
    return overlap.State(phase="federated", centroids=values, mask=known, **update)


def _sent(**cells: tuple[Any, Any]) -> list[Contribution]:
    return [
        Contribution(site, Cells(counts=np.array(counts), means=np.array(means, dtype=float)), p=2)
        for site, (counts, means) in sorted(cells.items())
    ]


def _moved(state: overlap.State, sent: list[Contribution], **options: Any) -> overlap.State:
    outcome = overlap.aggregate(state, sent, _config(rounds=9, **options))
    assert isinstance(outcome, Next)
    assert isinstance(outcome.state, overlap.State)
    return outcome.state


# --- whole sessions -------------------------------------------------------------------------------


@pytest.mark.parametrize("meta", ["agglomerative", "A", "B", "auto"])
def test_clusters_are_found_across_sites_with_different_features(meta: str) -> None:
    sites, truth = _federation()
    result = _run(sites, meta=meta)
    assert _ari(result, truth) == 1.0
    assert result.n_rounds_ == 4
    assert result.stopped_because_ == "finished"


def test_with_alpha_1_centroids_are_the_means_of_what_sites_see() -> None:
    """Equation 1 with max(1, .): for each feature over the rows of the sites that have it."""
    sites, _ = _federation()
    result = _run(sites, alpha=1.0)
    pooled = np.concatenate([sites[site] for site in sorted(sites)])
    labels = np.concatenate([result.labels_[site] for site in sorted(sites)])
    expected = [np.nanmean(pooled[labels == k], axis=0) for k in range(3)]
    np.testing.assert_allclose(result.cluster_centers_, expected, rtol=1e-10)


def test_sites_may_lack_clusters_when_they_look_for_their_number() -> None:
    sites, truth = _federation(held={"a": [0, 1], "b": [1, 2], "c": [0, 2]})
    result = _run(sites, local_clusters="silhouette")
    assert _ari(result, truth) == 1.0


def test_a_feature_unseen_in_a_cluster_is_masked_in_its_centroid() -> None:
    """Cluster 2 is at site a alone, which has not got the last feature."""
    sites, truth = _federation(held={"a": [0, 1, 2], "b": [0, 1], "c": [0, 1]})
    result = _run(sites, local_clusters="silhouette")
    assert _ari(result, truth) == 1.0
    mask = result.result_.mask
    assert mask is not None
    only = int(result.labels_["a"][truth["a"] == 2][0])
    expected = np.ones((3, 4), dtype=bool)
    expected[only, 3] = False
    assert np.array_equal(mask, expected)
    assert result.result_.centroids[only, 3] == 0.0


def test_more_local_clusters_than_clusters_warn() -> None:
    sites, _ = _federation()
    result = _run(sites, local_clusters=5)
    assert len(result.cluster_centers_) == 3
    assert any("already" in warning for warning in result.warnings_)


def test_a_feature_of_one_site_alone_is_named_in_a_warning() -> None:
    sites, _ = _federation()
    for site in ("b", "c"):
        sites[site][:, 3] = np.nan
    sites["a"][:, 3] = 1.0
    result = _run(sites)
    assert any("One site alone has 'x3'" in warning for warning in result.warnings_)


def test_sites_with_all_features_need_no_masks() -> None:
    rng = np.random.default_rng(2)
    truth = {site: np.repeat([0, 1, 2], 20) for site in "abc"}
    sites = {site: CENTRES[y] + rng.normal(size=(60, 4)) for site, y in truth.items()}
    result = simulate(
        "overlap", sites, config={"n_clusters": 3}, policy={"scaling": "none"}, seed=1
    )
    assert _ari(result, truth) == 1.0


def test_small_sites_stop_nobody() -> None:
    sites, truth = _federation()
    sites["d"], sites["e"] = sites["a"][:1], sites["b"][:2]
    truth["d"], truth["e"] = truth["a"][:1], truth["b"][:2]
    assert _ari(_run(sites, {"min_group_size": 5}), truth) == 1.0


def test_the_order_of_arrival_does_not_matter() -> None:
    sites, _ = _federation(seed=5)
    config, policy = {"n_clusters": 3}, OPEN
    one = simulate("overlap", sites, config=config, policy=policy)
    two = simulate(
        "overlap", sites, config=config, policy=policy, arrival=lambda _, names: names[::-1]
    )
    assert np.array_equal(one.result_.centroids, two.result_.centroids)


@pytest.mark.parametrize("k", [2, 4, 8])
def test_no_real_record_of_a_site_that_lacks_features_is_recovered(k: int) -> None:
    sites = {site: rows.copy() for site, rows in breast_cancer(1).items()}
    lacks = dict(zip(sorted(sites), ([0, 1], [2, 3], [4, 5], [6, 7, 8]), strict=True))
    for site, columns in lacks.items():
        sites[site][:, columns] = np.nan
    result = simulate(
        "overlap", sites, config={"n_clusters": k}, policy={"missing": "mask"}, seed=3
    )
    center, scale = result.result_.center, result.result_.scale
    for site, rows in sites.items():
        own = ~np.isnan(rows).any(axis=0)
        statistics = [
            replace(statistic, vector=statistic.vector[own])
            for statistic in statistics_of(result, site)
            if "prepare" not in statistic.name
        ]
        assert statistics
        scaled = (rows - center) / scale
        assert findings(statistics, scaled[:, own], rows[:, own], p=5) == []


@pytest.mark.parametrize("seed", range(12))
def test_any_masked_session_ends_well_or_says_why(seed: int) -> None:
    """Few rows, repeated and missing values, yes/no features, masks that may not fit."""
    rng = np.random.default_rng(seed)
    kinds = rng.choice(["numeric", "binary"], size=4)
    sites = {}
    for site in "abc":
        n = int(rng.integers(0, 20))
        values = rng.choice([0.0, 1.0, 2.5, -7.0, 1e6], size=(n, 4))
        rows = np.where(kinds == "binary", (values > 0).astype(float), values)
        rows[rng.random((n, 4)) < 0.1] = np.nan
        rows[:, rng.random(4) < 0.3] = np.nan
        sites[site] = rows
    p = int(rng.integers(1, 4))
    k = int(rng.integers(1, 5))
    policy = {"missing": "mask", "min_group_size": p, "min_sites": 1}
    features = [{"name": f"x{j}", "kind": str(kind)} for j, kind in enumerate(kinds)]
    try:
        result = simulate(
            "overlap", sites, config={"n_clusters": k}, policy=policy, features=features, seed=seed
        )
    except (MethodFailure, RuleViolation) as ended:
        reason = getattr(ended, "reason", None) or getattr(ended, "rule", None)
    else:
        reason = None
        _check_masked(result, sites)
    assert reason in {None, "overlap", "nothing_to_release", "feature_without_values"}


def _check_masked(result: SimulationResult, sites: dict[str, NDArray[np.float64]]) -> None:
    mask = result.result_.mask
    assert mask is not None
    assert np.isfinite(result.cluster_centers_).all()
    assert not result.cluster_centers_[~mask].any()
    assert mask.any(axis=1).all()
    for site, labels in result.labels_.items():
        assert labels.shape == (len(sites[site]),)
        assert labels.max(initial=-1) < len(mask)


# --- who may take part ----------------------------------------------------------------------------


def _roster(**masks: list[int]) -> RunConfig:
    known = {site: np.array(mask, dtype=bool) for site, mask in masks.items()}
    config = _config()
    return RunConfig(
        options=config.options,
        features=config.features,
        policy=config.policy,
        roster=tuple(sorted(masks)),
        p=2,
        space=config.space,
        masks=known,
        mask=np.ones(4, dtype=bool),
    )


def test_a_chain_of_overlapping_sites_may_start() -> None:
    overlap.check_roster(_roster(a=[1, 1, 0, 0], b=[0, 1, 1, 0], c=[0, 0, 1, 1]))
    overlap.check_roster(_roster(a=[1, 1, 1, 1], b=[1, 1, 1, 1]))


def test_sites_that_share_no_feature_are_refused_with_what_to_change() -> None:
    with pytest.raises(RuleViolation, match=r"2 groups that share no feature.*: c\..*exclude"):
        overlap.check_roster(_roster(a=[1, 1, 0, 0], b=[0, 1, 0, 0], c=[0, 0, 1, 1]))


def test_a_feature_that_nobody_has_is_refused() -> None:
    with pytest.raises(RuleViolation, match="no site has the features 'z'"):
        overlap.check_roster(_roster(a=[1, 1, 0, 0], b=[0, 1, 1, 0]))


# --- the local step -------------------------------------------------------------------------------


def test_local_clusters_rest_on_the_features_that_the_site_has() -> None:
    rows = np.zeros((20, 4))
    rows[10:, 0] = 8.0
    rows[:, 3] = np.tile([0.0, 1000.0], 10)  # Not the site's: a has the first three.
    task = overlap.CellsTask(n_clusters=2, search=False, n_init=3)
    labels = overlap.local_cells(task, SiteData(rows), _config(), np.random.default_rng(0))
    assert adjusted_rand_score(np.repeat([0, 1], 10), labels) == 1.0


@pytest.mark.parametrize("p", [1, 2, 5])
def test_no_local_cell_is_smaller_than_p_or_a_row_alone(p: int) -> None:
    rows = np.random.default_rng(0).normal(size=(12, 4))
    task = overlap.CellsTask(n_clusters=12, search=False, n_init=2)
    labels = overlap.local_cells(task, SiteData(rows), _config(p), np.random.default_rng(0))
    assert np.bincount(labels).min() >= p
    assert labels.max() + 1 <= 6


def _aligned(rows: Any, centroids: Any, p: int = 2, iterations: int = 5) -> list[int]:
    values = np.array(centroids, dtype=float)
    task = overlap.FederatedTask(
        centroids=values, mask=np.ones(values.shape, dtype=bool), iterations=iterations
    )
    data = SiteData(np.array(rows, dtype=float), persons=np.arange(len(rows)))
    return [int(k) for k in overlap.aligned(task, data, _config(p))]


def test_only_globals_with_p_rows_are_improved() -> None:
    """One row is nearest to the third: it joins the nearest of the others."""
    rows = [[0.0, 0, 0, 0]] * 4 + [[10.0, 0, 0, 0]] * 4 + [[21.0, 0, 0, 0]]
    globals_ = [[0.0, 0, 0, 0], [10.0, 0, 0, 0], [21.0, 0, 0, 0]]
    assert _aligned(rows, globals_, p=2) == [0] * 4 + [1] * 5
    assert _aligned(rows, globals_, p=1) == [0] * 4 + [1] * 4 + [2]


def test_local_clusters_that_have_moved_are_matched_anew() -> None:
    """One row alone is nearest to global 1; with it the others' mean is nearer to that."""
    rows = [[4.9, 0, 0, 0]] * 3 + [[6.0, 0, 0, 0]]
    assert _aligned(rows, [[0.0, 0, 0, 0], [10.0, 0, 0, 0]], p=2) == [1] * 4


def test_matching_costs_least_in_all() -> None:
    """Greedily 1.1 would take global 1, and 0.9 pay for it with global 2."""
    local = np.array([[1.1], [0.9]])
    centroids = np.array([[0.0], [1.0], [9.0]])
    found = overlap.match(local, centroids, np.ones((3, 1), dtype=bool))
    assert found.tolist() == [1, 0]


def test_a_global_that_shares_no_feature_is_matched_last() -> None:
    known = np.array([[False], [True]])
    found = overlap.match(np.array([[50.0]]), np.array([[0.0], [1.0]]), known)
    assert found.tolist() == [1]


def test_a_site_without_p_rows_near_any_global_answers_empty() -> None:
    centroids = np.diag([30.0, 30, 30, 30])[:, :4]
    rows = 30.0 * np.eye(4)[:3]
    task = overlap.FederatedTask(
        centroids=centroids, mask=np.ones((4, 4), dtype=bool), iterations=2
    )
    payload, _ = overlap.local_step(
        SiteTask("federated", task), SiteData(rows), _config(), np.random.default_rng(0), {}
    )
    assert payload is None


def test_a_site_that_shares_no_feature_with_any_global_answers_empty() -> None:
    rows = np.random.default_rng(0).normal(size=(9, 4)) * [1, 1, 1, 0]
    known = np.array([[False, False, False, True]] * 2)
    task = overlap.FederatedTask(centroids=known * [[3.0], [4.0]], mask=known, iterations=2)
    payload, _ = overlap.local_step(
        SiteTask("federated", task), SiteData(rows), _config(), np.random.default_rng(0), {}
    )
    assert payload is None


# --- the coordinator's step -----------------------------------------------------------------------


def test_globals_move_by_alpha_towards_the_weighted_mean() -> None:
    state = _state([[0.0, 0, 0, 0], [5.0, 5, 5, 5]])
    sent = _sent(
        a=([3, 2], [[1.0, 1, 1, 0], [5.0, 5, 5, 0]]), b=([9, 2], [[0.0, 3, 3, 3], [0, 5.0, 5, 5]])
    )
    moved = _moved(state, sent, alpha=0.5)
    assert moved.centroids is not None
    # By 3 rows of a and 9 of b where both have the feature, by one of them elsewhere.
    np.testing.assert_allclose(moved.centroids[0], 0.5 * np.array([1.0, 2.5, 2.5, 3.0]))
    np.testing.assert_allclose(moved.centroids[1], 5.0)


def test_unmatched_globals_and_unreported_features_keep_their_values() -> None:
    state = _state([[1.0, 2, 3, 4], [5.0, 6, 7, 8]])
    moved = _moved(state, _sent(a=([4, 0], [[1.0, 2, 13, 0], [0.0, 0, 0, 0]])))
    assert moved.centroids is not None
    np.testing.assert_allclose(moved.centroids[1], [5, 6, 7, 8])
    np.testing.assert_allclose(moved.centroids[0], [1, 2, 3 + 0.8 * 10, 4])


def test_a_feature_reported_for_the_first_time_is_taken_whole() -> None:
    state = _state([[1.0, 1, 1, 0]], [[True, True, True, False]])
    moved = _moved(state, _sent(b=([4], [[0.0, 1, 1, 6]])))
    assert moved.centroids is not None
    assert moved.mask is not None
    assert moved.centroids[0].tolist() == [1, 1, 1, 6]
    assert moved.mask.all()


def test_the_last_round_ends_the_session() -> None:
    state = _state([[1.0, 1, 1, 0]], closed=2)
    outcome = overlap.aggregate(state, _sent(b=([4], [[0.0, 1, 1, 6]])), _config(rounds=3))
    assert isinstance(outcome, Done)


# --- checks ---------------------------------------------------------------------------------------


def _check(counts: Any, means: Any, phase: str = "cells", **update: Any) -> None:
    config = _config()
    common: Any = overlap.CellsTask(n_clusters=2, search=False, n_init=None)
    if phase == "federated":
        common = overlap.FederatedTask(
            centroids=np.zeros((2, 4)), mask=np.ones((2, 4), dtype=bool), iterations=5
        )
    payload = Cells(counts=np.array(counts), means=np.array(means, dtype=float), **update)
    overlap.check(SiteTask(phase, common), payload, config)


@pytest.mark.parametrize("phase", ["cells", "federated"])
def test_an_honest_answer_passes(phase: str) -> None:
    _check([3, 4], [[1.0, 2, 3, 0], [4.0, 5, 6, 0]], phase)


@pytest.mark.parametrize("phase", ["cells", "federated"])
@pytest.mark.parametrize(
    ("counts", "means", "rule", "pointer"),
    [
        ([3, 4], [[1.0, 2, 3, 0], [4.0, 5, 6, 7]], "mask", "/means/1/3"),
        ([3, 1], [[1.0, 2, 3, 0], [4.0, 5, 6, 0]], "smallest-count", "/counts/1"),
        ([3, 4, 5], [[1.0, 2, 3, 0]] * 3, "shape", "/counts"),
        ([3, 4], [[1.0, 2, 3], [4.0, 5, 6]], "shape", "/means"),
        ([3, 0], [[1.0, 2, 3, 0], [4.0, 5, 6, 0]], "empty-cell", "/means/1"),
        ([3, 4], [[1.0, 2, 3, 0], [4.0, 51, 6, 0]], "bounds", "/means/1/1"),
    ],
)
def test_wrong_answers_are_refused_by_rule(
    phase: str, counts: Any, means: Any, rule: str, pointer: str
) -> None:
    with pytest.raises(RuleViolation) as caught:
        _check(counts, means, phase)
    assert (caught.value.rule, caught.value.pointer) == (rule, pointer)


def test_bounds_hold_for_the_features_that_the_site_has() -> None:
    """0 in a feature that the site lacks may lie outside the feature's bounds."""
    config = _config()
    far = tuple(Feature(name=name, lower=1, upper=50) for name in "wxyz")
    config = replace(config, features=far)
    task = SiteTask("cells", overlap.CellsTask(n_clusters=2, search=False, n_init=None))
    means = np.array([[1.0, 2, 3, 0], [4.0, 5, 6, 0]])
    overlap.check(task, Cells(counts=np.array([3, 4]), means=means), config)


@pytest.mark.parametrize(
    "options",
    [
        {"n_clusters": 0},
        {"alpha": 0.0},
        {"alpha": 1.5},
        {"meta": "C"},
        {"local_clusters": "bic"},
        {"local_clusters": 0},
        {"rounds": -1},
        {"local_iterations": 0},
    ],
)
def test_options_out_of_range_are_refused(options: Any) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        overlap.Config(**{"n_clusters": 2, **options})
