"""kfed at a site: local cells, exact Lloyd steps, labels."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedclust.methods.common import kmeans_rounds
from fedclust.methods.common.assign import check_mapping, label_by_centroid, scale_rows
from fedclust.methods.common.cluster_sums import ClusterSums
from fedclust.methods.common.kmeans_rounds import Cells
from fedclust.methods.common.local_kmeans import local_restarts
from fedclust.methods.kfed.config import Variants
from fedclust.methods.kfed.local_cells import algorithm_1, restarted_cells
from fedclust.methods.kfed.messages import AnyPayload, AnyTask, CellsTask
from fedclust.numeric.distances import nearest_centroid
from fedclust.schema.method import LocalAnswer
from fedclust.schema.model import Memory
from fedclust.schema.points import Points
from fedclust.schema.result import Result
from fedclust.schema.run_config import RunConfig
from fedclust.schema.task import SiteTask

#: The key of a site's memory for the means of its cells, which label its rows.
_MEMORY_KEY = "kfed"


def local_step(
    task: SiteTask[AnyTask],
    points: Points,
    config: RunConfig[Variants],
    rng: np.random.Generator,
    memory: Memory,
) -> LocalAnswer[AnyPayload]:
    """Answer a task from a site's scaled points."""
    if not isinstance(task.common, CellsTask):
        return kmeans_rounds.site_lloyd_step(task.common.centroids, points), memory
    found = _local_cells(task.common, points, config.options, rng)
    filled = found.counts > 0
    sent = Cells(counts=found.counts[filled], means=found.means[filled])
    if config.options.labels == "cells":
        memory = {**memory, _MEMORY_KEY: sent.means}
    return sent, memory


def _local_cells(
    task: CellsTask, points: Points, options: Variants, rng: np.random.Generator
) -> ClusterSums:
    # At least two persons per cell on average: a site with k' rows or fewer would send its rows.
    n_cells = max(min(task.n_clusters, points.n // 2), 1)
    if task.variant == "paper":
        return algorithm_1(points, n_cells, rng, project=task.project)
    n_init = task.n_init or local_restarts(len(points.X), points.X.shape[1], n_cells)
    return restarted_cells(points, n_cells, n_init, rng, options.k if task.project else None)


def label(result: Result, X: NDArray[np.float64], memory: Memory | None) -> NDArray[np.int64]:
    """Label rows (n, d) in own units by the nearest centroid; -1 for incomplete rows.

    If the result has a mapping and the site remembers its cells, a row gets the cluster of the
    nearest cell (Definition 3.3). New rows, rows of a site that joined later (Theorem 3.2), and
    all rows after refinement go by the nearest centroid.
    """
    labels = label_by_centroid(result, X)
    cells = (memory or {}).get(_MEMORY_KEY)
    if cells is None or not result.mapping:
        return labels
    (clusters,) = result.mapping.values()
    check_mapping(clusters, len(cells))
    complete = labels >= 0
    own = nearest_centroid(scale_rows(result, X)[complete], cells)
    labels[complete] = np.array(clusters, dtype=np.int64)[own]
    return labels
