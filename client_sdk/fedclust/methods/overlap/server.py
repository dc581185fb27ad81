"""overlap at the coordinator: grouping and merging the sites' centroids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedclust.methods.common.finalize import no_centroids, raw_result
from fedclust.methods.common.kmeans_rounds import Cells
from fedclust.methods.common.own_features import collect_centroids, single_site_feature_warning
from fedclust.methods.common.partial_features import sum_groups
from fedclust.methods.overlap.config import Config
from fedclust.methods.overlap.messages import AnyTask, FederatedTask, cells_task
from fedclust.methods.overlap.meta_clustering import group_centroids
from fedclust.numeric.arrays import BoolMatrix, FloatMatrix
from fedclust.schema.model import Model
from fedclust.schema.result import Result
from fedclust.schema.run_config import RunConfig
from fedclust.schema.task import Contribution, Done, Next, Task, payloads_of

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


class State(Model):
    """What a session keeps between rounds.

    Attributes
    ----------
    phase : {"cells", "federated"}
        The phase of the open round.
    centroids : (K, d) float64 or None
        Scaled; 0 where unknown.
    mask : (K, d) bool or None
        The entries that are known.
    closed : int
        Federated rounds closed.
    warnings : tuple of str
    """

    phase: Literal["cells", "federated"]
    centroids: FloatMatrix | None = None
    mask: BoolMatrix | None = None
    closed: int = 0
    warnings: tuple[str, ...] = ()


def start(config: RunConfig[Config], seed: int) -> tuple[State, Task[AnyTask]]:
    """Return the first state and task."""
    del seed  # The coordinator draws nothing.
    return State(phase="cells"), Task("cells", cells_task(config.options))


def aggregate(
    state: State, contributions: Sequence[Contribution[Cells]], config: RunConfig[Config]
) -> Next[State, AnyTask] | Done:
    """Aggregate a round; contributions are sorted by site."""
    options = config.options
    sent = payloads_of(contributions, Cells)
    metrics: dict[str, float] = {}
    warnings, closed = state.warnings, 0
    if state.centroids is None or state.mask is None:
        centroids, mask, warnings = _first_centroids(sent, config)
    else:
        centroids, mask, shift = _move_centroids(state.centroids, state.mask, sent, config)
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
) -> tuple[FloatArray, BoolArray, tuple[str, ...]]:
    """Group and merge the local centroids (lines 4 to 11); return means, masks and warnings."""
    options = config.options
    local = collect_centroids(sent, config)
    grouping, warnings = group_centroids(local, options.n_clusters, options.meta)
    merged = sum_groups(local, grouping.groups, grouping.n_groups)
    return merged.means, merged.mask, (*warnings, *single_site_feature_warning(sent, config))


def _move_centroids(
    centroids: FloatArray, mask: BoolArray, sent: Mapping[str, Cells], config: RunConfig[Config]
) -> tuple[FloatArray, BoolArray, float]:
    """Move every centroid by ``alpha`` towards what the sites sent for it (line 19).

    Entries that no site reports keep their value; those unknown before take the new one. Also
    returns the new masks and the largest move.
    """
    options = config.options
    groups = np.concatenate([np.flatnonzero(cells.counts) for cells in sent.values()])
    merged = sum_groups(collect_centroids(sent, config), groups, len(centroids))
    step = np.where(merged.mask, np.where(mask, options.alpha, 1.0), 0.0)
    moved = centroids + step * (merged.means - centroids)
    shift = np.sqrt((np.where(mask, moved - centroids, 0.0) ** 2).sum(axis=1).max())
    return moved, mask | merged.mask, float(shift)


def finish(state: State, config: RunConfig[Config]) -> Result:
    """Return the last centroids: the number of rounds is fixed."""
    if state.centroids is None:
        raise no_centroids()
    # Without ``missing: mask`` every site has every feature, and nothing is unknown.
    mask = state.mask if config.policy.missing == "mask" else None
    return raw_result(
        state.centroids, config, mask=mask, stopped_because="finished", warnings=state.warnings
    )
