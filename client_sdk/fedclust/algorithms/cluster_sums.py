"""Weighted sums over clusters: what one k-means step needs of a site's points."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedclust.algorithms.assigning import BLOCK
from fedclust.algorithms.base import Points, RuleViolation, RunConfig
from fedclust.privacy.bands import check_not_above
from fedclust.privacy.checks import check_counts

__all__ = ["ClusterSums", "check_sizes", "cluster_sums"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class ClusterSums:
    """Sums over the points of each cluster, weighted by their persons.

    Attributes
    ----------
    counts : (K,) int64
        Persons.
    offsets : (K, d) float64
        Differences of the points from their centroid, added up.
    costs : (K,) float64
        Squared distances from the centroid, added up.
    centroids : (K, d) float64
        What the offsets are from.
    """

    counts: IntArray
    offsets: FloatArray
    costs: FloatArray
    centroids: FloatArray

    @property
    def sums(self) -> FloatArray:
        """The points (K, d), added up; 0 in an empty cluster."""
        return self.offsets + self.counts[:, None] * self.centroids

    @property
    def means(self) -> FloatArray:
        """The clusters' means (K, d); 0 in an empty cluster."""
        shift = self.offsets / np.maximum(self.counts, 1)[:, None]
        return np.where(self.counts[:, None] > 0, self.centroids + shift, 0.0)


def cluster_sums(points: Points, labels: IntArray, centroids: FloatArray) -> ClusterSums:
    """Add up points about the centroid that each belongs to.

    Offsets are added rather than the points: far from the origin these would lose digits. The
    order of addition is fixed.

    Parameters
    ----------
    points : Points
    labels : (m,) int64
        The centroid of each point; -1 leaves it out.
    centroids : (K, d) float64
    """
    n_clusters = len(centroids)
    counts = np.zeros(n_clusters, dtype=np.int64)
    offsets = np.zeros(centroids.shape)
    costs = np.zeros(n_clusters)
    for start in range(0, len(labels), BLOCK):
        chosen = slice(start, start + BLOCK)
        own, sizes, rows = labels[chosen], points.sizes[chosen], points.X[chosen]
        order = np.argsort(own, kind="stable")
        order = order[np.searchsorted(own, 0, sorter=order) :]
        if not len(order):
            continue
        own, sizes = own[order], sizes[order]
        apart = rows[order] - centroids[own]
        squares = np.einsum("ij,ij->i", apart, apart) * sizes
        firsts = np.flatnonzero(np.append(True, own[1:] != own[:-1]))
        used = own[firsts]
        counts[used] += np.add.reduceat(sizes, firsts)
        offsets[used] += np.add.reduceat(apart * sizes[:, None], firsts, axis=0)
        costs[used] += np.add.reduceat(squares, firsts)
    return ClusterSums(counts, offsets, costs, centroids)


def check_sizes(counts: IntArray, config: RunConfig, pointer: str = "/counts") -> None:
    """Check a site's counts (K,): each is 0 or at least p, and together they fit its size band.

    A site that counts nobody answers empty, so not all are 0.
    """
    check_counts(counts, config.p, pointer)
    if not counts.any():
        raise RuleViolation("empty", "a site that counts no persons answers empty", pointer)
    if config.size_band is not None:
        check_not_above(sum(int(count) for count in counts), config.size_band, pointer)
