"""Transfer: own clusters, models without a site, and columns that a site codes otherwise."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from fedclust.engine.column_differences import SiteSummary, differing_columns
from fedclust.engine.transfer import (
    LocalFit,
    check_local_fit,
    left_out_models,
    left_out_table,
    local_fit,
    summarise,
)
from fedclust.methods import lloyd
from fedclust.methods.common.local_kmeans import local_kmeans
from fedclust.schema.errors import RuleViolation
from fedclust.schema.points import row_points
from support.points import config_of, weighted

CENTRES = np.array([[0.0, 0.0, 4.0, 4.0], [4.0, 0.0, 0.0, 4.0], [0.0, 4.0, 4.0, 0.0]])
CONFIG = config_of(lloyd.config.Config(n_clusters=3), d=4)


def rows_of(
    rng: np.random.Generator, n: int, shares: list[float] | None = None
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    labels = rng.choice(3, size=n, p=shares)
    return CENTRES[labels] + rng.normal(size=(n, 4)) * 0.7, labels.astype(np.int64)


def summary_of(rows: NDArray[np.float64], labels: NDArray[np.int64]) -> SiteSummary:
    cells = local_kmeans(row_points(rows), 60, 2, np.random.default_rng(0))
    own_means = np.stack([rows[labels == k].sum(axis=0) for k in range(3)])
    own_means /= np.maximum(np.bincount(labels, minlength=3), 1)[:, None]
    within = ((rows - own_means[labels]) ** 2).mean(axis=0)
    held = cells.counts > 0
    return SiteSummary(cells.means[held], cells.counts[held], within)


def consortium(mixes: list[list[float] | None]) -> dict[str, tuple[NDArray, NDArray]]:
    rng = np.random.default_rng(3)
    return {f"site-{i}": rows_of(rng, 150 + 60 * i, mix) for i, mix in enumerate(mixes)}


def found_in(sites: dict[str, tuple[NDArray, NDArray]]) -> dict[str, tuple[int, ...]]:
    summaries = {site: summary_of(*each) for site, each in sites.items()}
    return differing_columns(summaries, np.zeros(4, dtype=np.bool_), 3, 3, 0)


@pytest.mark.parametrize(
    "miscode",
    [
        lambda column: 10.0 * column,
        lambda column: column / 10.0,
        lambda column: 4.0 - column,
        lambda column: column + 3.0,
        lambda column: np.random.default_rng(1).normal(2.0, 2.0, len(column)),
    ],
    ids=["tenfold", "tenth", "reversed", "shifted", "noise"],
)
def test_a_column_that_one_site_codes_otherwise_is_named(miscode) -> None:
    sites = consortium([None] * 5)
    sites["site-3"][0][:, 2] = miscode(sites["site-3"][0][:, 2])
    assert found_in(sites) == {"site-3": (2,)}


def test_sites_of_another_mix_are_not_named() -> None:
    assert (
        found_in(consortium([[0.8, 0.1, 0.1], [0.1, 0.9, 0.0], None, [0.0, 0.2, 0.8], None])) == {}
    )


def test_a_kind_of_persons_that_only_one_site_has_names_no_column() -> None:
    sites = consortium([None] * 5)
    rows, _ = sites["site-2"]
    rows[:100] += np.array([-6.0, -6.0, 6.0, 6.0])
    assert found_in(sites) == {}


def test_too_few_other_sites_name_nobody() -> None:
    sites = consortium([None] * 3)
    sites["site-1"][0][:, 2] *= 10.0
    assert found_in(sites) == {}


def test_a_site_with_clear_clusters_finds_them_alone() -> None:
    rows, labels = rows_of(np.random.default_rng(0), 90)
    fit = local_fit(weighted(rows), labels, 3, CONFIG, 7, "north")
    counts = 5 * np.bincount(labels, minlength=3)
    check_local_fit(fit, counts, CONFIG)
    assert (np.sort(fit.table.max(axis=0)) > 0.95 * np.sort(counts)).all()
    again = local_fit(weighted(rows), labels, 3, CONFIG, 7, "north")
    assert np.array_equal(fit.table, again.table)


def test_a_site_with_fewer_points_than_clusters_sends_empty_rows() -> None:
    points = weighted(CENTRES[:2])
    fit = local_fit(points, np.array([0, 2]), 3, CONFIG, 0, "north")
    check_local_fit(fit, np.array([5, 0, 5]), CONFIG)
    assert np.count_nonzero(fit.table.sum(axis=1)) == 2


@pytest.mark.parametrize(
    ("table", "rule"),
    [
        ([[5, 0], [0, 5]], "shape"),
        ([[5, 0, 0], [0, 4, 0], [0, 0, 5]], "smallest-count"),
        ([[5, 5, 0], [0, 0, 0], [0, 0, 5]], "table"),
        ([[-5, 0, 0], [10, 0, 0], [0, 0, 10]], "smallest-count"),
    ],
)
def test_an_impossible_table_is_refused(table: list[list[int]], rule: str) -> None:
    with pytest.raises(RuleViolation) as broken:
        check_local_fit(LocalFit(table=np.array(table)), np.array([5, 0, 10]), CONFIG)
    assert broken.value.rule == rule


def test_models_without_a_site_rest_on_enough_others_and_not_on_their_order() -> None:
    means = np.concatenate([CENTRES + i / 10 for i in range(4)])
    counts, owners = np.full(12, 20), np.repeat(["a", "b", "c", "d"], 3)
    models = left_out_models(means, counts, owners, 3, 3, 0)
    for i, site in enumerate("abcd"):
        others = np.delete(np.arange(4), i) / 10
        found = models[site]
        assert found is not None
        expected = CENTRES + others.mean()
        apart = np.abs(found[:, None] - expected).max(axis=2)
        assert apart.min(axis=1).max() < 1e-9
    assert set(left_out_models(means, counts, owners, 3, 4, 0).values()) == {None}


def test_the_table_of_a_site_says_what_the_report_needs() -> None:
    labels = np.array([0, 0, 1, 2, -1])
    points = weighted(np.vstack([CENTRES[[0, 0, 1, 2]], np.zeros(4)]))
    table = left_out_table(points, labels, CENTRES[[2, 0, 1]])
    found = summarise(
        {"a": [10, 5, 5], "b": [0, 0, 0], "c": [5, 5, 0]}, {"a": table}, {"a": table}, {"a": ["x2"]}
    )
    assert set(found.sites) == {"a", "c"}
    own = found.sites["a"]
    assert np.array_equal(own.own_table, np.diag([10, 5, 5]))
    assert (own.own_ari, own.left_out_kappa, own.found_alone) == (1.0, 1.0, "yes")
    assert own.differing_columns == ("x2",)
    assert (found.sites["c"].own_ari, found.sites["c"].found_alone) == (None, None)
