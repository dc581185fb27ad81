"""The rounds after the method's: what they ask, what comes back, and what it adds up to."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.datasets import make_blobs

from fedclust import rounds, simulate
from fedclust.definition import DefinitionError, plan_of
from fedclust.rounds.record_cells import cluster_records
from fedclust.schema.errors import RuleViolation
from fedclust.schema.task import Contribution, Done, Next, Points
from support.driven import site_step

SITES = ("berlin", "oslo", "porto", "riga")


def blobs(centers: int = 3, n: int = 480, seed: int = 0) -> dict[str, np.ndarray]:
    X, _ = make_blobs(n, centers=centers, n_features=4, random_state=seed)
    return dict(zip(SITES, np.array_split(X, len(SITES)), strict=True))


def run(config, sites=None, **more):
    config = {"n_clusters": 3, "stability": 20, **config}
    return simulate("lloyd", blobs() if sites is None else sites, config=config, **more)


@pytest.fixture(scope="module")
def swept():
    return run({"n_clusters": [2, 3, 4]}, policy={"protection": "none"})


@pytest.fixture(scope="module")
def found():
    return run({})


@pytest.fixture(scope="module")
def plain():
    return run({"stability": 0})


def test_a_session_with_stability_takes_one_more_round_and_says_how_stable_clusters_are(
    found, plain
):
    closing = [entry.phase for entry in found.history_[-2:]]
    assert closing == ["evidence", "resampling"]
    assert len(found.history_) == len(plain.history_) + 1
    assert plain.stability_ is None
    stability = found.stability_
    assert stability.n_models == 20
    # Three groups far apart: every model finds each of them.
    assert stability.jaccard.min() > 0.99
    assert np.diag(stability.consensus).min() > 0.99
    # The clusters and all that was known of them are those of a session without it.
    assert found.cluster_centers_.tobytes() == plain.cluster_centers_.tobytes()
    assert found.sizes_ == plain.sizes_
    assert found.inertia_ == pytest.approx(plain.inertia_, rel=1e-12)


def test_every_number_of_clusters_has_its_own_stability(swept):
    jaccard = {entry.n_clusters: entry.result.stability.jaccard for entry in swept.sweep_}
    assert {k: len(found) for k, found in jaccard.items()} == {2: 2, 3: 3, 4: 4}
    assert jaccard[3].min() > 0.99 > jaccard[4].min()
    assert swept.result.stability is not None


def test_the_tables_count_every_person_of_a_site_for_each_model(swept):
    sizes = {site: len(rows) for site, rows in blobs().items()}
    sent = [entry.payload for entry in swept.trace_ if entry.phase == "resampling"]
    for site, payload in zip(SITES, sent, strict=True):
        for part in payload.parts:
            assert (part.models.sum(axis=(1, 2)) == sizes[site]).all()


@pytest.mark.parametrize(
    ("method", "config", "policy", "says"),
    [
        ("lloyd", {"stability": 19}, {}, "from 20 to 500"),
        ("lloyd", {"stability": 501}, {}, "from 20 to 500"),
        ("lloyd", {"stability": 100, "evaluate": False}, {}, "leave evaluate on"),
        ("overlap", {"stability": 100}, {"missing": "mask"}, "every column at every site"),
        ("spectral", {"stability": 100}, {}, "by prototypes, not by centroids: leave stability"),
        ("mixture", {"evidence": True}, {}, "by their BIC: leave evidence out"),
        ("lloyd", {"evidence": True, "stability": 0, "evaluate": False}, {}, "leave evaluate on"),
        ("lloyd", {"stability": 500, "n_clusters": 3_000}, {}, "at most"),
        # The answer's tables have K x K numbers: more than fit into one request.
        ("lloyd", {"stability": 500, "n_clusters": 100}, {}, "at most 400"),
    ],
)
def test_what_cannot_be_measured_is_refused_with_what_to_change(method, config, policy, says):
    with pytest.raises(DefinitionError, match=says):
        simulate(method, blobs(), config={"n_clusters": 3, **config}, policy=policy)


# --- the engine's two sides -----------------------------------------------------------------------


def steps(result):
    """Yield each round of a session as the coordinator sees it: its state, task and answers."""
    plan = plan_of(result.definition)
    step = rounds.start(plan, SITES)
    by_round = {}
    for entry in result.trace_:
        by_round.setdefault(entry.round, []).append(entry)
    while isinstance(step, Next):
        answers = [Contribution(e.site, e.payload, p=5) for e in by_round[step.state.round]]
        yield plan, step, answers
        step = rounds.advance(plan, step.state, answers, SITES)


@pytest.mark.parametrize(("phase", "lost"), [("evidence", "sizes"), ("resampling", "stability")])
def test_a_closing_round_that_too_few_sites_answer_leaves_the_result_as_it_was(found, phase, lost):
    plan, step, answers = next(each for each in steps(found) if each[1].task.phase == phase)
    empty = [replace(each, payload=None) for each in answers[:2]] + answers[2:]
    done = rounds.advance(plan, step.state, empty, SITES)
    assert isinstance(done, Done)
    assert np.array_equal(done.result.centroids, found.result.centroids)
    assert done.result.stability is None
    assert any(lost in warning for warning in done.result.warnings)
    assert (done.result.sizes is None) == (phase == "evidence")


def test_a_closing_round_in_which_every_k_lacks_answers_leaves_the_clusterings(swept):
    """Each site answers about one K alone, so fewer than min_sites measure any of the three."""
    plan, step, answers = next(each for each in steps(swept) if each[1].task.phase == "evidence")
    alone = []
    for number, each in enumerate(answers):
        parts = [part if k == number % 3 else None for k, part in enumerate(each.payload.parts)]
        payload = each.payload.model_copy(update={"parts": tuple(parts)})
        alone.append(replace(each, payload=payload))
    done = rounds.advance(plan, step.state, alone, SITES)
    assert done.result.warnings[0].startswith("sizes and quality are not known")
    for k in (2, 3, 4):
        own = done.result.at(k)
        assert np.array_equal(own.centroids, swept.result.at(k).centroids)
        assert (own.sizes, own.quality, own.one_cloud) == (None, None, None)


def test_a_site_that_misses_the_last_round_does_not_stop_it(found):
    *_, (plan, step, answers) = steps(found)
    done = rounds.advance(plan, step.state, answers[1:], SITES)
    assert isinstance(done, Done)
    assert done.result.stability.jaccard.min() > 0.99


def site_task(result, phase):
    entry = next(each for each in result.trace_ if each.phase == phase)
    return plan_of(result.definition), entry


def answer(plan, task):
    rows = blobs()["berlin"]
    points = Points(rows[:12], np.full(12, 5), np.zeros(rows.shape[1]))
    memory = {"progress": {"phase": 0, "rounds": 1, "space": None}}
    return site_step(plan, task, points, "berlin", 9, memory=memory)


def changed(task, **update):
    return replace(task, common=task.common.model_copy(update=update))


def test_a_site_refuses_a_task_that_the_definition_does_not_provide_for(found, plain):
    plan, entry = site_task(found, "evidence")
    assert answer(plan, entry.task)[0] is not None
    with pytest.raises(RuleViolation, match="numbers of clusters"):
        answer(plan, changed(entry.task, n_clusters=np.array([3])))
    four = entry.task.common.parts[0].model_copy(
        update={"centroids": np.arange(16, dtype=float).reshape(4, 4)}
    )
    with pytest.raises(RuleViolation, match="3 clusters"):
        answer(plan, changed(entry.task, parts=(four,)))

    plan, entry = site_task(found, "resampling")
    assert answer(plan, entry.task)[0] is not None
    part = entry.task.common.parts[0]
    more = part.model_copy(update={"models": np.concatenate([part.models, part.models])})
    with pytest.raises(RuleViolation, match="provides for 20 models"):
        answer(plan, changed(entry.task, parts=(more,)))
    with pytest.raises(RuleViolation, match="no phase 'resampling'"):
        answer(plan_of(plain.definition), entry.task)


def check(result, phase, change):
    plan, entry = site_task(result, phase)
    rounds.check(plan, entry.task, change(entry.payload), p=5, size_band=None)


def part_changed(payload, **update):
    part = payload.parts[0].model_copy(update=update)
    return payload.model_copy(update={"parts": (part, *payload.parts[1:])})


def test_an_answer_that_does_not_add_up_is_refused_at_both_ends(found):
    def moved(payload):
        models = np.array(payload.parts[0].models)
        models[3, 0, 0] += 5
        return part_changed(payload, models=models)

    def small(payload):
        models = np.array(payload.parts[0].models)
        models[0, 0, 1] = 1
        return part_changed(payload, models=models)

    def cells(**update):
        return lambda p: p.model_copy(update={"cells": p.cells.model_copy(update=update)})

    check(found, "resampling", lambda payload: payload)
    check(found, "evidence", lambda payload: payload)
    with pytest.raises(RuleViolation, match="do not add up"):
        check(found, "resampling", moved)
    with pytest.raises(RuleViolation, match="0 or at least 5"):
        check(found, "resampling", small)
    with pytest.raises(RuleViolation, match="where the session asks for them"):
        check(found, "evidence", lambda p: p.model_copy(update={"cells": None}))
    described = {"n_values": np.array([2, 0, 0, 0]), "values": np.array([0.0, 1.0])}
    total = int(found.trace_[-5].payload.cells.counts.sum())
    every = {**described, "persons": np.array([20, total - 20])}
    check(found, "evidence", cells(**every))
    for update, says in (
        ({"n_values": np.array([11, 0, 0, 0])}, "at most 10 values"),
        ({"values": np.array([1.0, 0.0])}, "ascend"),
        ({"values": np.array([0.0, 1e9])}, "within its bounds"),
        ({"persons": np.array([20, total])}, "whose value is known"),
        ({"persons": np.array([4, total - 4])}, "at least 5"),
        ({"middles": np.full((len(found.trace_[-5].payload.cells.counts), 1), 0.5)}, "middle"),
        ({"middles": np.zeros((1, 1))}, "shape"),
    ):
        with pytest.raises(RuleViolation, match=says):
            check(found, "evidence", cells(**{**every, **update}))


def without_second(payload):
    one, _, last = payload.parts
    return payload.model_copy(update={"parts": (one, None, last)})


def test_a_number_of_clusters_is_measured_where_enough_sites_have_persons(swept):
    check(swept, "evidence", without_second)
    plan, step, answers = next(e for e in steps(swept) if e[1].task.phase == "evidence")
    few = [replace(a, payload=without_second(a.payload)) for a in answers[:2]]
    state = rounds.advance(plan, step.state, few + answers[2:], SITES).state
    measured = [entry.result.quality is not None for entry in state.result.sweep]
    assert measured == [True, False, True]
    assert state.result.n_clusters == 4
    unmeasured = state.result.at(3)
    assert (unmeasured.sizes, unmeasured.profile) == (None, None)
    assert "fewer sites than needed" in unmeasured.warnings[0]


def test_consent_lists_what_this_session_sends_and_how_many_models_there_are(found):
    def fields(config):
        changed = found.definition.model_copy(
            update={"config": {**found.definition.config, **config}}
        )
        phases = rounds.possible_phases(plan_of(changed))[-2:]
        return {line.field: line.shape for phase in phases for line in phase.discloses}

    shape = "K x K numbers for each of 20 models, for each K"
    assert fields({})["parts.models"] == shape
    plain = fields({"stability": 0, "evidence": False})
    assert not any(field.startswith(("cells", "parts.models")) for field in plain)
    assert {"cells.values", "cells.middles"} <= fields({"stability": 0, "evidence": True}).keys()


def test_a_middle_value_is_one_that_is_known() -> None:
    # The first of 60 cells: two known values of five persons each, three imputed ones between them.
    X = np.column_stack([np.r_[np.zeros(5), 1e3 * np.arange(1, 60)], np.ones(64)])
    X[:5, 1] = 1.0, 2.0, 2.0, 2.0, 3.0
    known = np.ones(X.shape, dtype=np.bool_)
    known[1:4, 1] = False
    sizes = np.full(64, 5)
    means, middles, reached, _ = cluster_records(X, known, sizes, np.random.default_rng(0))
    (cell,) = np.flatnonzero(means[:, 0] == 0.0)
    assert reached[cell].tolist() == [25, 10]
    assert middles[cell, 1] in (1.0, 3.0)
    known[[0, 4], 1] = False
    _, middles, _, _ = cluster_records(X, known, sizes, np.random.default_rng(0))
    assert middles[cell, 1] == 2.0
