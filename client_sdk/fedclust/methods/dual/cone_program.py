"""The convex programs behind the updates of ``dual``: small second-order cone programs.

Each is put into units of about 1 before it is solved (clarabel by QDLDL: the same bits for the
same input), and what comes back is in the caller's units again. A program that the solver does not
solve gives ``None``; the rule then takes a step that needs no program.

References
----------
Yfantis, Wagner & Ruskowski, "Federated K-means clustering via dual decomposition-based distributed
optimization", eq. 24 and 32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedclust.methods.dual.extra import MissingExtra
from fedclust.methods.dual.feasible_set import Region

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

#: Gap and infeasibility at which the solver stops, in units of about 1.
_ACCURACY = 1e-9
#: What the solver may leave of a program whose value still counts as found.
_USABLE = 1e-7
#: Weight from which on a piece is part of the primal point.
_WEIGHTED = 1e-7


@dataclass(frozen=True)
class Piece:
    """What one assignment of one site's rows costs: ``sum_k n_k |m_k - c_k|^2 + rest``.

    Attributes
    ----------
    site : int
    counts : (K,) float64
    centres : (K, d) float64
        Means of the cells; unused where the count is 0.
    rest : float
        Squared distances of the rows to their cells' means.
    """

    site: int
    counts: FloatArray
    centres: FloatArray
    rest: float


@dataclass(frozen=True)
class Optimum:
    """Where the model of pieces and planes is largest.

    Attributes
    ----------
    lambdas : (S - 1, K, d) float64
    value : float
        The model there.
    error : float
        What the solver may have left of it; infinite where it stopped short of its accuracy.
    consensus : (K, d) float64
        Mean over the sites of the master's primal points, which agree.
    active : (P,) bool
        Pieces with a weight in the primal point.
    apart : (K, d) float64
        How far the primal points of these pieces are from the consensus: squared, and weighted by
        their rows. Where it is 0 everywhere, the sites' assignments are one solution.
    """

    lambdas: FloatArray
    value: float
    error: float
    consensus: FloatArray
    active: BoolArray
    apart: FloatArray


def best_step(
    slopes: FloatArray,
    offsets: FloatArray,
    radius: float,
    *,
    slope: FloatArray | None = None,
    curvature: FloatArray | None = None,
) -> FloatArray | None:
    """Maximise v over steps s with v <= offsets_l + slopes_l . s and |s| <= radius.

    With ``curvature``, v <= slope . s + s.B.s / 2 as well: eq. 32, whose constraint 32c would be
    reverse convex as printed, in the form that asks for the lower of model and cuts.

    Parameters
    ----------
    slopes : (L, n) float64
    offsets : (L,) float64
        Minus the linearisation errors of eq. 22.
    radius : float, positive
        Of the trust region, eq. 24b: the root of alpha.
    slope : (n,) float64 or None
        The newest subgradient.
    curvature : (n, n) float64 or None
        B of eq. 26, negative semidefinite.

    Returns
    -------
    (n,) float64 or None
        None: not solved.
    """
    n = slopes.shape[1]
    unit = float(np.abs(slopes).max(initial=0.0)) * radius
    if unit == 0.0:
        return np.zeros(n)
    program = _Program(n + 1)
    height = n
    # In units of the radius and of the largest rise within it.
    rises = slopes * (radius / unit)
    program.at_least(np.column_stack([-rises, np.ones(len(rises))]), offsets / unit)
    ball = np.zeros((n + 1, n + 1))
    ball[1:, :n] = -np.eye(n)
    program.cone(ball, np.r_[1.0, np.zeros(n)])
    if slope is not None and curvature is not None:
        values, vectors = np.linalg.eigh(-curvature * (radius * radius / unit))
        root = np.sqrt(np.maximum(values, 0.0))[:, None] * vectors.T
        # |root s|^2 <= 2 u 1 with u = slope . s - v, as |2 root s, 2u - 1| <= 2u + 1.
        rows = np.zeros((n + 2, n + 1))
        rows[:2, :n] = -2.0 * slope * (radius / unit)
        rows[:2, height] = 2.0
        rows[2:, :n] = -2.0 * root
        program.cone(rows, np.r_[1.0, -1.0, np.zeros(n)])
    program.cost[height] = -1.0
    solution = program.solve()
    if solution is None:
        return None
    step = solution.primal[:n]
    return np.asarray(step * (radius / max(1.0, float(np.linalg.norm(step)))))


def best_of_model(
    pieces: Sequence[Piece],
    region: Region,
    n_sites: int,
) -> Optimum | None:
    """Maximise over lambda the sum over sites of the least that a known assignment costs.

    The model ``sum_i min_a min_{m in C} phi_a(m) + mu_i . m`` is never below the dual function:
    further assignments can only lower it. Its maximum is a second-order cone program over the
    pieces' perspectives: every site mixes its known assignments with weights that sum to 1, and
    the mixed centroids of neighbours agree. The multipliers of that agreement are the lambda.

    Parameters
    ----------
    pieces : sequence of Piece
        At least one of every site.
    region : Region
        C; of ``reference`` its convex relaxation, ``pairwise``.
    n_sites : int
        At least 2.

    Returns
    -------
    Optimum or None
        None: not solved.
    """
    n_clusters, d = region.references.shape
    n_links, width = n_sites - 1, n_clusters * d
    # Of the boxes, not of all that was declared: the solver's error is in units of them.
    least, most = region.boxes.lower.min(axis=0), region.boxes.upper.max(axis=0)
    middle = (least + most) / 2
    length = float((most - least).max(initial=0.0)) / 2 or 1.0
    mass = max(float(piece.counts.sum()) for piece in pieces)
    energy = length * length * max(mass, 1.0)
    force = energy / length

    # Of a piece: its weight, its cost above the rest, its centroids times its weight.
    stride = 2 + width
    program = _Program(stride * len(pieces))
    walls = _walls(region, middle, length)

    whole = np.zeros((n_sites, program.size))
    agreement = np.zeros((n_links, width, program.size))
    own = np.arange(width)
    for index, piece in enumerate(pieces):
        start = stride * index
        program.cost[start : start + 2] = piece.rest / energy, 1.0
        whole[piece.site, start] = 1.0
        place = start + 2 + own
        if piece.site < n_links:
            agreement[piece.site, own, place] = 1.0
        if piece.site > 0:
            agreement[piece.site - 1, own, place] = -1.0
        centres = (piece.centres - middle) / length
        program.cone(_perspective(piece.counts / max(mass, 1.0), centres), at=start)
        program.at_least(walls, at=start)
    program.equal(whole, np.ones(n_sites))
    first = program.n_rows
    program.equal(agreement.reshape(-1, program.size))
    solution = program.solve()
    if solution is None:
        return None

    lambdas = solution.dual[first : program.n_rows] * force
    body = solution.primal.reshape(-1, stride)
    total = body[:, 2:].sum(axis=0) / n_sites
    return Optimum(
        lambdas=lambdas.reshape(n_links, n_clusters, d),
        value=solution.value * energy,
        error=10 * solution.error * energy if solution.error <= _USABLE else np.inf,
        consensus=middle + length * total.reshape(n_clusters, d),
        active=body[:, 0] > _WEIGHTED,
        apart=length**2 * _apart(pieces, body[:, 0], body[:, 2:], total),
    )


def _apart(
    pieces: Sequence[Piece], weights: FloatArray, points: FloatArray, total: FloatArray
) -> FloatArray:
    """Return (K, d): squares of the pieces' own points less the consensus, in inner units."""
    found = np.zeros(pieces[0].centres.shape)
    for piece, weight, point in zip(pieces, weights, points, strict=True):
        if weight > _WEIGHTED:
            ways = (point / weight - total).reshape(found.shape)
            # A cluster without rows has its point as well.
            found += weight * (piece.counts[:, None] + 1.0) * ways**2
    return found


