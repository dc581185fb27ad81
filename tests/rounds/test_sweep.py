"""Several K in one session: what each comes to, what is compared, and which is recommended."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.datasets import make_blobs

from fedclust import SessionResult, rounds, simulate
from fedclust.definition import DefinitionError
from fedclust.methods.common.options import MAX_SWEEP_SIZE
from fedclust.methods.lloyd import METHOD as LLOYD
from fedclust.methods.lloyd import Config
from fedclust.rounds import Plan, sweep
from fedclust.schema import errors
from fedclust.schema.errors import MethodFailure
from fedclust.schema.feature import Feature
from fedclust.schema.result import Result
from fedclust.schema.run_config import Policy, RunConfig
from fedclust.schema.task import Done, SiteSide
from fedclust.wire.codec import encode_model
from support import driven
from support.method_variants import KS, SWEEPS

METHODS = [name for name, _ in SWEEPS]
OPEN = {"protection": "none", "min_sites": 1}


def sites(k: int = 4, n: int = 50, d: int = 3, seed: int = 1) -> dict[str, NDArray[np.float64]]:
    X, _ = make_blobs(4 * n, d, centers=k, cluster_std=1.0, center_box=(-12, 12), random_state=seed)
    return dict(zip(("ada", "brno", "cadiz", "delft"), np.array_split(X, 4), strict=True))


def run(method: str, n_clusters: Any, policy: Any = None, **options: Any) -> SessionResult:
    config = {"n_clusters": n_clusters, **options}
    return simulate(method, sites(), config=config, policy=policy, seed=3)


# --- each K ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "protection"), [*((method, "groups") for method in METHODS), ("lloyd", "none")]
)
def test_every_k_is_what_a_run_of_its_own_gives(method: str, protection: str) -> None:
    policy = {"protection": protection, "max_rounds": 30}
    together = run(method, [5, 2, 3], policy)
    assert [entry.n_clusters for entry in together.sweep_ or ()] == [2, 3, 5]
    for k in KS:
        alone, swept = run(method, k, policy), together.at(k)
        for site, labels in alone.labels_.items():
            assert np.array_equal(swept.labels_[site], labels)
        # The closing round is the session's.
        *others, closing = swept.history_
        closing = closing.model_copy(update={"round": len(alone.history_)})
        update = {
            "n_clusters": None,
            "history": (*others, closing),
            "one_cloud": None,
            "site_differences": None,
        }
        of_sweep = swept.result.model_copy(update=update)
        assert encode_model(of_sweep) == encode_model(alone.result)


def test_rounds_are_shared_and_end_for_each_k_by_itself() -> None:
    together = run("lloyd", list(KS))
    entries = together.sweep_ or ()
    longest = max(entry.result.n_rounds for entry in entries)
    # Beside the longest K's: preparation and one evaluation.
    assert max(entry.round for entry in together.trace_) == longest + 2
    for entry in entries:
        history = entry.result.history
        assert len(history) == entry.result.n_rounds + 2
        assert [line.round for line in history[:-1]] == list(range(1, len(history)))
        assert history[-1].inertia == entry.inertia
    limited = run("lloyd", list(KS), {"max_rounds": 2})
    for entry in limited.sweep_ or ():
        assert (entry.result.n_rounds, entry.result.stopped_because) == (2, "max_rounds")


def test_more_clusters_than_a_site_has_rows_is_what_it_is_alone() -> None:
    few = {site: rows[:6] for site, rows in sites().items()}
    policy = OPEN
    together = simulate("lloyd", few, config={"n_clusters": [2, 40]}, policy=policy, seed=3)
    alone = simulate("lloyd", few, config={"n_clusters": 40}, policy=policy, seed=3)
    assert np.array_equal(together.at(40).cluster_centers_, alone.cluster_centers_)
    assert together.at(40).warnings_ == alone.warnings_
    assert "40 were asked for" in " ".join(alone.warnings_)


def test_a_k_that_cannot_go_on_leaves_the_others_and_says_why() -> None:
    def aggregate(state: Any, contributions: Any, config: RunConfig) -> Any:
        if config.options.k in failing:
            raise MethodFailure("too_few_contributors", "because of the test")
        return LLOYD.aggregate(state, contributions, config)

    options = Config(n_clusters=KS)
    method = sweep.for_options(replace(LLOYD, aggregate=aggregate), options)
    failing = {3}
    result = drive(method, options)
    assert [entry.n_clusters for entry in result.sweep or ()] == [2, 5]
    assert result.warnings[0] == "K = 3 came to no clustering: because of the test"
    with pytest.raises(ValueError, match=r"choose K .*: 2, 5$"):
        result.at(3)
    failing = set(KS)
    with pytest.raises(MethodFailure, match="because of the test"):
        drive(method, options)


def test_what_is_done_outlives_a_round_in_which_too_few_may_send_anything() -> None:
    """After a few steps there is nothing that a site may tell of the largest K."""

    def local_step(task: Any, site: SiteSide) -> Any:
        answer = rounds.phase(LLOYD, task.phase).local_step(task, site)
        site.memory["steps"] = site.memory.get("steps", 0) + 1
        return None if site.memory["steps"] > most else answer

    def aggregate(state: Any, contributions: Any, config: RunConfig) -> Any:
        if state.centroids is not None and config.options.k < max(KS):
            return Done(LLOYD.finish(state, config))
        return LLOYD.aggregate(state, contributions, config)

    options = Config(n_clusters=KS)
    phases = tuple(replace(each, local_step=local_step) for each in LLOYD.phases)
    method = replace(LLOYD, phases=phases, aggregate=aggregate)
    most = 2
    result = drive(sweep.for_options(method, options), options)
    assert [entry.n_clusters for entry in result.sweep or ()] == [2, 3]
    assert "K = 5 came to no clustering: fewer sites than needed" in result.warnings[0]
    # With nothing done it is as with one K.
    most = 1
    with pytest.raises(MethodFailure, match="0 sites answered round 3"):
        drive(sweep.for_options(method, options), options)


def drive(method: Any, options: Any) -> Result:
    """Run a session of a method that has no name."""
    features = tuple(Feature(name=f"x{j}") for j in range(3))
    plan = Plan(method, options, features, Policy(), 3)
    result = driven.drive(plan, sites()).result
    assert result is not None
    return result


# --- what may be asked for ------------------------------------------------------------------------


def test_the_frozen_form_is_in_order_and_one_k_is_that_k() -> None:
    config = run("lloyd", [3, 2], {"max_rounds": 1}).definition.config
    assert config["n_clusters"] == [2, 3]
    alone = run("lloyd", [4], {"max_rounds": 1})
    assert alone.definition.config["n_clusters"] == 4
    assert alone.result.sweep is None
    with pytest.raises(ValueError, match="compared no numbers"):
        alone.at(4)


@pytest.mark.parametrize(
    ("n_clusters", "says"),
    [
        ([], "at least one"),
        ([2, 3, 2], "named once"),
        ([1, 2], "starts at 2"),
        (list(range(2, MAX_SWEEP_SIZE + 3)), "at most"),
        ([2, 0], "greater than or equal to 1"),
        ([2, True], "whole number"),
        ([2, 3.0], "whole number"),
        ([2, 10_001], "less than or equal"),
    ],
)
def test_lists_that_are_no_sweep(n_clusters: Any, says: str) -> None:
    with pytest.raises(DefinitionError, match=says) as caught:
        run("lloyd", n_clusters)
    (error,) = caught.value.errors
    assert error.pointer.startswith("/config/n_clusters")


def test_what_a_sweep_does_not_go_with() -> None:
    with pytest.raises(DefinitionError, match=r"config\.evaluate"):
        run("fkm", [2, 3], evaluate=False)
    with pytest.raises(DefinitionError, match="with 2 clusters"):
        run("lloyd", [2, 3], start="given", centroids=[[0.0] * 3] * 3)
    with pytest.raises(DefinitionError, match=r"n_clusters: one number: .* fkm, kfed, lloyd"):
        run("overlap", [2, 3])


# --- answers and tasks ----------------------------------------------------------------------------


def test_a_task_or_answer_of_another_form_is_refused() -> None:
    policy = Policy(scaling="none", missing="drop")
    entry = next(e for e in run("lloyd", list(KS), policy.model_dump()).trace_ if e.round == 1)
    plan = Plan(
        sweep.for_options(LLOYD, Config(n_clusters=KS)),
        Config(n_clusters=KS),
        tuple(Feature(name=f"x{j}") for j in range(3)),
        policy,
        3,
    )

    def check(task: Any, payload: Any) -> None:
        rounds.check(plan, task, payload, p=5, size_band=None)

    task, payload = entry.task, entry.payload
    check(task, payload)
    parts = payload.parts
    wrong = [
        parts[:2],
        (parts[0], _with(parts[1], -5), parts[2]),
        # Fewer than p persons in a cell of the second K.
        (parts[0], _with(parts[1], 4), parts[2]),
    ]
    for each in wrong:
        with pytest.raises(errors.RuleViolation):
            check(task, payload.model_copy(update={"parts": each}))
    common = task.common
    for update in (
        {"n_clusters": (2, 3, 7)},
        {"n_clusters": (3, 2, 5)},
        {"parts": common.parts[:2]},
    ):
        foreign = replace(task, common=common.model_copy(update=update))
        with pytest.raises(errors.RuleViolation):
            check(foreign, payload)


def _with(cells: Any, count: int) -> Any:
    counts = cells.counts.copy()
    counts[0] = count
    return cells.model_copy(update={"counts": counts})


# --- choosing -------------------------------------------------------------------------------------


# Other methods than `mixture` are judged alike.
@pytest.mark.parametrize("method", ["lloyd", "mixture"])
def test_four_clear_clusters_are_recommended(method: str) -> None:
    result = run(method, [3, 4, 5])
    assert result.result.n_clusters == 4
    assert len(result.cluster_centers_) == 4
    why = result.result.recommendation or ""
    if method.startswith("mixture"):
        assert "K = 4 has the lowest BIC" in why
        return
    assert result.result.choice == "apart"
    assert "Every cluster stands apart" in why
    assert "The Davies-Bouldin index is lowest at K = 4" in why
