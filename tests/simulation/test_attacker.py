"""Rule 8: an attacker who keeps every payload of a session recovers no row, whatever the method."""

from __future__ import annotations

from functools import cache
from typing import Any
from unittest import mock

import numpy as np
import pytest

from fedclust.algorithms import engine, evaluation, fkm_site, lloyd, releasing, sweep
from fedclust.algorithms.registry import METHODS
from fedclust.algorithms.tallies import Tally, assign, cells_of, tally
from fedclust.privacy.moments import CellMoments, cell_costs
from fedclust.privacy.shares import Shares
from fedclust.simulate import SimulationResult, simulate
from support.attacker import (
    findings,
    levels_given_back,
    shares_given_back,
    small_differences,
    small_prevalences,
)
from support.hospitals import NAMES, binarised, bounded, breast_cancer, levelled
from support.methods import SWEEPS, TRIED
from support.traces import (
    Released,
    exact_sums,
    misattributed,
    partitions_of,
    statistics_of,
    watched,
)

#: Sessions in which many rows move.
SESSIONS: dict[str, list[dict[str, Any]]] = {
    method: [{"n_clusters": k, **options} for options in tried.variants for k in (2, 4, 8)]
    for method, tried in TRIED.items()
}
#: The one with the most clusters of each variant.
BUSIEST = [(method, i) for method, sessions in SESSIONS.items() for i in range(2, len(sessions), 3)]
#: Those whose guard has something to do, and those in which a session adds up costs.
GUARDED = [
    (method, i)
    for method, i in BUSIEST
    if TRIED[method].variants[i // 3] not in TRIED[method].single
]
ADDING_UP = [
    (method, i)
    for method, i in BUSIEST
    if TRIED[method].variants[i // 3] not in TRIED[method].own_only
]
#: Of these, by number, the three levels of each stand side by side where rows have kind "levels".
LEVELLED = (0, 1, 7, 20, 28)
BLOCKS = [np.arange(3 * j, 3 * j + 3) for j in range(len(LEVELLED))]
COLUMNS = (0, 1, 4, 7, 10, 20, 21, 24, 27, 28)
P = 5


@cache
def _sites(kind: str) -> dict[str, Any]:
    rows = breast_cancer()
    if kind == "levels":
        places = levelled(rows, LEVELLED)
        return {site: np.eye(3)[own.astype(int)].reshape(-1, 15) for site, own in places.items()}
    return binarised(rows, COLUMNS) if kind == "binary" else rows


def _run(
    method: str, config: dict[str, Any], kind: str, **policy: Any
) -> tuple[SimulationResult, Released]:
    sites = _sites(kind)
    d = sites[NAMES[0]].shape[1]
    declared: list[dict[str, Any]] = [{"name": f"x{j}", "kind": "binary"} for j in range(d)]
    if kind == "numeric":
        declared = bounded(sites)
    if kind == "levels":
        sites = levelled(breast_cancer(), LEVELLED)
        each = {"kind": "categorical", "levels": ["0", "1", "2"]}
        declared = [{"name": f"x{j}", **each} for j in LEVELLED]
    with watched() as seen:
        result = simulate(method, sites, config=config, features=declared, policy=policy, seed=3)
    return result, seen


@cache
def _default(method: str, number: int, kind: str) -> tuple[SimulationResult, Released]:
    """Return one of the sessions, run with the defaults."""
    return _run(method, SESSIONS[method][number], kind)


def _recovered(result: SimulationResult, seen: Released, kind: str) -> list[tuple[str, int, str]]:
    found = []
    for site, rows in _sites(kind).items():
        scaled = (rows - result.result_.center) / result.result_.scale
        statistics = statistics_of(result, site, seen)
        assert statistics, "an attack on nothing proves nothing"
        hits = findings(statistics, scaled, rows, p=P, discrete=kind != "numeric")
        found += [(site, row, how) for row, how in hits]
    return found


def _told(
    result: SimulationResult, seen: Released, kind: str, *, prevalences: bool = True
) -> list[str]:
    """Return what else would say too much, whatever the vectors look like."""
    d = result.result_.center.size
    scale = result.result_.scale
    binary = np.full(d, kind != "numeric")
    # Rule 4 rounds the number of persons with a property by at most p / 2, with a level by 2 p.
    most = 2 * P if kind == "levels" else P / 2
    within = np.where(binary, most / scale, 0.0) + 1e-6
    told = []
    for site, rows in _sites(kind).items():
        statistics = statistics_of(result, site, seen)
        scaled = (rows - result.result_.center) / scale
        found = small_differences(partitions_of(seen, site), p=P)
        found += misattributed(statistics, scaled, within)
        if kind == "levels" and prevalences:
            found += levels_given_back(seen.rounded.get(site, []), rows > 0.5, BLOCKS, p=P)
        if kind != "numeric" and prevalences:
            found += exact_sums(result, site, rows, seen, p=P)
            found += shares_given_back(seen.rounded.get(site, []), rows > 0.5, p=P)
            found += small_prevalences(
                statistics, p=P, columns=binary, center=result.result_.center, scale=scale
            )
        told += [f"{site}: {line}" for line in found]
    return told


@pytest.mark.parametrize(("method", "number"), BUSIEST)
def test_no_real_record_where_values_are_imputed(method: str, number: int) -> None:
    rng = np.random.default_rng(7)
    sites = {site: rows.copy() for site, rows in breast_cancer(1).items()}
    declared = bounded(sites)
    for rows in sites.values():
        for column in (0, 5, 9):
            rows[rng.random(len(rows)) < 0.15, column] = np.nan
    config, policy = SESSIONS[method][number], {"missing": "impute"}
    result = simulate(method, sites, config=config, features=declared, policy=policy, seed=3)
    space = result.result_
    for site, rows in sites.items():
        filled = np.where(np.isnan(rows), space.impute, rows)
        # The preparation's moments concern each feature's own rows: no vector of one set.
        statistics = [s for s in statistics_of(result, site) if "prepare" not in s.name]
        assert findings(statistics, (filled - space.center) / space.scale, filled, p=P) == []


def test_every_method_is_tried_with_all_its_phases() -> None:
    assert set(TRIED) == set(METHODS)
    for method, sessions in SESSIONS.items():
        asked = {
            entry.phase
            for number in range(0, len(sessions), 3)
            for entry in _default(method, number, "numeric")[0].trace_
        }
        assert asked == {phase.name for phase in engine.all_phases(METHODS[method])}, method


@pytest.mark.parametrize("kind", ["numeric", "binary"])
@pytest.mark.parametrize(
    ("method", "number"), [(name, i) for name in SESSIONS for i in range(len(SESSIONS[name]))]
)
def test_no_real_record_with_the_defaults(method: str, number: int, kind: str) -> None:
    run = _default(method, number, kind)
    assert _recovered(*run, kind) == []
    assert _told(*run, kind) == []


@pytest.mark.parametrize("kind", ["numeric", "binary", "levels"])
@pytest.mark.parametrize("method", [name for name, _ in SWEEPS])
def test_no_real_record_from_all_k_of_a_sweep_together(method: str, kind: str) -> None:
    run = _run(method, {"n_clusters": [2, 4, 8]}, kind)
    assert [entry.n_clusters for entry in run[0].sweep_ or ()] == [2, 4, 8]
    if kind != "levels":
        assert _recovered(*run, kind) == []
        assert _told(*run, kind) == []
        return
    # Five features of three levels have so few patterns, and so many cells are compared here, that
    # unions of other rows look like a record by chance: these look at no values.
    for site, rows in _sites(kind).items():
        assert small_differences(partitions_of(run[1], site), p=P) == []
        assert levels_given_back(run[1].rounded.get(site, []), rows > 0.5, BLOCKS, p=P) == []
        assert shares_given_back(run[1].rounded.get(site, []), rows > 0.5, p=P) == []


def test_no_real_record_is_safe_in_a_sweep_with_a_guard_for_each_k() -> None:
    with mock.patch.object(sweep, "_SHARED", ("space", "evaluated")):
        run = _run("lloyd", {"n_clusters": [2, 4, 8]}, "numeric")
    assert _told(*run, "numeric")


@pytest.mark.parametrize(("method", "number"), BUSIEST)
def test_no_real_record_of_levels_with_the_defaults(method: str, number: int) -> None:
    run = _default(method, number, "levels")
    assert _recovered(*run, "levels") == []
    assert _told(*run, "levels") == []


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        *((name, "numeric") for name in SESSIONS if not TRIED[name].few),
        ("lloyd", "binary"),
        ("fkm", "binary"),
    ],
)
def test_a_real_record_is_found_without_the_guard(method: str, kind: str) -> None:
    """What the tests above rest on: he would find something. On binary data the rounding alone
    hides much."""
    found: set[tuple[str, int]] = set()
    for config in SESSIONS[method]:
        run = _run(method, config, kind, protection="none")
        found |= {(site, row) for site, row, _ in _recovered(*run, kind)}
        if len(found) >= 6:
            return

    raise AssertionError(f"only {len(found)} records were found")


