"""A site's own clustering of its points: the first thing that several methods ask for."""

from __future__ import annotations

import numpy as np

from fedclust.methods.common.cluster_sums import ClusterSums, cluster_sums
from fedclust.numeric.distances import nearest_centroid
from fedclust.numeric.weighted_kmeans import restart_count, weighted_kmeans
from fedclust.schema.points import Points

__all__ = ["local_kmeans"]


def local_kmeans(
    points: Points, n_clusters: int, n_init: int, rng: np.random.Generator
) -> ClusterSums:
    """Cluster a site's points by weighted k-means.

    Parameters
    ----------
    points : Points
        Scaled.
    n_clusters : int
    n_init : int
        Random restarts, beside a farthest-first start.
    rng : numpy.random.Generator

    Returns
    -------
    ClusterSums
        Of at most ``n_clusters`` cells, fewer where there are fewer distinct points.
    """
    centres = weighted_kmeans(
        points.X, points.sizes.astype(np.float64), n_clusters, rng, n_restarts=n_init
    )
    return cluster_sums(points, nearest_centroid(points.X, centres), centres)


_MOST_RESTARTS = 10


def local_restarts(n_points: int, n_features: int, n_cells: int) -> int:
    """Return the restarts of a site's own k-means: 10, down to 2 at a large site."""
    return min(restart_count(n_points, n_features, n_cells), _MOST_RESTARTS)
