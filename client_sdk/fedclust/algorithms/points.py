"""From a site's protected table to the weighted points that a method sees.

Three steps: :func:`table_points` turns a table into points in the session's columns and units,
:func:`complete_points` keeps those that take part, and :func:`scaled_points` puts them into the
session's scaled space.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedclust.algorithms.assigning import refuse_infinite
from fedclust.algorithms.base import Feature, Points, RuleViolation, RunConfig, Space
from fedclust.algorithms.columns import columns_of, transformed
from fedclust.protection.columns import LevelColumn, NumericColumn
from fedclust.protection.table import ProtectedTable

__all__ = ["complete_points", "row_points", "scaled_points", "table_points", "total_variances"]

FloatArray = NDArray[np.float64]

#: A share of variance within groups counts as at most this: the rest could not be scaled up.
_MOST_WITHIN = 0.95


def row_points(X: FloatArray) -> Points:
    """Return rows (n, d) as points of one person each: for ``protection: none``."""
    return Points(X, np.ones(len(X), dtype=np.int64), np.zeros(X.shape[1]))


def table_points(table: ProtectedTable, features: Sequence[Feature]) -> Points:
    """Return a protected table as points in own units, NaN where a group does not release a column.

    Bounds clip released values; a feature that the table lacks is NaN throughout.

    Parameters
    ----------
    table : ProtectedTable
        Its columns are called as the features are, in the session's units.
    features : sequence of Feature
    """
    columns = columns_of(tuple(features))
    names = set(table.names())
    blocks: list[FloatArray] = []
    for feature in features:
        width = len(feature.levels or ()) if feature.kind == "categorical" else 1
        values = np.full((len(table.sizes), width), np.nan)
        if feature.name in names and feature.kind == "categorical":
            values = table.level_shares(feature.name)
        elif feature.name in names:
            values = table.values(feature.name)[:, None]
        blocks.append(values)
    within = [_within(table, *each) for each in zip(features, blocks, strict=True)]
    values = transformed(columns, _clipped(np.column_stack(blocks), features))
    return Points(values, table.sizes, np.minimum(np.concatenate(within), _MOST_WITHIN))


def _clipped(values: FloatArray, features: Sequence[Feature]) -> FloatArray:
    """Return values (m, d) within the features' bounds, before the transform."""
    lower: list[float] = []
    upper: list[float] = []
    for feature in features:
        width = len(feature.levels or ()) if feature.kind == "categorical" else 1
        lower += width * [-np.inf if feature.lower is None else feature.lower]
        upper += width * [np.inf if feature.upper is None else feature.upper]
    return np.clip(values, lower, upper)


def _within(table: ProtectedTable, feature: Feature, values: FloatArray) -> FloatArray:
    """Return the share of variance within groups of each column of a feature.

    Of a number the share that the table releases. Of levels it follows from the released counts.
    """
    for column, share in zip(table.columns, table.shares, strict=True):
        if isinstance(column, NumericColumn) and column.name == feature.name:
            return np.array([share or 0.0])
        if isinstance(column, LevelColumn) and feature.name in column.names:
            meaning = np.array(column.values[column.names.index(feature.name)])
            if feature.kind == "categorical":
                return np.array([_share_of_two(each, 0.0, 1.0, table.sizes) for each in values.T])
            return np.array(
                [_share_of_two(values[:, 0], meaning.min(), meaning.max(), table.sizes)]
            )
    return np.zeros(values.shape[1])


def _share_of_two(means: FloatArray, low: float, high: float, sizes: NDArray[np.int64]) -> float:
    """Return the share of variance within groups of a column of two values, from their means."""
    known = ~np.isnan(means)
    if not known.any():
        return 0.0
    mean = np.average(means[known], weights=sizes[known])
    between = np.average((means[known] - mean) ** 2, weights=sizes[known])
    whole = (high - mean) * (mean - low)
    return float(np.clip(1.0 - between / whole, 0.0, 1.0)) if whole > 0.0 else 0.0


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
        return Points(X[whole], points.sizes[whole], points.within)
    return replace(points, X=X, observed=None if known.all() else known)


def scaled_points(points: Points, space: Space, config: RunConfig) -> Points:
    """Return complete points imputed and scaled, 0 in columns that the site has not got."""
    X = points.X
    if space.impute is not None and points.observed is not None:
        X = np.where(points.observed, X, space.impute)
    scaled = space.to_scaled(X)
    return replace(points, X=scaled if config.mask.all() else scaled * config.mask)


def total_variances(points: Points) -> FloatArray:
    """Return each column's variance (d,) over all persons, between and within groups."""
    means = np.average(points.X, axis=0, weights=points.sizes)
    between = np.average((points.X - means) ** 2, axis=0, weights=points.sizes)
    return np.asarray(between / (1.0 - points.within))
