"""lloyd: exact distributed Lloyd, the baseline that the federated k-means papers compare with.

What it says and cites
    Lloyd, "Least squares quantization in PCM", IEEE Trans. Inf. Theory 28 (1982). A k-means step
    needs of each site only the sum, the count and the cost of every cluster, so its distributed
    form equals the central one from the same start: same labels, centres to rounding, as long as
    no cell is withheld, guarded or rounded.

The start is ``given``, or (``cells``) the weighted k-means of all sites' local cell means.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, FiniteFloat

from fedclust.algorithms.arrays import FloatMatrix, FloatVector, IntVector
from fedclust.algorithms.assigning import label_by_centroid, squared_distances
from fedclust.algorithms.base import (
    Contribution,
    Disclosure,
    Done,
    LocalAnswer,
    Memory,
    Method,
    MethodFailure,
    Model,
    Next,
    Phase,
    Result,
    RuleViolation,
    RunConfig,
    SiteData,
    SiteTask,
    Task,
    Totals,
)
from fedclust.algorithms.columns import transformed
from fedclust.algorithms.finishing import raw_result
from fedclust.algorithms.judging import Judgement, judge, rest_cost
from fedclust.algorithms.kmeans import weighted_kmeans
from fedclust.algorithms.local_cells import (
    LOCAL,
    lay_base,
    local_kmeans,
    packed,
    settled,
    without_outliers,
)
from fedclust.algorithms.options import SweptOptions
from fedclust.algorithms.releasing import (
    CANDIDATE,
    by_column,
    persons,
    refuse_cells,
    release,
    release_step,
    site_totals,
)
from fedclust.algorithms.seeding import server_rng
from fedclust.algorithms.spaces import own_bounds, scaled_bounds
from fedclust.algorithms.tallies import Tally, assign
from fedclust.algorithms.totals import (
    DISCLOSURE,
    SitePart,
    check_sizes,
    check_totals,
    site_parts,
)
from fedclust.privacy.checks import check_costs, check_empty, check_means, check_shape
from fedclust.privacy.counting import Labels

VERSION = 3

# --- Config ---------------------------------------------------------------------------------------


class Config(SweptOptions, title="GuardedLloydConfig"):
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
    evaluate : bool
        Whether a closing round measures the quality of the final centroids.
    """

    start: Literal["cells", "given"] = "cells"
    centroids: FloatMatrix | None = None
    n_init: Annotated[int, Field(ge=1, le=100)] = 3
    tol: Annotated[FiniteFloat, Field(ge=0, lt=1)] = 1e-6
    evaluate: bool = True


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


class CellsTask(Model, title="GuardedCellsTask"):
    """Cluster your rows by yourself into at most ``n_clusters`` cells, with ``n_init`` starts."""

    n_clusters: Annotated[int, Field(ge=1)]
    n_init: Annotated[int, Field(ge=1)]


class Cells(Model, title="GuardedCells"):
    """A site's local cells.

    Attributes
    ----------
    counts : (K,) int64
        Rows in each cell; 0 for the cells that are not there, whose means are 0.
    means : (K, d) float64
        Scaled.
    totals : Totals or None
    """

    counts: IntVector
    means: FloatMatrix
    totals: Totals | None = None


class StepTask(Model, title="GuardedStepTask"):
    """Assign your rows to the nearest of these ``centroids`` (K, d), scaled; ties to the lowest."""

    centroids: FloatMatrix


class Step(Model, title="GuardedStep"):
    """A site's part of one Lloyd step: additive, and of the same shape at every site.

    Attributes
    ----------
    counts : (K,) int64
    sums : (K, d) float64
        Scaled.
    costs : (K,) float64
        Squared distances of the rows from the task's centroid, added up.
    totals : Totals or None
    """

    counts: IntVector
    sums: FloatMatrix
    costs: FloatVector
    totals: Totals | None = None


_GUARDED = (
    "Each number describes 0 or at least the smallest count of persons. The guard holds back "
    "whatever would single out fewer when this answer is compared with any earlier one."
)
PHASES = (
    Phase(
        name="cells",
        summary="Each site clusters its own rows; the cells' means give the first centroids.",
        task=CellsTask,
        site_part=SitePart,
        payload=Cells,
        discloses=(
            Disclosure(
                field="counts",
                shape="K numbers",
                meaning="How many of your rows are in each cell of your own clustering.",
                identifies=_GUARDED,
            ),
            Disclosure(
                field="means",
                shape="K x d numbers",
                meaning="The mean of each feature over the rows of each cell, scaled.",
                identifies=(
                    _GUARDED + " No mean is a person's record. The share of a yes/no feature or "
                    "level is rounded where fewer than the smallest count have, or lack, it."
                ),
            ),
            DISCLOSURE,
        ),
    ),
    Phase(
        name="lloyd",
        summary="Each site assigns its rows to the nearest centroid and adds them up.",
        task=StepTask,
        site_part=SitePart,
        payload=Step,
        discloses=(
            Disclosure(
                field="counts",
                shape="K numbers",
                meaning="How many of your rows are nearest to each centroid.",
                identifies=_GUARDED,
            ),
            Disclosure(
                field="sums",
                shape="K x d numbers",
                meaning="The sum of each feature over these rows, scaled.",
                identifies=(
                    _GUARDED + " The share of a yes/no feature or level is rounded where fewer "
                    "than the smallest count have, or lack, it."
                ),
            ),
            Disclosure(
                field="costs",
                shape="K numbers",
                meaning="How far these rows lie from their centroid, squared and added up.",
                identifies=_GUARDED,
            ),
            DISCLOSURE,
        ),
    ),
)


