"""The result of a session: one clustering, how good it is, how far its clusters can be trusted, and
how it was found.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Self

import numpy as np
from pydantic import Field

from fedclust.numeric.array_types import FloatArray
from fedclust.numeric.arrays import BoolMatrix, FloatMatrix, FloatVector, IntMatrix, IntVector
from fedclust.schema.encoding import Space
from fedclust.schema.model import Model, Tree
from fedclust.schema.outcomes import Outcomes


class Stability(Model):
    """How far models of resampled data agree with the clusters.

    Each of ``n_models`` models clusters a bootstrap sample: sites drawn with replacement, and
    persons drawn with replacement within them. See ``rounds.stability``.

    Attributes
    ----------
    n_models : int
    jaccard : (K,) float64
        For each cluster, the mean over the models of the largest Jaccard index with one of the
        model's clusters (Hennig, "Cluster-wise assessment of cluster stability", 2007).
    recovered, dissolved : (K,) float64
        The share of models in which that index is at least .75, and below .5.
    consensus : (K, K) float64
        The probability that a model puts two persons into one cluster, by their clusters: one of
        cluster k and one of cluster l.
    """

    n_models: int
    jaccard: FloatVector
    recovered: FloatVector
    dissolved: FloatVector
    consensus: FloatMatrix


class CloudComparison(Model):
    """How clear the clusters of one K are, compared with pieces of one cloud without clusters.

    See ``rounds.reference``.

    Attributes
    ----------
    n_draws : int
        Draws of the cloud; 0 where nothing was judged.
    p : float or None
        How often a cloud of this shape gives clusters as clear, rounded to two digits. None where
        it was not judged.
    gap, gap_error : float or None
        By how much the log of the inertia is lower than in the cloud, and its standard error.
    cluster_p : (K,) float64 or None
        The same for how far each cluster lies from its nearest neighbour. None where ``p`` is
        above .05, and where the session's clusters are not those that the coordinator finds.
    not_judged : str or None
        A sentence: why there is no ``p``, or no ``cluster_p`` though ``p`` is at most .05.
    """

    n_draws: int
    p: float | None = None
    gap: float | None = None
    gap_error: float | None = None
    cluster_p: FloatVector | None = None
    not_judged: str | None = None


class SiteDifferences(Model):
    """How sites differ from each other in columns and clusters.

    Attributes
    ----------
    columns : dict of site to tuple of str, or None
        Columns that a site seems to code otherwise than the others, of the sites that have any; see
        ``rounds.column_differences``. Each site sees its own alone. None where columns were not
        compared: it takes at least ``min_sites`` other sites, and at least three.
    cramers_v : float or None
        How well the site predicts the cluster of a group, from 0 to 1, with Bergsma's correction of
        bias. None where groups are too few to tell.
    """

    columns: dict[str, tuple[str, ...]] | None = None
    cramers_v: float | None = None

    def of_sites(self, names: frozenset[str]) -> SiteDifferences:
        """Return what may be shown to someone who may see these sites alone."""
        if self.columns is None:
            return self
        own = {site: each for site, each in self.columns.items() if site in names}
        return self.model_copy(update={"columns": own})


class Quality(Model):
    """How good the clustering is, over the sites' points.

    Attributes
    ----------
    inertia : float
        Over the points, weighted by persons.
    simplified_silhouette, davies_bouldin : float or None
    n_rows : int
        Persons.
    n_left_out : int
        Persons in groups that ``missing: drop`` leaves out, at the sites that sent numbers.
    """

    inertia: float
    simplified_silhouette: float | None
    davies_bouldin: float | None
    n_rows: int
    n_left_out: int = 0


class HistoryEntry(Model):
    """One aggregated round as the analyst sees it: figures over at least ``min_sites`` sites.

    ``lower_bound`` and ``upper_bound`` are what this round by itself says of the least inertia that
    any centroids have; None where it says nothing.
    """

    round: int
    phase: str
    n_sites: int
    inertia: float | None = None
    centroid_shift: float | None = None
    lower_bound: float | None = None
    upper_bound: float | None = None

    @classmethod
    def of(cls, number: int, phase: str, n_sites: int, metrics: Mapping[str, float]) -> Self:
        """Return the entry of a round with these metrics."""
        names = ("inertia", "centroid_shift", "lower_bound", "upper_bound")
        figures = {name: metrics.get(name) for name in names}
        return cls(round=number, phase=phase, n_sites=n_sites, **figures)


class Bounds(Model):
    """Between what the least inertia lies that any K centroids within the declared bounds have.

    Attributes
    ----------
    lower, upper : float or None
        In the scaled space, over all points of all sites. ``upper`` is what the result's centroids
        cost at most. None where no round gave one.
    certified : bool
        Whether ``lower`` is proven; see :attr:`statement`.
    statement : str
        What the bounds rest on, in a sentence.
    n_clusters : int
        The K that they hold for.
    iterations : int
        Dual rounds that were closed.
    limited : int
        In how many of these a site's search ended at its node limit: its bound is then proven, but
        not the best.
    splits : int
        How often the centroids' region was cut in two to close the gap.
    """

    lower: float | None
    upper: float | None
    certified: bool
    statement: str
    n_clusters: int
    iterations: int
    limited: int
    splits: int

    @property
    def gap(self) -> float | None:
        """How far apart they are, as a share of ``upper``; None without either."""
        if self.lower is None or self.upper is None:
            return None
        return relative_gap(self.lower, self.upper)


def relative_gap(lower: float, upper: float) -> float:
    """Return (upper - lower) / upper, 0 where they meet; Yfantis et al., eq. 35."""
    if upper <= lower:
        return 0.0
    return (upper - lower) / upper if upper > 0 else float("inf")


class Likelihood(Model):
    """How well the classes of a mixture fit, over the persons of the last round.

    Attributes
    ----------
    log_likelihood : float
        In own units, after transforms. Of groups of persons: of their means and the variance
        within them, which is a lower bound of the persons' own.
    n_parameters : int
        Free parameters.
    n_rows : int
        Persons.
    bic : float
        ``n_parameters`` x log(``n_rows``) - 2 x ``log_likelihood``: the lower the better.
    icl : float
        ``bic`` plus twice the entropy of the persons' probabilities.
    relative_entropy : float or None
        1 where it is certain which class each person belongs to, 0 where all are as probable: 1 -
        entropy / (``n_rows`` x log K). None with one class.
    """

    log_likelihood: float
    n_parameters: int
    n_rows: int
    bic: float
    icl: float
    relative_entropy: float | None

    @property
    def log_likelihood_per_person(self) -> float:
        """``log_likelihood`` / ``n_rows``."""
        return self.log_likelihood / self.n_rows

    @property
    def entropy_per_person(self) -> float:
        """Mean entropy of a person's probabilities, from 0 to log K."""
        return max(self.icl - self.bic, 0.0) / (2.0 * self.n_rows)


