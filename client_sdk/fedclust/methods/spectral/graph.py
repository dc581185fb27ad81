"""Neighbourhood graphs, their eigenvectors, and how two sites' eigenvectors are made to agree.

Pure functions of points: nothing here knows a session, a site or what may be sent.

References
----------
Zelnik-Manor & Perona, "Self-tuning spectral clustering", NIPS 2004 (local scales).
Ng, Jordan & Weiss, "On spectral clustering", NIPS 2001 (rows of eigenvectors, normalised).
von Luxburg, "A tutorial on spectral clustering", 2007 (normalised Laplacians, eigengap).
Fowlkes, Belongie, Chung & Malik, "Spectral grouping using the Nystroem method", 2004.
Schoenemann, "A generalized solution of the orthogonal Procrustes problem", 1966.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedclust.numeric.canonical import (
    COORDINATE_TOLERANCE,
    break_distance_ties,
    canonical_eigenbasis,
    eigenspace_is_complete,
    tolerant_argmax,
    tolerant_argsort,
)
from fedclust.numeric.distances import nearest_centroid, squared_distances
from fedclust.numeric.weighted_kmeans import weighted_kmeans

FloatArray: TypeAlias = NDArray[np.float64]
IntArray: TypeAlias = NDArray[np.int64]
#: scipy's sparse arrays have no types.
Graph: TypeAlias = Any

#: The neighbour counts that landmarks are tried with.
NEIGHBOURS = (5, 6, 8, 10, 12, 15, 20, 25)
#: A landmark is sparse where its neighbour of this rank is this much farther than the same of its
#: neighbours, in the median.
_RANK, _SPARSE = 5, 1.5
#: An outcome is supported by those of so many smaller and larger neighbour counts, by this power of
#: their agreement: outcomes that differ in one landmark of ten support each other by a fifth.
_WINDOW, _STEEP = 2, 16
#: Up to so many vertices all eigenvectors are found at once, in a full matrix.
_DENSE = 1_500
#: Points of an RBF graph, which is full: where there are more, a sample of so many. Its nearest
#: neighbours alone would not do: between clusters weights are tiny, and order the eigenvectors.
MOST_JOINED = 2_000
#: Points placed at once among those of an RBF graph.
_BLOCK = 1_024
#: Below it an eigenvalue of the walk carries no position.
_LOWEST = 1e-6
#: Shift of the inverse iteration: the Laplacian itself is singular.
_SHIFT = -1e-4


# --- Graphs ---------------------------------------------------------------------------------------


def knn_graph(points: FloatArray, neighbours: int) -> Graph:
    """Return the self-tuning kNN graph of points (m, d), sparse (m, m) and symmetric.

    An edge joins i and j where either is among the ``neighbours`` nearest of the other; it weighs
    exp(-|i - j|^2 / (s_i s_j)), s the distance to the ``neighbours``-th.
    """
    distances, places = _neighbours(points, min(neighbours, len(points) - 1))
    scales = local_scales(distances)
    weights = np.exp(-(distances**2) / (scales[:, None] * scales[places]))
    return _symmetric(weights, places)


def rbf_graph(points: FloatArray, gamma: float) -> Graph:
    """Return the graph of points (m, d) with weights exp(-gamma |i - j|^2), (m, m), symmetric."""
    from scipy.sparse import csr_array

    squares = squared_distances(points, points)
    weights = np.exp(-gamma * np.maximum(squares, squares.T))
    np.fill_diagonal(weights, 0.0)
    return csr_array(weights)


def local_scales(distances: FloatArray) -> FloatArray:
    """Return the scale (m,) of points with ascending ``distances`` (m, k) of their neighbours.

    Where the k nearest are equal to the point, the smallest scale of the others stands in.
    """
    scales = distances[:, -1]
    positive = scales[scales > 0]
    return np.where(scales > 0, scales, positive.min() if len(positive) else 1.0)


def _neighbours(points: FloatArray, n: int) -> tuple[FloatArray, NDArray[np.intp]]:
    """Return distances and places (m, n) of each point's nearest others, ascending."""
    # Imported here: it takes seconds, and only this method needs it.
    from sklearn.neighbors import NearestNeighbors

    places = (
        NearestNeighbors(n_neighbors=n)
        .fit(break_distance_ties(points))
        .kneighbors(return_distance=False)
    )
    distances = [np.linalg.norm(points[own] - points, axis=1) for own in places.T]
    return np.column_stack(distances), places


def _symmetric(weights: FloatArray, places: NDArray[np.intp]) -> Graph:
    from scipy.sparse import csr_array

    m, n = weights.shape
    starts = np.arange(0, m * n + 1, n)
    directed = csr_array((weights.reshape(-1), places.reshape(-1), starts), shape=(m, m))
    directed.eliminate_zeros()
    return directed.maximum(directed.T).tocsr()


