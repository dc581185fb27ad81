"""fkm at a site: local cells, a Lloyd step of every candidate, the paper variant's rounds."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedclust.methods.common import kmeans_rounds
from fedclust.methods.common.cluster_sums import cluster_sums
from fedclust.methods.common.kmeans_rounds import Cells
from fedclust.methods.fkm.config import PaperConfig, Variants
from fedclust.methods.fkm.messages import (
    AnyPayload,
    AnyTask,
    CandidatesTask,
    MeansTask,
    SeedsTask,
    Steps,
)
from fedclust.numeric.canonical import tolerant_argmax
from fedclust.numeric.distances import nearest_centroid
from fedclust.numeric.weighted_kmeans import kmeans_plus_plus
from fedclust.protection.message_checks import check_shape
from fedclust.schema.method import LocalAnswer
from fedclust.schema.model import Memory
from fedclust.schema.points import Points
from fedclust.schema.run_config import RunConfig
from fedclust.schema.scaling import median_rule
from fedclust.schema.task import SiteTask


def local_step(
    task: SiteTask[AnyTask],
    points: Points,
    config: RunConfig[Variants],
    rng: np.random.Generator,
    memory: Memory,
) -> LocalAnswer[AnyPayload]:
    """Answer a task from a site's scaled points."""
    options, asked = config.options, task.common
    match asked:
        case SeedsTask() if isinstance(options, PaperConfig):
            return _seed_means(points, options, rng), memory
        case MeansTask() if isinstance(options, PaperConfig):
            return _update_means(asked, points, options), memory
        case CandidatesTask():
            return _step_candidates(asked, points, config), memory
        case kmeans_rounds.CellsTask():
            return kmeans_rounds.find_cells(asked, points, config, rng), memory
    raise TypeError("the task is of another variant")


def _step_candidates(task: CandidatesTask, points: Points, config: RunConfig) -> Steps:
    rule = median_rule(config)
    steps = [kmeans_rounds.site_lloyd_step(each, points, rule) for each in task.centroids]
    return Steps(
        counts=np.stack([step.counts for step in steps]),
        sums=np.stack([step.sums for step in steps]),
        costs=np.stack([step.costs for step in steps]),
    )


def _seed_means(points: Points, options: PaperConfig, rng: np.random.Generator) -> Cells | None:
    """Return the means of the points nearest to each of K k-means++ seeds (Algorithm 1, lines 3-5).

    The authors' program sends the seeds themselves. A lone outlier is often one of them, and would
    count as a cluster at the coordinator.
    """
    seeds = kmeans_plus_plus(points.X, points.sizes.astype(np.float64), options.k, rng)
    sums = cluster_sums(points, nearest_centroid(points.X, seeds), seeds)
    return _keep_large_cells(sums.counts, sums.means, options, options.k)


def _update_means(task: MeansTask, points: Points, options: PaperConfig) -> Cells | None:
    """Do one k-means iteration from the global centroids (Algorithm 1, lines 13 to 18).

    As in the authors' program, S_i counts the points nearest to the new means.
    """
    centroids = task.centroids
    check_shape(centroids, (len(centroids), points.X.shape[1]), "/parameters/centroids")
    labels = nearest_centroid(points.X, centroids)
    if not options.drop_empty:
        labels = fill_empty_clusters(points.X, labels, centroids)
    sums = cluster_sums(points, labels, centroids)
    means = sums.means[sums.counts > 0]
    counts = cluster_sums(points, nearest_centroid(points.X, means), means).counts
    return _keep_large_cells(counts, means, options, len(centroids))


def _keep_large_cells(
    counts: NDArray[np.int64], means: NDArray[np.float64], options: PaperConfig, n_cells: int
) -> Cells | None:
    """Return the cells of at least ``drop_below`` persons, padded; None if there are none."""
    kept = counts >= options.drop_below
    if not kept.any():
        return None
    return kmeans_rounds.pad_cells(counts[kept], means[kept], n_cells)


def fill_empty_clusters(
    X: NDArray[np.float64], labels: NDArray[np.int64], centroids: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Return labels (m,) that give each empty cluster the point farthest from its centroid.

    As scikit-learn does, which the authors' program uses.
    """
    labels = labels.copy()
    gaps = ((X - centroids[labels]) ** 2).sum(axis=1)
    for empty in np.flatnonzero(np.bincount(labels, minlength=len(centroids)) == 0)[: len(X)]:
        farthest = int(tolerant_argmax(gaps))
        labels[farthest], gaps[farthest] = empty, -1.0
    return labels
