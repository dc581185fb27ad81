"""Outcomes by cluster: what a site sends of them, and what the coordinator makes of it.

A site adds up, for each final cluster and each column of an outcome, the persons with a value, the
values, and the squared deviations between its groups. Yes/no outcomes need nothing else: a group
releases how many of its persons have the event. The variance of a number is completed by the share
within groups, which is released once with the table.

The coordinator compares every cluster with the largest one: crude, at each site, and over the sites
(``numeric.effect_sizes``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedclust.methods.common.kmeans_rounds import disclosure
from fedclust.numeric import effect_sizes as sizes
from fedclust.numeric.arrays import FloatMatrix, FloatVector, IntMatrix
from fedclust.numeric.effect_sizes import Combined, Counts, Effect, Interval, Sample
from fedclust.numeric.moments import Moments, merge_moments, no_moments
from fedclust.protection.message_checks import SLACK, check_shape
from fedclust.schema.encoding import Column
from fedclust.schema.errors import RuleViolation
from fedclust.schema.model import Model
from fedclust.schema.outcomes import (
    ClusterComparison,
    CommonOddsRatio,
    Estimate,
    OutcomeInCluster,
    OutcomeResult,
    Outcomes,
    SiteEffects,
)
from fedclust.schema.points import Points
from fedclust.schema.scaling import binary_columns, own_bounds

#: A mean of equal values differs from them by less than this share.
_ROUNDING = 1e-12

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


class OutcomeSums(Model):
    """A site's outcomes by cluster.

    Attributes
    ----------
    counts : (K, q) int64
        Persons with a value.
    sums : (K, q) float64
        Their values added up; of a yes/no column its events.
    m2 : (K, q) float64
        Squared deviations of the groups' values from the cluster's mean; 0 for yes/no columns.
    spread : (K, q) float64
        The same of the groups' sums, from what their sizes and the cluster's mean let expect.
    within : (q,) float64
        The variance within groups; 0 for yes/no columns.
    """

    counts: IntMatrix
    sums: FloatMatrix
    m2: FloatMatrix
    spread: FloatMatrix
    within: FloatVector


DISCLOSES = (
    disclosure(
        "counts",
        "K x q numbers, for each K",
        "How many of your persons in each final cluster have a value of each outcome.",
    ),
    disclosure(
        "sums",
        "K x q numbers, for each K",
        "The values of each outcome added up in each cluster; of a yes/no outcome, how many have "
        "it.",
    ),
    disclosure(
        "m2",
        "K x q numbers, for each K",
        "How widely the groups' values of each outcome are spread: squared deviations, added up.",
    ),
    disclosure(
        "spread",
        "K x q numbers, for each K",
        "How widely the groups' sums of each outcome are spread: squared deviations, added up.",
    ),
    disclosure(
        "within",
        "q numbers",
        "The variance of each outcome within the groups, from the share that is released once with "
        "the table.",
        "Describes all your persons together.",
    ),
)


# --- At a site ------------------------------------------------------------------------------------


def local_sums(
    points: Points, labels: IntArray, n_clusters: int, columns: Sequence[Column]
) -> OutcomeSums:
    """Add up a site's outcomes by the cluster (m,) of each point; -1 leaves a point out."""
    q = len(columns)
    counts = np.zeros((n_clusters, q), dtype=np.int64)
    sums, m2, spread = np.zeros((3, n_clusters, q))
    within = np.zeros(q)
    if points.outcomes is None or points.outcome_within is None:
        return OutcomeSums(counts=counts, sums=sums, m2=m2, spread=spread, within=within)
    for j, is_binary in enumerate(binary_columns(columns)):
        has = (labels >= 0) & ~np.isnan(points.outcomes[:, j])
        values, of, persons = points.outcomes[has, j], labels[has], points.sizes[has]
        if not len(values):
            continue
        counts[:, j] = np.bincount(of, weights=persons, minlength=n_clusters)
        sums[:, j] = np.bincount(of, weights=persons * values, minlength=n_clusters)
        if is_binary:
            # A share of a group times its persons is whole but for rounding.
            sums[:, j] = np.round(sums[:, j])
        means = sums[:, j] / np.maximum(counts[:, j], 1)
        squares = persons * _deviations(values, means[of]) ** 2
        spread[:, j] = np.bincount(of, weights=persons * squares, minlength=n_clusters)
        if is_binary:
            continue
        m2[:, j] = np.bincount(of, weights=squares, minlength=n_clusters)
        centre = np.average(values, weights=persons)
        between = float(np.average(_deviations(values, centre) ** 2, weights=persons))
        share = float(points.outcome_within[j])
        within[j] = between * share / (1.0 - share)
    return OutcomeSums(counts=counts, sums=sums, m2=m2, spread=spread, within=within)


