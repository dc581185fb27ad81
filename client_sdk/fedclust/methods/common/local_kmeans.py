"""A site's own clustering of its points: the first step of several methods."""

from __future__ import annotations

import numpy as np

from fedclust.methods.common.cluster_sums import ClusterSums, cluster_sums
from fedclust.numeric.distances import nearest_centroid
from fedclust.numeric.modes import CentroidRule, keep_means
from fedclust.numeric.weighted_kmeans import restart_count, weighted_kmeans
from fedclust.schema.display import counted
from fedclust.schema.points import Points

_MAX_LOCAL_RESTARTS = 10


def local_kmeans(
    points: Points,
    n_clusters: int,
    n_init: int,
    rng: np.random.Generator,
    rule: CentroidRule = keep_means,
) -> ClusterSums:
    """Cluster a site's scaled points by weighted k-means.

    Parameters
    ----------
    points : Points
    n_clusters : int
    n_init : int
        Random restarts, in addition to a farthest-first start.
    rng : numpy.random.Generator
    rule : CentroidRule

    Returns
    -------
    ClusterSums
        Of ``n_clusters`` cells, or of as many as there are distinct points if these are fewer.
    """
    weights = points.sizes.astype(np.float64)
    centres = weighted_kmeans(points.X, weights, n_clusters, rng, n_restarts=n_init, rule=rule)
    return cluster_sums(points, nearest_centroid(points.X, centres), centres)


def local_restarts(n_points: int, n_features: int, n_cells: int) -> int:
    """Return the default restarts of a site's k-means: 10, fewer at a large site, at least 2."""
    return min(restart_count(n_points, n_features, n_cells), _MAX_LOCAL_RESTARTS)


def local_starts(n_init: int | None) -> str:
    """Return from where a site's weighted k-means starts, for a method's description."""
    if n_init is None:
        number = "10 random starts (fewer at a large site, at least 2)"
    else:
        number = counted(n_init, "random start")
    return f"{number} and one farthest-first start"
