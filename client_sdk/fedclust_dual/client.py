"""A site's steps in ``dual``: its cells, its node problem, and the cost of candidates."""

from __future__ import annotations

import numpy as np

from fedclust.methods.common import kmeans_rounds
from fedclust.methods.common.cluster_sums import cluster_sums
from fedclust.methods.common.local_kmeans import local_kmeans
from fedclust.schema.errors import RuleViolation
from fedclust.schema.method import LocalAnswer
from fedclust.schema.model import Memory
from fedclust.schema.points import Points
from fedclust.schema.run_config import RunConfig
from fedclust.schema.scaling import scaled_bounds
from fedclust.schema.task import SiteTask
from fedclust_dual.config import Config
from fedclust_dual.messages import (
    AnyPayload,
    AnyTask,
    DualAnswer,
    DualCells,
    DualPart,
    DualTask,
    PrimalAnswer,
    PrimalTask,
    least_value,
    multiplier_digest,
    task_region,
)


def local_step(
    task: SiteTask[AnyTask],
    points: Points,
    config: RunConfig[Config],
    rng: np.random.Generator,
    memory: Memory,
) -> LocalAnswer[AnyPayload]:
    """Answer a task from a site's scaled points, which are within the declared bounds.

    The memory holds the number of dual rounds and the labels of the last one, from which the next
    search starts.

    Raises
    ------
    RuleViolation
        If the task breaks the definition, or its multipliers do not have their digest.
    """
    match task.common, task.site:
        case kmeans_rounds.CellsTask() as common, _:
            return _find_cells(common, points, rng), memory
        case DualTask() as common, DualPart() as part:
            return _solve_node(common, part, points, config, memory)
        case PrimalTask() as common, _:
            return _measure_own_candidates(common, points), memory
    raise TypeError("each site has a part of a dual round's task")


def _find_cells(
    task: kmeans_rounds.CellsTask, points: Points, rng: np.random.Generator
) -> DualCells:
    found = local_kmeans(points, task.n_clusters, task.n_init, rng)
    # Costs are relative to the centroids; relative to the means they are smaller.
    savings = found.counts * ((found.means - found.centroids) ** 2).sum(axis=1)
    n_missing = task.n_clusters - len(found.counts)
    return DualCells(
        counts=np.pad(found.counts, (0, n_missing)),
        means=np.pad(found.means, ((0, n_missing), (0, 0))),
        costs=np.pad(np.maximum(found.costs - savings, 0.0), (0, n_missing)),
    )


def _solve_node(
    task: DualTask, part: DualPart, points: Points, config: RunConfig[Config], memory: Memory
) -> LocalAnswer[DualAnswer]:
    # Imported here because importing it loads the compiled kernel.
    from fedclust_dual.node_problem import solve_node

    options = config.options
    iterations = memory.get("iterations", 0) + 1
    if iterations > options.iterations:
        raise RuleViolation(
            "task", f"the definition allows {options.iterations} dual rounds", "/phase"
        )
    if multiplier_digest(part.multipliers) != part.digest:
        raise RuleViolation("task", "the task's multipliers do not have their digest", "/site")
    region = task_region(task, config)
    mu = part.multipliers
    solution = solve_node(
        points.X - task.origin,
        mu,
        region,
        weights=points.sizes,
        node_limit=options.node_limit,
        start=memory.get("labels"),
    )
    found = cluster_sums(points, solution.labels, np.tile(task.origin, (len(mu), 1)))
    # From the counts and means that are sent, so that the coordinator computes the same centroids.
    sums = found.counts[:, None] * (found.means - task.origin)
    best = region.optimal_centroids(found.counts.astype(np.float64), sums, mu)[0]
    answer = DualAnswer(
        digest=part.digest,
        counts=found.counts,
        means=found.means,
        centroids=np.clip(best + task.origin, *scaled_bounds(config)),
        value=max(solution.bound, least_value(region, mu)),
        limited=not solution.complete and solution.n_nodes >= options.node_limit,
    )
    return answer, {**memory, "iterations": iterations, "labels": solution.labels}


def _measure_own_candidates(task: PrimalTask, points: Points) -> PrimalAnswer:
    steps = [kmeans_rounds.site_lloyd_step(centroids, points) for centroids in task.centroids]
    return PrimalAnswer(
        counts=np.array([step.counts for step in steps]),
        sums=np.array([step.sums for step in steps]),
        costs=np.array([step.costs for step in steps]),
    )
