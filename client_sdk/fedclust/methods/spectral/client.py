"""What a site of ``spectral`` computes: landmarks, anchors, and clusters among its eigenvectors.

What it remembers of its eigenvectors labels its rows, and new ones, once the session has ended.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedclust.methods.common.assign import label_by_centroid, scale_rows
from fedclust.methods.common.cluster_sums import ClusterSums, cluster_sums
from fedclust.methods.common.local_kmeans import local_kmeans
from fedclust.methods.spectral.config import EigenConfig, ProcrustesConfig, Variants
from fedclust.methods.spectral.graph import Embedding, embed, nystroem, rotation, signs
from fedclust.methods.spectral.messages import (
    AnchorPart,
    Anchors,
    AnchorsTask,
    AnyPayload,
    AnyTask,
    Eigen,
    EigenTask,
    Landmarks,
    LandmarksTask,
)
from fedclust.numeric.canonical import tolerant_argmax
from fedclust.numeric.distances import nearest_centroid, squared_distances
from fedclust.numeric.weighted_kmeans import weighted_kmeans
from fedclust.schema.method import LocalAnswer
from fedclust.schema.model import Memory
from fedclust.schema.points import Points
from fedclust.schema.result import Result
from fedclust.schema.run_config import RunConfig
from fedclust.schema.task import SiteTask

#: What a site remembers of its eigenvectors, for its rows' labels.
OWN = "spectral"
#: Restarts of k-means among eigenvectors, at the sites and at the coordinator.
EIGEN_N_INIT = 10
#: Anchors are chosen among as many cells, or more where more are asked for.
_ANCHOR_CELLS = 60
_N_INIT = 3

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


def local_step(
    task: SiteTask[AnyTask],
    points: Points,
    config: RunConfig[Variants],
    rng: np.random.Generator,
    memory: Memory,
) -> LocalAnswer[AnyPayload]:
    """Answer a task from a site's scaled points."""
    options, asked = config.options, task.common
    if isinstance(asked, LandmarksTask):
        found = _small_cells(points, asked.n_cells, rng)
        return Landmarks(counts=found.counts, means=found.means), memory
    if not isinstance(options, EigenConfig):
        raise TypeError("the task is of another variant")
    if isinstance(asked, AnchorsTask):
        reference = task.site == AnchorPart(anchors=True)
        return _anchors(asked, points, options, rng, reference=reference), memory
    return _eigen(asked, points, options, rng, memory)


