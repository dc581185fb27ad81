"""Which number of clusters to recommend, and the sentences that say why.

Where the clusters were compared with one cloud (``rounds.reference``), that decides: the largest K
whose clusters are clearer than the cloud's, all stand apart, and gain more than chance over the
next smaller such K; if there is none, the K at which the inertia falls most beyond that of the
cloud; if no K is clearer, none. Elsewhere the highest simplified silhouette, and of mixtures the
lowest BIC. Measures that disagree are named.

References
----------
Tibshirani, Walther & Hastie, "Estimating the number of clusters in a data set via the gap
statistic", 2001: one standard error is what chance gains.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal

import numpy as np

from fedclust.numeric.agreement import adjusted_rand_index, contingency_table
from fedclust.numeric.array_types import FloatArray, IntArray
from fedclust.numeric.canonical import tolerant_argmin, tolerant_argsort
from fedclust.numeric.distances import CentroidRule, keep_means, nearest_centroid
from fedclust.numeric.random import server_rng
from fedclust.numeric.weighted_kmeans import restart_count, single_start_centroids
from fedclust.rounds.resolution import FINER
from fedclust.schema.result import Likelihood, Result, SweepEntry

_STARTS = 10
#: Clusters are clearer than one cloud, or stand apart, where it gives as clear ones this rarely.
CLEAR = 0.05
#: Two silhouettes no further apart are as good as equal (a reading aid, no test).
_CLOSE = 0.02
#: Kaufman & Rousseeuw, "Finding groups in data", 1990, table 4: no substantial structure below.
_WEAK = 0.25
#: The least p-value that is printed: it rests on 20 draws.
_LEAST_P = 0.001
#: What "one cloud" means, to readers who have not met the word.
_ARTIFICIAL = "artificial patients without clusters but with the same spread, skew and correlations"
#: Below this number of persons a site, close clusters were missed in tries with groups of 5.
_FEW_PERSONS = 100


# --- agreement of starts --------------------------------------------------------------------------


def start_agreement(
    means: FloatArray,
    counts: IntArray,
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


@dataclass(frozen=True)
class Choice:
    """A number of clusters, and why.

    Attributes
    ----------
    n_clusters : int
        The K that the result shows: the recommended one. If no single K is, the one at which
        outcomes were counted; without outcomes the best, and of one cloud the smallest.
    reason : str
        ``apart``: all clusters of the best K stand apart; ``step``: it gains most; ``one-cloud``:
        no K is recommended; ``silhouette``, ``bic``, ``starts``: it is the best by that measure.
    tied : tuple of int
        The K that are about as good a choice, the best one first; () where there is no tie.
    text : str
        Sentences for the analyst.
    """

    n_clusters: int
    reason: Literal["apart", "step", "one-cloud", "silhouette", "bic", "starts"]
    tied: tuple[int, ...]
    text: str


def choose(entries: Sequence[SweepEntry], *, binary: bool = False) -> Choice:
    """Return which K of a sweep the result shows, and whether it is recommended.

    Parameters
    ----------
    entries : sequence of SweepEntry
        Complete, ascending by K.
    binary : bool
        Whether all columns are yes/no columns.
    """
    best = _best(entries, binary=binary)
    counted = [entry.n_clusters for entry in entries if entry.result.outcomes is not None]
    if is_recommended(best.reason, best.tied) or not (counted or best.reason == "one-cloud"):
        return best
    shown, why = best.n_clusters, "it is the smallest"
    if counted:
        shown, why = counted[0], "outcomes were counted there"
    text = f"{best.text} K = {shown} is shown because {why}."
    return replace(best, n_clusters=shown, text=text)


def is_recommended(reason: str | None, tied: Sequence[int]) -> bool:
    """Return whether a single K is recommended."""
    return not tied and reason not in ("one-cloud", "starts")


def _best(entries: Sequence[SweepEntry], *, binary: bool) -> Choice:
    fits = [entry.result.likelihood for entry in entries]
    known = [fit for fit in fits if fit is not None]
    if len(known) == len(entries):
        return _lowest_bic(entries, known)
    if any(entry.result.cloud_p is not None for entry in entries):
        return _beside_cloud(entries, binary=binary)
    judged = [entry for entry in entries if entry.simplified_silhouette is not None]
    if not judged:
        best = _first(entries, [-_or_lowest(entry.start_agreement) for entry in entries])
        starts = " ".join(_others_say(best, ())) or "Nothing tells the numbers of clusters apart."
        text = f"K = {best.n_clusters}: quality was not measured. {starts}"
        return Choice(best.n_clusters, "starts", (), text)
    return _highest_silhouette(entries, judged)


def sole_choice(entries: Sequence[SweepEntry]) -> int | None:
    """Return the recommended K; None where another is about as good or none is recommended."""
    choice = choose(entries)
    return choice.n_clusters if is_recommended(choice.reason, choice.tied) else None


def _beside_cloud(entries: Sequence[SweepEntry], *, binary: bool) -> Choice:
    """Return the K to show by the comparison with one cloud.

    Of those that are clearer than one cloud it is one whose clusters all stand apart, else the one
    that gains most. Where none is clear, the first is shown and not recommended.
    """
    clear = [entry for entry in entries if _is_clear(entry)]
    if not clear:
        text = " ".join(_one_cloud(entries, binary=binary))
        return Choice(entries[0].n_clusters, "one-cloud", (), text)
    clear, remarks = _coarse_enough(clear)
    apart = [entry for entry in clear if _close_clusters(entry) == []]
    gains = [-_step(entries, entry) for entry in clear]
    best = apart[0] if apart else clear[int(tolerant_argmin(gains))]
    for entry in apart[1:]:
        # Halves of a true cluster sometimes stand apart, too.
        best = entry if _gap(entry, errors=1.0) > _gap(best) else best
    by_silhouette = _ranked(_coarse_enough(entries)[0])[:1]
    tied = _tie(best, [e for e in by_silhouette if e is not best])
    says = [*cloud_sentences(best.result), *_largest_gain(entries, best)]
    if more := [entry for entry in apart if entry.n_clusters > best.n_clusters]:
        says.append(f"Those of K = {_listed(more)} stand apart, too, but add no more than chance.")
    if tied:
        other, score = by_silhouette[0], _or_lowest(by_silhouette[0].simplified_silhouette)
        p = other.result.cloud_p
        line = f"K = {tied[1]} has the highest simplified silhouette, {score:.3f}"
        unclear = p is not None and p > CLEAR
        but = f", but is no clearer than one cloud ({p_text(p)})" if unclear and p else ""
        says.append(f"{line}{but}: look at both.")
    says += [*remarks, *_others_say(best, entries)]
    return Choice(best.n_clusters, "apart" if apart else "step", tied, " ".join(says))


def cloud_sentences(result: Result) -> list[str]:
    """Return what the comparison with one cloud says of one clustering, in sentences."""
    found = result.one_cloud
    if found is None:
        return []
    if found.p is None:
        return [f"The clusters were not compared with one cloud. {found.not_judged or ''}"]
    n = result.n_clusters or len(result.centroids)
    if found.p > CLEAR:
        text = (
            f"K = {n}: no separate clusters were found. {_ARTIFICIAL.capitalize()} give "
            f"clusters as clear as these ({p_text(found.p)}). Do not report them as types."
        )
        return [text]
    says = f"K = {n}: these clusters are clearer than those of {_ARTIFICIAL} ({p_text(found.p)})."
    if found.cluster_p is None:
        return [says, found.not_judged or ""]
    close = [k for k, p in enumerate(found.cluster_p.tolist()) if p > CLEAR]
    if not close:
        return [says, "Every cluster stands apart from its neighbours."]
    return [
        says,
        f"{_clusters(close)} not stand apart more than pieces of one cloud.",
        "It may be a gradation, a curved cloud, or clusters that touch.",
    ]


def p_text(p: float) -> str:
    """Return a p-value with its name: at most two digits, without a power of ten."""
    return f"p = {p:.2g}" if p >= _LEAST_P else f"p < {_LEAST_P}"


def ps_text(entries: Sequence[SweepEntry]) -> str:
    """Return the p-value of each K that was compared with one cloud."""
    ps = ((entry.n_clusters, entry.result.cloud_p) for entry in entries)
    return ", ".join(f"K = {k}: {p_text(p)}" for k, p in ps if p is not None)


def _clusters(numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"Cluster {numbers[0]} does"
    return f"Clusters {', '.join(map(str, numbers[:-1]))} and {numbers[-1]} do"


def _one_cloud(entries: Sequence[SweepEntry], *, binary: bool) -> list[str]:
    """Return what is said where no K is clearer than one cloud."""
    text = (
        f"One cloud: no separate clusters were found. {_ARTIFICIAL.capitalize()} give "
        f"clusters as clear as these for every K tried ({ps_text(entries)}). Do not report "
        "clusters as a finding. No K is recommended."
    )
    says = [text]
    if binary:
        says.append(
            "Clusters in yes/no columns alone cannot be distinguished from patients who share one "
            "trait to different degrees."
        )
    n_sites, persons = len(entries[0].result.site_sizes), sum(entries[0].result.sizes or ())
    if n_sites and persons < _FEW_PERSONS * n_sites:
        says.append(
            f"With {persons / n_sites:.0f} persons a site, close clusters cannot be "
            "distinguished from one cloud: this is no proof that there are none."
        )
    return says


def _largest_gain(entries: Sequence[SweepEntry], best: SweepEntry) -> list[str]:
    """Say at which K the inertia falls most, compared with the cloud, and why that is not best."""
    steps = [_step(entries, entry) for entry in entries]
    at = int(tolerant_argmin([-step for step in steps]))
    if len(entries) < 2 or not np.isfinite(steps[at]):
        return []
    most, before = entries[at], entries[at - 1].n_clusters if at else 1
    k, close = most.n_clusters, _close_clusters(most)
    why = ""
    if not _is_clear(most):
        why = f", but K = {k} is no clearer than one cloud"
    elif close is None and most is not best:
        why = f", but whether the clusters of K = {k} stand apart is not judged"
    elif close and most is not best:
        why = f", but not all clusters of K = {k} stand apart"
    elif most.n_clusters < best.n_clusters:
        why = f", but K = {best.n_clusters} adds more than chance, and all its clusters stand apart"
    return [f"The step from {before} to {k} clusters gains most{why}."]


def _step(entries: Sequence[SweepEntry], entry: SweepEntry) -> float:
    """Return by how much the gap grows for each cluster more than with the next smaller K."""
    gaps = {1: 0.0} | {e.n_clusters: _gap(e) for e in entries if e.result.cloud_p is not None}
    k = entry.n_clusters
    if k not in gaps:
        return -np.inf
    before = max(smaller for smaller in gaps if smaller < k)
    return (gaps[k] - gaps[before]) / (k - before)


def _gap(entry: SweepEntry, errors: float = 0.0) -> float:
    """Return by how much the clusters are clearer than the cloud's, less some standard errors."""
    found = entry.result.one_cloud
    return -np.inf if found is None else (found.gap or 0.0) - errors * (found.gap_error or 0.0)


