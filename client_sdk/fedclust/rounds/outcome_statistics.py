"""What the coordinator makes of the sites' tables of outcomes.

Every cluster is compared with the largest one. The numbers come from ``numeric.cell_statistics``.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedclust.numeric import cell_statistics as stats
from fedclust.numeric.array_types import FloatArray, IntArray
from fedclust.numeric.cell_statistics import Interval, Measure, Terms
from fedclust.schema.feature import Outcome
from fedclust.schema.outcomes import (
    Estimate,
    MeasureName,
    OutcomeComparison,
    OutcomeInCluster,
    OutcomeResult,
    Outcomes,
    SurvivalPoint,
)


class _Sent(NamedTuple):
    """The tables of one outcome, from the S sites that have it.

    ``cells`` are (S, K, J). ``persons`` (S, K) are those of the groups; with a value, where counts
    are exact. ``valid`` (J,) is 1 for each cell but "no value", ``noise`` the variance in each
    cell, 0 where counts are exact.
    """

    outcome: Outcome
    sites: tuple[str, ...]
    cells: FloatArray
    persons: FloatArray
    valid: FloatArray
    noise: float


def summarise(
    tables: Mapping[str, tuple[IntArray | None, ...]],
    outcomes: Sequence[Outcome],
    persons: Mapping[str, IntArray],
    *,
    exact: bool,
    min_sites: int = 1,
    silent: Collection[str] = (),
) -> Outcomes:
    """Compare the clusters.

    Parameters
    ----------
    tables : mapping of site to tuple of (K + 1, J) int64 or None
        For each outcome the persons by cluster and cell; None: the site does not have it. The last
        row is "no cluster". Any numbers up to 10**11 in size are taken.
    outcomes : sequence of Outcome
    persons : mapping of site to (K,) int64
        Persons by cluster, from the groups of the closing round. Over all these sites the largest
        cluster, and of equal ones the first, is the reference.
    exact : bool
        Whether the counts have no noise.
    min_sites : int
        An outcome that fewer sites have is withheld: its sum would show one site's counts to the
        others.
    silent : collection of str
        Sites that joined without outcomes, or without points for them.

    Returns
    -------
    Outcomes
        The same bits in any order of the sites.
    """
    sizes = np.sum([persons[site] for site in sorted(persons)], axis=0)
    reference = int(np.argmax(sizes))
    results, withheld = [], []
    # Sites may send any numbers. What is not finite in the end reads "cannot tell".
    with np.errstate(all="ignore"):
        for i, outcome in enumerate(outcomes):
            own = {site: sent for site in sorted(tables) if (sent := tables[site][i]) is not None}
            if len(own) < min_sites:
                withheld.append(outcome.name)
                continue
            noise = 0.0 if exact else float(outcome.variance)
            results.append(_result(outcome, own, persons, sizes, reference, noise))
    return Outcomes(
        n_clusters=len(sizes),
        reference=reference,
        results=tuple(results),
        silent=tuple(sorted(silent)),
        withheld=tuple(withheld),
    )


def _result(
    outcome: Outcome,
    own: Mapping[str, IntArray],
    persons: Mapping[str, IntArray],
    sizes: IntArray,
    reference: int,
    noise: float,
) -> OutcomeResult:
    shape = (len(own), len(sizes) + 1, len(outcome.cells))
    whole = np.array(list(own.values()), dtype=np.int64).reshape(shape)
    cells, valid = whole[:, :-1].astype(np.float64), np.append(np.ones(shape[2] - 1), 0.0)
    counted = cells @ valid
    if noise:
        counted = np.array([persons[site] for site in own], dtype=np.float64).reshape(counted.shape)
    sent = _Sent(outcome, tuple(own), cells, counted, valid, noise)
    return OutcomeResult(
        name=outcome.name,
        unit=outcome.unit,
        kind=outcome.kind,
        cells=outcome.cells,
        edges=outcome.edges,
        values=outcome.values,
        points=outcome.points,
        sigma=math.sqrt(noise),
        n_sites=len(own),
        tables=dict(own),
        total=whole.sum(axis=0),
        clusters=tuple(_cluster(sent, k) for k in range(len(sizes))),
        comparisons=tuple(_comparisons(sent, reference)),
    )


def _cluster(sent: _Sent, k: int) -> OutcomeInCluster:
    outcome, valid = sent.outcome, sent.valid
    cells, noise = sent.cells[:, k].sum(axis=0), sent.noise * len(sent.sites)
    persons, edges = float(cells @ valid), outcome.edges or ()
    if outcome.kind == "time":
        found = stats.survival(cells, stats.follow_up(edges), noise)
        points = zip((0.0, *edges), found.at_risk.tolist(), strict=True)
        return OutcomeInCluster(
            persons=persons,
            shares=(),
            survival=tuple(
                SurvivalPoint(time=time, at_risk=left, survival=_estimate(found.curve, b))
                for b, (time, left) in enumerate(points)
            ),
            restricted_mean=_estimate(found.restricted_mean),
        )
    median = mean = None
    if outcome.kind == "ordered":
        median = _estimate(stats.median(cells, np.asarray(edges), noise))
    if outcome.values is not None:
        mean = _estimate(stats.mean(cells, np.append(outcome.values, 0.0), valid, noise))
    return OutcomeInCluster(
        persons=persons,
        shares=tuple(_estimate(stats.share(cells, e, valid, noise)) for _, e in _levels(sent)),
        median=median if median and median.value is not None else None,
        mean=mean,
    )


def _levels(sent: _Sent) -> list[tuple[str, FloatArray]]:
    """Return each level whose share is shown, with the cells (J,) that are its event."""
    each = np.eye(len(sent.valid))
    if sent.outcome.kind == "binary":
        return [("", each[1])]
    return list(zip(sent.outcome.cells[:-1], each, strict=False))


def _comparisons(sent: _Sent, reference: int) -> Iterator[OutcomeComparison]:
    """Yield every measure of every cluster but the reference: by measure, then by cluster."""
    others = [k for k in range(sent.cells.shape[1]) if k != reference]
    found = [_compared(sent, k, reference) for k in others]
    for same_measure in zip(*found, strict=True):
        yield from same_measure


def _compared(sent: _Sent, k: int, reference: int) -> Iterator[OutcomeComparison]:
    x1, x0 = sent.cells[:, k], sent.cells[:, reference]
    persons = sent.persons[:, [k, reference]].T
    for name, level, measure, events in _measures(sent, (x1 + x0).sum(axis=0)):
        weight = stats.weights(persons, measure, sent.noise)
        terms = stats.estimating_function(x1, x0, measure, weight, sent.noise)
        # Without noise the odds ratio has the usual interval and tests, where these exist.
        table = None
        if name == "odds_ratio" and not sent.noise:
            columns = [events, sent.valid - events]
            table = np.concatenate([x @ np.transpose(columns) for x in (x1, x0)], axis=1)
        estimate, p, same = _over_sites(terms, measure, table)
        in_time = sent.outcome.kind == "time"
        if table is None and not stats.comparable(estimate, x1 + x0, sent.noise, in_time=in_time):
            same = math.nan
        by_site = {}
        for s in np.flatnonzero(stats.tells(terms, estimate.value / measure.unit)).tolist():
            one = Terms(*(each[s : s + 1] for each in terms))
            own = None if table is None else table[s : s + 1]
            by_site[sent.sites[s]] = _over_sites(one, measure, own)[0]
        yield OutcomeComparison(
            cluster=k,
            measure=name,
            level=level,
            estimate=_estimate(estimate),
            p_value=_number(p),
            homogeneity_p=_number(same),
            by_site={site: _estimate(each) for site, each in by_site.items()},
        )


def _measures(
    sent: _Sent, both: FloatArray
) -> Iterator[tuple[MeasureName, str, Measure, FloatArray]]:
    """Yield each measure with its level and the cells (J,) that are its event.

    ``both`` (J,) are the cells of both clusters, over all sites.
    """
    outcome, valid = sent.outcome, sent.valid
    if outcome.kind in ("binary", "categorical"):
        for level, events in _levels(sent):
            yield "odds_ratio", level, stats.odds_ratio(both, events, valid), events
        for level, events in _levels(sent):
            yield "risk_difference", level, stats.difference(both, events, valid), events
    elif outcome.kind == "ordered":
        yield "superiority", "", stats.superiority(both, valid), valid
        if outcome.values is not None:
            values = np.append(outcome.values, 0.0)
            yield "mean_difference", "", stats.difference(both, values, valid), valid
    else:
        times = stats.follow_up(outcome.edges or ())
        yield "rate_ratio", "", stats.rate_ratio(both, times), valid


def _over_sites(
    terms: Terms, measure: Measure, table: FloatArray | None
) -> tuple[Interval, float, float]:
    """Return the estimate, and the p-values of equal clusters and of the same value at all sites.

    ``table`` (S, 4) has the exact counts of an odds ratio.
    """
    found = stats.estimate(terms, measure)
    if table is None:
        p = stats.p_value(terms, measure.null)
        return found, float(p), float(stats.homogeneity(terms, found.value / measure.unit))
    exact, p_exact, same = stats.mantel_haenszel(table)
    return (found if np.isnan(exact.value) else exact), p_exact, same


def _estimate(found: Interval, place: int | tuple[()] = ()) -> Estimate:
    value, lower, upper = (_number(float(each[place])) for each in found)
    return Estimate(value=value, lower=lower, upper=upper)


def _number(found: float) -> float | None:
    return found if math.isfinite(found) else None
