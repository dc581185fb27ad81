"""Embeddings of a site's points by the eigenvectors of their graph, and their alignment.

References
----------
Fowlkes, Belongie, Chung & Malik, "Spectral grouping using the Nystroem method", 2004.
Schoenemann, "A generalized solution of the orthogonal Procrustes problem", 1966.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedclust.methods.spectral.graph import (
    Graph,
    local_scales,
    rbf_graph,
    self_tuning_graph,
    spectrum,
)
from fedclust.numeric.array_types import FloatArray
from fedclust.numeric.canonical import COORDINATE_TOLERANCE
from fedclust.numeric.distances import squared_distances

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
        basis = _embed_by_neighbours(distinct, k, rng, neighbours)
        return basis, basis.vectors[places.reshape(-1)]
    if len(points) <= MAX_RBF_POINTS:
        basis = _embed_graph(points, rbf_graph(points, gamma), k, rng, np.empty(0))
        return basis, basis.vectors
    sample = points[np.sort(rng.choice(len(points), MAX_RBF_POINTS, replace=False))]
    basis = _embed_graph(sample, rbf_graph(sample, gamma), k, rng, np.empty(0))
    return basis, nystroem(basis, points, gamma=gamma, neighbours=neighbours)


def _embed_by_neighbours(
    points: FloatArray, k: int, rng: np.random.Generator, neighbours: int
) -> Embedding:
    if len(points) == 1:
        return Embedding(points, np.eye(1, k), np.eye(1, k)[0], np.ones(1))
    graph, scales = self_tuning_graph(points, neighbours)
    return _embed_graph(points, graph, k, rng, scales)


def _embed_graph(
    points: FloatArray, graph: Graph, k: int, rng: np.random.Generator, scales: FloatArray
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
