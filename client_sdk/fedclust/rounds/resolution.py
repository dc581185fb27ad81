"""Rule: a result warns if its clusters are finer than the sites' groups of persons.

Calibrated on 1,170 simulated runs: Gaussian clusters, noise, yes/no mixtures, breast cancer, digits
and others in 2 to 61 columns; 2 to 50 clusters, 2 to 50 sites, p of 3, 5 and 10; even, uneven,
Dirichlet and Voronoi splits. Cost is the inertia of all rows with the centroids found on the sites'
tables, divided by that of central k-means on the rows. On other seeds the warning came in 125 of
131 runs with cost above 1.05 and in 0 of 51 below 1.01; on 15 other kinds of data in 259 of 274 and
7 of 135 (``benchmarks/resolution.py``). It misses what records cannot show: single persons far out
that are central clusters, and middle values that differ from means (yes/no and skewed columns).
Limits lower by a tenth find 1 % more and add half as many false warnings; a capped reach, or one
over the directions of the centroids alone, is no better.
"""

import numpy as np

from fedclust.numeric.array_types import FloatArray, IntArray
from fedclust.numeric.distances import squared_distances

#: The warning comes if the two parts of the criterion, over these limits, add up to 1.
_COARSE = 0.17
_LONE = 0.5
_TINY = 1e-300
#: What every such warning says.
FINER = "clusters are finer than the sites' groups of persons"


def resolution_warning(
    counts: IntArray,
    points: IntArray,
    costs: FloatArray,
    within: FloatArray,
    centroids: FloatArray,
) -> str | None:
    """Return a warning if clusters are finer than the sites' groups, else None.

    The criterion has two parts. The first is how far the persons of a group reach towards other
    clusters, and how few groups there are to average this out: at all sites, and in a cluster at
    one site. The second is the cost of lone groups, those that are their site's only one in a
    cluster: if they lie far from the centroid, they also hold persons of other clusters.

    Parameters
    ----------
    counts, points : (S, K) int64
        Persons and groups by site and cluster.
    costs : (S, K) float64
        Squared distances of the groups' records from their centroid, summed over persons.
    within : (S, d) float64
        Each column's variance within the site's groups, in the units of the centroids.
    centroids : (K, d) float64
    """
    held = counts.sum(axis=0) > 0
    if held.sum() < 2 or not (counts > points).any():
        return None  # No other cluster, or no groups: ``protection: none``.
    if points.max() > 1 and not costs.any():
        return None  # The records of each cluster are equal.
    counts, points, costs = counts[:, held], points[:, held], costs[:, held]
    reach = np.average(_reaches(counts, within, centroids[held]), weights=counts.sum(axis=0))
    n_clusters = int(held.sum())
    at_a_site = float(points.sum() / np.count_nonzero(points))
    coarse = (float(reach) * (n_clusters - 1) ** 1.5 / (float(points.sum()) * at_a_site)) ** 0.5
    lone = float(costs[points == 1].sum()) / max(float(costs.sum()), _TINY)
    if coarse / _COARSE + lone / _LONE < 1.0:
        return None
    return (
        f"The {n_clusters} {FINER}: a cluster has {at_a_site:.1f} groups at a site on average. "
        "Central k-means on the rows would likely find noticeably better clusters. Fewer clusters, "
        "larger sites or a smaller min_group_size help."
    )


def _reaches(counts: IntArray, within: FloatArray, centroids: FloatArray) -> FloatArray:
    """Return the persons' sd within groups in each cluster, over the distance to the nearest other.

    The sd is that over all directions: in many columns a cluster has neighbours everywhere.
    """
    squares = squared_distances(centroids, centroids)
    np.fill_diagonal(squares, np.inf)
    squares[squares <= 0.0] = np.inf
    variances = within.sum(axis=1) @ counts / counts.sum(axis=0)
    return np.asarray(np.sqrt(variances / squares.min(axis=1)))