# --- Eigenvectors ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spectrum:
    """The lowest end of a graph's normalised Laplacian.

    Attributes
    ----------
    values : (k,) float64
        Eigenvalues, ascending, between 0 and 2.
    vectors : (m, k) float64
        Unit eigenvectors of D^-1/2 W D^-1/2.
    degrees : (m,) float64
        Sums of the vertices' weights.
    """

    values: FloatArray
    vectors: FloatArray
    degrees: FloatArray


def spectrum(graph: Graph, k: int, rng: np.random.Generator) -> Spectrum:
    """Return the ``k`` lowest eigenvalues of a graph (m, m), and their vectors; fewer if m < k.

    Each connected part is solved by itself: the eigenvalue 0 has a vector for each part, and no
    solver is asked to tell equal eigenvalues apart.
    """
    from scipy.sparse.csgraph import connected_components

    m = graph.shape[0]
    degrees = np.asarray(graph.sum(axis=1)).reshape(-1)
    _, part = connected_components(graph, directed=False)
    order = np.argsort(part, kind="stable")
    ends = np.cumsum(np.bincount(part))
    found = []
    # The largest part first: among equal eigenvalues, that of more points counts for more.
    for number in np.argsort(-np.bincount(part), kind="stable"):
        rows = order[ends[number] - np.count_nonzero(part == number) : ends[number]]
        values, vectors = _part(graph[rows][:, rows], degrees[rows], k, rng)
        found += [(values[j], rows, vectors[:, j]) for j in range(len(values))]
    found = [found[place] for place in tolerant_argsort([value for value, _, _ in found])]
    whole = np.zeros((m, min(k, len(found))))
    for j, (_, rows, vector) in enumerate(found[:k]):
        whole[rows, j] = vector
    return Spectrum(np.array([value for value, _, _ in found[:k]]), whole, degrees)


def _part(
    graph: Graph, degrees: FloatArray, k: int, rng: np.random.Generator
) -> tuple[FloatArray, FloatArray]:
    """Return the lowest eigenvalues, ascending, and unit vectors of one connected part."""
    m = len(degrees)
    if m == 1:
        return np.zeros(1), np.ones((1, 1))
    from scipy.linalg import eigh
    from scipy.sparse import diags_array
    from scipy.sparse.linalg import eigsh

    roots = diags_array(1.0 / np.sqrt(degrees))
    laplacian = diags_array(np.ones(m)) - roots @ graph @ roots
    dense = m <= _DENSE or graph.nnz > m * m // 10
    start, asked = rng.standard_normal(m), k + 1
    while True:
        # One more than wanted, and more again until the last eigenspace is complete.
        asked = min(asked, m)
        if dense or 2 * asked > m:
            values, vectors = eigh(laplacian.toarray(), subset_by_index=(0, asked - 1))
        else:
            values, vectors = eigsh(laplacian.tocsc(), asked, sigma=_SHIFT, which="LM", v0=start)
            order = np.argsort(values, kind="stable")
            values, vectors = values[order], vectors[:, order]
        if asked == m or eigenspace_is_complete(values, k):
            break
        asked *= 2
    # A connected part has the eigenvalue 0 once; rounding must not put it behind another's.
    values = np.clip(values, 0.0, 2.0)
    values[0] = 0.0
    return values[:k], canonical_eigenbasis(values, vectors, np.sqrt(degrees))[:, :k]


def relative_gap(values: FloatArray, n_clusters: int) -> float:
    """Return (l_K+1 - l_K) / l_K+1 of ascending eigenvalues l; 0 where more than K are 0.

    1 where the graph has exactly K parts: which says that it came apart, not that it did so where
    it should have.
    """
    if len(values) <= n_clusters:
        return 1.0
    outer = float(values[n_clusters])
    return 0.0 if outer <= 0.0 else float((outer - values[n_clusters - 1]) / outer)


# --- Landmarks ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Partition:
    """A spectral clustering of landmarks.

    Attributes
    ----------
    labels : (m,) int64
    neighbours : int
        Neighbour count that was picked; 0 where there was nothing to pick.
    gap : float
        Its relative eigengap.
    agreement : float
        Share of the landmarks that other neighbour counts put into the same cluster, by the best
        matching of clusters, on average over these counts.
    """

    labels: IntArray
    neighbours: int
    gap: float
    agreement: float


