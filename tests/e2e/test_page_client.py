"""Sites written from ``docs/protocol.md`` alone: they finish sessions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedclust import simulate
from support.api_caller import ApiCaller
from support.page_site import PageSite
from support.server import running_server

SITES = ["lima", "oslo", "rome"]
FEATURES: list[dict[str, Any]] = [
    {"name": "age", "unit": "years", "lower": 0.0, "upper": 120.0},
    {"name": "chol", "unit": "mg/dl", "lower": 0.0, "upper": 1000.0},
    {"name": 'raucht "≥ 1"', "kind": "binary"},
]
P = 5


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiCaller]:
    """Return a coordinator in a process of its own, with three sites and an analyst."""
    with running_server(tmp_path_factory.mktemp("page") / "coordinator") as server:
        api = ApiCaller(server.base_url, server.operator_token)
        api.register("sites", *SITES)
        api.register("analysts", "ada")
        yield api


def hospital(seed: int, holes: float) -> NDArray[np.float64]:
    """Return rows (90, 3) of three groups that touch, some values missing."""
    rng = np.random.default_rng(seed)
    group = rng.integers(3, size=90)
    rows = np.array([[35.0, 190.0], [55.0, 260.0], [72.0, 205.0]])[group]
    rows = rows + rng.normal(0.0, [6.0, 18.0], (90, 2))
    yes = rng.random(90) < np.array([0.1, 0.5, 0.9])[group]
    rows = np.column_stack([rows, yes])
    rows[rng.random(rows.shape) < holes] = np.nan
    return rows


@pytest.mark.parametrize(
    ("name", "policy", "holes"),
    [
        ("standard", {}, 0.02),
        ("imputed", {"missing": "impute"}, 0.1),
        # No round of preparation.
        ("bounds", {"scaling": "bounds"}, 0.02),
    ],
)
def test_a_site_can_be_written_from_the_page(
    name: str, policy: dict[str, Any], holes: float, api: ApiCaller, tmp_path: Path
) -> None:
    policy |= {"max_rounds": 12}
    config = {"n_clusters": 4, "tol": 1e-7}
    api.define("ada", name, SITES, features=FEATURES, config=config, policy=policy)
    sites = [
        PageSite(api.base_url, api.tokens[site], name, hospital(7 + i, holes), tmp_path / site)
        for i, site in enumerate(SITES)
    ]
    for site in sites:
        site.join()
    waiting = list(sites)
    while waiting:
        waiting = [site for site in waiting if site.turn() != "ended"]
    assert api.ok("GET", f"/v1/sessions/{name}", "ada")["state"] == "completed"

    result = api.ok("GET", f"/v1/sessions/{name}/result", "ada")["result"]
    scaled = [_scaled(site.rows, result) for site in sites]
    for site in sites:
        assert site.sizes.min() >= 2 * P
        assert len(site.bodies) >= 4
    # The groups are simple: what the clusters explain of the spread is most of what they explain
    # with the SDK at the sites.
    X, centroids = np.vstack(scaled), np.array(result["centroids"])
    whole = ~np.isnan(X).any(axis=1)
    X = X[whole]
    rows = {name: hospital(7 + i, holes) for i, name in enumerate(SITES)}
    theirs = simulate("lloyd", rows, config=config, policy=policy, features=FEATURES, seed=7)
    spread, best = (
        _cost(X, X.mean(axis=0)[None]),
        _cost(X, _scaled(theirs.cluster_centers_, result)),
    )
    assert spread - _cost(X, centroids) > 0.85 * (spread - best) > 0.4 * spread
    labels = np.concatenate([site.labels() for site in sites])[whole]
    assert np.array_equal(labels, _squares(X, centroids).argmin(axis=1))
    for site in sites:
        site.close()


def _squares(X: NDArray[np.float64], centroids: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(((X[:, None] - centroids) ** 2).sum(axis=2))


def _cost(X: NDArray[np.float64], centroids: NDArray[np.float64]) -> float:
    return float(_squares(X, centroids).min(axis=1).sum())


def _scaled(rows: NDArray[np.float64], result: dict[str, Any]) -> NDArray[np.float64]:
    impute = result["impute"]
    whole = rows if impute is None else np.where(np.isnan(rows), impute, rows)
    return np.asarray((whole - result["center"]) / result["scale"])
