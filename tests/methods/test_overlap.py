"""overlap: several rounds of k-means among sites that have different features."""

from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedclust import SessionResult, rounds, simulate
from fedclust.methods import overlap
from fedclust.methods.common import own_features
from fedclust.methods.common.kmeans_rounds import Cells
from fedclust.rounds import Plan
from fedclust.rounds.preparation import SiteMoments
from fedclust.schema.encoding import Space
from fedclust.schema.errors import MethodFailure, RuleViolation
from fedclust.schema.feature import Feature
from fedclust.schema.run_config import Policy, RunConfig
from fedclust.schema.task import Contribution, Done, Next, Points, SiteTask, row_points
from support.driven import site_step
from support.points import answer_task, check_answer, config_of, violation, weighted
from support.site_rows import agreement, least_inertia

OPEN = {"scaling": "none", "missing": "mask", "protection": "none", "min_sites": 1}
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


def _run(sites: Any, policy: Any = None, **config: Any) -> SessionResult:
    config = {"n_clusters": 3, **config}
    return simulate("overlap", sites, config=config, policy={**OPEN, **(policy or {})}, seed=3)


def _config(p: int = 3, **options: Any) -> RunConfig:
    masks = {site: np.array(mask, dtype=bool) for site, mask in MASKS.items()}
    features = tuple(Feature(name=name, lower=-50, upper=50) for name in "wxyz")
    policy = {"protection": "none", "min_sites": 1, "missing": "mask"}
    made = overlap.Config(**{"n_clusters": 2, **options})
    return replace(config_of(made, p=p, features=features, **policy), masks=masks, mask=masks["a"])


def _state(centroids: Any, mask: Any = None, **update: Any) -> overlap.State:
    values = np.array(centroids, dtype=float)
    known = np.ones(values.shape, dtype=bool) if mask is None else np.array(mask, dtype=bool)
    return overlap.State(centroids=values, mask=known, **update)


