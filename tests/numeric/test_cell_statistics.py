"""Estimates from tables of counts, against statsmodels, lifelines, and enumeration."""

import itertools
from typing import Any

import numpy as np
import pytest
from scipy import stats as scipy_stats

from fedclust.numeric import cell_statistics as cs
from fedclust.numeric.cell_statistics import Interval, Measure, Terms

sms = pytest.importorskip("statsmodels.stats.api")

EXACT = {"rel": 1e-12, "abs": 1e-12}
VALID = np.array([1.0, 1.0, 0.0])
EVENTS = np.array([0.0, 1.0, 0.0])
#: Events and others of the cluster, events and others of the reference, by site.
TABLES = np.array([[12, 28, 20, 140], [9, 6, 60, 150], [30, 60, 18, 52]], dtype=float)


def _cells(tables: Any) -> tuple[Any, Any]:
    """Return x1 and x0 (S, 3) of fourfold tables."""
    a, b, c, d = np.asarray(tables, dtype=float).T
    return np.stack([b, a, 0 * a], axis=-1), np.stack([d, c, 0 * c], axis=-1)


def _terms(x1: Any, x0: Any, measure: Measure, noise: float, valid: Any = VALID) -> Terms:
    persons = np.stack([x1 @ valid, x0 @ valid])
    weight = cs.weights(persons, measure, noise)
    return cs.estimating_function(x1, x0, measure, weight, noise)


def _odds(x1: Any, x0: Any) -> Measure:
    return cs.odds_ratio((x1 + x0).sum(axis=-2), EVENTS, VALID)


# --- Without noise --------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [[], [[0, 12, 5, 35]], [[1, 3000, 4, 9000], [2, 9, 1, 5]]])
def test_exact_odds_ratios_are_those_of_statsmodels(more: list[list[int]]) -> None:
    tables = np.array([*TABLES, *more])
    theirs = sms.StratifiedTable([np.reshape(each, (2, 2)) for each in tables])
    found, p, same = cs.mantel_haenszel(tables)
    assert tuple(found) == pytest.approx(
        (theirs.oddsratio_pooled, *theirs.oddsratio_pooled_confint()), **EXACT
    )
    assert p == pytest.approx(theirs.test_null_odds().pvalue, **EXACT)
    assert same == pytest.approx(theirs.test_equal_odds(adjust=True).pvalue, **EXACT)
    x1, x0 = _cells(tables)
    own = cs.estimate(_terms(x1, x0, _odds(x1, x0), 0.0), _odds(x1, x0))
    assert own.value == pytest.approx(theirs.oddsratio_pooled, **EXACT)


def test_tables_without_information_change_nothing() -> None:
    empty = [[0, 9, 0, 22], [4, 5, 0, 0], [0, 0, 0, 0], [7, 0, 11, 0]]
    assert cs.mantel_haenszel(np.array([*TABLES, *empty])) == cs.mantel_haenszel(TABLES)
    found, p, same = cs.mantel_haenszel(np.array(empty, dtype=float))
    assert np.isnan([*found, p, same]).all()


def test_equal_exact_odds_ratios_are_no_division_by_zero() -> None:
    found, p, same = cs.mantel_haenszel(np.array([[10, 10, 30, 30], [5, 15, 10, 30]], dtype=float))
    assert (float(found.value), p, same) == pytest.approx((1.0, 1.0, 1.0))


def test_the_risk_difference_is_that_of_mantel_and_haenszel() -> None:
    a, b, c, d = TABLES.T
    n1, n0 = a + b, c + d
    x1, x0 = _cells(TABLES)
    measure = cs.difference((x1 + x0).sum(axis=0), EVENTS, VALID)
    found = cs.estimate(_terms(x1, x0, measure, 0.0), measure)
    n = n1 + n0
    expected = ((a * n0 - c * n1) / n).sum() / (n1 * n0 / n).sum()
    assert found.value == pytest.approx(expected, **EXACT)
    # One site: the usual Wald interval, but for terms of order 1 / n.
    one = cs.estimate(_terms(x1[:1] * 1e4, x0[:1] * 1e4, measure, 0.0), measure)
    p1, p0 = 0.3, 0.125
    half = cs.Z * np.sqrt(p1 * (1 - p1) / n1[0] + p0 * (1 - p0) / n0[0]) / 100
    assert (one.lower, one.upper) == pytest.approx((p1 - p0 - half, p1 - p0 + half), rel=1e-4)


