"""lloyd: exact distributed Lloyd, the baseline that the federated k-means papers compare with.

What it says and cites
    Lloyd, "Least squares quantization in PCM", IEEE Trans. Inf. Theory 28 (1982). A k-means step
    needs of each site only the sum, the count and the cost of every cluster, so its distributed
    form equals the central one on all sites' points from the same start: same labels, centres to
    rounding.

The start is ``given``, or (``cells``) the weighted k-means of all sites' local cell means.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedclust.methods.common.assign import label_by_centroid
from fedclust.methods.common.cluster_sums import check_sizes, cluster_sums
from fedclust.methods.common.convergence import Judgement, judge
from fedclust.methods.common.finalize import raw_result
from fedclust.methods.common.local_kmeans import local_kmeans
from fedclust.methods.common.options import Restarts, SweptOptions, Tolerance
from fedclust.numeric.arrays import FloatMatrix, FloatVector, IntVector
from fedclust.numeric.canonical import closeness
from fedclust.numeric.distances import nearest
from fedclust.numeric.random import server_rng
from fedclust.numeric.weighted_kmeans import weighted_kmeans
from fedclust.protection.message_checks import check_costs, check_empty, check_means, check_shape
from fedclust.schema.encoding import transformed
from fedclust.schema.errors import MethodFailure, RuleViolation
from fedclust.schema.method import LocalAnswer, Method
from fedclust.schema.model import Memory, Model
from fedclust.schema.points import Points
from fedclust.schema.result import Result
from fedclust.schema.run_config import RunConfig
from fedclust.schema.scaling import own_bounds, scaled_bounds
from fedclust.schema.task import Contribution, Disclosure, Done, Next, Phase, SiteTask, Task

VERSION = 4

# --- Config ---------------------------------------------------------------------------------------


class Config(SweptOptions, title="LloydConfig"):
    """What the analyst chooses.

    Attributes
    ----------
    n_clusters : int or tuple of int
        Number of clusters K; several for a sweep.
    start : {"cells", "given"}
        Where the first centroids come from.
    centroids : (K, d) float64 or None
        In the features' own units, a column for each level; needed by ``start: given``.
    n_init : int
        Restarts of each site's local k-means.
    tol : float
        Relative improvement of the inertia below which a round counts as no improvement.
    """

    start: Literal["cells", "given"] = "cells"
    centroids: FloatMatrix | None = None
    n_init: Restarts = 3
    tol: Tolerance = 1e-6


def check_config(config: RunConfig) -> None:
    """Refuse options that do not fit each other or the features."""
    options: Config = config.options
    if options.start == "cells":
        if options.centroids is not None:
            raise RuleViolation(
                "start", "centroids are only for start: given; leave them out", "/centroids"
            )
        return
    if options.centroids is None:
        raise RuleViolation("start", "start: given needs centroids", "/centroids")
    check_shape(options.centroids, (options.k, len(config.columns)), "/centroids")
    check_means(
        np.ones(options.k, dtype=np.int64),
        transformed(config.columns, options.centroids),
        *own_bounds(config.columns),
        "/centroids",
    )


# --- Payloads -------------------------------------------------------------------------------------


class CellsTask(Model):
    """Cluster your points by yourself into at most ``n_clusters`` cells, with ``n_init`` starts."""

    n_clusters: Annotated[int, Field(ge=1)]
    n_init: Annotated[int, Field(ge=1)]


class Cells(Model):
    """A site's local cells.

    Attributes
    ----------
    counts : (K,) int64
        Persons in each cell; 0 for the cells that are not there, whose means are 0.
    means : (K, d) float64
        Scaled.
    """

    counts: IntVector
    means: FloatMatrix


class StepTask(Model):
    """Assign your points to the nearest of ``centroids`` (K, d), scaled; ties to the lowest."""

    centroids: FloatMatrix


class Step(Model):
    """A site's part of one Lloyd step: additive, and of the same shape at every site.

    Attributes
    ----------
    counts : (K,) int64
        Persons.
    sums : (K, d) float64
        Scaled.
    costs : (K,) float64
        Squared distances of the points from the task's centroid, added up.
    """

    counts: IntVector
    sums: FloatMatrix
    costs: FloatVector


#: What counts and sums of points tell of persons.
OF_GROUPS = "Sums over whole groups of your protected table."
PHASES = (
    Phase(
        name="cells",
        once=True,
        summary="Each site clusters its own points; the cells' means give the first centroids.",
        task=CellsTask,
        payload=Cells,
        discloses=(
            Disclosure(
                field="counts",
                shape="K numbers",
                meaning="How many of your persons are in each cell of your own clustering.",
                identifies=OF_GROUPS,
            ),
            Disclosure(
                field="means",
                shape="K x d numbers",
                meaning="The mean of each column over each cell, scaled.",
                identifies=OF_GROUPS,
            ),
        ),
    ),
    Phase(
        name="lloyd",
        summary="Each site assigns its points to the nearest centroid and adds them up.",
        task=StepTask,
        payload=Step,
        discloses=(
            Disclosure(
                field="counts",
                shape="K numbers",
                meaning="How many of your persons are nearest to each centroid.",
                identifies=OF_GROUPS,
            ),
            Disclosure(
                field="sums",
                shape="K x d numbers",
                meaning="The sum of each column over these, scaled.",
                identifies=OF_GROUPS,
            ),
            Disclosure(
                field="costs",
                shape="K numbers",
                meaning="How far their records lie from the centroid, squared and added up.",
                identifies=OF_GROUPS,
            ),
        ),
    ),
)


def check_task(task: SiteTask, config: RunConfig) -> None:
    """Refuse other cells, more clusters or another start than the definition names."""
    check_numbers(task, config)
    given = _given(config)
    if config.first and given is not None:
        asked = task.common.centroids
        if asked.shape != given.shape or (np.abs(asked - given) > closeness(given)).any():
            raise RuleViolation(
                "task", "the definition gives other first centroids", "/parameters/centroids"
            )


def check_numbers(task: SiteTask, config: RunConfig) -> None:
    """Refuse another number of clusters or restarts than the definition names."""
    options: Config = config.options
    if task.phase == "cells":
        asked: CellsTask = task.common
        if (asked.n_clusters, asked.n_init) != (options.k, options.n_init):
            raise RuleViolation(
                "task", "the task asks for other cells than the definition", "/parameters"
            )
    elif len(task.common.centroids) > options.k:
        raise RuleViolation(
            "task", f"the definition names {options.k} clusters", "/parameters/centroids"
        )


def check(task: SiteTask, payload: Cells | Step, config: RunConfig) -> None:
    """Check an answer at either end: shapes, counts, bounds, costs."""
    if isinstance(payload, Cells):
        check_cells(payload, task.common.n_clusters, config)
    else:
        check_step(payload, task.common.centroids, config)


def check_cells(payload: Cells, n_cells: int, config: RunConfig) -> None:
    """Check a site's ``n_cells`` local cells; RuleViolation."""
    check_shape(payload.counts, (n_cells,), "/counts")
    check_shape(payload.means, (n_cells, len(config.columns)), "/means")
    check_sizes(payload.counts, config)
    check_empty(payload.counts, payload.means, "/means")
    check_means(payload.counts, payload.means, *scaled_bounds(config), "/means")