def _perspective(counts: FloatArray, centres: FloatArray) -> FloatArray:
    """Return (R, 2 + K d): sum_k n_k |z_k - weight c_k|^2 <= cost weight, as a cone of -A x.

    The columns are the weight, the cost and z; |(cost - weight, 2 roots ...)| <= cost + weight.
    """
    n_clusters, d = centres.shape
    filled = np.flatnonzero(counts > 0)
    rows = np.zeros((2 + len(filled) * d, 2 + n_clusters * d))
    rows[0, :2] = -1.0
    rows[1, :2] = 1.0, -1.0
    for at, k in enumerate(filled):
        part = slice(2 + at * d, 2 + (at + 1) * d)
        root = 2.0 * np.sqrt(counts[k])
        rows[part, 2 + k * d : 2 + (k + 1) * d] = -root * np.eye(d)
        rows[part, 0] = root * centres[k]
    return rows


def _walls(region: Region, middle: FloatArray, length: float) -> FloatArray:
    """Return (R, 2 + K d): the region's constraints on z / weight in inner units, as A x <= 0."""
    references = (region.references - middle) / length
    n_clusters, d = references.shape
    above = ((region.boxes.upper - middle) / length).ravel()
    below = ((middle - region.boxes.lower) / length).ravel()
    rows = [np.concatenate([np.eye(n_clusters * d), -np.eye(n_clusters * d)])]
    limits = [above, below]
    for k in range(n_clusters):
        for other in range(n_clusters):
            apart = references[other] - references[k]
            row = np.zeros((n_clusters, d))
            limit = 0.0
            if region.symmetry == "cells":
                row[k] = 2.0 * apart
                limit = float(references[other] @ references[other] - references[k] @ references[k])
            elif region.symmetry != "none" and k < other:
                row[k], row[other] = apart, -apart
            size = float(np.linalg.norm(row))
            if size > 0.0:
                rows.append(row.reshape(1, -1) / size)
                limits.append(np.array([limit / size]))
    bounds = np.concatenate(limits)
    return np.column_stack([-bounds, np.zeros(len(bounds)), np.concatenate(rows)])


