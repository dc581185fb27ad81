"""Outcomes by cluster: sums at the sites, their check, and what the coordinator compares."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedclust.engine import outcomes
from fedclust.engine.outcomes import OutcomeSums
from fedclust.schema.encoding import columns_of
from fedclust.schema.errors import RuleViolation
from fedclust.schema.feature import Feature
from fedclust.schema.outcomes import Estimate, Outcomes
from fedclust.schema.points import Points, row_points

COLUMNS = columns_of(
    (
        Feature(name="died", kind="binary", role="outcome"),
        Feature(name="stay", lower=0, upper=90, role="outcome"),
    )
)
EXACT = {"rel": 1e-10, "abs": 1e-12}
Site = tuple[NDArray[np.int64], NDArray[np.float64]]


def site(seed: int, n: int) -> Site:
    """Labels of three clusters and outcomes (n, 2) of persons, some without a value."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(3, n, p=[0.5, 0.2, 0.3])
    died = (rng.random(n) < np.array([0.2, 0.5, 0.3])[labels]).astype(float)
    stay = np.minimum(rng.gamma(2.0, 3.0 + labels, n) + seed, 90.0)
    died[rng.random(n) < 0.1] = np.nan
    stay[rng.random(n) < 0.1] = np.nan
    return labels, np.column_stack([died, stay])


SITES = {"a": site(1, 200), "b": site(2, 150), "c": site(3, 260)}


def compared(
    sites: dict[str, Site], min_sites: int = 3, *, group: int = 1, several: bool = False
) -> tuple[Outcomes, tuple[str, ...]]:
    """Compare the clusters of rows, or of groups of as many equal persons."""
    sent, persons = {}, np.zeros(3, dtype=np.int64)
    for name, (labels, values) in sites.items():
        points = row_points(np.zeros((len(labels), 1)), values)
        points = replace(points, sizes=group * points.sizes)
        sent[name] = outcomes.local_sums(points, labels, 3, COLUMNS)
        own = group * np.bincount(labels, minlength=3)
        outcomes.check(sent[name], own, COLUMNS, group)
        persons += own
    return outcomes.summarise(sent, persons.tolist(), COLUMNS, min_sites, several=several)


def same(found: Estimate | None, value: float, limits: Any) -> None:
    assert found is not None
    assert (found.value, found.lower, found.upper) == pytest.approx((value, *limits), **EXACT)


def square(labels: NDArray[np.int64], died: NDArray[np.float64], k: int) -> Any:
    """Return deaths and survivors of cluster ``k``, then of cluster 0."""
    return np.array([[np.sum(died[labels == of] == each) for each in (1, 0)] for of in (k, 0)])


def pooled() -> Site:
    labels, values = zip(*SITES.values(), strict=True)
    return np.concatenate(labels), np.concatenate(values)


def test_yes_no_outcomes_are_those_of_the_pooled_rows() -> None:
    stats = pytest.importorskip("statsmodels.stats.api")
    found, warnings = compared(SITES)
    assert (found.reference, warnings) == (0, ())
    assert [each.design_effect for each in found.results] == pytest.approx([1.0, 1.0])
    died = found.results[0]
    labels, values = pooled()
    table = square(labels, values[:, 0], 1)
    assert [each.persons for each in died.clusters[1::-1]] == table.sum(axis=1).tolist()
    assert [each.events for each in died.clusters[1::-1]] == table[::-1, 0].tolist()[::-1] != []
    limits = stats.proportion_confint(*table[0].cumsum(), method="wilson")
    same(died.clusters[1].value, table[0, 0] / table[0].sum(), limits)
    crude, one = stats.Table2x2(table), died.comparisons[0]
    assert one.cluster == 1
    same(one.odds_ratio, crude.oddsratio, crude.oddsratio_confint())
    same(one.risk_ratio, crude.riskratio, crude.riskratio_confint())

    tables = {name: square(own, values[:, 0], 1) for name, (own, values) in SITES.items()}
    stratified = stats.StratifiedTable(list(tables.values()))
    assert one.mantel_haenszel is not None
    same(
        one.mantel_haenszel.odds_ratio,
        stratified.oddsratio_pooled,
        stratified.oddsratio_pooled_confint(),
    )
    of_b = stats.Table2x2(tables["b"])
    same(one.by_site["b"], of_b.oddsratio, of_b.oddsratio_confint())
    logs = [
        (each.log_oddsratio, each.log_oddsratio_se**2)
        for each in map(stats.Table2x2, tables.values())
    ]
    combined = stats.combine_effects(*np.array(logs).T, method_re="chi2")
    assert one.over_sites is not None
    fixed, random, *_ = combined.conf_int()
    same(one.over_sites.fixed, np.exp(combined.mean_effect_fe), np.exp(fixed))
    if combined.tau2 > 0:
        same(one.over_sites.random, np.exp(combined.mean_effect_re), np.exp(random))
    assert one.over_sites.i2.value == pytest.approx(max(combined.i2, 0.0), **EXACT)


