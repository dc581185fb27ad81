"""The engine: what travels, what is stored, who takes part, and how a session ends."""

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedclust import rounds
from fedclust.methods import lloyd
from fedclust.methods.common import kmeans_rounds
from fedclust.methods.common.finalize import merge_equal_centroids, sort_clusters
from fedclust.methods.fkm import MeansTask, PaperConfig, SeedsTask
from fedclust.methods.registry import METHODS
from fedclust.numeric.random import server_rng, site_rng
from fedclust.rounds import Plan, evaluation, evidence, preparation, sweep
from fedclust.rounds.sweep import SweepTask
from fedclust.schema.encoding import Space
from fedclust.schema.errors import MethodFailure, RuleViolation, broken_task_rule
from fedclust.schema.feature import Feature
from fedclust.schema.model import Model
from fedclust.schema.result import Result
from fedclust.schema.run_config import Policy
from fedclust.schema.task import Contribution, Next, SiteTask, Task
from fedclust.wire import codec
from support import processes
from support.driven import data_of, drive, plan_for, site_step
from support.points import violation, weighted
from support.results import result_of
from support.site_rows import blobs

CENTRES = np.array([[0.0, 0.0], [6.0, 0.0], [0.0, 6.0]])


def _sites(sizes: tuple[int, ...] = (12, 20, 31)) -> dict[str, np.ndarray]:
    return blobs(CENTRES, sizes)


# --- rounds ---------------------------------------------------------------------------------------


def test_preparation_then_the_method_then_evaluation() -> None:
    run = drive(plan_for(2, {"n_clusters": 3}), _sites())
    phases = [opened.phase for opened in run.rounds]

    assert phases[:3] == ["prepare", "cells", "lloyd"]
    assert phases[-1] == "evidence"
    assert set(phases[2:-1]) == {"lloyd"}
    assert [entry.phase for entry in run.result.history] == phases
    assert [entry.round for entry in run.result.history] == list(range(1, len(phases) + 1))
    assert run.result.n_rounds == len(phases) - 2
    assert run.result.stopped_because == "converged"


@pytest.mark.parametrize(
    ("policy", "prepared"),
    [
        ({"scaling": "none", "missing": "drop"}, False),
        ({"scaling": "standard", "missing": "drop"}, True),
        ({"scaling": "none"}, True),
    ],
)
def test_preparation_is_there_only_when_needed(policy: dict[str, Any], prepared: bool) -> None:
    run = drive(plan_for(2, {"n_clusters": 3}, policy), _sites())

    assert (run.rounds[0].phase == "prepare") == prepared


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_max_rounds_counts_the_methods_rounds_alone(limit: int) -> None:
    plan = plan_for(2, {"n_clusters": 3, "tol": 0.0}, {"max_rounds": limit})
    run = drive(plan, _sites())

    assert run.result.stopped_because == "max_rounds"
    assert run.result.n_rounds == limit
    assert len(run.rounds) == limit + 2
    assert run.result.quality is not None


def test_without_evaluation_quality_and_sizes_are_null() -> None:
    run = drive(plan_for(2, {"n_clusters": 3, "evaluate": False}), _sites())

    assert run.rounds[-1].phase == "lloyd"
    assert run.result.quality is None
    assert run.result.sizes is None
    assert run.result.site_sizes == {}


@pytest.mark.parametrize("phase", ["prepare", "cells", "lloyd"])
def test_too_few_contributors_fail_the_session_in_every_phase(phase: str) -> None:
    plan = plan_for(2, {"n_clusters": 3})
    run = drive(plan, _sites())
    opened = next(opened for opened in run.rounds if opened.phase == phase)
    answers = [Contribution(s, opened.payloads[s] if s != "b" else None, 5) for s in "abc"]

    with pytest.raises(MethodFailure) as caught:
        rounds.advance(plan, opened.state, answers, "abc")
    assert caught.value.reason == "too_few_contributors"


