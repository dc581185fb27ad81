"""Profiles against pandas, and what the sums behind them must not tell."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedclust import simulate
from fedclust.algorithms import evaluation
from fedclust.algorithms.base import RunConfig, SiteData, Space
from fedclust.algorithms.profiling import site_profile
from fedclust.algorithms.releasing import Released
from fedclust.privacy.counting import PersonIndex
from fedclust.privacy.moments import cell_moments
from fedclust.simulate import SimulationResult
from support.hospitals import breast_cancer
from support.methods import TRIED

OPEN = {"min_group_size": 1, "protection": "none", "min_sites": 1}


def _mixed(n: int = 400) -> dict[str, pd.DataFrame]:
    """Return three sites' rows, far from the origin and with a yes/no column."""
    rng = np.random.default_rng(4)
    of = rng.integers(0, 3, n)
    frame = pd.DataFrame(
        {
            "age": 1e6 + 20.0 * of + rng.normal(0, 3, n),
            "smoker": (rng.random(n) < np.array([0.1, 0.5, 0.9])[of]).astype(float),
            "score": rng.integers(0, 9, n).astype(float) - 4.0 * of,
        }
    )
    names = np.array(["a", "b", "c"])[np.arange(n) % 3]
    return {name: frame[names == name] for name in "abc"}


def _features() -> list[Any]:
    return ["age", {"name": "smoker", "kind": "binary"}, "score"]


@pytest.mark.parametrize("method", ["lloyd", "fkm", "kfed", "spectral"])
def test_unprotected_it_is_what_pandas_finds(method: str) -> None:
    sites = _mixed()
    result = simulate(
        method, sites, config={"n_clusters": 3}, features=_features(), policy=OPEN, seed=2
    )
    rows = pd.concat(list(sites.values()))
    # The evaluation goes by centroids, k-FED's labels for own rows do not.
    labels = result.predict(rows)
    groups = rows.groupby(labels)
    profile = result.result_.profile

    assert profile is not None
    assert profile.known.all()
    assert profile.spread_known.all()
    np.testing.assert_allclose(profile.means, groups.mean(), rtol=1e-12)
    np.testing.assert_allclose(profile.deviations, groups.std(ddof=0), rtol=1e-6)
    np.testing.assert_allclose(profile.overall_means, rows.mean(), rtol=1e-12)
    np.testing.assert_allclose(profile.overall_deviations, rows.std(ddof=0), rtol=1e-6)
    assert result.sizes_ == tuple(groups.size())


def test_with_the_defaults_it_is_near() -> None:
    sites = _mixed(900)
    result = simulate("lloyd", sites, config={"n_clusters": 3}, features=_features(), seed=2)
    rows = pd.concat(list(sites.values()))
    groups = rows.groupby(result.predict(rows))
    profile = result.result_.profile

    assert profile is not None
    unit = rows.std(ddof=0).to_numpy()
    assert (np.abs(profile.means - groups.mean().to_numpy()) < 0.1 * unit).all()
    told = profile.spread_known
    assert told.mean() > 0.8
    apart = np.abs(profile.deviations - groups.std(ddof=0).to_numpy()) / unit
    assert (apart[told] < 0.1).all()


def test_a_spread_that_is_not_told_makes_that_of_all_rows_no_narrower() -> None:
    """Two groups apart in u; of one nearly all have 7 in v, so of neither v's spread is told."""
    sites = {}
    for seed, name in enumerate("abc"):
        rng = np.random.default_rng(seed)
        rows = rng.normal(size=(90, 3)) + np.repeat([[0, 7, 0], [40, 7, 0], [0, 7, 40]], 30, axis=0)
        rows[:30, 1] = 7.0
        rows[0, 1] = 8.5
        sites[name] = rows
    result = simulate("lloyd", sites, config={"n_clusters": 3}, seed=0)
    profile = result.result_.profile

    assert profile is not None
    untold = ~profile.spread_known[:, 1]
    assert 0 < untold.sum() < 3
    rows = np.concatenate(list(sites.values()))
    # A third of the rows have next to no spread, and count with that of the others.
    assert rows[:, 1].std() < profile.overall_deviations[1] < 1.3 * rows[:, 1].std()
    # The column that hides it has a spread of its own.
    np.testing.assert_allclose(
        profile.overall_deviations[[0, 2]], rows.std(axis=0)[[0, 2]], rtol=0.05
    )


def test_columns_count_at_the_sites_that_have_them() -> None:
    rng = np.random.default_rng(0)
    of = rng.integers(0, 2, 300)
    every = pd.DataFrame({c: 9.0 * of + rng.normal(size=300) for c in "uvw"})
    sites = {"a": every[:100][["u", "v"]], "b": every[100:200][["v", "w"]], "c": every[200:]}
    result = simulate(
        "overlap", sites, config={"n_clusters": 2}, policy={**OPEN, "missing": "mask"}, seed=1
    )
    profile = result.result_.profile
    labels = {name: result.labels_[name] for name in sites}

    assert profile is not None
    for column in "uvw":
        having = [name for name in sites if column in sites[name]]
        values = np.concatenate([sites[name][column] for name in having])
        found = np.concatenate([labels[name] for name in having])
        for k in range(2):
            place = result.definition_.features.index(
                next(f for f in result.definition_.features if f.name == column)
            )
            np.testing.assert_allclose(profile.means[k, place], values[found == k].mean())
            np.testing.assert_allclose(profile.deviations[k, place], values[found == k].std())


