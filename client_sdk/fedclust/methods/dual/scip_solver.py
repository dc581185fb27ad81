"""The node problem of `dual` as a mixed-integer program in SCIP: slow, and what ours is checked by.

What it says and cites
    Yfantis et al., "Federated K-means clustering via dual decomposition-based distributed
    optimization", equations 2, 3 and 36. A row has one distance instead of one for every cluster
    (equation 2c with the same left side for all k), which is as exact and relaxes no less; M of a
    row is its greatest squared distance from the box (equation 3, for the declared box).
"""

from __future__ import annotations

from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from fedclust.methods.dual.extra import MissingExtra
from fedclust.methods.dual.feasible_set import Region

__all__ = ["scip_solution"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
#: By how much SCIP may miss a constraint; of each row's distance so much is subtracted.
_TOLERANCE = 1e-8


def scip_solution(
    rows: FloatArray,
    weights: IntArray,
    mu: FloatArray,
    region: Region,
    labels: IntArray,
    node_limit: int,
) -> tuple[IntArray, float, int, bool]:
    """Return labels, a proven lower bound, the nodes visited and whether SCIP calls it optimal.

    Parameters
    ----------
    rows : (n, d) float64
        At least one.
    weights : (n,) int64
    mu : (K, d) float64
    region : Region
    labels : (n,) int64
        Of a known solution; those returned cost no more, but for tolerances.
    node_limit : int

    Raises
    ------
    MissingExtra
        If pyscipopt is not installed.
    """
    try:
        from pyscipopt import Model, quicksum
    except ImportError:
        raise MissingExtra("the node solver scip") from None
    n, d = rows.shape
    clusters = range(len(mu))
    # About the middle of the box and in units of its widest half side: SCIP's tolerances are
    # absolute.
    middle = 0.5 * (region.lower + region.upper)
    unit = max(float((0.5 * (region.upper - region.lower)).max()), 1e-300)
    points = (rows - middle) / unit
    half = 0.5 * (region.upper - region.lower) / unit
    pull = mu / unit
    about = (region.references - middle) / unit
    farthest = ((np.abs(points) + half) ** 2).sum(axis=1)

    model = Model()
    model.hideOutput()
    model.setParam("numerics/feastol", _TOLERANCE)
    model.setParam("limits/nodes", node_limit)
    model.setParam("limits/gap", 1e-8)
    model.setParam("parallel/maxnthreads", 1)
    lows, highs = ((bound - middle) / unit for bound in region.boxes)
    m = [[model.addVar(lb=lows[k, c], ub=highs[k, c]) for c in range(d)] for k in clusters]
    w = [[model.addVar(vtype="B") for _ in clusters] for _ in range(n)]
    distance = [model.addVar(lb=0.0, ub=float(most)) for most in farthest]
    for j in range(n):
        model.addCons(quicksum(w[j]) == 1)
        for k in clusters:
            square = quicksum((points[j, c] - m[k][c]) * (points[j, c] - m[k][c]) for c in range(d))
            model.addCons(square - farthest[j] * (1 - w[j][k]) <= distance[j])
    for k, other in permutations(clusters, 2):
        line = about[k] - about[other]
        if region.symmetry == "pairwise" and k < other:
            model.addCons(quicksum(line[c] * (m[k][c] - m[other][c]) for c in range(d)) >= 0)
        elif region.symmetry == "cells":
            offset = 0.5 * float(about[k] @ about[k] - about[other] @ about[other])
            model.addCons(quicksum(line[c] * m[k][c] for c in range(d)) >= offset)
        elif region.symmetry == "reference":
            # Written out: the squares of the reference cancel.
            squares = quicksum(m[k][c] * m[k][c] - m[other][c] * m[other][c] for c in range(d))
            turn = quicksum(2.0 * about[k, c] * (m[k][c] - m[other][c]) for c in range(d))
            model.addCons(squares - turn <= 0)
    linear = quicksum(pull[k, c] * m[k][c] for k in clusters for c in range(d))
    cost = quicksum(int(weights[j]) * distance[j] for j in range(n))
    model.setObjective(cost + linear, "minimize")
    model.optimize()
    found = labels
    best = model.getBestSol()
    if best is not None and model.getNSols():
        found = np.array([[best[var] for var in row] for row in w]).argmax(axis=1)
    bound = float(model.getDualbound()) - _TOLERANCE * float(weights @ np.maximum(farthest, 1.0))
    return (
        found.astype(np.int64),
        bound * unit**2 + float(mu.sum(axis=0) @ middle),
        int(model.getNTotalNodes()),
        model.getStatus() in ("optimal", "gaplimit"),
    )
