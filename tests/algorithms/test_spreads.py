"""Sums of squares against linear algebra: what all of a session's add up to tells of no few."""

from __future__ import annotations

import itertools
from typing import Any
from unittest import mock

import numpy as np
import pytest
from numpy.typing import NDArray

from fedclust import simulate
from fedclust.algorithms import evaluation, gaussians, profiling, spreads
from fedclust.algorithms.base import RunConfig, SiteData
from fedclust.algorithms.sweep import SweepPayload
from fedclust.simulate import SimulationResult
from support.traces import Released, watched

P = 5
FloatArray = NDArray[np.float64]


def _sites(lone: int) -> dict[str, FloatArray]:
    """Return three groups far apart; of the first all but ``lone`` rows have 7 in a column."""
    sites = {}
    for seed, name in enumerate("abc"):
        rng = np.random.default_rng(seed)
        rows = np.concatenate(
            [rng.normal(size=(60, 3)) + at for at in ([0, 0, 0], [30, 30, 12], [60, -30, 12])]
        )
        rows[:60, 2] = 7.0
        rows[:lone, 2] = [11.5, 3.25, 19.0, 4.75][:lone]
        sites[name] = rows
    return sites


def _run(
    method: str, rows: dict[str, FloatArray], n_clusters: Any, scaling: str
) -> tuple[SimulationResult, Released]:
    with watched() as seen:
        result = simulate(
            method,
            rows,
            config={"n_clusters": n_clusters},
            policy={"scaling": scaling},
            seed=0,
        )
    return result, seen


def _parts(result: SimulationResult, site: str) -> list[tuple[int, str, Any, Any]]:
    """Return (round, how the guard's candidate begins, task, payload) of what tells an M2."""
    found = []
    for entry in result.trace_:
        if entry.site != site or entry.payload is None:
            continue
        if isinstance(entry.payload, SweepPayload):
            tasks = entry.task.common
            for k, task, part in zip(
                tasks.n_clusters, tasks.parts, entry.payload.parts, strict=True
            ):
                found.append((entry.round, f"{k}, ", task, part))
        else:
            found.append((entry.round, "", entry.task.common, entry.payload))
    return [each for each in found if hasattr(each[3], "m2") and hasattr(each[3], "counts")]


def _few(values: FloatArray) -> bool:
    """Return whether 1 to p - 1 rows have another than the one value that all others have."""
    _, counts = np.unique(values, return_counts=True)
    others = counts.sum() - counts.max()
    return len(values) >= P and counts.max() >= P and 0 < others < P


def _given_away(result: SimulationResult, seen: Released, site: str, rows: FloatArray) -> list[str]:
    """Return sets and columns of few whose squares are a combination of all that was told.

    He who asks knows the squares of each column over all rows and, of every set of every
    partition that was sent, the sum over all columns (its cost) and the members.
    """
    n, d = rows.shape
    sent = [labels for (name, _), kept in seen.items() if name == site for labels in kept.values()]
    _, atoms = np.unique(np.stack(sent), axis=1, return_inverse=True)
    atoms = atoms.reshape(-1)
    n_atoms = int(atoms.max()) + 1

    def of(inside: NDArray[np.bool_], columns: Any) -> FloatArray:
        equation = np.zeros((d, n_atoms))
        equation[np.ix_(columns, np.unique(atoms[inside]))] = 1.0
        return equation.reshape(-1)

    everything = np.ones(n, dtype=np.bool_)
    known = [of(everything, [j]) for j in range(d)]
    known += [of(labels == k, range(d)) for labels in sent for k in np.unique(labels[labels >= 0])]
    wanted = [(f"atom {a}", atoms == a) for a in range(n_atoms)]
    for number, begins, task, payload in _parts(result, site):
        (labels,) = (v for c, v in seen[site, number].items() if c.startswith(begins))
        cells = getattr(task, "cells", np.arange(len(payload.counts)))
        place = np.where(labels >= 0, cells[labels], -1)
        for k in np.flatnonzero(payload.counts):
            inside = place == k
            assert inside.sum() == payload.counts[k]
            told = np.flatnonzero(payload.m2[k] > 0)
            known += [of(inside, [j]) for j in told]
            wanted.append((f"round {number}, {begins}set {k}", inside))
        wanted.append((f"round {number}, {begins}rest", place < 0))
    _, values, basis = np.linalg.svd(np.array(known), full_matrices=False)
    basis = basis[values > 1e-9 * values[0]]
    found = []
    for (name, inside), j in itertools.product(wanted, range(d)):
        # Of all rows together the totals tell: nothing hides that.
        if inside.any() and not inside.all() and _few(rows[inside, j]):
            target = of(inside, [j])
            if np.linalg.norm(target - (basis @ target) @ basis) < 1e-6:
                found.append(f"{name}, column {j}")
    return found


