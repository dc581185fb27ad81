"""What a site of ``spectral`` computes: landmarks, anchors, and clusters among its eigenvectors.

What it remembers of its eigenvectors labels its rows, and new ones, once the session has ended.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedclust.algorithms.assigning import nearest, squared_distances
from fedclust.algorithms.base import (
    LocalAnswer,
    Memory,
    Result,
    RuleViolation,
    RunConfig,
    SiteData,
    SiteTask,
    Totals,
)
from fedclust.algorithms.canonical import SAME_PLACE, highest
from fedclust.algorithms.kmeans import weighted_kmeans
from fedclust.algorithms.local_cells import LOCAL
from fedclust.algorithms.releasing import index_of, release
from fedclust.algorithms.releasing import site_totals as totals_of
from fedclust.algorithms.spectral_answers import (
    Anchors,
    Eigen,
    EigenTask,
    Landmarks,
    LandmarksTask,
)
from fedclust.algorithms.spectral_cells import common_rows, resting_on_few, small_cells
from fedclust.algorithms.spectral_graph import Embedding, embed, nystroem, rotation, signs
from fedclust.privacy.checks import check_shape
from fedclust.privacy.moments import cell_moments

#: What a site remembers of its eigenvectors, for its own rows' labels and for new ones.
OWN = "spectral"
#: The most landmarks of a site, unless the session says another number. Anchors are chosen among as
#: many cells, or more where more are asked for.
LANDMARKS = 60
#: Restarts of k-means among eigenvectors, at the sites and at the coordinator.
EIGEN_N_INIT = 10
#: Steps in which what is told of eigenvectors is told: finer ones say nothing about clusters.
_STEPS = 1_024

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


def local_step(
    task: SiteTask, data: SiteData, config: RunConfig, rng: np.random.Generator, memory: Memory
) -> LocalAnswer:
    """Answer a task from a site's scaled rows (n, d)."""
    asked = task.site is not None and task.site.totals
    totals = totals_of(data, config) if asked else None
    if task.phase == "landmarks":
        return _landmarks(task.common, data, config, rng, memory, totals)
    if task.phase == "anchors":
        return _anchors(task, data, config, rng, memory, totals)
    return _eigen(task.common, data, config, rng, memory, totals)


def _small_cells(
    n_cells: int, data: SiteData, config: RunConfig, rng: np.random.Generator
) -> IntArray:
    """Return the small cell (n,) of each row; a row alone is none even where p is 1."""
    return small_cells(data.X, n_cells, max(config.p, 2), index_of(data), rng)


def _landmarks(
    task: LandmarksTask,
    data: SiteData,
    config: RunConfig,
    rng: np.random.Generator,
    memory: Memory,
    totals: Totals | None,
) -> LocalAnswer:
    wanted = _small_cells(task.n_cells, data, config, rng)
    n_cells = int(wanted.max()) + 1
    released, memory = release(data, config, memory, wanted, n_cells, candidate=LOCAL)
    memory = {**memory, LOCAL: released.labels}
    if released.empty and totals is None:
        return None, memory
    moments = released.moments
    radii = np.sqrt(moments.m2.sum(axis=1) / np.maximum(moments.counts, 1))
    sent = Landmarks(counts=moments.counts, means=moments.means, radii=radii, totals=totals)
    return sent, memory


def _anchors(
    task: SiteTask,
    data: SiteData,
    config: RunConfig,
    rng: np.random.Generator,
    memory: Memory,
    totals: Totals | None,
) -> LocalAnswer:
    options = config.options
    n_anchors, d = task.common.n_anchors, data.X.shape[1]
    counts = np.zeros(n_anchors, dtype=np.int64)
    means, vectors = np.zeros((n_anchors, d)), np.zeros((n_anchors, options.n_clusters))
    if task.site is not None and task.site.anchors:
        cells = _small_cells(max(LANDMARKS, n_anchors), data, config, rng)
        centres = cell_moments(data.X, cells, int(cells.max()) + 1).means
        chosen = _spread(centres, n_anchors, rng)
        place = np.full(len(centres), -1, dtype=np.int64)
        place[chosen] = np.arange(len(chosen))
        released, memory = release(data, config, memory, place[cells], n_anchors, "anchors")
        counts, means = released.moments.counts, released.moments.means
        if counts.any():
            _, found = _embedded(data, means[counts > 0], config, rng)
            vectors[counts > 0] = _stepped(found[len(data.X) :])
    return Anchors(counts=counts, means=means, vectors=vectors, totals=totals), memory


