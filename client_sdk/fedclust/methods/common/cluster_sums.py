"""Weighted sums over clusters: what one k-means step needs of a site's points."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedclust.numeric.array_types import FloatArray, IntArray
from fedclust.protection.message_checks import check_counts
from fedclust.schema.errors import RuleViolation
from fedclust.schema.points import Points
from fedclust.schema.run_config import RunConfig
from fedclust.schema.size_bands import check_not_above

#: Points per step: they stay in the second-level cache.
_CACHE_POINTS = 4096


@dataclass(frozen=True)
class ClusterSums:
    """Sums over the points of each cluster, weighted by their persons, in the scaled space.

    Attributes
    ----------
    counts : (K,) int64
        Persons.
    offsets : (K, d) float64
        Sums of the points' differences from their centroid.
    costs : (K,) float64
        Sums of squared distances from the centroid.
    centroids : (K, d) float64
        The origins of the offsets.
    """

    counts: IntArray
    offsets: FloatArray
    costs: FloatArray
    centroids: FloatArray

    @property
    def sums(self) -> FloatArray:
        """Sums of the points (K, d); 0 in an empty cluster."""
        return self.offsets + self.counts[:, None] * self.centroids

    @property
    def means(self) -> FloatArray:
        """Means of the points (K, d); 0 in an empty cluster."""
        shift = self.offsets / np.maximum(self.counts, 1)[:, None]
        return np.where(self.counts[:, None] > 0, self.centroids + shift, 0.0)


def cluster_sums(points: Points, labels: IntArray, centroids: FloatArray) -> ClusterSums:
    """Sum up points by cluster, relative to the centroid of each.

    Sums of offsets keep digits that sums of points far from the origin lose. The order of addition
    is fixed.

    Parameters
    ----------
    points : Points
    labels : (m,) int64
        The cluster of each point; -1 leaves it out.
    centroids : (K, d) float64
    """
    # Imported here: it takes a while.
    from scipy.sparse import csc_array

    n_clusters = len(centroids)
    counts, costs = np.zeros(n_clusters), np.zeros(n_clusters)
    offsets = np.zeros(centroids.shape)
    for start in range(0, len(labels), _CACHE_POINTS):
        chosen = start + np.flatnonzero(labels[start : start + _CACHE_POINTS] >= 0)
        own, sizes = labels[chosen], points.sizes[chosen].astype(np.float64)
        differences = points.X[chosen] - centroids[own]
        squares = np.einsum("ij,ij->i", differences, differences)
        counts += np.bincount(own, weights=sizes, minlength=n_clusters)
        costs += np.bincount(own, weights=sizes * squares, minlength=n_clusters)
        # Unlike a dense product, a sparse one adds in the order of the points on every processor.
        shape = (n_clusters, len(chosen))
        offsets += csc_array((sizes, own, np.arange(len(chosen) + 1)), shape=shape) @ differences
    return ClusterSums(counts.astype(np.int64), offsets, costs, centroids)


def check_sizes(counts: IntArray, config: RunConfig, pointer: str = "/counts") -> None:
    """Check a site's counts (K,): each is 0 or at least p, and their sum fits its size band.

    Raises
    ------
    RuleViolation
        Also if all counts are 0: a site without persons answers empty.
    """
    check_counts(counts, config.p, pointer)
    if not counts.any():
        raise RuleViolation("empty", "a site that counts no persons answers empty", pointer)
    if config.size_band is not None:
        check_not_above(sum(int(count) for count in counts), config.size_band, pointer)
