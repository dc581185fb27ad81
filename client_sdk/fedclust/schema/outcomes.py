"""How outcomes differ between the clusters: at each site, crude, and over the sites."""

from __future__ import annotations

from typing import Literal

from fedclust.schema.model import Model

__all__ = [
    "ClusterComparison",
    "CommonOddsRatio",
    "Estimate",
    "OutcomeInCluster",
    "OutcomeResult",
    "Outcomes",
    "SiteEffects",
]


class Estimate(Model):
    """An estimate with the limits of its 95 % interval."""

    value: float
    lower: float
    upper: float


class OutcomeInCluster(Model):
    """An outcome in one cluster; over all sites, nothing where few sites have the cluster.

    Attributes
    ----------
    persons : int or None
        Those with a value. None, as all else, where it is withheld (``Outcomes``).
    events : int or None
        Of a yes/no outcome: persons who have it.
    value : Estimate or None
        The share of events with Wilson's interval, or the mean with Student's. None where persons
        are too few.
    deviation : float or None
        Of a number: the standard deviation (ddof 1), completed by the variance within groups.
    """

    persons: int | None
    events: int | None = None
    value: Estimate | None = None
    deviation: float | None = None


class SiteEffects(Model):
    """One effect at each site, combined by inverse variance.

    Attributes
    ----------
    sites : int
        Sites that took part: those with persons in both clusters and, of a yes/no outcome, with
        events and non-events.
    fixed : Estimate
        The same effect at every site.
    random : Estimate
        Effects that differ between sites (DerSimonian and Laird).
    q, q_p_value : float
        Cochran's Q, and the p-value of the test that the effect is the same at all sites.
    i2 : Estimate
        The share of the variation that is between sites, with the interval of Higgins and
        Thompson; from 0 to 1 below three sites.
    tau2 : float
        The variance of the effect between sites; of the logarithm for an odds ratio.
    """

    sites: int
    fixed: Estimate
    random: Estimate
    q: float
    q_p_value: float
    i2: Estimate
    tau2: float


class CommonOddsRatio(Model):
    """The odds ratio over sites by Mantel and Haenszel.

    Attributes
    ----------
    sites : int
    odds_ratio : Estimate
        With the interval of Robins, Breslow and Greenland.
    p_value : float
        Of the test that it is 1 (Cochran, Mantel, Haenszel).
    common_p_value : float or None
        Of the test that it is the same at all sites (Breslow, Day, Tarone); None for one site.
    """

    sites: int
    odds_ratio: Estimate
    p_value: float
    common_p_value: float | None = None


class ClusterComparison(Model):
    """A cluster compared with the reference cluster; None where the data do not determine it.

    Attributes
    ----------
    cluster : int
    odds_ratio, risk_ratio, risk_difference : Estimate or None
        Of a yes/no outcome, crude: as if all persons were of one site. Like all crude effects, None
        where the numbers of either cluster are withheld.
    mantel_haenszel : CommonOddsRatio or None
        The odds ratio, stratified by site. Like the other effects over sites, None where fewer than
        ``min_sites`` sites determine it.
    mean_difference, standardised_difference : Estimate or None
        Of a number, crude; the second is Hedges' g.
    by_site : dict of site to Estimate
        The odds ratio, or the difference of means, at each site that determines it.
    over_sites : SiteEffects or None
        These effects combined.
    standardised_over_sites : SiteEffects or None
        Hedges' g of every site combined.
    """

    cluster: int
    odds_ratio: Estimate | None = None
    risk_ratio: Estimate | None = None
    risk_difference: Estimate | None = None
    mantel_haenszel: CommonOddsRatio | None = None
    mean_difference: Estimate | None = None
    standardised_difference: Estimate | None = None
    by_site: dict[str, Estimate]
    over_sites: SiteEffects | None = None
    standardised_over_sites: SiteEffects | None = None


class OutcomeResult(Model):
    """One outcome, or one level of a categorical outcome.

    Attributes
    ----------
    name : str
        The outcome, or ``outcome=level``.
    unit : str
    kind : {"numeric", "binary"}
    design_effect : float
        How much larger variances are than those of as many independent persons, because groups of
        similar persons were counted. All intervals and tests allow for it. 1 for rows. It rests on
        the clusters that ``min_sites`` sites have.
    clusters : tuple of OutcomeInCluster, length K
        Over all sites.
    sites : dict of site to tuple of OutcomeInCluster
        The same by site; analysts read all of it, a site its own.
    comparisons : tuple of ClusterComparison
        Every cluster but the reference.
    """

    name: str
    unit: str
    kind: Literal["numeric", "binary"]
    design_effect: float
    clusters: tuple[OutcomeInCluster, ...]
    sites: dict[str, tuple[OutcomeInCluster, ...]]
    comparisons: tuple[ClusterComparison, ...]

    def of_sites(self, names: frozenset[str]) -> OutcomeResult:
        """Return this with the numbers of these sites alone."""
        sites = {site: row for site, row in self.sites.items() if site in names}
        comparisons = tuple(
            each.model_copy(
                update={"by_site": {s: e for s, e in each.by_site.items() if s in names}}
            )
            for each in self.comparisons
        )
        return self.model_copy(update={"sites": sites, "comparisons": comparisons})


class Outcomes(Model):
    """The outcomes of a session, by cluster. P-values are not adjusted for their number.

    Numbers of a cluster over all sites are withheld where fewer than ``min_sites`` sites have
    persons with a value in it: a site could compute those of another. Where several K are compared,
    those of all clusters of that K are withheld: the clusters of another K may add up to the same
    total.

    Attributes
    ----------
    reference : int
        The cluster that the others are compared with: the largest one.
    results : tuple of OutcomeResult
        In the order of the definition, without outcomes that too few sites have.
    """

    reference: int
    results: tuple[OutcomeResult, ...]

    @property
    def withheld(self) -> bool:
        """Whether numbers of a cluster over all sites are withheld."""
        return any(own.persons is None for each in self.results for own in each.clusters)

    def of_sites(self, names: frozenset[str]) -> Outcomes:
        """Return this with the numbers of these sites alone."""
        results = tuple(each.of_sites(names) for each in self.results)
        return self.model_copy(update={"results": results})