# --- Each protection, taken away ------------------------------------------------------------------

_round = releasing.round_prevalence


def _unrounded(moments: CellMoments, *_: Any, **__: Any) -> CellMoments:
    return moments


@pytest.mark.parametrize("kind", ["numeric", "binary"])
@pytest.mark.parametrize(("method", "number"), GUARDED)
def test_no_real_record_is_safe_without_the_guard(method: str, number: int, kind: str) -> None:
    run = _run(method, SESSIONS[method][number], kind, protection="none")
    assert _told(*run, kind)


@pytest.mark.parametrize("kind", ["numeric", "binary"])
@pytest.mark.parametrize(("method", "number"), BUSIEST)
def test_no_real_record_is_safe_in_other_rows_than_the_guard_let_go(
    method: str, number: int, kind: str
) -> None:
    """As many rows in every cell, but others."""

    def of_others(rows: Any, labels: Any, n_cells: int) -> CellMoments:
        return cells_of(rows, np.roll(labels, 1), n_cells)

    def sums_of_others(rows: Any, labels: Any, points: Any, **how: Any) -> Tally:
        return tally(rows, np.roll(labels, 1), points, **how)

    def without_sums(*given: Any, **named: Any) -> list[Any]:
        return [(labels, None) for labels, _ in assign(*given, **named)]

    with (
        mock.patch.object(releasing, "cells_of", of_others),
        mock.patch.object(releasing, "tally", sums_of_others),
        mock.patch.object(lloyd, "assign", without_sums),
        mock.patch.object(fkm_site, "assign", without_sums),
        mock.patch.object(engine, "check"),
    ):
        # Wrong means lead a session astray: where few sites have cells left, it still goes on.
        run = _run(method, SESSIONS[method][number], kind, min_sites=2, max_rounds=6)
    assert _told(*run, kind, prevalences=False)


