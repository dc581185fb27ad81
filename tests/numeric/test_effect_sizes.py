"""Effects and intervals, compared with statsmodels."""

import math
from typing import Any

import numpy as np
import pytest

from fedclust.numeric import effect_sizes as es
from fedclust.numeric.effect_sizes import Counts, Effect, Interval, Sample

stats = pytest.importorskip("statsmodels.stats.api")

#: Persons by site: events and persons of the cluster, events and persons of the others.
TABLES = [Counts(12, 40, 20, 160), Counts(9, 15, 60, 210), Counts(30, 90, 18, 70)]
EXACT = {"rel": 1e-10, "abs": 1e-12}


def _square(table: Counts) -> list[list[float]]:
    return [
        [table.events, table.persons - table.events],
        [table.other_events, table.other_persons - table.other_events],
    ]


def _stratified(tables: list[Counts]) -> Any:
    return stats.StratifiedTable([np.array(_square(table)) for table in tables])


def _is(interval: Interval | None, estimate: float, limits: tuple[float, float]) -> None:
    assert interval is not None
    assert tuple(interval) == pytest.approx((estimate, *limits), **EXACT)


def _sample(values: Any) -> Sample:
    return Sample(len(values), float(np.mean(values)), float(np.var(values) * len(values)))


@pytest.mark.parametrize(("events", "persons"), [(0, 7), (7, 7), (3, 11), (400, 1234)])
def test_proportions_have_wilson_intervals(events: int, persons: int) -> None:
    limits = stats.proportion_confint(events, persons, method="wilson")
    _is(es.proportion(events, persons), events / persons, limits)


@pytest.mark.parametrize("table", [*TABLES, Counts(0, 12, 5, 40), Counts(12, 12, 5, 40)])
def test_crude_effects_of_a_table(table: Counts) -> None:
    cells = np.array(_square(table), dtype=float)
    # Table2x2 says that it adds 0.5 to all cells, but it adds it to those that are 0.
    square = stats.Table2x2(cells + 0.5 * (cells.min() == 0))
    _is(es.odds_ratio(table), square.oddsratio, square.oddsratio_confint())
    _is(es.risk_ratio(table), square.riskratio, square.riskratio_confint())
    limits = stats.confint_proportions_2indep(*table, compare="diff", method="newcomb")
    estimate = table.events / table.persons - table.other_events / table.other_persons
    _is(es.risk_difference(table), estimate, limits)


def test_what_a_table_does_not_determine_is_none() -> None:
    assert es.odds_ratio(Counts(0, 12, 0, 40)) is None
    assert es.risk_ratio(Counts(0, 12, 0, 40)) is None
    assert es.odds_ratio(Counts(12, 12, 40, 40)) is None
    assert es.risk_ratio(Counts(0, 0, 5, 40)) is None
    assert es.risk_difference(Counts(0, 0, 5, 40)) is None
    assert es.proportion(0, 0) is None
    assert es.mantel_haenszel([Counts(0, 12, 0, 40), Counts(0, 0, 5, 40)]) is None
    assert es.combine([]) is None


def test_mantel_haenszel_and_its_tests() -> None:
    ours, theirs = es.mantel_haenszel(TABLES), _stratified(TABLES)
    assert ours is not None
    _is(ours.odds_ratio, theirs.oddsratio_pooled, theirs.oddsratio_pooled_confint())
    null, equal = theirs.test_null_odds(), theirs.test_equal_odds(adjust=True)
    assert tuple(ours.test) == pytest.approx((null.statistic, 1, null.pvalue), **EXACT)
    assert ours.common_odds is not None
    assert tuple(ours.common_odds) == pytest.approx((equal.statistic, 2, equal.pvalue), **EXACT)


def test_mantel_haenszel_needs_no_correction_and_leaves_out_empty_sites() -> None:
    informative = [*TABLES, Counts(0, 12, 5, 40)]
    ours = es.mantel_haenszel([*informative, Counts(0, 9, 0, 31), Counts(4, 9, 0, 0)])
    theirs = _stratified(informative)
    assert ours is not None
    assert ours.sites == 4
    _is(ours.odds_ratio, theirs.oddsratio_pooled, theirs.oddsratio_pooled_confint())


def test_equal_odds_ratios_of_one_are_no_division_by_zero() -> None:
    tables = [Counts(10, 20, 30, 60), Counts(5, 20, 10, 40)]
    ours = es.mantel_haenszel(tables)
    assert ours is not None
    assert ours.odds_ratio.estimate == pytest.approx(1.0)
    assert ours.common_odds is not None
    assert ours.common_odds.p_value == pytest.approx(1.0)


