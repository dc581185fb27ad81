"""kfed at the coordinator: clustering the cells' means, and refinement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedclust.methods.common import kmeans_rounds
from fedclust.methods.common.cluster_sums import cluster_sums
from fedclust.methods.common.finalize import no_centroids, raw_result
from fedclust.methods.common.kmeans_rounds import Cells, StepTask
from fedclust.methods.kfed.config import PaperConfig, Variants
from fedclust.methods.kfed.local_cells import lloyd_to_convergence
from fedclust.methods.kfed.messages import AnyPayload, AnyTask, cells_task
from fedclust.numeric.arrays import FloatMatrix
from fedclust.numeric.canonical import tolerant_argmax
from fedclust.numeric.distances import first_occurrences, nearest_centroid, squared_distances
from fedclust.numeric.random import server_rng
from fedclust.numeric.weighted_kmeans import weighted_kmeans
from fedclust.schema.model import Model
from fedclust.schema.points import row_points
from fedclust.schema.result import Result
from fedclust.schema.run_config import RunConfig
from fedclust.schema.scaling import centroid_rule
from fedclust.schema.task import Contribution, Done, Next, Task, payloads_of

FloatArray = NDArray[np.float64]


class State(Model):
    """What a session keeps between rounds.

    Attributes
    ----------
    phase : {"cells", "refine"}
        The phase of the open round.
    seed : int
    centroids : (K, d) float64 or None
        Scaled.
    mapping : dict of site to tuple of int
        The cluster of each of its cells; empty after refinement, and with ``labels: nearest``.
    refined : int
        Refinement rounds closed.
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
    """Aggregate a round; contributions are sorted by site."""
    options = config.options
    metrics: dict[str, float] = {}
    mapping: dict[str, tuple[int, ...]] = {}
    refined = 0
    if state.phase == "cells" or state.centroids is None:
        centroids, mapping = _cluster_cells(state.seed, contributions, config)
    else:
        centroids, _, metrics = kmeans_rounds.combine_steps(state.centroids, contributions, config)
        refined = state.refined + 1
    following = State(
        phase="refine", seed=state.seed, centroids=centroids, mapping=mapping, refined=refined
    )
    if refined >= options.refine:
        return Done(finish(following, config), metrics)
    return Next(following, Task("refine", StepTask(centroids=centroids)), metrics)


def _cluster_cells(
    seed: int, contributions: Sequence[Contribution], config: RunConfig[Variants]
) -> tuple[FloatArray, dict[str, tuple[int, ...]]]:
    """Cluster the cells' means; return the centroids and the mapping of :class:`State`."""
    options, sent = config.options, payloads_of(contributions, Cells)
    means = np.concatenate([cells.means for cells in sent.values()])
    if isinstance(options, PaperConfig):
        first = next(iter(sent.values()))
        seeds = farthest_first(means, first.means, options.k)
        clusters, centroids = _server_lloyd(means, seeds, once=options.server_lloyd == "one")
    else:
        counts = np.concatenate([cells.counts for cells in sent.values()]).astype(np.float64)
        rng, rule = server_rng(seed, "kfed-cells"), centroid_rule(config)
        centroids = weighted_kmeans(means, counts, options.k, rng, rule=rule)
        clusters = nearest_centroid(means, centroids)
    if options.labels == "nearest":
        return centroids, {}
    ends = np.cumsum([len(cells.counts) for cells in sent.values()])
    by_site = zip(sent, np.split(clusters, ends[:-1]), strict=True)
    return centroids, {site: tuple(own.tolist()) for site, own in by_site}


def farthest_first(means: FloatArray, first: FloatArray, n_clusters: int) -> FloatArray:
    """Return the seeds M (K', d) of Algorithm 2, lines 2 to 6.

    One site's means, then each time the mean farthest from all seeds. Fewer than ``n_clusters``
    if there are not enough distinct means.

    Parameters
    ----------
    means : (m, d) float64
        Of all sites.
    first : (k', d) float64
        Of one site.
    n_clusters : int
    """
    seeds = list(first[first_occurrences(first)])
    gaps = np.full(len(means), np.inf)
    for number in range(n_clusters):
        if number == len(seeds):
            if not gaps.any():
                break
            seeds.append(means[int(tolerant_argmax(gaps))])
        np.minimum(gaps, squared_distances(means, seeds[number][None])[:, 0], out=gaps)
        # Rounding must not leave a gap between equal means, or one would be chosen twice.
        gaps[(means == seeds[number]).all(axis=1)] = 0.0
    return np.array(seeds)


def _server_lloyd(
    means: FloatArray, seeds: FloatArray, *, once: bool
) -> tuple[NDArray[np.int64], FloatArray]:
    """Return the clusters tau (m,) and centroids (K, d) of Algorithm 2, line 7.

    All means have the same weight.
    """
    points, clusters = row_points(means), nearest_centroid(means, seeds)
    found = cluster_sums(points, clusters, seeds) if once else lloyd_to_convergence(points, seeds)
    centroids = np.where(found.counts[:, None] > 0, found.means, found.centroids)
    return (clusters if once else nearest_centroid(means, centroids)), centroids


def finish(state: State, config: RunConfig) -> Result:
    """Return the last centroids: the number of rounds is fixed."""
    if state.centroids is None:
        raise no_centroids()
    raw = raw_result(state.centroids, config, stopped_because="finished")
    return raw.model_copy(update={"mapping": state.mapping})
