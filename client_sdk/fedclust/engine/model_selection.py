"""Choosing K: how far random starts agree on each number of clusters, and which is recommended.

What it computes
    **Agreement of starts**: how far k-means from different random starts agrees. It takes the
    first round's cells of the largest K as weighted points, clusters them from ten single
    k-means++ starts, and averages the adjusted Rand index (Hubert & Arabie, "Comparing
    partitions", 1985) over all pairs of starts: 1 where all agree, 0 as by chance. It needs no
    further message, and cannot distinguish clusters smaller than a cell.

The recommended K has the highest simplified silhouette, which the closing evaluation measures,
among those that are not finer than the sites' groups and, where stability was measured, those that
one half of the persons predicts for the other. The recommendation also says whether agreement of
starts, the Davies-Bouldin index and stability support it, and where they speak for one cluster. Of
mixtures the K with the lowest BIC is recommended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from fedclust.engine.stability import (
    BANDS,
    STRONG,
    band,
    clusters_by_gap,
    clusters_by_prediction_strength,
)
from fedclust.numeric.agreement import adjusted_rand_index, contingency_table
from fedclust.numeric.canonical import tolerant_argmin, tolerant_argsort
from fedclust.numeric.distances import nearest_centroid
from fedclust.numeric.modes import CentroidRule, keep_means
from fedclust.numeric.random import server_rng
from fedclust.numeric.weighted_kmeans import restart_count, single_start_centroids
from fedclust.protection.resolution import FINER
from fedclust.schema.evidence import Stability
from fedclust.schema.result import Likelihood, SweepEntry

_STARTS = 10
#: Two silhouettes no further apart are as good as equal (a reading aid, no test).
_CLOSE = 0.02
#: Kaufman & Rousseeuw, "Finding groups in data", 1990, table 4: no substantial structure below.
_WEAK = 0.25
#: Below it the starts disagree on more than a few rows in a hundred.
_STABLE = 0.9


# --- agreement of starts --------------------------------------------------------------------------


def start_agreement(
    means: NDArray[np.float64],
    counts: NDArray[np.int64],
    n_clusters: int,
    seed: int,
    rule: CentroidRule = keep_means,
) -> float | None:
    """Return how far k-means of cells from different starts agrees.

    Parameters
    ----------
    means : (m, d) float64
        Of every cell that was sent.
    counts : (m,) int64, positive
    n_clusters : int
        K.
    seed : int
        The session's.
    rule : CentroidRule

    Returns
    -------
    float or None
        The mean adjusted Rand index over pairs of starts; None where there are no more than K
        distinct cells, which any start tells apart, and where so many starts would be dear
        (``weighted_kmeans.restart_count``).
    """
    if len(np.unique(means, axis=0)) <= n_clusters:
        return None
    if restart_count(len(means), means.shape[1], n_clusters) < _STARTS:
        return None
    weights = counts.astype(np.float64)
    rngs = [server_rng(seed, f"stability-{n_clusters}-{start}") for start in range(_STARTS)]
    found = single_start_centroids(means, weights, n_clusters, rngs, rule)
    labellings = [nearest_centroid(means, centroids) for centroids in found]
    tables = [
        contingency_table(a, b, counts, (n_clusters, n_clusters))
        for a, b in combinations(labellings, 2)
    ]
    agreements = [adjusted_rand_index(table) for table in tables]
    return float(np.mean(agreements))


# --- recommendation -------------------------------------------------------------------------------


def recommend(entries: Sequence[SweepEntry]) -> tuple[int, str]:
    """Return the recommended K, and why, in sentences for the analyst.

    Of mixtures the lowest BIC. Otherwise the highest simplified silhouette; of equal ones the
    smallest K. A K does not compete whose
    result warns that its clusters are finer than the sites' groups, nor, where stability was
    measured, one with a prediction strength below .8; unless that leaves none. Where nothing was
    measured the highest agreement of starts; where that is unknown too, the smallest K.
    """
    fits = [entry.result.likelihood for entry in entries]
    known = [fit for fit in fits if fit is not None]
    if len(known) == len(entries):
        return _lowest_bic(entries, known)
    judged = [entry for entry in entries if entry.simplified_silhouette is not None]
    if not judged:
        best = _first(entries, [-_or_lowest(entry.start_agreement) for entry in entries])
        return best.n_clusters, (
            f"K = {best.n_clusters}: quality was not measured. "
            f"{_starts_say(best, entries) or 'Nothing tells the numbers of clusters apart.'}"
        )
    judged, says = _coarse_enough(judged)
    measured = {e.n_clusters: e.result.stability for e in judged if e.result.stability is not None}
    strong = [e for e in judged if _strength(e) >= STRONG]
    best, scores = _highest_silhouette(strong or judged)
    says = [*_no_structure(measured), *scores, *says]
    says += [line for line in (_index_says(best, judged), _starts_say(best, entries)) if line]
    says += _evidence_says(best, measured)
    if _or_lowest(best.simplified_silhouette) < _WEAK:
        says.append(f"Below {_WEAK} no K gives clusters that stand clearly apart.")
    return best.n_clusters, " ".join(says)


def sole_recommended(entries: Sequence[SweepEntry]) -> int | None:
    """Return the recommended K; None where another is about as good or nothing was measured."""
    best, _ = recommend(entries)
    chosen = next(entry for entry in entries if entry.n_clusters == best)
    if chosen.result.likelihood is not None:
        return best
    score = chosen.simplified_silhouette
    if score is None or any(
        abs(score - other.simplified_silhouette) < _CLOSE
        for other in entries
        if other.simplified_silhouette is not None and other.n_clusters != best
    ):
        return None
    return best


def _coarse_enough(judged: Sequence[SweepEntry]) -> tuple[list[SweepEntry], list[str]]:
    """Return the entries without a warning on resolution, or all where each has one; a remark."""
    fine = [e for e in judged if any(FINER in warning for warning in e.result.warnings)]
    if not fine:
        return list(judged), []
    if len(fine) == len(judged):
        return list(judged), ["The clusters of every K are finer than the sites' groups."]
    left_out = f"Left out: K = {_listed(fine)}, whose clusters are finer than the sites' groups."
    return [entry for entry in judged if entry not in fine], [left_out]


def _highest_silhouette(entries: Sequence[SweepEntry]) -> tuple[SweepEntry, list[str]]:
    """Return the entry of the highest simplified silhouette, and how far the others are."""
    by_k = sorted(entries, key=lambda entry: entry.n_clusters)
    ranked = [
        by_k[i] for i in tolerant_argsort([-_or_lowest(e.simplified_silhouette) for e in by_k])
    ]
    best = ranked[0]
    score = _or_lowest(best.simplified_silhouette)
    line = f"K = {best.n_clusters} has the highest simplified silhouette, {score:.3f}"
    if len(ranked) > 1:
        second = ranked[1]
        line += f" (next: K = {second.n_clusters}, {_or_lowest(second.simplified_silhouette):.3f})"
    says = [f"{line}."]
    close = [e for e in ranked[1:] if score - _or_lowest(e.simplified_silhouette) < _CLOSE]
    if close:
        says.append(f"That is close: within {_CLOSE} of it lie K = {_listed(close)}.")
    return best, says


def _no_structure(measured: Mapping[int, Stability]) -> list[str]:
    """Return a sentence where the gap statistic or prediction strength speaks for one cluster."""
    says = {
        "the gap statistic": clusters_by_gap(measured),
        "prediction strength": clusters_by_prediction_strength(measured),
    }
    against = [name for name, k in says.items() if k == 1]
    others = [name for name, k in says.items() if k is not None and k > 1]
    if not against:
        return []
    verb = "speak" if len(against) == 2 else "speaks"
    line = f"{' and '.join(against)} {verb} for one cluster, so for no structure in the data"
    line += f"; {others[0]} does not." if others else "."
    return [line[0].upper() + line[1:]]


def _evidence_says(best: SweepEntry, measured: Mapping[int, Stability]) -> list[str]:
    """Return what stability says of the recommended K, and which K it would choose."""
    found = best.result.stability
    if found is None:
        return []
    says = []
    if found.prediction_strength is not None:
        line = f"Prediction strength is {found.prediction_strength:.2f}"
        by_strength = clusters_by_prediction_strength(measured)
        if found.prediction_strength < STRONG:
            line += f", below {STRONG}"
        elif by_strength is not None and by_strength != best.n_clusters:
            line += f"; K = {by_strength} is the largest that reaches {STRONG}"
        says.append(f"{line}.")
    by_gap = clusters_by_gap(measured)
    if by_gap is not None and by_gap > 1:
        agrees = "agrees" if by_gap == best.n_clusters else "prefers"
        says.append(f"The gap statistic {agrees}: K = {by_gap}.")
    bands = Counter(band(float(jaccard)) for jaccard in found.jaccard)
    counted = ", ".join(f"{bands[words]} {words}" for words in BANDS if words in bands)
    says.append(f"Clusters by Jaccard index: {counted}.")
    return says


def _strength(entry: SweepEntry) -> float:
    found = entry.result.stability
    return _or_lowest(None if found is None else found.prediction_strength)


def _listed(entries: Sequence[SweepEntry]) -> str:
    return ", ".join(str(k) for k in sorted(entry.n_clusters for entry in entries))


def _lowest_bic(entries: Sequence[SweepEntry], fits: Sequence[Likelihood]) -> tuple[int, str]:
    """Recommend the lowest BIC, and say how certain its classes are."""
    best = _first(entries, [fit.bic for fit in fits])
    values = ", ".join(
        f"{entry.n_clusters}: {fit.bic:,.0f}" for entry, fit in zip(entries, fits, strict=True)
    )
    says = [f"K = {best.n_clusters} has the lowest BIC (by K: {values})."]
    fit = best.result.likelihood
    if fit is not None and fit.relative_entropy is not None:
        says.append(f"Its relative entropy is {fit.relative_entropy:.2f}.")
    if best.n_clusters == max(entry.n_clusters for entry in entries):
        says.append("No larger K was compared: the BIC may fall further.")
    if any(fit.n_rows != fits[0].n_rows for fit in fits):
        says.append("The numbers of persons differ: some sites answered for some K alone.")
    return best.n_clusters, " ".join(says)


def _index_says(best: SweepEntry, judged: Sequence[SweepEntry]) -> str | None:
    indexed = [entry for entry in judged if entry.davies_bouldin is not None]
    if best.davies_bouldin is None or len(indexed) < 2:
        return None
    least = _first(indexed, [_or_lowest(entry.davies_bouldin) for entry in indexed])
    if least.n_clusters == best.n_clusters:
        return f"Davies-Bouldin agrees: lowest there, {best.davies_bouldin:.3f}."
    return (
        f"Davies-Bouldin disagrees: {best.davies_bouldin:.3f} there, lowest at "
        f"K = {least.n_clusters}, {_or_lowest(least.davies_bouldin):.3f}."
    )


def _starts_say(best: SweepEntry, entries: Sequence[SweepEntry]) -> str | None:
    if best.start_agreement is None:
        return None
    if best.start_agreement >= _STABLE:
        return f"Different starts agree on it (agreement {best.start_agreement:.2f})."
    known = [entry for entry in entries if entry.start_agreement is not None]
    most = _first(known, [-_or_lowest(entry.start_agreement) for entry in known])
    line = f"Different starts disagree on it (agreement {best.start_agreement:.2f}"
    if most.n_clusters != best.n_clusters:
        line += f"; highest at K = {most.n_clusters}, {_or_lowest(most.start_agreement):.2f}"
    return f"{line})."


def _first(entries: Sequence[SweepEntry], values: Sequence[float]) -> SweepEntry:
    """Return the entry of the lowest value; of equal ones the smallest K."""
    by_k = sorted(range(len(entries)), key=lambda i: entries[i].n_clusters)
    return entries[by_k[int(tolerant_argmin([values[i] for i in by_k]))]]


def _or_lowest(value: float | None) -> float:
    return -np.inf if value is None else value