def test_a_site_answers_a_round_once() -> None:
    plan = plan_for(2, {"n_clusters": 3})
    opened = drive(plan, _sites()).rounds[0]
    answer = Contribution("a", opened.payloads["a"], 5)

    with pytest.raises(ValueError, match="once"):
        rounds.advance(plan, opened.state, [answer, answer, answer], "abc")


def test_every_round_is_the_same_in_any_order() -> None:
    plan = plan_for(2, {"n_clusters": 3}, {"max_rounds": 6})
    for opened in drive(plan, _sites()).rounds:
        outcomes = []
        for order in ("abc", "bca", "cba"):
            answers = [Contribution(site, opened.payloads[site], 5) for site in order]
            step = rounds.advance(plan, opened.state, answers, order)
            model = step.state if isinstance(step, Next) else step.result
            outcomes.append(codec.encode_model(model))
        assert outcomes[0] == outcomes[1] == outcomes[2]


def test_numbers_too_large_to_add_up_fail_the_session_and_nothing_worse() -> None:
    plan = plan_for(1, {"n_clusters": 1})
    huge = preparation.SiteMoments(
        n=9, observed=np.array([9]), mean=np.array([1e200]), m2=np.array([1e300])
    )
    small = huge.model_copy(update={"mean": np.array([-1e200])})
    state = rounds.start(plan, "abc").state

    with pytest.raises(MethodFailure) as caught:
        rounds.advance(
            plan,
            state,
            [Contribution("a", huge, 5), Contribution("b", small, 5), Contribution("c", small, 5)],
            "abc",
        )
    assert caught.value.reason == "overflow"


# --- who takes part -------------------------------------------------------------------------------


def test_a_late_joiner_takes_part_at_once_and_uses_the_sessions_scale() -> None:
    sites = blobs(CENTRES, (12, 20, 31, 15))
    plan = plan_for(2, {"n_clusters": 3, "tol": 0.0}, {"max_rounds": 6})
    run = drive(plan, sites, roster=lambda number: "abcd" if number >= 3 else "abc")

    assert run.rounds[2].payloads["d"].counts.sum() == 45
    spaces = [opened.tasks["a"].space for opened in run.rounds[1:]]
    assert all(np.array_equal(space.center, spaces[0].center) for space in spaces)
    assert sorted(run.result.site_sizes) == ["a", "b", "c", "d"]
    assert run.result.sizes == (78, 78, 78)


def test_a_site_that_leaves_or_misses_rounds_stops_nobody() -> None:
    sites = blobs(CENTRES, (12, 20, 31, 15))
    plan = plan_for(2, {"n_clusters": 3}, {"quorum": 3})
    run = drive(plan, sites, roster=lambda number: "abc" if number >= 4 else "abcd")

    assert run.result.stopped_because == "converged"
    assert sorted(run.result.site_sizes) == ["a", "b", "c"]
    np.testing.assert_allclose(run.result.centroids_original, CENTRES[[0, 2, 1]], atol=0.1)
    # Who missed a round is asked in the next.
    run = drive(plan, sites, silent=lambda number: "d" if number in (1, 2, 4) else "")

    assert run.result.stopped_because == "converged"
    assert run.result.sizes == (78, 78, 78)


@pytest.mark.parametrize("rows", [1, 4])
def test_a_site_with_fewer_rows_than_p_answers_empty_throughout(rows: int) -> None:
    sites = _sites() | {"tiny": np.arange(rows * 2.0).reshape(rows, 2)}
    run = drive(plan_for(2, {"n_clusters": 3}), sites)

    assert all(opened.payloads["tiny"] is None for opened in run.rounds)
    assert run.result.stopped_because == "converged"
    assert run.result.sizes == (63, 63, 63)
    labels = rounds.label(METHODS["lloyd"], run.result, sites["tiny"])
    assert (labels >= 0).all()


# --- rows -----------------------------------------------------------------------------------------


def _one_step(plan: Plan, X: Any) -> Any:
    step = rounds.start(plan, "abc")
    common, part = rounds.write_task(plan, "s", 1, step.task, "a")
    return site_step(plan, rounds.read_task(plan, common, part), weighted(X), "a", 1)[0]


