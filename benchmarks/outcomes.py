"""Outcomes by cluster: what noisy tables of counts say, compared with the truth and with rows.

Each figure has its goal next to it, and whether it is met. Tables are drawn from known
probabilities, or counted from real rows. Noise is discrete Gaussian, drawn by inversion, since the
sites' sampler draws one number at a time. Estimates come from ``fedclust.numeric.cell_statistics``,
many tables at once.

Two goals depend on the expected events. "Enough" are ``5 sigma sqrt(sites)`` in the cluster with
fewer, over all sites; without noise, 20 at each site in both clusters together.
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from lifelines import KaplanMeierFitter, datasets
from sklearn.cluster import KMeans
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine
from sklearn.preprocessing import StandardScaler

from _data import SHARED
from _report import write
from fedclust.numeric import cell_statistics as cs
from fedclust.numeric.cell_statistics import Interval, Measure, Terms
from fedclust.protection.outcome_counts import count_outcomes
from fedclust.result.outcomes import difference_text
from fedclust.rounds.outcome_statistics import summarise
from fedclust.schema.feature import Outcome

N_SITES = 4
VALID = np.array([1.0, 1.0, 0.0])
EVENTS = np.array([0.0, 1.0, 0.0])
ORDERED = np.array([1.0, 1.0, 1.0, 1.0, 0.0])
TIMES = cs.follow_up(np.arange(1.0, 6.0))
#: The cluster that is compared has this share of a site's persons.
SHARE = 0.4
#: Persons without a value.
UNKNOWN = 0.03


def discrete_gaussian(sigma: float, shape: tuple[int, ...], rng: Any) -> Any:
    """Return noise with the probabilities of Canonne, Kamath & Steinke 2020; 0 at sigma 0."""
    if sigma == 0:
        return np.zeros(shape)
    support = np.arange(-math.ceil(14 * sigma), math.ceil(14 * sigma) + 1)
    chances = np.cumsum(np.exp(-(support**2) / (2 * sigma**2)))
    return support[np.searchsorted(chances / chances[-1], rng.random(shape))].astype(float)


class Draws(NamedTuple):
    """R draws of tables at S sites.

    Attributes
    ----------
    x1, x0 : (R, S, J)
        With noise.
    persons : (2, R, S)
        By groups, which differ from the rows by a few persons.
    clean : (2, R, S, J)
    """

    x1: Any
    x0: Any
    persons: Any
    clean: Any

    @property
    def exact(self) -> Draws:
        """The same tables without noise."""
        return Draws(*self.clean, self.clean[..., :-1].sum(axis=-1), self.clean)

    @property
    def mirrored(self) -> Draws:
        """The same tables with the opposite noise, which is as probable."""
        x1, x0 = 2 * self.clean - [self.x1, self.x0]
        return Draws(x1, x0, self.persons, self.clean)


class Kind(NamedTuple):
    """A measure with the probabilities of its cells: (share, ratio) to p1, p0, truth."""

    valid: Any
    make: Callable[[Any], Measure]
    cells: Callable[[float, float], tuple[Any, Any, float]]


def draw(sizes: Any, p1: Any, p0: Any, sigma: float, runs: int, rng: Any) -> Draws:
    """Draw tables.

    Parameters
    ----------
    sizes : (S,)
        Persons at each site.
    p1, p0 : (S, J - 1)
        Probabilities of the cells of both clusters, without "no value".
    """
    n1 = np.round(np.asarray(sizes) * SHARE).astype(int)
    tables = []
    for n, p in ((n1, p1), (sizes - n1, p0)):
        p = np.concatenate([p * (1 - UNKNOWN), np.full((len(n), 1), UNKNOWN)], axis=1)
        drawn = [rng.multinomial(k, each, runs) for k, each in zip(n, p, strict=True)]
        tables.append(np.stack(drawn, axis=1).astype(float))
    return noisy(np.array(tables), sigma, rng)


def noisy(clean: Any, sigma: float, rng: Any) -> Draws:
    """Add noise to tables (2, R, S, J) of both clusters."""
    moved = np.round(rng.normal(0, 2, clean.shape[1:3]))
    persons = np.maximum(clean.sum(axis=-1) + np.stack([moved, -moved]), 0)
    return Draws(*(clean + discrete_gaussian(sigma, clean.shape, rng)), persons, clean)


def solved(draws: Draws, kind: Kind, sigma: float, *, plain: bool = False) -> tuple[Measure, Terms]:
    """Return the measure and the terms of every draw; ``plain``: weights as if without noise.

    Weights have mean 1, which changes no estimate, and no bias comes from their common factor.
    """
    measure = kind.make((draws.x1 + draws.x0).sum(axis=1))
    persons = draws.persons if sigma else draws.exact.persons
    weight = cs.weights(persons, measure, 0.0 if plain else sigma**2)
    weight /= weight.mean(axis=1, keepdims=True)
    return measure, cs.estimating_function(draws.x1, draws.x0, measure, weight, sigma**2)


class Found(NamedTuple):
    """Intervals and p-values (R,) as a result shows them; ``sites``: of one effect at all sites."""

    interval: Interval
    p: Any
    sites: Any


def found(draws: Draws, measure: Measure, terms: Terms, sigma: float) -> Found:
    """Return what a result shows; without noise, the odds ratio as statsmodels has it."""
    interval, p = cs.estimate(terms, measure), cs.p_value(terms, measure.null)
    with np.errstate(all="ignore"):
        sites = cs.homogeneity(terms, interval.value / measure.unit)
    in_time = draws.x1.shape[-1] > len(ORDERED)
    shown = cs.comparable(interval, draws.x1 + draws.x0, sigma**2, in_time=in_time)
    sites = np.where(shown, sites, np.nan)
    if sigma or draws.x1.shape[-1] > 3 or math.isfinite(measure.high):
        return Found(interval, p, sites)
    tables = np.concatenate([draws.x1[..., [1, 0]], draws.x0[..., [1, 0]]], axis=-1)
    exact = [cs.mantel_haenszel(each) for each in tables]
    usual = np.array([each[0] for each in exact]).T
    interval = Interval(*np.where(np.isnan(usual[0]), interval, usual))
    return Found(interval, *np.array([each[1:] for each in exact], dtype=float).T)


def contains(interval: Interval, t: Any) -> Any:
    """Return whether intervals contain t; an open side contains everything."""
    return ~(interval.lower > t) & ~(interval.upper < t)


# --- Known probabilities --------------------------------------------------------------------------


def odds_times(p: Any, ratio: float) -> Any:
    """Return probabilities with their odds times a ratio."""
    return ratio * p / (1 - p + ratio * p)


def _binary(share: float, ratio: float, spread: float) -> tuple[Any, Any]:
    p0 = odds_times(share, np.exp(np.linspace(-spread, spread, N_SITES)))
    return tuple(np.stack([1 - p, p], 1) for p in (odds_times(p0, ratio), p0))


def _ratio_cells(share: float, ratio: float) -> tuple[Any, Any, float]:
    return *_binary(share, ratio, 0.3), ratio


def _risk_cells(share: float, ratio: float) -> tuple[Any, Any, float]:
    p1, p0 = _binary(share, ratio, 0.0)
    return p1, p0, float(p1[0, 1] - p0[0, 1])


def _ordered_cells(share: float, ratio: float) -> tuple[Any, Any, float]:
    """Four cells with proportional odds; ``share`` are above the lowest one."""
    above = share * np.array([1.0, 0.5, 0.2])
    cells = [-np.diff([1.0, *p, 0.0]) for p in (odds_times(above, ratio), above)]
    superior = float(cells[0] @ (np.tri(4, k=-1) + np.eye(4) / 2) @ cells[1])
    return *(np.tile(each, (N_SITES, 1)) for each in cells), superior


def _time_cells(share: float, ratio: float) -> tuple[Any, Any, float]:
    """Exponential times; ``share`` have the event by the end; people leave evenly until twice."""
    edges = np.append(0.0, np.cumsum(TIMES.width))
    base = -math.log(1 - share) / edges[-1]
    cells = []
    for rate in (base * ratio, base):
        # Of the density exp(-rate t) (1 - t / last) of events, and exp(-rate t) / last of leaving.
        last, tail = 2 * edges[-1], np.exp(-rate * edges)
        left = -np.diff(tail) / rate / last
        gone = -np.diff(tail * (1 - edges / last))  # both together, but for those who stay
        p = np.stack([gone - left, left], axis=1).reshape(-1)
        cells.append(np.tile(np.append(p, tail[-1] / 2), (N_SITES, 1)))
    return cells[0], cells[1], ratio


KINDS = {
    "odds ratio": Kind(VALID, lambda c: cs.odds_ratio(c, EVENTS, VALID), _ratio_cells),
    "risk difference": Kind(VALID, lambda c: cs.difference(c, EVENTS, VALID), _risk_cells),
    "superiority": Kind(ORDERED, lambda c: cs.superiority(c, ORDERED), _ordered_cells),
    "rate ratio": Kind(np.append(np.ones(11), 0.0), lambda c: cs.rate_ratio(c, TIMES), _time_cells),
}


def coverage(runs: int) -> list[dict[str, Any]]:
    """Measure coverage, false positives, open intervals and bias in every setting."""
    rng = np.random.default_rng(1)
    return [
        _setting(name, n, sigma, ratio, share, runs, rng)
        for name in KINDS
        for n in (200, 1000)
        for sigma in (0.0, 3.0, 5.0, 7.0)
        for ratio in (1.0, 2.0, 4.0)
        for share in (0.02, 0.1, 0.4)
    ]


def _setting(
    name: str, n: int, sigma: float, ratio: float, share: float, runs: int, rng: Any
) -> dict[str, Any]:
    kind = KINDS[name]
    p1, p0, truth = kind.cells(share, ratio)
    draws = draw(np.full(N_SITES, n), p1, p0, sigma, runs, rng)
    measure, terms = solved(draws, kind, sigma)
    shown = found(draws, measure, terms, sigma)
    fewer, per_site = _expected_events(name, n, p1, p0)
    enough = fewer >= 5 * sigma * math.sqrt(N_SITES) if sigma else per_site >= 20
    covered = float(contains(shown.interval, truth).mean())
    significant = float((shown.p < 0.05).mean())
    least, most = (0.93, 0.97) if enough else (0.92, 1.0)
    met = least <= covered <= most
    p_sites = shown.sites[np.isfinite(shown.sites)]
    # Of fewer draws the share says little.
    unequal = float((p_sites < 0.05).mean()) if len(p_sites) >= runs / 20 else math.nan
    met &= not unequal > 0.08
    if ratio == 1:
        met &= (0.03 if enough else 0.0) <= significant <= (0.07 if enough else 0.08)
    # With the opposite noise too, so that chance moves the figure less.
    both = [terms, solved(draws.mirrored, kind, sigma)[1]]
    root = float(sum(x.a.sum() for x in both) / sum(x.b.sum() for x in both))
    bias = (root - truth) / (share if name == "risk difference" else truth)
    return {
        "measure": name,
        "n": n,
        "sigma": sigma,
        "ratio": ratio,
        "share": share,
        "fewer events": round(fewer, 1),
        "events a site": round(per_site, 1),
        "enough": bool(enough),
        "coverage": covered,
        "p < .05": significant,
        "sites p < .05": unequal,
        "sites compared": len(p_sites) / runs,
        "open": float(np.isnan(shown.interval.lower + shown.interval.upper).mean()),
        "met": bool(met),
        "bias": bias,
        "bias met": bool(abs(bias) <= 0.03) if per_site >= 20 else "-",
    }


def _expected_events(name: str, n: int, p1: Any, p0: Any) -> tuple[float, float]:
    """Return the events of one cluster over all sites, and of both at one site: the fewest."""
    events = np.zeros(p1.shape[1])
    events[slice(0, -1, 2) if name == "rate ratio" else slice(1, None)] = 1.0
    known = n * (1 - UNKNOWN)
    one, other = known * SHARE * (p1 @ events), known * (1 - SHARE) * (p0 @ events)
    return float(min(one.sum(), other.sum())), float((one + other).min())


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the extremes of the settings of each measure."""
    shown = []
    for name in KINDS:
        for enough in (True, False):
            own = [row for row in rows if (row["measure"], row["enough"]) == (name, enough)]
            null = [row["p < .05"] for row in own if row["ratio"] == 1]
            sites = [row["sites p < .05"] for row in own]
            covered, opened = [row["coverage"] for row in own], [row["open"] for row in own]
            biases = [abs(row["bias"]) for row in own if row["bias met"] != "-"]
            shown.append(
                {
                    "measure": name,
                    "enough events": enough,
                    "settings": len(own),
                    "coverage": f"{min(covered):.3f} to {max(covered):.3f}",
                    "goal": ".93 to .97" if enough else ">= .92",
                    "null p < .05": f"{min(null):.3f} to {max(null):.3f}",
                    "its goal": ".03 to .07" if enough else "<= .08",
                    "sites p < .05 (<= .08)": f"{np.nanmin(sites):.3f} to {np.nanmax(sites):.3f}",
                    "open": f"{min(opened):.3f} to {max(opened):.3f}",
                    "largest bias": max(biases, default=math.nan),
                    "bias goal": "<= .03",
                    "met": all(row["met"] and row["bias met"] is not False for row in own),
                }
            )
    return shown


