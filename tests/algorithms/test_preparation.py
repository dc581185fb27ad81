"""The preparation round: merged moments equal the pooled ones, in every awkward case."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedclust.algorithms import preparation
from fedclust.algorithms.base import (
    Contribution,
    Feature,
    MethodFailure,
    Policy,
    RuleViolation,
    RunConfig,
    SiteData,
    Space,
)


def _config(d: int, *, p: int = 2, kind: Any = "numeric", **policy: Any) -> RunConfig:
    return RunConfig(
        options=None,
        features=tuple(Feature(name=f"x{j}", kind=kind) for j in range(d)),
        policy=Policy(min_group_size=p, **policy),
        roster=("a", "b", "c"),
        p=p,
        space=Space.identity(d),
    )


def _contributions(sites: list[np.ndarray], config: RunConfig) -> list[Contribution]:
    answers = []
    for name, rows in zip("abc", sites, strict=False):
        payload = preparation.local_step(SiteData(np.asarray(rows, dtype=float)), config)
        if payload is not None:
            preparation.check(payload, config)
        answers.append(Contribution(name, payload, config.p))
    return answers


def _space(sites: list[np.ndarray], config: RunConfig) -> Space:
    return preparation.merge(_contributions(sites, config), config)


@pytest.mark.parametrize("offset", [0.0, 1e8, -1e8])
def test_merged_moments_equal_the_pooled_ones_at_any_offset(offset: float) -> None:
    rng = np.random.default_rng(0)
    sites = [rng.normal(size=(n, 3)) * [1, 2, 30] + offset for n in (7, 200, 3000)]
    space = _space(sites, _config(3))
    pooled = np.concatenate(sites)

    np.testing.assert_allclose(space.center, pooled.mean(axis=0), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(space.scale, (pooled - offset).std(axis=0), rtol=1e-7)


@given(
    arrays(np.float64, (12, 2), elements=st.floats(-1e6, 1e6)),
    st.integers(2, 5),
    st.integers(7, 10),
)
def test_any_split_gives_the_pooled_space(rows: np.ndarray, first: int, second: int) -> None:
    # Rows that repeat count as one person, and one person sends nothing: made different here.
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


def test_totals_derived_from_moments_are_those_of_the_scaled_imputed_rows() -> None:
    rng = np.random.default_rng(4)
    sites = [rng.normal(-5.0, 3.0, size=(n, 2)) for n in (20, 30, 40)]
    sites[1][:7, 1] = np.nan
    sites[2][:, 0] = np.nan
    config = _config(2, missing="impute")
    contributions = _contributions(sites, config)
    space = preparation.merge(contributions, config)
    totals = preparation.totals(contributions, space, config)

    for name, rows in zip("abc", sites, strict=True):
        scaled = space.to_scaled(np.where(np.isnan(rows), space.impute, rows))
        assert totals[name].n == len(rows)
        np.testing.assert_allclose(totals[name].mean, scaled.mean(axis=0), atol=1e-12)
        np.testing.assert_allclose(totals[name].m2, len(rows) * scaled.var(axis=0), atol=1e-9)


def test_a_feature_that_fewer_than_p_persons_have_is_not_told() -> None:
    rows = np.random.default_rng(5).normal(size=(10, 2))
    rows[3:, 1] = np.nan
    payload = preparation.local_step(SiteData(rows), _config(2, p=4, missing="impute"))

    assert payload is not None
    assert payload.observed.tolist() == [10, 0]
    assert payload.mean[1] == payload.m2[1] == 0.0


def test_a_feature_that_no_site_tells_fails_by_name() -> None:
    sites = [np.random.default_rng(n).normal(size=(10, 2)) for n in range(3)]
    for rows in sites:
        rows[:, 1] = np.nan

    with pytest.raises(MethodFailure, match="'x1'") as caught:
        _space(sites, _config(2, missing="impute"))
    assert caught.value.reason == "feature_without_values"


def test_a_rare_yes_is_rounded_to_a_multiple_of_p() -> None:
    rows = np.zeros((20, 1))
    rows[:3] = 1.0
    payload = preparation.local_step(SiteData(rows), _config(1, p=5, kind="binary"))

    assert payload is not None
    assert payload.mean[0] * 20 == pytest.approx(5)
    assert payload.m2[0] == pytest.approx(20 * 0.25 * 0.75)


def test_bounds_scaling_comes_from_the_declaration_alone() -> None:
    features = (Feature(name="x0", lower=-2, upper=6), Feature(name="x1", kind="binary"))
    config = RunConfig(
        options=None,
        features=features,
        policy=Policy(scaling="bounds", missing="impute", min_group_size=2),
        roster=("a",),
        p=2,
        space=Space.identity(2),
    )
    rng = np.random.default_rng(6)
    rows = np.column_stack([rng.uniform(-2, 6, 40), rng.integers(0, 2, 40)])
    space = preparation.merge(_contributions([rows], config), config)

    assert space.center.tolist() == [-2.0, 0.0]
    assert space.scale.tolist() == [8.0, 1.0]
    assert space.impute is not None


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"n": 1}, "smallest-count"),
        ({"observed": np.array([6, 1])}, "smallest-count"),
        ({"observed": np.array([6, 5])}, "complement"),
        ({"observed": np.array([7, 6])}, "complement"),
        ({"mean": np.zeros(3)}, "shape"),
        ({"m2": np.array([-1.0, 1.0])}, "spread"),
        ({"observed": np.array([6, 0])}, "empty-cell"),
    ],
)
def test_check_refuses_moments_that_cannot_be(change: dict[str, Any], rule: str) -> None:
    config = _config(2)
    payload = preparation.local_step(SiteData(np.random.default_rng(0).normal(size=(6, 2))), config)
    assert payload is not None

    with pytest.raises(RuleViolation) as caught:
        preparation.check(payload.model_copy(update=change), config)
    assert caught.value.rule == rule
