"""The parts of a model file, and how they follow from a result; see ``cluster_model``."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, FiniteFloat

from fedclust.engine import OutsideLimits, outside_limits
from fedclust.schema.encoding import Column, columns_of
from fedclust.schema.feature import Feature
from fedclust.schema.model import Model
from fedclust.schema.result import Result

#: None is not known.
Known = FiniteFloat | None
_NEAREST = {
    "nearest-centroid": "A patient belongs to the cluster with the nearest centroid.",
    "nearest-prototype": "A patient belongs to the cluster of the nearest prototype.",
}
_SCALED = (
    " Scale each value as (value - center) / scale, at most limit from 0. The distance is {}; of "
    "equal distances the first one counts."
)
_ROOT, _ABSOLUTE = "the root of the sum of squared differences", "the sum of absolute differences"
_MASK = (
    " Only columns that both the patient and the centroid have count, and the squared differences "
    "are averaged over these."
)
_MISSING = {
    "drop": "A patient with a missing value gets no cluster.",
    "impute": "A missing value counts as the column's impute, the mean over all sites.",
    "mask": (
        "Features that a table lacks are left out. A value that is missing in a column of the "
        "table counts as the column's impute, the mean over all sites."
    ),
}
_OUTSIDE = (
    "A patient lies outside if a value is outside the feature's bounds; if a number is more than "
    "column_sd standard deviations from the mean of the patient's cluster; if a smaller share than "
    "share of all persons has the patient's yes/no value or level; or if the mean square of the "
    "distances, in standard deviations and each at most capped_sd, exceeds mean_square over three "
    "numbers or more. A standard deviation counts as at least least_spread of that of all persons."
)


class Assignment(Model):
    """How a patient gets a cluster: the rule, the session's dissimilarity, and what both say."""

    rule: Literal["nearest-centroid", "nearest-prototype"]
    dissimilarity: Literal["euclidean", "gower", "k-prototypes"]
    text: str


class MissingValues(Model):
    """What a missing value counts as: the session's rule, and what it says."""

    rule: Literal["drop", "impute", "mask"]
    text: str


class OutsideRule(OutsideLimits):
    """When a patient lies outside what the model saw."""

    text: str


class ModelColumn(Model):
    """A number, a yes/no value, or a level of a feature as 0 or 1; in own units, transformed.

    ``mean`` and ``sd`` are over all persons; None without a closing evaluation. ``typical``: half
    of a site's records or more hold one value, so that ``mean`` is a typical value, or a share of
    groups.
    """

    name: str
    feature: str
    level: str | None = None
    transform: Literal["none", "log", "log1p"] = "none"
    center: FiniteFloat
    scale: Annotated[FiniteFloat, Field(gt=0)]
    limit: Known = None
    impute: Known = None
    mean: Known = None
    sd: Known = None
    typical: bool = False


class ModelCluster(Model):
    """A cluster: persons over all sites, and by column its centroid and profile; None: unknown.

    ``centroid`` is in the declared units, ``scaled`` in the scaled space, ``mean`` and ``sd`` in
    the columns' units.
    """

    cluster: int
    persons: int | None = None
    centroid: tuple[Known, ...]
    scaled: tuple[Known, ...]
    mean: tuple[Known, ...] | None = None
    sd: tuple[Known, ...] | None = None


class ModelPrototype(Model):
    """A point of a cluster, scaled."""

    cluster: int
    scaled: tuple[FiniteFloat, ...]


class ModelProvenance(Model):
    """The session that the model comes from."""

    session: str
    completed_at: datetime
    method: str
    method_version: int
    definition_sha256: str


def model_assignment(result: Result) -> Assignment:
    """Return how a result assigns new patients."""
    rule: Literal["nearest-centroid", "nearest-prototype"] = (
        "nearest-centroid" if result.prototypes is None else "nearest-prototype"
    )
    distance = _ABSOLUTE if result.dissimilarity == "gower" else _ROOT
    return Assignment(
        rule=rule,
        dissimilarity=result.dissimilarity,
        text=_NEAREST[rule] + _SCALED.format(distance) + ("" if result.mask is None else _MASK),
    )


def model_missing(rule: Literal["drop", "impute", "mask"]) -> MissingValues:
    """Return what a missing value counts as."""
    return MissingValues(rule=rule, text=_MISSING[rule])


def outside_rule(columns: Sequence[Column]) -> OutsideRule:
    """Return the limits of a session's columns, with what they say."""
    return OutsideRule(**outside_limits(columns).model_dump(), text=_OUTSIDE)


def model_columns(result: Result, features: tuple[Feature, ...]) -> tuple[ModelColumn, ...]:
    """Return how a result scales each column."""

    def of(values: NDArray[np.float64] | None, j: int) -> float | None:
        return None if values is None or not np.isfinite(values[j]) else float(values[j])

    profile = result.profile
    return tuple(
        ModelColumn(
            name=column.name,
            feature=column.feature,
            level=column.level,
            transform=column.transform,
            center=float(result.center[j]),
            scale=float(result.scale[j]),
            limit=of(result.limit, j),
            impute=of(result.impute, j),
            mean=None if profile is None else of(profile.overall_means, j),
            sd=None if profile is None else of(profile.overall_deviations, j),
            typical=profile is not None and column.name in profile.typical,
        )
        for j, column in enumerate(columns_of(features))
    )


def model_clusters(result: Result) -> tuple[ModelCluster, ...]:
    """Return a result's clusters."""

    def known(values: NDArray[np.float64], where: NDArray[np.bool_] | None) -> tuple[Known, ...]:
        shown = np.ones(len(values), dtype=np.bool_) if where is None else where
        return tuple(
            float(value) if one else None for value, one in zip(values, shown, strict=True)
        )

    profile = result.profile
    found = []
    for k, (scaled, own) in enumerate(
        zip(result.centroids, result.centroids_original, strict=True)
    ):
        mask = None if result.mask is None else result.mask[k]
        found.append(
            ModelCluster(
                cluster=k,
                persons=None if result.sizes is None else result.sizes[k],
                centroid=known(own, mask),
                scaled=known(scaled, mask),
                mean=None if profile is None else known(profile.means[k], profile.known[k]),
                sd=None if profile is None else known(profile.deviations[k], profile.known[k]),
            )
        )
    return tuple(found)


def model_prototypes(result: Result) -> tuple[ModelPrototype, ...] | None:
    """Return a result's prototypes; None if it has none."""
    if result.prototypes is None:
        return None
    return tuple(
        ModelPrototype(cluster=k, scaled=tuple(row))
        for k, row in zip(result.prototype_labels or (), result.prototypes.tolist(), strict=True)
    )
