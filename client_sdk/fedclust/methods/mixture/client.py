"""mixture at a site: local cells, sums over the first partition, E steps, probabilities."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedclust.methods.common import kmeans_rounds
from fedclust.methods.common.assign import label_by_probability
from fedclust.methods.mixture.artificial import draw_persons
from fedclust.methods.mixture.classes import NUMBER, Classes, column_kinds, log_densities, posterior
from fedclust.methods.mixture.config import Config
from fedclust.methods.mixture.em import expect, weighted_sums
from fedclust.methods.mixture.messages import (
    AnyPayload,
    AnyTask,
    EMTask,
    Partition,
    PartitionTask,
    check_classes,
)
from fedclust.numeric.distances import nearest_centroid
from fedclust.protection.message_checks import check_shape
from fedclust.schema.errors import RuleViolation
from fedclust.schema.method import LocalAnswer
from fedclust.schema.model import Memory
from fedclust.schema.points import Points
from fedclust.schema.result import Result
from fedclust.schema.run_config import RunConfig
from fedclust.schema.scaling import scaled_bounds
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
            return _expect(asked, points, config, rng, memory)
        case asked:
            return kmeans_rounds.find_cells(asked, points, config, rng), memory


def _partition(centroids: FloatArray, points: Points, config: RunConfig) -> Partition:
    """Return the sums of the points nearest to each centroid (K, d)."""
    labels = nearest_centroid(points.X, centroids)
    weights = np.zeros((len(labels), len(centroids)))
    weights[np.arange(len(labels)), labels] = points.sizes
    offsets, squares = weighted_sums(points.X, weights, centroids, column_kinds(config.columns))
    return Partition(counts=weights.sum(axis=0).astype(np.int64), offsets=offsets, squares=squares)


def _expect(
    task: EMTask,
    points: Points,
    config: RunConfig[Config],
    rng: np.random.Generator,
    memory: Memory,
) -> LocalAnswer[AnyPayload]:
    """Do an E step.

    The site remembers the seed of its artificial persons: they are the same in all rounds. With
    ``proportions: by_site`` it also remembers what the step used and what it came to, and the next
    step uses the latter: this is the M step of the proportions.
    """
    classes = task.classes
    totals = memory.get("totals")
    if totals is not None and len(totals) == len(classes.proportions):
        classes = classes.model_copy(update={"proportions": totals / totals.sum()})
    memory = {"seed": int(rng.integers(2**62)), **memory}
    sent = expect(*_persons(points, config, memory["seed"]), classes, config)
    if config.options.proportions == "by_site":
        memory = {**memory, "proportions": classes.proportions, "totals": sent.totals}
    return sent, memory


def _persons(points: Points, config: RunConfig, seed: int) -> tuple[FloatArray, FloatArray]:
    """Return rows, or artificial persons around the records (q, d), and their weights (q,)."""
    if config.policy.protection == "none":
        return points.X, points.sizes.astype(np.float64)
    key = f"artificial {seed}"
    if key not in points.derived:
        numbers = column_kinds(config.columns) == NUMBER
        X, weights = draw_persons(points, numbers, np.random.default_rng(seed))
        points.derived[key] = np.clip(X, *scaled_bounds(config)), weights
    found: tuple[FloatArray, FloatArray] = points.derived[key]
    return found


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
    return posterior(log_densities(X, classes, kinds, result.space), proportions)[0]


def label(result: Result, X: FloatArray, memory: Memory | None) -> IntArray:
    """Label rows in own units (n, d) by the most probable class; ties go to the first."""
    return label_by_probability(probabilities, result, X, memory)
