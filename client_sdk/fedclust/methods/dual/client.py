"""What a site of ``dual`` computes: its cells, its node problem, and what candidates cost."""

from __future__ import annotations

import numpy as np

from fedclust.methods.common import kmeans_rounds
from fedclust.methods.common.cluster_sums import cluster_sums
from fedclust.methods.common.local_kmeans import local_kmeans
from fedclust.methods.dual.config import Config
from fedclust.methods.dual.messages import (
    AnyPayload,
    AnyTask,
    DualAnswer,
    DualCells,
    DualPart,
    DualTask,
    PrimalAnswer,
    PrimalTask,
    digest_of,
    region_of,
)
from fedclust.schema.errors import RuleViolation
from fedclust.schema.method import LocalAnswer
from fedclust.schema.model import Memory
from fedclust.schema.points import Points
from fedclust.schema.run_config import RunConfig
from fedclust.schema.scaling import scaled_bounds
from fedclust.schema.task import SiteTask


def local_step(
    task: SiteTask[AnyTask],
    points: Points,
    config: RunConfig[Config],
    rng: np.random.Generator,
    memory: Memory,
) -> LocalAnswer[AnyPayload]:
    """Answer a task from a site's scaled points, which are within the declared bounds.

    The memory holds the number of dual rounds and the last assignment, where the next search
    begins.
    """
    match task.common, task.site:
        case kmeans_rounds.CellsTask() as asked, _:
            return _cells(asked, points, rng), memory
        case DualTask() as asked, DualPart() as part:
            return _solve(asked, part, points, config, memory)
        case PrimalTask() as asked, _:
            return _measure(asked, points), memory
    raise TypeError("each site has a part of a dual round's task")


def _cells(task: kmeans_rounds.CellsTask, points: Points, rng: np.random.Generator) -> DualCells:
    found = local_kmeans(points, task.n_clusters, task.n_init, rng)
    # About the means: the squares about the centroids less what moving there saves.
    saved = found.counts * ((found.means - found.centroids) ** 2).sum(axis=1)
    absent = task.n_clusters - len(found.counts)
    return DualCells(
        counts=np.pad(found.counts, (0, absent)),
        means=np.pad(found.means, ((0, absent), (0, 0))),
        costs=np.pad(np.maximum(found.costs - saved, 0.0), (0, absent)),
    )


def _solve(
    task: DualTask, part: DualPart, points: Points, config: RunConfig[Config], memory: Memory
) -> LocalAnswer[DualAnswer]:
    # Imported here: the compiled kernel is loaded only where the method runs.
    from fedclust.methods.dual.node_problem import solve_node

    options = config.options
    iterations = memory.get("iterations", 0) + 1
    if iterations > options.iterations:
        raise RuleViolation(
            "task", f"the definition allows {options.iterations} dual rounds", "/phase"
        )
    if digest_of(part.multipliers) != part.digest:
        raise RuleViolation("task", "the task's multipliers do not have their digest", "/site")
    region = region_of(task, config)
    mu = part.multipliers
    solution = solve_node(
        points.X - task.origin,
        mu,
        region,
        weights=points.sizes,
        solver=options.node_solver,
        node_limit=options.node_limit,
        start=memory.get("labels"),
    )
    found = cluster_sums(points, solution.labels, np.tile(task.origin, (len(mu), 1)))
    # From what is sent, so that both ends come to the same.
    sums = found.counts[:, None] * (found.means - task.origin)
    best = region.optimal_centroids(found.counts.astype(np.float64), sums, mu)[0]
    # No points cost less.
    least = float(np.minimum(mu * region.boxes.lower, mu * region.boxes.upper).sum())
    answer = DualAnswer(
        digest=part.digest,
        counts=found.counts,
        means=found.means,
        centroids=np.clip(best + task.origin, *scaled_bounds(config)),
        value=max(solution.bound, least),
        limited=not solution.complete and solution.n_nodes >= options.node_limit,
    )
    return answer, {**memory, "iterations": iterations, "labels": solution.labels}


def _measure(task: PrimalTask, points: Points) -> PrimalAnswer:
    steps = [kmeans_rounds.site_lloyd_step(centroids, points) for centroids in task.centroids]
    return PrimalAnswer(
        counts=np.array([step.counts for step in steps]),
        sums=np.array([step.sums for step in steps]),
        costs=np.array([step.costs for step in steps]),
    )