class Dendrogram(Model):
    """The top of a tree of clusters: its last merges, down to T leaves.

    Attributes
    ----------
    merges : (T - 1, 2) int64
        The two nodes of each merge, as in scipy's linkage: leaves are 0 to T - 1, and merge i makes
        node T + i.
    heights : (T - 1,) float64
        Ascending, in the scaled space: the root of twice the inertia that the merge adds.
    sizes : (T,) int64
        Persons behind each leaf.
    clusters : (T,) int64
        The cluster of each leaf.
    n_cells : int
        Cells of the whole tree.
    """

    merges: IntMatrix
    heights: FloatVector
    sizes: IntVector
    clusters: IntVector
    n_cells: int

    @property
    def linkage(self) -> FloatArray:
        """The merges (T - 1, 4) in scipy's form: two nodes, the height, and leaves below."""
        n_leaves = [1] * len(self.sizes)
        for first, second in self.merges.tolist():
            n_leaves.append(n_leaves[first] + n_leaves[second])
        return np.column_stack([self.merges, self.heights, n_leaves[len(self.sizes) :]])


class ClusterProfile(Model):
    """What the persons of each cluster look like, over all sites; see ``rounds.evaluation``.

    In the columns' own units, transforms not undone. Values that were imputed do not count.

    Attributes
    ----------
    known : (K, d) bool
        False in empty clusters, and for columns that no site with persons in the cluster has.
    means : (K, d) float64
        0 where not known; the share of those with it where a column is binary.
    estimated_deviations : (K, d) float64
        Standard deviations, ddof 0: 0 where not known. Exact with ``protection: none``; else
        estimates from groups with two digits, too rough to print (docs/results/table_one.md).
    overall_means, estimated_overall_deviations : (d,) float64
        Over the persons of all clusters.
    typical : tuple of str
        Columns of which half of a site's records or more hold one value. A mean of such records is
        a typical value, or a share of groups, and not the mean of the persons.
    uncertain : (K, d) bool or None
        Where the mean of a number may be more than .15 standard deviations of all persons from that
        of the cluster's persons; see ``rounds.evaluation``. None with ``protection: none``.
    few : (K, d) bool or None
        Where so few of a cluster's persons have a record that the rows may differ from all persons
        in the other direction. None with ``protection: none``.
    all_equal : dict of column to (int, int)
        At how many sites all records hold one value of the column, of how many that have it. Not
        the columns where it is none.
    """

    known: BoolMatrix
    means: FloatMatrix
    estimated_deviations: FloatMatrix
    overall_means: FloatVector
    estimated_overall_deviations: FloatVector
    typical: tuple[str, ...] = ()
    uncertain: BoolMatrix | None = None
    few: BoolMatrix | None = None
    all_equal: dict[str, tuple[int, int]] = Field(default_factory=dict)


