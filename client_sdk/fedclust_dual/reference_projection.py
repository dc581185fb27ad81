"""Centroids of fixed labels under equation 36, a reverse convex constraint: by splitting boxes.

Equation 36 of [1]_ is ``|m_k - r_k|^2 <= |m_l - r_k|^2``. The squares of r cancel; the nonlinear
part is ``|m_k|^2 - |m_l|^2``. Let t stand for the squared coordinates. Restricting each pair (m, t)
to the convex hull of the parabola over its interval makes the program convex; it is exact where
t = m^2. Otherwise the interval of the coordinate with the largest error is split.

The claimed bound does not depend on the solver's accuracy: its multipliers go into the Lagrangian,
whose minimum over the box has a closed form whatever the sign of the squares' coefficients.

References
----------
.. [1] Yfantis, Wagner & Ruskowski, "Federated K-means clustering via dual decomposition-based
   distributed optimization".
"""

from __future__ import annotations

import heapq
from itertools import permutations

import numpy as np

from fedclust.numeric.array_types import FloatArray
from fedclust_dual.conic_solver import ConeProgram
from fedclust_dual.quadratic_program import Minimum, box_minimiser

#: Limit of boxes for one set of labels; beyond it, the bound proven so far is returned.
_MAX_BOXES = 400
#: Distance of value and bound, relative to the terms of the cost, at which no box is split further.
_CLOSED_GAP = 1e-9
#: Accuracy of the cone solver.
_ACCURACY = 1e-11


def minimise_by_splitting(
    weights: FloatArray,
    linear: FloatArray,
    lower: FloatArray,
    upper: FloatArray,
    references: FloatArray,
    relaxed: Minimum,
    tolerance: float,
    sufficient: float,
) -> Minimum:
    """Minimise ``sum_k n_k|m_k|^2 - b_k.m_k`` over the box under equation 36.

    Parameters
    ----------
    weights : (K,) float64
        n, not negative.
    linear : (K, d) float64
        b.
    lower, upper : (d,) float64
    references : (K, d) float64
        r, in the box. They satisfy equation 36; a point that rounding leaves outside is moved
        towards them.
    relaxed : Minimum
        The minimum under the relaxation "pairwise".
    tolerance : float
        Accepted violation of equation 36, as a distance.
    sufficient : float
        A bound that reaches this value is not improved further.

    Returns
    -------
    Minimum
    """
    n_clusters, d = linear.shape
    magnitude = float(np.repeat(weights, d) @ relaxed.point**2)
    magnitude += float(np.abs(linear.ravel() * relaxed.point).sum())
    relaxation = _Relaxation(weights, linear, references)
    search = _BoxSearch(relaxation, tolerance, _CLOSED_GAP * magnitude, sufficient)
    search.offer(relaxed.point)
    return search.run(np.tile(lower, n_clusters), np.tile(upper, n_clusters), relaxed.bound)


class _BoxSearch:
    """Best-first search over boxes, which keeps the best feasible point."""

    def __init__(
        self, relaxation: _Relaxation, tolerance: float, slack: float, sufficient: float
    ) -> None:
        self._relaxation, self._tolerance = relaxation, tolerance
        self._slack, self._sufficient = slack, sufficient
        self._best = relaxation.references.ravel()
        self._best_value = relaxation.cost(self._best)
        self._boxes: list[tuple[float, int, FloatArray, FloatArray, int, float]] = []
        self._floor, self._n_visited, self._n_pushed = np.inf, 0, 0

    def offer(self, point: FloatArray) -> None:
        """Keep the feasible point made of ``point`` (N,) if it is the best so far."""
        feasible = self._relaxation.move_inside(point, self._tolerance)
        value = self._relaxation.cost(feasible)
        if value < self._best_value:
            self._best, self._best_value = feasible, value

    def run(self, low: FloatArray, high: FloatArray, bound: float) -> Minimum:
        """Search the box, of which ``bound`` is proven."""
        self._visit(low, high, bound)
        while self._boxes and self._n_visited < _MAX_BOXES and not self._done(self._boxes[0][0]):
            bound, _, low, high, split, middle = heapq.heappop(self._boxes)
            left, right = high.copy(), low.copy()
            left[split] = right[split] = middle
            self._visit(low, left, bound)
            self._visit(right, high, bound)
        floor = min(self._floor, self._boxes[0][0]) if self._boxes else self._floor
        return Minimum(self._best, self._best_value, min(floor, self._best_value))

    def _done(self, bound: float) -> bool:
        return bound >= min(self._best_value - self._slack, self._sufficient)

    def _visit(self, low: FloatArray, high: FloatArray, parent_bound: float) -> None:
        self._n_visited += 1
        point, squares, bound = self._relaxation.solve(low, high)
        bound = max(bound, parent_bound)
        self.offer(point)
        if self._done(bound):
            self._floor = min(self._floor, bound)
            return
        split = int((squares - point**2).argmax())
        inner = low[split] + np.array([0.2, 0.8]) * (high - low)[split]
        middle = float(np.clip(point[split], *inner))
        self._n_pushed += 1
        heapq.heappush(self._boxes, (bound, self._n_pushed, low, high, split, middle))


