"""Neighbourhood graphs, embeddings by their eigenvectors, and clusterings of landmarks by these.

References
----------
Zelnik-Manor & Perona, "Self-tuning spectral clustering", NIPS 2004 (local scales).
von Luxburg, "A tutorial on spectral clustering", 2007 (normalised Laplacians, eigengap).
Fowlkes, Belongie, Chung & Malik, "Spectral grouping using the Nystroem method", 2004.
Schoenemann, "A generalized solution of the orthogonal Procrustes problem", 1966.
Ng, Jordan & Weiss, "On spectral clustering", NIPS 2001 (normalised rows of eigenvectors).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedclust.numeric.array_types import BoolArray, FloatArray, IntArray
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

#: scipy's sparse arrays have no types.
Graph: TypeAlias = Any

#: Largest graph whose eigenvectors are computed from a dense matrix.
_MAX_DENSE = 1_500
#: Shift of the inverse iteration, because the Laplacian itself is singular.
_SHIFT = -1e-4


def self_tuning_graph(points: FloatArray, n_neighbours: int) -> tuple[Graph, FloatArray]:
    """Return the self-tuning kNN graph of points.

    An edge joins i and j if either is among the nearest neighbours of the other. Its weight is
    exp(-|i - j|^2 / (s_i s_j)), where the local scale s is the distance to the last neighbour.

    Parameters
    ----------
    points : (m, d) float64
        At least two.
    n_neighbours : int

    Returns
    -------
    graph : sparse (m, m)
        Symmetric.
    scales : (m,) float64
    """
    distances, places = nearest_others(points, min(n_neighbours, len(points) - 1))
    scales = local_scales(distances)
    weights = np.exp(-(distances**2) / (scales[:, None] * scales[places]))
    return _symmetric(weights, places), scales


def rbf_graph(points: FloatArray, gamma: float) -> Graph:
    """Return the graph (m, m) of points (m, d) with weights exp(-gamma |i - j|^2), symmetric."""
    from scipy.sparse import csr_array

    squares = squared_distances(points, points)
    weights = np.exp(-gamma * np.maximum(squares, squares.T))
    np.fill_diagonal(weights, 0.0)
    return csr_array(weights)


def local_scales(distances: FloatArray) -> FloatArray:
    """Return the scales (m,) of points with ascending ``distances`` (m, k) to their neighbours.

    A point with k equal neighbours gets the smallest positive scale of the others.
    """
    scales = distances[:, -1]
    positive = scales[scales > 0]
    return np.where(scales > 0, scales, positive.min() if len(positive) else 1.0)


def nearest_others(points: FloatArray, n: int) -> tuple[FloatArray, NDArray[np.intp]]:
    """Return distances and places (m, n) of the nearest others of points (m, d), ascending."""
    # Imported here because it takes seconds, and only this method needs it.
    from sklearn.neighbors import NearestNeighbors

    places = (
        NearestNeighbors(n_neighbors=n)
        .fit(break_distance_ties(points))
        .kneighbors(return_distance=False)
    )
    distances = [np.linalg.norm(points[column] - points, axis=1) for column in places.T]
    return np.column_stack(distances), places


def _symmetric(weights: FloatArray, places: NDArray[np.intp]) -> Graph:
    from scipy.sparse import csr_array

    m, n = weights.shape
    starts = np.arange(0, m * n + 1, n)
    directed = csr_array((weights.reshape(-1), places.reshape(-1), starts), shape=(m, m))
    directed.eliminate_zeros()
    return directed.maximum(directed.T).tocsr()


@dataclass(frozen=True)
class Spectrum:
    """The lowest eigenvalues and eigenvectors of a graph's normalised Laplacian.

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
    """Return the ``k`` lowest eigenvalues and eigenvectors of a graph; fewer if m < k.

    Each connected component is solved separately: the eigenvalue 0 has one eigenvector for each
    component, and no solver has to separate equal eigenvalues.

    Parameters
    ----------
    graph : sparse (m, m)
        Symmetric.
    k : int
    rng : numpy.random.Generator
        Starts the iteration for large components.
    """
    from scipy.sparse.csgraph import connected_components

    m = graph.shape[0]
    degrees = np.asarray(graph.sum(axis=1)).reshape(-1)
    _, component = connected_components(graph, directed=False)
    order = np.argsort(component, kind="stable")
    sizes = np.bincount(component)
    ends = np.cumsum(sizes)
    pairs = []
    # The largest component first, because equal eigenvalues keep their order.
    for number in np.argsort(-sizes, kind="stable"):
        rows = order[ends[number] - sizes[number] : ends[number]]
        values, vectors = _component_spectrum(graph[rows][:, rows], degrees[rows], k, rng)
        pairs += [(values[j], rows, vectors[:, j]) for j in range(len(values))]
    chosen = [pairs[place] for place in tolerant_argsort([value for value, _, _ in pairs])][:k]
    all_vectors = np.zeros((m, len(chosen)))
    for j, (_, rows, vector) in enumerate(chosen):
        all_vectors[rows, j] = vector
    return Spectrum(np.array([value for value, _, _ in chosen]), all_vectors, degrees)