def test_rows_that_cannot_be_computed_with_are_refused() -> None:
    plan = plan_for(2, {"n_clusters": 3})
    rows = np.ones((9, 2))
    rows[2:5, 1] = [np.inf, -np.inf, np.inf]

    with pytest.raises(RuleViolation, match=r"'x1': 3"):
        _one_step(plan, rows)
    with pytest.raises(RuleViolation, match="column"):
        rounds.label(plan, _result(), rows)
    with pytest.raises(RuleViolation, match="columns"):
        _one_step(plan, np.ones((9, 3)))
    with pytest.raises(RuleViolation, match="too large") as caught:
        _one_step(plan, np.random.default_rng(0).normal(size=(20, 2)) * 1e200)
    assert caught.value.rule == "overflow"


def test_an_invalid_payload_of_a_method_is_not_taken_for_large_values() -> None:
    def made_by_mistake(*_: Any) -> Any:
        return kmeans_rounds.Cells(counts=np.array([5.0]), means=np.zeros((1, 2)))

    plan = plan_for(2, {"n_clusters": 3}, {"scaling": "none", "missing": "drop"})
    phases = tuple(replace(each, local_step=made_by_mistake) for each in plan.method.phases)
    wrong = replace(plan, method=replace(plan.method, phases=phases))
    with pytest.raises(RuleViolation, match=r"lloyd .* invalid payload in phase 'cells': /counts"):
        _one_step(wrong, np.random.default_rng(0).normal(size=(20, 2)))


def test_a_method_on_points_remembers_how_far_the_session_is_and_nothing_else() -> None:
    """So an answer is a function of the table and the task: any repetition gives the same bytes."""
    plan = plan_for(2, {"n_clusters": 3})
    sites = _sites()
    data, memory = data_of(plan, sites["b"]), dict[str, Any]()
    for entry in drive(plan, sites).rounds:
        payload, memory = site_step(
            plan,
            entry.tasks["b"],
            data,
            "b",
            entry.number,
            memory=codec.decode(codec.encode(memory)),
        )
        assert codec.encode_model(payload) == codec.encode_model(entry.payloads["b"])
        assert set(memory) == {"progress"}


# --- tasks as consented ---------------------------------------------------------------------------

SPACE = Space.identity(2)


def _asked(plan: Plan, tasks: list[SiteTask]) -> None:
    """Ask one site these tasks in turn."""
    data, memory = data_of(plan, _sites()["a"]), dict[str, Any]()
    for number, task in enumerate(tasks, 1):
        _, memory = site_step(
            plan,
            replace(task, space=None if task.phase == "prepare" else task.space or SPACE),
            data,
            "a",
            number,
            memory=codec.decode(codec.encode(memory)),
        )


def _prepare() -> SiteTask:
    return SiteTask("prepare", preparation.PreparationTask())


def _cells(k: int = 3) -> SiteTask:
    return SiteTask("cells", kmeans_rounds.CellsTask(n_clusters=k, n_init=3))


def _lloyd(k: int = 3) -> SiteTask:
    return SiteTask("lloyd", kmeans_rounds.StepTask(centroids=np.arange(2.0 * k).reshape(k, 2)))


def _evaluate(k: int = 3) -> SiteTask:
    centroids = np.arange(2.0 * k).reshape(k, 2)
    return _evidence(evaluation.EvaluationTask(centroids=centroids))


def _evidence(part: evaluation.EvaluationTask) -> SiteTask:
    none = np.zeros(0, dtype=np.int64)
    return SiteTask("evidence", evidence.EvidenceTask(n_clusters=none, parts=(part,)))


@pytest.mark.parametrize(
    "wrong",
    [
        _evidence(
            evaluation.EvaluationTask(
                centroids=np.eye(2), mask=np.array([[True, False], [True, True]])
            )
        ),
        _evidence(
            evaluation.EvaluationTask(
                centroids=np.eye(2),
                prototypes=np.zeros((500, 2)),
                prototype_centroids=np.zeros(500, dtype=np.int64),
            )
        ),
    ],
    ids=["a mask", "prototypes"],
)
def test_a_site_answers_no_task_of_another_form(wrong: SiteTask) -> None:
    plan = plan_for(2, {"n_clusters": 3})
    broken = violation(_asked, plan, [_prepare(), _cells(), _lloyd(), wrong])
    assert broken_task_rule(broken) is not None