class _Relaxation:
    """The convex relaxation over one box; points are centroids flattened to N = K * d."""

    def __init__(self, weights: FloatArray, linear: FloatArray, references: FloatArray) -> None:
        n_clusters, self._d = linear.shape
        self.references = references
        self._weights = np.repeat(weights, self._d)
        self._linear = linear.ravel()
        pairs = list(permutations(range(n_clusters), 2))
        # Equation 36 of a pair: the sign of each coordinate's square, and its linear part.
        signs = np.zeros((len(pairs), n_clusters, self._d))
        slopes = np.zeros((len(pairs), n_clusters, self._d))
        for row, (k, other) in enumerate(pairs):
            signs[row, k], signs[row, other] = 1.0, -1.0
            slopes[row, k], slopes[row, other] = -2.0 * references[k], 2.0 * references[k]
        self._signs = signs.reshape(len(pairs), -1)
        self._slopes = slopes.reshape(len(pairs), -1)

    def cost(self, point: FloatArray) -> float:
        return float(self._weights @ point**2 - self._linear @ point)

    def violation(self, point: FloatArray) -> float:
        """Return the violation of equation 36, as a distance."""
        centroids = point.reshape(-1, self._d)
        distances = np.sqrt(((centroids[None] - self.references[:, None]) ** 2).sum(axis=2))
        return float((distances.diagonal() - distances.min(axis=1)).max())

    def move_inside(self, point: FloatArray, tolerance: float) -> FloatArray:
        """Return the first point on the way to the references that satisfies equation 36."""
        direction = self.references.ravel() - point
        if self.violation(point) <= tolerance:
            return point
        for step in 2.0 ** np.arange(-30.0, 1.0):
            low, high = 0.5 * step if step > 2.0**-30 else 0.0, float(step)
            if self.violation(point + high * direction) > tolerance:
                continue
            for _ in range(40):
                half = 0.5 * (low + high)
                if self.violation(point + half * direction) <= tolerance:
                    high = half
                else:
                    low = half
            return point + high * direction
        return self.references.ravel()

    def solve(self, low: FloatArray, high: FloatArray) -> tuple[FloatArray, FloatArray, float]:
        """Return point (N,), squares t (N,) and a proven bound over the box ``low`` to ``high``."""
        size = len(low)
        program = ConeProgram(2 * size)
        program.cost[:] = np.concatenate([-self._linear, self._weights])
        eye, zero = np.eye(size), np.zeros((size, size))
        # Equation 36; t <= (low + high) x - low high; the box of x.
        program.add_upper_limits(
            np.vstack(
                [
                    np.hstack([self._slopes, self._signs]),
                    np.hstack([np.diag(-(low + high)), eye]),
                    np.hstack([-eye, zero]),
                    np.hstack([eye, zero]),
                ]
            ),
            np.concatenate([np.zeros(len(self._signs)), -low * high, -low, high]),
        )
        # t >= x^2 as |(2x, t - 1)| <= t + 1.
        for index in range(size):
            rows = np.zeros((3, 2 * size))
            rows[0, size + index] = rows[2, size + index] = -1.0
            rows[1, index] = -2.0
            program.add_cone(rows, np.array([1.0, 0.0, -1.0]))
        solution = program.solve(_ACCURACY)
        if solution is None:
            return 0.5 * (low + high), high**2 + low**2, -np.inf
        duals = np.maximum(solution.dual[: len(self._signs)], 0.0)
        squares = self._weights + duals @ self._signs
        lagrangian = self._linear - duals @ self._slopes
        inner = box_minimiser(squares, lagrangian, low, high, low)
        bound = float(squares @ inner**2 - lagrangian @ inner)
        return np.clip(solution.primal[:size], low, high), solution.primal[size:], bound
