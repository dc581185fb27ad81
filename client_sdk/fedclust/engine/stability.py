"""Stability: would other data of the same kind have given the same clusters?

What it computes
    **Resampled models.** The coordinator draws sites with replacement and clusters each sample. It
    works on the sites' cells: a cell weighs its persons times the number of times that its site was
    drawn, and varies as a Poisson number besides. Both stages at full variance would count the
    variance between persons twice, so the Poisson weights have only what the first lacks: where S
    sites are drawn freely, 1/S (Davison & Hinkley, section 3.8). Where each draw needs all sites,
    they have all of it. Each site then counts its persons by final cluster and by the model's
    cluster; all measures follow from these tables (``numeric.agreement``).

    **Split halves.** Each person of a cell goes to one half or the other by a fair coin. Each half
    gives a model, and one half's model predicts which persons the other half's puts together.
    Halves that share their cells' means agree slightly too well: in one Gaussian (2 to 20 columns,
    400 to 10,000 persons, K = 2 to 6) prediction strength was on average .02 higher than between
    halves of persons, .04 at p = 5, and at most .11. In 40 draws (``make bench stability``) it was
    at most .78, and the bound is .8.

    **Gap statistic.** How much lower the log inertia is than that of persons spread evenly over a
    box. References have at most 1,000 persons, which k-means fits too well; the difference from
    fresh persons corrects for it. Against references of full size (4,000 and 20,000 persons, K = 2
    to 8, 2 to 20 columns) the gap was within .012, on average .003.

References
----------
Hennig, "Cluster-wise assessment of cluster stability", Computational Statistics & Data Analysis 52,
2007.
Tibshirani & Walther, "Cluster validation by prediction strength", Journal of Computational and
Graphical Statistics 14, 2005.
Tibshirani, Walther & Hastie, "Estimating the number of clusters in a data set via the gap
statistic", Journal of the Royal Statistical Society B 63, 2001.
Dudoit & Fridlyand, "A prediction-based resampling method for estimating the number of clusters in a
dataset", Genome Biology 3, 2002.
Senbabaoglu, Michailidis & Li, "Critical limitations of consensus clustering in class discovery",
Scientific Reports 4, 2014.
Davison & Hinkley, "Bootstrap methods and their application", Cambridge University Press, 1997.
Hanley & MacGibbon, "Creating non-parametric bootstrap samples using Poisson frequencies", Computer
Methods and Programs in Biomedicine 83, 2006.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedclust.numeric.agreement import consensus, jaccard_by_cluster, prediction_strength
from fedclust.numeric.array_types import FloatArray, IntArray
from fedclust.numeric.distances import squared_distances
from fedclust.numeric.modes import CentroidRule, keep_means
from fedclust.numeric.random import server_rng
from fedclust.numeric.weighted_kmeans import weighted_kmeans
from fedclust.schema.evidence import Stability

#: Splits into halves.
N_SPLITS = 10
#: Random starts of each model, in addition to a farthest-first start.
_RESTARTS = 10
#: Draws of sites after which each site is drawn once.
_MAX_DRAWS = 20
#: Hennig 2007: a cluster is recovered by a model from the first on, dissolved below the second.
_RECOVERED, _DISSOLVED = 0.75, 0.5
#: What Hennig says of a cluster, by the lower bound of its mean Jaccard similarity.
BANDS = {
    "highly stable": 0.85,
    "stable": 0.75,
    "a pattern whose members are doubtful": 0.6,
    "not to be trusted": 0.0,
}
#: Tibshirani & Walther 2005: the largest K with at least this prediction strength.
STRONG = 0.8
#: Points of a site whose pairs are counted.
_MAX_PAIRED = 2_000
#: Columns of a block of the indicator matrix that counts pairs.
_PAIR_BLOCK = 4_096
#: Reference data sets of the gap statistic, and the most persons in each.
_REFERENCES = 20
_REFERENCE_PERSONS = 1_000
#: Random starts of each reference, in addition to a farthest-first start.
_REFERENCE_RESTARTS = 3


# --- models of resampled data, at the coordinator -------------------------------------------------


def resampled_models(
    means: FloatArray,
    counts: IntArray,
    sites: IntArray,
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
    means : (m, d) float64
        The sites' cells, scaled.
    counts : (m,) int64, positive
        Persons in each.
    sites : (m,) int64
        The site of each cell: its index in the order of names.
    n_clusters : int
        K.
    n_models : int
        B.
    min_sites : int
    seed : int
        The session's.
    rule : CentroidRule
    """
    models = np.empty((n_models, n_clusters, means.shape[1]))
    samples = _draw_weights(counts, sites, n_models=n_models, min_sites=min_sites, seed=seed)
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


