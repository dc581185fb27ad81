"""The convex programs that update the multipliers of `dual`: small second-order cone programs.

Each program is scaled so that its numbers are about 1, and its solution is scaled back. A program
without a solution gives ``None``; the update rule then takes a step that needs no program.

References
----------
Yfantis, Wagner & Ruskowski, "Federated K-means clustering via dual decomposition-based distributed
optimization", equations 24 and 32.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedclust.numeric.array_types import BoolArray, FloatArray
from fedclust_dual.conic_solver import ConeProgram, ConeSolution
from fedclust_dual.feasible_set import Region

#: Gap and infeasibility at which the solver stops.
_ACCURACY = 1e-9
#: Largest error of a solution whose value still counts as exact.
_USABLE_ERROR = 1e-7
#: Smallest weight of an assignment that is part of the primal point.
_ACTIVE_WEIGHT = 1e-7


@dataclass(frozen=True)
class AssignmentCost:
    """The cost of one assignment of a site's points: ``sum_k n_k |m_k - c_k|^2 + within``.

    Attributes
    ----------
    site : int
    counts : (K,) float64
        n, persons in each cluster.
    means : (K, d) float64
        c, the clusters' means; unused where the count is 0.
    within : float
        Squared distances of the points to their cluster's mean, added up.
    """

    site: int
    counts: FloatArray
    means: FloatArray
    within: float


@dataclass(frozen=True)
class BundleOptimum:
    """The maximum of the quadratic bundle's model.

    Attributes
    ----------
    lambdas : (S - 1, K, d) float64
    value : float
        The model's maximum.
    error : float
        Upper limit of the value's error; infinite where the solver missed its accuracy.
    consensus : (K, d) float64
        Mean over the sites of the program's primal points, which agree.
    active : (A,) bool
        Assignments with a weight in the primal point.
    disagreement : (K, d) float64
        Squared distances of the active assignments' points from the consensus, weighted by persons.
        If all are 0, the sites' assignments form one solution.
    """

    lambdas: FloatArray
    value: float
    error: float
    consensus: FloatArray
    active: BoolArray
    disagreement: FloatArray


def maximise_cutting_planes(
    slopes: FloatArray,
    offsets: FloatArray,
    radius: float,
    *,
    slope: FloatArray | None = None,
    curvature: FloatArray | None = None,
) -> FloatArray | None:
    """Maximise v over steps s with ``v <= offsets_l + slopes_l . s`` and ``|s| <= radius``.

    With ``curvature``, also ``v <= slope . s + s.B.s / 2``: equation 32. Its constraint 32c is
    reverse convex as printed; this is the concave form, the lower of model and cuts.

    Parameters
    ----------
    slopes : (L, n) float64
    offsets : (L,) float64
        The negative linearisation errors of equation 22.
    radius : float
        Of the trust region, positive; equation 24b: the root of alpha.
    slope : (n,) float64 or None
        The newest subgradient.
    curvature : (n, n) float64 or None
        B of equation 26, negative semidefinite.

    Returns
    -------
    (n,) float64 or None
        The step; None if the program was not solved.
    """
    n = slopes.shape[1]
    unit = float(np.abs(slopes).max(initial=0.0)) * radius
    if unit == 0.0:
        return np.zeros(n)
    # In units of the radius and of the largest rise within it; v is the last variable.
    program = ConeProgram(n + 1)
    program.cost[n] = -1.0
    rises = slopes * (radius / unit)
    program.add_upper_limits(np.column_stack([-rises, np.ones(len(rises))]), offsets / unit)
    ball = np.zeros((n + 1, n + 1))
    ball[1:, :n] = -np.eye(n)
    program.add_cone(ball, np.r_[1.0, np.zeros(n)])
    if slope is not None and curvature is not None:
        scaled = curvature * (radius * radius / unit)
        rows = _curvature_cone(slope * (radius / unit), scaled)
        program.add_cone(rows, np.r_[1.0, -1.0, np.zeros(n)])
    solution = program.solve(_ACCURACY)
    if solution is None or not solution.converged:
        return None
    step = solution.primal[:n]
    return np.asarray(step * (radius / max(1.0, float(np.linalg.norm(step)))))


def _curvature_cone(slope: FloatArray, curvature: FloatArray) -> FloatArray:
    """Return the rows of v <= slope . s + s.B.s / 2 for the variables s and v.

    With B = -root^T root and u = slope . s - v it is |(2 root s, 2u - 1)| <= 2u + 1.
    """
    n = len(slope)
    values, vectors = np.linalg.eigh(-curvature)
    root = np.sqrt(np.maximum(values, 0.0))[:, None] * vectors.T
    rows = np.zeros((n + 2, n + 1))
    rows[:2, :n] = -2.0 * slope
    rows[:2, n] = 2.0
    rows[2:, :n] = -2.0 * root
    return rows


def maximise_bundle(
    assignments: Sequence[AssignmentCost], region: Region, n_sites: int
) -> BundleOptimum | None:
    """Maximise over lambda the sum over sites of the least cost of a known assignment.

    The model ``sum_i min_a min_{m in C} phi_a(m) + mu_i . m`` is never below the dual function:
    further assignments can only lower it. Its maximum is a second-order cone program over the
    perspectives of the assignments' costs: every site mixes its known assignments with weights that
    sum to 1, and the mixed centroids of neighbouring sites agree. The multipliers of that agreement
    are the lambda.

    Parameters
    ----------
    assignments : sequence of AssignmentCost
        At least one of every site.
    region : Region
        C; for "reference" its convex relaxation "pairwise".
    n_sites : int
        S, at least 2.

    Returns
    -------
    BundleOptimum or None
        None if the program was not solved.
    """
    n_clusters, d = region.references.shape
    # Units from the centroids' own bounds: the solver's error is relative to them.
    bounds = region.centroid_bounds
    least, most = bounds.lower.min(axis=0), bounds.upper.max(axis=0)
    center = (least + most) / 2
    length = float((most - least).max(initial=0.0)) / 2 or 1.0
    mass = max(max(float(assignment.counts.sum()) for assignment in assignments), 1.0)
    energy = length * length * mass
    scaled = [_scale(assignment, center, length, mass) for assignment in assignments]
    n_agreements = (n_sites - 1) * n_clusters * d
    program = _bundle_program(scaled, _region_constraints(region, center, length), n_sites)
    solution = program.solve(_ACCURACY)
    if solution is None or not solution.converged:
        return None
    variables = solution.primal.reshape(len(assignments), -1)
    weights, points = variables[:, 0], variables[:, 2:]
    consensus = points.sum(axis=0) / n_sites
    lambdas = solution.dual[program.n_rows - n_agreements :] * (energy / length)
    return BundleOptimum(
        lambdas=lambdas.reshape(n_sites - 1, n_clusters, d),
        value=solution.value * energy,
        error=_value_error(solution) * energy,
        consensus=center + length * consensus.reshape(n_clusters, d),
        active=weights > _ACTIVE_WEIGHT,
        disagreement=length**2 * _disagreement(assignments, weights, points, consensus),
    )


def _scale(
    assignment: AssignmentCost, center: FloatArray, length: float, mass: float
) -> AssignmentCost:
    return AssignmentCost(
        assignment.site,
        assignment.counts / mass,
        (assignment.means - center) / length,
        assignment.within / (length * length * mass),
    )


def _bundle_program(
    assignments: Sequence[AssignmentCost], constraints: FloatArray, n_sites: int
) -> ConeProgram:
    """Return the program of scaled assignments; its last rows are the sites' agreement.

    Variables of an assignment: weight, cost above ``within``, and centroids times weight.
    """
    width = assignments[0].means.size
    stride = 2 + width
    program = ConeProgram(stride * len(assignments))
    weight_sums = np.zeros((n_sites, program.size))
    agreement = np.zeros((n_sites - 1, width, program.size))
    coordinates = np.arange(width)
    for index, assignment in enumerate(assignments):
        start = stride * index
        program.cost[start : start + 2] = assignment.within, 1.0
        weight_sums[assignment.site, start] = 1.0
        columns = start + 2 + coordinates
        if assignment.site < n_sites - 1:
            agreement[assignment.site, coordinates, columns] = 1.0
        if assignment.site > 0:
            agreement[assignment.site - 1, coordinates, columns] = -1.0
        program.add_cone(_perspective(assignment.counts, assignment.means), start=start)
        program.add_upper_limits(constraints, start=start)
    program.add_equalities(weight_sums, np.ones(n_sites))
    program.add_equalities(agreement.reshape(-1, program.size))
    return program


def _value_error(solution: ConeSolution) -> float:
    return 10 * solution.error if solution.error <= _USABLE_ERROR else np.inf


def _disagreement(
    assignments: Sequence[AssignmentCost],
    weights: FloatArray,
    points: FloatArray,
    consensus: FloatArray,
) -> FloatArray:
    """Return (K, d): squares of the assignments' own points minus the consensus, scaled."""
    total = np.zeros(assignments[0].means.shape)
    for assignment, weight, point in zip(assignments, weights, points, strict=True):
        if weight > _ACTIVE_WEIGHT:
            differences = (point / weight - consensus).reshape(total.shape)
            # A cluster without points has a position as well.
            total += weight * (assignment.counts[:, None] + 1.0) * differences**2
    return total


