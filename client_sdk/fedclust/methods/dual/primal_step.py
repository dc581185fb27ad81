"""The primal side of `dual`: what sites' measured cells cost, and where a Lloyd step takes them.

Yfantis et al., "Federated K-means clustering via dual decomposition-based distributed
optimization", equation 34, for the cost of one set of centroids at all sites.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedclust.methods.dual.messages import DualCells, PrimalAnswer
from fedclust.numeric.distances import nearest_centroid
from fedclust.schema.run_config import RunConfig
from fedclust.schema.scaling import scaled_bounds

__all__ = ["Step", "cost_of", "lloyd_step"]


@dataclass(frozen=True)
class Step:
    """A site's part of one candidate: ``counts``, ``costs`` (K,) and ``sums`` (K, d)."""

    counts: NDArray[np.int64]
    sums: NDArray[np.float64]
    costs: NDArray[np.float64]

    @classmethod
    def of(cls, answer: PrimalAnswer, i: int) -> Step:
        return cls(answer.counts[i], answer.sums[i], answer.costs[i])

    @classmethod
    def of_cells(cls, cells: DualCells, references: NDArray[np.float64]) -> Step:
        """Return a site's cells, each gone whole to the reference nearest its mean."""
        placed = nearest_centroid(cells.means, references)
        counts = np.zeros(len(references), dtype=np.int64)
        sums = np.zeros_like(references)
        costs = np.zeros(len(references))
        np.add.at(counts, placed, cells.counts)
        np.add.at(sums, placed, cells.counts[:, None] * cells.means)
        away = ((cells.means - references[placed]) ** 2).sum(axis=1)
        np.add.at(costs, placed, cells.costs + cells.counts * away)
        return cls(counts, sums, costs)

    def numbered(self, order: NDArray[np.int64]) -> Step:
        """Return the same with cluster ``order[k]`` as number k."""
        return Step(self.counts[order], self.sums[order], self.costs[order])


def cost_of(steps: Mapping[str, Step]) -> float:
    """Return what centroids cost at all sites."""
    return float(sum(own.costs.sum() for own in steps.values()))


def lloyd_step(
    steps: Mapping[str, Step], centroids: NDArray[np.float64], config: RunConfig
) -> tuple[NDArray[np.float64], float]:
    """Return the cells' means (K, d) over all sites, and what they cost at most."""
    counts = np.sum([own.counts for own in steps.values()], axis=0)
    sums = np.sum([own.sums for own in steps.values()], axis=0)
    lower, upper = scaled_bounds(config)
    means = sums / np.maximum(counts, 1)[:, None]
    moved = np.clip(np.where((counts > 0)[:, None], means, centroids), lower, upper)
    change = ((means - moved) ** 2 - (means - centroids) ** 2).sum(axis=1) * counts
    return moved, max(cost_of(steps) + float(change.sum()), 0.0)