def _is_clear(entry: SweepEntry) -> bool:
    p = entry.result.cloud_p
    return p is not None and p <= CLEAR


def _close_clusters(entry: SweepEntry) -> list[int] | None:
    """Return the clusters that do not stand apart; None where that was not judged."""
    found = entry.result.one_cloud
    if found is None or found.cluster_p is None:
        return None
    return [k for k, p in enumerate(found.cluster_p.tolist()) if p > CLEAR]


def _ranked(entries: Sequence[SweepEntry]) -> list[SweepEntry]:
    """Return the entries with a silhouette, the highest first; of equal ones the smallest K."""
    judged = [entry for entry in entries if entry.simplified_silhouette is not None]
    return [
        judged[i] for i in tolerant_argsort([-_or_lowest(e.simplified_silhouette) for e in judged])
    ]


def _highest_silhouette(entries: Sequence[SweepEntry], judged: Sequence[SweepEntry]) -> Choice:
    """Choose by the simplified silhouette, where nothing was compared with one cloud.

    A K does not compete whose clusters are finer than the sites' groups, unless that leaves none.
    """
    judged, remarks = _coarse_enough(judged)
    ranked = _ranked(judged)
    best = ranked[0]
    score = _or_lowest(best.simplified_silhouette)
    line = f"K = {best.n_clusters} has the highest simplified silhouette, {score:.3f}"
    if len(ranked) > 1:
        second = ranked[1]
        line += f" (next: K = {second.n_clusters}, {_or_lowest(second.simplified_silhouette):.3f})"
    says = [f"{line}."]
    close = [e for e in ranked[1:] if score - _or_lowest(e.simplified_silhouette) < _CLOSE]
    if close:
        says.append(f"Too close to call: within {_CLOSE} of it is K = {_listed(close)}.")
    says += [*remarks, *_others_say(best, entries)]
    if score < _WEAK:
        says.append(f"Below {_WEAK} no K gives clusters that stand clearly apart.")
    says += cloud_sentences(best.result)
    return Choice(best.n_clusters, "silhouette", _tie(best, close), " ".join(says))


