"""The coordinator's state of a ``dual`` session."""

from __future__ import annotations

from typing import Literal, TypeVar

import numpy as np
from pydantic import Field, FiniteFloat

from fedclust.numeric.array_types import FloatArray
from fedclust.numeric.arrays import FloatMatrix, FloatTensor3, FloatVector
from fedclust.schema.model import Model
from fedclust.schema.run_config import RunConfig
from fedclust.schema.scaling import scaled_bounds
from fedclust_dual.config import Config
from fedclust_dual.domain_splitting import Domain, Splitting
from fedclust_dual.feasible_set import Region
from fedclust_dual.messages import DualCells
from fedclust_dual.multiplier_update import Ascent

_Value = TypeVar("_Value")


class SiteTotals(Model):
    """All points of a site: persons n, mean (d,), and ``scatter``, the squares about the mean."""

    n: int
    mean: FloatVector
    scatter: FiniteFloat

    @classmethod
    def from_cells(cls, cells: DualCells) -> SiteTotals:
        """Add up the cells that the site sent."""
        n = int(cells.counts.sum())
        mean = cells.counts @ cells.means / n
        squares = ((cells.means - mean) ** 2).sum(axis=1)
        return cls(n=n, mean=mean, scatter=float(cells.costs.sum() + cells.counts @ squares))

    def square(self, origin: FloatArray) -> float:
        """Return the sum of all points' squared distances from ``origin`` (d,)."""
        return self.scatter + self.n * float(((self.mean - origin) ** 2).sum())


class State(Model):
    """The state of a session between rounds.

    Attributes
    ----------
    phase : {"cells", "dual", "primal"}
        The phase of the open round.
    seed : int
    sites : dict of site to SiteTotals
        The chain of sites in name order; empty until the references are known.
    references : (K, d) float64 or None
    lambdas : (S - 1, K, d) float64 or None
        Multipliers of the open or the next dual round.
    ascent : Ascent or None
        State of the update rule.
    iterations, limited : int
        Closed dual rounds, and how many of them met a node limit.
    lower, upper : float or None
        The best bounds so far.
    best : (K, d) float64 or None
        The centroids of ``upper``.
    candidates : (C, K, d) float64
        Centroids that the open or next primal round measures.
    optima : (m,) float64
        Costs of the local optima found by polishing, so that none is approached twice.
    ended : str
        Why there is no further dual round of the whole domain; empty while there is one.
    splitting : Splitting or None
        The boxes of the domain, once it is split.
    """

    phase: Literal["cells", "dual", "primal"]
    seed: int
    sites: dict[str, SiteTotals] = Field(default_factory=dict)
    references: FloatMatrix | None = None
    lambdas: FloatTensor3 | None = None
    ascent: Ascent | None = None
    iterations: int = 0
    limited: int = 0
    lower: float | None = None
    upper: float | None = None
    best: FloatMatrix | None = None
    candidates: FloatTensor3 = np.zeros((0, 0, 0))
    optima: FloatVector = np.zeros(0)
    ended: str = ""
    splitting: Splitting | None = None

    @property
    def origin(self) -> FloatArray:
        """The mean (d,) of the references, to which the dual problem is relative."""
        return np.asarray(require_value(self.references).mean(axis=0))

    def end(self, reason: str) -> State:
        """Return the state with the reason why it ended."""
        return self.model_copy(update={"ended": reason})

    def domain(self, config: RunConfig[Config]) -> Domain:
        """Return the feasible set of the centroids, relative to the origin."""
        origin = self.origin
        lower, upper = scaled_bounds(config)
        references = require_value(self.references) - origin
        symmetry = config.options.symmetry
        return Domain(Region(lower - origin, upper - origin, references, symmetry), origin)


def require_value(value: _Value | None) -> _Value:
    """Return the value; ValueError if it is not known yet."""
    if value is None:
        raise ValueError("an earlier round has to be closed first")
    return value
