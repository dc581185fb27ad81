"""Small separable quadratic programs, exactly, with a proven bound: centroids of fixed labels.

What it says and cites
    Minimise ``sum_i w_i x_i^2 - b_i x_i`` over a box and half-spaces. Goldfarb & Idnani, "A
    numerically stable dual method for solving strictly convex quadratic programs", 1983, finds the
    constraints that bind. Weights may be 0 (a cluster without rows has only a linear cost): such
    coordinates get a small weight about where they last were, again and again, until the proven
    bound meets the value (Rockafellar, "Monotone operators and the proximal point algorithm",
    1976; on a linear cost it ends after finitely many steps, mostly one).

The bound needs no trust in any of that: for any multipliers of the half-spaces that are not
negative, the Lagrangian's minimum over the box is closed form and below every feasible value.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Halfspaces", "Minimum", "box_minimum", "minimise"]

FloatArray = NDArray[np.float64]
#: Steps of the active set: each adds or drops a constraint, and few are ever needed.
_STEPS = 1000
#: Proximal rounds for coordinates without weight.
_ROUNDS = 30


class Halfspaces(NamedTuple):
    """``normals @ x >= offsets``: normals (m, N), offsets (m,)."""

    normals: FloatArray
    offsets: FloatArray


class Minimum(NamedTuple):
    """The minimiser (N,), the cost there, and a proven lower bound of all feasible costs."""

    point: FloatArray
    value: float
    bound: float


def box_minimum(
    weights: FloatArray, linear: FloatArray, lower: FloatArray, upper: FloatArray, home: FloatArray
) -> FloatArray:
    """Return the minimiser (N,) of ``w x^2 - b x`` over the box; ``home`` where all are alike.

    Parameters
    ----------
    weights, linear : (N,) float64
        w, any sign, and b. With a weight below 0 the cost is concave: an end of the interval.
    lower, upper, home : (N,) float64
    """
    convex = weights > 0
    inner = linear / np.where(convex, 2.0 * weights, 1.0)
    ends = np.where(
        weights * lower**2 - linear * lower <= weights * upper**2 - linear * upper, lower, upper
    )
    flat = np.where((weights == 0) & (linear == 0), home, ends)
    return np.clip(np.where(convex, inner, flat), lower, upper)


def minimise(
    weights: FloatArray,
    linear: FloatArray,
    lower: FloatArray,
    upper: FloatArray,
    halfspaces: Halfspaces,
    home: FloatArray,
    tolerance: float,
) -> Minimum:
    """Return the minimum of ``sum w x^2 - b x`` over the box and the half-spaces.

    Parameters
    ----------
    weights, linear : (N,) float64
        w, not negative, and b.
    lower, upper : (N,) float64
    halfspaces : Halfspaces
        With the box, they leave a point.
    home : (N,) float64
        Where coordinates without cost belong: the nearest feasible point to it is returned.
    tolerance : float
        By how much a half-space may be missed, in the units of ``normals @ x``.
    """
    normals, offsets = halfspaces
    point = box_minimum(weights, linear, lower, upper, home)
    value = float(weights @ point**2 - linear @ point)
    if (normals @ point >= offsets - tolerance).all():
        return Minimum(point, value, value)
    size = len(weights)
    empty = weights == 0
    width = max(float((upper - lower).max()), 1e-300)
    pull = max(float(np.abs(linear[empty]).max(initial=0.0)) / width, float(weights.max())) * 1e-4
    proximal = np.where(empty, pull if pull > 0 else 1.0, weights)
    eye = np.eye(size)
    all_normals = np.vstack([normals, eye, -eye])
    all_offsets = np.concatenate([offsets, lower, -upper])
    best = Minimum(point, np.inf, -np.inf)
    near = home
    for _ in range(_ROUNDS):
        target = np.where(empty, linear + 2.0 * proximal * near, linear)
        found, duals = _active_set(proximal, target, all_normals, all_offsets, tolerance)
        found = np.clip(found, lower, upper)
        value = float(weights @ found**2 - linear @ found)
        pushed = linear + duals[: len(offsets)] @ normals
        inner = box_minimum(weights, pushed, lower, upper, home)
        bound = float(weights @ inner**2 - pushed @ inner + duals[: len(offsets)] @ offsets)
        best = Minimum(found, value, max(bound, best.bound))
        size_of_terms = float(weights @ found**2 + np.abs(linear * found).sum())
        if value - best.bound <= 1e-12 * size_of_terms or not empty.any():
            break
        near = found
    return Minimum(best.point, best.value, min(best.bound, best.value))


def _active_set(
    weights: FloatArray,
    linear: FloatArray,
    normals: FloatArray,
    offsets: FloatArray,
    tolerance: float,
) -> tuple[FloatArray, FloatArray]:
    """Return minimiser (N,) and multipliers (m,) of a strictly convex separable program.

    The dual method: start without constraints, take up the one missed most, drop those whose
    multiplier would fall below 0.
    """
    inverse = 0.5 / weights
    point = inverse * linear
    active: list[int] = []
    duals = np.zeros(len(offsets))
    for _ in range(_STEPS):
        missed = normals @ point - offsets
        missed[active] = 0.0
        new = int(missed.argmin())
        if missed[new] >= -0.01 * tolerance:
            break
        rise = 0.0
        while True:
            held = normals[active]
            moved = inverse * normals[new]
            if active:
                share = np.linalg.lstsq((held * inverse) @ held.T, held @ moved, rcond=None)[0]
                moved = moved - inverse * (share @ held)
            else:
                share = np.empty(0)
            slope = float(moved @ normals[new])
            gap = float(offsets[new] - normals[new] @ point)
            # Along a direction that the held constraints leave no room for, only multipliers move.
            full = gap / slope if slope > 1e-12 * float(inverse @ normals[new] ** 2) else np.inf
            limits = [
                duals[at] / part if part > 1e-14 else np.inf
                for at, part in zip(active, share, strict=True)
            ]
            first = min(limits, default=np.inf)
            step = min(full, first)
            if not np.isfinite(step):
                return point, duals
            duals[active] -= step * share
            rise += step
            if np.isfinite(full):
                point = point + step * moved
            if full <= first:
                active.append(new)
                duals[new] = rise
                break
            gone = active.pop(limits.index(first))
            duals[gone] = 0.0
    return point, np.maximum(duals, 0.0)
