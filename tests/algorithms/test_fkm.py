"""fkm: what its phases send and how candidates are chosen, against sums that the test computes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from fedclust import simulate
from fedclust.algorithms import fkm, fkm_answers, fkm_site
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
    Totals,
)
from fedclust.algorithms.judging import Judgement
from fedclust.algorithms.local_cells import settled
from fedclust.algorithms.totals import SitePart

FEATURES = (Feature(name="age", lower=0, upper=10), Feature(name="dose"))
ROWS = [[1.0, 0.0], [2.0, 1.0], [3.0, 5.0], [8.0, 5.0], [9.0, 6.0]]
BARE = {"min_group_size": 2, "protection": "none", "scaling": "none"}


def _config(p: int = 2, **options: Any) -> RunConfig:
    return RunConfig(
        options=fkm.Config(**{"n_clusters": 2, **options}),
        features=FEATURES,
        policy=Policy(min_group_size=p, scaling="none"),
        roster=("a", "b", "c"),
        p=p,
        space=Space.identity(2),
    )


def _answer(task: SiteTask, X: Any, config: RunConfig) -> Any:
    data = SiteData(np.array(X, dtype=float))
    return fkm_site.local_step(task, data, config, np.random.default_rng(0), {})[0]


def _candidates(centroids: Any, part: SitePart | None = None) -> SiteTask:
    tensor = np.array(centroids, dtype=float)
    names = tuple(f"start-{i}" for i in range(len(tensor)))
    return SiteTask("candidates", fkm_answers.CandidatesTask(names=names, centroids=tensor), part)


def _means(centroids: Any, *, drop_empty: bool = True) -> SiteTask:
    common = fkm_answers.MeansTask(centroids=np.array(centroids, float), drop_empty=drop_empty)
    return SiteTask("means", common, SitePart())


# --- default variant: the site --------------------------------------------------------------------


def test_each_candidate_gets_counts_sums_and_costs_of_its_own() -> None:
    config = _config()
    task = _candidates([[[0, 0], [9, 5]], [[2, 2], [0, 99]]], SitePart(totals=True))
    payload = _answer(task, ROWS, config)

    fkm_answers.check(task, payload, config)
    assert payload.counts.tolist() == [[3, 2], [5, 0]]
    np.testing.assert_allclose(payload.sums[0], [[6.0, 6.0], [17.0, 11.0]])
    np.testing.assert_allclose(payload.sums[1], [[23.0, 17.0], [0.0, 0.0]])
    np.testing.assert_allclose(payload.costs, [[40.0, 2.0], [5 + 1 + 10 + 45 + 65, 0.0]])
    assert payload.totals.n == 5


def test_rows_left_over_stay_out_if_they_are_enough_and_move_on_if_too_few() -> None:
    centroids = np.array([[0.0, 0.0], [5.0, 0.0], [9.0, 0.0], [9.0, 90.0]])
    X = np.array([[0.0, 0], [1, 0], [4.5, 0], [8, 0], [9, 0], [9, 1]])

    assert settled(SiteData(X), centroids, 1).tolist() == [0, 0, 1, 2, 2, 2]
    # One row alone: 4.5 is as far from 0 as from 9, and the lowest takes it.
    assert settled(SiteData(X), centroids, 2).tolist() == [0, 0, 0, 2, 2, 2]
    # Three rows, of which none is with two others.
    assert settled(SiteData(X), centroids, 3).tolist() == [-1, -1, -1, 2, 2, 2]
    # No cell can be sent: nothing to move to.
    assert settled(SiteData(X), centroids, 4).tolist() == [0, 0, 1, 2, 2, 2]


def test_persons_count_where_rows_would_do() -> None:
    centroids = np.array([[0.0], [9.0]])
    X = np.array([[0.0], [1], [2], [9], [9.5]])
    data = SiteData(X, persons=np.array([7, 7, 7, 1, 2]))

    assert settled(data, centroids, 2).tolist() == [1] * 5


@pytest.mark.parametrize(
    ("change", "rule", "pointer"),
    [
        ({"counts": [[3, 2], [1, 4]]}, "smallest-count", "/counts/1/0"),
        ({"counts": [[3, 2], [4, 0]]}, "complement", "/counts/1"),
        ({"counts": [[3, 2]]}, "shape", "/counts"),
        ({"sums": [[[60.0, 6], [17, 11]], [[23, 17], [0, 0]]]}, "bounds", "/sums/0/0/0"),
        ({"costs": [[40.0, 2], [1, 0]]}, "cost", "/costs/1/0"),
        ({"costs": [[40.0, 2], [126, 3]]}, "empty-cell", "/costs/1/1"),
    ],
)
def test_check_names_the_candidate_and_the_rule(
    change: dict[str, Any], rule: str, pointer: str
) -> None:
    task = _candidates([[[0, 0], [9, 5]], [[2, 2], [0, 99]]], SitePart(rows=5))
    payload = _answer(task, ROWS, _config())
    dtypes = {"counts": np.int64, "sums": np.float64, "costs": np.float64}
    arrays = {name: np.array(value, dtype=dtypes[name]) for name, value in change.items()}

    with pytest.raises(RuleViolation) as caught:
        fkm_answers.check(task, payload.model_copy(update=arrays), _config())

    assert (caught.value.rule, caught.value.pointer) == (rule, pointer)


# --- default variant: the coordinator -------------------------------------------------------------


def _steps(costs: Any) -> fkm_answers.Steps:
    """Return ten rows on one place for each candidate; ``costs`` (c,) is what they cost."""
    costs = np.array(costs, dtype=float)
    c = len(costs)
    return fkm_answers.Steps(
        counts=np.tile([10, 0], (c, 1)),
        sums=np.tile([[10.0, 20.0], [0.0, 0.0]], (c, 1, 1)),
        costs=np.stack([costs, np.zeros(c)], axis=1),
    )


def _state(n: int, **update: Any) -> fkm.State:
    return fkm.State(
        phase="candidates",
        seed=0,
        names=tuple(f"start-{i}" for i in range(n)),
        centroids=np.array([[[i, 0.0], [9.0, 9.0]] for i in range(n)]),
        judgements=(Judgement(),) * n,
        **update,
    )


def _aggregate(state: fkm.State, costs: Any, config: RunConfig | None = None) -> Next | Done:
    answers = [Contribution(site, _steps(costs), 2) for site in "abc"]
    return fkm.aggregate(state, answers, config or _config())


def test_the_better_half_goes_on_every_third_round_and_only_then() -> None:
    costs = [5.0, 1.0, 4.0, 2.0, 3.0]
    second = _aggregate(_state(5, closed=1), costs)
    third = _aggregate(_state(5, closed=2), costs)

    assert isinstance(second, Next)
    assert isinstance(third, Next)
    assert second.task.common.names == ("start-1", "start-3", "start-4", "start-2", "start-0")
    assert third.task.common.names == ("start-1", "start-3", "start-4")
    assert third.metrics["inertia"] == 3.0
    np.testing.assert_allclose(third.task.common.centroids[:, 0], [[1.0, 2.0]] * 3)
    np.testing.assert_allclose(third.task.common.centroids[:, 1], [[9.0, 9.0]] * 3)


def test_candidates_of_one_inertia_are_one() -> None:
    step = _aggregate(_state(3), [2.0, 2.0 * (1 + 1e-11), 2.0 * (1 + 1e-7)])

    assert isinstance(step, Next)
    assert step.task.common.names == ("start-0", "start-2")


def test_the_best_ever_is_kept_when_the_leader_gets_worse() -> None:
    first = _aggregate(_state(2), [4.0, 3.0])
    assert isinstance(first, Next)
    second = _aggregate(first.state, [6.0, 7.0])
    assert isinstance(second, Next)
    third = _aggregate(second.state, [6.0, 7.0])

    assert isinstance(third, Done)
    assert third.result.stopped_because == "converged"
    np.testing.assert_allclose(third.result.centroids, [[1.0, 0.0], [9.0, 9.0]])


def test_unsent_rows_are_charged_at_the_mean_cost_of_those_sent() -> None:
    """Two candidates, of which the first leaves ten of each site's twenty rows out."""
    totals = {s: Totals(n=20, mean=np.array([6.0, 2]), m2=np.array([500.0, 0])) for s in "abc"}
    config = replace(_config(), totals=totals)
    whole = fkm_answers.Steps(
        counts=np.array([[10, 0], [10, 10]]),
        sums=np.array([[[10.0, 20], [0, 0]], [[10.0, 20], [110, 20]]]),
        costs=np.array([[40.0, 0], [30.0, 40]]),
    )
    state = _state(2).model_copy(
        update={"centroids": np.array([[[1.0, 0], [30, 30]], [[1.0, 0], [11, 0]]])}
    )
    answers = [Contribution("a", None, 2), *(Contribution(s, whole, 2) for s in "bc")]
    config = replace(config, policy=config.policy.model_copy(update={"min_sites": 2}))
    step = fkm.aggregate(state, answers, config)

    # 4 a row for all sixty rows, against 3.5: the site that sent nothing counts too. A rest of
    # ten rows taken as one cell would have cost the first candidate 40 + 10 x (10^2 + 2^2) a site.
    assert isinstance(step, Next)
    assert step.task.common.names == ("start-1", "start-0")
    assert step.metrics["inertia"] == pytest.approx(210.0)
    costs = step.state.judgements[1].best.costs
    assert costs == pytest.approx({"a": 80.0, "b": 80.0, "c": 80.0})


