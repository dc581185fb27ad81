"""Rounds of weighted k-means that several methods share: local cells, and exact Lloyd steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedclust.methods.common.cluster_sums import check_sizes, cluster_sums
from fedclust.methods.common.convergence import Judgement
from fedclust.methods.common.local_kmeans import local_kmeans
from fedclust.numeric.arrays import FloatMatrix, FloatVector, IntVector
from fedclust.numeric.distances import nearest_centroid
from fedclust.protection.message_checks import check_costs, check_empty, check_means, check_shape
from fedclust.schema.errors import MethodFailure, RuleViolation
from fedclust.schema.method import LocalAnswer
from fedclust.schema.model import Memory, Model
from fedclust.schema.points import Points
from fedclust.schema.run_config import RunConfig
from fedclust.schema.scaling import scaled_bounds
from fedclust.schema.task import (
    CentroidTask,
    Contribution,
    Disclosure,
    Phase,
    SiteTask,
    payloads_of,
    with_payload,
)


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


class StepTask(CentroidTask):
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


AnyTask: TypeAlias = CellsTask | StepTask
AnyPayload: TypeAlias = Cells | Step

#: What counts and sums of points tell of persons.
GROUP_SUMS = "Sums over whole groups of your protected table."
CELLS = Phase(
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
            identifies=GROUP_SUMS,
        ),
        Disclosure(
            field="means",
            shape="K x d numbers",
            meaning="The mean of each column over each cell, scaled.",
            identifies=GROUP_SUMS,
        ),
    ),
)
STEP = Phase(
    name="lloyd",
    summary="Each site assigns its points to the nearest centroid and adds them up.",
    task=StepTask,
    payload=Step,
    discloses=(
        Disclosure(
            field="counts",
            shape="K numbers",
            meaning="How many of your persons are nearest to each centroid.",
            identifies=GROUP_SUMS,
        ),
        Disclosure(
            field="sums",
            shape="K x d numbers",
            meaning="The sum of each column over these, scaled.",
            identifies=GROUP_SUMS,
        ),
        Disclosure(
            field="costs",
            shape="K numbers",
            meaning="How far their records lie from the centroid, squared and added up.",
            identifies=GROUP_SUMS,
        ),
    ),
)


def check_cells_task(task: CellsTask, n_clusters: int, n_init: int) -> None:
    """Refuse another number of cells or restarts than the definition names."""
    if (task.n_clusters, task.n_init) != (n_clusters, n_init):
        raise RuleViolation(
            "task", "the task asks for other cells than the definition", "/parameters"
        )


def check_centroid_number(centroids: NDArray[np.float64], n_clusters: int) -> None:
    """Refuse more centroids (K, d) in a task than the definition names."""
    if len(centroids) > n_clusters:
        raise RuleViolation(
            "task", f"the definition names {n_clusters} clusters", "/parameters/centroids"
        )


def check(task: SiteTask[AnyTask], payload: AnyPayload, config: RunConfig) -> None:
    """Check an answer at either end: shapes, counts, bounds, costs."""
    match task.common, payload:
        case CellsTask() as asked, Cells() as cells:
            check_cells(cells, asked.n_clusters, config)
        case StepTask() as asked, Step() as sent:
            check_step(sent, asked.centroids, config)
        case _:
            raise TypeError("the answer is of another phase than the task")


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


def local_step(
    task: SiteTask[AnyTask],
    points: Points,
    config: RunConfig,
    rng: np.random.Generator,
    memory: Memory,
) -> LocalAnswer[AnyPayload]:
    """Answer a task from a site's scaled points."""
    del config
    if isinstance(task.common, CellsTask):
        return find_cells(task.common, points, rng), memory
    return site_lloyd_step(task.common.centroids, points), memory


def find_cells(task: CellsTask, points: Points, rng: np.random.Generator) -> Cells:
    """Return a site's local cells, and empty ones up to the number that was asked for."""
    found = local_kmeans(points, task.n_clusters, task.n_init, rng)
    return pad_cells(found.counts, found.means, task.n_clusters)


def pad_cells(counts: NDArray[np.int64], means: NDArray[np.float64], n_cells: int) -> Cells:
    """Return cells of counts (m,) and means (m, d), and empty ones after them."""
    lacking = n_cells - len(counts)
    return Cells(counts=np.pad(counts, (0, lacking)), means=np.pad(means, ((0, lacking), (0, 0))))


def site_lloyd_step(centroids: NDArray[np.float64], points: Points) -> Step:
    """Return a site's part of one Lloyd step from ``centroids`` (K, d)."""
    check_shape(centroids, (len(centroids), points.X.shape[1]), "/parameters/centroids")
    sums = cluster_sums(points, nearest_centroid(points.X, centroids), centroids)
    return Step(counts=sums.counts, sums=sums.sums, costs=sums.costs)


def collect_cells(
    contributions: Sequence[Contribution],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the means (m, d) of all cells that the sites sent, and their counts (m,)."""
    sent = payloads_of(contributions, Cells).values()
    counts = np.concatenate([cells.counts for cells in sent])
    means = np.concatenate([cells.means for cells in sent])
    return means[counts > 0], counts[counts > 0].astype(np.float64)


def combine_steps(
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
    for contribution in with_payload(contributions, Step):
        sent = contribution.payload
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


def best_centroids(judgement: Judgement, last: NDArray[np.float64] | None) -> NDArray[np.float64]:
    """Return the best centroids (K, d) ever judged; without any, the last ones."""
    if judgement.best is not None:
        return judgement.best.centroids
    if last is None:
        raise MethodFailure("no_centroids", "no round of the method was closed: raise max_rounds")
    return last
