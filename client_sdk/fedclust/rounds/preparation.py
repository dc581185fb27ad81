"""The preparation round: federated means and variances, before any method starts.

What it computes
    Every site sends n, and for each feature the number of persons with a value, their mean and
    their sum of squared deviations M2. The server merges (n, mean, M2) pairwise (Chan, Golub &
    LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979):
    raw sums of squares are wrong by 7 % at an offset of 1e8. ddof 0; imputed values count in n and
    add nothing to M2; a constant feature gets scale 1, a categorical one the same in all its
    levels.

One bad site
    No single site may decide the scale. A site is an outlier in a numeric column if its distance
    from the median mean exceeds 10 times that of the median site. Mean and variance of the column
    are then merged without it, and scaled values are clipped at 3 standard deviations. Otherwise
    they are clipped at 100: fewer than one person in 10,000 is farther away (Chebyshev).

Another unit
    Most sites lie nearer than the others, and the nearest of these others is more than 4 times as
    far as the farthest of most: they seem to code the column otherwise (``make bench
    column_differences``). The result names them.

It is round 1 of every session with ``scaling: standard``, ``missing: impute`` or ``missing: mask``,
and does not count for ``max_rounds``.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated

import numpy as np
from pydantic import Field

from fedclust.methods.common.kmeans_rounds import disclosures
from fedclust.numeric.array_types import BoolArray, FloatArray
from fedclust.numeric.arrays import FloatVector, IntVector
from fedclust.numeric.moments import Moments, merge_moments, no_moments
from fedclust.protection.message_checks import check_moments, check_shapes, refuse_first
from fedclust.rounds.plan import IMPUTES
from fedclust.schema.encoding import Space, feature_names
from fedclust.schema.errors import MethodFailure
from fedclust.schema.model import Model
from fedclust.schema.run_config import RunConfig
from fedclust.schema.scaling import (
    CONSTANT,
    binary_columns,
    declared_space,
    default_gamma,
    own_bounds,
    standard_scale,
    with_categories,
)
from fedclust.schema.size_bands import check_not_above
from fedclust.schema.task import Contribution, Phase, SiteSide, SiteTask, payloads_of

NAME = "prepare"
#: From how many times the median site's distance on a site stands apart; it takes as many sites.
_APART, _FEWEST_SITES = 10.0, 3
#: From how many times the next nearer site's distance on a site codes a column otherwise. A site of
#: one cluster, or of patients that no other site has, is seldom so far.
_OTHERWISE = 4.0
#: How many standard deviations a value lies from the mean at most: where the sites agree, and
#: where one stands apart.
_LIMIT, _LIMIT_APART = 100.0, 3.0


class PreparationTask(Model):
    """Nothing but the question: everything else is in the definition."""


class SiteMoments(Model):
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


#: From this share of imputed values on the result warns.
_MUCH_IMPUTED = 0.1


def local_step(_task: SiteTask, site: SiteSide) -> SiteMoments | None:
    """Return the moments of a site's points (m, d) in own units, NaN where missing.

    The spread is completed by the variance within groups, so that a scale is that of persons.
    """
    points = site.points
    known = ~np.isnan(points.X)
    weights = points.sizes[:, None] * known
    n = weights.sum(axis=0)
    if not n.any():
        return None
    X = np.where(known, points.X, 0.0)
    mean = (weights * X).sum(axis=0) / np.maximum(n, 1)
    m2 = (weights * (X - mean) ** 2).sum(axis=0) / (1.0 - points.within)
    lower, upper = own_bounds(site.config.columns)
    with np.errstate(invalid="ignore", over="ignore"):
        # Values within bounds cannot spread wider than this, however the share is rounded.
        widest = np.where(np.isfinite(upper - lower), n * (upper - mean) * (mean - lower), np.inf)
    m2 = np.minimum(m2, np.maximum(widest, 0.0))
    return SiteMoments(n=points.n, observed=n, mean=mean, m2=m2)


def check(_task: SiteTask, payload: SiteMoments, config: RunConfig) -> None:
    """Check a site's moments at either end; RuleViolation."""
    d = len(config.columns)
    check_shapes(payload, observed=(d,), mean=(d,), m2=(d,))
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
    foreign = (payload.observed > 0) & ~config.mask
    refuse_first(foreign, "mask", "feature {}: the site joined without it", "/observed")
    if config.policy.missing not in IMPUTES:
        message = "feature {}: rows without a value are dropped in this session, so every feature "
        message += "is observed in all rows"
        refuse_first(payload.observed != payload.n, "complement", message, "/observed")
    check_not_above(payload.n, config.size_band)