def test_a_site_of_unknown_size_is_charged_what_it_sent() -> None:
    step = _aggregate(_state(1), [4.0])

    assert isinstance(step, Next)
    assert step.state.best.best.costs == {"a": 4.0, "b": 4.0, "c": 4.0}


def test_it_goes_on_while_a_candidate_gains_on_the_best() -> None:
    first = _aggregate(_state(2), [3.0, 9.0])
    assert isinstance(first, Next)
    second = _aggregate(first.state, [3.0, 8.0])
    assert isinstance(second, Next)
    task = second.task.common
    third = _aggregate(second.state.model_copy(update={"closed": 0}), [3.0, 7.0])

    assert task.names == ("start-0", "start-1")
    assert isinstance(third, Next)


def test_a_candidate_that_nobody_may_answer_drops_out_and_the_last_one_fails() -> None:
    empty = np.zeros((1, 2), dtype=np.int64)
    nothing = fkm_answers.Steps(counts=empty, sums=np.zeros((1, 2, 2)), costs=np.zeros((1, 2)))

    with pytest.raises(MethodFailure) as caught:
        fkm.aggregate(_state(1), [Contribution(s, nothing, 2) for s in "abc"], _config())
    assert caught.value.reason == "nothing_to_release"


# --- paper variant --------------------------------------------------------------------------------


