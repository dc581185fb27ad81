"""Which clusters of two results correspond, by what both have released: no labels."""

from dataclasses import dataclass

import numpy as np

from fedclust.numeric.array_types import FloatArray
from fedclust.result.facts import NOTABLE, ClusterColumn, Facts
from fedclust.schema.display import first_few
from fedclust.schema.encoding import Column, columns_of, transformed
from fedclust.schema.feature import Feature, clustered
from fedclust.wire.errors import UsageError
from fedclust.wire.models import Definition

#: A spread below this share of the values is rounding.
_ROUNDING = 1e-12
#: Reasons in an error.
_MOST_REASONS = 5


@dataclass(frozen=True)
class ColumnDifference:
    """One column of two matched clusters.

    Attributes
    ----------
    column : Column
    means : (ClusterColumn, ClusterColumn)
        In own units, transforms undone.
    difference : float or None
        The second minus the first, in standard deviations, under the transform. Where values are
        those of groups with one digit, and None where few persons have a record in either.
    """

    column: Column
    means: tuple[ClusterColumn, ClusterColumn]
    difference: float | None


@dataclass(frozen=True)
class ClusterPair:
    """A cluster of the first result and the one of the second that it is matched with.

    Attributes
    ----------
    first, second : int
        Their numbers.
    labels : pair of str
        The numbers with the names that somebody gave them.
    distance : float
        Root mean square difference over the shared columns that both know, in standard deviations.
    returns : bool or None
        True if they are at most .4 times as far apart as either is from the next cluster of either
        result, or from 1 standard deviation if there is none. False if that one is nearer. None
        between these: it cannot be known from groups.
    sizes, shares : pair of number or None
        Persons, and their share of the result's persons; None: not measured.
    differences : tuple of ColumnDifference
        The columns that both know, those that differ most first.
    """

    first: int
    second: int
    labels: tuple[str, str]
    distance: float
    returns: bool | None
    sizes: tuple[int | None, int | None]
    shares: tuple[float | None, float | None]
    differences: tuple[ColumnDifference, ...]

    @property
    def text(self) -> str:
        """Both labels, as in a sentence."""
        return " and ".join(self.labels)


@dataclass(frozen=True)
class Positions:
    """The clusters of two results in one space, in standard deviations from the middle of both.

    Attributes
    ----------
    columns : tuple of Column
        Those that both results have and that vary, in the first result's order.
    numbers : pair of list of int
        Where these are in each result.
    values : pair of (K, d) float64
        The clusters of each result; NaN where unknown.
    left_out : tuple of str
        The other features, each with the reason.
    unit : str
        What a distance of 1 is, in words.
    of_persons : bool
        Whether these are the means of the persons in each cluster; else the centroids.
    """

    columns: tuple[Column, ...]
    numbers: tuple[list[int], list[int]]
    values: tuple[FloatArray, FloatArray]
    left_out: tuple[str, ...]
    unit: str
    of_persons: bool


def _shared(
    first: Definition, second: Definition
) -> tuple[list[tuple[Column, int, int]], tuple[str, ...]]:
    """Return the columns of features with the same name, kind, unit, transform and levels.

    Each with its places in both results. And which features are left out, with the reasons.

    Raises
    ------
    UsageError
        There is none.
    """
    features, of_second = clustered(first.features), clustered(second.features)
    others = {feature.name: feature for feature in of_second}
    reasons: dict[str, str] = {}
    for feature in features:
        other = others.get(feature.name)
        reason = "only in the first" if other is None else _mismatch(feature, other)
        if reason:
            reasons[feature.name] = reason
    own = {feature.name for feature in features}
    reasons |= {name: "only in the second" for name in others if name not in own}
    left_out = tuple(f"{name}: {reason}" for name, reason in reasons.items())
    places = {column.name: j for j, column in enumerate(columns_of(of_second))}
    found = [
        (column, i, places[column.name])
        for i, column in enumerate(columns_of(features))
        if column.feature not in reasons
    ]
    if not found:
        raise UsageError(
            "the two results share no feature, so there is nothing to compare: choose sessions "
            "with features of the same name, kind, unit, transform and levels. Not shared: "
            f"{first_few(left_out, _MOST_REASONS)}"
        )
    return found, left_out


def _mismatch(one: Feature, other: Feature) -> str:
    """Return why two features of one name cannot be compared; "" if they can."""
    for name in ("kind", "unit", "transform"):
        if getattr(one, name) != getattr(other, name):
            return f"another {name} in the second"
    if set(one.levels or ()) != set(other.levels or ()):
        return "other levels in the second"
    return ""


