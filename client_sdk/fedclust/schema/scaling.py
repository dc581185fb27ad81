"""What the declared columns say of numbers: bounds, kinds and weights, in own units and scaled."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedclust.schema.encoding import Column, blocks_of
from fedclust.schema.run_config import RunConfig
from fedclust.schema.space import Space

FloatArray = NDArray[np.float64]
#: Standard deviations below this multiple of |mean| are rounding noise of a constant feature.
CONSTANT = 1024 * float(np.finfo(np.float64).eps)


def own_bounds(columns: Sequence[Column]) -> tuple[FloatArray, FloatArray]:
    """Return lower and upper bounds (d,) in the columns' units; infinite where none is declared."""
    lower = [-np.inf if column.lower is None else column.lower for column in columns]
    upper = [np.inf if column.upper is None else column.upper for column in columns]
    return np.array(lower, dtype=np.float64), np.array(upper, dtype=np.float64)


def scaled_bounds(config: RunConfig) -> tuple[FloatArray, FloatArray]:
    """Return lower and upper bounds (d,) in the scaled space."""
    lower, upper = own_bounds(config.columns)
    return config.space.to_scaled(lower), config.space.to_scaled(upper)


def binary_columns(columns: Sequence[Column]) -> NDArray[np.bool_]:
    """Return which columns (d,) are binary, levels included."""
    return np.array([column.kind == "binary" for column in columns], dtype=np.bool_)


def weighted(columns: Sequence[Column], scale: FloatArray) -> FloatArray:
    """Return a scale (d,) by which each column counts in squared distances with its weight."""
    return scale / np.sqrt([column.weight for column in columns])


def declared_space(columns: Sequence[Column], scaling: str) -> Space:
    """Return the space that needs no preparation: "none", or "bounds" (lower to 0, upper to 1).

    Rows of different levels differ in two columns. Divided by the root of 2, they are as far apart
    as a yes and a no.
    """
    center, scale = np.zeros(len(columns)), np.ones(len(columns))
    if scaling == "bounds":
        center, upper = own_bounds(columns)
        scale = upper - center
    for block in blocks_of(columns):
        scale[block] = np.sqrt(2.0)
    return Space(center, weighted(columns, scale))


def standard_scale(columns: Sequence[Column], mean: FloatArray, variance: FloatArray) -> FloatArray:
    """Return the scale (d,) that gives every feature a variance of its weight.

    The levels of a categorical feature have one scale, the root of the sum of their variances: as
    many levels as there are, together they count as one number does. A constant feature has 1.
    """
    variance, magnitude = variance.copy(), np.abs(mean)
    for block in blocks_of(columns):
        variance[block], magnitude[block] = variance[block].sum(), 1.0
    deviation = np.sqrt(variance)
    return weighted(columns, np.where(deviation <= CONSTANT * magnitude, 1.0, deviation))