def dense(points: FloatArray) -> NDArray[np.bool_]:
    """Return which landmarks (m,) lie no more sparsely than their own neighbours do.

    The mean of a group that reaches across a gap lies within the gap: there are few landmarks
    around it, while its neighbours, at either side, have many. A landmark of a thin cluster is as
    far from its neighbours as these are from theirs, so that a limit on the distance itself, the
    same for all clusters, would cut holes into thin ones.
    """
    if len(points) <= _RANK:
        return np.ones(len(points), dtype=np.bool_)
    distances, places = _neighbours(points, _RANK)
    reach = distances[:, -1]
    return np.asarray(reach <= _SPARSE * np.median(reach[places], axis=1))


def cluster_landmarks(
    points: FloatArray,
    n_clusters: int,
    counts: Sequence[int],
    rng: np.random.Generator,
    wanted: int | None = None,
) -> Partition:
    """Cluster distinct points (m, d) spectrally with the neighbour count of the surest outcome.

    A count scores by its relative eigengap and those of the next counts, as far as they find the
    same clusters. Its own gap alone would mislead: with few neighbours a ring may break, and the
    graph have K parts by accident, which more neighbours do not confirm.

    Parameters
    ----------
    points : (m, d) float64
    n_clusters : int
    counts : sequence of int
        Neighbour counts to try; of equal scores the first wins.
    rng : numpy.random.Generator
    wanted : int, optional
        The neighbour count to take, whatever its score; the others tell the agreement.
    """
    if len(points) <= n_clusters:
        return Partition(np.arange(len(points)), 0, 1.0, 1.0)
    most = len(points) - 1
    tried = sorted({min(count, most) for count in (*counts, *([wanted] if wanted else []))})
    gaps, labels = [], []
    for count in tried:
        found = spectrum(knn_graph(points, count), n_clusters + 1, rng)
        gaps.append(relative_gap(found.values, n_clusters))
        labels.append(cluster_vectors(found.vectors[:, :n_clusters], n_clusters, rng))
    if wanted is not None:
        best = tried.index(min(wanted, most))
    else:
        scores = [
            sum(
                gaps[j] * agreement(labels[i], labels[j]) ** _STEEP
                for j in range(max(i - _WINDOW, 0), min(i + _WINDOW + 1, len(tried)))
            )
            for i in range(len(tried))
        ]
        best = int(tolerant_argmax(scores))
    others = [agreement(labels[best], own) for i, own in enumerate(labels) if i != best]
    agreed = float(np.mean(others)) if others else 1.0
    return Partition(labels[best], tried[best], gaps[best], agreed)


def cluster_vectors(vectors: FloatArray, n_clusters: int, rng: np.random.Generator) -> IntArray:
    """Return labels (m,) of k-means among rows of eigenvectors (m, k), each of length 1."""
    lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))[:, None]
    rows = vectors / np.where(lengths > 0, lengths, 1.0)
    return nearest_centroid(rows, weighted_kmeans(rows, np.ones(len(rows)), n_clusters, rng, 10))


def agreement(a: IntArray, b: IntArray) -> float:
    """Return the share of points with equal labels (m,) under the best matching of clusters."""
    from scipy.optimize import linear_sum_assignment

    together = np.zeros((int(a.max()) + 1, int(b.max()) + 1))
    np.add.at(together, (a, b), 1.0)
    rows, columns = linear_sum_assignment(-together)
    return float(together[rows, columns].sum() / len(a))


# --- Embeddings of rows, and what makes two of them agree -----------------------------------------


@dataclass(frozen=True)
class Embedding:
    """Points in the space of a graph's first eigenvectors, and what places others there.

    Attributes
    ----------
    points : (m, d) float64
        The graph's vertices.
    vectors : (m, k) float64
        Eigenvectors of the random walk D^-1 W, unit vectors scaled by sqrt(m).
    values : (k,) float64
        Their eigenvalues, descending, at most 1.
    scales : (m,) float64
        Local scales; empty for an RBF graph.
    """

    points: FloatArray
    vectors: FloatArray
    values: FloatArray
    scales: FloatArray


def embed(
    points: FloatArray,
    k: int,
    rng: np.random.Generator,
    *,
    gamma: float | None,
    neighbours: int,
) -> tuple[Embedding, FloatArray]:
    """Return points (m, d) in the space of ``k`` eigenvectors; those beyond m are 0.

    Parameters
    ----------
    points : (m, d) float64
    k : int
    rng : numpy.random.Generator
    gamma : float or None
        Of an RBF graph: over at most 2,000 of the points, among which the others are placed.
    neighbours : int
        Of the self-tuning graph over the distinct points, where ``gamma`` is None.

    Returns
    -------
    basis : Embedding
    vectors : (m, k) float64
        Of all points.
    """
    if gamma is None:
        # Equal rows would be one another's only neighbours, and each group of them a part.
        distinct, of = np.unique(points, axis=0, return_inverse=True)
        basis = _by_neighbours(distinct, k, rng, neighbours)
        return basis, basis.vectors[of.reshape(-1)]
    if len(points) <= MOST_JOINED:
        basis = _embedded(points, rbf_graph(points, gamma), k, rng, np.empty(0))
        return basis, basis.vectors
    sample = points[np.sort(rng.choice(len(points), MOST_JOINED, replace=False))]
    basis = _embedded(sample, rbf_graph(sample, gamma), k, rng, np.empty(0))
    return basis, nystroem(basis, points, gamma=gamma, neighbours=neighbours)