def _perspective(counts: FloatArray, means: FloatArray) -> FloatArray:
    """Return rows of -A with ``A x`` in the cone where sum_k n_k |z_k - w c_k|^2 <= cost w.

    The columns of A are the weight w, the cost and z; as |(cost - w, 2 roots ...)| <= cost + w.
    """
    n_clusters, d = means.shape
    filled = np.flatnonzero(counts > 0)
    rows = np.zeros((2 + len(filled) * d, 2 + n_clusters * d))
    rows[0, :2] = -1.0
    rows[1, :2] = 1.0, -1.0
    for index, k in enumerate(filled):
        own_rows = slice(2 + index * d, 2 + (index + 1) * d)
        root = 2.0 * np.sqrt(counts[k])
        rows[own_rows, 2 + k * d : 2 + (k + 1) * d] = -root * np.eye(d)
        rows[own_rows, 0] = root * means[k]
    return rows


def _region_constraints(region: Region, center: FloatArray, length: float) -> FloatArray:
    """Return A (R, 2 + K d) of the region's constraints on z / weight, scaled, as A x <= 0."""
    references = (region.references - center) / length
    n_clusters, d = references.shape
    bounds = region.centroid_bounds
    rows = [np.concatenate([np.eye(n_clusters * d), -np.eye(n_clusters * d)])]
    limits = [
        ((bounds.upper - center) / length).ravel(),
        ((center - bounds.lower) / length).ravel(),
    ]
    for k in range(n_clusters):
        for other in range(n_clusters):
            line = references[other] - references[k]
            row = np.zeros((n_clusters, d))
            limit = 0.0
            if region.symmetry == "cells":
                row[k] = 2.0 * line
                limit = float(references[other] @ references[other] - references[k] @ references[k])
            elif region.symmetry != "none" and k < other:
                row[k], row[other] = line, -line
            size = float(np.linalg.norm(row))
            if size > 0.0:
                rows.append(row.reshape(1, -1) / size)
                limits.append(np.array([limit / size]))
    right = np.concatenate(limits)
    return np.column_stack([-right, np.zeros(len(right)), np.concatenate(rows)])
