"""kfed: one round of local clusters, and where each of them belongs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

from fedclust.algorithms import engine, kfed, kfed_cells, lloyd
from fedclust.algorithms.base import (
    Contribution,
    Done,
    Feature,
    Memory,
    MethodFailure,
    Next,
    Policy,
    RuleViolation,
    RunConfig,
    SiteData,
    SiteTask,
    Space,
)
from fedclust.algorithms.engine import Plan
from fedclust.algorithms.local_cells import local_kmeans
from fedclust.algorithms.totals import SitePart
from fedclust.privacy.counting import PersonIndex
from fedclust.simulate import SimulationResult, simulate
from support.hospitals import blobs, pooled
from support.rounds import drive

CENTRES = np.array([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0], [10.0, 10.0]])
OPEN = {"scaling": "none", "min_group_size": 2, "protection": "none", "min_sites": 1}


def _config(p: int = 2, **options: Any) -> RunConfig:
    return RunConfig(
        options=kfed.Config(**{"n_clusters": 2, **options}),
        features=(Feature(name="age", lower=-50, upper=50), Feature(name="dose")),
        policy=Policy(min_group_size=p, min_sites=1, scaling="none"),
        roster=("a", "b", "c"),
        p=p,
        space=Space.identity(2),
    )


def _cells_task(n: int, variant: str = "default", part: SitePart | None = None) -> SiteTask:
    common = kfed.CellsTask(n_clusters=n, variant=variant, n_init=3, project=variant == "paper")
    return SiteTask("cells", common, part)


def _answer(task: SiteTask, X: Any, config: RunConfig, memory: Memory | None = None) -> Any:
    data = SiteData(np.array(X, dtype=float))
    return kfed.local_step(task, data, config, np.random.default_rng(0), memory or {})


def _cells(counts: Any, means: Any) -> lloyd.Cells:
    return lloyd.Cells(counts=np.array(counts), means=np.array(means, dtype=float))


def _some_of(held: list[list[int]], n: int = 20, seed: int = 0) -> tuple[dict[str, Any], Any]:
    """Return sites with ``n`` rows of each cluster they hold, and the rows' clusters."""
    rng = np.random.default_rng(seed)
    truth = {"abcdefgh"[i]: np.repeat(own, n) for i, own in enumerate(held)}
    sites = {site: CENTRES[y] + rng.normal(size=(len(y), 2)) for site, y in truth.items()}
    return sites, truth


# --- the local step -------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["default", "paper"])
def test_a_site_sends_counts_and_means_of_its_own_clusters(variant: str) -> None:
    rows = np.concatenate([c + 0.1 * np.random.default_rng(4).normal(size=(9, 2)) for c in CENTRES])
    task = _cells_task(4, variant, SitePart(totals=True))
    payload, memory = _answer(task, rows, _config(p=5))

    kfed.check(task, payload, _config(p=5))
    assert payload.counts.tolist() == [9, 9, 9, 9]
    expected = sorted(rows.reshape(4, 9, 2).mean(axis=1).tolist())
    np.testing.assert_allclose(sorted(payload.means.tolist()), expected)
    assert payload.totals.n == 36
    own = memory["kfed"]
    np.testing.assert_allclose(payload.means[own["cells"]], own["means"])


