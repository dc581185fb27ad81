"""The primal side of `dual`: what sites' measured cells cost, and where a Lloyd step takes them.

Yfantis et al., "Federated K-means clustering via dual decomposition-based distributed
optimization", equation 34, for the cost of one set of centroids at all sites.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedclust.algorithms.assigning import nearest
from fedclust.algorithms.base import RunConfig
from fedclust.algorithms.dual_answers import PrimalAnswer
from fedclust.algorithms.judging import rest_cost
from fedclust.algorithms.spaces import scaled_bounds

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
    def of_cells(
        cls,
        counts: NDArray[np.int64],
        means: NDArray[np.float64],
        references: NDArray[np.float64],
    ) -> Step:
        """Return a site's cells, each gone whole to the reference nearest its mean."""
        placed = nearest(means, references)
        n_rows = np.zeros(len(references), dtype=np.int64)
        sums = np.zeros_like(references)
        np.add.at(n_rows, placed, counts)
        np.add.at(sums, placed, counts[:, None] * means)
        return cls(n_rows, sums, np.zeros(len(references)))

    def numbered(self, order: NDArray[np.int64]) -> Step:
        """Return the same with cluster ``order[k]`` as number k."""
        return Step(self.counts[order], self.sums[order], self.costs[order])


def cost_of(steps: Mapping[str, Step], centroids: NDArray[np.float64], config: RunConfig) -> float:
    """Return what centroids cost at most at all sites: rows that were not told as one cell.

    Whatever the rows' cells are, another assignment costs no less than the best one.
    """
    total = 0.0
    for site, own in steps.items():
        rest = rest_cost(config.totals[site], own.counts, own.sums, own.costs, centroids)
        total += float(own.costs.sum()) + rest
    return max(total, 0.0)


def lloyd_step(
    steps: Mapping[str, Step], centroids: NDArray[np.float64], config: RunConfig
) -> tuple[NDArray[np.float64], float]:
    """Return the cells' means (K, d) over all sites, and what they cost at most."""
    counts = np.sum([own.counts for own in steps.values()], axis=0)
    sums = np.sum([own.sums for own in steps.values()], axis=0)
    lower, upper = scaled_bounds(config)
    means = sums / np.maximum(counts, 1)[:, None]
    moved = np.clip(np.where((counts > 0)[:, None], means, centroids), lower, upper)
    about_moved = {}
    for site, own in steps.items():
        mean = own.sums / np.maximum(own.counts, 1)[:, None]
        change = ((mean - moved) ** 2 - (mean - centroids) ** 2).sum(axis=1) * own.counts
        about_moved[site] = Step(own.counts, own.sums, own.costs + change)
    return moved, cost_of(about_moved, moved, config)
