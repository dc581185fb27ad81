"""Rule: a result warns if its clusters are finer than the sites' groups of persons.

Calibrated on 1,328 simulated runs: Gaussian clusters, noise, yes/no mixtures, breast cancer, digits
and others in 2 to 61 columns; 2 to 50 clusters, 2 to 50 sites, p of 3, 5 and 10; even, uneven,
Dirichlet and Voronoi splits. Cost is the inertia of all rows with the centroids found on the sites'
tables, divided by that of central k-means on the rows. With the present, tighter groups the warning
came in 73 of 79 runs with cost above 1.05 and in 4 of 71 below 1.01; on fresh seeds in 67 of 77 and
8 of 78; on other kinds of data in 83 of 89 and 11 of 52 (``benchmarks/resolution.py``).
"""

from __future__ import annotations

import numpy as np

from fedclust.numeric.array_types import FloatArray, IntArray

#: The warning comes if the two parts of the criterion, over these limits, add up to 1.
_COARSE = 0.012
_LONE = 0.15
#: The variance within groups of g similar persons is at most this part of its value for g random
#: persons, (g - 1) times the variance of the groups' records. The limit is needed because released
#: shares are rounded up, which would blur tight clusters.
SIMILAR = 0.25
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

    The criterion has two parts. The first is how far the rows of a group reach towards the nearest
    other cluster, divided by the cluster's number of groups at all sites and by the square root of
    that at one site, because errors of many groups cancel. The second is the inertia of lone
    groups, those that are their site's only one in a cluster: if they lie far from the centroid,
    they also hold persons of other clusters.

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
    counts, points, costs = counts[:, held], points[:, held], costs[:, held]
    persons, groups = counts.sum(axis=0), points.sum(axis=0)
    variances = counts.T @ within / persons[:, None]
    most = SIMILAR * (persons / groups - 1.0) * costs.sum(axis=0) / persons
    spread = variances.sum(axis=1)
    variances *= np.divide(most, spread, out=np.ones(len(spread)), where=spread > most)[:, None]
    reach = _reach(centroids[held], variances)
    inertia = costs.sum(axis=0) + persons * variances.sum(axis=1)
    total = max(float(inertia.sum()), _TINY)
    at_a_site = groups / (counts > 0).sum(axis=0)
    coarse = float((inertia * reach / (groups * np.sqrt(at_a_site))).sum()) / total
    coarse *= (len(groups) - 1) ** 0.25
    lone = float(costs[points == 1].sum()) / total
    if coarse / _COARSE + lone / _LONE < 1.0:
        return None
    mean = points.sum() / np.count_nonzero(points)
    return (
        f"The {len(groups)} {FINER}: a cluster has {mean:.1f} groups at a site on average. "
        "Central k-means on the rows would likely find noticeably better clusters. Fewer clusters, "
        "larger sites or a smaller min_group_size help."
    )


def _reach(centroids: FloatArray, variances: FloatArray) -> FloatArray:
    """Return each cluster's sd towards the nearest other centroid, over the distance to it."""
    found = np.zeros(len(centroids))
    for k, centroid in enumerate(centroids):
        squares = (centroids - centroid) ** 2
        distances = squares.sum(axis=1)
        distances[distances == 0.0] = np.inf
        nearest = int(distances.argmin())
        found[k] = np.sqrt(variances[k] @ squares[nearest]) / distances[nearest]
    return found