def _small_cells(points: Points, most: int, rng: np.random.Generator) -> ClusterSums:
    """Return cells of two persons or more on average: a cell of one row would be that row."""
    return local_kmeans(points, max(min(most, points.n // 2), 1), _N_INIT, rng)


def _anchors(
    task: AnchorsTask,
    points: Points,
    options: EigenConfig,
    rng: np.random.Generator,
    *,
    reference: bool,
) -> Anchors:
    n_anchors, d = task.n_anchors, points.X.shape[1]
    counts = np.zeros(n_anchors, dtype=np.int64)
    means, vectors = np.zeros((n_anchors, d)), np.zeros((n_anchors, options.n_clusters))
    if reference:
        found = _small_cells(points, max(_ANCHOR_CELLS, n_anchors), rng)
        # A row alone in its cell is no anchor.
        shared = np.flatnonzero(found.counts > 1)
        if len(shared):
            chosen = shared[_spread(found.means[shared], n_anchors, rng)]
            counts[: len(chosen)], means[: len(chosen)] = found.counts[chosen], found.means[chosen]
            _, placed = _embedded(points, found.means[chosen], options, rng)
            vectors[: len(chosen)] = placed[len(points.X) :]
    return Anchors(counts=counts, means=means, vectors=vectors)


def _spread(points: FloatArray, n: int, rng: np.random.Generator) -> list[int]:
    """Return the places of ``n`` points (m, d): one at random, then always the farthest."""
    chosen = [int(rng.integers(len(points)))]
    gap = squared_distances(points, points[chosen])[:, 0]
    while len(chosen) < min(n, len(points)):
        chosen.append(int(tolerant_argmax(gap)))
        gap = np.minimum(gap, squared_distances(points, points[chosen[-1:]])[:, 0])
    return chosen


def _embedded(
    points: Points, anchors: FloatArray, options: EigenConfig, rng: np.random.Generator
) -> tuple[Embedding, FloatArray]:
    """Return points (m, d), then anchors (A, d), among the first K eigenvectors of their graph.

    Each point is one vertex, whatever its size: groups are about equally large.
    """
    vertices = np.concatenate([points.X, anchors])
    return embed(
        vertices, options.n_clusters, rng, gamma=options.gamma, neighbours=options.neighbours
    )


def _eigen(
    task: EigenTask,
    points: Points,
    options: EigenConfig,
    rng: np.random.Generator,
    memory: Memory,
) -> LocalAnswer[Eigen]:
    m, d, k = len(points.X), points.X.shape[1], options.n_clusters
    anchors = np.empty((0, d)) if task.anchors is None else task.anchors
    basis, found = _embedded(points, anchors, options, rng)
    turn = np.eye(k)
    if task.vectors is not None:
        align = rotation if isinstance(options, ProcrustesConfig) else signs
        turn = align(task.vectors, found[m:])
    own = found[:m] @ turn
    centres = weighted_kmeans(own, points.sizes.astype(np.float64), k, rng, EIGEN_N_INIT)
    labels = nearest_centroid(own, centres)
    sums = cluster_sums(points, labels, np.zeros((k, d)))
    placed = cluster_sums(Points(own, points.sizes, np.zeros(k)), labels, np.zeros((k, k)))
    kept = {
        "points": basis.points,
        "vectors": basis.vectors,
        "turn": turn,
        "values": basis.values,
        "scales": basis.scales,
        "gamma": options.gamma,
        "neighbours": options.neighbours,
    }
    sent = Eigen(counts=sums.counts, means=sums.means, vectors=placed.means)
    return sent, {**memory, OWN: kept}


def by_own_vectors(result: Result, scaled: FloatArray, own: Memory) -> IntArray:
    """Return the labels (n,) of scaled rows (n, d) at a site that remembers its eigenvectors.

    Parameters
    ----------
    result : Result
    scaled : (n, d) float64
        Rows that are vertices of the site's graph, as all are with ``protection: none``, or others:
        placed by Nystroem's formula.
    own : mapping
        What the site's memory holds under :data:`OWN`.
    """
    known = Embedding(own["points"], own["vectors"], own["values"], own["scales"])
    vectors = nystroem(known, scaled, gamma=own["gamma"], neighbours=own["neighbours"])
    vertices = {point.tobytes(): place for place, point in enumerate(known.points + 0.0)}
    places = np.array([vertices.get(row.tobytes(), -1) for row in scaled + 0.0], dtype=np.int64)
    vectors[places >= 0] = known.vectors[places[places >= 0]]
    extra = result.extra
    return np.asarray(extra["clusters"][nearest_centroid(vectors @ own["turn"], extra["centres"])])


def label(result: Result, X: NDArray[np.float64], memory: Memory | None) -> NDArray[np.int64]:
    """Label rows (n, d) in own units.

    With landmarks every row takes the label of the nearest. Otherwise only a site that took part
    can label, by its eigenvectors and Nystroem's formula; -1 elsewhere, and for rows with missing
    values where the session does not impute.
    """
    # Refuses what is no row of the session, whatever the variant.
    labels = label_by_centroid(result, X)
    if result.prototypes is not None:
        return labels
    own = (memory or {}).get(OWN)
    if own is None:
        return np.full(len(labels), -1, dtype=np.int64)
    known = labels >= 0
    if known.any():
        labels[known] = by_own_vectors(result, scale_rows(result, X)[known], own)
    return labels