def check(task: SiteTask, payload: Cells | Step, config: RunConfig) -> None:
    """Check an answer at either end: shapes, counts, complement, bounds, costs."""
    d = len(config.columns)
    lower, upper = scaled_bounds(config)
    check_totals(payload.totals, task.site, config)
    if isinstance(payload, Cells):
        n_cells = task.common.n_clusters
        check_shape(payload.counts, (n_cells,), "/counts")
        check_shape(payload.means, (n_cells, d), "/means")
        check_sizes(payload.counts, payload.totals, task.site, config)
        check_empty(payload.counts, payload.means, "/means")
        check_means(payload.counts, payload.means, lower, upper, "/means")
        return
    centroids = task.common.centroids
    check_shape(payload.counts, (len(centroids),), "/counts")
    check_shape(payload.sums, (len(centroids), d), "/sums")
    check_shape(payload.costs, (len(centroids),), "/costs")
    check_sizes(payload.counts, payload.totals, task.site, config)
    check_empty(payload.counts, payload.sums, "/sums")
    check_empty(payload.counts, payload.costs, "/costs")
    means = payload.sums / np.maximum(payload.counts, 1)[:, None]
    check_means(payload.counts, means, lower, upper, "/sums")
    check_costs(payload.counts, payload.sums, payload.costs, centroids)


# --- Local step -----------------------------------------------------------------------------------


def local_step(
    task: SiteTask, data: SiteData, config: RunConfig, rng: np.random.Generator, memory: Memory
) -> LocalAnswer:
    """Answer a task from a site's scaled rows (n, d)."""
    asked = task.site is not None and task.site.totals
    totals = site_totals(data, config) if asked else None
    if task.phase == "cells":
        return _cells(task.common, data, config, rng, memory, totals)
    return _step(task.common, data, config, memory, totals)