def test_of_clusters_of_suppressed_size_nothing_is_told() -> None:
    rng = np.random.default_rng(3)
    near, far = rng.normal(size=(60, 2)), 40.0 + rng.normal(size=(6, 2))
    sites = {"a": np.vstack([near, far]), "b": near + 0.1, "c": near - 0.1}
    # The site of the far rows alone counts from 5, the others from 8.
    answers = _evaluations(simulate("lloyd", sites, config={"n_clusters": 2}, seed=0))
    result = simulate("lloyd", sites, config={"n_clusters": 2}, seed=0)
    task = next(entry.task for entry in result.trace_ if entry.phase == evaluation.NAME)
    config = _config_of(result)
    contributions = [
        evaluation.Contribution(site, payload, p=5 if site == "a" else 8)
        for site, payload in answers.items()
    ]
    raw = result.result_.model_copy(update={"centroids": task.common.centroids})
    outcome = evaluation.aggregate(raw, contributions, config)

    assert outcome.sizes.count(None) >= 1
    assert (
        outcome.profile is None
        or not outcome.profile.known[[size is None for size in outcome.sizes]].any()
    )


def _config_of(result: SimulationResult) -> RunConfig:
    plan = result._plan
    return RunConfig(
        options=plan.options,
        features=plan.features,
        policy=plan.policy,
        roster=tuple(result.labels_),
        p=plan.policy.min_group_size,
        space=Space(result.result_.center, result.result_.scale),
    )


def _evaluations(result: SimulationResult) -> dict[str, evaluation.Evaluation]:
    return {entry.site: entry.payload for entry in result.trace_ if entry.phase == evaluation.NAME}


# --- attacks --------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [3, 5])
@pytest.mark.parametrize("lone", [1, 2])
def test_a_lone_value_of_a_real_record_does_not_follow_from_mean_and_spread(
    p: int, lone: int
) -> None:
    """All rows have 7 in a column, one or two have something else: two equations, two unknowns."""
    rng = np.random.default_rng(5)
    sites = {}
    for name in "abc":
        rows = rng.normal(size=(60, 4))
        rows[:, 1] = 7.0
        rows[:lone, 1] = 11.5
        sites[name] = rows
    result = simulate(
        "lloyd", sites, config={"n_clusters": 1}, policy={"min_group_size": p, "scaling": "none"}
    )
    for payload in _evaluations(result).values():
        assert payload.counts.tolist() == [60]
        assert payload.m2[0, 1] == 0.0
        # Nor as what the cost leaves when the other columns' spread is taken off.
        assert (payload.m2[0] == 0.0).sum() == 2
        assert (payload.m2[0] > 0.0).sum() == 2
    assert result.result_.profile is not None
    assert not result.result_.profile.spread_known[0, 1]


def test_a_real_record_in_the_rest_does_not_follow_from_the_totals() -> None:
    """The rest's spread is the totals' less the cells': none may be told of every cell."""
    rng = np.random.default_rng(6)
    cells = np.repeat([[0.0, 0.0, 0.0], [50.0, 50.0, 50.0]], 40, axis=0)
    rows = cells + rng.normal(size=(80, 3))
    rest = np.array([25.0, 25.0, 3.0]) + np.array([1.0, 1.0, 0.0]) * rng.normal(size=(6, 3))
    rest[0, 2] = 4.5
    sites = {"a": np.vstack([rows, rest]), "b": rows + 0.1, "c": rows - 0.1}
    n_rest = 6
    labels = np.repeat([0, 1, -1], [40, 40, n_rest])
    result = simulate("lloyd", sites, config={"n_clusters": 2}, policy={"scaling": "none"}, seed=0)
    X = sites["a"]
    released = Released(labels, cell_moments(X, labels, 2), np.zeros((2, 3), dtype=np.bool_))
    data = SiteData(X, index=PersonIndex(X))
    _, m2, _ = site_profile(data, released, np.arange(2), 2, _config_of(result), {})

    assert (m2[:, 2] == 0.0).any()
    assert (m2[:, :2] > 0.0).sum() >= 3


def test_two_values_of_a_real_record_do_not_follow_where_p_is_two() -> None:
    sites = {name: rows[:40, :3] for name, rows in breast_cancer().items()}
    result = simulate("lloyd", sites, config={"n_clusters": 8}, policy={"min_group_size": 2})
    answers = _evaluations(result)

    assert any((payload.counts == 2).any() for payload in answers.values())
    assert all(not payload.m2.any() for payload in answers.values())
    assert result.result_.profile is not None
    assert not result.result_.profile.spread_known.any()


@pytest.mark.parametrize("method", TRIED)
def test_the_spread_of_a_yes_no_column_says_no_more_than_its_share(method: str) -> None:
    rng = np.random.default_rng(8)
    sites = {
        name: np.column_stack([rng.random(80) < 0.05, rng.random(80) < 0.5, rng.normal(size=80)])
        for name in "abc"
    }
    number = {"name": "w", "lower": -10.0, "upper": 10.0}
    features = [{"name": "u", "kind": "binary"}, {"name": "v", "kind": "binary"}, number]
    result = simulate(
        method,
        sites,
        config={"n_clusters": 2, **TRIED[method].variants[0]},
        features=features,
        policy={"scaling": "none", "missing": "mask" if "overlap" in method else "drop"},
    )
    for payload in _evaluations(result).values():
        share = payload.means[:, :2]
        expected = payload.counts[:, None] * share * (1.0 - share)
        np.testing.assert_allclose(payload.m2[:, :2], expected, atol=1e-9)
