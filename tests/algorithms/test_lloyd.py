"""lloyd: one step and one aggregation against sums that the test computes by itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedclust.algorithms import engine, lloyd
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
    Totals,
)
from fedclust.algorithms.engine import Plan
from fedclust.algorithms.totals import SitePart

FEATURES = (Feature(name="age", lower=0, upper=10), Feature(name="dose"))


def _config(p: int = 2, roster: tuple[str, ...] = ("a", "b", "c"), **options: Any) -> RunConfig:
    return RunConfig(
        options=lloyd.Config(**{"n_clusters": 2, **options}),
        features=FEATURES,
        policy=Policy(min_group_size=p, scaling="none"),
        roster=roster,
        p=p,
        space=Space.identity(2),
    )


def _task(centroids: Any, part: SitePart | None = None) -> SiteTask:
    return SiteTask("lloyd", lloyd.StepTask(centroids=np.array(centroids, float)), part)


def _answer(task: SiteTask, X: Any, config: RunConfig, memory: Memory | None = None) -> Any:
    data = SiteData(np.array(X, dtype=float))
    return lloyd.local_step(task, data, config, np.random.default_rng(0), memory or {})


ROWS = [[1.0, 0.0], [2.0, 1.0], [3.0, 5.0], [8.0, 5.0], [9.0, 6.0]]


def test_a_step_sends_counts_sums_and_costs_of_the_nearest_centroid() -> None:
    payload, _ = _answer(_task([[0, 0], [9, 5]]), ROWS, _config())

    assert payload.counts.tolist() == [3, 2]
    np.testing.assert_allclose(payload.sums, [[6.0, 6.0], [17.0, 11.0]])
    np.testing.assert_allclose(payload.costs, [1 + 5 + 34, 1 + 1])
    assert payload.totals is None


def test_a_tie_goes_to_the_lowest_centroid() -> None:
    payload, _ = _answer(
        _task([[0, 0], [2, 0], [2, 0]]), [[1, 0], [1, 1], [2, 0], [2, 1]], _config()
    )

    assert payload.counts.tolist() == [2, 2, 0]


def test_totals_are_sent_when_asked_for_and_only_then() -> None:
    config = _config()
    asked = _task([[0, 0], [9, 5]], SitePart(totals=True))
    payload, _ = _answer(asked, ROWS, config)
    X = np.array(ROWS)

    assert payload.totals.n == 5
    np.testing.assert_allclose(payload.totals.mean, X.mean(axis=0))
    np.testing.assert_allclose(payload.totals.m2, 5 * X.var(axis=0))
    lloyd.check(asked, payload, config)
    with pytest.raises(RuleViolation, match="not asked for"):
        lloyd.check(_task([[0, 0], [9, 5]], SitePart(rows=5)), payload, config)
    bare = payload.model_copy(update={"totals": None})
    with pytest.raises(RuleViolation, match="are asked for"):
        lloyd.check(asked, bare, config)


def test_nothing_to_send_and_nothing_asked_is_an_empty_answer() -> None:
    far_apart = [[1.0, 0.0], [9.0, 6.0]]
    config = _config(p=3)

    assert _answer(_task([[0, 0], [9, 5]]), far_apart, config)[0] is None


def test_all_cells_too_small_still_sends_the_totals_that_are_asked_for() -> None:
    rows = [[1.0, 0.0], [1.0, 0.5], [9.0, 6.0], [9.0, 7.0]]
    task = _task([[0, 0], [9, 5]], SitePart(totals=True))
    payload, _ = _answer(task, rows, _config(p=3))

    assert payload.counts.tolist() == [0, 0]
    assert not payload.sums.any()
    assert not payload.costs.any()
    assert payload.totals.n == 4


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"counts": [1, 3]}, "smallest-count"),
        ({"counts": [2, 2]}, "complement"),
        ({"counts": [3, 4]}, "complement"),
        ({"counts": [-3, 2]}, "smallest-count"),
        ({"counts": [3, 2, 0]}, "shape"),
        ({"sums": [[6.0, 6.0, 0.0], [17.0, 11.0, 0.0]]}, "shape"),
        ({"sums": [[60.0, 6.0], [17.0, 11.0]]}, "bounds"),
        ({"costs": [1.0, 2.0]}, "cost"),
        ({"costs": [40.0, -2.0]}, "cost"),
        ({"costs": [40.0]}, "shape"),
        ({"counts": [5, 0]}, "empty-cell"),
    ],
)
def test_check_names_the_rule_and_repeats_no_value(change: dict[str, Any], rule: str) -> None:
    task = _task([[0, 0], [9, 5]], SitePart(rows=5))
    payload, _ = _answer(task, ROWS, _config())
    lloyd.check(task, payload, _config())
    dtypes = {"counts": np.int64, "sums": np.float64, "costs": np.float64}
    arrays = {name: np.array(value, dtype=dtypes[name]) for name, value in change.items()}

    with pytest.raises(RuleViolation) as caught:
        lloyd.check(task, payload.model_copy(update=arrays), _config())

    assert caught.value.rule == rule
    assert caught.value.pointer.startswith("/")
    assert "60" not in caught.value.message


def test_a_number_of_rows_outside_the_declared_band_is_refused() -> None:
    task = _task([[0, 0], [9, 5]], SitePart(totals=True))
    payload, _ = _answer(task, ROWS, _config())
    config = replace(_config(), size_band="50-199")

    with pytest.raises(RuleViolation, match="band"):
        lloyd.check(task, payload, config)


def _step(counts: Any, sums: Any, costs: Any, totals: Totals | None = None) -> lloyd.Step:
    return lloyd.Step(
        counts=np.array(counts),
        sums=np.array(sums, float),
        costs=np.array(costs, float),
        totals=totals,
    )


def test_centroids_are_sums_over_counts_and_an_empty_one_keeps_its_place() -> None:
    state = lloyd.State(phase="lloyd", seed=0, centroids=np.array([[0.0, 0.0], [9.0, 9.0]]))
    contributions = [
        Contribution("a", _step([2, 0], [[2, 4], [0, 0]], [9, 0]), 2),
        Contribution("b", _step([3, 0], [[8, 1], [0, 0]], [9, 0]), 2),
        Contribution("c", None, 2),
    ]
    two = Policy(min_group_size=2, min_sites=2, scaling="none")
    step = lloyd.aggregate(state, contributions, replace(_config(), policy=two))

    assert isinstance(step, Next)
    np.testing.assert_allclose(step.task.common.centroids, [[2.0, 1.0], [9.0, 9.0]])
    assert step.metrics["inertia"] == 18.0
    assert step.metrics["centroid_shift"] == pytest.approx(np.sqrt(5))
    assert {site: part.totals for site, part in step.task.per_site.items()} == {
        "a": True,
        "b": True,
        "c": True,
    }


def test_a_site_whose_totals_are_known_is_told_its_rows_and_a_late_one_is_asked() -> None:
    known = {"a": Totals(n=7, mean=np.zeros(2), m2=np.ones(2))}
    config = replace(_config(start="given", centroids=np.eye(2)), totals=known)
    _, task = lloyd.start(config, seed=1)

    assert task.per_site["a"] == SitePart(totals=False, rows=7)
    assert task.per_site["b"] == SitePart(totals=True, rows=None)


def test_no_cell_from_anyone_fails_and_says_what_to_change() -> None:
    totals = Totals(n=7, mean=np.zeros(2), m2=np.ones(2))
    empty = _step([0, 0], np.zeros((2, 2)), [0, 0], totals)
    state = lloyd.State(phase="lloyd", seed=0, centroids=np.eye(2))

    with pytest.raises(MethodFailure, match="min_group_size") as caught:
        lloyd.aggregate(state, [Contribution(s, empty, 2) for s in "abc"], _config())
    assert caught.value.reason == "nothing_to_release"


@pytest.mark.parametrize("phase", ["cells", "lloyd"])
def test_totals_make_no_contributor_to_the_centroids(phase: Any) -> None:
    """Centroids of one site's cells alone would be released, two others having sent totals."""
    totals = Totals(n=7, mean=np.zeros(2), m2=np.ones(2))

    def answer(*counts: int) -> Any:
        n, sums = np.array(counts), np.array(counts)[:, None] * np.ones((1, 2))
        if phase == "cells":
            return lloyd.Cells(counts=n, means=(sums > 0) * 1.0, totals=totals)
        return _step(n, sums, 0.0 * n, totals)

    state = lloyd.State(phase=phase, seed=0, centroids=None if phase == "cells" else np.eye(2))
    few = [
        Contribution("a", answer(4, 3), 2),
        Contribution("b", answer(0, 0), 2),
        Contribution("c", answer(0, 0), 2),
    ]
    with pytest.raises(MethodFailure, match="1 sites may send cells, 3 are needed") as caught:
        lloyd.aggregate(state, few, _config())
    assert caught.value.reason == "too_few_contributors"
    assert isinstance(
        lloyd.aggregate(state, [Contribution(s, answer(4, 3), 2) for s in "abc"], _config()), Next
    )


