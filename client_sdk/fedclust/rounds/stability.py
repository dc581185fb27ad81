"""Stability: would other data of the same kind have given the same clusters?

What it computes
    **Resampled models.** The coordinator draws sites with replacement and clusters each sample. It
    works on the sites' cells: a cell weighs its persons times the number of times that its site was
    drawn, and varies as a Poisson number besides. Both stages at full variance would count the
    variance between persons twice, so the Poisson weights have only what the first lacks: where S
    sites are drawn freely, 1/S (Davison & Hinkley, section 3.8). Where each draw needs all sites,
    they have all of it. Each site then counts its persons by final cluster and by the model's
    cluster; all measures follow from these tables (``numeric.agreement``). They describe; how
    clear the clusters are is judged by ``rounds.reference``.

References
----------
Hennig, "Cluster-wise assessment of cluster stability", Computational Statistics & Data Analysis 52,
2007.
Davison & Hinkley, "Bootstrap methods and their application", Cambridge University Press, 1997.
Hanley & MacGibbon, "Creating non-parametric bootstrap samples using Poisson frequencies", Computer
Methods and Programs in Biomedicine 83, 2006.
"""

from collections.abc import Sequence

import numpy as np

from fedclust.methods.common.kmeans_rounds import Cells
from fedclust.numeric.agreement import consensus, jaccard_by_cluster
from fedclust.numeric.array_types import FloatArray, IntArray
from fedclust.numeric.distances import CentroidRule, keep_means
from fedclust.numeric.random import server_rng
from fedclust.numeric.weighted_kmeans import weighted_kmeans
from fedclust.schema.result import Stability

#: Random starts of each model, in addition to a farthest-first start.
_RESTARTS = 10
#: Draws of sites after which each site is drawn once.
_MAX_DRAWS = 20
#: Hennig 2007: a cluster is recovered by a model from the first on, dissolved below the second.
_RECOVERED, _DISSOLVED = 0.75, 0.5
#: A cluster that this share of models recovers is found again in nearly all samples. Of smaller
#: shares of groups nobody can tell that of persons (docs/results/stability.md).
NEARLY_ALL = 0.9

# --- models of resampled data, at the coordinator -------------------------------------------------


def resampled_models(
    sites: Sequence[Cells],
    n_clusters: int,
    *,
    n_models: int,
    min_sites: int,
    seed: int,
    rule: CentroidRule = keep_means,
) -> FloatArray:
    """Return the centroids (B, K, d) of models of resampled sites and persons.

    The samples are the same for every K. A sample with cells of fewer than ``min_sites`` sites is
    drawn again; after 20 such samples each site is drawn once. Where a sample has fewer than K
    distinct cells, its last centroid is repeated; ties go to the first, so copies label nobody.

    Parameters
    ----------
    sites : sequence of Cells
        Of the sites that sent any.
    n_clusters : int
        K.
    n_models : int
        B.
    min_sites : int
    seed : int
        The session's.
    rule : CentroidRule
    """
    means = np.concatenate([cells.means for cells in sites])
    counts = np.concatenate([cells.counts for cells in sites])
    of = np.repeat(np.arange(len(sites)), [len(cells.counts) for cells in sites])
    models = np.empty((n_models, n_clusters, means.shape[1]))
    samples = _draw_weights(counts, of, n_models=n_models, min_sites=min_sites, seed=seed)
    for b, weights in enumerate(samples):
        rng = server_rng(seed, f"resample-{b}-{n_clusters}")
        models[b] = _centroids(means, weights, n_clusters, rng, rule)
    return models


def _draw_weights(
    counts: IntArray, sites: IntArray, *, n_models: int, min_sites: int, seed: int
) -> FloatArray:
    """Return the weight of each cell in each sample (B, m)."""
    rngs = [server_rng(seed, f"resample-{b}") for b in range(n_models)]
    names, places = np.unique(sites, return_inverse=True)
    times = np.array([_draw_sites(len(names), min_sites, rng) for rng in rngs])
    # What drawing the sites lacks of a variance of 1 a person.
    variance = max(1.0 - float(((times - 1) ** 2).mean()), 1.0 / len(names))
    weights = np.empty((n_models, len(counts)))
    for b, rng in enumerate(rngs):
        expected = counts * times[b][places]
        weights[b] = rng.poisson(expected / variance) * variance
        if len(np.unique(places[weights[b] > 0])) < min_sites:
            weights[b] = expected
    return weights


def _draw_sites(n_sites: int, min_sites: int, rng: np.random.Generator) -> IntArray:
    """Return how often each site is drawn (S,)."""
    for _ in range(_MAX_DRAWS):
        times = np.bincount(rng.integers(n_sites, size=n_sites), minlength=n_sites)
        if np.count_nonzero(times) >= min_sites:
            return times
    return np.ones(n_sites, dtype=np.int64)


def _centroids(
    means: FloatArray,
    weights: FloatArray | IntArray,
    n_clusters: int,
    rng: np.random.Generator,
    rule: CentroidRule = keep_means,
) -> FloatArray:
    """Return K centroids (K, d) of weighted cells; the last is repeated where there are fewer."""
    if not weights.any():
        weights = np.ones_like(weights)
    kept = weights > 0
    found = weighted_kmeans(
        means[kept], weights[kept].astype(np.float64), n_clusters, rng, _RESTARTS, rule
    )
    return np.pad(found, ((0, n_clusters - len(found)), (0, 0)), mode="edge")


# --- what the tables say --------------------------------------------------------------------------


def summarise(models: IntArray) -> Stability:
    """Return the stability of a clustering from all sites' tables.

    Parameters
    ----------
    models : (B, K, K) int64
        Persons by final cluster and by each resampled model's cluster.
    """
    jaccard = np.array([jaccard_by_cluster(table) for table in models])
    return Stability(
        n_models=len(models),
        jaccard=jaccard.mean(axis=0),
        recovered=(jaccard >= _RECOVERED).mean(axis=0),
        dissolved=(jaccard < _DISSOLVED).mean(axis=0),
        consensus=consensus(models),
    )
