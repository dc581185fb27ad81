"""lloyd at the coordinator: initial centroids, Lloyd steps, convergence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedclust.methods.common.convergence import Judgement, judge
from fedclust.methods.common.finalize import raw_result
from fedclust.methods.common.given_start import given_centroids
from fedclust.methods.common.kmeans_rounds import (
    AnyPayload,
    AnyTask,
    CellsTask,
    StepTask,
    best_centroids,
    collect_cells,
    combine_steps,
)
from fedclust.methods.lloyd.config import Config
from fedclust.numeric.arrays import FloatMatrix
from fedclust.numeric.random import server_rng
from fedclust.numeric.weighted_kmeans import weighted_kmeans
from fedclust.schema.model import Model
from fedclust.schema.result import Result
from fedclust.schema.run_config import RunConfig
from fedclust.schema.scaling import centroid_rule
from fedclust.schema.task import Contribution, Done, Next, Task


class State(Model):
    """What a session keeps between rounds.

    Attributes
    ----------
    phase : {"cells", "lloyd"}
        The phase of the open round.
    seed : int
    centroids : (K, d) float64 or None
        Scaled; the sites of the open round assign their points to them.
    judgement : Judgement
    """

    phase: Literal["cells", "lloyd"]
    seed: int
    centroids: FloatMatrix | None = None
    judgement: Judgement = Judgement()


def start(config: RunConfig[Config], seed: int) -> tuple[State, Task[AnyTask]]:
    """Return the first state and task."""
    options = config.options
    centroids = given_centroids(config)
    if centroids is not None:
        state = State(phase="lloyd", seed=seed, centroids=centroids)
        return state, _step_task(centroids)
    task = CellsTask(n_clusters=options.k, n_init=options.n_init)
    return State(phase="cells", seed=seed), Task("cells", task)


def _step_task(centroids: NDArray[np.float64]) -> Task[StepTask]:
    return Task("lloyd", StepTask(centroids=centroids))


def aggregate(
    state: State, contributions: Sequence[Contribution[AnyPayload]], config: RunConfig[Config]
) -> Next[State, StepTask] | Done:
    """Aggregate a round; contributions are sorted by site."""
    options = config.options
    if state.phase == "cells" or state.centroids is None:
        means, counts = collect_cells(contributions)
        rng = server_rng(state.seed, "lloyd-start")
        centroids = weighted_kmeans(means, counts, options.k, rng, rule=centroid_rule(config))
        following = state.model_copy(update={"phase": "lloyd", "centroids": centroids})
        return Next(following, _step_task(centroids))
    moved, costs, metrics = combine_steps(state.centroids, contributions, config)
    judgement = judge(state.judgement, state.centroids, costs, config, options.tol)
    following = state.model_copy(update={"centroids": moved, "judgement": judgement})
    if judgement.converged:
        return Done(finish(following, config), metrics)
    return Next(following, _step_task(moved), metrics)


def finish(state: State, config: RunConfig) -> Result:
    """Return the best centroids of all rounds judged, or the last ones if none was."""
    because = "converged" if state.judgement.converged else ""
    centroids = best_centroids(state.judgement, state.centroids)
    return raw_result(centroids, config, stopped_because=because)
