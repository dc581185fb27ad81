"""How outcomes differ between the clusters: tables of counts by site, and estimates from them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, TypeAlias

from pydantic import FiniteFloat

from fedclust.numeric.arrays import IntMatrix
from fedclust.schema.model import Model

MeasureName: TypeAlias = Literal[
    "odds_ratio", "risk_difference", "mean_difference", "superiority", "rate_ratio"
]


class Estimate(Model):
    """An estimate with its 95 % interval. All None: the table cannot tell.

    Attributes
    ----------
    value : float or None
        None where it cannot be computed.
    lower, upper : float or None
        None where the interval is open on this side: "at most", "at least".
    """

    value: FiniteFloat | None = None
    lower: FiniteFloat | None = None
    upper: FiniteFloat | None = None


class SurvivalPoint(Model):
    """A point of a survival curve.

    Attributes
    ----------
    time : float
        In the outcome's unit.
    at_risk : float
        Persons followed beyond this time. With noise it may be below 0.
    survival : Estimate
        The share without the event up to this time (actuarial).
    """

    time: FiniteFloat
    at_risk: FiniteFloat
    survival: Estimate


class OutcomeInCluster(Model):
    """An outcome in one cluster, over all sites.

    Attributes
    ----------
    persons : float
        Those with a value. With noise it may be below 0.
    shares : tuple of Estimate
        Of each cell but "no value"; of a binary outcome the share of "yes" alone; none for a time.
    median : Estimate or None
        Of an ordered outcome, linear within its cell. None if the first or the last cell, which are
        open, holds it.
    mean : Estimate or None
        Of an ordered outcome with values.
    survival : tuple of SurvivalPoint
        Of a time: at 0 and at each edge.
    restricted_mean : Estimate or None
        Of a time: the mean time without the event up to the last edge, in the outcome's unit.
    """

    persons: FiniteFloat
    shares: tuple[Estimate, ...]
    median: Estimate | None = None
    mean: Estimate | None = None
    survival: tuple[SurvivalPoint, ...] = ()
    restricted_mean: Estimate | None = None


class OutcomeComparison(Model):
    """One measure of one cluster against the reference, stratified by site.

    Attributes
    ----------
    cluster : int
    measure : str
        ``odds_ratio``, ``rate_ratio`` (1 for equal clusters), ``risk_difference``,
        ``mean_difference`` (0), ``superiority``: the probability that a person of the cluster is in
        a higher cell than one of the reference, plus half of that of the same cell (1/2).
    level : str
        Of a categorical outcome: the level that is compared with all others.
    estimate : Estimate
    p_value : float or None
        Of the test that the clusters are equal; None where the table cannot tell.
    homogeneity_p : float or None
        Of the test that the measure is the same at all sites; None where the counts do not say.
    by_site : dict of site to Estimate
        Of sites whose noise varies less than their sample does.
    """

    cluster: int
    measure: MeasureName
    level: str = ""
    estimate: Estimate
    p_value: FiniteFloat | None = None
    homogeneity_p: FiniteFloat | None = None
    by_site: dict[str, Estimate]


class OutcomeResult(Model):
    """One outcome by cluster.

    Attributes
    ----------
    name, unit, kind, edges, values, points
        As the session's definition has them.
    cells : tuple of str, length J
        Names of the cells; the last is "no value".
    sigma : float
        Standard deviation of the noise in each cell at each site; 0: exact counts.
    n_sites : int
        How many sites gave it.
    tables : dict of site to (K + 1, J) int64
        Persons in each cell, with noise. The last row is "no cluster".
    total : (K + 1, J) int64
        The sum of the tables.
    clusters : tuple of OutcomeInCluster, length K
    comparisons : tuple of OutcomeComparison
        Every cluster but the reference, by measure.
    """

    name: str
    unit: str
    kind: Literal["binary", "categorical", "ordered", "time"]
    cells: tuple[str, ...]
    edges: tuple[FiniteFloat, ...] | None = None
    values: tuple[FiniteFloat, ...] | None = None
    points: int
    sigma: FiniteFloat
    n_sites: int
    tables: dict[str, IntMatrix]
    total: IntMatrix
    clusters: tuple[OutcomeInCluster, ...]
    comparisons: tuple[OutcomeComparison, ...]

    def of_sites(self, names: Collection[str]) -> OutcomeResult:
        """Return this with the tables and the effects of these sites alone."""
        tables = {site: each for site, each in self.tables.items() if site in names}
        comparisons = []
        for each in self.comparisons:
            own = {site: effect for site, effect in each.by_site.items() if site in names}
            comparisons.append(each.model_copy(update={"by_site": own}))
        return self.model_copy(update={"tables": tables, "comparisons": tuple(comparisons)})


class Outcomes(Model):
    """The outcomes of a session, by cluster. P-values are not adjusted for their number.

    Attributes
    ----------
    n_clusters : int
        The K that they were asked for.
    reference : int
        The cluster that the others are compared with: the largest one.
    results : tuple of OutcomeResult
        In the order of the definition.
    silent : tuple of str
        Sites that joined without a column of any outcome, or without enough points.
    withheld : tuple of str
        Outcomes that fewer sites than ``min_sites`` gave: their sum would show one site's counts.
    """

    n_clusters: int
    reference: int
    results: tuple[OutcomeResult, ...]
    silent: tuple[str, ...] = ()
    withheld: tuple[str, ...] = ()

    def of_sites(self, names: Collection[str]) -> Outcomes:
        """Return what these sites may see: their own tables, the totals and the estimates."""
        return self.model_copy(
            update={
                "results": tuple(each.of_sites(names) for each in self.results),
                "silent": tuple(site for site in self.silent if site in names),
            }
        )