def _alone(
    data: SiteData,
    labels: NDArray[np.int64],
    m2: FloatArray,
    config: RunConfig,
    memory: Any,
) -> tuple[NDArray[np.bool_], Any]:
    """Hold back the M2 of few, and no other."""
    del config
    told = np.ones(m2.shape, dtype=np.bool_)
    for k, j in np.ndindex(told.shape):
        told[k, j] = not _few(data.X[labels == k, j])
    return told, memory


CASES = [("lloyd", 3), ("fkm", [2, 3, 4]), ("kfed", [2, 3])]


@pytest.mark.parametrize("scaling", ["standard", "none"])
@pytest.mark.parametrize(("method", "n_clusters"), CASES)
def test_no_combination_tells_a_value_of_a_few_real_records(
    method: str, n_clusters: Any, scaling: str
) -> None:
    sites = _sites(2)
    result, seen = _run(method, sites, n_clusters, scaling)

    for site, rows in sites.items():
        assert _given_away(result, seen, site, rows) == []
    profile = result.result_.profile
    assert profile is not None
    assert profile.spread_known.any()


@pytest.mark.parametrize("seed", [3, 6])
def test_no_combination_of_four_k_tells_a_value_of_a_few_real_records(seed: int) -> None:
    """What was held back for one K must not follow from the parts that others make of it."""
    rng = np.random.default_rng(seed)
    sites = {}
    for name in "abc":
        of = rng.integers(0, 4, 120)
        columns = [rng.normal(size=120) + 10.0 * of, rng.normal(size=120) + 8.0 * (of % 2)]
        columns += [rng.poisson(0.04, 120), rng.poisson(0.02 + 0.5 * (of == 1))]
        columns.append((rng.random(120) < 0.03) * rng.integers(1, 6, 120))
        sites[name] = np.column_stack(columns).astype(np.float64)
    result, seen = _run("lloyd", sites, [2, 3, 4, 5], ("standard", "none")[seed % 2])

    for site, rows in sites.items():
        assert _given_away(result, seen, site, rows) == []


@pytest.mark.parametrize(("method", "n_clusters"), CASES[:2])
def test_held_back_alone_it_follows_from_the_others(method: str, n_clusters: Any) -> None:
    """The same attacker finds it by totals, and in a sweep by what other K told."""
    sites = _sites(1)
    with (
        mock.patch.object(profiling, "tellable", _alone),
        mock.patch.object(gaussians, "tellable", _alone),
    ):
        result, seen = _run(method, sites, n_clusters, "none")
    assert _given_away(result, seen, "a", sites["a"])
    answer = next(entry for entry in reversed(result.trace_) if entry.site == "a")
    assert answer.phase == evaluation.NAME
    if method == "lloyd":
        totals = next(e.payload.totals for e in result.trace_ if e.site == "a")
        told = answer.payload
        (few,) = np.flatnonzero(told.m2[:, 2] == 0)
        about = told.m2[:, 2] + told.counts * (told.means[:, 2] - totals.mean[2]) ** 2
        m2 = totals.m2[2] - about.sum()
        apart = np.sqrt(m2 / (1 - 1 / 60))
        assert told.means[few, 2] + apart * (1 - 1 / 60) == pytest.approx(11.5, abs=1e-6)


def test_numbers_and_patterns_of_many_kinds_are_hidden_together() -> None:
    """Three partitions of rows with many equal values, one after the other."""
    config = _config(4)
    for seed in range(12):
        rng = np.random.default_rng(seed)
        rows = rng.poisson([0.03, 0.1, 1.0, 5.0], size=(90, 4)).astype(float)
        memory: Any = {}
        known = [np.eye(4)[j][:, None] * np.ones((1, 90)) for j in range(4)]
        wanted = []
        for n_sets in (2, 3, 5):
            labels = rng.integers(-1, n_sets, 90)
            data = SiteData(rows)
            m2 = np.array([rows[labels == k].var(axis=0) for k in range(n_sets)])
            told, memory = spreads.tellable(data, labels, m2, config, memory)
            assert told.shape == (n_sets, 4)
            for k in range(n_sets):
                inside = (labels == k).astype(float)
                known.append(np.ones((4, 1)) * inside)
                known += [np.eye(4)[j][:, None] * inside for j in np.flatnonzero(told[k])]
                wanted.append(inside)
            wanted.append((labels < 0).astype(float))
        basis = np.linalg.svd(np.array(known).reshape(len(known), -1), full_matrices=False)
        span = basis[2][basis[1] > 1e-9]
        for inside, j in itertools.product(wanted, range(4)):
            if _few(rows[inside > 0, j]):
                target = (np.eye(4)[j][:, None] * inside).reshape(-1)
                assert np.linalg.norm(target - (span @ target) @ span) > 1e-6


def _config(d: int) -> RunConfig:
    result = simulate(
        "lloyd",
        {name: np.random.default_rng(0).normal(size=(9, d)) for name in "abc"},
        config={"n_clusters": 1},
        policy={"scaling": "none"},
    )
    plan = result._plan
    return RunConfig(
        options=plan.options, features=plan.features, policy=plan.policy, roster=("a",), p=P
    )