def _sent(**cells: tuple[Any, Any]) -> list[Contribution]:
    return [
        Contribution(site, Cells(counts=np.array(counts), means=np.array(means, dtype=float)), p=3)
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
    assert agreement(result, truth) == 1.0
    assert result.n_rounds_ == 4
    assert result.stopped_because_ == "finished"


def test_with_alpha_1_centroids_are_the_means_that_sites_send() -> None:
    """Equation 1 with max(1, .): for each feature over the rows of the sites that have it."""
    sites, _ = _federation()
    result = _run(sites, alpha=1.0)
    pooled = np.concatenate([sites[site] for site in sorted(sites)])
    labels = np.concatenate([result.labels_[site] for site in sorted(sites)])
    expected = [np.nanmean(pooled[labels == k], axis=0) for k in range(3)]
    np.testing.assert_allclose(result.cluster_centers_, expected, rtol=1e-10)


def test_sites_that_search_their_number_of_cells_may_lack_clusters() -> None:
    sites, truth = _federation(held={"a": [0, 1], "b": [1, 2], "c": [0, 2]})
    result = _run(sites, local_clusters="silhouette")
    assert agreement(result, truth) == 1.0


def test_a_feature_unseen_in_a_cluster_is_masked_in_its_centroid() -> None:
    """Cluster 2 is at site a alone, which has not got the last feature."""
    sites, truth = _federation(held={"a": [0, 1, 2], "b": [0, 1], "c": [0, 1]})
    result = _run(sites, local_clusters="silhouette")
    assert agreement(result, truth) == 1.0
    mask = result.result.mask
    assert mask is not None
    only = int(result.labels_["a"][truth["a"] == 2][0])
    expected = np.ones((3, 4), dtype=bool)
    expected[only, 3] = False
    assert np.array_equal(mask, expected)
    assert result.result.centroids[only, 3] == 0.0


def test_more_local_clusters_than_clusters_warn() -> None:
    sites, _ = _federation()
    result = _run(sites, local_clusters=5)
    assert len(result.cluster_centers_) == 3
    assert any("already" in warning for warning in result.warnings_)


def test_sites_with_all_features_need_no_masks() -> None:
    rng = np.random.default_rng(2)
    truth = {site: np.repeat([0, 1, 2], 20) for site in "abc"}
    sites = {site: CENTRES[y] + rng.normal(size=(60, 4)) for site, y in truth.items()}
    result = simulate(
        "overlap", sites, config={"n_clusters": 3}, policy={"scaling": "none"}, seed=1
    )
    assert agreement(result, truth) == 1.0


def test_values_that_groups_do_not_release_are_imputed() -> None:
    sites, truth = _federation(n=60)
    for rows in sites.values():
        rows[::7, 2] = np.nan
    result = _run(sites, {"protection": "groups", "scaling": "standard"})
    assert agreement(result, truth) > 0.95
    assert result.result.mask.all()


def test_a_site_with_fewer_points_than_clusters_sends_them_as_they_are() -> None:
    sites, _ = _federation()
    sites["d"] = sites["a"][:2]
    sent = [e.payload for e in _run(sites).trace_ if e.site == "d" and e.phase == "cells"]
    assert sent[0].counts.tolist() == [1, 1]
    expected = np.nan_to_num(sites["d"])
    assert sorted(sent[0].means.tolist()) == sorted(expected.tolist())


@pytest.mark.parametrize("seed", range(12))
def test_any_masked_session_completes_or_fails_with_a_reason(seed: int) -> None:
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
    k = int(rng.integers(1, 5))
    protection = ["none", "groups"][seed % 2]
    policy = {"missing": "mask", "min_group_size": 3, "protection": protection, "min_sites": 1}
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
    assert reason in {None, "overlap", "too_few_contributors", "feature_without_values"}


def _check_masked(result: SessionResult, sites: dict[str, NDArray[np.float64]]) -> None:
    mask = result.result.mask
    assert np.isfinite(result.cluster_centers_).all()
    assert not result.cluster_centers_[~mask].any()
    assert mask.any(axis=1).all()
    for site, labels in result.labels_.items():
        assert labels.shape == (len(sites[site]),)
        assert labels.max(initial=-1) < len(mask)


# --- who may take part ----------------------------------------------------------------------------


def _roster(**masks: list[int]) -> RunConfig:
    known = {site: np.array(mask, dtype=bool) for site, mask in masks.items()}
    return replace(_config(), roster=tuple(sorted(masks)), masks=known)


def test_a_chain_of_overlapping_sites_may_start_and_others_are_told_what_to_change() -> None:
    own_features.check_roster(_roster(a=[1, 1, 0, 0], b=[0, 1, 1, 0], c=[0, 0, 1, 1]))
    own_features.check_roster(_roster(a=[1, 1, 1, 1], b=[1, 1, 1, 1]))
    with pytest.raises(RuleViolation, match=r"2 groups that share no feature.*: c\..*exclude"):
        own_features.check_roster(_roster(a=[1, 1, 0, 0], b=[0, 1, 0, 0], c=[0, 0, 1, 1]))
    with pytest.raises(RuleViolation, match="no site has the features 'z'"):
        own_features.check_roster(_roster(a=[1, 1, 0, 0], b=[0, 1, 1, 0]))


# --- the local step -------------------------------------------------------------------------------


def _cells(points: Points, n_clusters: int, *, search: bool = False) -> Any:
    task = own_features.CellsTask(n_clusters=n_clusters, search=search, n_init=5)
    return answer_task(overlap.METHOD, SiteTask("cells", task), points, _config())


def test_local_cells_are_weighted_means_over_the_features_that_the_site_has() -> None:
    X = np.zeros((20, 4))  # The last feature is not the site's: a has the first three.
    X[10:, 0] = 8.0
    X[:, 1] = np.linspace(0.0, 1.0, 20)
    sizes = np.arange(5, 25)
    sent = _cells(weighted(X, sizes), 2)
    order = np.argsort(sent.means[:, 0])
    assert sent.counts[order].tolist() == [sizes[:10].sum(), sizes[10:].sum()]
    expected = [
        np.average(X[half], axis=0, weights=sizes[half]) for half in (slice(10), slice(10, 20))
    ]
    np.testing.assert_allclose(sent.means[order], expected, atol=1e-12)


def test_cells_are_the_best_of_all_partitions_of_few_points() -> None:
    rng = np.random.default_rng(4)
    X = rng.normal(size=(7, 4)) * [1, 1, 1, 0]
    sizes = rng.integers(3, 9, 7)

    sent = _cells(weighted(X, sizes), 2)
    apart = ((X[:, None] - sent.means) ** 2).sum(axis=2)
    assert sizes @ apart.min(axis=1) == pytest.approx(least_inertia(X, 2, sizes)[0])


def test_the_number_of_local_cells_has_the_best_silhouette() -> None:
    rng = np.random.default_rng(2)
    X = np.repeat(CENTRES, 6, axis=0) + rng.normal(size=(18, 4)) * [0.5, 0.5, 0.5, 0.0]
    assert len(_cells(row_points(X), 8, search=True).counts) == 3


def test_points_of_wide_groups_do_not_count_as_clusters() -> None:
    """Each of four points alone has no distance from its mean: only its persons have."""
    X = [[0.0, 0, 0, 0], [0.4, 0, 0, 0], [9.0, 9, 0, 0], [9.4, 9, 0, 0]]
    alike = replace(weighted(X, 6), within=np.array([0.05, 0.05, 0.0, 0.0]))
    assert len(_cells(alike, 4, search=True).counts) == 2


def test_the_silhouette_includes_the_variance_within_groups() -> None:
    points = weighted([[0.0, 0.0], [2.0, 0.0], [8.0, 2.0]], [3, 5, 4])
    points = replace(points, within=np.array([0.5, 0.2]))
    means = np.array([[1.0, 0.0], [8.0, 2.0]])
    between = [
        np.average((x - np.average(x, weights=[3, 5, 4])) ** 2, weights=[3, 5, 4])
        for x in points.X.T
    ]
    spread = between[0] / 0.5 * 0.5 + between[1] / 0.8 * 0.2
    total = 0.0
    for x, size in zip(points.X, points.sizes, strict=True):
        a, b = sorted(np.sqrt(((x - mean) ** 2).sum() + spread) for mean in means)
        total += size * (b - a) / b
    assert own_features.simplified_silhouette(points, means) == pytest.approx(total / 12)


def _improved(X: Any, centroids: Any, sizes: Any = 1, iterations: int = 5) -> Cells | None:
    """Return what a site sends that has the first three features."""
    values = np.array(centroids, dtype=float)
    task = overlap.FederatedTask(
        centroids=values, mask=np.ones(values.shape, dtype=bool), iterations=iterations
    )
    config = replace(_config(), p=1)
    return answer_task(overlap.METHOD, SiteTask("federated", task), weighted(X, sizes), config)


def test_global_centroids_without_points_are_not_improved() -> None:
    X = [[0.0, 0, 0, 0], [1.0, 0, 0, 0], [10.0, 0, 0, 0]]
    sent = _improved(X, [[0.0, 0, 0, 5], [50.0, 0, 0, 5], [10.0, 0, 0, 5]], [3, 1, 7])
    assert sent.counts.tolist() == [4, 0, 7]
    np.testing.assert_allclose(sent.means, [[0.25, 0, 0, 0], [0, 0, 0, 0], [10.0, 0, 0, 0]])


def test_a_site_runs_the_number_of_iterations_in_the_task() -> None:
    """Weighted Lloyd by hand, from global centroids that are known in some features only."""
    rng = np.random.default_rng(8)
    X, sizes = rng.normal(size=(60, 4)) * [1, 1, 1, 0], rng.integers(1, 9, 60)
    start = rng.normal(size=(4, 4))
    for iterations in (1, 2, 4):
        sent = _improved(X, start, sizes, iterations)
        assert sent is not None
        centres = start[:, :3]
        for _ in range(iterations):
            labels = ((X[:, None, :3] - centres) ** 2).sum(axis=2).argmin(axis=1)
            centres = np.array(
                [
                    np.average(X[labels == k, :3], axis=0, weights=sizes[labels == k])
                    for k in range(4)
                ]
            )
        # Matched by the least squared distance in all.
        costs = ((centres[:, None] - start[None, :, :3]) ** 2).sum(axis=2)
        best = min(permutations(range(4)), key=lambda order: costs[range(4), order].sum())
        for local, place in enumerate(best):
            np.testing.assert_allclose(sent.means[place, :3], centres[local], atol=1e-12)
            assert sent.counts[place] == sizes[labels == local].sum()


def test_ties_go_to_the_first_global_centroid() -> None:
    sent = _improved([[1.0, 0, 0, 0]], [[0.0, 0, 0, 0], [2.0, 0, 0, 0], [2.0, 0, 0, 0]])
    assert sent.counts.tolist() == [1, 0, 0]


def test_matching_has_the_least_total_cost() -> None:
    """Greedily 1.1 would take global 1, and 0.9 pay for it with global 2."""
    local = np.array([[1.1], [0.9]])
    centroids = np.array([[0.0], [1.0], [9.0]])
    found = overlap.match_centroids(local, centroids, np.ones((3, 1), dtype=bool))
    assert found.tolist() == [1, 0]


def test_a_global_centroid_that_shares_no_feature_is_matched_last() -> None:
    known = np.array([[False], [True]])
    found = overlap.match_centroids(np.array([[50.0]]), np.array([[0.0], [1.0]]), known)
    assert found.tolist() == [1]


def test_a_site_that_shares_no_feature_with_any_centroid_answers_empty() -> None:
    rows = np.random.default_rng(0).normal(size=(9, 4)) * [1, 1, 1, 0]
    known = np.array([[False, False, False, True]] * 2)
    task = overlap.FederatedTask(centroids=known * [[3.0], [4.0]], mask=known, iterations=2)
    asked = SiteTask("federated", task)
    assert answer_task(overlap.METHOD, asked, row_points(rows), _config()) is None


# --- what was consented to ------------------------------------------------------------------------


def _plan(**options: Any) -> Plan:
    config = _config(**options)
    return Plan(overlap.METHOD, config.options, config.features, config.policy, seed=0)


SPACE = Space.identity(4).model_copy(update={"impute": np.zeros(4)})


def _federated(k: int) -> SiteTask:
    ones = np.ones((k, 4))
    common = overlap.FederatedTask(centroids=ones, mask=ones > 0, iterations=5)
    return SiteTask("federated", common, space=SPACE)


def test_a_site_answers_the_rounds_of_the_definition() -> None:
    plan, memory = _plan(), dict[str, Any]()
    points = row_points(np.random.default_rng(0).normal(size=(30, 4)))
    cells = SiteTask("cells", overlap.cells_task(plan.options), space=SPACE)
    for number, task in enumerate((cells, *[_federated(2)] * 3)):
        _, memory = site_step(plan, task, points, "a", number, memory=memory)
    with pytest.raises(RuleViolation, match="allows 4 rounds"):
        site_step(plan, _federated(2), points, "a", 4, memory=memory)


@pytest.mark.parametrize(("missing", "most"), [("mask", 8), ("impute", 2)])
def test_a_task_has_no_more_centroids_than_the_session_may_find(missing: Any, most: int) -> None:
    """With masks, K for each part of the features that no site connects to another."""
    plan = _plan()
    plan = replace(plan, policy=plan.policy.model_copy(update={"missing": missing}))
    points = row_points(np.random.default_rng(0).normal(size=(30, 4)))
    site_step(plan, _federated(most), points, "a", 0)
    with pytest.raises(RuleViolation, match=f"provides for {most} clusters"):
        site_step(plan, _federated(most + 1), points, "a", 0)


# --- the coordinator's step -----------------------------------------------------------------------


def test_global_centroids_move_by_alpha_towards_the_weighted_mean() -> None:
    state = _state([[0.0, 0, 0, 0], [5.0, 5, 5, 5]])
    sent = _sent(
        a=([3, 4], [[1.0, 1, 1, 0], [5.0, 5, 5, 0]]), b=([9, 4], [[0.0, 3, 3, 3], [0, 5.0, 5, 5]])
    )
    moved = _moved(state, sent, alpha=0.5)
    # By 3 rows of a and 9 of b where both have the feature, by one of them elsewhere.
    np.testing.assert_allclose(moved.centroids[0], 0.5 * np.array([1.0, 2.5, 2.5, 3.0]))
    np.testing.assert_allclose(moved.centroids[1], 5.0)


def test_unmatched_centroids_and_unreported_features_keep_their_values() -> None:
    state = _state([[1.0, 2, 3, 4], [5.0, 6, 7, 8]])
    moved = _moved(state, _sent(a=([4, 0], [[1.0, 2, 13, 0], [0.0, 0, 0, 0]])))
    np.testing.assert_allclose(moved.centroids[1], [5, 6, 7, 8])
    np.testing.assert_allclose(moved.centroids[0], [1, 2, 3 + 0.8 * 10, 4])


def test_a_feature_reported_for_the_first_time_takes_the_reported_value() -> None:
    state = _state([[1.0, 1, 1, 0]], [[True, True, True, False]])
    moved = _moved(state, _sent(b=([4], [[0.0, 1, 1, 6]])))
    assert moved.centroids[0].tolist() == [1, 1, 1, 6]
    assert moved.mask.all()


def test_a_later_round_that_too_few_answer_completes_with_what_was_found() -> None:
    plan = replace(_plan(rounds=3), policy=Policy(missing="mask", scaling="none", min_sites=2))
    sent = {
        "a": Cells(counts=np.array([4, 4]), means=np.array([[1.0, 2, 3, 0], [9.0, 9, 9, 0]])),
        "b": Cells(counts=np.array([4, 4]), means=np.array([[0.0, 2, 3, 4], [0.0, 9, 9, 9]])),
    }
    masks = _config().masks

    def answers(*sites: str) -> list[Contribution]:
        return [Contribution(s, sent[s] if s in sites else None, p=3) for s in sent]

    step = rounds.start(plan, sent, masks)
    moments = {s: masks[s].astype(np.int64) * 30 for s in sent}
    prepared = [
        Contribution(s, SiteMoments(n=30, observed=n, mean=np.zeros(4), m2=n * 1.0), p=3)
        for s, n in moments.items()
    ]
    first = rounds.advance(plan, step.state, prepared, sent, masks)
    assert isinstance(first, Next)
    second = rounds.advance(plan, first.state, answers("a", "b"), sent, masks)
    assert isinstance(second, Next)
    assert second.task.phase == "federated"
    with pytest.raises(MethodFailure, match="1 sites answered"):
        rounds.advance(plan, first.state, answers("a"), sent, masks)
    for few in ((), ("a",)):
        ended = rounds.advance(plan, second.state, answers(*few), sent, masks)
        assert isinstance(ended, Next)
        assert ended.task.phase == "evidence"
        done = rounds.advance(plan, ended.state, answers(), sent, masks)
        assert isinstance(done, Done)
        assert done.result.stopped_because == "too_few_contributors"
        assert any("the rounds before" in warning for warning in done.result.warnings)
        np.testing.assert_allclose(done.result.centroids, [[1.0, 2, 3, 4], [9.0, 9, 9, 9]])


# --- checks ---------------------------------------------------------------------------------------


def _check(counts: Any, means: Any, phase: str = "cells", **update: Any) -> None:
    config = _config()
    common: Any = own_features.CellsTask(n_clusters=2, search=False, n_init=None)
    if phase == "federated":
        common = overlap.FederatedTask(
            centroids=np.zeros((2, 4)), mask=np.ones((2, 4), dtype=bool), iterations=5
        )
    payload = Cells(counts=np.array(counts), means=np.array(means, dtype=float), **update)
    check_answer(overlap.METHOD, SiteTask(phase, common), payload, config)


@pytest.mark.parametrize("phase", ["cells", "federated"])
@pytest.mark.parametrize(
    ("counts", "means", "rule", "pointer"),
    [
        ([3, 4], [[1.0, 2, 3, 0], [4.0, 5, 6, 7]], "mask", "/means/1/3"),
        ([3, 2], [[1.0, 2, 3, 0], [4.0, 5, 6, 0]], "smallest-count", "/counts/1"),
        ([3, 4, 5], [[1.0, 2, 3, 0]] * 3, "shape", "/counts"),
        ([3, 4], [[1.0, 2, 3], [4.0, 5, 6]], "shape", "/means"),
        ([3, 0], [[1.0, 2, 3, 0], [4.0, 5, 6, 0]], "empty-cell", "/means/1"),
        ([3, 4], [[1.0, 2, 3, 0], [4.0, 51, 6, 0]], "bounds", "/means/1/1"),
    ],
)
def test_invalid_messages_are_refused_by_rule(
    phase: str, counts: Any, means: Any, rule: str, pointer: str
) -> None:
    broken = violation(_check, counts, means, phase)
    assert (broken.rule, broken.pointer) == (rule, pointer)


def test_bounds_hold_for_the_features_that_the_site_has() -> None:
    """0 in a feature that the site lacks may lie outside the feature's bounds."""
    config = _config()
    far = tuple(Feature(name=name, lower=1, upper=50) for name in "wxyz")
    config = replace(config, features=far)
    task = SiteTask("cells", own_features.CellsTask(n_clusters=2, search=False, n_init=None))
    means = np.array([[1.0, 2, 3, 0], [4.0, 5, 6, 0]])
    check_answer(overlap.METHOD, task, Cells(counts=np.array([3, 4]), means=means), config)


@pytest.mark.parametrize(
    "options",
    [
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
