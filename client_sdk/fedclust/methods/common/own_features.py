"""What methods share whose sites have different features, and cluster by those that they have.

Maritan & Schenato, "Distributed clustering in partially overlapping feature spaces", 2025,
equations 1 to 4. Each local centroid has a mask of the features that its site has. Two centroids
are compared over the features that both know, relative to the range of values there (equations 2
and 3). Centroids are merged feature by feature (equations 1 and 4). The printed formulas contain
two errors: the divisor needs ``max(1, .)`` instead of ``min(1, .)``, and the numerator needs the
counts.

A merged centroid has a count for each feature. :class:`MergedCentroids` keeps sums and counts, so
the order of merging does not matter. Entries outside a mask are 0 and never used.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from fedclust.methods.common.kmeans_rounds import Cells, ClusterSums, local_kmeans, local_restarts
from fedclust.numeric.array_types import BoolArray, FloatArray, IntArray
from fedclust.numeric.canonical import tolerant_argmax
from fedclust.schema.display import first_few
from fedclust.schema.encoding import feature_names
from fedclust.schema.errors import RuleViolation
from fedclust.schema.model import Model
from fedclust.schema.run_config import RunConfig
from fedclust.schema.task import Points, total_variances


@dataclass(frozen=True)
class LocalCentroids:
    """The local centroids of all sites.

    Attributes
    ----------
    values : (m, d) float64
        0 outside the mask.
    mask : (m, d) bool
        The features that each centroid knows.
    counts : (m,) float64
        Rows behind each; positive.
    sites : (m,) int64
        The number of each centroid's site.
    """

    values: FloatArray
    mask: BoolArray
    counts: FloatArray
    sites: IntArray

    def __len__(self) -> int:
        return len(self.values)

    def select(self, chosen: IntArray) -> LocalCentroids:
        """Return the centroids with indices ``chosen`` (s,)."""
        return LocalCentroids(
            self.values[chosen], self.mask[chosen], self.counts[chosen], self.sites[chosen]
        )

    def as_groups(self) -> MergedCentroids:
        """Return each centroid as a group of its own."""
        counts = np.where(self.mask, self.counts[:, None], 0.0)
        return MergedCentroids(np.where(self.mask, self.values, 0.0) * counts, counts)


@dataclass(frozen=True)
class MergedCentroids:
    """Merged local centroids, one for each group: numerator and denominator of equation 4.

    Attributes
    ----------
    sums : (K, d) float64
        Count times value, summed over the members that know the feature.
    counts : (K, d) float64
        Their counts, summed; 0 if no member knows the feature.
    """

    sums: FloatArray
    counts: FloatArray

    @property
    def mask(self) -> BoolArray:
        """The features (K, d) that some member knows."""
        return self.counts > 0

    @property
    def means(self) -> FloatArray:
        """Equation 4 (K, d): the mean over the members that know the feature; 0 if none does."""
        return self.sums / np.where(self.counts > 0, self.counts, 1.0)

    def group(self, k: int) -> MergedCentroids:
        """Return group ``k`` alone."""
        return MergedCentroids(self.sums[k : k + 1], self.counts[k : k + 1])

    def absorb(self, kept: int, other: MergedCentroids, k: int) -> None:
        """Add group ``k`` of ``other`` to group ``kept``, in place."""
        self.sums[kept] += other.sums[k]
        self.counts[kept] += other.counts[k]


def sum_groups(points: LocalCentroids, groups: IntArray, n_groups: int) -> MergedCentroids:
    """Merge local centroids into groups (equation 4).

    Parameters
    ----------
    points : LocalCentroids
    groups : (m,) int64
        The group of each centroid; -1 for none.
    n_groups : int
    """
    single = points.as_groups()
    sums = np.zeros((n_groups, points.values.shape[1]))
    counts = np.zeros_like(sums)
    placed = groups >= 0
    np.add.at(sums, groups[placed], single.sums[placed])
    np.add.at(counts, groups[placed], single.counts[placed])
    return MergedCentroids(sums, counts)


def feature_ranges(values: FloatArray, mask: BoolArray) -> FloatArray:
    """Return the range (d,) of each feature's known values (m, d) (equation 2); 0 if none."""
    highest = np.where(mask, values, -np.inf).max(axis=0, initial=-np.inf)
    lowest = np.where(mask, values, np.inf).min(axis=0, initial=np.inf)
    return np.asarray(np.where(highest > lowest, highest - lowest, 0.0))