def _deviations(values: FloatArray, means: FloatArray | float) -> FloatArray:
    """Return how far values (m,) are from means; 0 where that is rounding of equal values."""
    found = values - means
    return np.where(np.abs(found) <= _ROUNDING * np.abs(means), 0.0, found)


# --- Check ----------------------------------------------------------------------------------------


def check(sent: OutcomeSums, persons: IntArray, columns: Sequence[Column], p: int) -> None:
    """Check a site's outcomes at either end.

    Parameters
    ----------
    sent : OutcomeSums
    persons : (K,) int64
        In each cluster, as the site sends them.
    columns : sequence of Column
        Of the outcomes.
    p : int

    Raises
    ------
    RuleViolation
    """
    shape = (len(persons), len(columns))
    for name in ("counts", "sums", "m2", "spread"):
        check_shape(getattr(sent, name), shape, f"/{name}")
    check_shape(sent.within, shape[1:], "/within")
    without = persons[:, None] - sent.counts
    message = f"those with a value and those without are 0 or at least {p} persons"
    for counted in (sent.counts, without):
        _refuse((counted != 0) & (counted < p), "smallest-count", message, "/counts")
    empty = sent.counts == 0
    _refuse(empty & (sent.sums != 0), "empty-cell", "nobody has a value: 0 is needed", "/sums")
    _refuse(empty & (sent.m2 != 0), "empty-cell", "nobody has a value: 0 is needed", "/m2")
    wrong = (sent.spread < 0) | (empty & (sent.spread != 0))
    _refuse(wrong, "spread", "a spread is negative, or nobody has a value", "/spread")
    lower, upper = (sent.counts * _finite(bound, empty) for bound in own_bounds(columns))
    slack = SLACK * np.maximum(1.0, np.abs(sent.sums))
    outside = (sent.sums < lower - slack) | (sent.sums > upper + slack)
    _refuse(outside, "bounds", "the sum lies outside the declared bounds", "/sums")
    is_binary = binary_columns(columns)
    few = (sent.sums != np.round(sent.sums)) | _below(sent.sums, p)
    few |= _below(sent.counts - sent.sums, p)
    message = f"events and non-events are whole numbers, 0 or at least {p}"
    _refuse(is_binary & few, "smallest-count", message, "/sums")
    wrong = (sent.m2 < 0) | (is_binary & (sent.m2 != 0))
    _refuse(wrong, "spread", "a spread is negative, or is that of a yes/no outcome", "/m2")
    bad = (sent.within < 0) | (is_binary & (sent.within != 0))
    # Within a cluster no group has more persons than the cluster.
    squares = sent.m2
    if is_binary.any():
        shares = sent.sums / np.maximum(sent.counts, 1)
        squares = np.where(is_binary, sent.sums * (1.0 - shares), sent.m2)
    most = sent.counts * squares * (1.0 + SLACK)
    _refuse(sent.spread > most, "spread", "a spread is larger than groups allow", "/spread")
    if bad.any():
        place = f"/within/{int(np.flatnonzero(bad)[0])}"
        message = "a variance is negative, or is that of a yes/no outcome"
        raise RuleViolation("within", message, place)


def _finite(bound: FloatArray, empty: NDArray[np.bool_]) -> FloatArray:
    """Return bounds (K, q) with 0 where no person has a value: infinity times 0 is no number."""
    return np.where(empty, 0.0, bound)


def _below(numbers: FloatArray, p: int) -> NDArray[np.bool_]:
    return np.asarray((numbers != 0) & (numbers < p))


def _refuse(wrong: NDArray[np.bool_], rule: str, message: str, pointer: str) -> None:
    if wrong.any():
        cluster, column = (int(place) for place in np.argwhere(wrong)[0])
        text = f"outcome {column} in cluster {cluster}: {message}"
        raise RuleViolation(rule, text, f"{pointer}/{cluster}/{column}")


# --- Aggregation ----------------------------------------------------------------------------------


