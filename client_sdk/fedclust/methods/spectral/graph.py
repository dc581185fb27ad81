"""Neighbourhood graphs and the eigenvectors of their normalised Laplacians.

References
----------
Zelnik-Manor & Perona, "Self-tuning spectral clustering", NIPS 2004 (local scales).
von Luxburg, "A tutorial on spectral clustering", 2007 (normalised Laplacians, eigengap).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedclust.numeric.array_types import FloatArray
from fedclust.numeric.canonical import (
    break_distance_ties,
    canonical_eigenbasis,
    eigenspace_is_complete,
    tolerant_argsort,
)
from fedclust.numeric.distances import squared_distances

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
    is_dense = m <= _MAX_DENSE or graph.nnz > m * m // 10
    start, n_values = rng.standard_normal(m), k + 1
    while True:
        # One more than needed, and more until the last eigenspace is complete.
        n_values = min(n_values, m)
        if is_dense or 2 * n_values > m:
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
