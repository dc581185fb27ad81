"""The content of a report: numbers in the features' own units."""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Self

import numpy as np

from fedclust.result.dissimilarity import dissimilarity_text
from fedclust.result.wording import isolated, share, without_noise, without_rest
from fedclust.schema.encoding import Column, columns_of
from fedclust.schema.feature import clustered
from fedclust.schema.result import Result
from fedclust.wire import codec
from fedclust.wire.errors import UsageError
from fedclust.wire.models import Definition, Provenance, ResultDocument

#: Least standardised difference that sets a cluster apart (Cohen's medium effect).
NOTABLE = 0.5
_MOST_NOTED = 5


@dataclass(frozen=True)
class ClusterColumn:
    """One column of one cluster.

    Attributes
    ----------
    column : Column
    measure : str
        What ``mean`` is: ``mean``, ``geometric mean`` (under ``log``) or ``share`` of the persons;
        ``typical value`` or ``share of groups`` where half of a site's records or more hold one
        value, or where the mean of the persons may be another one (``ClusterProfile.uncertain``);
        ``centroid`` where the persons are not described.
    mean : float or None
        In own units; None: unknown.
    deviation : float or None
        Standard deviation (ddof 0) of a numeric column without a transform; None where values are
        those of groups.
    difference : float or None
        The mean minus the mean of all persons, in standard deviations of all persons; transforms
        not undone. Where values are those of groups with one digit, and None where few persons
        have a record.
    """

    column: Column
    measure: str
    mean: float | None
    deviation: float | None = None
    difference: float | None = None


@dataclass(frozen=True)
class Cluster:
    """One cluster: its number as in the labels, its rows, and its columns."""

    number: int
    size: int | None
    share: float | None
    entries: tuple[ClusterColumn, ...]

    @property
    def sets_apart(self) -> tuple[ClusterColumn, ...]:
        """The columns that differ most from the mean of all, largest first."""
        notable = [e for e in self.entries if abs(e.difference or 0.0) >= NOTABLE]
        notable.sort(key=lambda entry: -abs(entry.difference or 0.0))
        return tuple(notable[:_MOST_NOTED])

    @property
    def nothing_apart(self) -> str:
        """What to say where no column sets the cluster apart."""
        compared = any(entry.difference is not None for entry in self.entries)
        return "close to the average of all persons" if compared else "cannot tell what differs"


