"""Baselines for the methods, and the measures of the comparison.

central
    scikit-learn's k-means on the pooled rows; ``n_init`` is always given.
naive distributed
    Lloyd's algorithm with every step summed over the sites: method ``lloyd`` from K random rows,
    `protection: none`. One start, and as many rounds as it takes.
local only
    k-means (n_init 10) at each site alone, min(K, rows) clusters.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score, confusion_matrix

from _data import Data, FloatArray, IntArray
from fedclust import SessionResult, simulate

#: Rows as they are: what the papers' own programs see.
BARE: dict[str, Any] = {"protection": "none", "scaling": "none", "missing": "drop"}
#: What a hospital runs: groups of at least 5, without scaling, as all the others here.
GROUPS: dict[str, Any] = {"min_group_size": 5, "scaling": "none", "missing": "drop"}


# --- baselines ------------------------------------------------------------------------------------


def central(X: FloatArray, k: int, n_init: int, seed: int) -> tuple[IntArray, FloatArray, float]:
    """Return labels (n,), centroids (K, d) and cost of pooled k-means."""
    kmeans = KMeans(k, n_init=n_init, random_state=seed).fit(X)
    return kmeans.labels_.astype(np.int64), kmeans.cluster_centers_, float(kmeans.inertia_)


def naive(data: Data, k: int, seed: int, max_rounds: int = 300) -> SessionResult:
    """Return distributed Lloyd from ``k`` random rows."""
    rng = np.random.default_rng([seed, k])
    start = data.X[rng.choice(data.held, k, replace=False)]
    return simulate(
        "lloyd",
        data.sites(),
        config={"n_clusters": k, "start": "given", "centroids": start, "evaluate": False},
        policy={**BARE, "max_rounds": max_rounds},
        seed=seed,
    )


def local_only(data: Data, k: int, seed: int) -> dict[str, IntArray]:
    """Return each site's labels by its own k-means; equal numbers mean nothing across sites."""
    return {
        site: KMeans(min(k, len(rows)), n_init=10, random_state=seed)
        .fit(data.X[rows])
        .labels_.astype(np.int64)
        for site, rows in data.split.items()
    }


def apart(labels: dict[str, IntArray], k: int) -> dict[str, IntArray]:
    """Return labels that differ between sites, for a pooled score of what never met."""
    return {site: labels[site] + k * index for index, site in enumerate(sorted(labels))}


# --- measures -------------------------------------------------------------------------------------


def by_nearest(data: Data, centroids: FloatArray) -> dict[str, IntArray]:
    """Return the nearest centroid of every row, by site."""
    return {
        site: cdist(data.X[rows], centroids, "sqeuclidean").argmin(axis=1)
        for site, rows in data.split.items()
    }


def pooled_ari(data: Data, labels: dict[str, IntArray]) -> float:
    """Return the adjusted Rand index over all rows that some site holds."""
    held = data.held
    return float(adjusted_rand_score(data.y[held], data.pooled(labels)[held]))


def client_ari(data: Data, labels: dict[str, IntArray]) -> float:
    """Return the mean of the clients' adjusted Rand indices, weighted by rows (FKM's figures)."""
    scores = [adjusted_rand_score(data.y[data.split[site]], labels[site]) for site in data.split]
    sizes = [len(rows) for rows in data.split.values()]
    return float(np.average(scores, weights=sizes))


def accuracy(y: IntArray, labels: IntArray) -> float:
    """Return the share of rows in the right cluster under the best matching of clusters."""
    counts = confusion_matrix(y, labels)
    rows, columns = linear_sum_assignment(-counts)
    return float(counts[rows, columns].sum() / len(y))


def centroid_cost(X: FloatArray, centroids: FloatArray) -> float:
    """Return the sum of squared distances from the nearest centroid."""
    return float(cdist(X, centroids, "sqeuclidean").min(axis=1).sum())


def partition_cost(X: FloatArray, labels: IntArray) -> float:
    """Return the sum of squared distances from the means of a partition (k-FED, equation 1)."""
    return float(
        sum(
            ((X[labels == cluster] - X[labels == cluster].mean(axis=0)) ** 2).sum()
            for cluster in np.unique(labels)
        )
    )


def simplified_silhouette(X: FloatArray, centroids: FloatArray) -> float:
    """Return the mean of (b - a) / max(a, b) over distances from nearest and second centroid."""
    distances = np.partition(cdist(X, centroids), 1, axis=1)[:, :2]
    nearest, second = distances.T
    return float(((second - nearest) / np.maximum(second, 1e-300)).mean())


def steps_of(result: SessionResult) -> list[NDArray[np.float64]]:
    """Return, for every round, the centroids (K, d) that it sent to the sites, where it did."""
    site = min(result.labels_)
    return [
        entry.task.common.centroids
        for entry in result.trace_
        if entry.site == site
        and entry.phase != "evidence"
        and getattr(entry.task.common, "centroids", None) is not None
    ]