def _component_spectrum(
    graph: Graph, degrees: FloatArray, k: int, rng: np.random.Generator
) -> tuple[FloatArray, FloatArray]:
    """Return the lowest eigenvalues, ascending, and unit eigenvectors of one component."""
    m = len(degrees)
    if m == 1:
        return np.zeros(1), np.ones((1, 1))
    from scipy.linalg import eigh
    from scipy.sparse import diags_array
    from scipy.sparse.linalg import eigsh

    roots = diags_array(1.0 / np.sqrt(degrees))
    laplacian = diags_array(np.ones(m)) - roots @ graph @ roots
    dense = m <= _MAX_DENSE or graph.nnz > m * m // 10
    start, n_values = rng.standard_normal(m), k + 1
    while True:
        # One more than needed, and more until the last eigenspace is complete.
        n_values = min(n_values, m)
        if dense or 2 * n_values > m:
            values, vectors = eigh(laplacian.toarray(), subset_by_index=(0, n_values - 1))
        else:
            values, vectors = eigsh(laplacian.tocsc(), n_values, sigma=_SHIFT, which="LM", v0=start)
            order = np.argsort(values, kind="stable")
            values, vectors = values[order], vectors[:, order]
        if n_values == m or eigenspace_is_complete(values, k):
            break
        n_values *= 2
    # A component has the eigenvalue 0 once; rounding must not order it after another one's.
    values = np.clip(values, 0.0, 2.0)
    values[0] = 0.0
    return values[:k], canonical_eigenbasis(values, vectors, np.sqrt(degrees))[:, :k]


def eigengap(values: FloatArray, n_clusters: int) -> float:
    """Return (l_K+1 - l_K) / l_K+1 of ascending eigenvalues l; 0 if more than K of them are 0.

    It is 1 if the graph has exactly K components, whether or not these are the clusters.
    """
    if len(values) <= n_clusters:
        return 1.0
    outer = float(values[n_clusters])
    return 0.0 if outer <= 0.0 else float((outer - values[n_clusters - 1]) / outer)


# --- Embeddings, and their alignment --------------------------------------------------------------


#: Limit of points of an RBF graph, which is full; larger sites use a sample of this size. A sparse
#: graph of nearest neighbours would not do: tiny weights between clusters order the eigenvectors.
MAX_RBF_POINTS = 2_000
#: Points placed at once by Nystroem's formula in an RBF graph.
_BLOCK = 1_024
#: Eigenvalues of the walk below this carry no position.
_LEAST_EIGENVALUE = 1e-6


