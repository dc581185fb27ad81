"""Whatever the rows, a session ends with a result or with a reason that says what to change."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedclust import SessionResult, simulate
from fedclust.methods.common.options import select_variant_model
from fedclust.methods.registry import METHODS
from fedclust.schema.errors import MethodFailure
from support.method_variants import ALL, IDS, SWEEP_IDS, SWEEPS, TRIED

REASONS = {"too_few_contributors", "site_without_points", "feature_without_values"}
_VALUES = {
    "numeric": st.sampled_from([0.0, -0.0, 1.0, 2.5, -7.0, 1e6, np.nan]),
    "binary": st.sampled_from([0.0, 1.0, np.nan]),
}
#: With bounds, which some methods need.
_DECLARED: dict[str, dict[str, Any]] = {
    "numeric": {"kind": "numeric", "lower": -10.0, "upper": 2e6},
    "binary": {"kind": "binary"},
}


@st.composite
def sessions(draw: st.DrawFn) -> dict[str, Any]:
    """Draw sites with few, many, repeated and missing rows, and a session over them."""
    kinds = draw(st.lists(st.sampled_from(["numeric", "binary"]), min_size=1, max_size=3))
    sites = {}
    for name in ("a", "b", "c"):
        n = draw(st.integers(0, 14))
        columns = [draw(arrays(np.float64, n, elements=_VALUES[kind])) for kind in kinds]
        sites[name] = np.column_stack(columns) if n else np.empty((0, len(kinds)))
    p = draw(st.sampled_from([1, 3, 4]))
    protection = {"protection": "none"} if p == 1 else {"min_group_size": p}
    return {
        "sites": sites,
        "config": {"n_clusters": draw(st.integers(1, 6))},
        "features": [{"name": f"x{j}", **_DECLARED[kind]} for j, kind in enumerate(kinds)],
        "policy": {
            **protection,
            "min_sites": draw(st.integers(1, 3)) if p == 1 else draw(st.sampled_from([1, 3])),
            "scaling": draw(st.sampled_from(["none", "standard"])),
            "missing": draw(st.sampled_from(["drop", "impute"])),
            "max_rounds": 5,
        },
        "persons": draw(
            st.sampled_from([None, {name: np.arange(len(rows)) for name, rows in sites.items()}])
        ),
    }


@pytest.mark.parametrize(("method", "options"), ALL + SWEEPS, ids=IDS + SWEEP_IDS)
@given(session=sessions())
@settings(max_examples=6)
def test_a_session_ends_well_or_says_why(
    method: str, options: dict[str, Any], session: dict[str, Any]
) -> None:
    session = {**session, "config": {**session["config"], **options}}
    reason = None
    try:
        own_only = options in TRIED[method].own_only
        result = simulate(method, **session)
        for k in [entry.n_clusters for entry in result.sweep_ or ()]:
            alone = {**session, "config": {"n_clusters": k}}
            _check(result.at(k), alone, own_only=own_only)
        if result.sweep_ is None:
            _check(result, session, own_only=own_only)
    except MethodFailure as failure:
        reason = failure.reason
    assert reason is None or reason in REASONS


def _persons(rows: Any, session: dict[str, Any]) -> int:
    """Return how many persons rows stand for: a row each, but one where all are identical."""
    declared = session["persons"] is not None
    return len(rows) if declared or not len(rows) or (rows != rows[0]).any() else 1


def _check(result: SessionResult, session: dict[str, Any], *, own_only: bool) -> None:
    centroids = result.cluster_centers_
    n_rows = sum(len(rows) for rows in session["sites"].values())
    p = session["policy"].get("min_group_size", 1)

    assert 1 <= len(centroids) <= session["config"]["n_clusters"]
    assert np.isfinite(centroids).all()
    assert len(np.unique(result.result.centroids, axis=0)) == len(centroids)
    if result.sizes_ is None:
        assert any("could answer the closing" in warning for warning in result.warnings_)
    sizes = result.sizes_ or ()
    assert all(size is None or size == 0 or size >= p for size in sizes)
    assert sum(size or 0 for size in sizes) <= n_rows
    for site, rows in session["sites"].items():
        labels = result.labels_[site]
        assert labels.shape == (len(rows),)
        missing = np.isnan(rows).any(axis=1)
        if session["policy"]["missing"] == "impute":
            missing[:] = False
        sent = [e.payload for e in result.trace_ if e.site == site and e.phase != "prepare"]
        if own_only and not any(payload is not None for payload in sent):
            # A site with too few persons computes nothing, and remembers nothing to label rows by.
            # Imputed rows may have become identical, which is one person: the engine knows.
            imputed = np.isnan(rows[~missing]).any()
            few = _persons(rows[~missing], session) < p
            missing[:] |= (labels == -1).all() if imputed else few
        np.testing.assert_array_equal(labels == -1, missing)
    for entry in result.trace_:
        for part in getattr(entry.payload, "parts", (entry.payload,)):
            counts = getattr(part, "counts", None)
            if counts is not None:
                assert ((counts == 0) | (counts >= p)).all()


@pytest.mark.parametrize("n_clusters", [3, 6])
def test_far_rows_do_not_make_near_ones_equal(n_clusters: int) -> None:
    far = [[0.0, 0.0], [1e6, 0.0], [0.0, 1e6], [0.0, 0.0], [0.0, 0.0]]
    near = [[2.5, 0.0], [2.5, 0.0], [0.0, 1.0], [2.5, 1e6], [2.5, 1.0], [2.5, -7.0], [1e6, 1.0]]
    policy = {"protection": "none", "min_sites": 1, "scaling": "none", "max_rounds": 5}

    result = simulate(
        "spectral",
        {"a": np.array(far), "b": np.array(near)},
        config={"n_clusters": n_clusters},
        features=[{"name": f"x{j}", **_DECLARED["numeric"]} for j in range(2)],
        policy=policy,
    )

    assert sum(result.sizes_) == len(far) + len(near)


def sites_of_two_clusters() -> dict[str, Any]:
    rng = np.random.default_rng(4)
    centres = np.repeat([[40.0, 180.0], [70.0, 260.0]], 30, axis=0)
    return {name: centres + rng.normal(0.0, (4.0, 12.0), (60, 2)) for name in "abc"}


BOUNDED = [{"name": "age", "lower": 0, "upper": 120}, {"name": "chol", "lower": 0, "upper": 1_000}]


@pytest.mark.parametrize(("method", "options"), ALL, ids=IDS)
def test_more_clusters_than_any_site_has_rows(method: str, options: dict[str, Any]) -> None:
    # As many as the method takes: one that solves problems exactly takes few.
    described = select_variant_model(METHODS[method].options, options).model_json_schema()
    wanted = min(100, described["properties"]["n_clusters"].get("maximum", 100))
    every = 1 if wanted == 100 else 4
    sites = {name: rows[::every] for name, rows in sites_of_two_clusters().items()}
    config = {**options, "n_clusters": wanted}
    policy = {"max_rounds": 10}
    found = simulate(
        *(method, sites), config=config, features=BOUNDED, policy=policy, seed=7
    ).result
    assert 1 <= len(found.centroids) < wanted
    assert any(str(wanted) in warning for warning in found.warnings), found.warnings
    assert len(np.unique(found.centroids, axis=0)) == len(found.centroids)


@pytest.mark.parametrize(("method", "options"), ALL, ids=IDS)
def test_one_cluster_is_the_mean(method: str, options: dict[str, Any]) -> None:
    sites = sites_of_two_clusters()
    config = {**options, "n_clusters": 1}
    result = simulate(method, sites, config=config, features=BOUNDED, seed=7).result
    mean = np.vstack(list(sites.values())).mean(axis=0)
    # Of groups' middle values, or of artificial persons around them.
    assert np.allclose(result.centroids_original, [mean], rtol=1e-2)
    assert result.sizes == (180,)
