"""A site's steps in ``spectral``: landmarks, anchors, and clusters among its eigenvectors.

The site remembers its eigenvectors: they label its rows, and new ones, after the session.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedclust.methods.common.assign import check_mapping, label_by_centroid, scale_rows
from fedclust.methods.common.cluster_sums import ClusterSums, cluster_sums
from fedclust.methods.common.local_kmeans import local_kmeans
from fedclust.methods.spectral.config import EigenConfig, ProcrustesConfig, Variants
from fedclust.methods.spectral.embedding import (
    Embedding,
    align_by_rotation,
    align_by_sign,
    embed,
    nystroem,
)
from fedclust.methods.spectral.landmark_clustering import EIGEN_N_INIT
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

#: The key of the embedding in a site's memory.
MEMORY_KEY = "spectral"
#: Number of cells from which anchors are chosen; more if more anchors are requested.
_N_ANCHOR_CELLS = 60
#: Restarts of k-means for small cells.
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
    match config.options, task.common:
        case _, LandmarksTask() as common:
            cells = _small_cells(points, common.n_cells, rng)
            return Landmarks(counts=cells.counts, means=cells.means), memory
        case EigenConfig() as options, AnchorsTask() as common:
            if task.site == AnchorPart(anchors=True):
                return _find_anchors(common.n_anchors, points, options, rng), memory
            return _no_anchors(common.n_anchors, points.X.shape[1], options), memory
        case EigenConfig() as options, EigenTask() as common:
            return _cluster_own_eigenvectors(common, points, options, rng, memory)
    raise TypeError("the task is of another variant")


def _small_cells(points: Points, limit: int, rng: np.random.Generator) -> ClusterSums:
    """Return cells of at least two persons on average; a cell of one row would be that row."""
    return local_kmeans(points, max(min(limit, points.n // 2), 1), _N_INIT, rng)


def _no_anchors(n_anchors: int, d: int, options: EigenConfig) -> Anchors:
    counts = np.zeros(n_anchors, dtype=np.int64)
    vectors = np.zeros((n_anchors, options.n_clusters))
    return Anchors(counts=counts, means=np.zeros((n_anchors, d)), vectors=vectors)


def _find_anchors(
    n_anchors: int, points: Points, options: EigenConfig, rng: np.random.Generator
) -> Anchors:
    """Return means of small cells far apart, and the eigenvectors there."""
    cells = _small_cells(points, max(_N_ANCHOR_CELLS, n_anchors), rng)
    # A cell of one person is never an anchor.
    eligible = np.flatnonzero(cells.counts > 1)
    if not len(eligible):
        return _no_anchors(n_anchors, points.X.shape[1], options)
    chosen = eligible[_draw_farthest_first(cells.means[eligible], n_anchors, rng)]
    _, vectors = _embed(points, cells.means[chosen], options, rng)
    missing = (0, n_anchors - len(chosen))
    return Anchors(
        counts=np.pad(cells.counts[chosen], missing),
        means=np.pad(cells.means[chosen], (missing, (0, 0))),
        vectors=np.pad(vectors[len(points.X) :], (missing, (0, 0))),
    )


def _draw_farthest_first(points: FloatArray, n: int, rng: np.random.Generator) -> list[int]:
    """Return the indices of ``n`` points (m, d): a random one, then always the farthest."""
    chosen = [int(rng.integers(len(points)))]
    squares = squared_distances(points, points[chosen])[:, 0]
    while len(chosen) < min(n, len(points)):
        chosen.append(int(tolerant_argmax(squares)))
        squares = np.minimum(squares, squared_distances(points, points[chosen[-1:]])[:, 0])
    return chosen


def _embed(
    points: Points, anchors: FloatArray, options: EigenConfig, rng: np.random.Generator
) -> tuple[Embedding, FloatArray]:
    """Embed the points (m, d) and then the anchors (A, d) by K eigenvectors of their graph.

    Each point is one vertex, whatever its weight: groups have about the same size.
    """
    vertices = np.concatenate([points.X, anchors])
    return embed(
        vertices, options.n_clusters, rng, gamma=options.gamma, neighbours=options.neighbours
    )


def _cluster_own_eigenvectors(
    task: EigenTask,
    points: Points,
    options: EigenConfig,
    rng: np.random.Generator,
    memory: Memory,
) -> LocalAnswer[Eigen]:
    m, d, k = len(points.X), points.X.shape[1], options.n_clusters
    anchors = np.empty((0, d)) if task.anchors is None else task.anchors
    basis, vectors = _embed(points, anchors, options, rng)
    rotation = np.eye(k)
    if task.vectors is not None:
        procrustes = isinstance(options, ProcrustesConfig)
        align = align_by_rotation if procrustes else align_by_sign
        rotation = align(task.vectors, vectors[m:])
    aligned = vectors[:m] @ rotation
    centres = weighted_kmeans(aligned, points.sizes.astype(np.float64), k, rng, EIGEN_N_INIT)
    labels = nearest_centroid(aligned, centres)
    sums = cluster_sums(points, labels, np.zeros((k, d)))
    vector_sums = cluster_sums(Points(aligned, points.sizes, np.zeros(k)), labels, np.zeros((k, k)))
    remembered = {
        "points": basis.points,
        "vectors": basis.vectors,
        "turn": rotation,
        "values": basis.values,
        "scales": basis.scales,
        "gamma": options.gamma,
        "neighbours": options.neighbours,
    }
    answer = Eigen(counts=sums.counts, means=sums.means, vectors=vector_sums.means)
    return answer, {**memory, MEMORY_KEY: remembered}


def label(result: Result, X: NDArray[np.float64], memory: Memory | None) -> NDArray[np.int64]:
    """Label rows in own units.

    With landmarks, every row takes the label of the nearest landmark. Otherwise only a site that
    took part can label, by its eigenvectors and Nystroem's formula.

    Parameters
    ----------
    result : Result
    X : (n, d) float64
    memory : mapping or None
        The memory of the site that labels.

    Returns
    -------
    (n,) int64
        -1 where no label is possible: at other sites, and for rows with missing values if the
        session does not impute.
    """
    # Checks the rows for every variant.
    labels = label_by_centroid(result, X)
    if result.prototypes is not None:
        return labels
    own = (memory or {}).get(MEMORY_KEY)
    if own is None:
        return np.full(len(labels), -1, dtype=np.int64)
    known = labels >= 0
    if known.any():
        labels[known] = _label_by_eigenvectors(result, scale_rows(result, X)[known], own)
    return labels


def _label_by_eigenvectors(result: Result, scaled: FloatArray, own: Memory) -> IntArray:
    """Return the labels (n,) of scaled rows (n, d) by the remembered embedding.

    Rows that are vertices of the graph, as all are with ``protection: none``, take their own
    entries; Nystroem's formula places the others.
    """
    basis = Embedding(own["points"], own["vectors"], own["values"], own["scales"])
    vectors = nystroem(basis, scaled, gamma=own["gamma"], neighbours=own["neighbours"])
    vertices = {point.tobytes(): place for place, point in enumerate(basis.points + 0.0)}
    places = np.array([vertices.get(row.tobytes(), -1) for row in scaled + 0.0], dtype=np.int64)
    vectors[places >= 0] = basis.vectors[places[places >= 0]]
    extra = result.extra
    check_mapping(extra["clusters"], len(extra["centres"]))
    return np.asarray(extra["clusters"][nearest_centroid(vectors @ own["turn"], extra["centres"])])