def test_superiority_is_the_share_of_pairs() -> None:
    rng = np.random.default_rng(1)
    one, other = rng.integers(0, 4, 60), rng.integers(0, 3, 90)
    valid = np.array([1.0, 1, 1, 1, 0])
    x1, x0 = (np.bincount(each, minlength=5)[None].astype(float) for each in (one, other))
    measure = cs.superiority((x1 + x0).sum(axis=0), valid)
    found = cs.estimate(_terms(x1, x0, measure, 0.0, valid), measure)
    statistic = scipy_stats.mannwhitneyu(one, other).statistic
    assert found.value == pytest.approx(statistic / (60 * 90), **EXACT)


def test_a_share_has_wilsons_interval_and_a_mean_that_of_the_rows() -> None:
    for events, persons in ((11, 348), (0, 12), (7, 7)):
        found = cs.share(np.array([persons - events, events, 5.0]), EVENTS, VALID, 0.0)
        limits = sms.proportion_confint(events, persons, method="wilson")
        assert tuple(found) == pytest.approx((events / persons, *limits), **EXACT)
    values, cells = np.array([1.0, 4.0, 12.0, 0.0]), np.array([3000.0, 2000.0, 700.0, 9.0])
    rows = np.repeat(values, cells.astype(int))[:5700]
    own = cs.mean(cells, values, np.array([1.0, 1, 1, 0]), 0.0)
    half = cs.Z * rows.std() / np.sqrt(5700)
    assert tuple(own) == pytest.approx((rows.mean(), rows.mean() - half, rows.mean() + half), 1e-3)


def test_the_median_is_linear_within_its_cell() -> None:
    edges = np.array([2.0, 4.0, 8.0])
    found = cs.median(np.array([300.0, 100.0, 400.0, 200.0, 50.0]), edges, 0.0)
    # 500 of 1000: a quarter of the cell from 4 to 8.
    assert found.value == pytest.approx(5.0)
    assert 4.0 < found.lower < 5.0 < found.upper < 6.0
    wide = cs.median(np.array([30.0, 1.0, 4.0, 29.0, 0.0]), edges, 0.0)
    assert wide.value == pytest.approx(5.0)
    assert np.isnan([wide.lower, wide.upper]).all()  # open
    assert np.isnan(cs.median(np.array([51.0, 20.0, 20.0, 9.0, 0.0]), edges, 0.0)).all()
    # On an edge.
    assert cs.median(np.array([30.0, 20.0, 40.0, 10.0, 0.0]), edges, 0.0).value == pytest.approx(4)


def _time_cells(durations: Any, events: Any, edges: Any) -> Any:
    """Return the cells (J,) of times until an event (1) or until nobody knows more (0)."""
    cells = np.zeros(2 * len(edges) + 2)
    for t, happened in zip(durations, events, strict=True):
        b = int(np.searchsorted(edges, t, side="left" if happened else "right"))
        cells[2 * b + (b < len(edges) and not happened)] += 1
    return cells


def test_survival_equals_a_life_table_by_the_textbook() -> None:
    rng = np.random.default_rng(2)
    t, edges = rng.exponential(3.0, 400).round(1), np.array([1.0, 2.0, 4.0, 7.0])
    happened = rng.random(400) < 0.6
    found = cs.survival(_time_cells(t, happened, edges), cs.follow_up(edges), 0.0)
    survived, v, start, curve, width, area = 1.0, 0.0, -1.0, [1.0], [], 0.0
    for end in edges:
        entered = np.where(happened, t > start, t >= start)
        died = (happened & entered & (t <= end)).sum()
        n = entered.sum() - (~happened & entered & (t < end)).sum() / 2
        before, survived = survived, survived * (1 - died / n)
        v += died / (n * (n - died))
        area += (before + survived) / 2 * (end - max(start, 0.0))
        curve.append(survived)
        width.append(np.exp(2 * cs.Z * np.sqrt(v)))
        start = end
    assert found.curve.value == pytest.approx(curve, **EXACT)
    ratio = found.curve.upper[1:] / found.curve.lower[1:]
    assert ratio == pytest.approx(width, **EXACT)
    assert found.restricted_mean.value == pytest.approx(area, **EXACT)
    assert found.at_risk[0] == 400


