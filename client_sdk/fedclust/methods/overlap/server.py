"""overlap at the coordinator: grouping and merging the sites' centroids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedclust.methods.common.finalize import raw_result
from fedclust.methods.common.kmeans_rounds import Cells
from fedclust.methods.common.own_features import collect_centroids, single_site_feature_warning
from fedclust.methods.common.partial_features import merge
from fedclust.methods.overlap.config import Config
from fedclust.methods.overlap.messages import AnyTask, FederatedTask, cells_task
from fedclust.methods.overlap.meta_clustering import cluster
from fedclust.numeric.arrays import BoolMatrix, FloatMatrix
from fedclust.schema.errors import MethodFailure
from fedclust.schema.model import Model
from fedclust.schema.result import Result
from fedclust.schema.run_config import RunConfig
from fedclust.schema.task import Contribution, Done, Next, Task, payloads_of

# --- Aggregation ----------------------------------------------------------------------------------


class State(Model):
    """What a session keeps between rounds.

    Attributes
    ----------
    phase : {"cells", "federated"}
        What the open round asks.
    centroids : (K, d) float64 or None
        Scaled; 0 where unknown.
    mask : (K, d) bool or None
        Where they are known.
    closed : int
        Federated rounds that have closed.
    warnings : tuple of str
    """

    phase: Literal["cells", "federated"]
    centroids: FloatMatrix | None = None
    mask: BoolMatrix | None = None
    closed: int = 0
    warnings: tuple[str, ...] = ()


def start(config: RunConfig[Config], seed: int) -> tuple[State, Task[AnyTask]]:
    """Return the first state and task."""
    del seed  # Sites draw from their own; the coordinator draws nothing.
    return State(phase="cells"), Task("cells", cells_task(config.options))


def aggregate(
    state: State, contributions: Sequence[Contribution[Cells]], config: RunConfig[Config]
) -> Next[State, AnyTask] | Done:
    """Close a round; contributions sorted by site."""
    options = config.options
    sent = payloads_of(contributions, Cells)
    metrics: dict[str, float] = {}
    warnings, closed = state.warnings, 0
    if state.centroids is None or state.mask is None:
        centroids, mask, warnings = _first_centroids(sent, config)
    else:
        centroids, mask, shift = _moved(state.centroids, state.mask, sent, config)
        metrics, closed = {"centroid_shift": shift}, state.closed + 1
    following = State(
        phase="federated", centroids=centroids, mask=mask, closed=closed, warnings=warnings
    )
    if closed >= options.rounds:
        return Done(finish(following, config), metrics)
    task = FederatedTask(centroids=centroids, mask=mask, iterations=options.local_iterations)
    return Next(following, Task("federated", task), metrics)


def _first_centroids(
    sent: Mapping[str, Cells], config: RunConfig[Config]
) -> tuple[NDArray[np.float64], NDArray[np.bool_], tuple[str, ...]]:
    """Lines 4 to 11: group the local centroids and merge each group; masks and warnings too."""
    options = config.options
    local = collect_centroids(sent, config)
    grouping, warnings = cluster(local, options.n_clusters, options.meta)
    merged = merge(local, grouping.groups, grouping.n_groups)
    return merged.means, merged.mask, (*warnings, *single_site_feature_warning(sent, config))


def _moved(
    centroids: NDArray[np.float64],
    mask: NDArray[np.bool_],
    sent: Mapping[str, Cells],
    config: RunConfig[Config],
) -> tuple[NDArray[np.float64], NDArray[np.bool_], float]:
    """Line 19: move every centroid by ``alpha`` towards what the sites sent for it; how far."""
    options = config.options
    groups = np.concatenate([np.flatnonzero(cells.counts) for cells in sent.values()])
    merged = merge(collect_centroids(sent, config), groups, len(centroids))
    # What nobody reports keeps its value; what was unknown is taken as it comes.
    step = np.where(merged.mask, np.where(mask, options.alpha, 1.0), 0.0)
    moved = centroids + step * (merged.means - centroids)
    shift = np.sqrt((np.where(mask, moved - centroids, 0.0) ** 2).sum(axis=1).max())
    return moved, mask | merged.mask, float(shift)


# --- Convergence ----------------------------------------------------------------------------------


def finish(state: State, config: RunConfig[Config]) -> Result:
    """Return the last centroids: the number of rounds is fixed."""
    if state.centroids is None or state.mask is None:
        raise MethodFailure("no_centroids", "no round of the method was closed: raise max_rounds")
    # Where every site has every feature there is nothing unknown.
    mask = state.mask if config.policy.missing == "mask" else None
    return raw_result(
        state.centroids,
        config,
        mask=mask,
        stopped_because="finished",
        warnings=state.warnings,
    )
