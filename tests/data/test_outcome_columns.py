"""Outcomes are read and released like features, and no method sees them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from fedclust import simulate
from fedclust.data import load
from fedclust.data.site_data import session_rows, site_data
from fedclust.definition import freeze, plan_of
from fedclust.engine import Plan
from fedclust.schema.feature import Feature
from fedclust.wire import codec
from fedclust.wire.models import SessionCreate

FEATURES: list[dict[str, Any]] = [
    {"name": "died", "kind": "binary", "role": "outcome"},
    {"name": "x"},
    {"name": "ward", "kind": "categorical", "levels": ["a", "b", "c"], "role": "outcome"},
    {"name": "y"},
    {"name": "stay", "role": "outcome", "lower": 0, "upper": 60},
]


def rows(seed: int, n: int = 300) -> pd.DataFrame:
    """Persons of two clusters; a tenth of the first and four tenths of the second die."""
    rng = np.random.default_rng(seed)
    sick = rng.integers(0, 2, n)
    return pd.DataFrame(
        {
            "died": (rng.random(n) < 0.1 + 0.3 * sick).astype(float),
            "x": rng.normal(size=n) + 6 * sick,
            "ward": rng.choice(list("abc"), n),
            "y": rng.normal(size=n),
            "stay": rng.gamma(2.0, 3.0 + sick, n),
        }
    )


def plan(**policy: Any) -> Plan:
    request = {
        "name": "outcomes",
        "algorithm": "lloyd",
        "config": {"n_clusters": 2},
        "features": FEATURES,
        "sites": ["a"],
        "policy": {"min_sites": 1, **policy},
    }
    body = SessionCreate.model_validate_json(codec.canonical_json(request))
    return plan_of(freeze(body, 0, simulated=True))


def points_of(asked: Plan, source: Any) -> Any:
    return site_data(asked, source, session_rows(asked, source), 5)


def test_outcomes_are_columns_of_their_own_wherever_they_are_declared() -> None:
    given = rows(1)
    table = load(given, [Feature.model_validate(each, strict=False) for each in FEATURES])
    np.testing.assert_array_equal(table.X, given[["x", "y"]])
    assert table.outcomes is not None
    np.testing.assert_array_equal(table.outcomes[:, [0, 4]], given[["died", "stay"]])
    np.testing.assert_array_equal(table.outcomes[:, 1], given["ward"] == "a")
    assert table.columns == ("x", "y")
    assert set(table.features) == {"died", "x", "ward", "y", "stay"}


def test_a_person_without_an_outcome_is_a_point_all_the_same() -> None:
    given = rows(2)
    given.loc[:40, "died"] = np.nan
    given.loc[41:43, "stay"] = 1e6
    exact, held = points_of(plan(protection="none"), given)
    assert (len(exact.X), exact.outcomes.shape) == (300, (300, 5))
    assert np.isnan(exact.outcomes[:, 0]).sum() == 41
    assert exact.outcomes[:, 4].max() == 60
    assert "died" in held
    points, held = points_of(plan(), given)
    assert points.n == 300
    assert not np.isnan(points.X).any()
    known = ~np.isnan(points.outcomes[:, 0])
    # At most the groups of those without a value, and one that mixes both.
    assert 240 <= points.sizes[known].sum() <= 259
    assert 0 < points.outcome_within[4] < 0.95
    assert "died" in held


def test_groups_release_events_of_none_or_of_p_persons() -> None:
    given = rows(3)
    points, _ = points_of(plan(), given)
    events = points.outcomes[:, 0] * points.sizes
    np.testing.assert_allclose(events, np.round(events), atol=1e-9)
    assert set(np.round(events)) & {1, 2, 3, 4} == set()
    assert events.sum() == pytest.approx(given["died"].sum(), abs=15)
    np.testing.assert_allclose(points.outcomes[:, 1:4].sum(axis=1), 1.0)


def test_methods_compute_the_same_whatever_the_outcomes_are() -> None:
    sites = {name: rows(seed) for seed, name in enumerate("abc")}
    others = {name: each.assign(died=1 - each["died"], stay=1.0) for name, each in sites.items()}

    def sent(given: dict[str, pd.DataFrame]) -> list[Any]:
        found = simulate(
            "fkm",
            given,
            config={"n_clusters": 2},
            features=FEATURES,
            policy={"protection": "none"},
        )
        assert found.cluster_centers_.shape == (2, 2)
        return [
            codec.encode(codec.to_tree(each.payload))
            for each in found.trace_
            if each.phase in ("prepare", "means", "cells")
        ]

    answers = sent(sites)
    assert len(answers) >= 6
    assert answers == sent(others)


def test_new_rows_need_no_outcomes() -> None:
    given = {name: rows(seed) for seed, name in enumerate("abc")}
    arrays = {
        name: each.assign(ward=each["ward"].map("abc".index)).to_numpy(float)
        for name, each in given.items()
    }
    features = [*FEATURES[:2], {"name": "ward", "role": "outcome"}, *FEATURES[3:]]
    found = simulate("fkm", arrays, config={"n_clusters": 2}, features=features)
    new = arrays["a"][:, [1, 3]]
    np.testing.assert_array_equal(found.predict(new), found.labels_["a"])
    np.testing.assert_array_equal(
        found.predict(pd.DataFrame(new, columns=["x", "y"])), found.labels_["a"]
    )


def groups_of(given: pd.DataFrame) -> NDArray[np.float64]:
    """Return what the groups release of features, in the order of these values."""
    points = points_of(plan(), given)[0]
    found = np.column_stack([points.X, points.sizes])
    return found[np.lexsort(found.T)]


def test_only_rare_outcomes_shape_the_groups() -> None:
    """Else clusters of the groups would differ in the outcome because of the grouping."""
    given = rows(4)
    rng = np.random.default_rng(9)
    others = given.assign(stay=rng.permutation(given["stay"]), ward=rng.permutation(given["ward"]))
    rare = given["died"] * (rng.random(len(given)) < 0.4)
    common = (rng.random(len(given)) < 0.4).astype(float)
    for died, shapes in ((rare, True), (common, False)):
        here = groups_of(given.assign(died=died))
        np.testing.assert_array_equal(here, groups_of(others.assign(died=died)))
        there = groups_of(given.assign(died=died[::-1].to_numpy() if shapes else died[::-1]))
        assert np.array_equal(here, there) != shapes


def test_the_order_of_persons_does_not_matter_where_they_are_equal_but_for_an_outcome() -> None:
    given = rows(5).round({"x": 0, "y": 0})
    shuffled = given.sample(frac=1, random_state=1)
    here, there = (
        np.column_stack([each.X, each.outcomes, each.sizes])
        for each in (points_of(plan(), rows)[0] for rows in (given, shuffled))
    )
    np.testing.assert_array_equal(here, there)
