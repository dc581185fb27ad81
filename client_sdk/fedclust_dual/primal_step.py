"""The primal side of `dual`: the cost of centroids over all sites, and Lloyd steps from them.

The cost of one set of centroids is equation 34 of Yfantis et al., "Federated K-means clustering via
dual decomposition-based distributed optimization".
"""

from collections.abc import Mapping

import numpy as np

from fedclust.methods.common.kmeans_rounds import Step
from fedclust.numeric.array_types import FloatArray
from fedclust.numeric.distances import nearest_centroid
from fedclust.schema.run_config import RunConfig
from fedclust.schema.scaling import scaled_bounds
from fedclust_dual.messages import DualCells


def step_from_cells(cells: DualCells, references: FloatArray) -> Step:
    """Return a site's Lloyd step in which each cell as one goes to the nearest reference.

    Parameters
    ----------
    cells : DualCells
    references : (K, d) float64
    """
    labels = nearest_centroid(cells.means, references)
    counts = np.zeros(len(references), dtype=np.int64)
    sums = np.zeros_like(references)
    costs = np.zeros(len(references))
    np.add.at(counts, labels, cells.counts)
    np.add.at(sums, labels, cells.counts[:, None] * cells.means)
    squares = ((cells.means - references[labels]) ** 2).sum(axis=1)
    np.add.at(costs, labels, cells.costs + cells.counts * squares)
    return Step(counts=counts, sums=sums, costs=costs)


def total_cost(steps: Mapping[str, Step]) -> float:
    """Return the cost of the steps' centroids over all sites."""
    return float(sum(step.costs.sum() for step in steps.values()))


def lloyd_step(
    steps: Mapping[str, Step], centroids: FloatArray, config: RunConfig
) -> tuple[FloatArray, float]:
    """Return the centroids after a Lloyd step, and an upper bound of their cost.

    Parameters
    ----------
    steps : mapping of site to Step
        From ``centroids``.
    centroids : (K, d) float64
        Scaled.
    config : RunConfig

    Returns
    -------
    moved : (K, d) float64
        The clusters' means, within the declared bounds; an empty cluster keeps its centroid.
    cost : float
    """
    counts = np.sum([step.counts for step in steps.values()], axis=0)
    sums = np.sum([step.sums for step in steps.values()], axis=0)
    lower, upper = scaled_bounds(config)
    means = sums / np.maximum(counts, 1)[:, None]
    moved = np.clip(np.where((counts > 0)[:, None], means, centroids), lower, upper)
    change = ((means - moved) ** 2 - (means - centroids) ** 2).sum(axis=1) * counts
    return moved, max(total_cost(steps) + float(change.sum()), 0.0)
