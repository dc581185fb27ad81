"""What a cluster's rows look like: mean and spread of every column, added up over sites.

Part of the closing evaluation. A site sends, of each final cluster, the means and the sums of
squared deviations (M2) of its rows there: those that the guard let go, shares rounded (rule 4).
The coordinator merges them (Chan, Golub & LeVeque) into one profile.

M2 tells more than a mean, and is held back, sent as 0, where it would tell of fewer than p persons:

- Of two persons: mean and variance give both values away. With p = 2 no M2 is sent at all.
- Where all of a cell but fewer than p persons share one value, also in the rest, whose M2 follows
  from the totals.
- In a second column and another cell, where it would follow from cost and totals (``spreads``).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedclust.algorithms.base import (
    Contribution,
    Memory,
    Profile,
    RuleViolation,
    RunConfig,
    SiteData,
)
from fedclust.algorithms.releasing import Released
from fedclust.algorithms.spaces import binary_columns, scaled_bounds
from fedclust.algorithms.spreads import tellable
from fedclust.privacy.checks import check_empty, check_means, check_shape
from fedclust.privacy.moments import CellMoments, FeatureMoments, merge_cells, merge_features

__all__ = ["check_profile", "merge_profile", "site_profile"]

FloatArray = NDArray[np.float64]
#: Relative slack between a cost and what mean and M2 say of it.
_SLACK = 1e-6
#: Relative slack of a spread's bounds.
_SPREAD_SLACK = 1e-9
#: Persons behind a variance: two values follow from their mean and variance.
SMALLEST = 3


# --- at a site ------------------------------------------------------------------------------------


def site_profile(
    data: SiteData,
    released: Released,
    cells: NDArray[np.int64],
    n_clusters: int,
    config: RunConfig,
    memory: Memory,
) -> tuple[FloatArray, FloatArray, Memory]:
    """Return the means and the M2, each (K, d), scaled, that may be told of released rows.

    And the memory that records which of them are.

    Parameters
    ----------
    data : SiteData
    released : Released
        A partition into the method's cells.
    cells : (C,) int64
        For each of these, its cluster.
    n_clusters : int
    config : RunConfig
    memory : dict
        The session's memory at this site.
    """
    moments = _by_cluster(released.moments, cells, n_clusters)
    labels = np.append(cells, -1).astype(np.int16)[released.labels]
    if 1 < config.p < SMALLEST:
        return moments.means, np.zeros_like(moments.m2), memory
    told, kept = tellable(data, labels, moments.m2, config, memory)
    # Nothing comes after the evaluation but, in a sweep, that of other K.
    return moments.means, np.where(told, moments.m2, 0.0), kept if config.sweep else memory


def _by_cluster(moments: CellMoments, cells: NDArray[np.int64], n_clusters: int) -> CellMoments:
    d = moments.means.shape[1]
    counts = np.zeros(n_clusters, dtype=np.int64)
    merged = CellMoments(counts, np.zeros((n_clusters, d)), np.zeros((n_clusters, d)))
    for cell in np.flatnonzero(moments.counts):
        at = slice(int(cells[cell]), int(cells[cell]) + 1)
        both = merge_cells(_part(merged, at), _part(moments, slice(int(cell), int(cell) + 1)))
        merged.counts[at], merged.means[at], merged.m2[at] = both.counts, both.means, both.m2
    return merged


def _part(moments: CellMoments, at: slice) -> CellMoments:
    return CellMoments(moments.counts[at], moments.means[at], moments.m2[at])


# --- checks, at either end ------------------------------------------------------------------------


def check_profile(
    counts: NDArray[np.int64],
    costs: FloatArray,
    means: FloatArray,
    m2: FloatArray,
    config: RunConfig,
) -> None:
    """Raise unless means and M2 (K, d) have their shape, keep to bounds, and fit the costs (K,)."""
    shape = (len(counts), len(config.mask))
    for name, values in (("means", means), ("m2", m2)):
        check_shape(values, shape, f"/{name}")
        check_empty(counts, values, f"/{name}")
        foreign = np.argwhere((values != 0) & ~config.mask)
        if foreign.size:
            cell, column = (int(place) for place in foreign[0])
            message = f"cell {cell}: the site joined without feature {column}: its number must be 0"
            raise RuleViolation("mask", message, f"/{name}/{cell}/{column}")
    lower, upper = scaled_bounds(config)
    check_means(np.where(config.mask, counts[:, None], 0), means, lower, upper, "/means")
    lower, upper = np.where(config.mask, lower, 0.0), np.where(config.mask, upper, 0.0)
    _check_spread(counts, means, m2, lower, upper)
    if config.mask.all():
        # No distances add up to less than M2, which is about the rows' own mean.
        wide = np.flatnonzero(m2.sum(axis=1) > costs * (1.0 + _SLACK) + _SLACK * (1.0 + counts))
        if wide.size:
            message = f"cell {int(wide[0])}: the spread is wider than the cost"
            raise RuleViolation("cost", message, f"/m2/{int(wide[0])}")


# --- at the coordinator ---------------------------------------------------------------------------


def merge_profile(
    contributions: Sequence[Contribution],
    shown: NDArray[np.bool_],
    config: RunConfig,
) -> Profile | None:
    """Return the profile of all sites' rows; contributions sorted by site.

    Parameters
    ----------
    contributions : sequence of Contribution
        Of evaluations.
    shown : (K,) bool
        The clusters whose size is shown: of the others nothing is told.
    config : RunConfig

    Returns
    -------
    Profile or None
        None where nothing may be told.
    """
    answered = [each for each in contributions if each.payload is not None]
    if not answered or not shown.any():
        return None
    shape = answered[0].payload.means.shape
    whole, spread = _nothing(shape), _nothing(shape)
    for each in answered:
        payload = each.payload
        has = np.asarray(config.masks.get(each.site, config.mask))
        counts = np.where(has & shown[:, None], payload.counts[:, None], 0)
        whole = merge_features(whole, FeatureMoments(counts, payload.means, payload.m2))
        # 0 is held back, or next to nothing; nothing is held back where p is 1.
        told = np.where((payload.m2 > 0) | (each.p <= 1), counts, 0)
        spread = merge_features(spread, FeatureMoments(told, payload.means, payload.m2))
    center, scale = config.space.center, config.space.scale
    binary = binary_columns(config.columns)
    known, means = whole.counts > 0, whole.means * scale + center
    # A share has the spread that follows from it, told or not.
    variances = np.where(
        binary,
        np.clip(means * (1.0 - means), 0.0, None),
        spread.m2 / np.maximum(spread.counts, 1) * scale**2,
    )
    spread_known = known & (binary | (spread.counts > 0))
    variances = np.where(spread_known, variances, 0.0)
    # Among all rows, a cluster whose spread is not told has that of the others.
    told = np.where(spread_known, whole.counts, 0)
    usual = (told * variances).sum(axis=0) / np.maximum(told.sum(axis=0), 1)
    overall = _nothing(shape[1:])
    for k in range(shape[0]):
        within = np.where(spread_known[k], variances[k], usual)
        own = FeatureMoments(whole.counts[k], means[k], whole.counts[k] * within)
        overall = merge_features(overall, own)
    overall_known = spread_known.any(axis=0)
    deviation = np.sqrt(overall.m2 / np.maximum(overall.counts, 1))
    return Profile(
        known=known,
        means=np.where(known, means, 0.0),
        spread_known=spread_known,
        deviations=np.sqrt(variances),
        overall_means=overall.means,
        overall_deviations=np.where(overall_known, deviation, 0.0),
    )


def _nothing(shape: tuple[int, ...]) -> FeatureMoments:
    return FeatureMoments(np.zeros(shape, dtype=np.int64), np.zeros(shape), np.zeros(shape))


def _check_spread(
    counts: NDArray[np.int64],
    means: FloatArray,
    m2: FloatArray,
    lower: FloatArray,
    upper: FloatArray,
) -> None:
    """Raise unless sums of squares (K, d) are none below 0 and within the bounds' widest.

    Values within bounds have a variance of at most (upper - mean)(mean - lower).
    """
    with np.errstate(invalid="ignore", over="ignore"):
        n = counts[:, None].astype(np.float64)
        widest = n * np.maximum((upper - means) * (means - lower), 0.0)
        widest = widest + _SPREAD_SLACK * np.maximum(1.0, n * (upper - lower) ** 2)
    widest = np.where(np.isfinite(widest), widest, np.inf)
    wrong = np.argwhere(~(m2 >= 0) | ((m2 > widest) & (counts > 0)[:, None]))
    if wrong.size:
        cell, feature = (int(place) for place in wrong[0])
        raise RuleViolation(
            "spread",
            f"cell {cell}: the spread of feature {feature} is negative or wider than its bounds "
            "allow",
            f"/m2/{cell}/{feature}",
        )