def test_a_site_answers_no_phase_that_the_definition_has_not() -> None:
    given = {"n_clusters": 3, "start": "given", "centroids": np.arange(6.0).reshape(3, 2)}
    with pytest.raises(RuleViolation, match="no phase 'cells'"):
        _asked(plan_for(2, given), [_prepare(), _cells()])
    unscaled = plan_for(2, {"n_clusters": 3}, {"scaling": "none", "missing": "drop"})
    with pytest.raises(RuleViolation, match="scaled space"):
        _asked(unscaled, [replace(_cells(), space=SPACE.model_copy(update={"center": np.ones(2)}))])


def test_a_site_answers_the_fixed_number_of_rounds_of_a_method() -> None:
    options = PaperConfig(n_clusters=3, variant="paper", rounds=3)
    paper = replace(plan_for(2, {"n_clusters": 3}), method=METHODS["fkm"], options=options)
    means = SiteTask("means", MeansTask(centroids=np.zeros((3, 2))))
    _asked(paper, [_prepare(), SiteTask("seeds", SeedsTask()), means, means, _evaluate()])
    with pytest.raises(RuleViolation, match="3 rounds"):
        _asked(paper, [_prepare(), SiteTask("seeds", SeedsTask()), means, means, means])


@pytest.mark.parametrize("scaling", ["standard", "none"])
def test_the_first_round_starts_from_the_given_centroids(scaling: str) -> None:
    given = {"n_clusters": 3, "start": "given", "centroids": CENTRES}
    plan = plan_for(2, given, {"scaling": scaling})
    run = drive(plan, _sites())
    start = next(opened for opened in run.rounds if opened.phase == "lloyd")
    data, asked = data_of(plan, _sites()["a"]), start.tasks["a"]

    def ask(centroids: np.ndarray, round_number: int = start.number) -> None:
        task = replace(asked, common=kmeans_rounds.StepTask(centroids=centroids))
        site_step(plan, task, data, "a", round_number)

    centroids = asked.common.centroids
    ask(centroids)
    # Another processor has another last digit.
    ask(centroids * (1.0 + 1e-15))
    for wrong in (centroids + 1e-6, centroids[::-1], centroids[:2]):
        with pytest.raises(RuleViolation, match="another first task"):
            ask(wrong)
        # A site that comes later does not know what the rounds before came to.
        ask(wrong, start.number + 1)


def test_in_a_sweep_every_k_is_held_to_its_own() -> None:
    options = lloyd.Config(n_clusters=(2, 3))
    base = plan_for(2, {"n_clusters": 3})
    plan = replace(base, method=sweep.for_options(base.method, options), options=options)

    def closing(*ks: int) -> SiteTask:
        parts = tuple(_evaluate(k).common.parts[0] for k in ks)
        return SiteTask("evidence", evidence.EvidenceTask(n_clusters=np.array([2, 3]), parts=parts))

    def several(*parts: SiteTask) -> SiteTask:
        common = SweepTask(n_clusters=(2, 3), parts=tuple(part.common for part in parts))
        return SiteTask(parts[0].phase, common)

    first = [_prepare(), several(_cells(2), _cells(3))]
    _asked(plan, [*first, several(_lloyd(2), _lloyd(3)), closing(2, 3)])
    for wrong in (several(_lloyd(3), _lloyd(3)), closing(2, 4)):
        with pytest.raises(RuleViolation, match="clusters"):
            _asked(plan, [*first, wrong])
    with pytest.raises(RuleViolation, match="over in this session"):
        _asked(plan, [*first, first[1]])


