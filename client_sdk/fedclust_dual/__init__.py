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

from dataclasses import replace

import numpy as np

from fedclust.methods.common import kmeans_rounds
from fedclust.methods.common.kmeans_rounds import (
    cluster_sums,
    disclosures,
    local_kmeans,
    local_starts,
)
from fedclust.schema.display import counted
from fedclust.schema.errors import RuleViolation
from fedclust.schema.method import Method
from fedclust.schema.scaling import scaled_bounds
from fedclust.schema.task import Phase, SiteSide, SiteTask
from fedclust_dual import config, server
from fedclust_dual.config import Config
from fedclust_dual.messages import (
    DUAL,
    PRIMAL,
    DualAnswer,
    DualCells,
    DualPart,
    DualTask,
    PrimalPart,
    PrimalTask,
    check_cells,
    check_dual,
    check_dual_task,
    check_primal,
    check_primal_task,
    least_value,
    multiplier_digest,
    own_part,
    task_region,
)

# --- At a site ------------------------------------------------------------------------------------


def _find_cells(task: SiteTask[kmeans_rounds.CellsTask], site: SiteSide) -> DualCells:
    asked = task.common
    found = local_kmeans(site.points, asked.n_clusters, asked.n_init, site.rng)
    # Costs are relative to the centroids; relative to the means they are smaller.
    savings = found.counts * ((found.means - found.centroids) ** 2).sum(axis=1)
    n_missing = asked.n_clusters - len(found.counts)
    return DualCells(
        counts=np.pad(found.counts, (0, n_missing)),
        means=np.pad(found.means, ((0, n_missing), (0, 0))),
        costs=np.pad(np.maximum(found.costs - savings, 0.0), (0, n_missing)),
    )


def _solve_node(asked: SiteTask[DualTask], site: SiteSide[Config]) -> DualAnswer:
    """Bound what any centroids cost a site, whose points are within the declared bounds.

    The memory holds the number of dual rounds and the labels of the last one, from which the next
    search starts. RuleViolation if the multipliers do not have their digest.
    """
    # Imported here because importing it loads the compiled kernel.
    from fedclust_dual.node_problem import solve_node

    points, config, memory = site.points, site.config, site.memory
    task, part, options = asked.common, own_part(asked, DualPart), config.options
    iterations = memory.get("iterations", 0) + 1
    if iterations > options.iterations:
        message = f"the coordinator asks for a dual round after the {options.iterations} that the "
        raise RuleViolation("task", f"{message}definition allows", "/phase")
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
    memory |= {"iterations": iterations, "labels": solution.labels}
    return DualAnswer(
        digest=part.digest,
        counts=found.counts,
        means=found.means,
        centroids=np.clip(best + task.origin, *scaled_bounds(config)),
        value=max(solution.bound, least_value(region, mu)),
        limited=not solution.complete and solution.n_nodes >= options.node_limit,
    )


# --- The phases -----------------------------------------------------------------------------------


PHASES = (
    replace(
        kmeans_rounds.CELLS,
        payload=DualCells,
        local_step=_find_cells,
        check=check_cells,
        needs_all=True,
        discloses=(
            *kmeans_rounds.CELLS.discloses,
            *disclosures(
                costs="K numbers: How far the records of each cell lie from its mean, squared and "
                "added up.",
            ),
        ),
    ),
    Phase(
        name=DUAL,
        summary="Each site solves its own clustering problem for its own multipliers: a proven "
        "lower bound of what any centroids cost.",
        task=DualTask,
        site_part=DualPart,
        payload=DualAnswer,
        local_step=_solve_node,
        check=check_dual,
        check_task=check_dual_task,
        needs_all=True,
        ends_with_site=True,
        discloses=disclosures(
            digest="64 characters: Which multipliers the answer belongs to.",
            counts="K numbers: How many of your persons are in each cluster of your best "
            "assignment.",
            means="K x d numbers: The mean of each column over these, scaled.",
            centroids="K x d numbers: Your problem's centroids. They follow from counts, means and "
            "the multipliers. The sites before and after yours in the order of names can compute "
            "them: the first and the last site learn their one neighbour's exactly.",
            value="one number: How well your points can be clustered at best with these "
            "multipliers.",
            limited="yes or no: Whether the search for it ended at its node limit.",
            identify={"digest": "Nothing.", "limited": "How hard the problem is; no person."},
        ),
    ),
    Phase(
        name=PRIMAL,
        summary="Each site measures what the same centroids cost, of each of C candidates: an "
        "upper bound.",
        task=PrimalTask,
        site_part=PrimalPart,
        payload=kmeans_rounds.Steps,
        local_step=lambda task, site: kmeans_rounds.site_lloyd_steps(
            task.common.centroids, site.points
        ),
        check=check_primal,
        check_task=check_primal_task,
        needs_all=True,
        ends_with_site=True,
        discloses=tuple(
            line.model_copy(update={"shape": f"C x {line.shape}"})
            for line in kmeans_rounds.STEP.discloses
        ),
    ),
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
    """Return what a methods section of a paper says of these options."""
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


METHOD: Method[config.Config, server.State] = Method(
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
    phases=PHASES,
    check_config=config.check_config,
    check_roster=config.check_roster,
    state=server.State,
    start=server.start,
    aggregate=server.aggregate,
    finish=server.finish,
    default_max_rounds=300,
)