def _cells(
    task: CellsTask,
    data: SiteData,
    config: RunConfig,
    rng: np.random.Generator,
    memory: Memory,
    totals: Totals | None,
) -> LocalAnswer:
    wanted = min(task.n_clusters, persons(data) // config.p)
    labels = local_kmeans(data.rows, wanted, task.n_init, rng)
    released, kept = release(data, config, memory, labels, task.n_clusters, candidate=LOCAL)
    if released.empty and wanted:
        # One far row takes a cell for itself, and the other, of two, with it.
        labels = without_outliers(data, config.p, wanted, task.n_init, rng, labels)
        released, kept = release(data, config, memory, labels, task.n_clusters, candidate=LOCAL)
    memory = {**kept, LOCAL: packed(released.labels)}
    if released.empty and totals is None:
        return None, memory
    moments = released.moments
    return Cells(counts=moments.counts, means=moments.means, totals=totals), memory


def _step(
    task: StepTask, data: SiteData, config: RunConfig, memory: Memory, totals: Totals | None
) -> LocalAnswer:
    step, memory = add_up(task.centroids, data, config, memory)
    if not step.counts.any() and totals is None:
        return None, memory
    return step.model_copy(update={"totals": totals}), memory


def add_up(
    centroids: NDArray[np.float64],
    data: SiteData,
    config: RunConfig,
    memory: Memory,
    candidate: str = CANDIDATE,
    wanted: tuple[Labels, Tally | None] | None = None,
) -> tuple[Step, Memory]:
    """Return a site's part of one Lloyd step from ``centroids`` (K, d), without totals.

    ``wanted``: the cells (n,), where a method wants rows elsewhere than at their nearest centroid
    or has assigned them already, and the sums over them where they are known.
    """
    check_shape(centroids, (len(centroids), data.rows.shape[1]), "/parameters/centroids")
    refuse_cells(len(centroids))
    memory = lay_base(centroids, data, config, memory, candidate)
    nearest = wanted is None
    if wanted is None:
        wanted = assign(data.rows, [centroids], by_column=by_column(config))[0]
    labels, sums = wanted
    step, kept = release_step(data, config, memory, labels, centroids, sums, candidate)
    if nearest and not step.counts.any():
        # Few far rows took every other cell with them: they go to the nearest that may be sent.
        labels = settled(data, centroids, config.p, labels)
        step, kept = release_step(data, config, memory, labels, centroids, None, candidate)
    return Step(counts=step.counts, sums=step.sums, costs=step.costs), kept


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
    if options.centroids is not None:
        centroids = config.space.to_scaled(transformed(config.columns, options.centroids))
        state = State(phase="lloyd", seed=seed, centroids=centroids)
        return state, _step_task(centroids, config)
    task = CellsTask(n_clusters=options.k, n_init=options.n_init)
    return State(phase="cells", seed=seed), Task("cells", task, per_site=site_parts(config))


def _step_task(centroids: NDArray[np.float64], config: RunConfig) -> Task:
    return Task("lloyd", StepTask(centroids=centroids), per_site=site_parts(config))


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
    sent: list[Cells] = [c.payload for c in contributions if c.payload is not None]
    refuse_too_few([cells.counts for cells in sent], config)
    counts = np.concatenate([cells.counts for cells in sent])
    means = np.concatenate([cells.means for cells in sent])[counts > 0]
    centroids = weighted_kmeans(
        means,
        counts[counts > 0].astype(np.float64),
        options.k,
        server_rng(state.seed, "lloyd-start"),
    )
    following = state.model_copy(update={"phase": "lloyd", "centroids": centroids})
    return Next(following, _step_task(centroids, config))


def _lloyd_step(
    state: State,
    centroids: NDArray[np.float64],
    contributions: Sequence[Contribution],
    config: RunConfig,
) -> Next | Done:
    options: Config = config.options
    moved, costs, metrics = step(centroids, contributions, config)
    judgement = judge(state.judgement, centroids, costs, config, options.tol)
    following = state.model_copy(update={"centroids": moved, "judgement": judgement})
    if judgement.converged:
        return Done(finish(following, config), metrics)
    return Next(following, _step_task(moved, config), metrics)


def step(
    centroids: NDArray[np.float64], contributions: Sequence[Contribution], config: RunConfig
) -> tuple[NDArray[np.float64], dict[str, float | None], dict[str, float]]:
    """Add up the sites' steps.

    Returns
    -------
    moved : (K, d) float64
        Sums over counts; a centroid that is empty everywhere keeps its place.
    costs : dict of site to float or None
        What ``centroids`` cost at each site, its rest included; see ``judging``.
    metrics : dict
    """
    counts = np.zeros(len(centroids), dtype=np.int64)
    sums = np.zeros_like(centroids)
    costs: dict[str, float | None] = {}
    for contribution in contributions:
        sent: Step | None = contribution.payload
        costs[contribution.site] = _judged_cost(
            sent, config.totals.get(contribution.site), centroids
        )
        if sent is not None:
            counts += sent.counts
            sums += sent.sums
    refuse_too_few([c.payload.counts for c in contributions if c.payload is not None], config)
    moved = centroids.copy()
    filled = counts > 0
    moved[filled] = sums[filled] / counts[filled, None]
    metrics = {
        "inertia": float(sum(cost or 0.0 for cost in costs.values())),
        "centroid_shift": float(np.sqrt(((moved - centroids) ** 2).sum(axis=1).max())),
    }
    return moved, costs, metrics


def _judged_cost(
    step: Step | None, totals: Totals | None, centroids: NDArray[np.float64]
) -> float | None:
    """Return what the centroids cost at a site, its rest included; None for an unknown site."""
    if step is None:
        if totals is None:
            return None
        gap = squared_distances(totals.mean[None], centroids).min()
        return float(totals.m2.sum() + totals.n * gap)
    cost = float(step.costs.sum())
    if totals is not None:
        cost += rest_cost(totals, step.counts, step.sums, step.costs, centroids)
    return cost


def refuse_too_few(counts: Sequence[NDArray[np.int64]], config: RunConfig) -> None:
    """Raise unless centroids would rest on the cells of ``min_sites`` sites; totals are none.

    Parameters
    ----------
    counts : sequence of arrays
        Rows in the cells of each site that answered.
    config : RunConfig
    """
    with_cells = sum(bool(cells.any()) for cells in counts)
    if not with_cells:
        raise nothing_to_release()
    if with_cells < config.policy.min_sites:
        raise MethodFailure(
            "too_few_contributors",
            f"{with_cells} sites may send cells, {config.policy.min_sites} are needed: invite more "
            "or larger sites, ask for fewer clusters, or lower min_group_size",
        )


def nothing_to_release() -> MethodFailure:
    """Return the failure of a session in which every cell of every site is too small."""
    return MethodFailure(
        "nothing_to_release",
        "no site may send any cell: every cell stands for fewer persons than the smallest count. "
        "Ask for fewer clusters, lower min_group_size, or invite larger sites",
    )


# --- Convergence ----------------------------------------------------------------------------------


def finish(state: State, config: RunConfig) -> Result:
    """Return the best centroids ever judged; without any, the last ones."""
    best = state.judgement.best
    centroids = state.centroids if best is None else best.centroids
    if centroids is None:
        raise nothing_to_release()
    because = "converged" if state.judgement.converged else ""
    return raw_result(centroids, config, stopped_because=because)


# --- Labelling ------------------------------------------------------------------------------------


def label(result: Result, X: NDArray[np.float64], memory: Memory | None) -> NDArray[np.int64]:
    """Label rows (n, d) in own units by the nearest centroid; ``memory`` plays no part."""
    del memory
    return label_by_centroid(result, X)


def by_runs(options: Config) -> bool:
    """Return whether rows need not be in memory: they never need."""
    del options
    return True


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
    by_runs=by_runs,
    sweeps=True,
)