def test_means_are_those_of_the_pooled_rows() -> None:
    stats = pytest.importorskip("statsmodels.stats.api")
    from statsmodels.stats.meta_analysis import effectsize_smd

    stay = compared(SITES)[0].results[1]
    labels, values = pooled()

    def days(of: NDArray[np.int64], values: NDArray[np.float64], k: int) -> Any:
        own = values[of == k, 1]
        return stats.DescrStatsW(own[~np.isnan(own)])

    whole = [days(labels, values, k) for k in (2, 0)]
    same(stay.clusters[2].value, whole[0].mean, whole[0].tconfint_mean())
    assert stay.clusters[2].deviation == pytest.approx(whole[0].std_ddof(1), **EXACT)
    limits = stats.CompareMeans(*whole).tconfint_diff(usevar="unequal")
    two = stay.comparisons[1]
    same(two.mean_difference, whole[0].mean - whole[1].mean, limits)

    pairs = [[days(of, values, k) for k in (2, 0)] for of, values in SITES.values()]
    effects = [
        (a.mean - b.mean, a.std_ddof(1) ** 2 / a.nobs + b.std_ddof(1) ** 2 / b.nobs)
        for a, b in pairs
    ]
    combined = stats.combine_effects(*np.array(effects).T, method_re="chi2")
    assert two.over_sites is not None
    same(two.over_sites.fixed, combined.mean_effect_fe, combined.conf_int()[0])
    smd = [
        effectsize_smd(a.mean, a.std_ddof(1), a.nobs, b.mean, b.std_ddof(1), b.nobs)
        for a, b in pairs
    ]
    assert two.standardised_over_sites is not None
    found = stats.combine_effects(*np.array(smd).T, method_re="chi2")
    same(two.standardised_over_sites.fixed, found.mean_effect_fe, found.conf_int()[0])


def test_the_variance_within_groups_completes_that_of_persons() -> None:
    rng = np.random.default_rng(5)
    values = np.sort(rng.normal(30.0, 4.0, 600))
    groups = values.reshape(-1, 6)
    share = 1 - groups.mean(axis=1).var() / values.var()
    released = np.column_stack([np.zeros(100), groups.mean(axis=1)])
    points = Points(
        np.zeros((100, 1)),
        np.full(100, 6),
        np.zeros(1),
        outcomes=released,
        outcome_within=np.array([0.0, share]),
    )
    sent = {name: outcomes.local_sums(points, np.zeros(100, int), 1, COLUMNS) for name in "abc"}
    stay = outcomes.summarise(sent, [1800], COLUMNS, 3)[0].results[1]
    assert stay.clusters[0].deviation == pytest.approx(values.std(), rel=1e-3)
    assert stay.comparisons == ()
    # Sorted values: the six persons of a group are nearly one.
    assert stay.design_effect == pytest.approx(6 * (1 - share), rel=1e-3)
    assert stay.clusters[0].value is not None
    half = stay.clusters[0].value.upper - stay.clusters[0].value.value
    assert half == pytest.approx(1.96 * values.std() / np.sqrt(1800 / stay.design_effect), rel=0.02)