def check_step(payload: Step, centroids: NDArray[np.float64], config: RunConfig) -> None:
    """Check a site's part of one Lloyd step from ``centroids`` (K, d); RuleViolation."""
    check_shape(payload.counts, (len(centroids),), "/counts")
    check_shape(payload.sums, (len(centroids), len(config.columns)), "/sums")
    check_shape(payload.costs, (len(centroids),), "/costs")
    check_sizes(payload.counts, config)
    check_empty(payload.counts, payload.sums, "/sums")
    check_empty(payload.counts, payload.costs, "/costs")
    means = payload.sums / np.maximum(payload.counts, 1)[:, None]
    check_means(payload.counts, means, *scaled_bounds(config), "/sums")
    check_costs(payload.counts, payload.sums, payload.costs, centroids)


# --- Local step -----------------------------------------------------------------------------------


def local_step(
    task: SiteTask, points: Points, config: RunConfig, rng: np.random.Generator, memory: Memory
) -> LocalAnswer:
    """Answer a task from a site's scaled points."""
    del config
    if task.phase == "cells":
        return _cells(task.common, points, rng), memory
    return add_up(task.common.centroids, points), memory


def _cells(task: CellsTask, points: Points, rng: np.random.Generator) -> Cells:
    found = local_kmeans(points, task.n_clusters, task.n_init, rng)
    return padded(found.counts, found.means, task.n_clusters)


def padded(counts: NDArray[np.int64], means: NDArray[np.float64], n_cells: int) -> Cells:
    """Return cells of counts (m,) and means (m, d), and empty ones after them."""
    lacking = n_cells - len(counts)
    return Cells(counts=np.pad(counts, (0, lacking)), means=np.pad(means, ((0, lacking), (0, 0))))


def add_up(centroids: NDArray[np.float64], points: Points) -> Step:
    """Return a site's part of one Lloyd step from ``centroids`` (K, d)."""
    check_shape(centroids, (len(centroids), points.X.shape[1]), "/parameters/centroids")
    sums = cluster_sums(points, nearest(points.X, centroids), centroids)
    return Step(counts=sums.counts, sums=sums.sums, costs=sums.costs)


# --- Aggregation ----------------------------------------------------------------------------------


class State(Model):
    """What a session keeps between rounds.

    Attributes
    ----------
    phase : {"cells", "lloyd"}
        What the open round asks.
    seed : int
    centroids : (K, d) float64 or None
        Scaled; what the open round assigns to.
    judgement : Judgement
    """

    phase: Literal["cells", "lloyd"]
    seed: int
    centroids: FloatMatrix | None = None
    judgement: Judgement = Judgement()


def start(config: RunConfig, seed: int) -> tuple[State, Task]:
    """Return the first state and task."""
    options: Config = config.options
    centroids = _given(config)
    if centroids is not None:
        state = State(phase="lloyd", seed=seed, centroids=centroids)
        return state, _step_task(centroids)
    task = CellsTask(n_clusters=options.k, n_init=options.n_init)
    return State(phase="cells", seed=seed), Task("cells", task)


