"""Separable quadratic programs over a box and half-spaces, solved with a proven lower bound.

The centroids of fixed labels minimise ``sum_i w_i x_i^2 - b_i x_i`` over a box and half-spaces. The
dual active-set method of [1]_ finds the binding constraints. A cluster without points has weight 0
and a linear cost: its coordinates get a small weight around their last position, repeatedly, until
the proven bound meets the value [2]_. With a linear cost this ends after finitely many rounds,
mostly after one.

The bound does not depend on the solver's accuracy: for any non-negative multipliers of the
half-spaces, the Lagrangian's minimum over the box has a closed form and is a lower bound.

References
----------
.. [1] Goldfarb & Idnani, "A numerically stable dual method for solving strictly convex quadratic
   programs", Mathematical Programming 1983.
.. [2] Rockafellar, "Monotone operators and the proximal point algorithm", 1976.
"""

from typing import NamedTuple

import numpy as np

from fedclust.numeric.array_types import FloatArray

#: Limit of active-set steps. Each step adds or drops a constraint; few are ever needed.
_MAX_STEPS = 1000
#: Limit of proximal rounds for coordinates without weight.
_MAX_PROXIMAL_ROUNDS = 30
#: Relative distance of value and bound at which the proximal rounds end.
_CLOSED_GAP = 1e-12


class Halfspaces(NamedTuple):
    """The set ``normals @ x >= offsets``: normals (m, N), offsets (m,)."""

    normals: FloatArray
    offsets: FloatArray


class Minimum(NamedTuple):
    """A minimiser (N,), its cost, and a proven lower bound of all feasible costs."""

    point: FloatArray
    value: float
    bound: float


def box_minimiser(
    weights: FloatArray,
    linear: FloatArray,
    lower: FloatArray,
    upper: FloatArray,
    default: FloatArray,
) -> FloatArray:
    """Return the minimiser of ``w x^2 - b x`` over a box, coordinate by coordinate.

    Parameters
    ----------
    weights, linear : (N,) float64
        w, of any sign, and b. Where w is negative the cost is concave and an end of the interval is
        the minimiser.
    lower, upper : (N,) float64
    default : (N,) float64
        The value of coordinates without any cost.

    Returns
    -------
    (N,) float64
    """
    convex = weights > 0
    inner = linear / np.where(convex, 2.0 * weights, 1.0)
    ends = np.where(
        weights * lower**2 - linear * lower <= weights * upper**2 - linear * upper, lower, upper
    )
    corner = np.where((weights == 0) & (linear == 0), default, ends)
    return np.clip(np.where(convex, inner, corner), lower, upper)


def minimise(
    weights: FloatArray,
    linear: FloatArray,
    lower: FloatArray,
    upper: FloatArray,
    halfspaces: Halfspaces,
    default: FloatArray,
    tolerance: float,
) -> Minimum:
    """Minimise ``sum w x^2 - b x`` over a box and half-spaces.

    Parameters
    ----------
    weights, linear : (N,) float64
        w, not negative, and b.
    lower, upper : (N,) float64
    halfspaces : Halfspaces
        Their intersection with the box is not empty.
    default : (N,) float64
        Coordinates without cost take the feasible value nearest to it.
    tolerance : float
        Accepted violation of a half-space, in the units of ``normals @ x``.

    Returns
    -------
    Minimum
    """
    normals, offsets = halfspaces
    point = box_minimiser(weights, linear, lower, upper, default)
    value = float(weights @ point**2 - linear @ point)
    if (normals @ point >= offsets - tolerance).all():
        return Minimum(point, value, value)
    empty = weights == 0
    width = max(float((upper - lower).max()), 1e-300)
    pull = max(float(np.abs(linear[empty]).max(initial=0.0)) / width, float(weights.max())) * 1e-4
    proximal = np.where(empty, pull if pull > 0 else 1.0, weights)
    eye = np.eye(len(weights))
    constraints = Halfspaces(
        np.vstack([normals, eye, -eye]), np.concatenate([offsets, lower, -upper])
    )
    best_bound, center = -np.inf, default
    for _ in range(_MAX_PROXIMAL_ROUNDS):
        target = np.where(empty, linear + 2.0 * proximal * center, linear)
        point, duals = _active_set(proximal, target, constraints, tolerance)
        point = np.clip(point, lower, upper)
        value = float(weights @ point**2 - linear @ point)
        duals = duals[: len(offsets)]
        lagrangian = linear + duals @ normals
        inner = box_minimiser(weights, lagrangian, lower, upper, default)
        bound = float(weights @ inner**2 - lagrangian @ inner + duals @ offsets)
        best_bound = max(bound, best_bound)
        magnitude = float(weights @ point**2 + np.abs(linear * point).sum())
        if value - best_bound <= _CLOSED_GAP * magnitude or not empty.any():
            break
        center = point
    return Minimum(point, value, min(best_bound, value))


def _active_set(
    weights: FloatArray, linear: FloatArray, halfspaces: Halfspaces, tolerance: float
) -> tuple[FloatArray, FloatArray]:
    """Return minimiser (N,) and multipliers (m,) of a strictly convex separable program."""
    normals, offsets = halfspaces
    inverse = 0.5 / weights
    point = inverse * linear
    active: list[int] = []
    duals = np.zeros(len(offsets))
    for _ in range(_MAX_STEPS):
        slack = normals @ point - offsets
        slack[active] = 0.0
        new = int(slack.argmin())
        if slack[new] >= -0.01 * tolerance:
            break
        new_dual = 0.0
        while True:
            active_normals = normals[active]
            direction = inverse * normals[new]
            if active:
                gram = (active_normals * inverse) @ active_normals.T
                share = np.linalg.lstsq(gram, active_normals @ direction, rcond=None)[0]
                direction = direction - inverse * (share @ active_normals)
            else:
                share = np.empty(0)
            slope = float(direction @ normals[new])
            gap = float(offsets[new] - normals[new] @ point)
            # Where the active constraints block the direction, only multipliers can move.
            blocked = slope <= 1e-12 * float(inverse @ normals[new] ** 2)
            full_step = np.inf if blocked else gap / slope
            limits = [
                duals[index] / part if part > 1e-14 else np.inf
                for index, part in zip(active, share, strict=True)
            ]
            dual_step = min(limits, default=np.inf)
            step = min(full_step, dual_step)
            if not np.isfinite(step):
                return point, duals
            duals[active] -= step * share
            new_dual += step
            if np.isfinite(full_step):
                point = point + step * direction
            if full_step <= dual_step:
                active.append(new)
                duals[new] = new_dual
                break
            dropped = active.pop(limits.index(dual_step))
            duals[dropped] = 0.0
    return point, np.maximum(duals, 0.0)
