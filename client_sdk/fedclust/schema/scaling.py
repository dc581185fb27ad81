"""What the declared columns say of numbers: bounds, kinds and weights, in own units and scaled."""

from collections.abc import Sequence

import numpy as np

from fedclust.numeric.array_types import BoolArray, FloatArray, IntArray
from fedclust.numeric.distances import CentroidRule, MedianRule, ModeRule, keep_means
from fedclust.schema.encoding import Column, Space, blocks_of
from fedclust.schema.run_config import Policy, RunConfig

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


def binary_columns(columns: Sequence[Column]) -> BoolArray:
    """Return which columns (d,) are binary, levels included."""
    return np.array([column.kind == "binary" for column in columns], dtype=np.bool_)


def weighted(columns: Sequence[Column], scale: FloatArray) -> FloatArray:
    """Return a scale (d,) by which each column counts in squared distances with its weight."""
    return scale / np.sqrt([column.weight for column in columns])


def declared_space(columns: Sequence[Column], policy: Policy) -> Space:
    """Return the space that needs no preparation: "none", or "bounds" (lower to 0, upper to 1).

    Rows of different levels differ in two columns. Divided by the root of 2, they are as far apart
    as a yes and a no.
    """
    if policy.dissimilarity == "gower":
        return _gower_space(columns)
    center, scale = np.zeros(len(columns)), np.ones(len(columns))
    if policy.scaling == "bounds":
        center, upper = own_bounds(columns)
        scale = upper - center
    for block in blocks_of(columns):
        scale[block] = np.sqrt(2.0)
    scale = weighted(columns, scale)
    space = Space(center=center, scale=scale, impute=None, limit=None)
    if policy.dissimilarity == "k-prototypes" and policy.gamma is not None:
        return with_categories(columns, space, policy.gamma)
    return space


def _gower_space(columns: Sequence[Column]) -> Space:
    """Return the space in which Gower's dissimilarity is the sum of absolute differences.

    That is the mean over features, weighted, of differences over ranges. Rows of different levels
    differ in two columns, each of which counts half.
    """
    weights = {column.feature: column.weight for column in columns}
    center, upper = own_bounds(columns)
    parts = np.array([column.weight for column in columns]) / sum(weights.values())
    for block in blocks_of(columns):
        parts[block] /= 2.0
    return Space(center=center, scale=(upper - center) / parts, impute=None, limit=None)


def with_categories(columns: Sequence[Column], space: Space, gamma: float) -> Space:
    """Return the space of k-prototypes: two rows that differ in a category alone are gamma apart.

    Squared; times the feature's weight.
    """
    binary = binary_columns(columns)
    scale = np.ones(len(columns))
    for block in blocks_of(columns):
        scale[block] = np.sqrt(2.0)
    scale = weighted(columns, scale / np.sqrt(gamma))
    center, scale = np.where(binary, 0.0, space.center), np.where(binary, scale, space.scale)
    return space.model_copy(update={"center": center, "scale": scale})


def default_gamma(columns: Sequence[Column], space: Space, deviations: FloatArray) -> float:
    """Return Huang's gamma: half the mean standard deviation of the numbers in the scaled space.

    Weights do not count; 1 where there are no numbers, or all are constant.

    Parameters
    ----------
    columns : sequence of Column, length d
    space : Space
    deviations : (d,) float64
        In own units.
    """
    numeric = ~binary_columns(columns)
    unweighted = space.scale * np.sqrt([column.weight for column in columns])
    scaled = (deviations / unweighted)[numeric]
    return float(scaled.mean() / 2.0) if scaled.any() else 1.0


def gamma_of(columns: Sequence[Column], scale: FloatArray) -> float | None:
    """Return the gamma of a k-prototypes space from its scale (d,); None without categories."""
    for column, width in zip(columns, scale.tolist(), strict=True):
        if column.kind == "binary":
            apart = 1.0 if column.level is None else 2.0
            return apart / float(width**2 * column.weight)
    return None


def centroid_rule(config: RunConfig) -> CentroidRule:
    """Return what makes a cluster's centroid of its mean, by the session's dissimilarity.

    With ``gower`` only the categories: medians do not follow from means, see :func:`median_rule`.
    """
    if config.policy.dissimilarity == "euclidean":
        return keep_means
    return ModeRule(_categories(config.columns), 1.0 / config.space.scale)


def median_rule(config: RunConfig) -> MedianRule | None:
    """Return what makes a cluster's centroid of its mean code, with ``gower``; otherwise None."""
    if config.policy.dissimilarity != "gower":
        return None
    return MedianRule(_categories(config.columns), scaled_bounds(config)[1])


def _categories(columns: Sequence[Column]) -> tuple[IntArray, ...]:
    """Return the columns of each yes/no and each categorical feature."""
    lone = [
        np.array([j])
        for j, column in enumerate(columns)
        if column.kind == "binary" and column.block is None
    ]
    return (*lone, *blocks_of(columns))


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