def test_a_site_reads_its_own_numbers_alone_and_rare_outcomes_are_left_out() -> None:
    found = compared(SITES)[0].of_sites(frozenset({"b"}))
    for result in found.results:
        assert set(result.sites) == {"b"}
        assert {name for each in result.comparisons for name in each.by_site} == {"b"}
    labels, values = site(3, 900)
    without = {**SITES, "c": (labels, np.where([True, False], np.nan, values))}
    rare, warnings = compared(without)
    assert [each.name for each in rare.results] == ["stay"]
    assert warnings == (
        "in every cluster, fewer sites than min_sites have values of the outcomes 'died'",
    )


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("lone", [0, 2])
@pytest.mark.parametrize("others", [(), ("b",)])
def test_a_site_learns_nothing_of_a_cluster_that_too_few_sites_have(
    lone: int, others: tuple[str, ...], several: bool
) -> None:
    """Cluster 0 is the reference. ``a`` reads; ``c`` has the cluster, alone or with ``others``."""
    labels, values = site(3, 900)
    without = {
        name: (own[own != lone], given[own != lone])
        for name, (own, given) in SITES.items()
        if name not in ("c", *others)
    }
    sites = {**SITES, **without}

    def read(seed: int) -> Outcomes:
        rng = np.random.default_rng(seed)
        drawn = np.column_stack([rng.integers(0, 2, len(labels)), rng.uniform(0, 90, len(labels))])
        drawn[rng.random(len(labels)) < 0.4 * seed] = np.nan
        there = (labels == lone)[:, None]
        found = {**sites, "c": (labels, np.where(there, drawn, values))}
        return compared(found, group=5, several=several)[0].of_sites(frozenset("a"))

    first, second, nobody = read(0), read(1), read(3)
    assert first == second == nobody
    assert first.reference == 0
    for found in first.results:
        assert found.design_effect > 1
        assert found.sites.keys() == {"a"}
        withheld = {k for k, own in enumerate(found.clusters) if own.persons is None}
        assert withheld == ({0, 1, 2} if several else {lone})
        crude = [each.odds_ratio or each.mean_difference for each in found.comparisons]
        hidden = several or lone == 0
        assert [each is None for each in crude] == [hidden, hidden or lone == 2]
        pooled = [each.over_sites is None for each in found.comparisons]
        assert pooled == [lone == 0, True]


@pytest.mark.parametrize("constant", [0.1, 1 / 3, 72.3])
def test_a_site_at_which_an_outcome_is_constant_has_no_spread(constant: float) -> None:
    labels, values = SITES["c"]
    equal = np.column_stack([values[:, 0], np.full(len(values), constant)])
    sent = {**SITES, "c": (labels, equal)}
    two = compared(sent, min_sites=2)[0].results[1].comparisons[0].over_sites
    assert two is not None
    assert two.sites == 2
    found = compared(sent)[0].results[1]
    comparison = found.comparisons[0]
    assert set(comparison.by_site) == {"a", "b"}
    # Of two sites' common effect each could compute the other's.
    assert comparison.over_sites is None
    assert found.sites["c"][0].deviation == 0.0


def test_numbers_that_are_too_small_to_be_compared_are_an_overflow_or_a_result() -> None:
    labels, values = SITES["c"]
    for factor in (1e-40, 1e-120, 1e-160):
        tiny = {**SITES, "c": (labels, values * [1.0, factor])}
        try:
            compared(tiny)
        except FloatingPointError:
            continue


def message(**changes: Any) -> OutcomeSums:
    fields: dict[str, Any] = {
        "counts": np.array([[12, 20], [10, 0]]),
        "sums": np.array([[6.0, 800.0], [0.0, 0.0]]),
        "m2": np.array([[0.0, 50.0], [0.0, 0.0]]),
        "spread": np.array([[9.0, 60.0], [0.0, 0.0]]),
        "within": np.array([0.0, 2.0]),
    }
    for name, (place, value) in changes.items():
        fields[name] = fields[name].copy()
        fields[name][place] = value
    return OutcomeSums(**fields)


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({}, None),
        ({"counts": ((0, 0), 4)}, "smallest-count"),
        ({"counts": ((0, 0), 18)}, "smallest-count"),
        ({"counts": ((0, 0), 30)}, "smallest-count"),
        ({"sums": ((0, 0), 3.0)}, "smallest-count"),
        ({"sums": ((0, 0), 8.0)}, "smallest-count"),
        ({"sums": ((0, 0), 5.5)}, "smallest-count"),
        ({"sums": ((0, 0), 15.0)}, "bounds"),
        ({"sums": ((0, 1), 1801.0)}, "bounds"),
        ({"sums": ((1, 1), 1.0)}, "empty-cell"),
        ({"m2": ((1, 1), 1.0)}, "empty-cell"),
        ({"m2": ((0, 1), -1.0)}, "spread"),
        ({"spread": ((0, 0), -1.0)}, "spread"),
        ({"spread": ((1, 1), 1.0)}, "spread"),
        ({"spread": ((0, 0), 37.0)}, "spread"),
        ({"spread": ((0, 1), 1001.0)}, "spread"),
        ({"m2": ((0, 0), 1.0)}, "spread"),
        ({"within": ((0,), 1.0)}, "within"),
        ({"within": ((1,), -1.0)}, "within"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], rule: str | None) -> None:
    sent, persons = message(**changes), np.array([20, 10])
    if rule is None:
        outcomes.check(sent, persons, COLUMNS, 5)
        return
    with pytest.raises(RuleViolation) as broken:
        outcomes.check(sent, persons, COLUMNS, 5)
    assert broken.value.rule == rule
