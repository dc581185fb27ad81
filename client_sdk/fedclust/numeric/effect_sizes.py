"""Proportions, means and their comparison between two groups: at one site, crude and over sites.

All intervals have the level ``LEVEL``. A number that the data do not determine is None.

=================== ============================================================================
proportion          Wilson
mean                Student's t with n - 1 degrees of freedom
odds ratio          Woolf (normal on the log scale)
risk ratio          Katz (normal on the log scale)
risk difference     Newcombe, from the two Wilson intervals
mean difference     Welch's t (variances may differ)
standardised        Hedges' g: Cohen's d with the pooled standard deviation, times
difference          1 - 3 / (4 n - 9); normal, variance n / (n1 n2) + g^2 / (2 (n - 3.94))
over sites          Mantel-Haenszel odds ratio with the variance of Robins, Breslow and Greenland;
                    inverse variance with a fixed effect; DerSimonian and Laird's random effects
heterogeneity       Q, I^2 with the interval of Higgins and Thompson, tau^2 (never below 0);
                    common odds ratio: Breslow and Day with Tarone's adjustment
=================== ============================================================================

Zero cells: where one of the four cells is 0, 0.5 is added to all four, for the odds ratio, the risk
ratio and the inverse-variance methods, in the crude table and in each site's. Mantel-Haenszel needs
no correction. A table without events, or with nothing but events, says nothing about the odds
ratio: it is left out.

Where persons were counted in groups of similar ones, their values are not independent. ``design``
is the design effect: by how much variances are larger than those of as many independent persons
(Rao & Scott, "On simple adjustments to chi-square tests with sample survey data", 1987). It is 1
for rows, and changes no estimate.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

#: The coverage of every interval.
LEVEL = 0.95


class Interval(NamedTuple):
    """An estimate with the limits of its interval."""

    estimate: float
    lower: float
    upper: float


class Counts(NamedTuple):
    """Events and persons of a cluster, and of those that it is compared with."""

    events: float
    persons: float
    other_events: float
    other_persons: float


class Sample(NamedTuple):
    """Persons, mean and sum of squared deviations from the mean (M2)."""

    persons: float
    mean: float
    m2: float


class Effect(NamedTuple):
    """An effect at one site, on the scale on which it is normal, with its variance."""

    value: float
    variance: float


class Combined(NamedTuple):
    """Effects of several sites, combined by inverse variance.

    Attributes
    ----------
    fixed, random : Interval
        With one common effect, and with effects that differ between sites (DerSimonian, Laird).
    q, degrees, p_value : float, int, float
        Cochran's Q and its chi-squared test.
    i2 : Interval
        Share of the variation that is between sites; without limits (0 and 1) below three sites.
    tau2 : float
        Variance of the effect between sites.
    sites : int
        Sites that took part.
    """

    fixed: Interval
    random: Interval
    q: float
    degrees: int
    p_value: float
    i2: Interval
    tau2: float
    sites: int


class ChiSquared(NamedTuple):
    """A test statistic, its degrees of freedom and its p-value."""

    statistic: float
    degrees: int
    p_value: float


class MantelHaenszel(NamedTuple):
    """The odds ratio over sites, and two tests.

    Attributes
    ----------
    odds_ratio : Interval
    test : ChiSquared
        Of an odds ratio of 1 at all sites (Cochran, Mantel, Haenszel; without continuity
        correction).
    common_odds : ChiSquared or None
        Of one odds ratio for all sites (Breslow, Day, Tarone); None with a single site.
    sites : int
        Sites that took part.
    """

    odds_ratio: Interval
    test: ChiSquared
    common_odds: ChiSquared | None
    sites: int


@functools.cache
def _normal_quantile() -> float:
    from scipy.special import ndtri  # imported here: the command starts faster

    return float(ndtri(0.5 + LEVEL / 2))


def _t_quantile(degrees: float) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(degrees, 0.5 + LEVEL / 2))


def _chi_squared_tail(degrees: int, statistic: float) -> float:
    from scipy.special import chdtrc

    return float(chdtrc(degrees, max(statistic, 0.0)))


def _normal_interval(effect: Effect) -> Interval:
    half = _normal_quantile() * math.sqrt(effect.variance)
    return Interval(effect.value, effect.value - half, effect.value + half)


def from_log(interval: Interval) -> Interval:
    """Return an interval of a logarithm on the scale of the ratio."""
    return Interval(*(math.exp(min(limit, 700.0)) for limit in interval))


# A group.


def proportion(events: float, persons: float, design: float = 1.0) -> Interval | None:
    """Return the proportion of events with Wilson's interval; None without persons."""
    if not persons > 0:
        return None
    events, persons = events / design, persons / design
    z, share = _normal_quantile(), events / persons
    centre = (share + z**2 / (2 * persons)) / (1 + z**2 / persons)
    half = math.sqrt(share * (1 - share) / persons + z**2 / (4 * persons**2))
    half *= z / (1 + z**2 / persons)
    return Interval(share, max(centre - half, 0.0), min(centre + half, 1.0))