class SweepEntry(Model):
    """One number of clusters of a sweep, with the measures that are compared.

    Attributes
    ----------
    n_clusters : int
        K as it was asked for.
    inertia, simplified_silhouette, davies_bouldin : float or None
        As in :class:`Quality`; None where they are not known.
    n_rows : int or None
        The persons that these are over.
    start_agreement : float or None
        How far different random starts agree; see ``rounds.model_selection``.
    result : Result
        The clustering; its own ``sweep`` is None.
    """

    n_clusters: int
    inertia: float | None = None
    simplified_silhouette: float | None = None
    davies_bouldin: float | None = None
    n_rows: int | None = None
    start_agreement: float | None = None
    result: Result

    @classmethod
    def of(cls, n_clusters: int, result: Result, start_agreement: float | None) -> Self:
        """Return the entry of a clustering for this K, with the measures that it has."""
        names = ("inertia", "simplified_silhouette", "davies_bouldin", "n_rows")
        quality = {name: getattr(result.quality, name, None) for name in names}
        result = result.model_copy(update={"n_clusters": n_clusters})
        return cls(n_clusters=n_clusters, start_agreement=start_agreement, result=result, **quality)


class FinalModel(Model):
    """What labels rows of a result, and nothing else: :class:`Result` says what its fields are."""

    centroids: FloatMatrix
    centroids_original: FloatMatrix
    columns: tuple[str, ...] = ()
    mask: BoolMatrix | None = None
    prototypes: FloatMatrix | None = None
    prototype_labels: tuple[int, ...] | None = None
    center: FloatVector
    scale: FloatVector
    impute: FloatVector | None = None
    limit: FloatVector | None = None
    dissimilarity: Literal["euclidean", "gower", "k-prototypes"] = "euclidean"
    extra: dict[str, Tree] = Field(default_factory=dict)
    n_clusters: int | None = None
    soft: dict[str, FloatMatrix] | None = None


