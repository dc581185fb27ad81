"""Spectral clustering of the landmarks of all sites, with a choice of the neighbour count.

References
----------
Ng, Jordan & Weiss, "On spectral clustering", NIPS 2001 (normalised rows of eigenvectors).
von Luxburg, "A tutorial on spectral clustering", 2007 (eigengap).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedclust.methods.spectral.graph import (
    eigengap,
    nearest_others,
    self_tuning_graph,
    spectrum,
)
from fedclust.numeric.array_types import BoolArray, FloatArray, IntArray
from fedclust.numeric.canonical import tolerant_argmax
from fedclust.numeric.distances import nearest_centroid
from fedclust.numeric.weighted_kmeans import weighted_kmeans

#: Restarts of k-means among eigenvectors.
EIGEN_N_INIT = 10
#: The neighbour counts that are tried.
_NEIGHBOURS = (5, 6, 8, 10, 12, 15, 20, 25)
#: A landmark is sparse if its neighbour of this rank is farther by this factor than the median of
#: its neighbours' neighbours of this rank.
_RANK, _SPARSE = 5, 1.5
#: An outcome is supported by this many smaller and larger neighbour counts, weighted by this power
#: of their agreement: outcomes that differ in a tenth of the landmarks count for a fifth.
_WINDOW, _POWER = 2, 16


@dataclass(frozen=True)
class LandmarkClustering:
    """A spectral clustering of landmarks.

    Attributes
    ----------
    labels : (m,) int64
    neighbours : int
        The chosen neighbour count; 0 if there was no choice.
    gap : float
        Its relative eigengap.
    agreement : float
        Share of landmarks that other neighbour counts put into the same cluster, under the best
        matching of clusters, averaged over these counts.
    """

    labels: IntArray
    neighbours: int
    gap: float
    agreement: float


def is_dense(points: FloatArray) -> BoolArray:
    """Return which landmarks are not sparser than their own neighbours.

    The mean of a group that reaches across a gap lies within the gap: few landmarks are near it,
    while its neighbours on both sides have many. The comparison is local, because one distance
    limit for all clusters would cut holes into thin ones.

    Parameters
    ----------
    points : (m, d) float64

    Returns
    -------
    (m,) bool
    """
    if len(points) <= _RANK:
        return np.ones(len(points), dtype=np.bool_)
    distances, places = nearest_others(points, _RANK)
    reach = distances[:, -1]
    return np.asarray(reach <= _SPARSE * np.median(reach[places], axis=1))


def cluster_landmarks(
    points: FloatArray,
    n_clusters: int,
    rng: np.random.Generator,
    wanted: int | None = None,
    counts: Sequence[int] = _NEIGHBOURS,
) -> LandmarkClustering:
    """Cluster distinct points spectrally, with the neighbour count of the most reliable outcome.

    The score of a count is the sum of its relative eigengap and those of the next counts, weighted
    by how far they find the same clusters. Its own gap alone would mislead: with few neighbours a
    cluster may break, so that the graph has K components by accident.

    Parameters
    ----------
    points : (m, d) float64
    n_clusters : int
    rng : numpy.random.Generator
    wanted : int, optional
        The neighbour count to use, whatever its score; the others only give the agreement.
    counts : sequence of int
        Neighbour counts to try; among equal scores the first wins.
    """
    if len(points) <= n_clusters:
        return LandmarkClustering(np.arange(len(points)), 0, 1.0, 1.0)
    limit = len(points) - 1
    tried = sorted({min(count, limit) for count in (*counts, *([wanted] if wanted else []))})
    gaps, labels = [], []
    for count in tried:
        graph, _ = self_tuning_graph(points, count)
        found = spectrum(graph, n_clusters + 1, rng)
        gaps.append(eigengap(found.values, n_clusters))
        labels.append(_cluster_vectors(found.vectors[:, :n_clusters], n_clusters, rng))
    if wanted is not None:
        best = tried.index(min(wanted, limit))
    else:
        best = int(tolerant_argmax([_score(i, gaps, labels) for i in range(len(tried))]))
    others = [matched_share(labels[best], own) for i, own in enumerate(labels) if i != best]
    mean_agreement = float(np.mean(others)) if others else 1.0
    return LandmarkClustering(labels[best], tried[best], gaps[best], mean_agreement)


def _score(i: int, gaps: Sequence[float], labels: Sequence[IntArray]) -> float:
    window = range(max(i - _WINDOW, 0), min(i + _WINDOW + 1, len(gaps)))
    return sum(gaps[j] * matched_share(labels[i], labels[j]) ** _POWER for j in window)


def _cluster_vectors(vectors: FloatArray, n_clusters: int, rng: np.random.Generator) -> IntArray:
    """Return labels (m,) of k-means among rows of eigenvectors (m, k), scaled to length 1."""
    lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))[:, None]
    rows = vectors / np.where(lengths > 0, lengths, 1.0)
    weights = np.ones(len(rows))
    return nearest_centroid(rows, weighted_kmeans(rows, weights, n_clusters, rng, EIGEN_N_INIT))


def matched_share(a: IntArray, b: IntArray) -> float:
    """Return the share of points with equal labels (m,) under the best matching of clusters."""
    from scipy.optimize import linear_sum_assignment

    counts = np.zeros((int(a.max()) + 1, int(b.max()) + 1))
    np.add.at(counts, (a, b), 1.0)
    rows, columns = linear_sum_assignment(-counts)
    return float(counts[rows, columns].sum() / len(a))
