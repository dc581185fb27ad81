"""fkm: both variants' steps against sums over repeated points, and whole sessions."""

from typing import Any

import numpy as np
import pytest

from fedclust.local.simulate import simulate
from fedclust.methods import fkm
from fedclust.methods.common import kmeans_rounds
from fedclust.methods.common.kmeans_rounds import Judgement
from fedclust.methods.fkm import DefaultConfig, PaperConfig
from fedclust.numeric import weighted_kmeans
from fedclust.schema.feature import Feature
from fedclust.schema.model import Memory
from fedclust.schema.run_config import RunConfig
from fedclust.schema.task import Contribution, Done, Next, Points, SiteTask
from support.points import answer_task, check_answer, config_of, violation, weighted
from support.site_rows import agreement, some_of

FEATURES = (Feature(name="age", lower=0, upper=10), Feature(name="dose"))
POINTS = weighted([[1.0, 0.0], [2.0, 1.0], [3.0, 5.0], [8.0, 5.0], [9.0, 6.0]], [5, 7, 5, 9, 6])
BARE = {"scaling": "none", "missing": "drop", "protection": "none"}
VARIANTS = [{}, {"variant": "paper"}]


def _config(p: int = 5, **options: Any) -> RunConfig:
    made = fkm.Config.model_validate({"n_clusters": 2, **options}).root
    return config_of(made, p=p, features=FEATURES)


def _candidates(centroids: Any) -> SiteTask:
    return SiteTask("candidates", fkm.CandidatesTask(centroids=np.array(centroids, float)))


def _means(centroids: Any) -> SiteTask:
    return SiteTask("means", fkm.MeansTask(centroids=np.array(centroids, float)))


SEEDS = SiteTask("seeds", fkm.SeedsTask())


def _answer(task: SiteTask, config: RunConfig, points: Points = POINTS) -> Any:
    memory: Memory = {}
    payload = answer_task(fkm.METHOD, task, points, config, memory=memory)
    assert memory == {}
    return payload


# --- default variant: the site --------------------------------------------------------------------


def test_each_candidate_makes_a_lloyd_step() -> None:
    config = _config()
    centroids = np.array([[[0.0, 0], [9, 5]], [[2, 2], [0, 99]], [[8, 5], [1, 0]]])
    payload = _answer(_candidates(centroids), config)

    assert payload.counts.tolist() == [[17, 15], [32, 0], [20, 12]]
    for i, each in enumerate(centroids):
        step, alone = payload.step(i), kmeans_rounds.site_lloyd_step(each, POINTS)
        for name in ("counts", "sums", "costs"):
            np.testing.assert_array_equal(getattr(step, name), getattr(alone, name))


@pytest.mark.parametrize(
    ("change", "rule", "pointer"),
    [
        ({"counts": [[17, 15], [28, 4]]}, "smallest-count", "/counts/1/1"),
        ({"counts": [[17, 15]]}, "shape", "/counts"),
        ({"sums": [[[600.0, 32], [126, 81]], [[160, 113], [0, 0]]]}, "bounds", "/sums/0/0/0"),
        ({"costs": [[210.0, 15], [999, 3]]}, "empty-cell", "/costs/1/1"),
    ],
)
def test_check_names_the_candidate_and_the_rule(
    change: dict[str, Any], rule: str, pointer: str
) -> None:
    task = _candidates([[[0, 0], [9, 5]], [[2, 2], [0, 99]]])
    payload = _answer(task, _config())
    arrays = {name: np.array(value, getattr(payload, name).dtype) for name, value in change.items()}

    broken = violation(check_answer, fkm.METHOD, task, payload.model_copy(update=arrays), _config())
    assert (broken.rule, broken.pointer) == (rule, pointer)


PAPER = {"variant": "paper"}


# --- default variant: the coordinator -------------------------------------------------------------


def _steps(costs: Any) -> fkm.Steps:
    """Return ten persons on one place for each candidate; ``costs`` (c,) is what they cost."""
    costs = np.array(costs, dtype=float)
    c = len(costs)
    return fkm.Steps(
        counts=np.tile([10, 0], (c, 1)),
        sums=np.tile([[10.0, 20.0], [0.0, 0.0]], (c, 1, 1)),
        costs=np.stack([costs, np.zeros(c)], axis=1),
    )


def _state(n: int, **update: Any) -> fkm.State:
    """Return a state with candidates whose empty second centroid tells them apart."""
    return fkm.State(
        seed=0,
        centroids=np.array([[[i, 0.0], [9.0, i]] for i in range(n)]),
        judgements=(Judgement(),) * n,
        **update,
    )


def _aggregate(state: fkm.State, costs: Any) -> Next | Done:
    answers = [Contribution(site, _steps(costs), 5) for site in "abc"]
    return fkm.aggregate(state, answers, _config())