_THREADS = """
import sys, threading
import numpy
from threadpoolctl import threadpool_info
from fedclust.numeric.threads import one_thread

def numbers(kind="blas"):
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == kind}

with one_thread():
    import scipy.linalg  # It has a BLAS of its own.
    print(numbers() == {1})
    import sklearn  # It has OpenMP.
    with one_thread():
        print(numbers("openmp") == {1})

before, seen = numbers(), []
entered, leave = threading.Event(), threading.Event()

def inside():
    with one_thread():
        entered.set()
        leave.wait()
        seen.append(numbers())

other = threading.Thread(target=inside)
with one_thread():
    seen.append(numbers())
    other.start()
    entered.wait()
leave.set()
other.join()
print(seen == [{1}, {1}], numbers() == before)
with one_thread():
    print(numbers() == {1})
print(numbers() == before)
"""


def test_threads_inside_keep_one_another_at_one_blas_thread() -> None:
    env = {**os.environ, "OPENBLAS_NUM_THREADS": "2", "OMP_NUM_THREADS": "2"}
    done = processes.run([sys.executable, "-c", _THREADS], env=env)

    assert done.stdout.split() == ["True"] * 6, done.stderr


# --- tasks ----------------------------------------------------------------------------------------


def _written() -> tuple[Any, Any]:
    space = SPACE.model_copy(update={"limit": np.full(2, 100.0)})
    task = Task("lloyd", kmeans_rounds.StepTask(centroids=np.zeros((3, 2))), space=space)
    return rounds.write_task(plan_for(2, {"n_clusters": 3}), "s", 2, task, "a")


_SENT_SPACE = _written()[0]["space"]
_CHANGES: dict[str, dict[str, Any]] = {
    "engine": {"phase": "prepare"},
    "extra": {"more": 1},
    "parameters": {"parameters": {"centroids": "none"}},
    "space": {"space": None},
    "width": {"space": _SENT_SPACE | {"center": np.zeros(3)}},
    "scale": {"space": _SENT_SPACE | {"scale": np.array([1.0, 0.0])}},
    "impute": {"space": _SENT_SPACE | {"impute": np.zeros(2)}},
    "limit": {"space": _SENT_SPACE | {"limit": None}},
    "zero limit": {"space": _SENT_SPACE | {"limit": np.zeros(2)}},
    "limits": {"space": _SENT_SPACE | {"limit": np.ones(3)}},
    "session": {"session": "../x"},
}


def _tampered(change: dict[str, Any]) -> tuple[Any, Any]:
    common, part = _written()
    return common | change, part


@pytest.mark.parametrize("change", _CHANGES.values(), ids=_CHANGES)
def test_a_task_that_does_not_fit_the_plan_is_refused_at_the_site(change: dict[str, Any]) -> None:
    plan = plan_for(2, {"n_clusters": 3}, {"missing": "drop"})
    common, part = _written()
    assert (common["session"], common["round"]) == ("s", 2)
    rounds.read_task(plan, common, part)

    with pytest.raises(RuleViolation):
        rounds.read_task(plan, *_tampered(change))
    with pytest.raises(RuleViolation, match="no phase 'elbow'; it has: cells, lloyd"):
        rounds.read_task(plan, *_tampered({"phase": "elbow"}))


# --- results --------------------------------------------------------------------------------------


def _result(**update: Any) -> Result:
    return Result(
        centroids=np.array([[0.0, 0.0], [1.0, 1.0]]),
        centroids_original=np.array([[10.0, 5.0], [12.0, 6.0]]),
        center=np.array([10.0, 5.0]),
        scale=np.array([2.0, 1.0]),
        **update,
    )


def test_labels_are_by_nearest_scaled_centroid_and_missing_rows_get_none() -> None:
    rows = np.array([[10.2, 5.1], [12.4, 6.0], [np.nan, 5.6]])

    assert rounds.label(METHODS["lloyd"], _result(), rows).tolist() == [0, 1, -1]
    imputing = _result(impute=np.array([12.0, 5.9]))
    assert rounds.label(METHODS["lloyd"], imputing, rows).tolist() == [0, 1, 1]
    with pytest.raises(RuleViolation, match="columns"):
        rounds.label(METHODS["lloyd"], _result(), np.ones((2, 3)))