PHASE = Phase(
    name=NAME,
    once=True,
    summary="Means and variances of every feature, to put all sites' rows on one scale.",
    task=PreparationTask,
    payload=SiteMoments,
    local_step=local_step,
    check=check,
    discloses=disclosures(
        n="one number: How many of your persons take part.",
        observed="d numbers: For each column, how many of these persons are in groups that release "
        "it.",
        mean="d numbers: For each column, the mean over the groups' records, in its own unit. A "
        "column is a feature, after its transform, or a level of one: its share.",
        m2="d numbers: For each column, the sum of squared deviations from that mean, completed by "
        "the variance within groups.",
        identify={
            "n": "The size of your cohort; no person.",
            "observed": "How complete your records are; no person.",
            "mean": "Describes all your persons together. Every site learns the mean over all "
            "sites. If your site alone has a feature, that is your own mean.",
            "m2": "How widely all your persons together are spread; as for the means.",
        },
    ),
)


def merge(
    contributions: Sequence[Contribution], config: RunConfig
) -> tuple[Space, tuple[str, ...], dict[str, tuple[int, ...]]]:
    """Return the common space from all sites' moments; contributions sorted by site.

    And a warning for each site that stands apart, and one where much is imputed. And the columns
    that a site seems to code otherwise, of those that have any.

    Raises
    ------
    MethodFailure
        If no site sent moments of some feature.
    """
    d = len(config.columns)
    sent = payloads_of(contributions, SiteMoments)
    distances = _distances(sent, config)
    apart = np.asarray(distances / _APART > _median(distances))
    apart &= config.policy.scaling == "standard"
    merged = no_moments((d,))
    # By feature: rows of sites that lack it are no rows of it, imputed ones are.
    rows = np.zeros(d)
    for (site, moments), own in zip(sent.items(), apart, strict=True):
        rows += moments.n * (config.masks.get(site, config.mask) & ~own)
        parts = (moments.observed, moments.mean, moments.m2)
        merged = merge_moments(merged, Moments(*(np.where(own, 0.0, each) for each in parts)))
    n, mean, m2 = merged
    absent = feature_names(config.columns, n == 0)
    if absent:
        names = ", ".join(repr(name) for name in absent[:10])
        raise MethodFailure(
            "feature_without_values",
            f"no site has enough values of {names}: leave it out, or invite a site that has it",
        )
    impute = mean if config.policy.missing in IMPUTES else None
    warnings = (*_apart_warnings(sent, apart, config), *_imputed_warning(sent, config))
    otherwise = zip(sent, _coded_otherwise(distances), strict=True)
    differing = {site: tuple(np.flatnonzero(own).tolist()) for site, own in otherwise if own.any()}
    if config.policy.scaling != "standard":
        declared = declared_space(config.columns, config.policy)
        declared = declared.model_copy(update={"impute": impute})
        return _with_gamma(declared, m2 / rows, config), warnings, differing
    scale = standard_scale(config.columns, mean, m2 / rows)
    lower, upper = own_bounds(config.columns)
    weights = np.array([column.weight for column in config.columns])
    limit = np.where(apart.any(axis=0), _LIMIT_APART, _LIMIT) * np.sqrt(weights)
    found = Space(center=mean, scale=scale, impute=impute, limit=None)
    space = _with_gamma(found, m2 / rows, config)
    # A share is within its bounds.
    shares = np.maximum(space.center - lower, upper - space.center) / space.scale
    limit = np.where(binary_columns(config.columns), shares, limit)
    return space.model_copy(update={"limit": limit}), warnings, differing