def _going_on(step: Next | Done) -> list[int]:
    assert isinstance(step, Next)
    moved = step.task.common.centroids
    np.testing.assert_allclose(moved[:, 0], [[1.0, 2.0]] * len(moved))
    return [int(candidate[1, 1]) for candidate in moved]


def test_the_worse_half_is_dropped_every_third_round() -> None:
    costs = [5.0, 1.0, 4.0, 2.0, 3.0]
    second = _aggregate(_state(5, closed=1), costs)
    third = _aggregate(_state(5, closed=2), costs)

    assert _going_on(second) == [1, 3, 4, 2, 0]
    assert _going_on(third) == [1, 3, 4]
    assert third.metrics["inertia"] == 3.0


def test_candidates_of_equal_inertia_are_merged() -> None:
    assert _going_on(_aggregate(_state(3), [2.0, 2.0 * (1 + 1e-11), 2.0 * (1 + 1e-7)])) == [0, 2]


def test_the_best_ever_is_kept_when_the_leader_gets_worse() -> None:
    first = _aggregate(_state(2), [4.0, 3.0])
    assert isinstance(first, Next)
    second = _aggregate(first.state, [6.0, 7.0])
    assert isinstance(second, Next)
    third = _aggregate(second.state, [6.0, 7.0])

    assert isinstance(third, Done)
    assert third.result.stopped_because == "converged"
    np.testing.assert_allclose(third.result.centroids, [[1.0, 0.0], [9.0, 1.0]])


def test_a_session_continues_while_a_candidate_improves() -> None:
    first = _aggregate(_state(2), [3.0, 9.0])
    assert isinstance(first, Next)
    second = _aggregate(first.state, [3.0, 8.0])
    assert _going_on(second) == [0, 1]
    assert isinstance(second, Next)

    assert isinstance(_aggregate(second.state.model_copy(update={"closed": 0}), [3.0, 7.0]), Next)


def test_a_site_that_answers_empty_costs_nothing_and_moves_nothing() -> None:
    answers = [Contribution("a", None, 5), *(Contribution(s, _steps([4.0]), 5) for s in "bc")]
    step = fkm.aggregate(_state(1), answers, _config())

    assert isinstance(step, Next)
    assert step.state.best.best.costs == {"a": None, "b": 4.0, "c": 4.0}
    assert _going_on(step) == [0]


# --- paper variant --------------------------------------------------------------------------------


def test_seeds_are_means_of_the_points_nearest_to_those_drawn() -> None:
    rng = np.random.default_rng(1)
    blobs, sizes = np.arange(28) % 4, rng.integers(5, 9, 28)
    points = weighted(2.5 * blobs[:, None] + rng.uniform(0, 0.1, (28, 2)), sizes)
    payload = _answer(SEEDS, _config(variant="paper", n_clusters=4), points)

    order = payload.means[:, 0].argsort()
    assert payload.counts[order].tolist() == np.bincount(blobs, weights=sizes).tolist()
    for blob, mean in enumerate(payload.means[order]):
        own = blobs == blob
        np.testing.assert_allclose(
            mean, np.average(points.X[own], axis=0, weights=sizes[own]), rtol=1e-12
        )
    # Fewer points than clusters: all of them.
    few = _answer(SEEDS, _config(variant="paper", n_clusters=40), points)
    assert few.counts.tolist().count(0) == 12
    np.testing.assert_allclose(
        np.sort(few.means[:28], axis=0), np.sort(points.X, axis=0), rtol=1e-12
    )


def test_a_lone_outlier_is_no_seed() -> None:
    points = weighted([*np.random.default_rng(0).uniform(0, 1, (9, 2)), [50.0, 0]], [1] * 10)
    payload = _answer(SEEDS, _config(1, variant="paper", n_clusters=2), points)
    assert payload.counts.tolist() == [9, 0]


def test_heavy_points_are_drawn_more_often() -> None:
    points = weighted([[1.0, 0], [2, 0], [3, 0]], [5, 5, 990])
    drawn = [
        weighted_kmeans.kmeans_plus_plus(
            points.X, points.sizes.astype(float), 1, np.random.default_rng(seed)
        )[0, 0]
        for seed in range(40)
    ]
    assert drawn.count(3.0) >= 36


def test_counts_are_of_the_partition_by_the_new_means() -> None:
    """The points at 5.1 and 5.2 move to the upper mean, and that at 4.9 is then nearer to it."""
    points = weighted(
        [[0.0, 0], [0, 1], [4.9, 0], [5.1, 0], [5.1, 1], [5.2, 0]], [5, 6, 5, 7, 5, 8]
    )
    payload = _answer(_means([[0, 0], [10, 0], [5, 90]]), _config(variant="paper"), points)

    np.testing.assert_allclose(
        payload.means[:2, 0], [5 * 4.9 / 16, (12 * 5.1 + 8 * 5.2) / 20], rtol=1e-12
    )
    assert payload.counts.tolist() == [11, 25, 0]
    assert not payload.means[2].any()