def summarise(
    sent: Mapping[str, OutcomeSums],
    persons: Sequence[int],
    columns: Sequence[Column],
    min_sites: int,
    *,
    several: bool = False,
) -> tuple[Outcomes, tuple[str, ...]]:
    """Compare the clusters.

    Parameters
    ----------
    sent : mapping of site to OutcomeSums
    persons : sequence of int, length K
        Persons of all sites in each cluster. The largest cluster, and of equal ones the first, is
        the reference.
    columns : sequence of Column
        Of the outcomes.
    min_sites : int
        Numbers of a cluster that fewer sites have are withheld, and so is an effect over fewer
        sites. An outcome is left out where that concerns all clusters.
    several : bool
        Whether the session compares several K, whose clusters add up to the same total. One
        withheld cluster then withholds all.

    Returns
    -------
    Outcomes
    tuple of str
        Warnings that name the outcomes that were left out.

    Raises
    ------
    FloatingPointError
        The numbers are too large or too small to be compared.
    """
    reference = int(np.argmax(persons))
    results: list[OutcomeResult] = []
    absent: dict[str, None] = {}
    for j, column in enumerate(columns):
        own = {site: sent[site] for site in sorted(sent) if sent[site].counts[:, j].any()}
        sites = np.zeros(len(persons), dtype=np.int64)
        for each in own.values():
            sites += each.counts[:, j] > 0
        enough = sites >= min_sites
        if not enough.any():
            absent[column.feature] = None
            continue
        shown = enough & (enough.all() or not several)
        compare = _compare_events if column.kind == "binary" else _compare_means
        groups = [k for k in range(len(persons)) if k != reference]
        try:
            design = _design_effect(own, j, column, enough)
            clusters, by_site, comparisons = compare(own, j, reference, groups, design)
        except (ArithmeticError, ValueError):
            raise FloatingPointError from None
        results.append(
            OutcomeResult(
                name=column.name,
                unit=column.unit,
                kind=column.kind,
                design_effect=design,
                clusters=tuple(
                    each if shown[k] else OutcomeInCluster(persons=None)
                    for k, each in enumerate(clusters)
                ),
                sites=by_site,
                comparisons=tuple(
                    _of_enough(
                        each, min_sites, crude=bool(shown[each.cluster] and shown[reference])
                    )
                    for each in comparisons
                ),
            )
        )
    outcomes = Outcomes(reference=reference, results=tuple(results))
    if not absent:
        return outcomes, ()
    names = ", ".join(map(repr, absent))
    return outcomes, (
        f"in every cluster, fewer sites than min_sites have values of the outcomes {names}",
    )


_CRUDE = (
    "odds_ratio",
    "risk_ratio",
    "risk_difference",
    "mean_difference",
    "standardised_difference",
)
_OVER_SITES = ("mantel_haenszel", "over_sites", "standardised_over_sites")


def _of_enough(found: ClusterComparison, min_sites: int, *, crude: bool) -> ClusterComparison:
    """Return a comparison without effects over fewer than ``min_sites`` sites.

    Of two sites' common effect each could compute the other's. Crude effects give back the counts
    of both clusters, so without these there are none.
    """
    effects = {name: getattr(found, name) for name in _OVER_SITES}
    few = [name for name, each in effects.items() if each and each.sites < min_sites]
    return found.model_copy(update=dict.fromkeys([*few, *(() if crude else _CRUDE)]))


_Compared = tuple[
    tuple[OutcomeInCluster, ...],
    dict[str, tuple[OutcomeInCluster, ...]],
    tuple[ClusterComparison, ...],
]


def _compare_events(
    sent: Mapping[str, OutcomeSums],
    j: int,
    reference: int,
    groups: Sequence[int],
    design: float,
) -> _Compared:
    events = {site: each.sums[:, j] for site, each in sent.items()}
    persons = {site: each.counts[:, j] for site, each in sent.items()}
    all_events, all_persons = sum(events.values()), sum(persons.values())

    def table(own: FloatArray, of: IntArray, k: int) -> Counts:
        return Counts(float(own[k]), float(of[k]), float(own[reference]), float(of[reference]))

    comparisons = []
    for k in groups:
        crude = table(np.asarray(all_events), np.asarray(all_persons), k)
        tables = {site: table(events[site], persons[site], k) for site in sent}
        effects = {site: sizes.log_odds_ratio(each, design) for site, each in tables.items()}
        found = sizes.mantel_haenszel(list(tables.values()), design)
        common = None
        if found is not None:
            common = CommonOddsRatio(
                sites=found.sites,
                odds_ratio=_required(found.odds_ratio),
                p_value=found.test.p_value,
                common_p_value=None if found.common_odds is None else found.common_odds.p_value,
            )
        comparisons.append(
            ClusterComparison(
                cluster=k,
                odds_ratio=_estimate(sizes.odds_ratio(crude, design)),
                risk_ratio=_estimate(sizes.risk_ratio(crude, design)),
                risk_difference=_estimate(sizes.risk_difference(crude, design)),
                mantel_haenszel=common,
                by_site=_by_site(
                    {site: sizes.odds_ratio(each, design) for site, each in tables.items()}
                ),
                over_sites=_over_sites(effects.values(), sizes.from_log),
            )
        )
    cells = {
        site: _event_row(events[site].tolist(), persons[site].tolist(), design) for site in sent
    }
    total = _event_row(np.asarray(all_events).tolist(), np.asarray(all_persons).tolist(), design)
    return total, cells, tuple(comparisons)


