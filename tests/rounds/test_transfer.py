"""Transfer: own clusters, models without a site, and columns that a site codes otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedclust import SessionResult, rounds, simulate
from fedclust.definition import plan_of
from fedclust.methods.common.kmeans_rounds import Cells, local_kmeans
from fedclust.numeric.agreement import cramers_v
from fedclust.rounds import resampling
from fedclust.rounds.column_differences import differing_columns
from fedclust.rounds.record_cells import PooledCells, cluster_records
from fedclust.rounds.site import refuse_unconsented
from fedclust.rounds.transfer import left_out_models
from fedclust.schema.errors import RuleViolation
from fedclust.schema.points import row_points
from fedclust.schema.task import Contribution, Done, Next

CENTRES = np.array([[0.0, 0.0, 4.0, 4.0], [4.0, 0.0, 0.0, 4.0], [0.0, 4.0, 4.0, 0.0]])


def rows_of(
    rng: np.random.Generator, n: int, shares: list[float] | None = None
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    labels = rng.choice(3, size=n, p=shares)
    return CENTRES[labels] + rng.normal(size=(n, 4)) * 0.7, labels.astype(np.int64)


def cells_of(rows: NDArray[np.float64]) -> Cells:
    cells = local_kmeans(row_points(rows), 60, 2, np.random.default_rng(0))
    held = cells.counts > 0
    return Cells(means=cells.means[held], counts=cells.counts[held])


def consortium(mixes: list[list[float] | None]) -> dict[str, tuple[NDArray, NDArray]]:
    rng = np.random.default_rng(3)
    return {f"site-{i}": rows_of(rng, 150 + 60 * i, mix) for i, mix in enumerate(mixes)}


def found_in(sites: dict[str, tuple[NDArray, NDArray]]) -> dict[str, tuple[int, ...]]:
    cells = {site: cells_of(rows) for site, (rows, _) in sites.items()}
    return differing_columns(cells, np.zeros(4, dtype=np.bool_), 3, 3, 0)


@pytest.mark.parametrize(
    "miscode",
    [
        lambda column: 10.0 * column,
        lambda column: (column + 20.0) / 10.0 - 20.0,
        lambda column: 4.0 - column,
        lambda column: column + 6.0,
    ],
    ids=["tenfold", "tenth", "reversed", "shifted"],
)
def test_a_column_that_one_site_codes_otherwise_is_named(miscode) -> None:
    sites = consortium([None] * 5)
    sites["site-3"][0][:, 2] = miscode(sites["site-3"][0][:, 2])
    assert found_in(sites) == {"site-3": (2,)}


def test_all_columns_that_sites_code_otherwise_are_named() -> None:
    sites = consortium([None] * 5)
    sites["site-3"][0][:, 1:3] *= 10.0
    sites["site-0"][0][:, 0] = 4.0 - sites["site-0"][0][:, 0]
    assert found_in(sites) == {"site-0": (0,), "site-3": (1, 2)}
    # Of five sites, three cannot differ from the others.
    sites["site-1"][0][:, 3] *= 10.0
    assert len(found_in(sites)) == 2


def test_sites_of_another_mix_are_not_named() -> None:
    assert (
        found_in(consortium([[0.8, 0.1, 0.1], [0.1, 0.9, 0.0], None, [0.0, 0.2, 0.8], None])) == {}
    )


def test_a_kind_of_persons_that_only_one_site_has_names_no_column() -> None:
    sites = consortium([None] * 5)
    rows, _ = sites["site-2"]
    rows[:100] += np.array([-6.0, -6.0, 6.0, 6.0])
    assert found_in(sites) == {}


def test_too_few_other_sites_name_nobody() -> None:
    sites = consortium([None] * 3)
    sites["site-1"][0][:, 2] *= 10.0
    assert found_in(sites) == {}


def test_models_without_a_site_rest_on_enough_others() -> None:
    means = np.concatenate([CENTRES + i / 10 for i in range(4)])
    cells = PooledCells(means, np.full(12, 20), np.repeat(np.arange(4), 3), ())
    models = left_out_models(cells, 3, min_sites=3, seed=0)
    for site, found in enumerate(models):
        expected = CENTRES + np.delete(np.arange(4), site).mean() / 10
        assert np.abs(found[:, None] - expected).max(axis=2).min(axis=1).max() < 1e-9
    assert left_out_models(cells, 3, min_sites=4, seed=0) == [None] * 4
    assert left_out_models(cells, 10, min_sites=3, seed=0) == [None] * 4


# --- in a session ---------------------------------------------------------------------------------


def session(sites: dict[str, NDArray[np.float64]], **more: Any) -> SessionResult:
    config = {"n_clusters": 3, "transfer": True, **more.pop("config", {})}
    policy = {"protection": "none", **more.pop("policy", {})}
    return simulate("lloyd", sites, config=config, policy=policy, **more)


@pytest.fixture(scope="module")
def hospitals() -> dict[str, NDArray[np.float64]]:
    """Five hospitals, one of which reverses the third column; and one of four persons."""
    sites = {site: each[0] for site, each in consortium([None] * 5).items()}
    sites["site-3"][:, 2] = 4.0 - sites["site-3"][:, 2]
    return {**sites, "tiny": CENTRES[[0, 1, 2, 0]]}


@pytest.fixture(scope="module")
def found(hospitals: dict[str, NDArray[np.float64]]) -> SessionResult:
    return session(hospitals)


def test_a_session_says_which_hospital_would_have_found_its_clusters_alone(
    found: SessionResult, hospitals: dict[str, NDArray[np.float64]]
) -> None:
    transfer = found.result.transfer
    assert transfer.compared
    assert sorted(transfer.sites) == sorted(hospitals)
    for site, own in transfer.sites.items():
        assert own.n_rows == len(hospitals[site])
        assert np.array_equal(own.own_table.sum(axis=0), found.result.site_sizes[site])
        assert np.array_equal(own.left_out_table.sum(axis=0), found.result.site_sizes[site])
        assert own.differing_columns == (("x2",) if site == "site-3" else ())
    others = [own for site, own in transfer.sites.items() if site != "site-3"]
    assert {own.found_alone for own in others} == {"yes"}
    assert min(own.left_out_ari for own in others) > 0.9
    assert transfer.cramers_v < 0.3


@pytest.fixture(scope="module")
def protected(hospitals: dict[str, NDArray[np.float64]]) -> SessionResult:
    return session(hospitals, policy={"protection": "groups"})


def test_with_protection_sites_send_no_table_and_columns_are_compared(
    protected: SessionResult, hospitals: dict[str, NDArray[np.float64]]
) -> None:
    assert protected.history_[-1].phase == "evidence"
    sent = [entry.payload for entry in protected.trace_ if entry.phase == "evidence"]
    assert {part.own for payload in filter(None, sent) for part in payload.parts} == {None}
    transfer = protected.result.transfer
    # A site with fewer persons than a group needs answers empty.
    assert sorted(transfer.sites) == sorted(set(hospitals) - {"tiny"})
    for site, own in transfer.sites.items():
        given = own.model_dump(exclude_defaults=True).keys() - {"differing_columns"}
        assert given == {"n_rows"}
        assert own.differing_columns == (("x2",) if site == "site-3" else ())
    # The persons of a group go together, so groups are counted.
    groups = [p.parts[0].evaluation.points for p in sent if p is not None]
    assert transfer.cramers_v == cramers_v(np.stack(groups))
    assert transfer.cramers_v < 0.3


def test_with_protection_a_table_is_refused_and_so_is_the_question(
    protected: SessionResult, found: SessionResult
) -> None:
    plan = plan_of(protected.definition)
    entry = next(each for each in protected.trace_ if each.phase == "evidence" and each.payload)
    (part,) = entry.payload.parts
    rounds.check(plan, entry.task, entry.payload, p=5, size_band=None)
    table = part.model_copy(update={"own": np.diag(part.evaluation.counts)})
    sent = entry.payload.model_copy(update={"parts": (table,)})
    with pytest.raises(RuleViolation, match="without protection"):
        rounds.check(plan, entry.task, sent, p=5, size_band=None)
    asked = next(each.task for each in found.trace_ if each.phase == "resampling")
    config = plan.config(5, asked.space)
    with pytest.raises(RuleViolation, match="provides for no phase 'resampling'"):
        refuse_unconsented(plan, asked, config, {}, first=False)
    with pytest.raises(RuleViolation, match="a part of its own"):
        resampling.check_task(asked, config)


def test_without_enough_other_sites_no_model_is_made_and_no_column_named() -> None:
    sites = {site: each[0] for site, each in consortium([None] * 3).items()}
    found = session(sites)
    assert found.history_[-1].phase == "evidence"
    transfer = found.result.transfer
    assert not transfer.compared
    assert {own.left_out_ari for own in transfer.sites.values()} == {None}
    assert {own.found_alone for own in transfer.sites.values()} == {"yes"}


def test_a_site_with_fewer_points_than_clusters_has_clusters_it_does_not_find() -> None:
    sites = {site: each[0] for site, each in consortium([None] * 3).items()}
    found = session({**sites, "small": np.repeat(CENTRES[:2], 6, axis=0)})
    own = found.result.transfer.sites["small"]
    assert np.count_nonzero(own.own_table.sum(axis=1)) == 2
    assert own.own_ari == 1.0


def opened_rounds(result: SessionResult) -> Iterator[tuple[rounds.Plan, Next, list[Contribution]]]:
    """Yield each round as the coordinator sees it."""
    plan = plan_of(result.definition)
    sites = sorted({entry.site for entry in result.trace_})
    step: Next | Done = rounds.start(plan, sites)
    while isinstance(step, Next):
        open_round = step.state.round
        entries = [entry for entry in result.trace_ if entry.round == open_round]
        answers = [Contribution(entry.site, entry.payload, p=5) for entry in entries]
        yield plan, step, answers
        step = rounds.advance(plan, step.state, answers, sites)


def test_a_site_that_misses_the_second_round_keeps_its_own_clusters(found: SessionResult) -> None:
    *_, (plan, step, answers) = opened_rounds(found)
    done = rounds.advance(plan, step.state, answers[1:], [each.site for each in answers])
    assert isinstance(done, Done)
    missing = done.result.transfer.sites["site-0"]
    assert missing.own_ari > 0.9
    assert missing.left_out_ari is None
    assert done.result.transfer.sites["site-1"].left_out_ari > 0.9
    # So does a session whose second round too few sites answer.
    done = rounds.advance(plan, step.state, answers[:2], [each.site for each in answers])
    assert isinstance(done, Done)
    assert done.result.transfer.sites["site-1"].own_ari > 0.9


def test_every_number_of_clusters_has_its_own_transfer() -> None:
    sites = {site: each[0] for site, each in consortium([None] * 4).items()}
    found = session(sites, config={"n_clusters": [2, 3]})
    for entry in found.sweep_:
        own = entry.result.transfer.sites["site-0"]
        assert own.left_out_table.shape == (entry.n_clusters, entry.n_clusters)


@pytest.mark.parametrize(
    ("phase", "change", "rule"),
    [
        ("evidence", lambda part: {"own": part.own[:2, :2]}, "shape"),
        ("evidence", lambda part: {"own": part.own + np.diag([5, 0, 0])}, "complement"),
        ("evidence", lambda part: {"own": part.own - np.diag([0, 0, 1]) * 1000}, "smallest-count"),
        ("evidence", lambda _: {"own": None}, "own"),
        ("resampling", lambda part: {"left_out": part.left_out[:2]}, "shape"),
        ("resampling", lambda part: {"left_out": part.left_out - 1000}, "smallest-count"),
        ("resampling", lambda _: {"left_out": None}, "left-out"),
    ],
)
def test_an_impossible_table_is_refused(
    found: SessionResult, phase: str, change: Any, rule: str
) -> None:
    entry = next(each for each in found.trace_ if each.phase == phase)
    part = entry.payload.parts[0]
    broken = entry.payload.model_copy(update={"parts": (part.model_copy(update=change(part)),)})
    plan = plan_of(found.definition)
    rounds.check(plan, entry.task, entry.payload, p=5, size_band=None)
    with pytest.raises(RuleViolation) as refused:
        rounds.check(plan, entry.task, broken, p=5, size_band=None)
    assert refused.value.rule == rule


def test_a_site_refuses_models_that_the_definition_does_not_provide_for(
    found: SessionResult,
) -> None:
    entry = next(each for each in found.trace_ if each.phase == "resampling")
    plan = plan_of(found.definition)
    config = plan.config(5, entry.task.space)
    resampling.check_task(entry.task, config)
    (model,) = entry.task.site.parts
    for parts in ((model, model), (model[:2],), ()):
        wrong = replace(entry.task, site=resampling.LeftOutModels(parts=parts))
        with pytest.raises(RuleViolation, match="other models"):
            resampling.check_task(wrong, config)
    with pytest.raises(RuleViolation, match="a part of its own"):
        resampling.check_task(replace(entry.task, site=None), config)


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