def test_survival_is_kaplan_meiers_where_nobody_leaves_within_an_interval() -> None:
    from lifelines import KaplanMeierFitter
    from lifelines.datasets import load_rossi

    rossi, edges = load_rossi(), np.array([13.0, 26.0, 39.0, 52.0])
    found = cs.survival(_time_cells(rossi.week, rossi.arrest, edges), cs.follow_up(edges), 0.0)
    theirs = KaplanMeierFitter().fit(rossi.week, rossi.arrest)
    assert found.curve.value == pytest.approx([1.0, *theirs.predict(edges)], **EXACT)
    # Whoever is followed to the end, or has the event after it, is past.
    assert found.at_risk[-1] == (rossi.arrest == 0).sum()


def test_a_curve_that_ends_at_0_stays_there() -> None:
    cells = np.array([3.0, 1, 5, 0, 0, 0, 0, 0, 0, 0])
    found = cs.survival(cells, cs.follow_up([1, 2, 3, 4]), 0.0)
    assert found.curve.value[2:] == pytest.approx([0, 0, 0])
    assert np.isnan(found.curve.lower[2:]).all()
    assert found.restricted_mean.value == pytest.approx(1 + 0.5 * (1 - 3 / 8.5) - 3 / 17)
    assert np.isfinite(found.restricted_mean).all()


def test_the_rate_ratio_is_the_ratio_of_stratified_rates() -> None:
    times = cs.follow_up([1.0, 3.0, 5.0, 9.0])
    x1 = np.array([[9.0, 4, 6, 2, 5, 3, 2, 1, 8, 1]])
    x0 = np.array([[4.0, 1, 5, 3, 6, 2, 3, 4, 30, 0]])
    measure = cs.rate_ratio((x1 + x0).sum(axis=0), times)
    terms = _terms(x1, x0, measure, 0.0, np.array([1.0] * 9 + [0.0]))
    d1, d0 = x1[0, :8:2], x0[0, :8:2]
    t1, t0 = (each[0] @ times.person_time.T for each in (x1, x0))
    assert t1[1] == pytest.approx(2 * (27 - 4))
    expected = (d1 * t0 / (t1 + t0)).sum() / (d0 * t1 / (t1 + t0)).sum()
    assert cs.estimate(terms, measure).value == pytest.approx(expected, **EXACT)


# --- With noise -----------------------------------------------------------------------------------

TIMES = cs.follow_up([1.0, 2.0])
ORDERED = np.array([1.0, 1, 1, 0])
MEASURES = {
    "odds ratio": (cs.odds_ratio(np.array([90.0, 10, 0]), EVENTS, VALID), VALID, 2.0),
    "risk difference": (cs.difference(np.array([90.0, 10, 0]), EVENTS, VALID), VALID, 0.1),
    "superiority": (cs.superiority(np.array([30.0, 40, 20, 0]), ORDERED), ORDERED, 0.6),
    "rate ratio": (cs.rate_ratio(np.array([9.0, 5, 7, 4, 30, 2]), TIMES), np.ones(6), 2.0),
}


@pytest.mark.parametrize("name", MEASURES)
def test_enumerated_noise_has_no_bias_and_the_stated_variance(name: str) -> None:
    measure, valid, t = MEASURES[name]
    cells = np.flatnonzero(np.abs(measure.a).sum(axis=0) + np.abs(measure.a).sum(axis=1))
    rng = np.random.default_rng(3)
    clean1, clean0 = rng.integers(1, 9, (2, len(valid))).astype(float)
    # -1, 0 and 1 with probabilities 1/4, 1/2 and 1/4: variance 1/2; or -1 and 1.
    values = [(-1, 0.5), (1, 0.5)] if len(cells) > 3 else [(-1, 0.25), (0, 0.5), (1, 0.25)]
    noise = sum(p * e * e for e, p in values)
    draws = list(itertools.product(values, repeat=2 * len(cells)))
    e = np.array([[value for value, _ in draw] for draw in draws], dtype=float)
    p = np.array([np.prod([chance for _, chance in draw]) for draw in draws])
    x1, x0 = (np.tile(each, (len(p), 1)) for each in (clean1, clean0))
    x1[:, cells] += e[:, : len(cells)]
    x0[:, cells] += e[:, len(cells) :]
    weight = np.full((len(p), 1), 0.3)
    found = cs.estimating_function(x1[:, None], x0[:, None], measure, weight, noise)
    exact = cs.estimating_function(clean1[None], clean0[None], measure, weight[:1, 0], 0.0)
    powers = np.array([1.0, t, t * t])
    u, clean_u = (x.a - t * x.b for x in (found, exact))
    assert p @ u[:, 0] == pytest.approx(clean_u[0])
    assert p @ (found.sampling[:, 0] @ powers) == pytest.approx(exact.sampling[0] @ powers)
    # Nearly all tables have noise of a positive form: the part that is cut off is small.
    variance = p @ (u[:, 0] - clean_u[0]) ** 2
    assert p @ (found.noise[:, 0] @ powers) == pytest.approx(variance, rel=0.02)
    assert (found.noise @ powers >= 0).all()


