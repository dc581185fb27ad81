"""The preparation round: federated means and variances, before any method starts.

What it computes
    Every site sends n, and for each feature the number of persons with a value, their mean and
    their sum of squared deviations M2. The server merges (n, mean, M2) pairwise (Chan, Golub &
    LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979):
    raw sums of squares are wrong by 7 % at an offset of 1e8. ddof 0; imputed values count in n and
    add nothing to M2; a constant feature gets scale 1, a categorical one the same in all its
    levels.

It is round 1 of every session with ``scaling: standard`` or ``missing: impute``, whatever the
method, and outside ``max_rounds``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from pydantic import Field

from fedclust.algorithms.arrays import FloatVector, IntVector
from fedclust.algorithms.base import (
    Contribution,
    Disclosure,
    MethodFailure,
    Model,
    Phase,
    Points,
    Policy,
    RuleViolation,
    RunConfig,
    Space,
    Task,
)
from fedclust.algorithms.columns import feature_names
from fedclust.algorithms.moments import Moments as SetMoments
from fedclust.algorithms.moments import merge_moments, no_moments
from fedclust.algorithms.spaces import declared_space, own_bounds, standard_scale
from fedclust.privacy.bands import check_not_above
from fedclust.privacy.checks import check_moments, check_shape

NAME = "prepare"
#: With these, a value missing of a feature that a site has is imputed with the federated mean.
_IMPUTES = ("impute", "mask")


class PreparationTask(Model):
    """Nothing but the question: everything else is in the definition."""


class Moments(Model):
    """A site's points, column by column, in own units.

    Attributes
    ----------
    n : int
        Persons who take part.
    observed : (d,) int64
        Persons in groups that release the column.
    mean, m2 : (d,) float64
        Over these; 0 where there are none.
    """

    n: Annotated[int, Field(ge=1)]
    observed: IntVector
    mean: FloatVector
    m2: FloatVector


PHASE = Phase(
    name=NAME,
    once=True,
    summary="Means and variances of every feature, to put all sites' rows on one scale.",
    task=PreparationTask,
    payload=Moments,
    discloses=(
        Disclosure(
            field="n",
            shape="one number",
            meaning="How many of your persons take part.",
            identifies="The size of your cohort; no person.",
        ),
        Disclosure(
            field="observed",
            shape="d numbers",
            meaning="For each column, how many of these persons are in groups that release it.",
            identifies="How complete your records are; no person.",
        ),
        Disclosure(
            field="mean",
            shape="d numbers",
            meaning=(
                "For each column, the mean over the groups' records, in its own unit. A column is "
                "a feature, after its transform, or a level of one: its share."
            ),
            identifies=(
                "Describes all your persons together. Every site learns the mean over all sites, "
                "which of a feature that your site alone has is yours."
            ),
        ),
        Disclosure(
            field="m2",
            shape="d numbers",
            meaning=(
                "For each column, the sum of squared deviations from that mean, completed by the "
                "variance within groups."
            ),
            identifies="How widely all your persons together are spread; as for the means.",
        ),
    ),
)


def needed(policy: Policy) -> bool:
    """Return whether a session has a preparation round."""
    return policy.scaling == "standard" or policy.missing in _IMPUTES


def task() -> Task:
    """Return the task of round 1."""
    return Task(NAME, PreparationTask())


def local_step(points: Points, config: RunConfig) -> Moments | None:
    """Return the moments of a site's points (m, d) in own units, NaN where missing.

    The spread is completed by the variance within groups, so that a scale is that of persons.
    """
    known = ~np.isnan(points.X)
    weights = points.sizes[:, None] * known
    n = weights.sum(axis=0)
    if not n.any():
        return None
    X = np.where(known, points.X, 0.0)
    mean = (weights * X).sum(axis=0) / np.maximum(n, 1)
    m2 = (weights * (X - mean) ** 2).sum(axis=0) / (1.0 - points.within)
    lower, upper = own_bounds(config.columns)
    with np.errstate(invalid="ignore", over="ignore"):
        # Values within bounds cannot spread wider than this, however the share is rounded.
        widest = np.where(np.isfinite(upper - lower), n * (upper - mean) * (mean - lower), np.inf)
    return Moments(n=points.n, observed=n, mean=mean, m2=np.minimum(m2, np.maximum(widest, 0.0)))


def check(payload: Moments, config: RunConfig) -> None:
    """Check a site's moments at either end; RuleViolation."""
    d = len(config.columns)
    for name in ("observed", "mean", "m2"):
        check_shape(getattr(payload, name), (d,), f"/{name}")
    lower, upper = own_bounds(config.columns)
    check_moments(
        payload.observed,
        payload.mean,
        payload.m2,
        n=payload.n,
        p=config.p,
        lower=lower,
        upper=upper,
    )
    foreign = np.flatnonzero((payload.observed > 0) & ~config.mask)
    if foreign.size:
        feature = int(foreign[0])
        message = f"feature {feature}: the site joined without it"
        raise RuleViolation("mask", message, f"/observed/{feature}")
    if config.policy.missing not in _IMPUTES and (payload.observed != payload.n).any():
        feature = int(np.flatnonzero(payload.observed != payload.n)[0])
        raise RuleViolation(
            "complement",
            f"feature {feature}: rows without a value are dropped in this session, so every "
            "feature is observed in all rows",
            f"/observed/{feature}",
        )
    if config.size_band is not None:
        check_not_above(payload.n, config.size_band)


def merge(contributions: Sequence[Contribution], config: RunConfig) -> Space:
    """Return the common space from all sites' moments; contributions sorted by site.

    Raises
    ------
    MethodFailure
        If no site sent moments of some feature.
    """
    d = len(config.columns)
    merged = no_moments((d,))
    # By feature: rows of sites that lack it are no rows of it, imputed ones are.
    rows = np.zeros(d)
    for contribution in contributions:
        moments: Moments | None = contribution.payload
        if moments is None:
            continue
        rows += moments.n * config.masks.get(contribution.site, config.mask)
        observed = moments.observed.astype(np.float64)
        merged = merge_moments(merged, SetMoments(observed, moments.mean, moments.m2))
    n, mean, m2 = merged
    absent = feature_names(config.columns, n == 0)
    if absent:
        names = ", ".join(repr(name) for name in absent[:10])
        raise MethodFailure(
            "feature_without_values",
            f"no site has enough values of {names}: leave it out, or invite a site that has it",
        )
    impute = mean if config.policy.missing in _IMPUTES else None
    if config.policy.scaling != "standard":
        declared = declared_space(config.columns, config.policy.scaling)
        return Space(declared.center, declared.scale, impute)
    return Space(mean, standard_scale(config.columns, mean, m2 / rows), impute)