def bounded(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Count settings with enough events where 95 % of the ratios are bounded."""
    shown = []
    for name in ("odds ratio", "rate ratio"):
        for cells in (1, len(TIMES.width)) if name == "rate ratio" else (1,):
            least = 5 * math.sqrt(N_SITES * cells)
            own = [row for row in rows if row["measure"] == name and row["sigma"] > 0]
            own = [row for row in own if row["fewer events"] >= least * row["sigma"]]
            held = sum(row["open"] <= 0.05 for row in own)
            shown.append(
                {
                    "measure": name,
                    "events": f"5 sigma sqrt({N_SITES * cells})",
                    "settings": len(own),
                    "bounded in 95 %": held,
                    "most open": max(row["open"] for row in own),
                }
            )
    return shown


# --- One cluster ----------------------------------------------------------------------------------


def one_cluster(runs: int) -> list[dict[str, Any]]:
    """Measure the coverage of intervals of one cluster, over all sites."""
    rng = np.random.default_rng(2)
    rows = []
    for n in (80, 400):
        for sigma in (0.0, 3.0, 5.0, 7.0):
            row: dict[str, Any] = {"persons a site": n, "sigma": sigma}
            for name, (p, solve, truth) in _one_cluster_cases().items():
                clean = rng.multinomial(n, p, (runs, N_SITES))
                cells = (clean + discrete_gaussian(sigma, clean.shape, rng)).sum(axis=1)
                row[name] = float(contains(solve(cells, N_SITES * sigma**2), truth).mean())
            figures = [each for name, each in row.items() if name in _one_cluster_cases()]
            rows.append(
                row | {"goal": ".93 to .97", "met": 0.93 <= min(figures) <= max(figures) <= 0.97}
            )
    return rows


def _one_cluster_cases() -> dict[str, tuple[Any, Callable[[Any, float], Interval], float]]:
    """Return probabilities of the cells, what is estimated from tables (R, J), and the truth."""

    def medians(tables: Any, noise: float) -> Interval:
        return Interval(*np.transpose([cs.median(each, edges, noise) for each in tables]))

    cases: dict[str, Any] = {}
    for share in (0.02, 0.1, 0.4):
        p = [1 - share, share, 0.0]
        cases[f"share {share}"] = (p, lambda c, v: cs.share(c, EVENTS, VALID, v), share)
    ordered, values = np.array([0.35, 0.3, 0.2, 0.15, 0.0]), np.array([1.5, 5.0, 10.0, 20.0, 0.0])
    edges = np.array([3.0, 7.0, 14.0])
    cases["mean"] = (ordered, lambda c, v: cs.mean(c, values, ORDERED, v), float(ordered @ values))
    cases["median"] = (ordered, medians, float(cs.median(ordered, edges, 0.0).value))
    for share in (0.1, 0.4):
        rate = -math.log(1 - share) / 5
        p = np.append(_time_cells(share, 1.0)[1][0], 0.0)
        cases[f"S = {1 - share}"] = (
            p,
            lambda c, v: Interval(*(each[:, -1] for each in cs.survival(c, TIMES, v).curve)),
            1 - share,
        )
        cases[f"its mean time {1 - share}"] = (
            p,
            lambda c, v: cs.survival(c, TIMES, v).restricted_mean,
            share / rate,
        )
    return cases


# --- Compared with rows ---------------------------------------------------------------------------


def widths(runs: int) -> list[dict[str, Any]]:
    """Compare the width of intervals of ratios, on the scale of logarithms, with that of rows."""
    rng = np.random.default_rng(3)
    rows = []
    for name, share, goal in (
        ("odds ratio", 0.1, 1.35),
        ("odds ratio", 0.4, 1.12),
        ("rate ratio", 0.1, 1.45),
        ("rate ratio", 0.2, 1.45),
        ("rate ratio", 0.4, 1.45),
    ):
        for ratio in (1.0, 2.0, 4.0):
            p1, p0, _ = KINDS[name].cells(share, ratio)
            draws = draw(np.full(N_SITES, 1000), p1, p0, 5.0, runs, rng)
            own, of_rows = (
                _log_width(found(each, *solved(each, KINDS[name], sigma), sigma).interval)
                for each, sigma in ((draws, 5.0), (draws.exact, 0.0))
            )
            rows.append(
                {
                    "measure": name,
                    "share": share,
                    "ratio": ratio,
                    "width over rows": own / of_rows,
                    "goal": f"<= {goal}",
                    "met": bool(own / of_rows <= goal),
                }
            )
    return rows


def _log_width(interval: Interval) -> float:
    """Return the median width; an open interval is wider than all others."""
    width = np.log(interval.upper / interval.lower)
    return float(np.median(np.where(np.isnan(width), np.inf, width)))


def curves(runs: int) -> list[dict[str, Any]]:
    """Measure how far noisy curves are from Kaplan and Meier's of the rows, in both clusters."""
    rng = np.random.default_rng(4)
    edges, rows = np.arange(1, 6), []
    for n, points, goal in ((1000, 10, 0.03), (200, 50, 0.05)):
        sigma, n1 = math.sqrt(250 / points), round(n * SHARE)
        for share in (0.1, 0.4):
            rate, gaps = -math.log(1 - share) / 5, []
            for _ in range(runs):
                gap = 0.0
                for size, own in ((n1, 2 * rate), (n - n1, rate)):
                    event = rng.exponential(1 / own, (N_SITES, size))
                    left = rng.uniform(0, 10, (N_SITES, size))
                    t, happened = np.minimum(event, left), event <= left
                    cells = [time_cells(*each, edges) for each in zip(t, happened, strict=True)]
                    total = np.sum(cells + discrete_gaussian(sigma, (N_SITES, 12), rng), axis=0)
                    curve = cs.survival(total, TIMES, N_SITES * sigma**2).curve.value[1:]
                    fitted = KaplanMeierFitter().fit(t.ravel(), happened.ravel())
                    gap = max(gap, float(np.abs(curve - fitted.predict(edges)).max()))
                gaps.append(gap)
            rows.append(
                {
                    "persons a site": n,
                    "points": points,
                    "events": share,
                    "largest gap, median": float(np.median(gaps)),
                    "90 % of draws": float(np.quantile(gaps, 0.9)),
                    "goal": f"median <= {goal}",
                    "met": bool(np.median(gaps) <= goal),
                }
            )
    return rows


def time_cells(t: Any, happened: Any, edges: Any) -> Any:
    """Count the cells (J,) of times (n,) until the event, or until somebody left."""
    b = np.where(happened, np.searchsorted(edges, t), np.searchsorted(edges, t, side="right"))
    cells = 2 * b + ((b < len(edges)) & ~happened)
    return np.bincount(cells, minlength=2 * len(edges) + 2).astype(float)


def small_sites(runs: int) -> list[dict[str, Any]]:
    """Compare the power at sites of 30, 60, 150 and 1,000 persons with that of plain weights.

    No table has more power than its rows: there is no goal where rows have less than 1.15 times the
    power of plain weights.
    """
    rng = np.random.default_rng(5)
    kind, sizes, rows = KINDS["odds ratio"], np.array([30, 60, 150, 1000]), []
    for points in (10, 50):
        for share in (0.05, 0.1, 0.2):
            for ratio in (1.5, 2.0):
                sigma = math.sqrt(250 / points)
                p1, p0, _ = kind.cells(share, ratio)
                draws = draw(sizes, p1, p0, sigma, runs, rng)
                own, plain = (
                    _power(solved(draws, kind, sigma, plain=plain)[1]) for plain in (False, True)
                )
                of_rows = _power(solved(draws.exact, kind, 0.0)[1])
                reachable = of_rows >= 1.15 * plain
                rows.append(
                    {
                        "points": points,
                        "share": share,
                        "odds ratio": ratio,
                        "power": own,
                        "plain weights": plain,
                        "rows": of_rows,
                        "over plain": own / plain,
                        "goal": ">= 1.15" if reachable else "-",
                        "met": bool(own / plain >= 1.15) if reachable else "-",
                    }
                )
    return rows


def _power(terms: Terms) -> float:
    return float((cs.p_value(terms, 1.0) < 0.05).mean())


# --- Overlapping phenotypes -----------------------------------------------------------------------

PATIENTS = np.array([150, 250, 300, 400, 600])
#: Risks of the three phenotypes: on average .02, .11 and .41, with two contrasts.
RISKS = {
    (0.02, "moderate"): (0.01, 0.02, 0.04),
    (0.02, "strong"): (0.005, 0.015, 0.0575),
    (0.11, "moderate"): (0.05, 0.11, 0.23),
    (0.11, "strong"): (0.03, 0.09, 0.3),
    (0.41, "moderate"): (0.3, 0.41, 0.63),
    (0.41, "strong"): (0.2, 0.41, 0.83),
}


def phenotypes(runs: int) -> list[dict[str, Any]]:
    """Measure coverage and power where k-means finds three phenotypes that overlap."""
    rng = np.random.default_rng(6)
    populations, kind, rows = 20, KINDS["odds ratio"], []
    for (share, contrast), risks in RISKS.items():
        for points in (10, 50):
            sigma = math.sqrt(250 / points)
            covered, power, of_rows = [], [], []
            for _ in range(populations):
                for clean, means in _phenotype_tables(risks, runs // populations, rng):
                    draws = noisy(clean, sigma, rng)
                    measure, terms = solved(draws, kind, sigma)
                    shown = found(draws, measure, terms, sigma)
                    # The odds ratio at which the mean of U over these patients' outcomes is 0.
                    expected = solved(draws._replace(x1=means[0], x0=means[1]), kind, sigma)[1]
                    truth = expected.a.sum() / expected.b.sum()
                    covered.append(contains(shown.interval, truth).mean())
                    power.append((shown.p < 0.05).mean())
                    exact = draws.exact
                    of_rows.append((found(exact, *solved(exact, kind, 0.0), 0.0).p < 0.05).mean())
            judged = (share, points) == (0.11, 50)
            over = float(np.mean(power) / np.mean(of_rows))
            rows.append(
                {
                    "share": share,
                    "contrast": contrast,
                    "points": points,
                    "coverage": float(np.mean(covered)),
                    "power": float(np.mean(power)),
                    "rows": float(np.mean(of_rows)),
                    "power over rows": over,
                    "goal": ".93 to .97; >= .9" if judged else "-",
                    "met": bool(0.93 <= np.mean(covered) <= 0.97 and over >= 0.9)
                    if judged
                    else "-",
                }
            )
    return rows


def _phenotype_tables(risks: tuple[float, ...], runs: int, rng: Any) -> list[tuple[Any, Any]]:
    """Draw a population; return tables (2, R, S, J) and their means for both comparisons."""
    site = np.repeat(np.arange(len(PATIENTS)), PATIENTS)
    mixing = rng.dirichlet((8.0, 6.0, 4.0), len(PATIENTS))
    phenotype = np.array([rng.choice(3, p=mixing[s]) for s in site])
    X = rng.normal(size=(len(site), 6))
    X[:, :3] += 1.5 * np.eye(3)[phenotype]
    label = KMeans(3, n_init=4, random_state=0).fit_predict(X)
    by_size = np.argsort(-np.bincount(label))
    risk = np.array(risks)[phenotype]
    events = rng.random((runs, len(site))) < risk
    found_tables = []
    for k in by_size[1:]:
        tables, means = np.zeros((2, 2, runs, len(PATIENTS), 3))
        for c, cluster in enumerate((k, by_size[0])):
            for s in range(len(PATIENTS)):
                own = (label == cluster) & (site == s)
                for table, count in (
                    (tables, events[:, own].sum(axis=1)),
                    (means, risk[own].sum()),
                ):
                    table[c, :, s, 1], table[c, :, s, 0] = count, own.sum() - count
        found_tables.append((tables, means))
    return found_tables


# --- Data sets ------------------------------------------------------------------------------------


class Rows(NamedTuple):
    """Features (n, d), the site (n,) and the cell (n,) of each person, and what was asked."""

    X: Any
    site: Any
    cell: Any
    outcome: Outcome


def _asked(kind: str, **more: Any) -> Outcome:
    return Outcome(name="outcome", role="outcome", kind=kind, **more)  # type: ignore[arg-type]


def _at_sites(X: Any, cell: Any, outcome: Outcome) -> Rows:
    site = np.random.default_rng(0).permutation(len(cell)) % N_SITES
    return Rows(np.asarray(X, dtype=float), site, np.asarray(cell).astype(int), outcome)


def _diabetes() -> Rows:
    data = load_diabetes()
    edges, values = (80.0, 130.0, 200.0, 270.0), (60.0, 105.0, 165.0, 235.0, 300.0)
    cell = np.searchsorted(edges, data.target, side="right")
    return _at_sites(data.data, cell, _asked("ordered", edges=edges, values=values))


def _heart() -> Rows:
    frames = []
    for s, name in enumerate(("cleveland", "hungarian", "switzerland", "va")):
        path = SHARED / "heart_disease" / f"processed.{name}.data"
        frames.append(pd.read_csv(path, header=None, na_values="?").assign(site=s))
    rows = pd.concat(frames)
    X = rows[[0, 1, 7, 8, 9]]
    return Rows(X.fillna(X.median()), rows["site"], (rows[13] > 0).astype(int), _asked("binary"))


def _survival(frame: Any, time: str, event: str, edges: tuple[float, ...]) -> Rows:
    X = pd.get_dummies(frame.drop(columns=[time, event])).astype(float)
    t, happened = frame[time].to_numpy(), frame[event].to_numpy() == 1
    b = np.where(happened, np.searchsorted(edges, t), np.searchsorted(edges, t, side="right"))
    cell = 2 * b + ((b < len(edges)) & ~happened)
    return _at_sites(X.fillna(X.median()), cell, _asked("time", edges=edges, event="event"))


def _binary_rows(data: Any, cell: Any) -> Rows:
    return _at_sites(data.data, cell, _asked("binary"))


YEARS = (365.0, 730.0, 1095.0, 1460.0, 1825.0)
DATA: dict[str, Callable[[], Rows]] = {
    "breast cancer: malignant": lambda: _binary_rows(x := load_breast_cancer(), x.target == 0),
    "wine: second cultivar": lambda: _binary_rows(x := load_wine(), x.target == 1),
    "digits: odd": lambda: _binary_rows(x := load_digits(), x.target % 2),
    "diabetes: progression": _diabetes,
    "heart disease: diseased": _heart,
    "rossi: arrest": lambda: _survival(datasets.load_rossi(), "week", "arrest", (13, 26, 39, 52)),
    "gbsg2: recurrence": lambda: _survival(datasets.load_gbsg2(), "time", "cens", YEARS),
    "lung: death": lambda: _survival(datasets.load_lung(), "time", "status", (90, 180, 365, 730)),
    "kidney transplant: death": lambda: _survival(
        datasets.load_kidney_transplant(), "time", "death", YEARS
    ),
}


def data_sets(runs: int, points: int = 10) -> list[dict[str, Any]]:
    """Count how often intervals contain the value of the rows, over draws of noise."""
    rng = np.random.default_rng(7)
    rows = []
    for name, load in DATA.items():
        if name.startswith("heart") and not (SHARED / "heart_disease").exists():
            print(f"skipped: {name} (no {SHARED / 'heart_disease'})")
            continue
        data = load()
        outcome = data.outcome.model_copy(update={"points": points})
        X = StandardScaler().fit_transform(data.X)
        label = KMeans(2, n_init=10, random_state=0).fit_predict(X)
        shape = (N_SITES, 3, len(outcome.cells))
        exact = np.zeros(shape, dtype=np.int64)
        np.add.at(exact, (data.site, label, data.cell), 1)
        persons = {f"site-{s}": exact[s, :2].sum(axis=1) for s in range(N_SITES)}
        value = _estimates(_summary(exact, outcome, persons, exact=True))
        kept, silent = np.zeros((2, runs, len(value)))
        for i in range(runs):
            noise = discrete_gaussian(math.sqrt(outcome.variance), shape, rng).astype(np.int64)
            own = _estimates(_summary(exact + noise, outcome, persons, exact=False))
            kept[i] = contains(Interval(*own.T), value[:, 0])
            silent[i] = np.isnan(own[:, 1:]).all(axis=1)
        compared = len(_summary(exact, outcome, persons, exact=True).results[0].comparisons)
        rows.append(
            {
                "data": name,
                "points": points,
                "rows": len(label),
                "comparisons": float(kept[:, :compared].mean()),
                "all estimates": float(kept.mean()),
                "goal": ">= .94",
                "met": bool(min(kept[:, :compared].mean(), kept.mean()) >= 0.94),
                "least of an estimate": float(kept.mean(axis=0).min()),
                "comparison cannot tell": float(silent[:, :compared].mean()),
            }
        )
    return rows


def _summary(tables: Any, outcome: Outcome, persons: Any, *, exact: bool) -> Any:
    sent = {f"site-{s}": (table,) for s, table in enumerate(tables)}
    return summarise(sent, [outcome], persons, exact=exact)


ASKED = {
    "binary": (_asked("binary"), lambda share, ratio: _binary(share, ratio, 0.3)),
    "categorical": (
        _asked("categorical", levels=("a", "b", "c", "d")),
        lambda share, ratio: _ordered_cells(share, ratio)[:2],
    ),
    "ordered": (
        _asked("ordered", edges=(1, 2, 3)),
        lambda share, ratio: _ordered_cells(share, ratio)[:2],
    ),
    "time": (
        _asked("time", edges=(1, 2, 3, 4, 5), event="event"),
        lambda share, ratio: _time_cells(share, ratio)[:2],
    ),
}


def sentences(runs: int) -> list[dict[str, Any]]:
    """Count how often the first screen says that clusters differ, without and with a difference.

    Clusters have shares of 2 : 1, 3 : 2 : 1 and so on. Each line stands for 18 settings: sites of
    200 and 1,000 persons, 2, 3 and 6 clusters, 2, 10 and 40 % with the event. With a difference
    cluster 1 has twice the odds, or twice the rate.
    """
    rng, rows = np.random.default_rng(9), []
    for (kind, (asked, cells)), points in itertools.product(ASKED.items(), (10, 50, None)):
        outcome, said = asked.model_copy(update={"points": points or 10}), []
        for n, k, share in itertools.product((200, 1000), (2, 3, 6), (0.02, 0.1, 0.4)):
            sizes = np.round(n * np.arange(k, 0, -1) / (k * (k + 1) / 2)).astype(int)
            shares = [
                np.mean([_differ(_sent(sizes, p, rng), outcome, points, rng) for _ in range(many)])
                for p, many in ((cells(share, 1.0), runs), (cells(share, 2.0), runs // 5))
            ]
            said.append(shares)
        alarms, seen = np.transpose(said)
        # The greatest of 18 shares of so many draws, where each is .05, is below this in 95 %.
        most = 0.05 + 2.8 * math.sqrt(0.05 * 0.95 / runs)
        rows.append(
            {
                "kind": kind,
                "points": points or "exact",
                "false alarms": float(alarms.mean()),
                "greatest of 18": float(alarms.max()),
                "goal": f"<= .05; <= {most:.3f}",
                "met": bool(alarms.mean() <= 0.05 and alarms.max() <= most),
                "said with ratio 2": float(seen.mean()),
            }
        )
    return rows


def _sent(sizes: Any, cells: Any, rng: Any) -> Any:
    """Draw tables (S, K + 1, J): cluster 1 has the first probabilities, all others the second."""
    table = np.zeros((N_SITES, len(sizes) + 1, cells[0].shape[1] + 1), dtype=np.int64)
    for s, (k, n) in itertools.product(range(N_SITES), enumerate(sizes)):
        table[s, k, :-1] = rng.multinomial(n, cells[0 if k == 1 else 1][s])
    return table


def _differ(exact: Any, outcome: Outcome, points: int | None, rng: Any) -> bool:
    persons = {f"site-{s}": table[:-1].sum(axis=1) for s, table in enumerate(exact)}
    sigma = 0.0 if points is None else math.sqrt(outcome.variance)
    sent = exact + discrete_gaussian(sigma, exact.shape, rng).astype(np.int64)
    found = _summary(sent, outcome, persons, exact=points is None)
    names = [f"cluster {k}" for k in range(exact.shape[1] - 1)]
    text = difference_text(found.results[0], names, found.reference, "")
    return text.startswith("The clusters differ in ")


def _estimates(outcomes: Any) -> Any:
    """Return value, lower and upper limit of every estimate, comparisons first: (m, 3)."""
    (result,) = outcomes.results
    estimates = [each.estimate for each in result.comparisons]
    for own in result.clusters:
        estimates += [*own.shares, *(each.survival for each in own.survival[1:])]
        more = {"ordered": [own.median, own.mean], "time": [own.restricted_mean]}
        estimates += more.get(result.kind, [])
    limits = [(x.value, x.lower, x.upper) if x else (None,) * 3 for x in estimates]
    return np.array(limits, dtype=float)


def edges() -> list[dict[str, Any]]:
    """Compute the errors of rate ratio and mean time by the most that happens in one interval.

    Without noise and drawing: ratios of 1.5 to 4, constant and falling rates, 5 to 80 % with the
    event, and a cluster of a tenth or half of the persons. Times end at 1.
    """
    grids = [(0.25, 0.5, 0.75, 1), (0.02, 0.1, 0.3, 1), (0.1, 0.2, 0.5, 1), (0.5, 0.6, 0.8, 1)]
    grids += [(0.05, 0.5, 0.75, 1), (0.2, 0.4, 0.6, 1), (0.02, 0.08, 0.16, 0.5, 1)]
    found = []
    for small, shape, ratio, share, ends in itertools.product(
        (0.1, 0.5), (1.0, 0.5), (1.5, 2, 3, 4), np.linspace(0.05, 0.8, 16), grids
    ):
        hazards = -math.log1p(-share) * np.array([[ratio], [1.0]])
        left = np.exp(-hazards * np.array([0.0, *ends]) ** shape)
        events = np.stack([-np.diff(left), np.zeros((2, len(ends)))], axis=-1).reshape(2, -1)
        x1, x0 = 1000 * np.concatenate([events, left[:, -1:], np.zeros((2, 1))], axis=1)
        both, times = small * x1 + (1 - small) * x0, cs.follow_up(ends)
        measure = cs.rate_ratio(both, times)
        a = float(hazards[0, 0])
        mean = -math.expm1(-a) / a
        if shape < 1:
            mean = 2 * (1 - (1 + a) * math.exp(-a)) / a**2
        found.append(
            {
                "at once": max(both[b] / both[b:].sum() for b in range(0, 2 * len(ends), 2)),
                "ratio": x1 @ measure.a @ x0 / (x1 @ measure.b @ x0) / ratio - 1,
                "mean": cs.survival(x1, times, 0.0).restricted_mean.value / mean - 1,
            }
        )
    table = pd.DataFrame(found)
    return [
        {
            "at once, at most": most,
            "settings": len(known),
            "rate ratio, least": float(known["ratio"].min()),
            "mean time, most": float(known["mean"].max()),
        }
        for most in (0.1, 0.2, 0.25, 0.35, 0.5)
        if len(known := table[table["at once"] <= most])
    ]


def sampler(runs: int = 20) -> list[dict[str, Any]]:
    """Time the noise of a site for 8 clusters and 12 cells."""
    rng, spent = np.random.default_rng(8), []
    clusters, cells = rng.integers(0, 8, 1000), rng.integers(0, 12, 1000)
    for _ in range(runs):
        start = time.process_time()
        count_outcomes(clusters, cells, 8, 12, _asked("binary").variance)
        spent.append(1000 * (time.process_time() - start))
    median = float(np.median(spent))
    return [{"CPU ms, median": median, "most": max(spent), "goal": "<= 20", "met": median <= 20}]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=4000, help="draws of each setting")
    parser.add_argument("--noise-runs", type=int, default=200, help="draws of noise on real rows")
    options = parser.parse_args()
    runs = options.runs
    settings = coverage(runs)
    write("outcomes", summary(settings), note=f"{len(settings)} settings, {runs} draws each.")
    missed = [row for row in settings if not row["met"] or row["bias met"] is False]
    if missed:
        write("outcomes_missed", missed)
    write("outcomes_settings", settings)
    write("outcomes_bounded", bounded(settings))
    write("outcomes_one_cluster", one_cluster(runs))
    write("outcomes_widths", widths(runs), note="4 sites of 1,000 persons, 10 points.")
    write("outcomes_curves", curves(options.noise_runs))
    write("outcomes_small_sites", small_sites(runs))
    write("outcomes_phenotypes", phenotypes(runs))
    for points in (10, 50):
        write(f"outcomes_data_{points}", data_sets(options.noise_runs, points))
    note = f"How often the first screen says that clusters differ, {runs // 16} draws a setting."
    write("outcomes_sentences", sentences(runs // 16), note=note)
    write("outcomes_edges", edges())
    write("outcomes_sampler", sampler())


if __name__ == "__main__":
    main()
