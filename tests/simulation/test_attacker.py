"""Rule 8: an attacker who keeps every payload of a session recovers no row, whatever the method."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from fedclust.algorithms.registry import METHODS
from fedclust.simulate import SimulationResult, simulate
from support.attacker import findings, small_prevalences
from support.hospitals import NAMES, binarised, breast_cancer
from support.traces import statistics_of

#: Sessions in which many rows move: a new method adds its own.
SESSIONS: dict[str, list[dict[str, Any]]] = {
    "lloyd": [{"n_clusters": 2}, {"n_clusters": 4}, {"n_clusters": 8}],
}
COLUMNS = (0, 1, 4, 7, 10, 20, 21, 24, 27, 28)
P = 5


@cache
def _sites(kind: str) -> dict[str, Any]:
    rows = breast_cancer()
    return binarised(rows, COLUMNS) if kind == "binary" else rows


def _run(method: str, config: dict[str, Any], kind: str, **policy: Any) -> SimulationResult:
    sites = _sites(kind)
    d = sites[NAMES[0]].shape[1]
    declared = [{"name": f"x{j}", "kind": kind} for j in range(d)]
    return simulate(method, sites, config=config, features=declared, policy=policy, seed=3)


def _recovered(result: SimulationResult, kind: str) -> list[tuple[str, int, str]]:
    found = []
    for site, rows in _sites(kind).items():
        scaled = (rows - result.result_.center) / result.result_.scale
        statistics = statistics_of(result, site)
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


def test_no_real_record_where_values_are_imputed() -> None:
    rng = np.random.default_rng(7)
    sites = {site: rows.copy() for site, rows in breast_cancer(1).items()}
    for rows in sites.values():
        for column in (0, 5, 9):
            rows[rng.random(len(rows)) < 0.15, column] = np.nan
    for config in SESSIONS["lloyd"]:
        result = simulate("lloyd", sites, config=config, policy={"missing": "impute"}, seed=3)
        space = result.result_
        for site, rows in sites.items():
            filled = np.where(np.isnan(rows), space.impute, rows)
            # The preparation's moments concern each feature's own rows: no vector of one set.
            statistics = [s for s in statistics_of(result, site) if "prepare" not in s.name]
            assert findings(statistics, (filled - space.center) / space.scale, filled, p=P) == []


def test_every_method_is_attacked() -> None:
    assert set(SESSIONS) == set(METHODS)


@pytest.mark.parametrize("kind", ["numeric", "binary"])
@pytest.mark.parametrize(
    ("method", "config"), [(name, config) for name in SESSIONS for config in SESSIONS[name]]
)
def test_no_real_record_with_the_defaults(method: str, config: dict[str, Any], kind: str) -> None:
    result = _run(method, config, kind)

    assert _recovered(result, kind) == []


@pytest.mark.parametrize("method", SESSIONS)
def test_a_real_record_is_found_without_the_guard(method: str) -> None:
    found: set[tuple[str, int]] = set()
    for config in SESSIONS[method]:
        result = _run(method, config, "numeric", differencing="off")
        found |= {(site, row) for site, row, _ in _recovered(result, "numeric")}

    assert len(found) >= 6


@pytest.mark.parametrize("method", SESSIONS)
def test_no_prevalence_of_a_real_record_is_told(method: str) -> None:
    for config in SESSIONS[method]:
        result = _run(method, config, "binary")
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