# --- the solver -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Solution:
    primal: FloatArray
    dual: FloatArray
    value: float
    error: float


@dataclass
class _Program:
    """min cost . x with blocks b - A x that are 0, at least 0, or in the second-order cone.

    A block's A starts at column ``at``; b of 0 where none is given.
    """

    size: int
    cost: FloatArray = field(init=False)
    n_rows: int = field(init=False, default=0)
    _blocks: list[tuple[str, int, FloatArray, FloatArray]] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.cost = np.zeros(self.size)

    def equal(self, rows: FloatArray, limits: FloatArray | None = None, at: int = 0) -> None:
        self._add("zero", rows, limits, at)

    def at_least(self, rows: FloatArray, limits: FloatArray | None = None, at: int = 0) -> None:
        self._add("positive", rows, limits, at)

    def cone(self, rows: FloatArray, limits: FloatArray | None = None, at: int = 0) -> None:
        self._add("cone", rows, limits, at)

    def _add(self, kind: str, rows: FloatArray, limits: FloatArray | None, at: int) -> None:
        if len(rows):
            self._blocks.append((kind, at, rows, np.zeros(len(rows)) if limits is None else limits))
            self.n_rows += len(rows)

    def _matrix(self) -> Any:
        from scipy.sparse import csc_array

        top, data, rows, columns = 0, [], [], []
        for _, at, block, _ in self._blocks:
            row, column = np.nonzero(block)
            data.append(block[row, column])
            rows.append(top + row)
            columns.append(at + column)
            top += len(block)
        entries = np.concatenate(data), (np.concatenate(rows), np.concatenate(columns))
        return csc_array(entries, shape=(top, self.size))

    def solve(self) -> _Solution | None:
        try:
            import clarabel
        except ImportError:
            raise MissingExtra("clarabel") from None
        from scipy.sparse import csc_array

        kinds = {
            "zero": clarabel.ZeroConeT,
            "positive": clarabel.NonnegativeConeT,
            "cone": clarabel.SecondOrderConeT,
        }
        settings = clarabel.DefaultSettings()
        settings.verbose = False
        settings.direct_solve_method = "qdldl"
        settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = _ACCURACY
        solver = clarabel.DefaultSolver(
            csc_array((self.size, self.size)),
            self.cost,
            self._matrix(),
            np.concatenate([limits for *_, limits in self._blocks]),
            [kinds[kind](len(limits)) for kind, *_, limits in self._blocks],
            settings,
        )
        found = solver.solve()
        accepted = (clarabel.SolverStatus.Solved, clarabel.SolverStatus.AlmostSolved)
        if found.status not in accepted:
            return None
        primal, dual = np.array(found.x), np.array(found.z)
        if not (np.isfinite(primal).all() and np.isfinite(dual).all()):
            return None
        left = max(abs(found.obj_val - found.obj_val_dual), found.r_prim, found.r_dual)
        return _Solution(primal, dual, float(self.cost @ primal), max(left, _ACCURACY))
