"""Centroids of fixed labels under equation 36, which is reverse convex: by splitting boxes.

What it says and cites
    Yfantis et al., "Federated K-means clustering via dual decomposition-based distributed
    optimization", equation 36: ``|m_k - r_k|^2 <= |m_l - r_k|^2``. Written out, the squares of r
    cancel, and what is not linear is ``|m_k|^2 - |m_l|^2``. With t for the squares, every
    coordinate's pair (m, t) in the convex hull of the parabola over its interval makes the program
    convex; it is exact where t = m^2. Otherwise the interval of the worst coordinate is split.

The bound claimed is not the solver's: its multipliers go into the Lagrangian, whose minimum over
the box is closed form whatever the sign of the squares' coefficients.
"""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

from fedclust.methods.dual.quadratic_program import Minimum, box_minimum

__all__ = ["minimise_by_splitting"]

FloatArray = NDArray[np.float64]
#: Boxes looked at for one set of labels; beyond it, the bound proven so far is returned.
_BOXES = 400
#: Where value and bound are this near, relative to the terms of the cost, no box is split further.
_CLOSE = 1e-9


def minimise_by_splitting(
    weights: FloatArray,
    linear: FloatArray,
    lower: FloatArray,
    upper: FloatArray,
    references: FloatArray,
    relaxed: Minimum,
    tolerance: float,
    enough: float,
) -> Minimum:
    """Return the minimum of ``sum_k n_k|m_k|^2 - b_k.m_k`` over the box under equation 36.

    Parameters
    ----------
    weights : (K,) float64
        n, not negative.
    linear : (K, d) float64
        b.
    lower, upper : (d,) float64
    references : (K, d) float64
        In the box: that they satisfy equation 36 themselves is where a point is pulled to when
        rounding leaves it outside.
    relaxed : Minimum
        Over the relaxation by "pairwise".
    tolerance : float
        By how much equation 36 may be missed, as a distance.
    enough : float
        A bound that reaches this is not improved.

    Raises
    ------
    MissingExtra
        If clarabel is not installed.
    """
    shape = linear.shape
    problem = _Relaxation(weights, linear, references)
    size = float(np.repeat(weights, shape[1]) @ relaxed.point**2)
    size += float(np.abs(linear.ravel() * relaxed.point).sum())
    inside = references.ravel()
    best, best_value = inside, problem.cost(inside)

    def offer(point: FloatArray) -> None:
        nonlocal best, best_value
        feasible = problem.pulled_inside(point, tolerance)
        value = problem.cost(feasible)
        if value < best_value:
            best, best_value = feasible, value

    offer(relaxed.point)
    low, high = np.tile(lower, shape[0]), np.tile(upper, shape[0])
    boxes: list[tuple[float, int, FloatArray, FloatArray, FloatArray]] = []
    floor, done, serial = np.inf, 0, 0

    def visit(low: FloatArray, high: FloatArray, above: float) -> None:
        nonlocal floor, serial, done
        done += 1
        point, squares, bound = problem.solve(low, high)
        bound = max(bound, above)
        offer(point)
        gaps = squares - point**2
        if bound >= min(best_value - _CLOSE * size, enough):
            floor = min(floor, bound)
            return
        at = int(gaps.argmax())
        middle = float(np.clip(point[at], *(low[at] + np.array([0.2, 0.8]) * (high - low)[at])))
        serial += 1
        heapq.heappush(boxes, (bound, serial, low, high, np.array([at, middle])))

    visit(low, high, relaxed.bound)
    while boxes and done < _BOXES:
        if boxes[0][0] >= min(best_value - _CLOSE * size, enough):
            break
        bound, _, low, high, split = heapq.heappop(boxes)
        at, middle = int(split[0]), float(split[1])
        left, right = high.copy(), low.copy()
        left[at] = right[at] = middle
        visit(low, left, bound)
        visit(right, high, bound)
    if boxes:
        floor = min(floor, boxes[0][0])
    return Minimum(best, best_value, min(floor, best_value))