def _event_row(
    events: Sequence[float], persons: Sequence[int], design: float
) -> tuple[OutcomeInCluster, ...]:
    return tuple(
        OutcomeInCluster(
            persons=n, events=round(found), value=_estimate(sizes.proportion(found, n, design))
        )
        for found, n in zip(events, persons, strict=True)
    )


def _design_effect(
    sent: Mapping[str, OutcomeSums], j: int, column: Column, clusters: NDArray[np.bool_]
) -> float:
    """Return by how much values of persons of one group make variances larger; at least 1.

    ``clusters`` (K,) says which of them count.
    """
    spread = independent = 0.0
    for each in sent.values():
        counts, sums = each.counts[clusters, j], each.sums[clusters, j]
        spread += float(each.spread[clusters, j].sum())
        if column.kind == "binary":
            squares = sums * (1.0 - sums / np.maximum(counts, 1))
        else:
            squares = each.m2[clusters, j] + counts * each.within[j]
        independent += float(squares.sum())
    return max(spread / independent, 1.0) if independent > 0 else 1.0


def _compare_means(
    sent: Mapping[str, OutcomeSums],
    j: int,
    reference: int,
    groups: Sequence[int],
    design: float,
) -> _Compared:
    samples: dict[str, list[Sample]] = {}
    total = no_moments((len(groups) + 1,))
    for site, each in sent.items():
        counts = each.counts[:, j].astype(np.float64)
        means = each.sums[:, j] / np.maximum(counts, 1.0)
        own = Moments(counts, means, each.m2[:, j] + counts * each.within[j])
        samples[site] = _samples(own)
        total = merge_moments(total, own)
    crude = _samples(total)
    comparisons = []
    for k in groups:
        pairs = {site: (each[k], each[reference]) for site, each in samples.items()}
        both = crude[k], crude[reference]
        comparisons.append(
            ClusterComparison(
                cluster=k,
                mean_difference=_estimate(sizes.mean_difference(*both, design)),
                standardised_difference=_estimate(sizes.standardised_difference(*both, design)),
                by_site=_by_site(
                    {site: sizes.mean_difference(*two, design) for site, two in pairs.items()}
                ),
                over_sites=_over_sites([sizes.difference(*two, design) for two in pairs.values()]),
                standardised_over_sites=_over_sites(
                    [sizes.hedges_g(*two, design) for two in pairs.values()]
                ),
            )
        )
    cells = {site: _mean_row(each, design) for site, each in samples.items()}
    return _mean_row(crude, design), cells, tuple(comparisons)


def _samples(moments: Moments) -> list[Sample]:
    return [Sample(*map(float, each)) for each in zip(*moments, strict=True)]


def _mean_row(samples: Sequence[Sample], design: float) -> tuple[OutcomeInCluster, ...]:
    found = []
    for each in samples:
        several = each.persons > 1
        found.append(
            OutcomeInCluster(
                persons=int(each.persons),
                value=_estimate(sizes.mean(each, design)),
                deviation=math.sqrt(each.m2 / (each.persons - 1)) if several else None,
            )
        )
    return tuple(found)


def _by_site(found: Mapping[str, Interval | None]) -> dict[str, Estimate]:
    return {site: _required(each) for site, each in found.items() if each is not None}


def _over_sites(
    effects: Iterable[Effect | None],
    shown: Callable[[Interval], Interval] = lambda interval: interval,
) -> SiteEffects | None:
    """Combine the sites' effects; ``shown`` maps them to the scale of the report."""
    known = [each for each in effects if each is not None]
    found: Combined | None = sizes.combine(known)
    if found is None:
        return None
    return SiteEffects(
        sites=found.sites,
        fixed=_required(shown(found.fixed)),
        random=_required(shown(found.random)),
        q=found.q,
        q_p_value=found.p_value,
        i2=_required(found.i2),
        tau2=found.tau2,
    )


def _estimate(interval: Interval | None) -> Estimate | None:
    return None if interval is None else _required(interval)


def _required(interval: Interval) -> Estimate:
    if not all(map(math.isfinite, interval)):
        raise FloatingPointError
    return Estimate(value=interval.estimate, lower=interval.lower, upper=interval.upper)