def test_the_first_means_are_no_rows() -> None:
    X = np.random.default_rng(1).normal(size=(30, 2)) + 5
    config = _config(variant="paper", n_clusters=4)
    payload = _answer(SiteTask("seeds", fkm_answers.SeedsTask(n_clusters=4), SitePart()), X, config)

    assert (payload.counts[payload.counts > 0] >= 2).all()
    gaps = np.abs(payload.means[payload.counts > 0][:, None] - X).max(axis=2)
    assert gaps.min() > 1e-6


def test_means_are_of_one_partition_and_counts_of_the_next() -> None:
    X = [[0.0, 0], [1, 0], [2, 0], [5.2, 0], [9, 0], [9, 0.5]]
    task = _means([[0, 0], [10, 0], [5, 90]])
    payload = _answer(task, X, _config(variant="paper", n_clusters=3))

    fkm_answers.check(task, payload, _config(variant="paper"))
    # 5.2 is nearer to 10 than to 0, and nearer to 7.73, the mean it moves, than to 1.
    assert payload.members.tolist() == [3, 3, 0]
    np.testing.assert_allclose(payload.means[:2, 0], [1.0, (5.2 + 18) / 3])
    assert payload.counts.tolist() == [3, 3, 0]
    nearer = _answer(task, [*X[:3], [5.1, 0], [9.9, 0], [9.9, 0.5]], _config(variant="paper"))
    assert nearer.members.tolist() == [3, 3, 0]


def test_a_row_that_changes_sides_is_a_member_here_and_counted_there() -> None:
    X = [[0.0, 0], [0, 1], [4.9, 0], [4.9, 1], [5.1, 0], [5.1, 1], [5.2, 0], [5.2, 1]]
    payload = _answer(_means([[0, 0], [10, 0]]), X, _config(variant="paper"))

    assert payload.members.tolist() == [4, 4]
    np.testing.assert_allclose(payload.means[:, 0], [2.45, 5.15])
    assert payload.counts.tolist() == [2, 6]


def test_a_mean_without_members_enough_has_no_vector_whatever_its_count() -> None:
    config = _config(variant="paper")
    task = _means([[0, 0], [10, 0]])
    payload = fkm_answers.Means(
        members=np.array([4, 1]), means=np.array([[1.0, 1], [9, 9]]), counts=np.array([2, 3])
    )

    with pytest.raises(RuleViolation) as caught:
        fkm_answers.check(task, payload, config)
    assert (caught.value.rule, caught.value.pointer) == ("smallest-count", "/members/1")


def test_an_empty_centre_that_is_kept_moves_to_the_farthest_rows_never_to_one() -> None:
    X = np.array([[0.0, 0], [0.1, 0], [0, 0.2], [6, 0], [5, 0]])
    labels = fkm_site.refill(X, np.zeros(5, dtype=np.int64), np.array([[0.0, 0], [50, 0]]), 2)

    assert labels.tolist() == [0, 0, 0, 1, 1]


def test_centres_keep_their_order_from_round_to_round() -> None:
    before = np.array([[0.0, 0], [5, 5], [9, 9]])
    after, shift = fkm.matched(np.array([[9.0, 8], [0, 1], [5, 7], [70, 70]]), before)

    assert after.tolist() == [[0, 1], [5, 7], [9, 8], [70, 70]]
    assert shift == pytest.approx(2.0)