@pytest.mark.parametrize(("method", "number"), BUSIEST)
def test_no_prevalence_of_a_real_record_is_safe_unrounded(method: str, number: int) -> None:
    with mock.patch.object(releasing, "round_prevalence", _unrounded):
        run = _run(method, SESSIONS[method][number], "binary")
    assert any("feature" in line for line in _told(*run, "binary"))


@pytest.mark.parametrize("method", ["lloyd", "kfed"])
def test_no_level_of_a_real_record_is_safe_rounded_by_itself(method: str) -> None:
    with mock.patch.object(releasing, "blocks_of", return_value=[]):
        run = _run(method, SESSIONS[method][2], "levels")
    assert any("levels [" in line for line in _told(*run, "levels"))


@pytest.mark.parametrize("method", ["fkm", "kfed", "lloyd", "spectral"])
def test_no_prevalence_of_a_real_record_is_safe_rounded_by_single_partitions(method: str) -> None:
    told = []
    with mock.patch.object(Shares, "_across"):
        for config in SESSIONS[method]:
            told += _told(*_run(method, config, "binary"), "binary")
    assert any("partitions" in line for line in told)


@pytest.mark.parametrize(("method", "number"), ADDING_UP)
def test_no_prevalence_of_a_real_record_is_safe_in_a_cost_from_rows(
    method: str, number: int
) -> None:
    exact: list[CellMoments] = []

    def noted(moments: CellMoments, *given: Any, **named: Any) -> CellMoments:
        exact.append(moments)
        return _round(moments, *given, **named)

    def from_rows(moments: CellMoments, centroids: Any) -> Any:
        del moments
        return cell_costs(exact[-1], centroids)

    def sums_alone(sums: Tally, *_: Any) -> Any:
        return sums.squares.sum(axis=1)

    with (
        mock.patch.object(releasing, "round_prevalence", noted),
        mock.patch.object(releasing, "step_costs", sums_alone),
        mock.patch.object(evaluation, "cell_costs", from_rows),
        mock.patch.object(engine, "check"),
    ):
        run = _run(method, SESSIONS[method][number], "binary")
    assert any("costs" in line for line in _told(*run, "binary"))
