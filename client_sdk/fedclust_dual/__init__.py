"""dual: k-means by dual decomposition, with a lower and an upper bound in every round.

The method of [1]_. Sites in name order form a chain, whose consensus constraints (equations 8 to
10) are dualised. In a ``dual`` round each site gets its own part of the multipliers, solves its
clustering problem (equation 14, over its weighted points) to proven optimality, and answers with
its centroids and the dual value. The sum of the values is a lower bound of the inertia of any
centroids. A ``primal`` round measures the averaged centroids (equations 33 and 34), which gives an
upper bound. The gap between the two (equation 35) is a certificate.

Four rules update the multipliers (``multiplier_update``); ``node_problem`` solves a site's problem;
``domain_splitting`` closes the gap. All computations are relative to one origin, so that digits do
not cancel far from zero.

References
----------
.. [1] Yfantis, Wagner & Ruskowski, "Federated K-means clustering via dual decomposition-based
   distributed optimization", 2023.
"""

from __future__ import annotations

import numpy as np

from fedclust.methods.common import kmeans_rounds
from fedclust.methods.common.cluster_sums import cluster_sums
from fedclust.methods.common.local_kmeans import local_kmeans, local_starts
from fedclust.schema.display import counted
from fedclust.schema.errors import RuleViolation
from fedclust.schema.method import LocalAnswer, Method
from fedclust.schema.model import Memory
from fedclust.schema.points import Points
from fedclust.schema.run_config import RunConfig
from fedclust.schema.scaling import scaled_bounds
from fedclust.schema.task import SiteTask
from fedclust_dual import config, messages, server
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

# --- At a site ------------------------------------------------------------------------------------


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


# --- What a paper says ----------------------------------------------------------------------------


_RULES = {
    "quadratic_bundle": "a quadratic bundle method",
    "subgradient": "the subgradient method",
    "bundle_trust": "the bundle trust method",
    "quasi_newton": "quasi-Newton dual ascent",
}
_SYMMETRY = {
    "pairwise": "pairwise constraints from reference centroids fixed the clusters' numbering",
    "cells": "the Voronoi cells of reference centroids fixed the clusters' numbering, so that the "
    "bound was not certified",
    "reference": "one reference fixed the numbering of the clusters, so that the bound was not "
    "certified",
    "none": "no constraint fixed the numbering of the clusters",
}


def describe(options: Config) -> str:
    """Return the sentences; see ``Method.describe``."""
    rule = _RULES[options.update]
    if options.update != "quadratic_bundle":
        step = 0.5 if options.step is None else options.step
        residual = 0.01 if options.residual is None else options.residual
        rule += f" (first step {step:g}; end at a residual of {residual:g})"
    splits = (
        f" The centroids' domain could be cut {counted(options.splits, 'time')} to close the gap."
        if options.splits
        else ""
    )
    measured = (
        "which Lloyd steps then improved"
        if options.polished
        else "which no further Lloyd steps improved"
    )
    return (
        "Each site solved its own clustering problem with branch and bound (at most "
        f"{options.node_limit:,} nodes); {rule} updated the multipliers of the consensus "
        "constraints in at most "
        f"{counted(options.iterations, 'dual round')}, and {_SYMMETRY[options.symmetry]}. The "
        f"reference centroids came from weighted k-means at the sites, from "
        f"{local_starts(options.n_init)}. The averaged centroids, {measured}, gave the upper "
        f"bound. The session ended at a relative gap of {options.gap:g}.{splits}"
    )


METHOD: Method[config.Config, server.State, messages.AnyTask, messages.AnyPayload] = Method(
    name="dual",
    version=3,
    title="k-means by dual decomposition, with bounds",
    citation=(
        "V. Yfantis, A. Wagner, M. Ruskowski, Federated K-Means Clustering via Dual "
        "Decomposition-based Distributed Optimization, 2023"
    ),
    references=("yfantis2023",),
    describe=describe,
    options=config.Config,
    phases=messages.PHASES,
    check_config=config.check_config,
    check_roster=config.check_roster,
    check_task=messages.check_task,
    check=messages.check,
    local_step=local_step,
    state=server.State,
    start=server.start,
    aggregate=server.aggregate,
    finish=server.finish,
    default_max_rounds=300,
)
