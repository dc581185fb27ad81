"""mixture at a site: local cells, sums over the first partition, E steps, probabilities."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedclust.methods.common import kmeans_rounds
from fedclust.methods.common.assign import label_by_probability
from fedclust.methods.common.cluster_sums import cluster_sums
from fedclust.methods.mixture.classes import NUMBER, Classes, column_kinds, log_densities, posterior
from fedclust.methods.mixture.config import Config
from fedclust.methods.mixture.messages import (
    AnyPayload,
    AnyTask,
    EMTask,
    Partition,
    PartitionTask,
    Weighted,
    check_classes,
)
from fedclust.numeric.distances import nearest_centroid
from fedclust.protection.message_checks import check_shape
from fedclust.protection.resolution import SIMILAR
from fedclust.schema.errors import RuleViolation
from fedclust.schema.method import LocalAnswer
from fedclust.schema.model import Memory
from fedclust.schema.points import Points, total_variances
from fedclust.schema.result import Result
from fedclust.schema.run_config import RunConfig
from fedclust.schema.task import SiteTask

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


def local_step(
    task: SiteTask[AnyTask],
    points: Points,
    config: RunConfig[Config],
    rng: np.random.Generator,
    memory: Memory,
) -> LocalAnswer[AnyPayload]:
    """Answer a task from a site's scaled points."""
    match task.common:
        case PartitionTask() as asked:
            return _partition(asked.centroids, points, config), memory
        case EMTask() as asked:
            return _expect(asked, points, config, memory)
        case asked:
            return kmeans_rounds.find_cells(asked, points, config, rng), memory


def _partition(centroids: FloatArray, points: Points, config: RunConfig) -> Partition:
    """Return the sums of the points nearest to each centroid (K, d)."""
    labels = nearest_centroid(points.X, centroids)
    weights = np.zeros((len(labels), len(centroids)))
    weights[np.arange(len(labels)), labels] = points.sizes
    within = variance_within(points, centroids)
    offsets, squares = _sums(points.X, within, weights, centroids, column_kinds(config.columns))
    return Partition(counts=weights.sum(axis=0).astype(np.int64), offsets=offsets, squares=squares)


def _expect(
    task: EMTask, points: Points, config: RunConfig[Config], memory: Memory
) -> LocalAnswer[AnyPayload]:
    """Do an E step.

    With ``proportions: by_site`` the site remembers what the step used and what it came to, and
    the next step uses the latter: this is the M step of the proportions.
    """
    kinds, classes = column_kinds(config.columns), task.classes
    proportions = classes.proportions
    totals = memory.get("totals")
    if totals is not None and len(totals) == len(proportions):
        proportions = totals / totals.sum()
    within = variance_within(points, task.start)
    densities = log_densities(points.X, within, classes, kinds, config.space)
    probabilities, logs = posterior(densities, proportions)
    weights = points.sizes[:, None] * probabilities
    offsets, squares = _sums(points.X, within, weights, classes.means, kinds)
    uncertain = probabilities * np.log(np.maximum(probabilities, np.finfo(np.float64).tiny))
    sent = Weighted(
        totals=weights.sum(axis=0),
        offsets=offsets,
        squares=squares,
        log_likelihood=float(points.sizes @ logs),
        entropy=-float(points.sizes @ uncertain.sum(axis=1)),
    )
    if config.options.proportions == "by_site":
        memory = {**memory, "proportions": proportions, "totals": sent.totals}
    return sent, memory


def _sums(
    X: FloatArray,
    within: FloatArray | None,
    weights: FloatArray,
    means: FloatArray,
    kinds: IntArray,
) -> tuple[FloatArray, FloatArray]:
    """Return weighted sums (K, d) of differences from the means, and of their squares.

    Sums of differences keep digits that sums of points far from the origin lose.
    """
    offsets, squares = np.zeros(means.shape), np.zeros(means.shape)
    for k in range(len(means)):
        apart = X - means[k]
        offsets[k] = weights[:, k] @ apart
        squares[k] = weights[:, k] @ (apart**2 if within is None else apart**2 + within)
    return offsets, np.where(kinds == NUMBER, squares, 0.0)


def variance_within(points: Points, start: FloatArray) -> FloatArray | None:
    """Return the variance (m, d) of the persons around each group's record; None for rows.

    The table releases one share for each column over all groups. Groups hold similar persons, so
    those of a tight class are tight: the same variance for all would blur it. The groups of each
    cell of the first partition get a part in proportion to how widely the cell's records are
    spread, on average over the columns, since a cell has few groups at a site. The mean over
    persons is the released variance. It is limited as for the warning about resolution: released
    shares are at least .05, which would blur clusters that are tight and far apart.

    These variances stay the same in all rounds, so that the log-likelihood never falls.

    Parameters
    ----------
    points : Points
    start : (K, d) float64
        The centroids of the first partition.
    """
    if not points.within.any():
        return None
    labels = nearest_centroid(points.X, start)
    cells = cluster_sums(points, labels, start)
    squares = np.zeros(start.shape)
    for j in range(start.shape[1]):
        apart = (points.X[:, j] - cells.means[labels, j]) ** 2 * points.sizes
        squares[:, j] = np.bincount(labels, weights=apart, minlength=len(start))
    # A cell of one group tells nothing of its spread: it counts as the others on average.
    measured = np.bincount(labels, minlength=len(start)) > 1
    mean = squares.sum(axis=0) / max(int(cells.counts[measured].sum()), 1)
    varied = mean > 0
    parts = np.ones(len(start))
    if varied.any():
        spread = squares[measured][:, varied] / cells.counts[measured][:, None]
        parts[measured] = (spread / mean[varied]).mean(axis=1)
    whole = points.within * total_variances(points)
    most = SIMILAR * (points.n / len(points.X) - 1.0) * float(mean.sum())
    if 0.0 < most < whole.sum():
        whole = whole * (most / whole.sum())
    return np.asarray(parts[labels][:, None] * whole)


# --- Labels ---------------------------------------------------------------------------------------


def probabilities(result: Result, X: FloatArray, memory: Memory | None) -> FloatArray:
    """Return the classes' probabilities (n, K) of complete scaled rows (n, d)."""
    soft, (n_classes, d) = result.soft or {}, result.centroids.shape
    shapes = {"proportions": (n_classes, 1), "order": (n_classes, 1), "kinds": (1, d)}
    for name, shape in {"variances": (n_classes, d), **shapes}.items():
        if name not in soft:
            raise RuleViolation("mixture", f"the classes have no {name}", "/soft")
        check_shape(soft[name], shape, f"/soft/{name}")
    classes = Classes(
        proportions=soft["proportions"][:, 0], means=result.centroids, variances=soft["variances"]
    )
    check_classes(classes, result.centroids.shape, "/soft")
    kinds, order = (soft[name].ravel().astype(np.int64) for name in ("kinds", "order"))
    proportions = classes.proportions
    own = None if memory is None else memory.get("proportions")
    if own is not None and 0 <= order.min() <= order.max() < len(own):
        proportions = own[order]
    return posterior(log_densities(X, None, classes, kinds, result.space), proportions)[0]


def label(result: Result, X: FloatArray, memory: Memory | None) -> IntArray:
    """Label rows in own units (n, d) by the most probable class; ties go to the first."""
    return label_by_probability(probabilities, result, X, memory)