@pytest.mark.parametrize("tables", [TABLES, [*TABLES, Counts(0, 12, 5, 40)], TABLES[1:]])
def test_effects_over_sites(tables: list[Counts]) -> None:
    effects = [effect for table in tables if (effect := es.log_odds_ratio(table)) is not None]
    ours = es.combine(effects)
    theirs = stats.combine_effects(*np.array(effects).T, method_re="chi2")
    assert ours is not None
    assert theirs.tau2 > 0
    fixed, random, *_ = theirs.conf_int()
    _is(ours.fixed, theirs.mean_effect_fe, fixed)
    _is(ours.random, theirs.mean_effect_re, random)
    test = theirs.test_homogeneity()
    assert (ours.q, ours.degrees, ours.p_value, ours.i2.estimate, ours.tau2) == pytest.approx(
        (test.statistic, test.df, test.pvalue, theirs.i2, theirs.tau2), **EXACT
    )
    raw = es.from_log(ours.fixed)
    assert raw.upper == pytest.approx(math.exp(ours.fixed.upper))


def test_sites_that_agree_have_no_variance_between_them() -> None:
    ours = es.combine(
        [Effect(1.0, 0.2), Effect(1.05, 0.3), Effect(0.98, 0.1)] + 2 * [Effect(1.0, 0.4)]
    )
    assert ours is not None
    assert (ours.tau2, ours.i2.estimate, ours.i2.lower) == (0, 0, 0)
    assert ours.random == ours.fixed
    # The known upper limit of I^2 = 0 with five studies: 79 %.
    assert ours.i2.upper == pytest.approx(0.79, abs=0.005)


def test_one_site_and_two() -> None:
    single = es.combine([Effect(1.0, 0.2)])
    assert single is not None
    assert (single.degrees, single.p_value, single.i2) == (0, 1.0, Interval(0, 0, 1))
    pair = es.combine([Effect(0.0, 0.1), Effect(2.0, 0.1)])
    assert pair is not None
    assert pair.i2 == pytest.approx((0.95, 0, 1))


def test_i_squared_of_a_published_size() -> None:
    # Higgins & Thompson, Stat Med 2002;21:1539: with H = 2, k = 10: Q = 36, by their formula.
    effects = [Effect(value, 1.0) for value in (6.0 * np.array([1, -1] + [0.0] * 8) / math.sqrt(2))]
    ours = es.combine(effects)
    assert ours is not None
    assert ours.q == pytest.approx(36)
    error = 0.5 * (math.log(36) - math.log(9)) / (math.sqrt(72) - math.sqrt(17))
    limits = [1 - math.exp(-2 * (math.log(2) + step * 1.959964 * error)) for step in (-1, 1)]
    assert tuple(ours.i2) == pytest.approx((0.75, *limits), abs=1e-6)


def test_means_and_their_differences() -> None:
    rng = np.random.default_rng(1)
    one, other = rng.normal(3, 1, 25), rng.normal(2, 4, 60)
    described = stats.DescrStatsW(one)
    _is(es.mean(_sample(one)), described.mean, described.tconfint_mean())
    compared = stats.CompareMeans(described, stats.DescrStatsW(other))
    limits = compared.tconfint_diff(usevar="unequal")
    _is(es.mean_difference(_sample(one), _sample(other)), one.mean() - other.mean(), limits)


def test_standardised_differences_over_sites() -> None:
    from statsmodels.stats.meta_analysis import effectsize_smd

    rng = np.random.default_rng(2)
    pairs = [(rng.normal(m, 1, 20 + m), rng.normal(0, 2, 50)) for m in range(4)]
    ours = [es.hedges_g(_sample(one), _sample(other)) for one, other in pairs]
    theirs = [
        effectsize_smd(a.mean(), a.std(ddof=1), len(a), b.mean(), b.std(ddof=1), len(b))
        for a, b in pairs
    ]
    np.testing.assert_allclose(ours, theirs, rtol=1e-10)
    first = es.standardised_difference(_sample(pairs[1][0]), _sample(pairs[1][1]))
    assert first is not None
    assert first.upper == pytest.approx(theirs[1][0] + 1.959963984540054 * theirs[1][1] ** 0.5)


def test_means_without_spread_or_persons_are_none() -> None:
    flat, single = Sample(5, 2.0, 0.0), Sample(1, 3.0, 0.0)
    assert es.mean(single) is None
    assert es.mean(flat) == Interval(2, 2, 2)
    assert es.mean_difference(flat, Sample(4, 1.0, 0.0)) is None
    assert es.standardised_difference(flat, single) is None