def _tie(best: SweepEntry, others: Sequence[SweepEntry]) -> tuple[int, ...]:
    ks = sorted(entry.n_clusters for entry in others)
    return (best.n_clusters, *ks) if ks else ()


def _coarse_enough(judged: Sequence[SweepEntry]) -> tuple[list[SweepEntry], list[str]]:
    """Return the entries without a warning on resolution, or all where each has one; a remark."""
    fine = [e for e in judged if any(FINER in warning for warning in e.result.warnings)]
    if not fine:
        return list(judged), []
    if len(fine) == len(judged):
        return list(judged), ["The clusters of every K are finer than the sites' groups."]
    left_out = f"Left out: K = {_listed(fine)}, whose clusters are finer than the sites' groups."
    return [entry for entry in judged if entry not in fine], [left_out]


def _listed(entries: Sequence[SweepEntry]) -> str:
    return ", ".join(str(k) for k in sorted(entry.n_clusters for entry in entries))


def _others_say(best: SweepEntry, entries: Sequence[SweepEntry]) -> Iterator[str]:
    """Yield at which K the Davies-Bouldin index is lowest, and how far starts agree on a K."""
    indexed = [entry for entry in entries if entry.davies_bouldin is not None]
    if len(indexed) > 1:
        least = _first(indexed, [_or_lowest(entry.davies_bouldin) for entry in indexed])
        index = _or_lowest(least.davies_bouldin)
        yield f"The Davies-Bouldin index is lowest at K = {least.n_clusters}, {index:.3f}."
    if best.start_agreement is not None:
        yield f"Different starts of k-means agree on it by {best.start_agreement:.2f} (at most 1)."


def _lowest_bic(entries: Sequence[SweepEntry], fits: Sequence[Likelihood]) -> Choice:
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
    return Choice(best.n_clusters, "bic", (), " ".join(says))


def _first(entries: Sequence[SweepEntry], values: Sequence[float]) -> SweepEntry:
    """Return the entry of the lowest value; of equal ones the smallest K."""
    by_k = sorted(range(len(entries)), key=lambda i: entries[i].n_clusters)
    return entries[by_k[int(tolerant_argmin([values[i] for i in by_k]))]]


def _or_lowest(value: float | None) -> float:
    return -np.inf if value is None else value