@dataclass(frozen=True)
class Embedding:
    """Vertices of a graph embedded by its first eigenvectors.

    Attributes
    ----------
    points : (m, d) float64
        The graph's vertices.
    vectors : (m, k) float64
        Eigenvectors of the random walk D^-1 W, of length sqrt(m).
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
    """Embed points by ``k`` eigenvectors of their graph; missing eigenvectors are 0.

    Parameters
    ----------
    points : (m, d) float64
    k : int
    rng : numpy.random.Generator
    gamma : float or None
        Of an RBF graph over at most ``MAX_RBF_POINTS`` of the points; Nystroem's formula places
        the others.
    neighbours : int
        Of the self-tuning graph over the distinct points, if ``gamma`` is None.

    Returns
    -------
    basis : Embedding
    vectors : (m, k) float64
        The eigenvectors at all points.
    """
    if gamma is None:
        # Equal rows would be each other's only neighbours, and form components of their own.
        distinct, places = np.unique(points, axis=0, return_inverse=True)
        if len(distinct) == 1:
            basis = Embedding(distinct, np.eye(1, k), np.eye(1, k)[0], np.ones(1))
        else:
            basis = _embed_graph(distinct, *self_tuning_graph(distinct, neighbours), k, rng)
        return basis, basis.vectors[places.reshape(-1)]
    sample = points
    if len(points) > MAX_RBF_POINTS:
        sample = points[np.sort(rng.choice(len(points), MAX_RBF_POINTS, replace=False))]
    basis = _embed_graph(sample, rbf_graph(sample, gamma), np.empty(0), k, rng)
    if sample is points:
        return basis, basis.vectors
    return basis, nystroem(basis, points, gamma=gamma, neighbours=neighbours)


def _embed_graph(
    points: FloatArray, graph: Graph, scales: FloatArray, k: int, rng: np.random.Generator
) -> Embedding:
    found = spectrum(graph, k, rng)
    degrees = np.where(found.degrees > 0, found.degrees, 1.0)
    vectors = found.vectors / np.sqrt(degrees)[:, None]
    # One step of the walk removes rounding errors that the division by small degrees has magnified.
    values = 1.0 - found.values
    stepped = (graph @ vectors) / degrees[:, None]
    stepped = stepped / np.where(values > 0.5, values, 1.0)
    # A vertex without neighbours has no step.
    vectors = np.where((values > 0.5) & (found.degrees > 0)[:, None], stepped, vectors)
    vectors *= np.sqrt(len(points)) / np.sqrt((vectors**2).sum(axis=0))
    n_missing = k - vectors.shape[1]
    return Embedding(
        points, np.pad(vectors, ((0, 0), (0, n_missing))), np.pad(values, (0, n_missing)), scales
    )


def nystroem(
    basis: Embedding, points: FloatArray, *, gamma: float | None, neighbours: int
) -> FloatArray:
    """Place new points among the vertices of an embedding.

    At every vertex an eigenvector of the random walk is the weighted mean of its values at the
    neighbours, divided by the eigenvalue; the formula extends this to new points. A point without
    weights, far from all vertices, takes the place of the nearest.

    Parameters
    ----------
    basis : Embedding
    points : (q, d) float64
    gamma, neighbours
        As in :func:`embed`.

    Returns
    -------
    (q, k) float64
    """
    means = np.empty((len(points), basis.vectors.shape[1]))
    if gamma is not None:
        for begin in range(0, len(points), _BLOCK):
            block = slice(begin, begin + _BLOCK)
            squares = squared_distances(points[block], basis.points)
            # Relative to the nearest vertex, so that some weight is 1.
            weights = np.exp(-gamma * (squares - squares.min(axis=1)[:, None]))
            means[block] = (weights / weights.sum(axis=1)[:, None]) @ basis.vectors
    else:
        from sklearn.neighbors import NearestNeighbors

        index = NearestNeighbors(n_neighbors=min(neighbours, len(basis.points)))
        distances, places = index.fit(basis.points).kneighbors(points)
        exponents = distances**2 / (local_scales(distances)[:, None] * basis.scales[places])
        weights = np.exp(exponents.min(axis=1)[:, None] - exponents)
        weights /= weights.sum(axis=1)[:, None]
        means[:] = np.einsum("qn,qnk->qk", weights, basis.vectors[places])
    return np.asarray(means / np.where(basis.values > _LEAST_EIGENVALUE, basis.values, 1.0))


def align_by_sign(reference: FloatArray, own: FloatArray) -> FloatArray:
    """Return the matrix that flips a site's eigenvectors to agree with the reference's.

    This is the loop over c of Algorithm 1 (Hernandez-Pereira et al.). Several anchors vote, each
    weighted by the size of its entries.

    Parameters
    ----------
    reference, own : (A, k) float64
        Eigenvectors at the anchors.

    Returns
    -------
    (k, k) float64
        Diagonal.
    """
    agreements = np.einsum("ac,ac->c", reference, own)
    return np.diag(np.where(agreements < -COORDINATE_TOLERANCE, -1.0, 1.0))


def align_by_rotation(reference: FloatArray, own: FloatArray) -> FloatArray:
    """Return the orthogonal matrix R with the least |own R - reference| (Schoenemann).

    In directions that the anchors leave undetermined, R is the closest one to the identity.

    Parameters
    ----------
    reference, own : (A, k) float64
        Eigenvectors at the anchors.

    Returns
    -------
    (k, k) float64
    """
    left, values, right = np.linalg.svd(own.T @ reference)
    rank = int((values > COORDINATE_TOLERANCE * max(float(values[0]), 1.0)).sum())
    rotation, _, inverse = np.linalg.svd(left[:, rank:].T @ right[rank:].T)
    free_left, free_right = left[:, rank:] @ rotation, inverse @ right[rank:]
    return np.asarray(left[:, :rank] @ right[:rank] + free_left @ free_right)


# --- Landmarks of all sites, with a choice of the neighbour count ---------------------------------


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