@dataclass(frozen=True)
class Facts:
    """What a result says to its reader, in the features' own units.

    Reports read only this. :class:`fedclust.SessionResult` adds what labels rows and writes files.

    Parameters
    ----------
    result : Result
        As far as its reader may see it.
    definition : Definition
        The session's.
    provenance : Provenance, optional
        None for a simulation.
    completed_at : datetime, optional
    names : mapping of str to tuple of str
        By K, the names that somebody gave its clusters.
    """

    result: Result
    definition: Definition
    provenance: Provenance | None = None
    completed_at: datetime | None = None
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, document: ResultDocument, definition: Definition) -> Self:
        """Return what a result document says.

        Parameters
        ----------
        document : ResultDocument
        definition : Definition

        Raises
        ------
        ValidationError
            This version cannot read the document.
        """
        return cls(
            document.clustering(),
            definition,
            document.provenance,
            document.completed_at,
            document.cluster_names,
        )

    @property
    def document(self) -> ResultDocument:
        """The result as it travels; UsageError for a simulation, which has no provenance."""
        if self.provenance is None or self.completed_at is None:
            raise UsageError("a simulation's result has no provenance to publish")
        return ResultDocument(
            session=self.definition.name,
            completed_at=self.completed_at,
            features=self.definition.features,
            result=codec.to_tree(self.result),
            provenance=self.provenance,
            cluster_names=dict(self.names),
        )

    @property
    def given_names(self) -> tuple[str, ...]:
        """What somebody called these clusters; "" for one without a name."""
        count = len(self.result.centroids)
        return self.names.get(str(count)) or ("",) * count

    @property
    def named(self) -> bool:
        """Whether somebody gave the clusters names."""
        return any(self.given_names)

    @property
    def cluster_names(self) -> tuple[str, ...]:
        """What somebody called these clusters; else "cluster 0" and so on."""
        return tuple(name or f"cluster {k}" for k, name in enumerate(self.given_names))

    @property
    def labels(self) -> tuple[str, ...]:
        """The number of each cluster with the name that somebody gave it: "0 (Elderly)"."""
        names = enumerate(self.given_names)
        return tuple(f"{k} ({isolated(name)})" if name else str(k) for k, name in names)

    @functools.cached_property
    def columns(self) -> tuple[Column, ...]:
        """The columns of the centroids."""
        return columns_of(clustered(self.definition.features))

    @property
    def of_groups(self) -> bool:
        """Whether values are those of groups of persons, whose spread is not that of persons.

        The standard deviation of all persons was then .6 to 1.5 times that of the rows, and no rule
        says where (docs/results/table_one.md).
        """
        return self.definition.policy.protection != "none"

    @property
    def measured_on(self) -> str:
        """What measures of quality are of."""
        if not self.of_groups:
            return "the persons"
        return (
            "the groups' records; of persons the silhouette is lower, and inertia and "
            "Davies-Bouldin index are higher"
        )

    def few(self, k: int, j: int) -> bool:
        """Return whether too few persons have a record of a column to compare a cluster by it.

        Parameters
        ----------
        k : int
            The cluster.
        j : int
            The column, in the order of the definition's columns.
        """
        profile = self.result.profile
        return profile is not None and profile.few is not None and bool(profile.few[k, j])

    @property
    def dissimilarity(self) -> str:
        """How far a person is from a cluster, in sentences."""
        definition = self.definition
        return dissimilarity_text(definition.policy, definition.features, self.result.scale)

    @functools.cached_property
    def clusters(self) -> tuple[Cluster, ...]:
        """The clusters, in the order of their numbers."""
        sizes = self.result.sizes or (None,) * len(self.result.centroids)
        persons = sum(size for size in sizes if size)
        return tuple(
            Cluster(
                number=k,
                size=size,
                share=None if size is None or not persons else size / persons,
                entries=_cluster_columns(self, k),
            )
            for k, size in enumerate(sizes)
        )

    @functools.cached_property
    def centroids(self) -> tuple[tuple[ClusterColumn, ...], ...]:
        """The centroids in own units, transforms undone: by cluster, then by column.

        They differ from the means in ``clusters`` where a method does not end at means.
        """
        clusters = range(len(self.result.centroids))
        return tuple(centroid_columns(self.result, self.columns, k) for k in clusters)

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites that answered; of a simulation all."""
        return self.definition.sites if self.provenance is None else self.provenance.sites

    @property
    def own_site(self) -> str | None:
        """The site that reads this: of several sites, only its sizes are visible."""
        visible = tuple(self.result.site_sizes)
        alone = self.provenance is not None and len(self.definition.sites) > 1
        return visible[0] if alone and len(visible) == 1 else None

    @functools.cached_property
    def mix(self) -> tuple[tuple[str, tuple[float, ...]], ...]:
        """The share of each cluster among all persons, then among each visible site's persons.

        Without those who have no persons; empty where no sizes are known.
        """
        sizes = self.result.site_sizes
        counts = {"all sites": self.result.sizes or ()}
        counts |= {self.site_name(site): sizes[site] for site in sorted(sizes)}
        return tuple(
            (name, tuple(size / sum(each) for size in each))
            for name, each in counts.items()
            if sum(each) > 0
        )

    def site_name(self, site: str) -> str:
        """Return what a reader calls a site.

        Parameters
        ----------
        site : str
        """
        return "your site" if site == self.own_site else site


def _cluster_columns(facts: Facts, k: int) -> tuple[ClusterColumn, ...]:
    result, columns, profile = facts.result, facts.columns, facts.result.profile
    if profile is None:
        found = list(centroid_columns(result, columns, k))
        if result.dissimilarity == "euclidean":
            return tuple(found)
        # Such a centroid holds the mode, which is no share of persons.
        return tuple(
            ClusterColumn(entry.column, entry.measure, None)
            if entry.column.kind == "binary"
            else entry
            for entry in found
        )
    found = []
    for j, column in enumerate(columns):
        uncertain = profile.uncertain is not None and bool(profile.uncertain[k, j])
        measure = _measure(column, typical=uncertain or column.name in profile.typical)
        if not profile.known[k, j]:
            found.append(ClusterColumn(column, measure, None))
            continue
        wide = float(profile.estimated_overall_deviations[j])
        mean = without_rest(float(profile.means[k, j]), wide)
        # A spread that is only rounding gives no difference.
        apart = mean - float(profile.overall_means[j])
        difference = without_noise(apart / wide) if wide > 1e-12 * max(1.0, abs(mean)) else None
        if facts.of_groups and difference is not None:
            # Words and orders rest on this digit: a finer difference would show in them.
            difference = None if facts.few(k, j) else round(difference, 1) + 0.0
        number = column.kind == "numeric"
        value = _undone(mean, column) if number else as_mean(mean, column)
        exact = number and column.transform == "none" and not facts.of_groups
        spread = float(profile.estimated_deviations[k, j]) if exact else None
        found.append(ClusterColumn(column, measure, value, spread, difference))
    return tuple(found)


def _measure(column: Column, *, typical: bool) -> str:
    if column.kind == "binary":
        return "share of groups" if typical else "share"
    if typical:
        return "typical value"
    return "mean" if column.transform == "none" else "geometric mean"


def centroid_columns(
    result: Result, columns: tuple[Column, ...], k: int
) -> tuple[ClusterColumn, ...]:
    """Return the centroid of one cluster in own units, without what is only rounding.

    Parameters
    ----------
    result : Result
    columns : tuple of Column, length d
    k : int
    """
    known = np.ones(len(columns), dtype=np.bool_) if result.mask is None else result.mask[k]
    found = []
    for j, column in enumerate(columns):
        spread = float(result.scale[j]) if column.transform == "none" else 0.0
        value = as_mean(without_rest(float(result.centroids_original[k, j]), spread), column)
        found.append(ClusterColumn(column, "centroid", value if known[j] else None))
    return tuple(found)


def as_mean(value: float, column: Column) -> float:
    """Return a mean; of a yes/no column or a level a share, without rounding noise."""
    return min(max(share(value), 0.0), 1.0) if column.kind == "binary" else value


def _undone(value: float, column: Column) -> float | None:
    """Return a value in the feature's own unit; None beyond what a double holds."""
    try:
        if column.transform == "log":
            return math.exp(value)
        return math.expm1(value) if column.transform == "log1p" else value
    except OverflowError:
        return None
