"""The columns that methods see, and the features that an analyst declares.

A number becomes one column, after its transform; a yes/no feature one of 0 and 1; a categorical
feature one of 0 and 1 for each of its levels, called ``feature=level``. Every site encodes in the
same way, from the session's definition. Methods see only columns, d of them. This module also
converts their results back to the declared units, and scales columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import log, log1p
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedclust.numeric.array_types import BoolArray, FloatArray, IntArray
from fedclust.numeric.arrays import FloatVector
from fedclust.schema.model import Model

if TYPE_CHECKING:
    from fedclust.schema.feature import Feature

#: Rows per step: they stay in the cache.
_TILE = 512
_FORTH = {"log": np.log, "log1p": np.log1p}
_BACK = {"log": np.exp, "log1p": np.expm1}
_BOUND: dict[str, Callable[[float], float]] = {"none": float, "log": log, "log1p": log1p}


@dataclass(frozen=True)
class Column:
    """A column of every site's matrix.

    Attributes
    ----------
    name : str
        The feature's; of a level ``feature=level``.
    feature : str
    unit : str
        Of the feature, before its transform.
    kind : {"numeric", "binary"}
        A level is binary: whether a row has it.
    level : str or None
    lower, upper : float or None
        Declared bounds, after the transform; None where there is none.
    transform : {"none", "log", "log1p"}
    weight : float
        Factor of the feature's part in squared distances.
    block : int or None
        Which of the session's features, by number, this is a level of.
    """

    name: str
    feature: str
    unit: str
    kind: Literal["numeric", "binary"]
    level: str | None = None
    lower: float | None = None
    upper: float | None = None
    transform: Literal["none", "log", "log1p"] = "none"
    weight: float = 1.0
    block: int | None = None


class Space(Model):
    """The map between a column's own units and the scaled space of the method.

    ``center`` and ``scale`` have shape (d,); ``impute`` (d,), in own units, or None. Own units are
    those after the feature's transform. A feature's weight is part of ``scale``. ``limit`` (d,) or
    None: scaled values count as at most so far from 0.
    """

    center: FloatVector
    scale: FloatVector
    impute: FloatVector | None
    limit: FloatVector | None

    @classmethod
    def identity(cls, d: int) -> Space:
        return cls(center=np.zeros(d), scale=np.ones(d), impute=None, limit=None)

    def to_scaled(self, rows: FloatArray) -> FloatArray:
        """Map rows (n, d) in own units to the scaled space, within its limit."""
        scaled = rows - self.center
        scaled /= self.scale
        if self.limit is not None:
            np.clip(scaled, -self.limit, self.limit, out=scaled)
        return scaled

    def to_original(self, rows: FloatArray) -> FloatArray:
        """Map rows or centroids (n, d) of the scaled space to own units."""
        return rows * self.scale + self.center


@lru_cache(maxsize=256)
def columns_of(features: tuple[Feature, ...]) -> tuple[Column, ...]:
    """Return the columns of features, in the features' order and that of their levels."""
    found: list[Column] = []
    for number, feature in enumerate(features):
        several, binary = feature.kind == "categorical", feature.kind != "numeric"
        bound = _BOUND[feature.transform]
        lower, upper = (0.0, 1.0) if binary else (feature.lower, feature.upper)
        found += [
            Column(
                name=feature.name if level is None else f"{feature.name}={level}",
                feature=feature.name,
                unit=feature.unit,
                kind="binary" if binary else "numeric",
                level=level,
                lower=None if lower is None else bound(lower),
                upper=None if upper is None else bound(upper),
                transform=feature.transform,
                weight=feature.weight,
                block=number if several else None,
            )
            for level in ((feature.levels or ()) if several else (None,))
        ]
    return tuple(found)


def encode_features(features: Sequence[Feature], raw: Sequence[NDArray[Any]]) -> FloatArray:
    """Return a site's values as the matrix (n, d) that methods see, before it is scaled.

    Parameters
    ----------
    features : sequence of Feature
        The session's.
    raw : sequence of (n,) arrays
        One for each feature. Of a number, or of a yes/no feature as 0 and 1: floats in the
        session's unit, NaN where missing. Of a categorical feature: whole numbers, the place of
        the declared level from 0 on, negative where missing.

    Returns
    -------
    (n, d) float64
        NaN where missing: in all columns of a categorical feature. Values that a transform has no
        answer for, which the declared bounds forbid, give NaN or an infinity.
    """
    columns: list[FloatArray] = []
    with np.errstate(invalid="ignore", divide="ignore"):
        for feature, values in zip(features, raw, strict=True):
            if feature.kind == "categorical":
                places = np.arange(len(feature.levels or ()))
                has = (values[:, None] == places).astype(np.float64)
                columns += list(np.where(values[:, None] >= 0, has, np.nan).T)
            elif feature.transform == "none":
                columns.append(np.asarray(values, dtype=np.float64))
            else:
                columns.append(_FORTH[feature.transform](np.asarray(values, dtype=np.float64)))
    return _stacked(columns)


def _stacked(columns: Sequence[FloatArray]) -> FloatArray:
    """Return columns (n,) as one matrix, written in blocks of rows that fit the cache."""
    stacked = np.empty((len(columns[0]), len(columns)))
    for start in range(0, len(stacked), _TILE):
        for j, column in enumerate(columns):
            stacked[start : start + _TILE, j] = column[start : start + _TILE]
    return stacked


def transformed(columns: Sequence[Column], values: FloatArray) -> FloatArray:
    """Return values (m, d) in the declared units as columns, transforms applied.

    NaN or infinite where a transform has no answer.
    """
    found = np.array(values, dtype=np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        for j, column in enumerate(columns):
            if column.transform != "none":
                found[:, j] = _FORTH[column.transform](found[:, j])
    return found


def undone(columns: Sequence[Column], values: FloatArray) -> FloatArray:
    """Inverse of :func:`transformed`: of means of logarithms, geometric means."""
    found = np.array(values, dtype=np.float64)
    for j, column in enumerate(columns):
        if column.transform != "none":
            found[:, j] = _BACK[column.transform](found[:, j])
    return found


def blocks_of(columns: Sequence[Column]) -> list[IntArray]:
    """Return, for each categorical feature, its columns by number, in the order of its levels."""
    found: dict[int, list[int]] = {}
    for j, column in enumerate(columns):
        if column.block is not None:
            found.setdefault(column.block, []).append(j)
    return [np.array(places, dtype=np.int64) for places in found.values()]


def feature_names(columns: Sequence[Column], chosen: BoolArray) -> list[str]:
    """Return the features of the chosen columns (d,), each once."""
    return list(dict.fromkeys(c.feature for c, one in zip(columns, chosen, strict=True) if one))