def test_a_site_weighs_less_where_noise_dominates() -> None:
    persons, n = np.array([[40.0, 400, 0], [60, 600, 9]]), np.array([100.0, 1000])
    measure = cs.odds_ratio(np.array([900.0, 100, 0]), EVENTS, VALID)
    found = cs.weights(persons, measure, 25.0)
    information, disturbance = n * 0.09 * 0.4 * 0.6, 25 * (0.4**2 + 0.6**2)
    assert found == pytest.approx([*(1 / n / (1 + disturbance / information)), 0.0])


def test_the_variance_of_a_curve_has_the_noise_by_its_gradient() -> None:
    cells = np.array([60.0, 21, 55, 30, 48, 12, 40, 9, 310, 17])
    times, noise = cs.follow_up([1.0, 3.0, 4.0, 8.0]), 12.5
    clean, found = (cs.survival(cells, times, v) for v in (0.0, noise))
    steps = [cs.survival(cells + step, times, 0.0) for step in 1e-4 * np.eye(len(cells))]
    slope = np.array([np.log(each.curve.value / clean.curve.value) for each in steps]) / 1e-4
    width = [np.log(each.curve.upper / each.curve.value)[1:3] / cs.Z for each in (clean, found)]
    assert width[1] ** 2 - width[0] ** 2 == pytest.approx(
        noise * (slope**2).sum(axis=0)[1:3], rel=1e-3
    )
    own = [each.restricted_mean for each in (clean, found)]
    change = np.array([each.restricted_mean.value - own[0].value for each in steps]) / 1e-4
    more = [float((each.upper - each.value) / cs.Z) ** 2 for each in own]
    assert more[1] - more[0] == pytest.approx(noise * (change**2).sum(), rel=1e-3)


def test_nothing_follows_from_a_divisor_that_noise_may_take_to_0() -> None:
    cells = np.array([60.0, 21, 55, 30, 48, 12, 40, 9, 10, 17])
    found = cs.survival(cells, cs.follow_up([1.0, 2.0, 3.0, 4.0]), 400.0)
    assert np.isfinite(found.curve.value[:3]).all()
    assert np.isnan([each[-1] for each in found.curve]).all()
    assert np.isnan(found.restricted_mean).all()


def _random_tables(rng: Any, sigma: float, n_sites: int = 4) -> tuple[Any, Any]:
    n = rng.integers(5, 300, (2, n_sites))
    d = rng.binomial(n, np.array([[0.1], [0.05]]))
    x = np.stack([n - d, d, 0 * d], axis=-1) + np.round(rng.normal(0, sigma, (2, n_sites, 3)))
    return x[0], x[1]