class RelativeDistances:
    """Squared distances from fixed centroids to others (equation 3).

    Precomputes what depends on the fixed centroids; those with equal masks share what depends on
    masks only.

    Parameters
    ----------
    values : (m, d) float64
    mask : (m, d) bool
    ranges : (d,) float64
        Of :func:`feature_ranges`.
    """

    def __init__(self, values: FloatArray, mask: BoolArray, ranges: FloatArray) -> None:
        # Relative to the mean of the known values: far from the origin squares lose digits.
        self._origin = np.where(mask, values, 0.0).sum(axis=0) / np.maximum(mask.sum(axis=0), 1)
        self._values = np.where(mask, values - self._origin, 0.0)
        self._squares = self._values**2
        masks, kind = np.unique(mask, axis=0, return_inverse=True)
        self._masks, self._kind = masks.astype(np.float64), kind.reshape(-1)
        self._squared_ranges = ranges**2

    def squared_to(self, others: FloatArray, mask: BoolArray) -> FloatArray:
        """Return squared distances (m, k) to ``others`` (k, d), known by ``mask`` (k, d).

        The sum of squared differences over the shared features, divided by the sum of squared
        ranges there. Infinite if no feature is shared; 0 if the shared features have no range.
        """
        known = mask.astype(np.float64)
        values = np.where(mask, others - self._origin, 0.0)
        squares = self._values @ (-2.0 * values.T)
        squares += self._squares @ known.T
        squares += (self._masks @ (values**2).T)[self._kind]
        np.maximum(squares, 0.0, out=squares)
        ranges = (self._masks @ (known * self._squared_ranges).T)[self._kind]
        return relative_squares(squares, ranges, (self._masks @ known.T)[self._kind])


def relative_squares(squares: FloatArray, ranges: FloatArray, shared: FloatArray) -> FloatArray:
    """Return ``squares / ranges``, 0 if the range is 0, infinite if nothing is ``shared``."""
    scaled = np.where(ranges > 0, squares / np.where(ranges > 0, ranges, 1.0), 0.0)
    return np.asarray(np.where(shared > 0, scaled, np.inf))


def connected_components(masks: BoolArray) -> IntArray:
    """Return the number (n,), from 0, of each site's component of the overlap graph.

    Two sites are neighbours if their ``masks`` (n, d) share a feature (section 3.3).
    """
    # Imported here: they take a while.
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components as components

    n, d = masks.shape
    # A graph of sites and features: an edge for each feature that a site has.
    sites, features = np.nonzero(masks)
    edges = coo_array((np.ones(len(sites)), (sites, n + features)), shape=(n + d, n + d))
    _, parts = components(edges, directed=False)
    return np.asarray(parts[:n], dtype=np.int64)


# --- Features that sites share --------------------------------------------------------------------


#: What means of a feature that only one site has can identify.
SINGLE_SITE_NOTE = (
    " Of a feature that your site alone has, the result shows everybody your own means."
)
_MAX_NAMES = 5


def check_roster(config: RunConfig) -> None:
    """Check that chains of shared features connect all sites, and that every feature has a site.

    Raises
    ------
    RuleViolation
        Names the features that no site has, or the smallest group of sites that shares no feature
        with the others, and what to change.
    """
    masks = np.array([config.masks[site] for site in config.roster], dtype=np.bool_)
    unseen = np.asarray(~masks.any(axis=0))
    if unseen.any():
        raise RuleViolation(
            "overlap",
            f"no site has the features {_feature_list(unseen, config)}: leave them out of the "
            "session, or invite a site that has them",
            "/features",
        )
    parts = connected_components(masks)
    if parts.max(initial=0) > 0:
        smallest = min(np.unique(parts), key=lambda part: int((parts == part).sum()))
        names = ", ".join(np.array(config.roster)[parts == smallest][:_MAX_NAMES])
        raise RuleViolation(
            "overlap",
            f"the sites fall into {int(parts.max()) + 1} groups that share no feature, so their "
            f"clusters cannot be compared; one of them is: {names}. Let them have a feature of "
            "the others, exclude them, or invite a site whose features overlap with both groups'",
            "/features",
        )


