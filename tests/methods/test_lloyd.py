"""lloyd: steps and aggregations against sums over repeated points, and whole sessions."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedclust.methods import lloyd
from fedclust.methods.common import kmeans_rounds
from fedclust.rounds import Plan
from fedclust.schema.feature import Feature
from fedclust.schema.model import Memory
from fedclust.schema.run_config import Policy, RunConfig
from fedclust.schema.task import Contribution, Next, SiteTask
from support.driven import drive
from support.points import answer_task, check_answer, config_of, violation, weighted

FEATURES = (Feature(name="age", lower=0, upper=10), Feature(name="dose"))
X = [[1.0, 0.0], [2.0, 1.0], [3.0, 5.0], [8.0, 5.0], [9.0, 6.0]]
SIZES = [5, 7, 5, 9, 6]


def _config(p: int = 5, **options: Any) -> RunConfig:
    return config_of(lloyd.Config(**{"n_clusters": 2, **options}), p=p, features=FEATURES)


def _task(centroids: Any) -> SiteTask:
    return SiteTask("lloyd", kmeans_rounds.StepTask(centroids=np.array(centroids, float)))


def _answer(task: SiteTask, config: RunConfig | None = None) -> Any:
    memory: Memory = {}
    points, config = weighted(X, SIZES), config or _config()
    payload = answer_task(lloyd.METHOD, task, points, config, memory=memory)
    assert memory == {}
    return payload


def test_a_step_sends_counts_sums_and_costs_of_the_nearest_centroid() -> None:
    payload = _answer(_task([[0, 0], [9, 5]]))

    assert payload.counts.tolist() == [17, 15]
    np.testing.assert_allclose(payload.sums, [[5 + 14 + 15, 7 + 25], [72 + 54, 45 + 36]])
    np.testing.assert_allclose(payload.costs, [5 * 1 + 7 * 5 + 5 * 34, 9 * 1 + 6 * 1])


def test_a_tie_goes_to_the_lowest_centroid() -> None:
    assert _answer(_task([[1, 0], [9, 6], [9, 6]])).counts.tolist() == [17, 15, 0]


def test_a_site_sends_its_own_clusters_padded_to_the_number_asked_for() -> None:
    rng = np.random.default_rng(4)
    centres = np.array([[1.0, 1.0], [4.0, 4.0], [8.0, 8.0]])
    points = weighted(np.repeat(centres, 6, axis=0) + rng.normal(size=(18, 2)) / 10, 5)
    config = _config(n_clusters=5)
    task = SiteTask("cells", kmeans_rounds.CellsTask(n_clusters=3, n_init=3))
    payload = answer_task(lloyd.METHOD, task, points, config, rng=rng)
    assert isinstance(payload, kmeans_rounds.Cells)

    order = np.argsort(payload.means[:, 0])
    assert payload.counts.tolist() == [30, 30, 30]
    expected = points.X.reshape(3, 6, 2).mean(axis=1)
    np.testing.assert_allclose(payload.means[order], expected)
    few = replace(task, common=kmeans_rounds.CellsTask(n_clusters=20, n_init=3))
    payload = answer_task(lloyd.METHOD, few, points, config, rng=rng)
    assert isinstance(payload, kmeans_rounds.Cells)
    assert payload.counts.tolist() == [5] * 18 + [0, 0]
    assert not payload.means[18:].any()


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"counts": [4, 15]}, "smallest-count"),
        ({"counts": [-17, 15]}, "smallest-count"),
        ({"counts": [17, 15, 0]}, "shape"),
        ({"counts": [0, 0]}, "empty"),
        ({"counts": [32, 0]}, "empty-cell"),
        ({"sums": [[6.0, 6.0, 0.0], [17.0, 11.0, 0.0]]}, "shape"),
        ({"sums": [[600.0, 32.0], [126.0, 81.0]]}, "bounds"),
        ({"costs": [1.0, 15.0]}, "cost"),
        ({"costs": [210.0, -2.0]}, "cost"),
        ({"costs": [210.0]}, "shape"),
    ],
)
def test_check_names_the_rule_and_repeats_no_value(change: dict[str, Any], rule: str) -> None:
    task = _task([[0, 0], [9, 5]])
    payload = _answer(task)
    arrays = {name: np.array(value, getattr(payload, name).dtype) for name, value in change.items()}

    broken = violation(
        check_answer, lloyd.METHOD, task, payload.model_copy(update=arrays), _config()
    )
    assert broken.rule == rule
    assert broken.pointer.startswith("/")
    assert "600" not in broken.message


def _step(counts: Any, sums: Any, costs: Any) -> kmeans_rounds.Step:
    return kmeans_rounds.Step(
        counts=np.array(counts), sums=np.array(sums, float), costs=np.array(costs, float)
    )


def test_centroids_are_sums_over_counts_and_empty_ones_keep_their_place() -> None:
    state = lloyd.State(seed=0, centroids=np.array([[0.0, 0.0], [9.0, 9.0]]))
    contributions = [
        Contribution("a", _step([2, 0], [[2, 4], [0, 0]], [9, 0]), 2),
        Contribution("b", _step([3, 0], [[8, 1], [0, 0]], [9, 0]), 2),
        Contribution("c", None, 2),
    ]
    step = lloyd.aggregate(state, contributions, _config())

    assert isinstance(step, Next)
    np.testing.assert_allclose(step.task.common.centroids, [[2.0, 1.0], [9.0, 9.0]])
    assert step.metrics["inertia"] == 18.0
    assert step.metrics["centroid_shift"] == pytest.approx(np.sqrt(5))
    assert step.state.judgement.best.costs == {"a": 9.0, "b": 9.0, "c": None}


@pytest.mark.parametrize(
    ("options", "pointer"),
    [
        ({"start": "given"}, "/centroids"),
        ({"start": "given", "centroids": np.eye(3)}, "/centroids"),
        ({"start": "given", "centroids": np.array([[1.0, 2.0]])}, "/centroids"),
        ({"start": "given", "centroids": np.array([[1.0, 2.0], [11.0, 2.0]])}, "/centroids/1/0"),
        ({"centroids": np.eye(2)}, "/centroids"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], pointer: str) -> None:
    assert violation(lloyd.METHOD.check_config, _config(**options)).pointer == pointer


# --- whole sessions -------------------------------------------------------------------------------


def _plan(d: int, protection: str, start: Any, **policy: Any) -> Plan:
    config = config_of(None, d=d, protection=protection, max_rounds=500, **policy)
    options = lloyd.Config(n_clusters=len(start), start="given", centroids=start, tol=0.0)
    return Plan(lloyd.METHOD, options, config.features, config.policy, seed=0)


def test_a_given_centroid_without_rows_keeps_its_place() -> None:
    rows = np.repeat([[1.0, 0.0], [2.0, 1.0], [3.0, 5.0]], 5, axis=0)
    start = np.array([[2.0, 2.0], [9.0, 99.0]])
    result = drive(_plan(2, "none", start), dict.fromkeys("abc", rows)).result

    np.testing.assert_allclose(result.centroids, [[2.0, 2.0], [9.0, 99.0]])
    assert result.sizes == (45, 0)
    assert result.warnings == ("1 of the 2 clusters hold no persons: try a smaller K.",)


def test_the_best_round_wins_and_the_last_one_is_the_best() -> None:
    """The cost of a round over the points is exact: Lloyd's steps never make it worse."""
    rng = np.random.default_rng(9)
    sites = {site: rng.normal(size=(90, 2)) for site in "abc"}
    plan = _plan(2, "groups", rng.normal(size=(5, 2)))
    run = drive(replace(plan, policy=Policy(scaling="none", max_rounds=7)), sites)

    costs = [entry.inertia for entry in run.result.history if entry.phase == "lloyd"]
    assert all(after <= before * (1 + 1e-12) for before, after in itertools.pairwise(costs))
    last = next(opened for opened in reversed(run.rounds) if opened.phase == "lloyd")
    asked = last.tasks["a"].common.centroids
    np.testing.assert_allclose(run.result.centroids, asked[np.lexsort(asked.T[::-1])], rtol=1e-12)