def _spread(points: FloatArray, n: int, rng: np.random.Generator) -> list[int]:
    """Return the places of ``n`` points (m, d): one at random, then always the farthest."""
    chosen = [int(rng.integers(len(points)))]
    gap = squared_distances(points, points[chosen])[:, 0]
    while len(chosen) < min(n, len(points)):
        chosen.append(int(highest(gap)))
        gap = np.minimum(gap, squared_distances(points, points[chosen[-1:]])[:, 0])
    return chosen


def _embedded(
    data: SiteData, anchors: FloatArray, config: RunConfig, rng: np.random.Generator
) -> tuple[Embedding, FloatArray]:
    """Return rows (n, d), then anchors (A, d), among the first K eigenvectors of their graph.

    An eigenvector that rests on fewer than p persons is 0 everywhere.
    """
    options = config.options
    points = np.concatenate([common_rows(data.X, data.persons, config.p), anchors])
    basis, found = embed(
        points, options.n_clusters, rng, gamma=options.gamma, neighbours=options.n_neighbours
    )
    told = ~resting_on_few(found[: len(data.X)], index_of(data), config.p)
    return replace(basis, vectors=basis.vectors * told), found * told


def _stepped(vectors: FloatArray) -> FloatArray:
    """Return vectors rounded towards 0, so that no mean becomes larger than it can be.

    But for rounding: an entry of 1 must be 1 however its last digits came out.
    """
    steps = vectors * _STEPS
    whole = np.round(steps)
    near = np.abs(steps - whole) <= _STEPS * SAME_PLACE
    return np.asarray(np.where(near, whole, np.trunc(steps)) / _STEPS + 0.0)


def _eigen(
    task: EigenTask,
    data: SiteData,
    config: RunConfig,
    rng: np.random.Generator,
    memory: Memory,
    totals: Totals | None,
) -> LocalAnswer:
    options = config.options
    n, d = data.X.shape
    k = options.n_clusters
    if OWN in memory:
        # Asked again with other anchors, the answers would tell what the graph looks like there.
        raise RuleViolation("task", "a site's eigenvectors are asked for once", "/phase")
    anchors = np.empty((0, d)) if task.anchors is None else task.anchors
    most = min(len(anchors), options.n_anchors)
    check_shape(anchors, (most, d), "/parameters/anchors")
    basis, found = _embedded(data, anchors, config, rng)
    turn = np.eye(k)
    if task.vectors is not None:
        check_shape(task.vectors, (len(anchors), k), "/parameters/vectors")
        align = rotation if options.alignment == "procrustes" else signs
        turn = align(task.vectors, found[n:])
    own = found[:n] @ turn
    centres = weighted_kmeans(own, np.ones(n), k, rng, EIGEN_N_INIT)
    wanted = nearest(own, centres)
    released, memory = release(data, config, memory, wanted, k)
    kept = {
        "rows": _digest(data.X),
        "own": own,
        "points": basis.points,
        "vectors": basis.vectors,
        "turn": turn,
        "values": basis.values,
        "scales": basis.scales,
        "gamma": options.gamma,
        "neighbours": options.n_neighbours,
    }
    memory = {**memory, OWN: kept}
    if released.empty and totals is None:
        return None, memory
    moments = released.moments
    vectors = _stepped(cell_moments(own, released.labels, k).means)
    sent = Eigen(counts=moments.counts, means=moments.means, vectors=vectors, totals=totals)
    return sent, memory


def _digest(rows: FloatArray) -> bytes:
    """Return what tells a site's own rows (n, d) from others."""
    return hashlib.sha256(np.ascontiguousarray(rows + 0.0).tobytes()).digest()


def by_own_vectors(result: Result, scaled: FloatArray, own: Memory) -> IntArray:
    """Return the labels (n,) of scaled rows (n, d) at a site that remembers its eigenvectors.

    Parameters
    ----------
    result : Result
    scaled : (n, d) float64
        The site's own rows, whose eigenvectors are known, or others: placed by Nystroem's formula.
    own : mapping
        What the site's memory holds under :data:`OWN`.
    """
    if own["rows"] == _digest(scaled):
        vectors = own["own"]
    else:
        known = Embedding(own["points"], own["vectors"], own["values"], own["scales"])
        placed = nystroem(known, scaled, gamma=own["gamma"], neighbours=own["neighbours"])
        vectors = placed @ own["turn"]
    extra = result.extra
    return np.asarray(extra["clusters"][nearest(vectors, extra["centres"])])