@given(st.permutations(range(4)), st.integers(0, 3))
@settings(max_examples=30)
def test_results_are_sorted_once_and_equal_centroids_are_merged(
    order: list[int], repeated: int
) -> None:
    centroids = np.array([[0.0, 1.0], [0.0, 2.0], [-0.0, 3.0], [5.0, -1.0]])
    raw = np.concatenate([centroids[order], centroids[[repeated]]])
    firsts, cells = merge_equal_centroids(raw)
    distinct = raw[firsts]
    np.testing.assert_array_equal(distinct[cells], raw)
    result = sort_clusters(
        Result(
            centroids=raw,
            centroids_original=raw * [2, 1] + [1, 0],
            center=np.array([1.0, 0.0]),
            scale=np.array([2.0, 1.0]),
            mapping={"a": (0, 4)},
        ),
        5,
    )

    np.testing.assert_array_equal(result.centroids, centroids)
    np.testing.assert_array_equal(result.centroids_original, centroids * [2, 1] + [1, 0])
    assert result.mapping["a"] == (order[0], repeated)
    again = sort_clusters(result, None)
    np.testing.assert_array_equal(again.centroids, result.centroids)
    assert again.mapping == result.mapping
    (warning,) = result.warnings
    assert "4 distinct" in warning


def test_sizes_that_a_method_counts_follow_its_clusters() -> None:
    raw = result_of([[5.0], [1.0]], profile=None, sizes=(50, 10), site_sizes={"a": (50, 10)})
    result = sort_clusters(raw, None)
    assert result.sizes == result.site_sizes["a"] == (10, 50)


def test_generators_depend_on_seed_site_and_round_and_on_nothing_else() -> None:
    draws = {
        site_rng(seed, site, number).integers(2**62)
        for seed in (0, 1)
        for site in ("a", "a1", "b")
        for number in (1, 11)
    }

    assert len(draws) == 12
    assert site_rng(0, "a", 11).integers(2**62) == site_rng(0, "a", 11).integers(2**62)
    assert server_rng(0, "a").integers(2**62) != site_rng(0, "a", 1).integers(2**62)


# --- phases ---------------------------------------------------------------------------------------


def sent_fields(payload: type[Model]) -> Iterator[str]:
    """Yield the fields that a payload sends, those of its parts included."""
    for name, field in payload.model_fields.items():
        parts = [kind for kind in kinds_in(field.annotation) if issubclass(kind, Model)]
        yield from [f"{name}.{own}" for own in sent_fields(parts[0])] if parts else [name]


def kinds_in(annotation: Any) -> Iterator[type]:
    if isinstance(annotation, type) and not get_args(annotation):
        yield annotation
    for each in get_args(annotation):
        yield from kinds_in(each)


def test_every_phase_of_every_method_declares_every_field_that_it_sends() -> None:
    for name, method in METHODS.items():
        assert method.name == name
        names = [phase.name for phase in rounds.all_phases(method)]
        assert len(set(names)) == len(names)
        assert {preparation.NAME, evidence.NAME} <= set(names)
        for phase in rounds.all_phases(method):
            declared = [line.field for line in phase.discloses]
            assert declared == list(sent_fields(phase.payload)), phase.name
            assert rounds.phase(method, phase.name) is phase
            for line in phase.discloses:
                assert line.meaning.endswith(".")
                assert line.identifies.endswith(".")
    with pytest.raises(KeyError):
        rounds.phase(METHODS["lloyd"], "elbow")


def test_a_session_over_bounds_that_drops_needs_no_preparation() -> None:
    features = (Feature(name="x0", lower=-1, upper=7), Feature(name="x1", lower=-1, upper=7))
    policy = Policy(scaling="bounds", missing="drop")
    base = plan_for(2, {"n_clusters": 3})
    plan = Plan(base.method, base.options, features, policy, 0)
    run = drive(plan, _sites())

    assert run.rounds[0].phase == "cells"
    assert run.result.center.tolist() == [-1.0, -1.0]
    assert run.result.scale.tolist() == [8.0, 8.0]
