"""What the declared features say of numbers: bounds and kinds, in own units and scaled."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedclust.algorithms.base import Feature, RunConfig, Space

FloatArray = NDArray[np.float64]


def own_bounds(features: Sequence[Feature]) -> tuple[FloatArray, FloatArray]:
    """Return lower and upper bounds (d,) in own units; infinite where none is declared."""
    lower, upper = np.full(len(features), -np.inf), np.full(len(features), np.inf)
    for j, feature in enumerate(features):
        if feature.kind == "binary":
            lower[j], upper[j] = 0.0, 1.0
        if feature.lower is not None:
            lower[j] = feature.lower
        if feature.upper is not None:
            upper[j] = feature.upper
    return lower, upper


def scaled_bounds(config: RunConfig) -> tuple[FloatArray, FloatArray]:
    """Return lower and upper bounds (d,) in the scaled space."""
    lower, upper = own_bounds(config.features)
    return config.space.to_scaled(lower), config.space.to_scaled(upper)


def binary_columns(features: Sequence[Feature]) -> NDArray[np.bool_]:
    """Return which features (d,) are binary."""
    return np.array([feature.kind == "binary" for feature in features], dtype=np.bool_)


def declared_space(features: Sequence[Feature], scaling: str) -> Space:
    """Return the space that needs no preparation: "none", or "bounds" (lower to 0, upper to 1)."""
    if scaling == "none":
        return Space.identity(len(features))
    lower, upper = own_bounds(features)
    return Space(lower, upper - lower)
