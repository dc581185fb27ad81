"""The node problem of `dual` as a mixed-integer program in SCIP: slow, for comparison.

Equations 2, 3 and 36 of [1]_. A point has one distance variable instead of one for every cluster
(equation 2c with the same left side for all k), which is as exact and relaxes no less. M of a point
is its greatest squared distance from the box (equation 3, for the declared box).

References
----------
.. [1] Yfantis, Wagner & Ruskowski, "Federated K-means clustering via dual decomposition-based
   distributed optimization".
"""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedclust.methods.dual.extra import MissingExtra
from fedclust.methods.dual.feasible_set import Region

__all__ = ["scip_solution"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
#: Violation of constraints that SCIP accepts; the bound is lowered by as much for each point.
_TOLERANCE = 1e-8


def scip_solution(
    rows: FloatArray,
    weights: IntArray,
    mu: FloatArray,
    region: Region,
    labels: IntArray,
    node_limit: int,
) -> tuple[IntArray, float, int, bool]:
    """Solve equation 14 for one site.

    Parameters
    ----------
    rows : (n, d) float64
        At least one point.
    weights : (n,) int64
    mu : (K, d) float64
    region : Region
    labels : (n,) int64
        Returned if SCIP finds no solution.
    node_limit : int

    Returns
    -------
    labels : (n,) int64
    bound : float
        Proven lower bound.
    n_nodes : int
        Nodes visited.
    complete : bool
        Whether SCIP proved the optimum.

    Raises
    ------
    MissingExtra
        If pyscipopt is not installed.
    """
    # In units of the box's half width, because SCIP's tolerances are absolute.
    center = 0.5 * (region.lower + region.upper)
    unit = max(float((0.5 * (region.upper - region.lower)).max()), 1e-300)
    points = (rows - center) / unit
    half = 0.5 * (region.upper - region.lower) / unit
    farthest = ((np.abs(points) + half) ** 2).sum(axis=1)
    model = _new_model(node_limit)
    lower, upper = ((bound - center) / unit for bound in region.centroid_bounds)
    centroids = _add_centroids(model, lower, upper)
    choices = _add_assignment(model, points, weights, centroids, mu / unit, farthest)
    _add_symmetry(model, centroids, (region.references - center) / unit, region.symmetry)
    model.optimize()
    best = model.getBestSol()
    if best is not None and model.getNSols():
        labels = np.array([[best[choice] for choice in own] for own in choices]).argmax(axis=1)
    bound = float(model.getDualbound()) - _TOLERANCE * float(weights @ np.maximum(farthest, 1.0))
    return (
        labels.astype(np.int64),
        bound * unit**2 + float(mu.sum(axis=0) @ center),
        int(model.getNTotalNodes()),
        model.getStatus() in ("optimal", "gaplimit"),
    )


def _new_model(node_limit: int) -> Any:
    try:
        from pyscipopt import Model
    except ImportError:
        raise MissingExtra("the node solver scip") from None
    model = Model()
    model.hideOutput()
    model.setParam("numerics/feastol", _TOLERANCE)
    model.setParam("limits/nodes", node_limit)
    model.setParam("limits/gap", 1e-8)
    model.setParam("parallel/maxnthreads", 1)
    return model


def _add_centroids(model: Any, lower: FloatArray, upper: FloatArray) -> list[list[Any]]:
    clusters, columns = range(lower.shape[0]), range(lower.shape[1])
    return [[model.addVar(lb=lower[k, c], ub=upper[k, c]) for c in columns] for k in clusters]


def _add_assignment(
    model: Any,
    points: FloatArray,
    weights: IntArray,
    m: list[list[Any]],
    pull: FloatArray,
    farthest: FloatArray,
) -> list[list[Any]]:
    """Add the choice (n, K) of a cluster for each point, the distances, and the objective."""
    from pyscipopt import quicksum

    (n, d), clusters = points.shape, range(len(m))
    w = [[model.addVar(vtype="B") for _ in clusters] for _ in range(n)]
    distance = [model.addVar(lb=0.0, ub=float(most)) for most in farthest]
    for j in range(n):
        model.addCons(quicksum(w[j]) == 1)
        for k in clusters:
            square = quicksum((points[j, c] - m[k][c]) * (points[j, c] - m[k][c]) for c in range(d))
            model.addCons(square - farthest[j] * (1 - w[j][k]) <= distance[j])
    linear = quicksum(pull[k, c] * m[k][c] for k in clusters for c in range(d))
    cost = quicksum(int(weights[j]) * distance[j] for j in range(n))
    model.setObjective(cost + linear, "minimize")
    return w


def _add_symmetry(model: Any, m: list[list[Any]], references: FloatArray, symmetry: str) -> None:
    """Add the symmetry form's constraints on the centroid variables ``m``."""
    from pyscipopt import quicksum

    n_clusters, d = references.shape
    for k, other in permutations(range(n_clusters), 2):
        line = references[k] - references[other]
        if symmetry == "pairwise" and k < other:
            model.addCons(quicksum(line[c] * (m[k][c] - m[other][c]) for c in range(d)) >= 0)
        elif symmetry == "cells":
            squares = references[k] @ references[k] - references[other] @ references[other]
            model.addCons(quicksum(line[c] * m[k][c] for c in range(d)) >= 0.5 * float(squares))
        elif symmetry == "reference":
            # Equation 36 expanded; the squares of the reference cancel.
            squares = quicksum(m[k][c] * m[k][c] - m[other][c] * m[other][c] for c in range(d))
            turn = quicksum(2.0 * references[k, c] * (m[k][c] - m[other][c]) for c in range(d))
            model.addCons(squares - turn <= 0)