def _given(config: RunConfig) -> NDArray[np.float64] | None:
    """Return the definition's first centroids (K, d), scaled."""
    given = config.options.centroids
    return None if given is None else config.space.to_scaled(transformed(config.columns, given))


def _step_task(centroids: NDArray[np.float64]) -> Task:
    return Task("lloyd", StepTask(centroids=centroids))


def aggregate(
    state: State, contributions: Sequence[Contribution], config: RunConfig
) -> Next | Done:
    """Close a round; contributions sorted by site."""
    if state.phase == "cells" or state.centroids is None:
        return _first_centroids(state, contributions, config)
    return _lloyd_step(state, state.centroids, contributions, config)


def _first_centroids(
    state: State, contributions: Sequence[Contribution], config: RunConfig
) -> Next:
    options: Config = config.options
    means, counts = sent_cells(contributions)
    centroids = weighted_kmeans(means, counts, options.k, server_rng(state.seed, "lloyd-start"))
    following = state.model_copy(update={"phase": "lloyd", "centroids": centroids})
    return Next(following, _step_task(centroids))


def sent_cells(
    contributions: Sequence[Contribution],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the means (m, d) of all cells that the sites sent, and their counts (m,)."""
    sent: list[Cells] = [c.payload for c in contributions if c.payload is not None]
    counts = np.concatenate([cells.counts for cells in sent])
    means = np.concatenate([cells.means for cells in sent])
    return means[counts > 0], counts[counts > 0].astype(np.float64)


def _lloyd_step(
    state: State,
    centroids: NDArray[np.float64],
    contributions: Sequence[Contribution],
    config: RunConfig,
) -> Next | Done:
    options: Config = config.options
    moved, costs, metrics = step(centroids, contributions)
    judgement = judge(state.judgement, centroids, costs, config, options.tol)
    following = state.model_copy(update={"centroids": moved, "judgement": judgement})
    if judgement.converged:
        return Done(finish(following, config), metrics)
    return Next(following, _step_task(moved), metrics)


def step(
    centroids: NDArray[np.float64], contributions: Sequence[Contribution]
) -> tuple[NDArray[np.float64], dict[str, float | None], dict[str, float]]:
    """Add up the sites' steps.

    Returns
    -------
    moved : (K, d) float64
        Sums over counts; a centroid that is empty everywhere keeps its place.
    costs : dict of site to float or None
        What ``centroids`` cost at each site; None where it answered empty.
    metrics : dict
    """
    counts = np.zeros(len(centroids), dtype=np.int64)
    sums = np.zeros_like(centroids)
    costs: dict[str, float | None] = {}
    for contribution in contributions:
        sent: Step | None = contribution.payload
        costs[contribution.site] = None if sent is None else float(sent.costs.sum())
        if sent is not None:
            counts += sent.counts
            sums += sent.sums
    moved = centroids.copy()
    filled = counts > 0
    moved[filled] = sums[filled] / counts[filled, None]
    metrics = {
        "inertia": float(sum(cost or 0.0 for cost in costs.values())),
        "centroid_shift": float(np.sqrt(((moved - centroids) ** 2).sum(axis=1).max())),
    }
    return moved, costs, metrics


# --- Convergence ----------------------------------------------------------------------------------


def finish(state: State, config: RunConfig) -> Result:
    """Return the best centroids ever judged; without any, the last ones."""
    because = "converged" if state.judgement.converged else ""
    centroids = best_centroids(state.judgement, state.centroids)
    return raw_result(centroids, config, stopped_because=because)


def best_centroids(judgement: Judgement, last: NDArray[np.float64] | None) -> NDArray[np.float64]:
    """Return the best centroids (K, d) ever judged; without any, the last ones."""
    if judgement.best is not None:
        return judgement.best.centroids
    if last is None:
        raise MethodFailure("no_centroids", "no round of the method was closed: raise max_rounds")
    return last


# --- Labelling ------------------------------------------------------------------------------------


def label(result: Result, X: NDArray[np.float64], memory: Memory | None) -> NDArray[np.int64]:
    """Label rows (n, d) in own units by the nearest centroid; ``memory`` plays no part."""
    del memory
    return label_by_centroid(result, X)


def possible_phases(options: Config) -> tuple[str, ...]:
    """Return the phases of a session: given centroids need no cells."""
    return ("lloyd",) if options.start == "given" else ("cells", "lloyd")


METHOD = Method(
    name="lloyd",
    version=VERSION,
    title="Exact distributed Lloyd (k-means)",
    citation="S. Lloyd, Least squares quantization in PCM, IEEE Trans. Inf. Theory 28, 1982",
    options=Config,
    default_max_rounds=100,
    joins_late=True,
    state=State,
    phases=PHASES,
    check_config=check_config,
    start=start,
    local_step=local_step,
    check=check,
    aggregate=aggregate,
    finish=finish,
    label=label,
    check_task=check_task,
    possible_phases=possible_phases,
    sweeps=True,
)