@pytest.mark.parametrize("sigma", [0.0, 3.0, 7.0])
@pytest.mark.parametrize("kind", ["odds ratio", "risk difference"])
def test_the_interval_is_what_the_test_does_not_refuse(kind: str, sigma: float) -> None:
    rng = np.random.default_rng(4)
    ratio = kind == "odds ratio"
    grid = np.geomspace(1e-4, 1e4, 4001) if ratio else np.linspace(-1, 1, 4001)
    kinds = {"closed": 0, "at least": 0, "at most": 0, "cannot tell": 0}
    for _ in range(50):
        x1, x0 = _random_tables(rng, sigma)
        both = (x1 + x0).sum(axis=0)
        measure = _odds(x1, x0) if ratio else cs.difference(both, EVENTS, VALID)
        terms = _terms(x1, x0, measure, sigma**2)
        found = Interval(*map(float, cs.estimate(terms, measure)))
        kept = cs.p_value(terms, grid) >= 0.05
        least = grid[0] if np.isnan(found.lower) else found.lower
        most = grid[-1] if np.isnan(found.upper) else found.upper
        if np.isnan([found.lower, found.upper]).all():
            kinds["cannot tell"] += 1
            # Everything, both ends, nothing, or V + N <= 0 at the estimate.
            at_estimate = cs.p_value(terms, terms.a.sum() / terms.b.sum())
            assert kept[[0, -1]].all() or not kept.any() or np.isnan(at_estimate)
            continue
        if np.isnan(found.lower) or np.isnan(found.upper):
            kinds["at most" if np.isnan(found.lower) else "at least"] += 1
        else:
            kinds["closed"] += 1
        np.testing.assert_array_equal(kept[1:-1], ((grid >= least) & (grid <= most))[1:-1])
    assert kinds["closed"] > 0
    if ratio and sigma == 7.0:
        assert min(kinds.values()) > 0


@pytest.mark.parametrize("variance", [[-3.0, 2, 0], [0, 0, 0]])
def test_no_variance_at_the_estimate_tells_nothing(variance: list[float]) -> None:
    """Nor does one below 0, though it is above 0 elsewhere: the estimate is 1."""
    terms = Terms(np.ones(1), np.ones(1), np.array([variance]), np.zeros((1, 3)))
    assert np.isnan(cs.estimate(terms, MEASURES["odds ratio"][0])).all()


def test_numbers_scale_with_their_unit() -> None:
    values, valid = np.array([0.0, 1.0, 5.0, 0.0]), ORDERED
    x1, x0 = np.array([[30.0, 41, 22, 3]]), np.array([[80.0, 35, 11, 0]])
    found = []
    for unit in (1.0, 1e-6, 1e9):
        measure = cs.difference((x1 + x0)[0], values * unit, valid)
        own = cs.estimate(_terms(x1, x0, measure, 9.0, valid), measure)
        found.append([each / unit for each in own])
        found.append([each / unit for each in cs.mean(x1[0], values * unit, valid, 9.0)])
    np.testing.assert_allclose(found[2:], found[:2] * 2, rtol=1e-9)


def test_the_same_ratio_at_all_sites_passes_and_opposite_ones_do_not() -> None:
    same = np.array([[60, 340, 100, 900]] * 4)
    other = np.array([[60, 340, 100, 900], [60, 340, 300, 700]] * 2)
    p = []
    for tables in (same, other):
        x1, x0 = _cells(tables)
        terms, measure = _terms(x1, x0, _odds(x1, x0), 25.0), _odds(x1, x0)
        p.append(float(cs.homogeneity(terms, cs.estimate(terms, measure).value)))
        assert cs.tells(terms, 1.0).all()
    assert p[0] == pytest.approx(1.0)
    assert p[1] < 1e-6
    one = _terms(*(each[:1] for each in _cells(same)), _odds(*_cells(same)), 25.0)
    assert np.isnan(cs.homogeneity(one, 1.0))


def test_sites_are_compared_only_where_that_errs_as_rarely_as_it_says() -> None:
    closed, opened = (cs.Interval(*np.array([1.0, 0.5, upper])) for upper in (2.0, np.nan))
    cells = np.zeros((3, 4))
    assert cs.comparable(closed, cells, 25.0, in_time=False)
    assert not cs.comparable(opened, cells, 25.0, in_time=False)
    # Without noise each site needs ten events. Of cells they are those outside the most frequent.
    cells[:, 0] = 90
    cells[:, 1:3] = 5, 5
    assert cs.comparable(opened, cells, 0.0, in_time=False)
    assert not cs.comparable(
        opened, cells - [[0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0]], 0.0, in_time=False
    )
    times = np.tile([6.0, 90, 4, 3, 70, 8], (3, 1))  # event, left, event, left, past, no value
    assert cs.comparable(opened, times, 0.0, in_time=True)
    assert not cs.comparable(opened, times - [1, 0, 0, 0, 0, 0], 0.0, in_time=True)