def _by_neighbours(
    points: FloatArray, k: int, rng: np.random.Generator, neighbours: int
) -> Embedding:
    if len(points) == 1:
        return Embedding(points, np.eye(1, k), np.eye(1, k)[0], np.ones(1))
    graph = knn_graph(points, neighbours)
    scales = local_scales(_neighbours(points, min(neighbours, len(points) - 1))[0])
    return _embedded(points, graph, k, rng, scales)


def _embedded(
    points: FloatArray, graph: Graph, k: int, rng: np.random.Generator, scales: FloatArray
) -> Embedding:
    found = spectrum(graph, k, rng)
    degrees = np.where(found.degrees > 0, found.degrees, 1.0)
    vectors = found.vectors / np.sqrt(degrees)[:, None]
    # A step of the walk: at a vertex of small degree the division has magnified rounding.
    walk = 1.0 - found.values
    stepped = (graph @ vectors) / degrees[:, None]
    stepped = stepped / np.where(walk > 0.5, walk, 1.0)
    # No step leads away from a vertex without neighbours.
    vectors = np.where((walk > 0.5) & (found.degrees > 0)[:, None], stepped, vectors)
    vectors *= np.sqrt(len(points)) / np.sqrt((vectors**2).sum(axis=0))
    missing = k - vectors.shape[1]
    values = np.pad(1.0 - found.values, (0, missing))
    return Embedding(points, np.pad(vectors, ((0, 0), (0, missing))), values, scales)


def nystroem(
    known: Embedding, points: FloatArray, *, gamma: float | None, neighbours: int
) -> FloatArray:
    """Return where new points (q, d) lie among the ``known``: (q, k).

    An eigenvector of the random walk is at every vertex the weighted mean of its neighbours',
    divided by the eigenvalue; so it is at a new one. A point too far from all to have weights
    goes to its nearest.
    """
    walked = np.empty((len(points), known.vectors.shape[1]))
    if gamma is not None:
        for begin in range(0, len(points), _BLOCK):
            block = slice(begin, begin + _BLOCK)
            squares = squared_distances(points[block], known.points)
            # The nearest weighs 1: the same shares, and none of them vanishes.
            weights = np.exp(-gamma * (squares - squares.min(axis=1)[:, None]))
            walked[block] = (weights / weights.sum(axis=1)[:, None]) @ known.vectors
    else:
        from sklearn.neighbors import NearestNeighbors

        index = NearestNeighbors(n_neighbors=min(neighbours, len(known.points)))
        distances, places = index.fit(known.points).kneighbors(points)
        scales = local_scales(distances)
        exponents = distances**2 / (scales[:, None] * known.scales[places])
        weights = np.exp(exponents.min(axis=1)[:, None] - exponents)
        weights /= weights.sum(axis=1)[:, None]
        walked[:] = np.einsum("qn,qnk->qk", weights, known.vectors[places])
    return np.asarray(walked / np.where(known.values > _LOWEST, known.values, 1.0))


def signs(reference: FloatArray, own: FloatArray) -> FloatArray:
    """Return the diagonal matrix (k, k) that flips ``own`` (A, k) to agree with ``reference``.

    Algorithm 1's loop over c. With several anchors they vote, each by the size of its entries.
    """
    agree = np.einsum("ac,ac->c", reference, own)
    return np.diag(np.where(agree < -COORDINATE_TOLERANCE, -1.0, 1.0))


def rotation(reference: FloatArray, own: FloatArray) -> FloatArray:
    """Return the orthogonal matrix R (k, k) with the least |own R - reference| (Schoenemann).

    Where the anchors leave directions open, the turn of these that is nearest to none.
    """
    left, values, right = np.linalg.svd(own.T @ reference)
    known = int((values > COORDINATE_TOLERANCE * max(float(values[0]), 1.0)).sum())
    turn, _, back = np.linalg.svd(left[:, known:].T @ right[known:].T)
    open_left, open_right = left[:, known:] @ turn, back @ right[known:]
    return np.asarray(left[:, :known] @ right[:known] + open_left @ open_right)
