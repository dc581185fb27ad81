"""The preparation round: merged moments equal the pooled ones, in every awkward case."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedclust.rounds import preparation
from fedclust.rounds.site_points import complete_points
from fedclust.schema.encoding import Space
from fedclust.schema.errors import MethodFailure
from fedclust.schema.feature import Feature
from fedclust.schema.run_config import RunConfig
from fedclust.schema.task import Contribution, Points, SiteSide, SiteTask, row_points
from support.points import config_of, repeated, violation, weighted

TASK = SiteTask(preparation.NAME, preparation.PreparationTask())


def _config(d: int, *, p: int = 1, kind: Any = "numeric", **policy: Any) -> RunConfig:
    features = tuple(Feature(name=f"x{j}", kind=kind) for j in range(d))
    return config_of(None, p=p, features=features, **{"scaling": "standard", **policy})


def _contributions(sites: list[Points], config: RunConfig) -> list[Contribution]:
    answers = []
    for name, points in zip("abc", sites, strict=False):
        site = SiteSide(complete_points(points, config), config, np.random.default_rng(0), {})
        payload = preparation.local_step(TASK, site)
        if payload is not None:
            preparation.check(TASK, payload, config)
        answers.append(Contribution(name, payload, config.p))
    return answers


def _space(sites: list[np.ndarray], config: RunConfig) -> Space:
    return preparation.merge(_contributions([*map(row_points, sites)], config), config)[0]


def test_weighted_points_count_as_their_persons() -> None:
    rng = np.random.default_rng(0)
    sites = [weighted(rng.normal(size=(n, 3)), rng.integers(5, 12, n)) for n in (7, 200, 300)]
    config = _config(3, p=5)
    space = preparation.merge(_contributions(sites, config), config)[0]
    rows = np.concatenate([repeated(points) for points in sites])

    np.testing.assert_allclose(space.center, rows.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(space.scale, rows.std(axis=0), rtol=1e-12)


def test_the_variance_within_groups_is_part_of_the_scale() -> None:
    rng = np.random.default_rng(1)
    share = np.array([0.0, 0.75])
    points = replace(weighted(rng.normal(size=(50, 2))), within=share)
    config = _config(2, p=5)
    space = preparation.merge(_contributions([points], config), config)[0]

    np.testing.assert_allclose(space.scale, points.X.std(axis=0) * [1.0, 2.0])


def test_a_spread_is_never_wider_than_the_declared_bounds_admit() -> None:
    """Half at each bound: the widest that there can be, and the share would make it wider."""
    features = (Feature(name="x0", lower=0, upper=10),)
    config = config_of(None, features=features, scaling="standard")
    points = replace(weighted([[0.0], [10.0]] * 9), within=np.array([0.2]))
    space = preparation.merge(_contributions([points], config), config)[0]

    assert space.scale.tolist() == [5.0]


@pytest.mark.parametrize("offset", [0.0, 1e8, -1e8])
def test_merged_moments_equal_the_pooled_ones_at_any_offset(offset: float) -> None:
    rng = np.random.default_rng(0)
    sites = [rng.normal(size=(n, 3)) * [1, 2, 30] + offset for n in (7, 200, 3000)]
    space = _space(sites, _config(3))
    pooled = np.concatenate(sites)

    np.testing.assert_allclose(space.center, pooled.mean(axis=0), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(space.scale, (pooled - offset).std(axis=0), rtol=1e-7)


@given(
    arrays(np.float64, (12, 2), elements=st.floats(-1e3, 1e3)),
    st.integers(2, 5),
    st.integers(7, 10),
)
def test_any_split_gives_the_pooled_space(rows: np.ndarray, first: int, second: int) -> None:
    rows = np.round(rows, 3) + np.arange(12)[:, None] * 1e3
    space = _space(np.split(rows, [first, second]), _config(2))

    np.testing.assert_allclose(space.center, rows.mean(axis=0), rtol=1e-9, atol=1e-6)
    np.testing.assert_allclose(space.scale, rows.std(axis=0), rtol=1e-9)


@pytest.mark.parametrize("value", [0.0, 0.1, 1e8 + 0.1, -3e-9])
def test_a_constant_feature_has_scale_one(value: float) -> None:
    rng = np.random.default_rng(1)
    sites = [np.column_stack([np.full(n, value), rng.normal(size=n)]) for n in (10, 9000, 17)]
    space = _space(sites, _config(2))

    assert space.scale[0] == 1.0
    assert space.center[0] == pytest.approx(value, rel=1e-12)
    assert space.scale[1] != 1.0


def test_a_small_but_real_spread_far_from_zero_is_kept() -> None:
    rng = np.random.default_rng(2)
    sites = [1e6 + 1e-3 * rng.normal(size=(50, 1)) for _ in range(3)]

    assert _space(sites, _config(1)).scale[0] == pytest.approx(1e-3, rel=0.2)


def test_imputed_rows_count_in_n_and_add_nothing_to_the_spread() -> None:
    rng = np.random.default_rng(3)
    sites = [rng.normal(3.0, 2.0, size=(n, 2)) for n in (20, 30, 40)]
    sites[0][:6, 0] = np.nan
    sites[2][::2, 0] = np.nan
    space = _space(sites, _config(2, missing="impute"))
    pooled = np.concatenate(sites)
    filled = np.where(np.isnan(pooled), np.nanmean(pooled, axis=0), pooled)

    assert space.impute is not None
    np.testing.assert_allclose(space.impute, np.nanmean(pooled, axis=0))
    np.testing.assert_allclose(space.scale, filled.std(axis=0))


def test_a_feature_that_no_site_tells_fails_by_name() -> None:
    sites = [np.random.default_rng(n).normal(size=(10, 2)) for n in range(3)]
    for rows in sites:
        rows[:, 1] = np.nan

    with pytest.raises(MethodFailure, match="'x1'") as caught:
        _space(sites, _config(2, missing="impute"))
    assert caught.value.reason == "feature_without_values"


def test_bounds_scaling_comes_from_the_declaration_alone() -> None:
    features = (Feature(name="x0", lower=-2, upper=6), Feature(name="x1", kind="binary"))
    config = config_of(None, p=2, features=features, scaling="bounds", missing="impute")
    rng = np.random.default_rng(6)
    rows = np.column_stack([rng.uniform(-2, 6, 40), rng.integers(0, 2, 40)])
    space = preparation.merge(_contributions([row_points(rows)], config), config)[0]

    assert space.center.tolist() == [-2.0, 0.0]
    assert space.scale.tolist() == [8.0, 1.0]
    assert space.impute is not None


def _bounded(offset: float = 0.0, **policy: Any) -> RunConfig:
    """Return a session of two features within bounds of width 1, and of one without."""
    bounds = {"lower": offset, "upper": offset + 1.0}
    features = (Feature(name="x0", **bounds), Feature(name="x1", **bounds), Feature(name="x2"))
    return config_of(None, features=features, **policy)


@pytest.mark.parametrize("offset", [0.0, 1e8])
def test_moments_of_rows_within_bounds_pass(offset: float) -> None:
    X = np.random.default_rng(0).random((50, 3)) + offset
    X[:25, 1], X[25:, 1] = offset, offset + 1
    m2 = ((X - X.mean(axis=0)) ** 2).sum(axis=0)
    honest = preparation.SiteMoments(n=50, observed=np.full(3, 50), mean=X.mean(axis=0), m2=m2)
    preparation.check(TASK, honest, _bounded(offset))


MOMENTS = preparation.SiteMoments(
    n=10,
    observed=np.array([10, 0, 8]),
    mean=np.array([0.5, 0.0, 3.0]),
    m2=np.array([2.5, 0.0, 100.0]),
)


@pytest.mark.parametrize(
    ("change", "rule", "pointer"),
    [
        ({"n": 4}, "smallest-count", "/n"),
        ({"observed": np.array([10, 0, 4])}, "smallest-count", "/observed/2"),
        ({"observed": np.array([10, 0, 11])}, "complement", "/observed/2"),
        ({"mean": np.array([0.5, 0.1, 3.0])}, "empty-cell", "/mean/1"),
        ({"m2": np.array([2.5, 0.1, 100.0])}, "empty-cell", "/m2/1"),
        ({"mean": np.array([1.1, 0.0, 3.0])}, "bounds", "/mean/0"),
        ({"mean": np.array([0.5, 0.0, np.nan])}, "bounds", "/mean/2"),
        ({"m2": np.array([2.6, 0.0, 100.0])}, "spread", "/m2/0"),
        ({"m2": np.array([2.5, 0.0, -1e-9])}, "spread", "/m2/2"),
        ({"m2": np.array([2.5, 0.0, np.nan])}, "spread", "/m2/2"),
        ({"mean": np.zeros(2)}, "shape", "/mean"),
    ],
)
def test_check_refuses_moments_that_cannot_be(
    change: dict[str, Any], rule: str, pointer: str
) -> None:
    config = _bounded(missing="impute")
    preparation.check(TASK, MOMENTS, config)
    broken = violation(preparation.check, TASK, MOMENTS.model_copy(update=change), config)
    assert (broken.rule, broken.pointer) == (rule, pointer)


def test_where_rows_are_dropped_all_features_are_observed_in_all_rows() -> None:
    fewer = MOMENTS.model_copy(update={"observed": np.array([10, 10, 9])})
    broken = violation(preparation.check, TASK, fewer, _bounded(missing="drop"))
    assert (broken.rule, broken.pointer) == ("complement", "/observed/2")
