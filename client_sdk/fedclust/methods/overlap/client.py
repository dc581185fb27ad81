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


def local_step(
    task: SiteTask[AnyTask],
    points: Points,
    config: RunConfig[Config],
    rng: np.random.Generator,
    memory: Memory,
) -> LocalAnswer[Cells]:
    """Answer a task from a site's scaled points."""
    own, common = select_site_columns(points, config), task.common
    if isinstance(common, CellsTask):
        found = local_cells(common, own, rng)
        return Cells(counts=found.counts, means=expand_to_all_columns(found.means, config)), memory
    centroids, known = common.centroids[:, config.mask], common.mask[:, config.mask]
    # A site that came late may share no feature with any centroid.
    if not known.any():
        return None, memory
    found = improved(own, centroids, known, common.iterations)
    matched = match(found.means, centroids, known)
    counts = np.zeros(len(centroids), dtype=np.int64)
    means = np.zeros(common.centroids.shape)
    counts[matched], means[matched] = found.counts, expand_to_all_columns(found.means, config)
    return Cells(counts=counts, means=means), memory


def improved(
    points: Points, centroids: NDArray[np.float64], known: NDArray[np.bool_], iterations: int
) -> ClusterSums:
    """Run Lloyd iterations from the centroids that any point is nearest to (lines 13 to 17).

    Parameters
    ----------
    points : Points
        In the site's own columns.
    centroids, known : (K, d_i)
        Where a centroid is unknown it is 0. One at least shares a column with the site.
    iterations : int
    """
    kept, labels = _used(nearest_centroid(points.X, centroids, known))
    found = cluster_sums(points, labels, centroids[kept])
    for _ in range(iterations - 1):
        _, moved = _used(nearest_centroid(points.X, found.means))
        if np.array_equal(moved, labels):
            break
        labels = moved
        found = cluster_sums(points, labels, np.zeros((int(labels.max()) + 1, points.X.shape[1])))
    return found


def _used(labels: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the labels that occur, ascending, and labels (m,) that number these from 0."""
    kept, numbered = np.unique(labels, return_inverse=True)
    return kept, numbered.reshape(-1).astype(np.int64)


def match(
    local: NDArray[np.float64], centroids: NDArray[np.float64], known: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Return the global centroid (m,) of each local one, no two the same (line 18; Hungarian).

    Parameters
    ----------
    local : (m, d_i) float64
        m is at most K.
    centroids, known : (K, d_i)
        Over the site's features.
    """
    # Imported here: it takes a while, and only this step needs it.
    from scipy.optimize import linear_sum_assignment

    squares = (local[:, None, :] - centroids) ** 2
    shared = known.sum(axis=1)
    cost = np.where(known, squares, 0.0).sum(axis=2) / np.maximum(shared, 1)
    # What shares no feature is matched last.
    cost[:, shared == 0] = cost.max() * len(local) + 1.0
    rows, columns = linear_sum_assignment(round_to_tolerance(cost))
    return np.asarray(columns[np.argsort(rows)], dtype=np.int64)
