"""Choosing K: how far random starts agree on each number of clusters, and which is recommended.

What it computes
    **Agreement of starts**: how far k-means from different random starts agrees. It takes the
    first round's cells of the largest K as weighted points, clusters them from ten single
    k-means++ starts, and averages the adjusted Rand index (Hubert & Arabie, "Comparing
    partitions", 1985) over all pairs of starts: 1 where all agree, 0 as by chance. It needs no
    further message, and cannot distinguish clusters smaller than a cell.

The recommended K has the highest simplified silhouette, which the closing evaluation measures. The
recommendation also says whether it and the Davies-Bouldin index support it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from fedclust.numeric.agreement import adjusted_rand_index, contingency_table
from fedclust.numeric.canonical import tolerant_argmin, tolerant_argsort
from fedclust.numeric.distances import nearest_centroid
from fedclust.numeric.random import server_rng
from fedclust.numeric.weighted_kmeans import restart_count, single_start_centroids
from fedclust.schema.result import SweepEntry

_STARTS = 10
#: Two silhouettes no further apart are as good as equal (a reading aid, no test).
_CLOSE = 0.02
#: Kaufman & Rousseeuw, "Finding groups in data", 1990, table 4: no substantial structure below.
_WEAK = 0.25
#: Below it the starts disagree on more than a few rows in a hundred.
_STABLE = 0.9


# --- agreement of starts --------------------------------------------------------------------------


def start_agreement(
    means: NDArray[np.float64], counts: NDArray[np.int64], n_clusters: int, seed: int
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
    found = single_start_centroids(means, weights, n_clusters, rngs)
    labellings = [nearest_centroid(means, centroids) for centroids in found]
    tables = [
        contingency_table(a, b, counts, n_clusters, n_clusters)
        for a, b in combinations(labellings, 2)
    ]
    agreements = [adjusted_rand_index(table) for table in tables]
    return float(np.mean(agreements))


# --- recommendation -------------------------------------------------------------------------------


def recommend(entries: Sequence[SweepEntry]) -> tuple[int, str]:
    """Return the recommended K, and why, in sentences for the analyst.

    The highest simplified silhouette; of equal ones the smallest K. Where nothing was measured the
    highest agreement of starts; where that is unknown too, the smallest K.
    """
    judged = [entry for entry in entries if entry.simplified_silhouette is not None]
    if not judged:
        best = _first(entries, [-_or_lowest(entry.start_agreement) for entry in entries])
        return best.n_clusters, (
            f"K = {best.n_clusters}: quality was not measured. "
            f"{_starts_say(best, entries) or 'Nothing tells the numbers of clusters apart.'}"
        )
    by_k = sorted(judged, key=lambda entry: entry.n_clusters)
    ranked = [
        by_k[i] for i in tolerant_argsort([-_or_lowest(e.simplified_silhouette) for e in by_k])
    ]
    best = ranked[0]
    score = _or_lowest(best.simplified_silhouette)
    says = [f"K = {best.n_clusters} has the highest simplified silhouette, {score:.3f}"]
    close = [e for e in ranked[1:] if score - _or_lowest(e.simplified_silhouette) < _CLOSE]
    if len(ranked) > 1:
        second = ranked[1]
        says[0] += (
            f" (next: K = {second.n_clusters}, {_or_lowest(second.simplified_silhouette):.3f})"
        )
    says[0] += "."
    if close:
        others = ", ".join(str(e.n_clusters) for e in sorted(close, key=lambda e: e.n_clusters))
        says.append(f"That is close: within {_CLOSE} of it lie K = {others}.")
    says += [line for line in (_index_says(best, judged), _starts_say(best, entries)) if line]
    if score < _WEAK:
        says.append(f"Below {_WEAK} no K gives clusters that stand clearly apart.")
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