def test_local_cells_are_means_that_no_smaller_count_stands_behind() -> None:
    rng = np.random.default_rng(4)
    rows = np.concatenate([rng.normal(c, 0.1, size=(6, 2)) for c in (1.0, 4.0, 8.0)])
    config = _config(p=3, n_clusters=3)
    task = SiteTask("cells", lloyd.CellsTask(n_clusters=3, n_init=3), SitePart(totals=True))
    payload, _ = _answer(task, rows, config)

    lloyd.check(task, payload, config)
    assert sorted(payload.counts) == [6, 6, 6]
    expected = sorted(rows.reshape(3, 6, 2).mean(axis=1).tolist())
    np.testing.assert_allclose(sorted(payload.means.tolist()), expected)


def test_a_small_site_makes_no_more_cells_than_it_has_groups_of_p() -> None:
    rows = np.random.default_rng(5).uniform(0, 10, size=(9, 2))
    task = SiteTask("cells", lloyd.CellsTask(n_clusters=8, n_init=3), SitePart())
    payload, _ = _answer(task, rows, _config(p=4, n_clusters=8))

    assert payload.counts.shape == (8,)
    assert (payload.counts > 0).sum() <= 2


def test_rows_that_may_not_move_after_the_cells_stay_and_their_cell_with_them() -> None:
    """Two rows lie between two cells: in the first step they may not change place alone."""
    config = _config(p=5)
    rng = np.random.default_rng(6)
    rows = np.concatenate(
        [rng.normal(c, 0.1, size=(n, 2)) for c, n in ((2.0, 10), (5.5, 2), (8.0, 10))]
    )
    task = SiteTask("cells", lloyd.CellsTask(n_clusters=2, n_init=3), SitePart())
    cells, memory = _answer(task, rows, config)
    assert sorted(cells.counts) == [10, 12]
    # Nearest to the lower centroid now: 12 and 10 are wanted, 10 and 12 were sent.
    payload, _ = _answer(_task([[3.4, 3.4], [8.0, 8.0]]), rows, config, memory)

    assert payload.counts.tolist() == [10, 12]


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
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], pointer: str) -> None:
    with pytest.raises(RuleViolation) as caught:
        lloyd.check_config(_config(**options))
    assert caught.value.pointer == pointer