class _Relaxation:
    """The convex program over one box, and what else is asked of points of it."""

    def __init__(self, weights: FloatArray, linear: FloatArray, references: FloatArray) -> None:
        clusters, self.d = linear.shape
        self.weights = np.repeat(weights, self.d)
        self.linear = linear.ravel()
        self.references = references
        ordered = [(k, m) for k in range(clusters) for m in range(clusters) if k != m]
        # Of constraint (k, l): the sign of each coordinate's square, and its linear part.
        signs = np.zeros((len(ordered), clusters, self.d))
        slopes = np.zeros((len(ordered), clusters, self.d))
        for row, (k, other) in enumerate(ordered):
            signs[row, k], signs[row, other] = 1.0, -1.0
            slopes[row, k], slopes[row, other] = -2.0 * references[k], 2.0 * references[k]
        self.signs = signs.reshape(len(ordered), -1)
        self.slopes = slopes.reshape(len(ordered), -1)

    def cost(self, point: FloatArray) -> float:
        return float(self.weights @ point**2 - self.linear @ point)

    def missed(self, point: FloatArray) -> float:
        """Return by how much equation 36 is missed, as a distance."""
        at = point.reshape(-1, self.d)
        distances = np.sqrt(((at[None] - self.references[:, None]) ** 2).sum(axis=2))
        return float((distances.diagonal() - distances.min(axis=1)).max())

    def pulled_inside(self, point: FloatArray, tolerance: float) -> FloatArray:
        """Return the first point on the way to the references that satisfies equation 36."""
        inside = self.references.ravel()
        if self.missed(point) <= tolerance:
            return point
        for step in 2.0 ** np.arange(-30.0, 1.0):
            low, high = 0.5 * step if step > 2.0**-30 else 0.0, float(step)
            if self.missed(point + high * (inside - point)) > tolerance:
                continue
            for _ in range(40):
                half = 0.5 * (low + high)
                if self.missed(point + half * (inside - point)) <= tolerance:
                    high = half
                else:
                    low = half
            return point + high * (inside - point)
        return inside

    def solve(self, low: FloatArray, high: FloatArray) -> tuple[FloatArray, FloatArray, float]:
        """Return point (N,), squares (N,) and a proven bound of the program over one box."""
        from fedclust.methods.dual.extra import MissingExtra

        try:
            import clarabel
        except ImportError:
            raise MissingExtra("the symmetry form reference") from None
        from scipy import sparse

        size, rows = len(low), len(self.signs)
        eye, zero = np.eye(size), np.zeros((size, size))
        # Over x and t: equation 36; t <= (low + high) x - low high; then t >= x^2 as cones
        # |(2x, t - 1)| <= t + 1.
        linear_rows = np.vstack(
            [
                np.hstack([self.slopes, self.signs]),
                np.hstack([np.diag(-(low + high)), eye]),
                np.hstack([-eye, zero]),
                np.hstack([eye, zero]),
            ]
        )
        right = np.concatenate([np.zeros(rows), -low * high, -low, high])
        cones = np.zeros((3 * size, 2 * size))
        shift = np.zeros(3 * size)
        at = np.arange(size)
        cones[3 * at, size + at], shift[3 * at] = -1.0, 1.0
        cones[3 * at + 1, at] = -2.0
        cones[3 * at + 2, size + at], shift[3 * at + 2] = -1.0, -1.0
        settings = clarabel.DefaultSettings()
        settings.verbose = False
        settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-11
        solution = clarabel.DefaultSolver(
            sparse.csc_matrix((2 * size, 2 * size)),
            np.concatenate([-self.linear, self.weights]),
            sparse.csc_matrix(np.vstack([linear_rows, cones])),
            np.concatenate([right, shift]),
            [clarabel.NonnegativeConeT(len(right)), *[clarabel.SecondOrderConeT(3)] * size],
            settings,
        ).solve()
        answer, duals = np.array(solution.x), np.array(solution.z)[:rows]
        if not (np.isfinite(answer).all() and np.isfinite(duals).all()):
            middle = 0.5 * (low + high)
            return middle, high**2 + low**2, -np.inf
        duals = np.maximum(duals, 0.0)
        squares = self.weights + duals @ self.signs
        pushed = self.linear - duals @ self.slopes
        inner = box_minimum(squares, pushed, low, high, low)
        bound = float(squares @ inner**2 - pushed @ inner)
        return np.clip(answer[:size], low, high), answer[size:], bound