def test_the_paper_variant_clusters_so_many_times_and_no_more() -> None:
    sites = {s: np.random.default_rng(i).normal(size=(40, 2)) for i, s in enumerate("abc")}
    options = {"n_clusters": 3, "variant": "paper", "rounds": 4}
    result = simulate("fkm", sites, config=options, policy=BARE)

    assert [entry.phase for entry in result.history_] == ["seeds", *["means"] * 3, "evaluate"]
    assert result.stopped_because_ == "finished"


# --- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "pointer"),
    [
        ({"rounds": 3}, "/rounds"),
        ({"weighted": False}, "/weighted"),
        ({"drop_empty": False}, "/drop_empty"),
        ({"variant": "paper", "candidates": 8}, "/candidates"),
        ({"variant": "paper", "tol": 1e-6}, "/tol"),
    ],
)
def test_options_of_the_other_variant_are_refused(options: dict[str, Any], pointer: str) -> None:
    with pytest.raises(RuleViolation) as caught:
        fkm.check_config(_config(**options))
    assert caught.value.pointer == pointer


# --- whole sessions -------------------------------------------------------------------------------


def _blobs(k: int, n: int, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return rows and labels of three sites, each of which holds some of k clusters."""
    rng = np.random.default_rng(seed)
    centres = 8.0 * np.array([(i % 4, i // 4) for i in range(k)])
    rows, labels = {}, {}
    for index, site in enumerate("abc"):
        own = [i for i in range(k) if (i + index) % 3]
        labels[site] = np.repeat(own, n)
        rows[site] = centres[labels[site]] + rng.normal(size=(len(own) * n, 2))
    return rows, labels


@pytest.mark.parametrize("options", [{}, {"variant": "paper"}])
def test_sites_with_different_clusters_find_them_all(options: dict[str, Any]) -> None:
    rows, labels = _blobs(8, 30, seed=2)
    result = simulate("fkm", rows, config={"n_clusters": 8, **options}, policy=BARE)

    truth = np.concatenate([labels[site] for site in "abc"])
    found = np.concatenate([result.labels_[site] for site in "abc"])
    assert adjusted_rand_score(truth, found) > 0.99


@pytest.mark.parametrize("options", [{}, {"variant": "paper"}])
def test_every_order_of_arrival_gives_the_same_bytes(options: dict[str, Any]) -> None:
    rows, _ = _blobs(5, 12, seed=3)
    one, other = (
        simulate("fkm", rows, config={"n_clusters": 5, **options}, arrival=arrival)
        for arrival in (None, lambda _, sites: sites[::-1])
    )

    assert one.cluster_centers_.tobytes() == other.cluster_centers_.tobytes()
    assert one.quality_ == other.quality_


def test_unhindered_candidates_reach_what_lloyd_reaches_from_the_same_cells() -> None:
    rng = np.random.default_rng(5)
    rows = {site: rng.normal(size=(60, 3)) for site in "abc"}
    policy = {"min_group_size": 1, "scaling": "none"}
    result = simulate("fkm", rows, config={"n_clusters": 6}, policy=policy)
    plain = simulate("lloyd", rows, config={"n_clusters": 6}, policy=policy)

    assert result.inertia_ is not None
    assert plain.inertia_ is not None
    assert result.inertia_ <= plain.inertia_ * (1 + 1e-9)


@pytest.mark.parametrize("options", [{}, {"variant": "paper"}])
@pytest.mark.parametrize("k", [1, 16])
def test_three_distinct_rows_and_any_number_of_clusters(options: dict[str, Any], k: int) -> None:
    rows = {site: np.repeat(np.eye(3), 20, axis=0) for site in "abc"}
    persons = {site: np.arange(60) for site in "abc"}
    result = simulate(
        "fkm", rows, config={"n_clusters": k, **options}, policy=BARE, persons=persons
    )

    assert len(result.cluster_centers_) == min(k, 3)
    assert bool(result.warnings_) == (k > 3)


@pytest.mark.parametrize("options", [{}, {"variant": "paper"}])
def test_sites_of_one_row_and_of_none_stop_nobody(options: dict[str, Any]) -> None:
    rows, _ = _blobs(4, 20, seed=6)
    rows |= {"one": np.ones((1, 2)), "none": np.empty((0, 2)), "few": np.zeros((3, 2))}
    result = simulate(
        "fkm", rows, config={"n_clusters": 4, **options}, policy={**BARE, "min_sites": 3}
    )

    assert len(result.cluster_centers_) == 4
    assert np.isfinite(result.cluster_centers_).all()


@pytest.mark.parametrize("options", [{}, {"variant": "paper"}])
def test_sites_that_may_send_nothing_end_the_session_with_a_reason(options: dict[str, Any]) -> None:
    rows = {site: np.random.default_rng(7).normal(size=(4, 2)) for site in "abc"}

    with pytest.raises(MethodFailure, match="min_group_size"):
        simulate("fkm", rows, config={"n_clusters": 2, **options}, policy={"scaling": "none"})
