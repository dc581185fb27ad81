"""Build a small second-order cone program and solve it with clarabel.

clarabel factorises with QDLDL: the same input gives the same bits.
"""

from dataclasses import dataclass, field
from typing import Any

import clarabel
import numpy as np

from fedclust.numeric.array_types import FloatArray


@dataclass(frozen=True)
class ConeSolution:
    """A finite solution of a cone program.

    Attributes
    ----------
    primal : (N,) float64
    dual : (m,) float64
        The multiplier of every row, in the order in which the rows were added.
    value : float
    error : float
        The larger of duality gap and residuals, at least the requested accuracy.
    converged : bool
        Whether the solver reached its full or its reduced accuracy.
    """

    primal: FloatArray
    dual: FloatArray
    value: float
    error: float
    converged: bool


@dataclass
class ConeProgram:
    """Minimise ``cost . x`` where every ``b - A x`` is 0, non-negative, or in a second-order cone.

    The A of a block starts at column ``start`` of x; b is 0 by default.
    """

    size: int
    cost: FloatArray = field(init=False)
    n_rows: int = field(init=False, default=0)
    _blocks: list[tuple[str, int, FloatArray, FloatArray]] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.cost = np.zeros(self.size)

    def add_equalities(self, rows: FloatArray, limits: FloatArray | None = None) -> None:
        """Require ``rows @ x = limits``."""
        self._add("zero", rows, limits, 0)

    def add_upper_limits(
        self, rows: FloatArray, limits: FloatArray | None = None, start: int = 0
    ) -> None:
        """Require ``rows @ x <= limits``."""
        self._add("nonnegative", rows, limits, start)

    def add_cone(self, rows: FloatArray, limits: FloatArray | None = None, start: int = 0) -> None:
        """Require that ``limits - rows @ x`` is in the second-order cone."""
        self._add("second_order", rows, limits, start)

    def _add(self, kind: str, rows: FloatArray, limits: FloatArray | None, start: int) -> None:
        if len(rows):
            limits = np.zeros(len(rows)) if limits is None else limits
            self._blocks.append((kind, start, rows, limits))
            self.n_rows += len(rows)

    def _matrix(self) -> Any:
        from scipy.sparse import csc_array

        top, data, rows, columns = 0, [], [], []
        for _, start, block, _ in self._blocks:
            row, column = np.nonzero(block)
            data.append(block[row, column])
            rows.append(top + row)
            columns.append(start + column)
            top += len(block)
        entries = np.concatenate(data), (np.concatenate(rows), np.concatenate(columns))
        return csc_array(entries, shape=(top, self.size))

    def solve(self, accuracy: float) -> ConeSolution | None:
        """Return the solution; None where it is not finite.

        Parameters
        ----------
        accuracy : float
            Duality gap and infeasibility at which the solver stops. Scale the program so that its
            numbers are about 1.
        """
        from scipy.sparse import csc_array

        cones = {
            "zero": clarabel.ZeroConeT,
            "nonnegative": clarabel.NonnegativeConeT,
            "second_order": clarabel.SecondOrderConeT,
        }
        settings = clarabel.DefaultSettings()
        settings.verbose = False
        settings.direct_solve_method = "qdldl"
        settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = accuracy
        solution = clarabel.DefaultSolver(
            csc_array((self.size, self.size)),
            self.cost,
            self._matrix(),
            np.concatenate([limits for *_, limits in self._blocks]),
            [cones[kind](len(limits)) for kind, *_, limits in self._blocks],
            settings,
        ).solve()
        primal, dual = np.array(solution.x), np.array(solution.z)
        if not (np.isfinite(primal).all() and np.isfinite(dual).all()):
            return None
        error = max(abs(solution.obj_val - solution.obj_val_dual), solution.r_prim, solution.r_dual)
        accepted = (clarabel.SolverStatus.Solved, clarabel.SolverStatus.AlmostSolved)
        return ConeSolution(
            primal=primal,
            dual=dual,
            value=float(self.cost @ primal),
            error=max(error, accuracy),
            converged=solution.status in accepted,
        )