def _with_gamma(space: Space, variances: FloatArray, config: RunConfig) -> Space:
    """Return the space with its categories weighed by gamma, in a session of k-prototypes."""
    policy = config.policy
    if policy.dissimilarity != "k-prototypes":
        return space
    deviations = np.sqrt(variances)
    gamma = policy.gamma or default_gamma(config.columns, space, deviations)
    return with_categories(config.columns, space, gamma)


def _distances(sent: Mapping[str, SiteMoments], config: RunConfig) -> FloatArray:
    """Return how far each site lies from the middle of the sites (S, d), NaN where nobody can say.

    A site's distance is the root of the mean square of its values about the median of all sites'
    means: of a site that holds one cluster it is about how far that lies. Medians are not weighted,
    for a site's number of persons is its own word. Only numbers have distances.
    """
    observed = np.array([moments.observed for moments in sent.values()], dtype=np.float64)
    held = observed > 0
    with np.errstate(over="ignore", invalid="ignore"):
        means = np.where(held, [moments.mean for moments in sent.values()], np.nan)
        spreads = np.sqrt([moments.m2 for moments in sent.values()] / np.maximum(observed, 1.0))
        middle = _median(means)
        distances = np.hypot(spreads, means - middle)
        usual = _median(np.where(held, spreads, np.nan))
    # Most sites may have one value, or one group, alone: then any other is far away.
    able = (held.sum(axis=0) >= _FEWEST_SITES) & (usual > CONSTANT * np.abs(middle))
    return np.where(held & able & ~binary_columns(config.columns), distances, np.nan)


def _coded_otherwise(distances: FloatArray) -> BoolArray:
    """Return which columns each site codes otherwise (S, d): those beyond a gap in the distances.

    Most sites lie before the gap, and at least three.
    """
    ordered = np.sort(distances, axis=0)
    nearer = np.arange(1, len(ordered))[:, None]
    most = (2 * nearer > (~np.isnan(ordered)).sum(axis=0)) & (nearer >= _FEWEST_SITES)
    beyond = np.where(most & (ordered[1:] / _OTHERWISE > ordered[:-1]), ordered[1:], np.inf)
    return np.asarray(distances >= beyond.min(axis=0, initial=np.inf))


def _median(values: FloatArray) -> FloatArray:
    """Return the median (d,) of each column's values (S, d), the lower one of two; 0 of none."""
    known = (~np.isnan(values)).sum(axis=0)
    place = np.maximum(known - 1, 0) // 2
    found = np.take_along_axis(np.sort(values, axis=0), place[None], axis=0)[0]
    return np.asarray(np.nan_to_num(found))


def _imputed_warning(sent: Mapping[str, SiteMoments], config: RunConfig) -> Iterator[str]:
    """Warn that much was imputed, from what the sites' groups release."""
    persons = observed = 0
    for site, moments in sent.items():
        has = np.asarray(config.masks.get(site, config.mask))
        persons += moments.n * int(has.sum())
        observed += int(moments.observed[has].sum())
    share = 1.0 - observed / persons if persons else 0.0
    if share >= _MUCH_IMPUTED:
        grouped = ", also where only some persons of a group lack one"
        where = "" if config.policy.protection == "none" else grouped
        yield (
            f"{share:.0%} of the values are imputed{where}: expect worse clusters than with "
            "complete data. Leave out features with many missing values."
        )


def _apart_warnings(sites: Iterable[str], apart: BoolArray, config: RunConfig) -> Iterator[str]:
    for site, own in zip(sites, apart, strict=True):
        names = ", ".join(repr(name) for name in feature_names(config.columns, own)[:10])
        if names:
            yield (
                f"the site {site!r} stands apart in {names}: its values lie more than "
                f"{_APART:.0f} times as far from the middle of the sites as theirs. Mean and scale "
                "are therefore those of the other sites, and every site's values count as at most "
                f"{_LIMIT_APART:.0f} standard deviations from that mean. Ask the site for its "
                "units and missing codes; create the session without it where they are wrong"
            )