def mean(sample: Sample, design: float = 1.0) -> Interval | None:
    """Return the mean with Student's t interval; None below two persons."""
    if sample.persons < 2:
        return None
    error = math.sqrt(_error_variance(sample) * design)
    half = _t_quantile(_degrees(sample, design)) * error
    return Interval(sample.mean, sample.mean - half, sample.mean + half)


# Two groups.


def log_odds_ratio(table: Counts, design: float = 1.0) -> Effect | None:
    """Return the log odds ratio and its variance; None where the table does not determine it."""
    if not _informative(table):
        return None
    a, b, c, d = _corrected_cells(table)
    return Effect(math.log(a * d / (b * c)), (1 / a + 1 / b + 1 / c + 1 / d) * design)


def odds_ratio(table: Counts, design: float = 1.0) -> Interval | None:
    """Return the odds ratio with Woolf's interval."""
    effect = log_odds_ratio(table, design)
    return None if effect is None else from_log(_normal_interval(effect))


def risk_ratio(table: Counts, design: float = 1.0) -> Interval | None:
    """Return the risk ratio with Katz' interval; None without events or without a group."""
    if not (table.persons > 0 and table.other_persons > 0 and _total_events(table) > 0):
        return None
    a, b, c, d = _corrected_cells(table)
    value = math.log(a / (a + b)) - math.log(c / (c + d))
    variance = (b / (a * (a + b)) + d / (c * (c + d))) * design
    return from_log(_normal_interval(Effect(value, variance)))


def risk_difference(table: Counts, design: float = 1.0) -> Interval | None:
    """Return the difference of two proportions with Newcombe's interval."""
    one = proportion(table.events, table.persons, design)
    other = proportion(table.other_events, table.other_persons, design)
    if one is None or other is None:
        return None
    value = one.estimate - other.estimate
    return Interval(
        value,
        value - math.hypot(one.estimate - one.lower, other.upper - other.estimate),
        value + math.hypot(one.upper - one.estimate, other.estimate - other.lower),
    )


def difference(one: Sample, other: Sample, design: float = 1.0) -> Effect | None:
    """Return the difference of two means and its variance; None where that is 0 or unknown."""
    if one.persons < 2 or other.persons < 2:
        return None
    variance = (_error_variance(one) + _error_variance(other)) * design
    return Effect(one.mean - other.mean, variance) if variance > 0 else None


def mean_difference(one: Sample, other: Sample, design: float = 1.0) -> Interval | None:
    """Return the difference of two means with Welch's interval."""
    effect = difference(one, other, design)
    if effect is None:
        return None
    parts = [(_error_variance(each) * design, _degrees(each, design)) for each in (one, other)]
    # Shares of the variance: the square of a small variance may be 0.
    degrees = 1 / sum((part / effect.variance) ** 2 / n for part, n in parts)
    half = _t_quantile(degrees) * math.sqrt(effect.variance)
    return Interval(effect.value, effect.value - half, effect.value + half)


def hedges_g(one: Sample, other: Sample, design: float = 1.0) -> Effect | None:
    """Return Hedges' g and its variance; None below two persons or without spread."""
    persons = one.persons + other.persons
    if one.persons < 2 or other.persons < 2 or not one.m2 + other.m2 > 0:
        return None
    deviation = math.sqrt((one.m2 + other.m2) / (persons - 2))
    g = (one.mean - other.mean) / deviation * (1 - 3 / (4 * persons - 9))
    variance = persons / one.persons / other.persons + g**2 / 2 / (persons - 3.94)
    return Effect(g, variance * design)


def standardised_difference(one: Sample, other: Sample, design: float = 1.0) -> Interval | None:
    """Return Hedges' g with a normal interval."""
    effect = hedges_g(one, other, design)
    return None if effect is None else _normal_interval(effect)


# Over sites.


def combine(effects: Sequence[Effect]) -> Combined | None:
    """Combine the effects of several sites by inverse variance; None without any."""
    if not effects:
        return None
    fixed, total = _weighted_mean(effects, 0.0)
    weights = [1 / effect.variance for effect in effects]
    squares = [(effect.value - fixed.value) ** 2 for effect in effects]
    q = math.fsum(w * square for w, square in zip(weights, squares, strict=True))
    degrees = len(effects) - 1
    spread = total - math.fsum(w * w for w in weights) / total
    # Nothing is left but for rounding where one site has nearly all of the weight.
    tau2 = max((q - degrees) / spread, 0.0) if degrees and spread > 0 else 0.0
    random, _ = _weighted_mean(effects, tau2)
    return Combined(
        fixed=_normal_interval(fixed),
        random=_normal_interval(random),
        q=q,
        degrees=degrees,
        p_value=_chi_squared_tail(degrees, q) if degrees else 1.0,
        i2=_i_squared(q, len(effects)),
        tau2=tau2,
        sites=len(effects),
    )