@pytest.mark.parametrize("wrong", [0, -1, True, 2.0, None, "2"])
def test_the_number_of_clusters_is_a_positive_int(wrong: Any) -> None:
    with pytest.raises(ValueError, match="n_clusters"):
        lloyd.Config(n_clusters=wrong)


def _plan(**policy: Any) -> Plan:
    return Plan(
        lloyd.METHOD,
        lloyd.Config(n_clusters=2, start="given", centroids=np.array([[0.0, 0.0], [9.0, 5.0]])),
        FEATURES,
        Policy(min_group_size=2, scaling="none", **policy),
        seed=0,
    )


def test_a_centre_nobody_has_rows_for_stays_where_it_was_given() -> None:
    plan = _plan()
    plan = Plan(
        plan.method,
        lloyd.Config(n_clusters=2, start="given", centroids=np.array([[2.0, 2.0], [9.0, 99.0]])),
        plan.features,
        plan.policy,
        0,
    )
    step: Next | Done = engine.start(plan, "abc")
    memory: dict[str, Memory] = {site: {} for site in "abc"}
    number = 0
    while isinstance(step, Next):
        number += 1
        answers = []
        for site in "abc":
            common, part = engine.write_task(plan, "s", number, step.task, site)
            task = engine.read_task(plan, common, part)
            payload, memory[site] = engine.local_step(
                plan,
                task,
                SiteData(np.array(ROWS[:3])),
                site=site,
                round_number=number,
                p=2,
                size_band="<50",
                memory=memory[site],
            )
            answers.append(Contribution(site, payload, 2))
        step = engine.advance(plan, step.state, answers, "abc")

    np.testing.assert_allclose(step.result.centroids, [[2.0, 2.0], [9.0, 99.0]])
    assert step.result.sizes == (9, 0)
    assert step.result.warnings == ()
