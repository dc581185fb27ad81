"""kfed at the coordinator: clustering the cells' means, and refinement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedclust.methods.common import kmeans_rounds
from fedclust.methods.common.cluster_sums import cluster_sums
from fedclust.methods.common.finalize import raw_result
from fedclust.methods.common.kmeans_rounds import Cells, StepTask
from fedclust.methods.kfed.config import PaperConfig, Variants
from fedclust.methods.kfed.local_cells import converged
from fedclust.methods.kfed.messages import AnyPayload, AnyTask, cells_task
from fedclust.numeric.arrays import FloatMatrix
from fedclust.numeric.canonical import tolerant_argmax
from fedclust.numeric.distances import first_occurrences, nearest_centroid, squared_distances
from fedclust.numeric.random import server_rng
from fedclust.numeric.weighted_kmeans import weighted_kmeans
from fedclust.schema.errors import MethodFailure
from fedclust.schema.model import Model
from fedclust.schema.points import row_points
from fedclust.schema.result import Result
from fedclust.schema.run_config import RunConfig
from fedclust.schema.task import Contribution, Done, Next, Task, payloads_of

# --- Aggregation ----------------------------------------------------------------------------------


class State(Model):
    """What a session keeps between rounds.

    Attributes
    ----------
    phase : {"cells", "refine"}
        What the open round asks.
    seed : int
    centroids : (K, d) float64 or None
        Scaled.
    mapping : dict of site to tuple of int
        Local cell to centroid; empty once refined, and with ``labels: nearest``.
    refined : int
        Lloyd rounds that have closed.
    """

    phase: Literal["cells", "refine"]
    seed: int
    centroids: FloatMatrix | None = None
    mapping: dict[str, tuple[int, ...]] = Field(default_factory=dict)
    refined: int = 0


def start(config: RunConfig[Variants], seed: int) -> tuple[State, Task[AnyTask]]:
    """Return the first state and task."""
    return State(phase="cells", seed=seed), Task("cells", cells_task(config.options))


def aggregate(
    state: State, contributions: Sequence[Contribution[AnyPayload]], config: RunConfig[Variants]
) -> Next[State, AnyTask] | Done:
    """Close a round; contributions sorted by site."""
    options = config.options
    metrics: dict[str, float] = {}
    mapping: dict[str, tuple[int, ...]] = {}
    refined = 0
    if state.phase == "cells" or state.centroids is None:
        centroids, mapping = _one_shot(state.seed, contributions, config)
    else:
        centroids, _, metrics = kmeans_rounds.combine_steps(state.centroids, contributions)
        refined = state.refined + 1
    following = State(
        phase="refine", seed=state.seed, centroids=centroids, mapping=mapping, refined=refined
    )
    if refined >= options.refine:
        return Done(finish(following, config), metrics)
    return Next(following, Task("refine", StepTask(centroids=centroids)), metrics)


def _one_shot(
    seed: int, contributions: Sequence[Contribution], config: RunConfig[Variants]
) -> tuple[NDArray[np.float64], dict[str, tuple[int, ...]]]:
    """Cluster the cells' means: return the centroids, and where each cell of a site belongs."""
    options = config.options
    sent = payloads_of(contributions, Cells)
    means = np.concatenate([cells.means for cells in sent.values()])
    if isinstance(options, PaperConfig):
        first = next(iter(sent.values()))
        seeds = farthest_first(means, first.means, options.k)
        placed, centroids = _server_lloyd(means, seeds, once=options.server_lloyd == "one")
    else:
        counts = np.concatenate([cells.counts for cells in sent.values()]).astype(np.float64)
        centroids = weighted_kmeans(means, counts, options.k, server_rng(seed, "kfed-cells"))
        placed = nearest_centroid(means, centroids)
    if options.labels == "nearest":
        return centroids, {}
    ends = np.cumsum([len(cells.counts) for cells in sent.values()])
    mapping = {
        site: tuple(int(group) for group in own)
        for site, own in zip(sent, np.split(placed, ends[:-1]), strict=True)
    }
    return centroids, mapping


def farthest_first(
    means: NDArray[np.float64], first: NDArray[np.float64], n_clusters: int
) -> NDArray[np.float64]:
    """Return M (K', d) of Algorithm 2, lines 2 to 6: one site's means, then always the farthest.

    Fewer than ``n_clusters`` where there are no more distinct means.
    """
    chosen = list(first[first_occurrences(first)])
    gap = np.full(len(means), np.inf)
    for seed in chosen:
        _shrink(gap, means, seed)
    while len(chosen) < n_clusters and gap.any():
        chosen.append(means[int(tolerant_argmax(gap))])
        _shrink(gap, means, chosen[-1])
    return np.array(chosen)


def _shrink(
    gap: NDArray[np.float64], means: NDArray[np.float64], seed: NDArray[np.float64]
) -> None:
    """Take one more seed into the squared distances (m,) of means from their nearest seed."""
    np.minimum(gap, squared_distances(means, seed[None])[:, 0], out=gap)
    # Rounding must not leave a gap between equal means, or one would be chosen twice.
    gap[(means == seed).all(axis=1)] = 0.0


def _server_lloyd(
    means: NDArray[np.float64], seeds: NDArray[np.float64], *, once: bool
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return (tau (m,), their means (K, d)) of Algorithm 2, line 7: every mean weighs the same."""
    points, placed = row_points(means), nearest_centroid(means, seeds)
    found = cluster_sums(points, placed, seeds) if once else converged(points, seeds)
    centroids = np.where(found.counts[:, None] > 0, found.means, found.centroids)
    return (placed if once else nearest_centroid(means, centroids)), centroids


# --- Convergence ----------------------------------------------------------------------------------


def finish(state: State, config: RunConfig) -> Result:
    """Return the last centroids: the number of rounds is fixed."""
    if state.centroids is None:
        raise MethodFailure("no_centroids", "no round of the method was closed: raise max_rounds")
    raw = raw_result(state.centroids, config, stopped_because="finished")
    return raw.model_copy(update={"mapping": state.mapping})
