"""overlap at a site: clusters of its own features, and steps from the global centroids."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedclust.methods.common.cluster_sums import ClusterSums, cluster_sums
from fedclust.methods.common.kmeans_rounds import Cells
from fedclust.methods.common.own_features import (
    CellsTask,
    expand_to_all_columns,
    local_cells,
    select_site_columns,
)
from fedclust.methods.overlap.config import Config
from fedclust.methods.overlap.messages import AnyTask
from fedclust.numeric.canonical import round_to_tolerance
from fedclust.numeric.distances import nearest_centroid
from fedclust.schema.method import LocalAnswer
from fedclust.schema.model import Memory
from fedclust.schema.points import Points
from fedclust.schema.run_config import RunConfig
from fedclust.schema.task import SiteTask

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
IntArray = NDArray[np.int64]


def local_step(
    task: SiteTask[AnyTask],
    points: Points,
    config: RunConfig[Config],
    rng: np.random.Generator,
    memory: Memory,
) -> LocalAnswer[Cells]:
    """Answer a task from a site's scaled points."""
    own, asked = select_site_columns(points, config), task.common
    if isinstance(asked, CellsTask):
        found = local_cells(asked, own, rng)
        return Cells(counts=found.counts, means=expand_to_all_columns(found.means, config)), memory
    centroids, known = asked.centroids[:, config.mask], asked.mask[:, config.mask]
    # A site that joined late may share no feature with any centroid.
    if not known.any():
        return None, memory
    found = improve_centroids(own, centroids, known, asked.iterations)
    matched = match_centroids(found.means, centroids, known)
    counts = np.zeros(len(centroids), dtype=np.int64)
    means = np.zeros(asked.centroids.shape)
    counts[matched], means[matched] = found.counts, expand_to_all_columns(found.means, config)
    return Cells(counts=counts, means=means), memory


def improve_centroids(
    points: Points, centroids: FloatArray, known: BoolArray, iterations: int
) -> ClusterSums:
    """Run Lloyd from the centroids that any point is nearest to (Algorithm 1, lines 13 to 17).

    Parameters
    ----------
    points : Points
        In the site's own columns.
    centroids, known : (K, d_i) float64, bool
        0 where unknown. At least one entry is known.
    iterations : int
        At least 1.
    """
    kept, labels = _renumber_labels(nearest_centroid(points.X, centroids, known))
    found = cluster_sums(points, labels, centroids[kept])
    for _ in range(iterations - 1):
        _, moved = _renumber_labels(nearest_centroid(points.X, found.means))
        if np.array_equal(moved, labels):
            break
        labels = moved
        found = cluster_sums(points, labels, np.zeros((int(labels.max()) + 1, points.X.shape[1])))
    return found


def _renumber_labels(labels: IntArray) -> tuple[IntArray, IntArray]:
    """Return the labels that occur, ascending, and labels (m,) renumbered from 0."""
    kept, renumbered = np.unique(labels, return_inverse=True)
    return kept, renumbered.reshape(-1).astype(np.int64)


def match_centroids(local: FloatArray, centroids: FloatArray, known: BoolArray) -> IntArray:
    """Match each local centroid (m, d_i) with another global one (line 18; Hungarian).

    The cost is the mean squared difference over the features that the global centroid knows. One
    that shares no feature is matched last.

    Parameters
    ----------
    local : (m, d_i) float64
        m is at most K.
    centroids, known : (K, d_i) float64, bool
        In the site's own columns.

    Returns
    -------
    (m,) int64
    """
    # Imported here: it takes a while, and only this step needs it.
    from scipy.optimize import linear_sum_assignment

    squares = (local[:, None, :] - centroids) ** 2
    shared = known.sum(axis=1)
    cost = np.where(known, squares, 0.0).sum(axis=2) / np.maximum(shared, 1)
    cost[:, shared == 0] = cost.max() * len(local) + 1.0
    rows, columns = linear_sum_assignment(round_to_tolerance(cost))
    return np.asarray(columns[np.argsort(rows)], dtype=np.int64)
