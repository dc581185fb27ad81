"""Meta-clustering: group the sites' local clusters, seen through different features.

Maritan & Schenato, "Distributed clustering in partially overlapping feature spaces", 2025, section
4.1.2. Local centroids are grouped to minimise their squared distances (equation 3) from the merged
centroids (equation 4), summed up (equation 5). There are these forms:

- ``agglomerative``: repeatedly merge the nearest two groups that have no site in common. This is
  Method A without seeds: it needs no site with all K clusters.
- ``A``: K groups start from the clusters of a site that has K. Repeatedly merge the nearest pair
  of a group and a local centroid whose site is not in the group. Without such a site it starts
  from Method B's seeds, as the text allows.
- ``B``: k-means of the local centroids from K seeds far apart.
- ``auto``: chooses a form by the graph of overlapping features, as Algorithm 1 does by Assumptions
  1 to 3, as far as masks tell.

Errors in the printed algorithms, corrected here: A stops one centroid early (``|L| > 1``), merges
with G instead of G_c (line 20) and uses one index for two sites; B adds ``z`` instead of ``z_k``,
and compares pairs without a common feature. Only the distances that a merge changes are computed
again: O(d K^2 n^2) in all.

If a site has more clusters than there are groups, or all remaining groups have a site in common,
the rest joins the nearest group nevertheless. Groups that share no feature are never merged, so
more than K may remain.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedclust.methods.common.own_features import (
    LocalCentroids,
    RelativeDistances,
    connected_components,
    feature_ranges,
    relative_squares,
    sum_groups,
    too_many_groups_warning,
)
from fedclust.numeric.array_types import FloatArray, IntArray
from fedclust.numeric.canonical import TIE_TOLERANCE, tolerant_argmax, tolerant_argmin

Meta = Literal["agglomerative", "A", "B", "auto"]

#: Rows of a distance matrix computed at a time: bounds memory.
_BLOCK = 1024
_MAX_ITERATIONS = 300


@dataclass(frozen=True)
class Grouping:
    """The group of each local centroid.

    Attributes
    ----------
    groups : (m,) int64
        Numbered from 0 in the order of their first members.
    attached : int
        Merges that put two centroids of one site into one group.
    """

    groups: IntArray
    attached: int = 0

    @property
    def n_groups(self) -> int:
        """The number of groups."""
        return int(self.groups.max(initial=-1)) + 1


def choose_form(meta: Meta, points: LocalCentroids, n_clusters: int) -> tuple[Meta, str | None]:
    """Return the form of meta-clustering, and the reason if ``meta`` is ``auto``.

    Masks tell whether all sites can be compared directly (Assumption 2) or only by chains
    (Assumption 1). They do not tell whether the sites' clusters have the same distribution.
    """
    if meta != "auto":
        return meta, None
    sites, first, sizes = np.unique(points.sites, return_index=True, return_counts=True)
    masks = points.mask[first]
    known = masks.astype(np.float64)
    if (known @ known.T > 0).all():
        return "B", "any two sites share features (Assumption 2)"
    if connected_components(masks).max(initial=0) > 0:
        return "B", "the sites' features fall into parts that share none"
    chains = "some sites share no feature, but chains of sites connect them (Assumption 1)"
    if len(sites) and (sizes == n_clusters).any():
        return "A", f"{chains}, and a site has {n_clusters} clusters to start from"
    return "agglomerative", f"{chains}, and no site has {n_clusters} clusters, which A starts from"


def group_centroids(
    points: LocalCentroids, n_clusters: int, meta: Meta
) -> tuple[Grouping, tuple[str, ...]]:
    """Group local centroids into ``n_clusters`` groups; also return warnings for the analyst.

    If the features fall into parts without a common feature, each part is grouped by itself.

    Parameters
    ----------
    points : LocalCentroids
        At least one.
    n_clusters : int
    meta : {"agglomerative", "A", "B", "auto"}

    Returns
    -------
    Grouping
        Fewer groups if there are fewer points, more if groups share no feature.
    warnings : tuple of str
    """
    form, reason = choose_form(meta, points, n_clusters)
    forms: dict[Meta, Callable[[LocalCentroids, int], Grouping]] = {
        "agglomerative": agglomerate,
        "A": method_a,
        "B": method_b,
    }
    parts = connected_components(points.mask)
    groups, attached = np.empty(len(points), dtype=np.int64), 0
    for part in range(int(parts.max(initial=-1)) + 1):
        inside = np.flatnonzero(parts == part)
        own = forms[form](points.select(inside), n_clusters)
        groups[inside] = own.groups + groups.max(initial=-1, where=parts < part) + 1
        attached += own.attached
    grouping = Grouping(_renumber_groups(groups), attached)
    warnings = [] if reason is None else [f"meta: auto took {form}: {reason}."]
    if form == "A" and not (np.bincount(points.sites) == n_clusters).any():
        warnings.append(
            f"meta: A starts from a site with {n_clusters} clusters, and there is none: it started "
            "from the clusters farthest apart."
        )
    if grouping.attached:
        warnings.append(
            f"{grouping.attached} local clusters joined a group that their site was in already: a "
            f"site has more clusters than {n_clusters}, or what fitted better was taken. Ask for "
            "more clusters, or for fewer local ones."
        )
    return grouping, (*warnings, *too_many_groups_warning(grouping.n_groups, n_clusters))


def _separate_remaining(groups: IntArray) -> IntArray:
    """Return groups (m,) in which every point without one (-1) is a group of its own."""
    remaining = np.flatnonzero(groups < 0)
    groups = groups.copy()
    groups[remaining] = groups.max(initial=-1) + 1 + np.arange(len(remaining))
    return groups


def _renumber_groups(groups: IntArray) -> IntArray:
    """Return groups (m,) numbered from 0 in the order of their first members."""
    _, first, inverse = np.unique(groups, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse.reshape(-1)]


def _site_numbers(points: LocalCentroids) -> tuple[IntArray, int]:
    """Return the sites (m,) numbered from 0, and how many there are."""
    sites, numbers = np.unique(points.sites, return_inverse=True)
    return numbers.reshape(-1), len(sites)


# --- Agglomerative --------------------------------------------------------------------------------


def agglomerate(points: LocalCentroids, n_clusters: int) -> Grouping:
    """Merge the nearest two groups until ``n_clusters`` are left; no site twice, if possible.

    Distances are those of merged centroids (centroid linkage). Ties go to the lowest pair.
    """
    pool = _DistancePool(points, feature_ranges(points.values, points.mask))
    attached = 0
    while pool.n_groups > n_clusters and pool.merge_nearest():
        pass
    if pool.n_groups > n_clusters:
        pool.allow_common_sites()
        while pool.n_groups > n_clusters and pool.merge_nearest():
            attached += 1
    return Grouping(_renumber_groups(pool.groups), attached)


class _DistancePool:
    """Groups, the distances between them and the nearest neighbour of each.

    A merge computes one row of distances and searches a new neighbour for the groups that lost
    theirs. Distances are computed in double and kept in single precision.
    """

    def __init__(self, points: LocalCentroids, ranges: FloatArray) -> None:
        m = len(points)
        sites, n_sites = _site_numbers(points)
        # Above 0, so that a shared feature has some range even if all its values are equal.
        self._squared_ranges = np.maximum(ranges**2, np.finfo(np.float64).tiny)
        self._merged = points.as_groups()
        self._members = [[i] for i in range(m)]
        self._sites = np.zeros((m, n_sites), dtype=np.bool_)
        self._sites[np.arange(m), sites] = True
        self._keep_sites_apart = True
        means, known = self._merged.means, self._merged.mask.astype(np.float64)
        self._origin = means.sum(axis=0) / np.maximum(self._merged.mask.sum(axis=0), 1)
        values = (means - self._origin) * known
        # Side by side, so that one matrix product gives the distances.
        self._terms = np.concatenate([values**2, values, known], axis=1)
        self._open = np.ones(m, dtype=np.bool_)
        self._measure_all()

    @property
    def n_groups(self) -> int:
        """The number of groups left."""
        return int(self._open.sum())

    @property
    def groups(self) -> IntArray:
        """The group (m,) of each point, in any numbering."""
        groups = np.empty(sum(len(members) for members in self._members), dtype=np.int64)
        for number, members in enumerate(self._members):
            groups[members] = number
        return groups

    def allow_common_sites(self) -> None:
        """Allow merges of groups that have a site in common."""
        self._keep_sites_apart = False
        self._measure_all()

    def merge_nearest(self) -> bool:
        """Merge the nearest two groups; return False if no two may be merged."""
        a = int(self._least.argmin())
        if not np.isfinite(self._least[a]):
            return False
        a, b = sorted((a, int(self._nearest[a])))
        self._merged.absorb(a, self._merged, b)
        self._members[a] += self._members[b]
        self._sites[a] |= self._sites[b]
        self._members[b] = []
        merged = self._merged.group(a)
        values = np.where(merged.mask, merged.means - self._origin, 0.0)
        self._terms[a] = np.concatenate([values**2, values, merged.mask], axis=1)
        self._open[b] = False
        self._terms[b] = 0.0
        self._gaps[b, :] = self._gaps[:, b] = np.inf
        self._least[b] = np.inf
        self._update_neighbours(a, b)
        return True

    def _measure_all(self) -> None:
        m = len(self._members)
        self._gaps = np.empty((m, m), dtype=np.float32)
        for begin in range(0, m, _BLOCK):
            block = np.arange(begin, min(begin + _BLOCK, m))
            self._gaps[block] = self._measure(block)
        # Symmetric to the last bit.
        for row in range(m):
            self._gaps[row + 1 :, row] = self._gaps[row, row + 1 :]
        self._gaps[~self._open, :] = self._gaps[:, ~self._open] = np.inf
        self._nearest = self._gaps.argmin(axis=1)
        self._least = self._gaps[np.arange(len(self._gaps)), self._nearest]

    def _measure(self, chosen: IntArray) -> FloatArray:
        """Return squared distances (b, m) of groups ``chosen`` from all; infinite if forbidden."""
        squares, values, known = np.split(self._terms[chosen], 3, axis=1)
        weights = np.concatenate([known, -2.0 * values, squares], axis=1)
        product = np.maximum((self._terms @ weights.T).T, 0.0)
        d = len(self._squared_ranges)
        ranges = (self._terms[:, 2 * d :] @ (known * self._squared_ranges).T).T
        gaps = relative_squares(product, ranges, ranges)
        if self._keep_sites_apart:
            for row, own in enumerate(self._sites[chosen]):
                gaps[row, self._sites[:, own].any(axis=1)] = np.inf
        gaps[np.arange(len(chosen)), chosen] = np.inf
        return gaps

    def _update_neighbours(self, a: int, b: int) -> None:
        """Measure the merged group ``a`` and update all neighbours; ``b`` is gone."""
        row = self._measure(np.array([a]))[0].astype(np.float32)
        self._gaps[a, :] = row
        self._gaps[:, a] = row
        lost = (self._nearest == a) | (self._nearest == b)
        lost[a] = True
        closer = (row < self._least) | ((row == self._least) & (a < self._nearest))
        closer &= ~lost & np.isfinite(row)
        self._nearest[closer] = a
        self._least[closer] = row[closer]
        again = np.flatnonzero(lost & self._open)
        self._nearest[again] = self._gaps[again].argmin(axis=1)
        self._least[again] = self._gaps[again, self._nearest[again]]


# --- Method A -------------------------------------------------------------------------------------


def method_a(points: LocalCentroids, n_clusters: int) -> Grouping:
    """Method A: local centroids join groups seeded by one site's clusters, or by Method B's seeds.

    A centroid that shares no feature with any group waits: groups gain features from those that
    join. If none ever shares one, it becomes a group of its own.
    """
    sites, sizes = np.unique(points.sites, return_counts=True)
    complete = sites[sizes == n_clusters]
    if len(complete):
        seeds = np.flatnonzero(points.sites == complete[0])
    else:
        seeds = farthest_points(points, n_clusters)
    groups = np.full(len(points), -1, dtype=np.int64)
    groups[seeds] = np.arange(len(seeds))
    queue = _Queue(points, groups)
    attached = 0
    while queue.place_nearest():
        pass
    queue.allow_common_sites()
    while queue.place_nearest():
        attached += 1
    return Grouping(_renumber_groups(_separate_remaining(queue.groups)), attached)


class _Queue:
    """Local centroids that wait for a group, with their distances from the groups."""

    def __init__(self, points: LocalCentroids, groups: IntArray) -> None:
        self.groups = groups
        self._distances = _distances_among(points)
        self._single = points.as_groups()
        n_groups = int(groups.max()) + 1
        self._sites, n_sites = _site_numbers(points)
        placed = groups >= 0
        self._inside = np.zeros((n_groups, n_sites), dtype=np.bool_)
        self._inside[groups[placed], self._sites[placed]] = True
        self._merged = sum_groups(points, groups, n_groups)
        self._gaps = np.empty((n_groups, len(points)))
        self._nearest = np.zeros(n_groups, dtype=np.int64)
        self._keep_sites_apart = True
        self._measure_all()

    def allow_common_sites(self) -> None:
        """Allow centroids to join a group that their site is in."""
        self._keep_sites_apart = False
        self._measure_all()

    def place_nearest(self) -> bool:
        """Put the nearest waiting centroid into its group; return False if none may join any."""
        least = self._gaps[np.arange(len(self._nearest)), self._nearest]
        group = int(tolerant_argmin(least))
        if not np.isfinite(least[group]):
            return False
        point = int(self._nearest[group])
        self.groups[point] = group
        self._inside[group, self._sites[point]] = True
        self._merged.absorb(group, self._single, point)
        self._gaps[:, point] = np.inf
        self._measure(group)
        for other in np.flatnonzero(self._nearest == point):
            self._nearest[other] = tolerant_argmin(self._gaps[other])
        return True

    def _measure_all(self) -> None:
        for group in range(len(self._gaps)):
            self._measure(group)

    def _measure(self, group: int) -> None:
        """Measure the waiting centroids from a group, and find the nearest."""
        merged = self._merged.group(group)
        gaps = self._distances.squared_to(merged.means, merged.mask)[:, 0]
        gaps[self.groups >= 0] = np.inf
        if self._keep_sites_apart:
            gaps[self._inside[group, self._sites]] = np.inf
        self._gaps[group] = gaps
        self._nearest[group] = tolerant_argmin(gaps)


# --- Method B -------------------------------------------------------------------------------------


def method_b(points: LocalCentroids, n_clusters: int) -> Grouping:
    """Method B: k-means of the local centroids from seeds far apart.

    A centroid that shares no feature with any group becomes a group of its own. A group that loses
    all its members keeps its place.
    """
    distances = _distances_among(points)
    seeds = farthest_points(points, n_clusters)
    means, known = points.values[seeds], points.mask[seeds]
    groups = np.full(len(points), -1, dtype=np.int64)
    for _ in range(_MAX_ITERATIONS):
        gaps = distances.squared_to(means, known)
        moved = np.where(np.isfinite(gaps).any(axis=1), tolerant_argmin(gaps), -1)
        if np.array_equal(moved, groups):
            break
        groups = moved.astype(np.int64)
        merged = sum_groups(points, groups, len(seeds))
        filled = merged.mask.any(axis=1)
        means[filled], known[filled] = merged.means[filled], merged.mask[filled]
    return Grouping(_renumber_groups(_separate_remaining(groups)))


def farthest_points(points: LocalCentroids, n_clusters: int) -> IntArray:
    """Return points (K',) that are far apart: the farthest pair, then each time the farthest.

    Pairs without a common feature do not count; points that share no feature with any seed come
    last. Fewer than ``n_clusters`` if no other point differs from all seeds.
    """
    distances = _distances_among(points)
    n = min(n_clusters, len(points))
    seeds: list[int] = []
    queue = _farthest_pair(points, distances)[: max(n, 1)]
    smallest = np.full(len(points), np.inf)
    while queue:
        seed = queue.pop(0)
        seeds.append(seed)
        own = slice(seed, seed + 1)
        gaps = distances.squared_to(points.values[own], points.mask[own])[:, 0]
        smallest = np.minimum(smallest, gaps)
        if not queue and len(seeds) < n:
            comparable = np.isfinite(smallest)
            apart = np.where(comparable, smallest, 0.0)
            apart[seeds] = -1.0
            comparable[seeds] = True
            farthest = int(tolerant_argmax(apart))
            if apart[farthest] > 0.0:
                queue = [farthest]
            else:
                queue = np.flatnonzero(~comparable)[:1].tolist()
    return np.array(seeds, dtype=np.int64)


def _distances_among(points: LocalCentroids) -> RelativeDistances:
    """Return distances from the points, relative to their ranges."""
    ranges = feature_ranges(points.values, points.mask)
    return RelativeDistances(points.values, points.mask, ranges)


def _farthest_pair(points: LocalCentroids, distances: RelativeDistances) -> list[int]:
    """Return the two comparable points farthest apart; [0] if all comparable points are equal."""
    largest, pair = 0.0, [0]
    for begin in range(0, len(points), _BLOCK):
        block = slice(begin, begin + _BLOCK)
        gaps = distances.squared_to(points.values[block], points.mask[block])
        gaps = np.where(np.isfinite(gaps), gaps, 0.0)
        row, column = np.unravel_index(int(tolerant_argmax(gaps.reshape(-1))), gaps.shape)
        if gaps[row, column] > largest * (1.0 + TIE_TOLERANCE):
            largest, pair = float(gaps[row, column]), sorted((int(row), begin + int(column)))
    return pair