def mantel_haenszel(tables: Sequence[Counts], design: float = 1.0) -> MantelHaenszel | None:
    """Return the odds ratio over the sites' tables; None where they do not determine it."""
    used = [table for table in tables if _informative(table)]
    cells = [_cells(table) for table in used]
    totals = [math.fsum(four) for four in cells]
    concordant = [a * d / n for (a, _, _, d), n in zip(cells, totals, strict=True)]
    discordant = [b * c / n for (_, b, c, _), n in zip(cells, totals, strict=True)]
    up, down = math.fsum(concordant), math.fsum(discordant)
    if not (up > 0 and down > 0):
        return None
    same = [(a + d) / n for (a, _, _, d), n in zip(cells, totals, strict=True)]
    terms = list(zip(same, concordant, discordant, strict=True))
    variance = math.fsum(p * r for p, r, _ in terms) / up**2
    variance += math.fsum(p * s + (1 - p) * r for p, r, s in terms) / (up * down)
    variance += math.fsum((1 - p) * s for p, _, s in terms) / down**2
    return MantelHaenszel(
        odds_ratio=from_log(_normal_interval(Effect(math.log(up / down), variance / 2 * design))),
        test=_cochran_mantel_haenszel(cells, design),
        common_odds=_breslow_day(cells, up / down, design) if len(cells) > 1 else None,
        sites=len(cells),
    )


def _cochran_mantel_haenszel(
    cells: Sequence[tuple[float, float, float, float]], design: float
) -> ChiSquared:
    excess, variances = [], []
    for a, b, c, d in cells:
        n = a + b + c + d
        excess.append(a - (a + b) * (a + c) / n)
        variances.append((a + b) * (a + c) * (b + d) * (c + d) / (n**2 * (n - 1)))
    statistic = math.fsum(excess) ** 2 / math.fsum(variances) / design
    return ChiSquared(statistic, 1, _chi_squared_tail(1, statistic))


def _breslow_day(
    cells: Sequence[tuple[float, float, float, float]], common: float, design: float
) -> ChiSquared:
    """Test that all tables have the odds ratio ``common``, with Tarone's adjustment."""
    excess, variances = [], []
    for a, b, c, d in cells:
        # The events expected in the cluster solve (1 - r) e^2 + half e - r (a + b)(a + c) = 0.
        half = common * (2 * a + b + c) + d - a
        product = common * (a + b) * (a + c)
        root = math.sqrt(half**2 + 4 * (1 - common) * product)
        expected = 2 * product / (half + root) if half > 0 else (root - half) / (2 * (1 - common))
        others = [a + b - expected, a + c - expected, d - a + expected]
        # Rounding may leave nothing of a cell that is all but empty.
        others = [max(cell, 1e-12) for cell in others]
        excess.append(a - expected)
        variances.append(1 / (1 / expected + math.fsum(1 / cell for cell in others)))
    pairs = zip(excess, variances, strict=True)
    statistic = math.fsum(gap**2 / variance for gap, variance in pairs)
    statistic -= math.fsum(excess) ** 2 / math.fsum(variances)
    statistic /= design
    return ChiSquared(statistic, len(cells) - 1, _chi_squared_tail(len(cells) - 1, statistic))


def _weighted_mean(effects: Sequence[Effect], tau2: float) -> tuple[Effect, float]:
    """Return the mean by inverse variance, and the sum of the weights."""
    weights = [1 / (effect.variance + tau2) for effect in effects]
    total = math.fsum(weights)
    value = math.fsum(w * e.value for w, e in zip(weights, effects, strict=True)) / total
    return Effect(value, 1 / total), total


def _i_squared(q: float, sites: int) -> Interval:
    """Return I^2 and the interval from ln H (Higgins & Thompson, Stat Med 2002; H at least 1)."""
    if sites < 3:
        share = 1 - (sites - 1) / q if sites == 2 and q > 1 else 0.0
        return Interval(share, 0.0, 1.0)
    log_h = max(math.log(q / (sites - 1)) / 2, 0.0) if q > 0 else 0.0
    if q > sites:
        error = log_h / (math.sqrt(2 * q) - math.sqrt(2 * sites - 3))
    else:
        error = math.sqrt((1 - 1 / (3 * (sites - 2) ** 2)) / (2 * (sites - 2)))
    half = _normal_quantile() * error
    limits = (max(log_h + step, 0.0) for step in (0.0, -half, half))
    return Interval(*(1 - math.exp(-2 * limit) for limit in limits))


def _cells(table: Counts) -> tuple[float, float, float, float]:
    """Return events and non-events of the cluster, then of the others."""
    return (
        table.events,
        table.persons - table.events,
        table.other_events,
        table.other_persons - table.other_events,
    )


def _corrected_cells(table: Counts) -> tuple[float, float, float, float]:
    a, b, c, d = _cells(table)
    return (a, b, c, d) if min(a, b, c, d) > 0 else (a + 0.5, b + 0.5, c + 0.5, d + 0.5)


def _total_events(table: Counts) -> float:
    return table.events + table.other_events


def _informative(table: Counts) -> bool:
    """Whether the table has both groups, events and non-events."""
    both = table.persons > 0 and table.other_persons > 0
    return both and 0 < _total_events(table) < table.persons + table.other_persons


def _degrees(sample: Sample, design: float) -> float:
    return max(sample.persons / design - 1, 1.0)


def _error_variance(sample: Sample) -> float:
    return sample.m2 / (sample.persons - 1) / sample.persons
