"""Which site codes a column otherwise than the others: other unit, reversed, shifted, mixed up.

What it computes
    The other sites' cells are clustered into regions, about two for each cluster. Each cell of the
    site in question goes to the region that fits it, where a column counts as at most two standard
    deviations off: a single column that is coded otherwise cannot move a cell to another region,
    and the site's mix of clusters does not matter. Two numbers then describe a column:

    - **Offset**: how far the site's mean lies from the others' in a region, in standard deviations
      of persons within clusters; the root of the mean square over the regions, weighted by the
      site's persons, less what chance alone gives. Regions in which several columns are off do not
      count: these persons are of a kind that the other sites do not have.
    - **Spread**: the standard deviation of the site's cells within regions.

    Where one column is off, the others choose the regions without it if they then fit better.

    A column differs where the offset is at least one standard deviation in regions that hold 15 %
    of the persons, three times that of a typical other site, and twice that of most other columns
    of the site; or where the spread is four times that of a typical other site, or an eighth.
    A site that differs is set aside, and the rest is compared again without it.

``make bench transfer`` measures how often it names the right site and column, and how often it
names any where all sites agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedclust.numeric.array_types import BoolArray, FloatArray, IntArray
from fedclust.numeric.canonical import tolerant_argmin, tolerant_argsort
from fedclust.numeric.distances import nearest_centroid
from fedclust.numeric.random import server_rng
from fedclust.numeric.weighted_kmeans import weighted_kmeans

__all__ = ["FEWEST_OTHERS", "SiteProfile", "differing_columns"]

#: Regions for each cluster, at least, and at most one for so many cells.
_REGIONS_PER_CLUSTER, _FEWEST_REGIONS, _CELLS_PER_REGION = 2, 6, 4
_RESTARTS = 5
#: Squared standard deviations that a column counts at most when a cell is put into a region.
_MOST_OFF = 4.0
#: Squared offsets count as at most this: one region does not decide alone.
_MOST_OFFSET = 25.0
#: A region in which more than this share of the other columns is off by one standard deviation
#: holds persons of another kind.
_OTHERS_OFF = 0.25
#: A cell is far from its region in a column from so many standard deviations on.
_FAR = 3.0
#: How many columns are tried as the one that is off.
_SUSPECTS = 3
#: Least share of a site's persons in regions that count, and in regions that are off.
_LEAST_COMPARED, _LEAST_OFF = 0.3, 0.15
#: Standard deviations within clusters count as at least this share of those over all persons, and
#: of yes/no columns: groups release the commonest answer, which hides most of their spread.
_LEAST_SPREAD, _LEAST_SPREAD_BINARY = 0.2, 0.5
#: What an offset must be at least: standard deviations, times the median of the other sites, times
#: that of three quarters of the site's columns.
_OFFSET, _TIMES_SITES, _TIMES_COLUMNS, _MOST_COLUMNS = 1.0, 3.0, 2.0, 0.75
#: What a spread must be at least or at most, times the median of the other sites.
_WIDER, _NARROWER = 4.0, 1.0 / 8.0
#: Spreads count as at least this, scaled: below it, they are rounding of released records.
_LEAST_CELL_SPREAD = 0.03
#: A site is compared with at least so many others: fewer cannot say which of them differs.
FEWEST_OTHERS = 3


@dataclass(frozen=True)
class SiteProfile:
    """What the coordinator knows of a site's persons, in the scaled space.

    Attributes
    ----------
    means : (m, d) float64
        Of the site's cells.
    counts : (m,) int64, positive
        Persons in each.
    variances : (d,) float64
        Of persons within the final clusters.
    """

    means: FloatArray
    counts: IntArray
    variances: FloatArray


@dataclass(frozen=True)
class _Comparison:
    """A site's columns against others: offsets, the share of persons off, and spreads, each (d,).

    ``spreads`` is NaN where the site has too few cells to tell.
    """

    offsets: FloatArray
    shares: FloatArray
    spreads: FloatArray


def differing_columns(
    summaries: Mapping[str, SiteProfile],
    binary: BoolArray,
    n_clusters: int,
    min_sites: int,
    seed: int,
) -> dict[str, tuple[int, ...]]:
    """Return the columns that a site codes otherwise than the others, for each site that does.

    Parameters
    ----------
    summaries : mapping of site to SiteProfile
        Sites with persons.
    binary : (d,) bool
        The yes/no columns, levels included.
    n_clusters : int
    min_sites : int
        A site is compared with at least so many others, and with at least three.
    seed : int
    """
    fewest = max(min_sites, FEWEST_OTHERS)
    agreeing, set_aside = sorted(summaries), list[str]()
    most = (len(agreeing) - 1) // 2
    while len(agreeing) > fewest and len(set_aside) < most:
        reference = _Reference(summaries, agreeing, binary, n_clusters, seed)
        every = {site: reference.compare(site) for site in agreeing}
        worst, degree = "", 1.0
        for site in agreeing:
            if (_degrees(every, site, (), binary) <= 1.0).all():
                continue
            # A large site that differs shifts the others' comparisons as well: leave it out.
            others = [other for other in agreeing if other != site]
            found = _without(summaries, others, [site], binary, n_clusters, seed)
            own = float(_degrees(found, site, others, binary).max())
            if own > degree:
                worst, degree = site, own
        if not worst:
            break
        agreeing.remove(worst)
        set_aside.append(worst)
    if not set_aside:
        return {}
    found = _without(summaries, agreeing, set_aside, binary, n_clusters, seed)
    columns = {
        site: tuple(int(j) for j in np.flatnonzero(_degrees(found, site, agreeing, binary) > 1.0))
        for site in sorted(set_aside)
    }
    return {site: own for site, own in columns.items() if own}


def _without(
    summaries: Mapping[str, SiteProfile],
    agreeing: Sequence[str],
    set_aside: Sequence[str],
    binary: BoolArray,
    n_clusters: int,
    seed: int,
) -> dict[str, _Comparison]:
    """Compare every site with the agreeing ones, itself excluded."""
    reference = _Reference(summaries, agreeing, binary, n_clusters, seed)
    return {site: reference.compare(site) for site in (*agreeing, *set_aside)}


def _degrees(
    found: Mapping[str, _Comparison], site: str, others: Sequence[str], binary: BoolArray
) -> FloatArray:
    """Return how clearly each column (d,) of a site differs: above 1, it does.

    Without ``others`` the site's own figures alone decide.
    """
    own = found[site]
    least = np.full(len(binary), _OFFSET)
    if others:
        typical = np.median([found[other].offsets for other in others], axis=0)
        least = np.maximum(least, _TIMES_SITES * typical)
    if len(binary) > 2:
        most_columns = np.sort(own.offsets)[int(_MOST_COLUMNS * (len(binary) - 1))]
        least = np.maximum(least, _TIMES_COLUMNS * most_columns)
    degrees = np.where(own.shares >= _LEAST_OFF, own.offsets / least, 0.0)
    spreads = np.array([found[other].spreads for other in others or found if other != site])
    spreads = spreads[~np.isnan(spreads).any(axis=1)]
    if len(spreads) and not np.isnan(own.spreads).any():
        ratios = own.spreads / np.median(spreads, axis=0)
        degrees = np.maximum(degrees, np.where(binary, 0.0, _spread_degrees(ratios)))
    return np.asarray(degrees)


def _spread_degrees(ratios: FloatArray) -> FloatArray:
    wider, narrower = np.log(ratios) / np.log(_WIDER), np.log(ratios) / np.log(_NARROWER)
    return np.asarray(np.maximum(wider, narrower))


class _Reference:
    """Regions of several sites' cells, with what is needed to leave one of the sites out."""

    def __init__(
        self,
        summaries: Mapping[str, SiteProfile],
        sites: Sequence[str],
        binary: BoolArray,
        n_clusters: int,
        seed: int,
    ) -> None:
        self._summaries, self._sites = summaries, sites
        least = np.where(binary, _LEAST_SPREAD_BINARY, _LEAST_SPREAD)
        self._least_shares = least**2
        means = np.concatenate([summaries[site].means for site in sites])
        counts = np.concatenate([summaries[site].counts for site in sites]).astype(np.float64)
        n_regions = max(_REGIONS_PER_CLUSTER * n_clusters, _FEWEST_REGIONS)
        n_regions = min(n_regions, max(1, len(means) // _CELLS_PER_REGION))
        rng = server_rng(seed, "column-differences")
        centroids = weighted_kmeans(means, counts, n_regions, rng, n_restarts=_RESTARTS)
        self._persons: dict[str, FloatArray] = {}
        self._sums: dict[str, FloatArray] = {}
        for site in sites:
            own = summaries[site]
            labels = nearest_centroid(own.means, centroids)
            weights = own.counts.astype(np.float64)
            self._persons[site] = _sum_by(
                labels, weights, np.ones((len(labels), 1)), len(centroids)
            )
            self._sums[site] = _sum_by(labels, weights, own.means, len(centroids))

    def compare(self, site: str) -> _Comparison:
        """Compare a site with the others of the reference.

        A column that is off does not help to choose regions where the other columns fit better
        without it.
        """
        others = [other for other in self._sites if other != site]
        persons = np.sum([self._persons[other] for other in others], axis=0)
        sums = np.sum([self._sums[other] for other in others], axis=0)
        held = persons[:, 0] > 0
        regions, scale = sums[held] / persons[held], self._scale(others)
        used = np.ones(len(scale), dtype=np.bool_)
        found = _compare(self._summaries[site], regions, scale, used)
        for _ in range(_most_off(len(scale))):
            offsets = np.where(used, found.offsets, 0.0)
            suspects = [j for j in tolerant_argsort(-offsets)[:_SUSPECTS] if offsets[j] > _OFFSET]
            trials = []
            for j in suspects:
                rest = used & (np.arange(len(used)) != j)
                trial = _compare(self._summaries[site], regions, scale, rest)
                trials.append((float(trial.offsets[rest].sum()), j, trial))
            if not trials:
                break
            _, j, trial = trials[int(tolerant_argmin([each[0] for each in trials]))]
            # Without the column, the mix of clusters could pass for an offset: count the lower one.
            used[j] = False
            found = replace(
                trial,
                offsets=np.where(used, trial.offsets, np.minimum(trial.offsets, found.offsets)),
                shares=np.where(used, trial.shares, np.minimum(trial.shares, found.shares)),
            )
        return found

    def _scale(self, others: Sequence[str]) -> FloatArray:
        """Return the standard deviations (d,) of persons within clusters at these sites."""
        own = [self._summaries[other] for other in others]
        weights = np.array([float(each.counts.sum()) for each in own])
        within = np.average([each.variances for each in own], axis=0, weights=weights)
        means = np.concatenate([each.means for each in own])
        counts = np.concatenate([each.counts for each in own])
        overall = np.average((means - np.average(means, 0, counts)) ** 2, 0, counts)
        scale = np.sqrt(np.maximum(within, self._least_shares * overall))
        # A column without spread says nothing.
        return np.asarray(np.where(scale > 0, scale, np.inf))


def _sum_by(labels: NDArray[np.int64], weights: FloatArray, X: FloatArray, n: int) -> FloatArray:
    """Return weighted sums (n, d) of rows (m, d) by label (m,)."""
    columns = [np.bincount(labels, weights * column, minlength=n) for column in X.T]
    return np.stack(columns, axis=1)


def _most_off(n_columns: int) -> int:
    """Return how many columns may be off before persons count as of another kind."""
    return max(1, int(_OTHERS_OFF * (n_columns - 1)))


def _compare(
    site: SiteProfile, regions: FloatArray, scale: FloatArray, used: BoolArray
) -> _Comparison:
    """Compare a site's cells with regions (M, d), in units of ``scale`` (d,).

    The columns ``used`` (d,) decide to which region a cell belongs.
    """
    apart = (site.means[:, None] - regions) / scale
    squares = np.minimum(apart[:, :, used] ** 2, _MOST_OFF)
    labels = tolerant_argmin(squares.sum(axis=2)).astype(np.int64)
    own = apart[np.arange(len(labels)), labels]
    most = _most_off(len(scale))
    known = (np.abs(own[:, used]) > _FAR).sum(axis=1) <= most
    share = float(site.counts[known].sum()) / float(site.counts.sum())
    if share < _LEAST_COMPARED:
        return _nothing(len(scale))
    own, labels = own[known], labels[known]
    weights, n = site.counts[known].astype(np.float64), len(regions)
    persons = np.bincount(labels, weights, minlength=n)
    cells = np.bincount(labels, minlength=n)
    means = _sum_by(labels, weights, own, n) / np.maximum(persons, 1.0)[:, None]
    # Each region's mean takes one degree of freedom.
    freedom = len(labels) - int((cells > 0).sum())
    variances = np.average((own - means[labels]) ** 2, axis=0, weights=weights)
    variances *= len(labels) / max(freedom, 1)
    by_chance = variances / np.maximum(cells, 1)[:, None]
    is_off = np.abs(means) > 1.0
    others_off = (is_off & used).sum(axis=1)[:, None] - (is_off & used)
    counted = np.where(others_off <= most, persons[:, None], 0.0)
    total = counted.sum(axis=0)
    offsets = np.clip(means**2 - by_chance, -1.0, _MOST_OFFSET)
    offsets = np.sqrt(np.maximum((counted * offsets).sum(axis=0) / np.maximum(total, 1.0), 0.0))
    shares = (counted * is_off).sum(axis=0) / np.maximum(total, 1.0)
    spreads = np.maximum(np.sqrt(variances), _LEAST_CELL_SPREAD)
    return _Comparison(
        offsets=np.where(total * share >= _LEAST_COMPARED * persons.sum(), offsets, 0.0),
        shares=shares,
        spreads=spreads if freedom >= len(labels) / 2 else np.full(len(scale), np.nan),
    )


def _nothing(n_columns: int) -> _Comparison:
    """Return the comparison of a site whose persons are of another kind than the others'."""
    none = np.zeros(n_columns)
    return _Comparison(none, none, np.full(n_columns, np.nan))