def positions(first: Facts, second: Facts) -> Positions:
    """Return the clusters of two results in one space.

    Where both results have a profile: the means of the persons in each cluster, divided by the
    root of the mean of both variances of all persons. Otherwise the centroids, divided in the same
    way where both sessions scale by standard deviations, else by the standard deviation of all
    centroids. Each of these treats the two results in the same way.

    Raises
    ------
    UsageError
        No shared column varies, or there is none.
    """
    shared, left_out = _shared(first.definition, second.definition)
    both = (first, [i for _, i, _ in shared]), (second, [j for _, _, j in shared])
    of_persons = first.result.profile is not None and second.result.profile is not None
    pair = [_values(facts, numbers, of_persons) for facts, numbers in both]
    spreads = [_spread(facts, numbers, of_persons) for facts, numbers in both]
    estimated = "estimated " * (first.of_groups or second.of_groups)
    unit = f"{estimated}standard deviations of all persons"
    if spreads[0] is not None and spreads[1] is not None:
        scale = np.sqrt((spreads[0] ** 2 + spreads[1] ** 2) / 2)
    else:
        unit = "standard deviations of the centroids"
        both_results = np.concatenate(pair)
        scale = np.sqrt(_mean((both_results - _mean(both_results)) ** 2))
    largest = np.nanmax(np.abs(np.concatenate(pair)), axis=0, initial=0.0)
    varies = scale > _ROUNDING * np.maximum(largest, np.finfo(np.float64).tiny)
    if not varies.any():
        raise UsageError(
            "no feature that the two results share varies, so there is nothing to compare"
        )
    middle = (_mean(pair[0]) + _mean(pair[1])) / 2
    scaled = [(values - middle)[:, varies] / scale[varies] for values in pair]
    kept = np.flatnonzero(varies).tolist()
    constant = [column.name for (column, _, _), one in zip(shared, varies, strict=True) if not one]
    return Positions(
        columns=tuple(shared[j][0] for j in kept),
        numbers=([shared[j][1] for j in kept], [shared[j][2] for j in kept]),
        values=(scaled[0], scaled[1]),
        left_out=(*left_out, *(f"{name}: does not vary" for name in constant)),
        unit=unit,
        of_persons=of_persons,
    )


def _values(facts: Facts, numbers: list[int], of_persons: bool) -> FloatArray:
    """Return means or centroids (K, d) after the transform; NaN where unknown."""
    result = facts.result
    if of_persons and result.profile is not None:
        found = np.where(result.profile.known, result.profile.means, np.nan)
    else:
        found = transformed(facts.columns, result.centroids_original)
        found = np.where(np.isfinite(found), found, np.nan)
        if result.mask is not None:
            found = np.where(result.mask, found, np.nan)
    return found[:, numbers]


def _spread(facts: Facts, numbers: list[int], of_persons: bool) -> FloatArray | None:
    """Return the standard deviations (d,) of all persons, after the transform; None: unknown."""
    result = facts.result
    if of_persons and result.profile is not None:
        return result.profile.estimated_overall_deviations[numbers]
    policy = facts.definition.policy
    if policy.scaling != "standard" or policy.dissimilarity != "euclidean":
        return None
    # A feature's weight is part of the scale.
    weights = np.array([column.weight for column in facts.columns])
    spread: FloatArray = (result.scale * np.sqrt(weights))[numbers]
    return spread


def _mean(values: FloatArray) -> FloatArray:
    """Return means (d,) over known values; 0 where none is."""
    known = np.isfinite(values)
    mean: FloatArray = np.where(known, values, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    return mean


def distances(first: FloatArray, second: FloatArray) -> FloatArray:
    """Return the root mean square difference of clusters (K, L) over the columns known in both.

    Infinite where there is no such column.
    """
    total = np.zeros((len(first), len(second)))
    count = np.zeros(total.shape)
    for one, other in zip(first.T, second.T, strict=True):
        apart = (one[:, None] - other) ** 2
        known = np.isfinite(apart)
        total += np.where(known, apart, 0.0)
        count += known
    return np.where(count > 0, np.sqrt(total / np.maximum(count, 1)), np.inf)


def match(apart: FloatArray) -> list[tuple[int, int]]:
    """Return the pairs of clusters with the least sum of distances (K, L): each at most once."""
    from scipy.optimize import linear_sum_assignment

    finite = np.isfinite(apart)
    # More than any set of pairs costs: as few as possible are at an infinite distance.
    most = 1.0 + (min(apart.shape) + 1) * float(np.max(apart, initial=0.0, where=finite))
    pairs = zip(*linear_sum_assignment(np.where(finite, apart, most)), strict=True)
    return [(int(i), int(j)) for i, j in pairs if finite[i, j]]


def next_cluster(apart: FloatArray, i: int, j: int) -> float:
    """Return how far the nearest third cluster is from two of ``apart`` (n, n).

    2 ``NOTABLE`` where there is none.
    """
    nearest = float(np.delete(apart[[i, j]], [i, j], axis=1).min(initial=np.inf))
    return nearest if np.isfinite(nearest) else 2 * NOTABLE