class Result(FinalModel):
    """One clustering that every site can apply to its own rows.

    Attributes
    ----------
    centroids : (K, d) float64
        Scaled space, rows in lexicographic order.
    centroids_original : (K, d) float64
        The same in the units that were declared, transforms undone: geometric means of what was
        taken logarithms of. Of a level the share of records that have it.
    columns : tuple of str, length d
        What the columns of the centroids are: a feature, or ``feature=level``.
    mask : (K, d) bool or None
        With ``missing: mask``: False where a feature of a cluster is unknown, for no site that
        has the feature has rows in it; both centroids are 0 there.
    prototypes : (M, d) float64 or None
        Scaled. Of a method whose centroids do not separate clusters: a row belongs to the cluster
        of the nearest of these. Sorted by value.
    prototype_labels : tuple of int, length M
        The cluster of each prototype.
    center, scale : (d,) float64
        The scaled space; ``impute`` (d,), in own units, where missing values are imputed.
    limit : (d,) float64 or None
        How far from 0 scaled values count at most.
    dissimilarity : str
        The policy's. With ``k-prototypes`` and ``gower`` a centroid holds 1 for the commonest level
        of a categorical feature and 0 for the others; with ``gower`` medians of numbers.
    sizes : tuple of int, length K, or None
        Persons in each cluster; None if neither the evaluation nor the method counts them.
    site_sizes : dict of site to tuple
        The same by site. Nobody gets all of it: each site sees its own.
    mapping : dict of site to tuple of int
        Local cluster to global cluster, where the method has local clusters; -1 for a local
        cluster that was not sent. Each site sees its own.
    profile : ClusterProfile or None
        Means and spreads of the persons in each cluster; None without evaluation.
    n_rounds : int
        Rounds of the method itself, as ``max_rounds`` counts them: without preparation and
        evaluation, which ``history`` shows too.
    extra : dict
        What the method's ``label`` needs beyond centroids.
    n_clusters : int or None
        In a sweep, the K of this clustering as it was asked for. Elsewhere None.
    sweep : tuple of SweepEntry or None
        Of a sweep: every K that came to a clustering, ascending. All else here is that of
        ``n_clusters``: the recommended K, or if no single one is, the one of the outcomes.
    choice : str or None
        Of a sweep: what the best K was chosen by; see ``rounds.model_selection``. With
        ``one-cloud`` no K is recommended.
    tied : tuple of int
        Of a sweep: the K that are about as good a choice, the best one first.
    recommendation : str or None
        Of a sweep: why a K is recommended, or none, and why that of this result is shown.
    bounds : Bounds or None
        Of a method that proves how good its clustering is.
    outcomes : Outcomes or None
        How outcomes differ between the clusters; None in a session without outcomes.
    stability : Stability or None
        With the option ``stability``: how far models of resampled data agree with the clusters.
    site_differences : SiteDifferences or None
        Where the sites sent cells.
    one_cloud : CloudComparison or None
        With several K, or with the options ``stability`` or ``evidence``: how clear the clusters
        are, compared with one cloud without clusters.
    soft : dict of matrices, or None
        Of a method with soft clusters: what its ``probabilities`` needs beyond the centroids, in
        their order.
    likelihood : Likelihood or None
        Of a method that fits a mixture.
    dendrogram : Dendrogram or None
        Of a method that builds a tree.
    """

    sizes: tuple[int, ...] | None = None
    site_sizes: dict[str, tuple[int, ...]] = Field(default_factory=dict)
    mapping: dict[str, tuple[int, ...]] = Field(default_factory=dict)
    quality: Quality | None = None
    profile: ClusterProfile | None = None
    history: tuple[HistoryEntry, ...] = ()
    n_rounds: int = 0
    stopped_because: str = ""
    warnings: tuple[str, ...] = ()
    sweep: tuple[SweepEntry, ...] | None = None
    choice: Literal["apart", "step", "one-cloud", "silhouette", "bic", "starts"] | None = None
    tied: tuple[int, ...] = ()
    recommendation: str | None = None
    bounds: Bounds | None = None
    stability: Stability | None = None
    site_differences: SiteDifferences | None = None
    one_cloud: CloudComparison | None = None
    outcomes: Outcomes | None = None
    likelihood: Likelihood | None = None
    dendrogram: Dendrogram | None = None

    @property
    def space(self) -> Space:
        """The map from own units to the scaled space."""
        return Space(**{name: getattr(self, name) for name in Space.model_fields})

    @property
    def cloud_p(self) -> float | None:
        """How often one cloud gives clusters as clear; None where they were not compared."""
        return None if self.one_cloud is None else self.one_cloud.p

    def at(self, n_clusters: int) -> Result:
        """Return the clustering of one K of a sweep.

        Raises
        ------
        ValueError
            There is none; names every K that there is.
        """
        if self.sweep is None:
            raise ValueError("this session compared no numbers of clusters: it has one result")
        for entry in self.sweep:
            if entry.n_clusters == n_clusters:
                return entry.result
        there = ", ".join(str(entry.n_clusters) for entry in self.sweep)
        raise ValueError(f"choose K from those of this session's results: {there}")


SweepEntry.model_rebuild()