@pytest.mark.parametrize("variant", ["default", "paper"])
@pytest.mark.parametrize("p", [1, 2, 5])
@pytest.mark.parametrize("n", [1, 2, 7, 16])
def test_a_site_with_no_more_rows_than_cells_never_sends_its_rows(
    variant: str, p: int, n: int
) -> None:
    rows = np.random.default_rng(n).uniform(-40, 40, size=(n, 2))
    payload, _ = _answer(_cells_task(16, variant), rows, _config(p))

    if payload is not None:
        assert payload.counts.sum() <= n
        assert len(payload.counts) <= max(n // max(p, 2), 1)
        if n > 1:
            assert (payload.counts != 1).any()
            assert not set(map(tuple, payload.means)) >= set(map(tuple, rows))


def test_three_distinct_rows_make_at_most_three_cells() -> None:
    rows = np.repeat([[0.0, 0.0], [1.0, 0.0], [9.0, 9.0]], 8, axis=0)
    for variant in ("default", "paper"):
        data = SiteData(rows, persons=np.arange(24))
        payload, _ = kfed.local_step(
            _cells_task(16, variant), data, _config(2), np.random.default_rng(0), {}
        )
        assert sorted(payload.counts) == [8, 8, 8]


def test_the_third_rule_leaves_rows_between_two_seeds_out_of_the_first_centres(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Line 3: seeds at 0 and 12; the rows at 5 and 7 are in no S_r, those at 3 and 9 are."""
    rows = np.array([[0.0], [3.0], [5.0], [7.0], [9.0], [12.0]])
    seen: list[NDArray[np.float64]] = []
    monkeypatch.setattr(kfed_cells, "plus_plus_rows", lambda X, *_: X[[0, 5]])
    monkeypatch.setattr(
        kfed_cells,
        "converged",
        lambda X, centres: seen.append(centres) or np.zeros(len(X), np.int64),
    )
    kfed_cells.algorithm_1(rows, 2, np.random.default_rng(0))

    np.testing.assert_allclose(seen[0], [[1.5], [10.5]])


def test_a_centre_without_rows_within_a_third_is_its_voronoi_cells_mean(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two of the seeds are so near each other that even they themselves are in no S_r but one."""
    rows = np.array([[0.0], [1.0], [1.2], [20.0], [21.0]])
    seen: list[NDArray[np.float64]] = []
    monkeypatch.setattr(kfed_cells, "plus_plus_rows", lambda *_: np.array([[0.0], [0.7], [20.5]]))
    monkeypatch.setattr(
        kfed_cells,
        "converged",
        lambda X, centres: seen.append(centres) or np.zeros(len(X), np.int64),
    )
    kfed_cells.algorithm_1(rows, 3, np.random.default_rng(0))

    # 1.0 is .3 from .7 and 1 from 0; 1.2 is .5 and 1.2: only the first is within a third.
    np.testing.assert_allclose(seen[0], [[0.0], [1.0], [20.5]])
    seen.clear()
    kfed_cells.algorithm_1(rows[[0, 2, 3, 4]], 3, np.random.default_rng(0))
    np.testing.assert_allclose(seen[0], [[0.0], [1.2], [20.5]])


@pytest.mark.parametrize("shape", [(40, 12), (12, 40)])
def test_the_projection_keeps_the_distances_of_the_best_subspace(shape: tuple[int, int]) -> None:
    X = np.random.default_rng(1).normal(size=shape) + 3.0
    u, s, vt = np.linalg.svd(X, full_matrices=False)
    best = (u[:, :3] * s[:3]) @ vt[:3]
    projected = kfed_cells._projected(X, 3)

    assert projected.shape == (shape[0], 3)
    gaps = [((A[:, None] - A) ** 2).sum(axis=2) for A in (projected, best)]
    np.testing.assert_allclose(gaps[0], gaps[1], atol=1e-9)


def test_only_directions_that_stand_out_of_noise_tell_clusters_apart() -> None:
    """Two far clusters span two directions; noise alone none, and the root of K is kept."""
    rng = np.random.default_rng(2)
    noise = rng.normal(size=(60, 40))
    centres = np.zeros((2, 40))
    centres[0, 0] = centres[1, 1] = 12.0
    signal = noise + np.repeat(centres, 30, axis=0)

    for X, n_clusters, kept in ((signal, 2, 2), (noise, 2, 2), (noise, 9, 3), (noise, 40, None)):
        values = np.linalg.svd(X, compute_uv=False)
        assert kfed_cells.directions(values, X.shape, n_clusters) == kept
    assert kfed_cells.directions(np.zeros(40), (60, 40), 2) is None
    # Constant columns are no noise: with them the median would be zero, and all would stand out.
    padded = np.hstack([signal, np.zeros((60, 200))])
    assert kfed_cells.directions(np.linalg.svd(padded, compute_uv=False), (60, 40), 2) == 2


def test_many_small_cells_in_many_dimensions_mix_no_clusters() -> None:
    """Cells of two or three rows, six sd apart: by distance alone a tenth and more are mixed."""
    centres = np.zeros((4, 100))
    centres[np.arange(4), np.arange(4)] = 6.0 / np.sqrt(2.0)
    truth = np.repeat(np.arange(4), 20)
    pure: dict[int | None, list[float]] = {16: [], None: []}
    for seed in range(4):
        X = centres[truth] + np.random.default_rng(seed).normal(size=(80, 100))
        for n_clusters, scores in pure.items():
            labels = kfed_cells.k_means(X, 30, 3, np.random.default_rng(seed), n_clusters)
            right = sum(np.bincount(truth[labels == k]).max() for k in np.unique(labels))
            scores.append(right / len(X))

    assert np.mean(pure[16]) > np.mean(pure[None]) + 0.05


@pytest.mark.parametrize("n", [24, 37])
def test_filled_cells_have_p_rows_and_the_cost_of_the_best_places(n: int) -> None:
    X = np.random.default_rng(n).normal(size=(n, 3))
    labels = local_kmeans(X, n // 5, 3, np.random.default_rng(0))
    filled = kfed_cells.filled(X, labels, 5)

    sizes = np.bincount(filled)
    assert sizes.min() >= 5
    assert len(sizes) == int(0.9 * n / 5)
    # No row outside its nearest cell could go there without leaving fewer than p behind.
    centres = np.array([X[filled == k].mean(axis=0) for k in range(len(sizes))])
    gaps = ((X[:, None] - centres) ** 2).sum(axis=2)
    away = filled != gaps.argmin(axis=1)
    assert (sizes[filled[away]] == 5).all()


def test_cells_too_small_to_be_sent_join_their_neighbours() -> None:
    X = np.array([[0.0], [0.1], [0.2], [1.0], [5.0], [5.1], [5.2], [9.0]])
    labels = np.array([0, 0, 0, 1, 2, 2, 2, 3])

    merged = kfed_cells.without_small(X, labels, PersonIndex(X), 3)

    assert merged.tolist() == [0, 0, 0, 0, 2, 2, 2, 2]
    assert labels.tolist() == [0, 0, 0, 1, 2, 2, 2, 3]


@pytest.mark.parametrize("n", [1, 5, 9])
def test_a_payload_holds_as_many_cells_as_the_site_made_and_no_more_than_asked(n: int) -> None:
    task = _cells_task(6)
    payload = _cells([5] * n, np.arange(2.0 * n).reshape(n, 2))

    if n <= 6:
        kfed.check(task, payload, _config(5))
        return
    with pytest.raises(RuleViolation) as caught:
        kfed.check(task, payload, _config(5))
    assert caught.value.rule == "shape"


@pytest.mark.parametrize(
    ("counts", "means", "rule"),
    [
        ([4, 9], [[0, 0], [1, 1]], "smallest-count"),
        ([5, 9], [[0, 0], [51, 1]], "bounds"),
        ([5, 0], [[0, 0], [1, 1]], "empty-cell"),
        ([5, 8], [[0, 0], [1, 1]], "complement"),
        ([5, 99], [[0, 0], [1, 1]], "complement"),
        ([], np.empty((0, 2)), "shape"),
    ],
)
def test_check_names_the_rule(counts: Any, means: Any, rule: str) -> None:
    task = _cells_task(6, part=SitePart(rows=14))
    payload = lloyd.Cells(
        counts=np.array(counts, dtype=np.int64), means=np.array(means, dtype=float)
    )
    with pytest.raises(RuleViolation) as caught:
        kfed.check(task, payload, _config(5))
    assert caught.value.rule == rule


# --- the coordinator ------------------------------------------------------------------------------


def _aggregate(config: RunConfig, *payloads: Any) -> Next | Done:
    state, _ = kfed.start(config, seed=1)
    sent = [Contribution(site, payload, 2) for site, payload in zip("abc", payloads, strict=False)]
    return kfed.aggregate(state, sent, config)


def test_cells_weigh_as_many_rows_as_they_hold() -> None:
    outcome = _aggregate(_config(), _cells([30, 2], [[0, 0], [9, 0]]), _cells([10], [[1, 0]]), None)

    assert isinstance(outcome, Done)
    order = np.argsort(outcome.result.centroids[:, 0])
    np.testing.assert_allclose(outcome.result.centroids[order], [[0.25, 0], [9, 0]])
    place = {int(old): new for new, old in enumerate(order)}
    mapping = outcome.result.mapping
    assert {s: [place[k] for k in own] for s, own in mapping.items()} == {"a": [0, 1], "b": [0]}


def test_the_papers_coordinator_starts_from_the_first_site_and_weighs_means_alike() -> None:
    """Farthest from {0, 4} is 30; Lloyd once leaves 9 with 4, to convergence likewise."""
    config = _config(variant="paper", local_clusters=2, n_clusters=3)
    sent = (_cells([30, 2], [[0, 0], [4, 0]]), _cells([10, 5], [[9, 0], [30, 0]]))
    outcome = _aggregate(config, *sent)

    assert isinstance(outcome, Done)
    np.testing.assert_allclose(outcome.result.centroids, [[0, 0], [6.5, 0], [30, 0]])
    assert outcome.result.mapping == {"a": (0, 1), "b": (1, 2)}


def test_one_step_of_lloyd_and_convergence_differ_where_a_mean_changes_place() -> None:
    means = [[0, 0], [4, 0], [1.8, 0], [10, 0], [5.5, 0]]
    outcomes = {}
    for how in ("one", "converge"):
        config = _config(variant="paper", local_clusters=2, server_lloyd=how)
        outcome = _aggregate(config, _cells([5, 5], means[:2]), _cells([5, 5, 5], means[2:]))
        assert isinstance(outcome, Done)
        outcomes[how] = outcome.result
    # Means .9 and 6.5 leave all where they are.
    np.testing.assert_allclose(outcomes["one"].centroids, [[0.9, 0], [6.5, 0]])
    np.testing.assert_allclose(outcomes["converge"].centroids, [[0.9, 0], [6.5, 0]])
    means[4] = [16, 0]
    for how in ("one", "converge"):
        config = _config(variant="paper", local_clusters=2, server_lloyd=how)
        outcome = _aggregate(config, _cells([5, 5], means[:2]), _cells([5, 5, 5], means[2:]))
        assert isinstance(outcome, Done)
        outcomes[how] = outcome.result
    # Means .9 and 10: now 4 changes sides, then nothing does.
    np.testing.assert_allclose(outcomes["one"].centroids, [[0.9, 0], [10, 0]])
    assert outcomes["one"].mapping["a"] == (0, 1)
    np.testing.assert_allclose(outcomes["converge"].centroids, [[5.8 / 3, 0], [13, 0]])
    assert outcomes["converge"].mapping["a"] == (0, 0)


def test_farthest_first_never_takes_one_place_twice() -> None:
    means = np.array([[0.1, 0.3], [0.1, 0.3], [1e8, 0.3], [1e8, 0.3], [1e8 + 1, 0.3]])
    chosen = kfed.farthest_first(means, means[:2], 5)

    np.testing.assert_array_equal(chosen, means[[0, 4, 2]])


def test_cells_that_were_withheld_have_no_place_in_the_mapping_and_move_nothing() -> None:
    config = _config(variant="paper", local_clusters=2)
    outcome = _aggregate(
        config,
        _cells([0, 0], np.zeros((2, 2))),
        _cells([0, 9], [[0, 0], [5, 5]]),
        _cells([7], [[1, 1]]),
    )

    assert isinstance(outcome, Done)
    assert outcome.result.mapping == {"a": (-1, -1), "b": (-1, 0), "c": (1,)}
    np.testing.assert_allclose(outcome.result.centroids, [[5, 5], [1, 1]])


def test_no_cell_from_anyone_fails_and_says_what_to_change() -> None:
    empty = _cells([0], np.zeros((1, 2)))
    with pytest.raises(MethodFailure, match="min_group_size") as caught:
        _aggregate(_config(), empty, empty, empty)
    assert caught.value.reason == "nothing_to_release"


@pytest.mark.parametrize(
    ("options", "pointer"),
    [
        ({"variant": "paper", "n_init": 4}, "/n_init"),
        ({"variant": "paper", "local_clusters": 3}, "/local_clusters"),
        ({"server_lloyd": "one"}, "/server_lloyd"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], pointer: str) -> None:
    with pytest.raises(RuleViolation) as caught:
        kfed.check_config(_config(**options))
    assert caught.value.pointer == pointer


@pytest.mark.parametrize("variant", ["default", "paper"])
def test_options_that_fit_are_taken(variant: str) -> None:
    kfed.check_config(_config(variant=variant))
    kfed.check_config(_config(variant="paper", server_lloyd="one", local_clusters=2))


# --- sessions -------------------------------------------------------------------------------------


def _pooled_ari(result: SimulationResult, truth: dict[str, Any]) -> float:
    return float(adjusted_rand_score(pooled(truth), pooled(result.labels_)))


@pytest.mark.parametrize("variant", ["default", "paper"])
def test_clusters_that_no_site_holds_all_of_are_found_in_one_round(variant: str) -> None:
    sites, truth = _some_of([[0, 1], [1, 2], [2, 3], [3, 0]])
    config = {"n_clusters": 4, "variant": variant, "evaluate": False}
    result = simulate("kfed", sites, config=config, policy=OPEN, seed=2)

    assert result.n_rounds_ == 1
    assert result.stopped_because_ == "finished"
    assert len(result.trace_) == 4
    assert _pooled_ari(result, truth) > 0.99
    for site, own in result.result_.mapping.items():
        assert set(own) == set(result.labels_[site].tolist())


def test_own_rows_go_with_their_cluster_and_new_rows_to_the_nearest_centroid() -> None:
    """A local cluster straddles a border: its own rows stay together, the same rows anew do not."""
    sites, _ = _some_of([[0, 1, 2, 3], [0, 1], [2, 3]], n=40)
    config = {"n_clusters": 4, "variant": "paper", "local_clusters": 2}
    result = simulate("kfed", sites, config=config, policy=OPEN, seed=0)

    assert len(set(result.labels_["a"])) <= 2
    assert len(set(result.predict(sites["a"]))) == 4
    centroids = result.result_.centroids
    gaps = ((sites["a"][:, None] - centroids) ** 2).sum(axis=2)
    assert result.predict(sites["a"]).tolist() == gaps.argmin(axis=1).tolist()


def test_rows_with_missing_values_get_no_label_and_shift_nobody_elses() -> None:
    sites, truth = _some_of([[0, 1], [1, 2], [2, 3]])
    sites["b"][[0, 7, 39], 1] = np.nan
    config = {"n_clusters": 4}
    result = simulate("kfed", sites, config=config, policy=OPEN, seed=2)

    labels = result.labels_["b"]
    assert np.flatnonzero(labels == -1).tolist() == [0, 7, 39]
    kept = labels >= 0
    assert adjusted_rand_score(truth["b"][kept], labels[kept]) == 1.0


def test_a_local_cluster_too_small_to_be_sent_goes_to_the_nearest_centroid() -> None:
    sites, _ = _some_of([[0, 1], [0, 1], [0, 1]], n=30)
    sites["a"] = np.concatenate([sites["a"][:30], CENTRES[1] + [[0.1, 0.0], [0.0, 0.2]]])
    config = {"n_clusters": 2, "variant": "paper", "local_clusters": 2, "evaluate": False}
    policy = {**OPEN, "min_group_size": 5}
    result = simulate("kfed", sites, config=config, policy=policy, seed=1)

    labels = result.labels_["a"]
    # A rest of two rows may not stand alone: the other cell is withheld with it.
    assert result.result_.mapping["a"] == (-1, -1)
    assert set(labels[:30]) == {0}
    assert set(labels[30:]) == {1}


@pytest.mark.parametrize("rounds", [1, 3])
def test_refinement_is_that_many_exact_lloyd_rounds(rounds: int) -> None:
    sites, _ = _some_of([[0, 1], [1, 2], [2, 3], [3, 0]], n=30, seed=5)
    config: dict[str, Any] = {"n_clusters": 4, "local_clusters": 3}
    policy = {**OPEN, "min_group_size": 1}
    start = simulate("kfed", sites, config=config, policy=policy, seed=2)
    refined = simulate("kfed", sites, config={**config, "refine": rounds}, policy=policy, seed=2)
    X = pooled(sites)
    centroids = start.result_.centroids.copy()
    for _ in range(rounds):
        labels = ((X[:, None] - centroids) ** 2).sum(axis=2).argmin(axis=1)
        centroids = np.array([X[labels == k].mean(axis=0) for k in range(4)])

    order = np.lexsort(centroids.T[::-1])
    np.testing.assert_allclose(refined.result_.centroids, centroids[order], rtol=1e-10)
    assert refined.n_rounds_ == 1 + rounds
    assert refined.result_.mapping == {}
    assert pooled(refined.labels_).tolist() == refined.predict(X).tolist()
    inertias = [entry.inertia for entry in refined.history_ if entry.phase == "refine"]
    assert len(inertias) == rounds
    assert refined.inertia_ is not None
    assert refined.inertia_ <= min(value for value in inertias if value is not None) + 1e-9


def test_rounds_used_up_before_refinement_still_label_by_local_cluster() -> None:
    sites, truth = _some_of([[0, 1], [1, 2], [2, 3]])
    config = {"n_clusters": 4, "refine": 3}
    result = simulate("kfed", sites, config=config, policy={**OPEN, "max_rounds": 1}, seed=2)

    assert result.stopped_because_ == "max_rounds"
    assert set(result.result_.mapping) == {"a", "b", "c"}
    assert _pooled_ari(result, truth) > 0.98


def test_the_order_of_arrival_does_not_matter() -> None:
    sites, _ = _some_of([[0, 1], [1, 2], [2, 3], [3, 0]])
    for config in ({"n_clusters": 4, "refine": 1}, {"n_clusters": 4, "variant": "paper"}):
        runs = [
            simulate("kfed", sites, config=config, seed=2, arrival=arrival)
            for arrival in (None, lambda _, names: names[::-1])
        ]
        assert runs[0].result_.centroids.tobytes() == runs[1].result_.centroids.tobytes()
        assert runs[0].result_.mapping == runs[1].result_.mapping


def test_a_site_that_comes_later_is_labelled_by_nearest_centroid_with_nobody_else() -> None:
    sites, truth = _some_of([[0, 1], [1, 2], [2, 3], [3, 0]])
    late = {site: sites[site] for site in "abc"}
    plan = Plan(
        kfed.METHOD,
        kfed.Config(n_clusters=4),
        tuple(Feature(name=f"x{j}") for j in range(2)),
        Policy(**OPEN),
        2,
    )
    result = drive(plan, late).result

    assert result is not None
    labels = engine.label(plan, result, sites["d"], None, "d")
    assert adjusted_rand_score(truth["d"], labels) == 1.0
    assert "d" not in result.mapping


def test_a_site_that_joins_for_the_refinement_takes_part_in_it() -> None:
    sites, _ = _some_of([[0, 1], [1, 2], [2, 3], [3, 0]])
    plan = Plan(
        kfed.METHOD,
        kfed.Config(n_clusters=4, refine=2, evaluate=False),
        tuple(Feature(name=f"x{j}") for j in range(2)),
        Policy(**OPEN),
        2,
    )
    run = drive(plan, sites, roster=lambda number: "abc" if number == 1 else "abcd")

    assert [entry.n_sites for entry in run.result.history] == [3, 4, 4]  # type: ignore[union-attr]
    late = run.rounds[1].payloads["d"]
    assert late.counts.sum() == 40
    assert late.totals.n == 40


def test_labels_of_other_rows_than_those_of_the_session_are_refused() -> None:
    sites, _ = _some_of([[0, 1], [1, 2], [2, 3]])
    plan = Plan(
        kfed.METHOD,
        kfed.Config(n_clusters=4),
        tuple(Feature(name=f"x{j}") for j in range(2)),
        Policy(**OPEN),
        2,
    )
    _, memory = _answer(_cells_task(4), sites["a"], _config())
    result = drive(plan, sites).result
    assert result is not None

    with pytest.raises(RuleViolation, match="rows"):
        engine.label(plan, result, sites["a"][:-1], memory, "a")


def test_the_evaluation_measures_nearly_all_rows_after_the_one_round() -> None:
    """Without the merged local cells to go back to, the guard withheld a third of these rows."""
    from support.hospitals import breast_cancer

    sites = breast_cancer()
    n = sum(len(rows) for rows in sites.values())
    result = simulate("kfed", sites, config={"n_clusters": 4}, seed=3)

    assert result.quality_ is not None
    assert result.quality_.n_rows >= 0.95 * n


def test_uneven_sites_are_where_the_default_differs_from_the_paper() -> None:
    """ALGORITHMS asks for .95 over seeds on such sites; here less, over three seeds."""
    grid = np.array([(x, y) for x in (-7.5, -2.5, 2.5, 7.5) for y in (-7.5, -2.5, 2.5, 7.5)])
    found: dict[str, list[float]] = {"default": [], "paper": []}
    for seed in range(3):
        rng = np.random.default_rng(seed)
        truth = np.repeat(np.arange(16), 50)
        rows = grid[truth] + rng.normal(size=(800, 2))
        owner = ((rows[:, None] - rng.uniform(-10, 10, size=(5, 2))) ** 2).sum(axis=2).argmin(1)
        sites = {f"s{z}": rows[owner == z] for z in range(5) if (owner == z).sum() > 1}
        for variant, scores in found.items():
            config = {"n_clusters": 16, "variant": variant, "evaluate": False}
            result = simulate("kfed", sites, config=config, policy=OPEN, seed=seed)
            labels = {f"s{z}": truth[owner == z] for z in range(5) if f"s{z}" in sites}
            scores.append(_pooled_ari(result, labels))

    assert np.mean(found["default"]) > 0.93
    assert np.mean(found["paper"]) < np.mean(found["default"]) - 0.05


def test_one_round_costs_little_more_than_central_k_means() -> None:
    rng = np.random.default_rng(3)
    sites = blobs(rng.normal(size=(6, 4)) * 2, (30, 30, 30, 30), spread=1.0)
    X = pooled(sites)
    central = KMeans(6, n_init=20, random_state=0).fit(X).inertia_
    config = {"n_clusters": 6}
    result = simulate("kfed", sites, config=config, policy=OPEN, seed=0)
    gaps = ((X[:, None] - result.cluster_centers_) ** 2).sum(axis=2).min(axis=1)

    assert gaps.sum() <= 1.03 * central


def test_a_large_site_restarts_less_by_a_fixed_rule() -> None:
    assert kfed_cells.local_restarts(100, 30, 8) == 10
    assert kfed_cells.local_restarts(1_000_000, 100, 80) == 2


def test_a_site_may_not_be_told_another_sites_mapping() -> None:
    """Labels follow the site's own mapping alone, whoever else's a result holds."""
    sites, _ = _some_of([[0, 1], [1, 2], [2, 3]])
    plan = Plan(
        kfed.METHOD,
        kfed.Config(n_clusters=4),
        tuple(Feature(name=f"x{j}") for j in range(2)),
        Policy(**OPEN),
        2,
    )
    run = drive(plan, sites)
    assert run.result is not None
    _, memory = _answer(_cells_task(2), sites["a"], _config())
    swapped = run.result.model_copy(update={"mapping": {"a": (3, 2), "b": (0, 0)}})

    assert set(engine.label(plan, swapped, sites["a"], memory, "a")) == {2, 3}
    by_nearest = engine.label(plan, swapped, sites["a"], memory, "c")
    assert by_nearest.tolist() == engine.label(plan, swapped, sites["a"]).tolist()


@pytest.mark.parametrize("variant", ["default", "paper"])
@pytest.mark.parametrize(("k", "found"), [(1, 1), (40, None)])
def test_one_cluster_and_more_clusters_than_any_site_has_rows(
    variant: str, k: int, found: int | None
) -> None:
    sites, _ = _some_of([[0, 1], [1, 2], [2, 3]], n=8)
    config = {"n_clusters": k, "variant": variant}
    result = simulate("kfed", sites, config=config, policy=OPEN, seed=2)

    if found is None:
        assert 3 <= len(result.cluster_centers_) < k
        assert "distinct centroids" in result.warnings_[0]
    else:
        assert len(result.cluster_centers_) == found
        assert not result.warnings_
    for site, rows in sites.items():
        labels = result.labels_[site]
        assert labels.shape == (len(rows),)
        assert labels.min() >= 0
        assert labels.max() < len(result.cluster_centers_)