@pytest.mark.parametrize(("drop_below", "counts"), [(1, [6, 1]), (2, [6, 0]), (7, None)])
def test_means_of_too_few_persons_are_dropped(drop_below: int, counts: list[int] | None) -> None:
    points = weighted([[0.0, 0], [1, 0], [9, 0]], [3, 3, 1])
    config = _config(1, variant="paper", drop_below=drop_below)
    payload = _answer(_means([[0, 0], [10, 0]]), config, points)

    assert (None if payload is None else payload.counts.tolist()) == counts


def test_an_empty_cluster_that_is_kept_takes_the_farthest_point() -> None:
    X = np.array([[0.0, 0], [0.1, 0], [0, 0.2], [6, 0], [5, 0]])
    centroids = np.array([[0.0, 0], [50, 0], [60, 0]])

    filled = fkm.fill_empty_clusters(X, np.zeros(5, dtype=np.int64), centroids)
    assert filled.tolist() == [0, 0, 0, 1, 2]
    config = _config(variant="paper", drop_empty=False, n_clusters=3)
    payload = _answer(_means(centroids), config, weighted(X))
    np.testing.assert_allclose(np.sort(payload.means[:, 0]), [0.1 / 3, 5.0, 6.0], rtol=1e-12)


def test_centroids_keep_their_order_between_rounds() -> None:
    before = np.array([[0.0, 0], [5, 5], [9, 9]])
    after, shift = fkm.order_centroids(np.array([[9.0, 8], [0, 1], [5, 7], [70, 70]]), before)

    assert after.tolist() == [[0, 1], [5, 7], [9, 8], [70, 70]]
    assert shift == pytest.approx(2.0)


@pytest.mark.parametrize("max_rounds", [None, 50])
def test_the_paper_variant_has_a_fixed_number_of_rounds(max_rounds: int | None) -> None:
    sites = {s: np.random.default_rng(i).normal(size=(40, 2)) for i, s in enumerate("abc")}
    options = {"n_clusters": 3, "variant": "paper", "rounds": 4}
    result = simulate("fkm", sites, config=options, policy={**BARE, "max_rounds": max_rounds})

    assert [entry.phase for entry in result.history_] == ["seeds", *["means"] * 3, "evidence"]
    assert result.stopped_because_ == "finished"


# --- options --------------------------------------------------------------------------------------


def test_options_without_a_variant_are_those_of_the_default() -> None:
    assert isinstance(_config().options, DefaultConfig)
    assert isinstance(_config(variant="paper").options, PaperConfig)
    sites = {s: np.random.default_rng(i).normal(size=(40, 2)) for i, s in enumerate("abc")}
    with pytest.raises(ValueError, match=r"unknown option of this variant.*candidates"):
        simulate("fkm", sites, config={"n_clusters": 2, "rounds": 3})
    for variant in ("new", ["paper"], None):
        with pytest.raises(ValueError, match="variant is one of: default, paper"):
            simulate("fkm", sites, config={"n_clusters": 2, "variant": variant})
    frozen = simulate("fkm", sites, config={"n_clusters": 2}).definition.config
    assert frozen == DefaultConfig(n_clusters=2, variant="default").model_dump(mode="json")


# --- whole sessions -------------------------------------------------------------------------------


@pytest.mark.parametrize("options", VARIANTS)
@pytest.mark.parametrize("protection", ["groups", "none"])
def test_sites_with_different_clusters_find_them_all(options: Any, protection: str) -> None:
    centres = 8.0 * np.array([(i % 4, i // 4) for i in range(8)])
    held = [[i for i in range(8) if (i + site) % 3] for site in range(3)]
    rows, labels = some_of(centres, held, 30, seed=2)
    policy = {**BARE, "protection": protection}
    result = simulate("fkm", rows, config={"n_clusters": 8, **options}, policy=policy)

    assert agreement(result, labels) > 0.99


@pytest.mark.parametrize("protection", ["groups", "none"])
def test_candidates_reach_what_lloyd_reaches_from_the_same_cells(protection: str) -> None:
    rng = np.random.default_rng(5)
    rows = {site: rng.normal(size=(60, 3)) for site in "abc"}
    policy = {**BARE, "protection": protection}
    result = simulate("fkm", rows, config={"n_clusters": 6}, policy=policy)
    plain = simulate("lloyd", rows, config={"n_clusters": 6}, policy=policy)

    assert result.inertia_ <= plain.inertia_ * (1 + 1e-9)