def split_models(
    means: FloatArray,
    counts: IntArray,
    n_clusters: int,
    *,
    seed: int,
    rule: CentroidRule = keep_means,
) -> FloatArray:
    """Return the centroids (2R, K, d) of ``N_SPLITS`` pairs of halves: 2r and 2r + 1 are a pair.

    The splits are the same for every K. Parameters are those of :func:`resampled_models`.
    """
    models = np.empty((2 * N_SPLITS, n_clusters, means.shape[1]))
    for r in range(N_SPLITS):
        first = server_rng(seed, f"split-{r}").binomial(counts, 0.5)
        rng = server_rng(seed, f"split-{r}-{n_clusters}")
        for half, weights in enumerate((first, counts - first)):
            models[2 * r + half] = _centroids(means, weights, n_clusters, rng, rule)
    return models


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


# --- pairs of persons, at a site ------------------------------------------------------------------


def paired_points(n_points: int) -> IntArray:
    """Return the points whose pairs count: all, or 2,000 that are evenly spaced."""
    n_paired = min(n_points, _MAX_PAIRED)
    return np.arange(n_paired) * n_points // max(n_paired, 1)


def count_ambiguous_pairs(labels: IntArray, sizes: IntArray) -> IntArray:
    """Return how many pairs of a site's persons the models keep apart, disagree on, or join.

    A pair is apart if at most a tenth of the models put both persons into one cluster, joined if
    at least nine tenths do (Senbabaoglu, Michailidis & Li 2014). Two persons of one point are
    always joined. Of more than 2,000 points only 2,000 count, evenly spaced in their order.

    Parameters
    ----------
    labels : (B, m) int64
        The cluster of each point in each model.
    sizes : (m,) int64
        Persons at each point.

    Returns
    -------
    (3,) int64
        Pairs that are apart, between, and joined.
    """
    chosen = paired_points(labels.shape[1])
    labels, sizes, n_points = labels[:, chosen], sizes[chosen], len(chosen)
    n_models, n_clusters = len(labels), int(labels.max(initial=0)) + 1
    together = np.zeros((n_points, n_points), dtype=np.float32)
    block = max(1, _PAIR_BLOCK // n_clusters)
    for begin in range(0, n_models, block):
        part = labels[begin : begin + block]
        # Counts of models, below 2**24: single precision is exact.
        indicators = np.zeros((n_points, len(part), n_clusters), dtype=np.float32)
        indicators[np.arange(n_points), np.arange(len(part))[:, None], part] = 1.0
        flat = indicators.reshape(n_points, -1)
        together += flat @ flat.T
    pairs = np.triu(np.outer(sizes, sizes), 1)
    apart = int(pairs[10 * together <= n_models].sum())
    joined = int(pairs[10 * together >= 9 * n_models].sum())
    between = int(pairs.sum()) - apart - joined
    return np.array([apart, between, joined + int((sizes * (sizes - 1) // 2).sum())])


# --- what the tables say --------------------------------------------------------------------------


def summarise(models: IntArray, halves: IntArray, pairs: FloatArray | IntArray) -> Stability:
    """Return the stability of a clustering from all sites' tables, without the gap statistic.

    Parameters
    ----------
    models : (B, K, K) int64
        Persons by final cluster and by each resampled model's cluster.
    halves : (R, K, K) int64
        Persons by the cluster of each split's first half, and of its second. Each half predicts
        the other; the mean of both counts.
    pairs : (3,) float64 or int64
        Sums of :func:`count_ambiguous_pairs`.
    """
    jaccard = np.array([jaccard_by_cluster(table) for table in models])
    strengths = [prediction_strength(table) for half in halves for table in (half, half.T)]
    return Stability(
        n_models=len(models),
        jaccard=jaccard.mean(axis=0),
        recovered=(jaccard >= _RECOVERED).mean(axis=0),
        dissolved=(jaccard < _DISSOLVED).mean(axis=0),
        consensus=consensus(models),
        ambiguous_share=float(pairs[1] / pairs.sum()) if pairs.any() else None,
        prediction_strength=float(np.mean(strengths)) if strengths else None,
    )


def band(jaccard: float) -> str:
    """Return what Hennig 2007 says of a cluster with this mean Jaccard similarity.

    Below .6 "not to be trusted", below .75 "a pattern whose members are doubtful", below .85
    "stable", from there on "highly stable".
    """
    return next(words for words, least in BANDS.items() if jaccard >= least)


# --- gap statistic --------------------------------------------------------------------------------


def gap_statistic(
    *,
    inertia: float,
    total: float,
    n_persons: int,
    n_clusters: int,
    box: FloatArray,
    seed: int,
) -> tuple[float, float, float]:
    """Return the gap statistic of K clusters, its standard error s_k, and that of one cluster.

    Tibshirani, Walther & Hastie 2001, reference a: persons spread evenly over a box. The
    references are the same for every K.

    Parameters
    ----------
    inertia : float, positive
        Of the persons around their centroids, scaled space.
    total : float, positive
        Of the persons around their mean.
    n_persons : int
    n_clusters : int
        K.
    box : (2, d) float64
        The box's lower and upper corner, scaled: the declared bounds, or the range of the records.
    seed : int
        The session's.

    Returns
    -------
    gap, gap_error, gap_of_one : float
    """
    n = max(min(n_persons, _REFERENCE_PERSONS), n_clusters + 1)
    share = min(n / n_persons, 1.0)
    fitted, expected = np.empty((2, _REFERENCES, 2))
    for b in range(_REFERENCES):
        draws = server_rng(seed, f"gap-{b}").uniform(box[0], box[1], (2, n, box.shape[1]))
        rng = server_rng(seed, f"gap-{b}-{n_clusters}")
        centroids = weighted_kmeans(draws[0], np.ones(n), n_clusters, rng, _REFERENCE_RESTARTS)
        mean = draws[0].mean(axis=0, keepdims=True)
        logs = np.log([[_mean_cost(rows, at) for at in (centroids, mean)] for rows in draws])
        fitted[b] = logs[0]
        # k-means fits its own rows too well, by about as much as it fits others too badly; with
        # ``n_persons`` rows by ``share`` of that.
        expected[b] = logs.mean(axis=0) - share * (logs[1] - logs[0]) / 2.0
    least = np.finfo(np.float64).tiny
    observed = np.log(np.maximum([inertia, total], least) / n_persons)
    gap, gap_of_one = expected.mean(axis=0) - observed
    # All persons vary less than ``n``.
    error = fitted[:, 0].std() * np.sqrt(share * (1.0 + 1.0 / _REFERENCES))
    return float(gap), float(error), float(gap_of_one)


def _mean_cost(rows: FloatArray, centroids: FloatArray) -> float:
    """Return the mean squared distance of rows (n, d) from the nearest centroid (K, d)."""
    return float(squared_distances(rows, centroids).min(axis=1).mean())


# --- how many clusters ----------------------------------------------------------------------------


def clusters_by_prediction_strength(measured: Mapping[int, Stability]) -> int | None:
    """Return the largest K with a prediction strength of at least .8, 1 if there is none.

    None where it was not measured.

    Parameters
    ----------
    measured : mapping of K to Stability
    """
    strengths = {k: each.prediction_strength for k, each in measured.items() if k > 1}
    known = {k: strength for k, strength in strengths.items() if strength is not None}
    if not known:
        return None
    return max((k for k, strength in known.items() if strength >= STRONG), default=1)


def clusters_by_gap(measured: Mapping[int, Stability]) -> int | None:
    """Return the smallest K whose gap is at most one standard error below the largest gap.

    K = 1 competes. The rule is Dudoit & Fridlyand's: the original one stops at the first K that the
    next does not better, and so at 1 where few columns separate the clusters. None where the gap
    was not measured.

    Parameters
    ----------
    measured : mapping of K to Stability
    """
    found: dict[int, tuple[float, float]] = {}
    for k, each in sorted(measured.items()):
        if each.gap is not None and each.gap_error is not None and each.gap_of_one is not None:
            found.setdefault(1, (each.gap_of_one, 0.0))
            found[k] = each.gap, each.gap_error
    if not found:
        return None
    best, error = found[max(found, key=lambda k: found[k][0])]
    return min(k for k, (gap, _) in found.items() if gap >= best - error)
