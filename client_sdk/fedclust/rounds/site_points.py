"""From a site's protected table to the weighted points that a method sees.

Three steps: :func:`released_points` turns released values into points in the session's columns,
:func:`complete_points` keeps those that take part, and :func:`scaled_points` puts them into the
session's scaled space.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedclust.methods.common.assign import refuse_infinite
from fedclust.numeric.array_types import FloatArray, IntArray
from fedclust.protection.table import within_shares
from fedclust.schema.encoding import Space, columns_of, transformed
from fedclust.schema.errors import RuleViolation
from fedclust.schema.feature import Feature
from fedclust.schema.run_config import RunConfig
from fedclust.schema.task import Points


def released_points(
    values: FloatArray,
    sizes: IntArray,
    features: tuple[Feature, ...],
    neighbours: IntArray,
) -> Points:
    """Return what groups release as points in own units.

    Bounds clip released values; then transforms are applied.

    Parameters
    ----------
    values : (m, d) float64
        In the session's units; of levels 0 or 1. NaN where a group does not release a feature.
        Clipped in place: a table can be as large as memory has room for once.
    sizes : (m,) int64
    features : tuple of Feature
    neighbours : (k, 2) int64
        See :class:`fedclust.protection.table.ProtectedTable`.
    """
    _clip(values, features)
    found = transformed(columns_of(features), values)
    return Points(found, sizes, within_shares(found, sizes, neighbours))


def _clip(values: FloatArray, features: Sequence[Feature]) -> None:
    """Clip values (m, d) to the features' bounds, before the transform."""
    lower: list[float] = []
    upper: list[float] = []
    for feature in features:
        width = len(feature.levels or ()) if feature.kind == "categorical" else 1
        lower += width * [-np.inf if feature.lower is None else feature.lower]
        upper += width * [np.inf if feature.upper is None else feature.upper]
    np.clip(values, lower, upper, out=values)


def complete_points(points: Points, config: RunConfig) -> Points:
    """Return the points that take part: with ``missing: drop`` those that release every column.

    Raises
    ------
    RuleViolation
        Another number of columns than the session's, or infinite values; names columns and
        counts, never a value.
    """
    if points.X.ndim != 2 or points.X.shape[1] != len(config.columns):
        raise RuleViolation(
            "shape", f"rows must have {len(config.columns)} columns: one for each feature or level"
        )
    refuse_infinite(points.X, tuple(column.name for column in config.columns))
    X = points.X if config.mask.all() else np.where(config.mask, points.X, np.nan)
    known = ~np.isnan(X)
    if config.policy.missing == "drop":
        whole = known.all(axis=1)
        if whole.all():
            return points
        return replace(
            points,
            X=X[whole],
            sizes=points.sizes[whole],
            left_out=int(points.sizes[~whole].sum()),
        )
    return replace(points, X=X, observed=None if known.all() else known)


def scaled_points(points: Points, space: Space, config: RunConfig) -> Points:
    """Return complete points imputed and scaled, 0 in columns that the site has not got."""
    X = points.X
    if space.impute is not None and points.observed is not None:
        X = np.where(points.observed, X, space.impute)
    scaled = space.to_scaled(X)
    X = scaled if config.mask.all() else scaled * config.mask
    return replace(points, X=X)