class CellsTask(Model, title="OverlapCellsTask"):
    """Cluster your points by the features that you have into at most ``n_clusters`` cells.

    Attributes
    ----------
    n_clusters : int
    search : bool
        Whether to choose the number of cells by the simplified silhouette.
    n_init : int or None
        Restarts; None: the site chooses.
    """

    n_clusters: Annotated[int, Field(ge=1)]
    search: bool
    n_init: Annotated[int, Field(ge=1)] | None


# --- At a site ------------------------------------------------------------------------------------


def select_site_columns(points: Points, config: RunConfig) -> Points:
    """Return the points in the columns that the site has."""
    X = np.ascontiguousarray(points.X[:, config.mask])
    return Points(X, points.sizes, points.within[config.mask])


def expand_to_all_columns(values: FloatArray, config: RunConfig) -> FloatArray:
    """Return values (K, d_i) of the site's columns as (K, d), 0 in the others."""
    expanded = np.zeros((len(values), len(config.columns)))
    expanded[:, config.mask] = values
    return expanded


def local_cells(task: CellsTask, points: Points, rng: np.random.Generator) -> ClusterSums:
    """Cluster a site's points, in its own columns, by k-means (Algorithms 1 and 2, lines 1 to 3).

    With ``task.search`` the number of cells is the one of best simplified silhouette, from 2.
    """
    most = min(task.n_clusters, len(points.X))
    n_init = task.n_init or local_restarts(len(points.X), points.X.shape[1], most)
    if not task.search or most <= 2:
        return local_kmeans(points, most, n_init, rng)
    found = [local_kmeans(points, k, n_init, rng) for k in range(2, most + 1)]
    scores = [simplified_silhouette(points, cells.means) for cells in found]
    return found[int(tolerant_argmax(scores))]


def simplified_silhouette(points: Points, means: FloatArray) -> float:
    """Return the mean over persons of (b - a) / max(a, b); 0 with one of the ``means`` (K, d).

    a and b are the root mean squared distances of a point's persons from the nearest and from the
    second nearest mean. They include the variance within groups: without it, points that are means
    of groups would pass for clusters.
    """
    if len(means) < 2:
        return 0.0
    within = float((points.within * total_variances(points)).sum())
    squares = np.column_stack([((points.X - mean) ** 2).sum(axis=1) for mean in means])
    nearest_two = np.sqrt(np.partition(squares, 1, axis=1)[:, :2] + within)
    a, b = nearest_two.T
    terms = np.divide(b - a, b, out=np.zeros_like(b), where=b > 0)
    return float(np.average(terms, weights=points.sizes))


# --- At the coordinator ---------------------------------------------------------------------------


def collect_centroids(sent: Mapping[str, Cells], config: RunConfig) -> LocalCentroids:
    """Return all local centroids that the sites sent, with their sites' masks."""
    values, masks, counts, sites = [], [], [], []
    for number, (site, cells) in enumerate(sent.items()):
        filled = cells.counts > 0
        n_filled = int(filled.sum())
        values.append(cells.means[filled])
        counts.append(cells.counts[filled].astype(np.float64))
        masks.append(np.tile(config.masks[site], (n_filled, 1)))
        sites.append(np.full(n_filled, number, dtype=np.int64))
    return LocalCentroids(
        np.concatenate(values), np.concatenate(masks), np.concatenate(counts), np.concatenate(sites)
    )


def too_many_groups_warning(n_groups: int, n_clusters: int) -> Iterator[str]:
    """Warn if groups that share no feature leave more groups than clusters."""
    if n_groups > n_clusters:
        yield (
            f"{n_groups} groups remain where {n_clusters} clusters were asked for: they share no "
            "feature, so they cannot be compared or merged."
        )


def single_site_feature_warning(sites: Collection[str], config: RunConfig) -> Iterator[str]:
    """Warn of the features that only one site has, if there are any, by their names."""
    single = np.array([config.masks[site] for site in sites]).sum(axis=0) == 1
    if single.any():
        names = _feature_list(single, config)
        yield f"One site alone has {names}: the centroids hold its own means there."


def _feature_list(columns: BoolArray, config: RunConfig) -> str:
    """Return the names of the features of some columns (d,), at most ``_MAX_NAMES``."""
    features = feature_names(config.columns, columns)
    return first_few([*map(repr, features)], _MAX_NAMES)
