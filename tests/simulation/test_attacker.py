"""Rule 8: an attacker who keeps every payload of a session recovers no row, whatever the method."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from fedclust.algorithms import engine
from fedclust.algorithms.registry import METHODS
from fedclust.simulate import SimulationResult, simulate
from support.attacker import findings, small_prevalences
from support.hospitals import NAMES, binarised, breast_cancer
from support.methods import TRIED
from support.traces import Released, statistics_of, watched

#: Sessions in which many rows move.
SESSIONS: dict[str, list[dict[str, Any]]] = {
    method: [{"n_clusters": k, **options} for options in tried.variants for k in (2, 4, 8)]
    for method, tried in TRIED.items()
}
COLUMNS = (0, 1, 4, 7, 10, 20, 21, 24, 27, 28)
P = 5


@cache
def _sites(kind: str) -> dict[str, Any]:
    rows = breast_cancer()
    return binarised(rows, COLUMNS) if kind == "binary" else rows


def _run(
    method: str, config: dict[str, Any], kind: str, **policy: Any
) -> tuple[SimulationResult, Released]:
    sites = _sites(kind)
    d = sites[NAMES[0]].shape[1]
    declared = [{"name": f"x{j}", "kind": kind} for j in range(d)]
    with watched() as seen:
        result = simulate(method, sites, config=config, features=declared, policy=policy, seed=3)
    return result, seen


def _recovered(result: SimulationResult, seen: Released, kind: str) -> list[tuple[str, int, str]]:
    found = []
    for site, rows in _sites(kind).items():
        scaled = (rows - result.result_.center) / result.result_.scale
        statistics = statistics_of(result, site, seen)
        assert statistics, "an attack on nothing proves nothing"
        hits = findings(statistics, scaled, rows, p=P, discrete=kind == "binary")
        # A cell of yes/no columns, every one rounded, reads like a record: its majority's. It
        # rests on at least p persons and says of none that there is one like it (rule 8 asks for
        # distance from rows on continuous data alone).
        found += [
            (site, row, how)
            for row, how in hits
            if kind != "binary" or not how.endswith(" as sent")
        ]
    return found


@pytest.mark.parametrize("method", SESSIONS)
def test_no_real_record_where_values_are_imputed(method: str) -> None:
    rng = np.random.default_rng(7)
    sites = {site: rows.copy() for site, rows in breast_cancer(1).items()}
    for rows in sites.values():
        for column in (0, 5, 9):
            rows[rng.random(len(rows)) < 0.15, column] = np.nan
    for config in SESSIONS[method]:
        result = simulate(method, sites, config=config, policy={"missing": "impute"}, seed=3)
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
            for config in sessions
            for entry in _run(method, config, "numeric")[0].trace_
        }
        assert asked == {phase.name for phase in engine.all_phases(METHODS[method])}, method


@pytest.mark.parametrize("kind", ["numeric", "binary"])
@pytest.mark.parametrize(
    ("method", "config"), [(name, config) for name in SESSIONS for config in SESSIONS[name]]
)
def test_no_real_record_with_the_defaults(method: str, config: dict[str, Any], kind: str) -> None:
    assert _recovered(*_run(method, config, kind), kind) == []


@pytest.mark.parametrize(
    ("method", "kind"), [*((name, "numeric") for name in SESSIONS), ("lloyd", "binary")]
)
def test_a_real_record_is_found_without_the_guard(method: str, kind: str) -> None:
    """What the tests above rest on: he would find something. On binary data the rounding alone
    hides much, so that one method has to do."""
    found: set[tuple[str, int]] = set()
    for config in SESSIONS[method]:
        run = _run(method, config, kind, differencing="off")
        found |= {(site, row) for site, row, _ in _recovered(*run, kind)}
        if len(found) >= 6:
            return

    raise AssertionError(f"only {len(found)} records were found")


@pytest.mark.parametrize("method", SESSIONS)
def test_no_prevalence_of_a_real_record_is_told(method: str) -> None:
    for config in SESSIONS[method]:
        result, _ = _run(method, config, "binary")
        d = len(COLUMNS)
        for site in NAMES:
            told = small_prevalences(
                statistics_of(result, site),
                p=P,
                columns=np.ones(d, dtype=np.bool_),
                center=result.result_.center,
                scale=result.result_.scale,
            )
            assert told == []
