"""A site's weighted points."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedclust.numeric.array_types import BoolArray, FloatArray, IntArray


@dataclass(frozen=True)
class Points:
    """A site's weighted points: what a method computes from at a site (``protection``).

    Attributes
    ----------
    X : (m, d) float64
        One record for each group of persons. Given to the engine in own units, NaN where a group
        does not release a column. Given to a method scaled and free of NaN, and 0 in the columns
        of features that the site has not got.
    sizes : (m,) int64
        Persons in each group; ones with ``protection: none``, where each point is a row.
    within : (d,) float64
        The share of each column's variance that lies within the groups, estimated from the records
        alone, from .05 to .8; 0 with ``protection: none``.
    observed : (m, d) bool or None
        False where a value was imputed or the feature is lacking; None: every value was observed.
    left_out : int
        Persons of the groups that ``missing: drop`` leaves out of these points.
    derived : dict
        What was made of these points, to be used again; it decides nothing.
    """

    X: FloatArray
    sizes: IntArray
    within: FloatArray
    observed: BoolArray | None = None
    left_out: int = 0
    derived: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def n(self) -> int:
        """Persons behind all points."""
        return int(self.sizes.sum())


def row_points(X: FloatArray) -> Points:
    """Return rows (n, d) as points of one person each, for ``protection: none``."""
    return Points(X, np.ones(len(X), dtype=np.int64), np.zeros(X.shape[1]))


def total_variances(points: Points) -> FloatArray:
    """Return each column's variance (d,) over all persons, between and within groups."""
    means = np.average(points.X, axis=0, weights=points.sizes)
    between = np.average((points.X - means) ** 2, axis=0, weights=points.sizes)
    return np.asarray(between / (1.0 - points.within))
