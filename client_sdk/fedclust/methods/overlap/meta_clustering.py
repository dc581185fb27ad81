"""Meta-clustering: which sites' local clusters are one global cluster, seen through other features.

What it says and cites
    Maritan & Schenato, "Distributed clustering in partially overlapping feature spaces", 2025,
    section 4.1.2. Local centroids are grouped so that their squared distances (equation 3) from
    the merged centroid (equation 4) add up to little (equation 5), by

    - ``agglomerative``: again and again the nearest two groups that no site is in twice are
      merged. Method A without its seeds: it needs no site that has all K clusters.
    - ``A``: K groups seeded with the clusters of a site that has K; again and again the nearest
      pair of a group and a local centroid is merged, if the site is not in the group yet. Without
      such a site, Method B's seeds, as the text allows.
    - ``B``: K seeds of largest smallest distance, then k-means on the local centroids.
    - ``auto``: chooses among them by the graph of overlapping features, as Algorithm 1 does by
      Assumptions 1 to 3, as far as masks tell.

As printed, A stops one centroid short (``|L| > 1``), merges with what G holds (line 20) instead
of G_c and takes one index for two sites; B adds ``z`` for ``z_k``, and compares pairs without a
common feature. Distances are updated where a merge changed them: O(d K^2 n^2) in all.

Where a site has more clusters than there are groups, or where the groups left all hold a common
site, what is left over joins the nearest group all the same. Groups that share no feature are
never merged: more than K may remain.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedclust.methods.common.partial_features import (
    LocalCentroids,
    Merged,
    Ruler,
    components,
    merge,
    normalised,
    ranges,
)
from fedclust.numeric.canonical import TIE_TOLERANCE, tolerant_argmax, tolerant_argmin

__all__ = [
    "Grouping",
    "Meta",
    "agglomerate",
    "chosen",
    "cluster",
    "farthest",
    "method_a",
    "method_b",
]

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
IntArray = NDArray[np.int64]
Meta = Literal["agglomerative", "A", "B", "auto"]

_BLOCK = 1024
#: Merged groups are cleared away when fewer than so many of all are left.
_CROWDED = 0.8
_MAX_ITERATIONS = 300


@dataclass(frozen=True)
class Grouping:
    """Which group each local centroid is in.

    Attributes
    ----------
    groups : (m,) int64
        Numbered from 0 in the order of their first members; every group has one.
    attached : int
        Merges in which a site came to be in a group twice.
    """

    groups: IntArray
    attached: int = 0

    @property
    def n_groups(self) -> int:
        """The number of groups."""
        return int(self.groups.max(initial=-1)) + 1


def chosen(meta: Meta, points: LocalCentroids, n_clusters: int) -> tuple[Meta, str | None]:
    """Return which form of meta-clustering ``meta`` comes to, and for ``auto`` the reason.

    Masks tell whether any two sites can be compared (Assumption 2) or only chains of them
    (Assumption 1); whether the sites' clusters are distributed alike they do not tell.
    """
    if meta != "auto":
        return meta, None
    sites, first, sizes = np.unique(points.sites, return_index=True, return_counts=True)
    masks = points.mask[first]
    known = masks.astype(np.float64)
    if (known @ known.T > 0).all():
        return "B", (
            "meta: auto took B: any two sites share features, so that their clusters may differ "
            "in distribution (Assumption 2)."
        )
    if components(masks).max(initial=0) > 0:
        return "B", (
            "meta: auto took B: the sites' features fall into parts that share none, which is no "
            "case that the paper supports."
        )
    if len(sites) and (sizes == n_clusters).any():
        return "A", (
            "meta: auto took A: some sites share no feature, but chains of sites connect them, and "
            f"a site has {n_clusters} clusters to start from (Assumption 1)."
        )
    return "agglomerative", (
        "meta: auto took agglomerative: some sites share no feature, but chains of sites connect "
        f"them (Assumption 1), and no site has {n_clusters} clusters, which A starts from."
    )


def cluster(
    points: LocalCentroids, n_clusters: int, meta: Meta
) -> tuple[Grouping, tuple[str, ...]]:
    """Group local centroids into ``n_clusters`` groups; also what the analyst should know.

    Where the features fall into parts that share none, each part is grouped by itself.

    Parameters
    ----------
    points : LocalCentroids
        At least one.
    n_clusters : int
    meta : {"agglomerative", "A", "B", "auto"}

    Returns
    -------
    Grouping
        Fewer groups where there are fewer points, more where groups share no feature.
    warnings : tuple of str
    """
    used, reason = chosen(meta, points, n_clusters)
    forms: dict[Meta, Callable[[LocalCentroids, int], Grouping]] = {
        "agglomerative": agglomerate,
        "A": method_a,
        "B": method_b,
    }
    # What shares no feature is never compared: each part of the overlap graph stands alone.
    parts = components(points.mask)
    groups, attached = np.empty(len(points), dtype=np.int64), 0
    for part in range(int(parts.max(initial=-1)) + 1):
        inside = np.flatnonzero(parts == part)
        own = forms[used](points.of(inside), n_clusters)
        groups[inside] = own.groups + groups.max(initial=-1, where=parts < part) + 1
        attached += own.attached
    grouping = Grouping(_renumbered(groups), attached)
    warnings = [] if reason is None else [reason]
    if used == "A" and not (np.bincount(points.sites) == n_clusters).any():
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
    if grouping.n_groups > n_clusters:
        warnings.append(
            f"{grouping.n_groups} groups remain where {n_clusters} clusters were asked for: they "
            "share no feature, so nothing tells which of them are one."
        )
    return grouping, tuple(warnings)


# --- agglomerative --------------------------------------------------------------------------------


def agglomerate(points: LocalCentroids, n_clusters: int) -> Grouping:
    """Merge the nearest two groups until ``n_clusters`` are left; no site twice, if that can be.

    Ties go to the lowest pair. Distances are those of merged centroids (centroid linkage).
    """
    pool = _Pool(points, ranges(points.values, points.mask))
    while pool.n_groups > n_clusters and pool.merge_nearest():
        pass
    attached = 0
    if pool.n_groups > n_clusters:
        pool.allow_all()
        while pool.n_groups > n_clusters and pool.merge_nearest():
            attached += 1
    return Grouping(_renumbered(pool.groups), attached)


class _Pool:
    """Groups with the distances between them, and the nearest of each: what a merge changes.

    A merge computes one row of distances, and looks anew for the nearest of those groups that had
    lost theirs. Distances are kept in single precision, which is about relative rounding of each:
    they are computed in double.
    """

    def __init__(self, points: LocalCentroids, widths: FloatArray) -> None:
        merged = points.merged()
        _, sites = np.unique(points.sites, return_inverse=True)
        sites = sites.reshape(-1)
        m = len(points)
        # Above 0 everywhere, so that what is shared has some width, even if all values are equal.
        self._widest = np.maximum(widths**2, np.finfo(np.float64).tiny)
        self._sums, self._counts = merged.sums, merged.counts
        self._members = [[i] for i in range(m)]
        self._sites = np.zeros((m, int(sites.max(initial=-1)) + 1), dtype=np.bool_)
        self._sites[np.arange(m), sites] = True
        self._separate = True
        self._origin = merged.means.sum(axis=0) / np.maximum(merged.mask.sum(axis=0), 1)
        known = merged.mask.astype(np.float64)
        values = (merged.means - self._origin) * known
        # Side by side: one pass over them measures a group from all others.
        self._parts = np.concatenate([values**2, values, known], axis=1)
        self._open = np.ones(m, dtype=np.bool_)
        self._measure()

    @property
    def n_groups(self) -> int:
        """How many groups are left."""
        return int(self._open.sum())

    @property
    def groups(self) -> IntArray:
        """Some number (m,) of each point's group."""
        groups = np.empty(sum(len(members) for members in self._members), dtype=np.int64)
        for number, members in enumerate(self._members):
            groups[members] = number
        return groups

    def allow_all(self) -> None:
        """From now on a site may be in a group twice."""
        self._separate = False
        self._measure()

    def merge_nearest(self) -> bool:
        """Merge the nearest two groups; False where no two may be merged."""
        a = int(self._least.argmin())
        if not np.isfinite(self._least[a]):
            return False
        a, b = sorted((a, int(self._nearest[a])))
        self._sums[a] += self._sums[b]
        self._counts[a] += self._counts[b]
        self._members[a] += self._members[b]
        self._sites[a] |= self._sites[b]
        self._members[b] = []
        self._set(a)
        self._open[b] = False
        self._parts[b] = 0.0
        self._gaps[b, :] = self._gaps[:, b] = np.inf
        self._least[b] = np.inf
        self._refresh(a, b)
        if self.n_groups < _CROWDED * len(self._members):
            self._keep(np.flatnonzero(self._open))
        return True

    def _set(self, i: int) -> None:
        """Take group ``i``'s sums and counts into what distances are computed from."""
        known = self._counts[i] > 0
        mean = np.where(known, self._sums[i] / np.where(known, self._counts[i], 1.0), 0.0)
        values = np.where(known, mean - self._origin, 0.0)
        self._parts[i] = np.concatenate([values**2, values, known])

    def _measure(self) -> None:
        """Measure all pairs of groups."""
        m = len(self._members)
        self._gaps = np.empty((m, m), dtype=np.float32)
        for begin in range(0, m, _BLOCK):
            block = np.arange(begin, min(begin + _BLOCK, m))
            self._gaps[block] = self._row(block)
        _mirror(self._gaps)
        self._gaps[~self._open, :] = self._gaps[:, ~self._open] = np.inf
        self._find_nearest()

    def _find_nearest(self) -> None:
        self._nearest = self._gaps.argmin(axis=1)
        self._least = self._gaps[np.arange(len(self._gaps)), self._nearest]

    def _keep(self, kept: IntArray) -> None:
        """Forget the groups that went into others."""
        self._members = [self._members[i] for i in kept]
        for name in ("_sums", "_counts", "_sites", "_parts", "_open"):
            setattr(self, name, getattr(self, name)[kept])
        self._gaps = np.ascontiguousarray(self._gaps[np.ix_(kept, kept)])
        self._find_nearest()

    def _row(self, i: IntArray) -> FloatArray:
        """Return the squared distances (b, m) of groups ``i`` from all; infinite if forbidden."""
        squares, values, known = np.split(self._parts[i], 3, axis=1)
        weights = np.concatenate([known, -2.0 * values, squares], axis=1)
        product = np.maximum((self._parts @ weights.T).T, 0.0)
        d = len(self._widest)
        shared = (self._parts[:, 2 * d :] @ (known * self._widest).T).T
        gaps = normalised(product, shared, shared)
        if self._separate:
            for row, own in enumerate(self._sites[i]):
                gaps[row, self._sites[:, own].any(axis=1)] = np.inf
        gaps[np.arange(len(i)), i] = np.inf
        return gaps

    def _refresh(self, a: int, b: int) -> None:
        """Measure the merged group ``a`` anew, and find who was nearest to it or to ``b``."""
        row = self._row(np.array([a]))[0].astype(np.float32)
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


def _mirror(square: NDArray[np.float32]) -> None:
    """Copy the upper triangle into the lower one, block by block."""
    for begin in range(0, len(square), _BLOCK):
        end = begin + _BLOCK
        square[end:, begin:end] = square[begin:end, end:].T
        corner = square[begin:end, begin:end]
        lower = np.tril_indices(len(corner), -1)
        corner[lower] = corner.T[lower]


# --- A --------------------------------------------------------------------------------------------


def method_a(points: LocalCentroids, n_clusters: int) -> Grouping:
    """Method A: local centroids join the groups that one site's clusters, or B's seeds, found.

    A centroid that shares no feature with any group waits, for groups learn features from those
    that join them; if none ever does, it stays a group of its own.
    """
    widths = ranges(points.values, points.mask)
    seeds = _site_with(points, n_clusters)
    if seeds is None:
        seeds = farthest(points, n_clusters, widths)
    groups = np.full(len(points), -1, dtype=np.int64)
    groups[seeds] = np.arange(len(seeds))
    queue = _Queue(points, widths, groups)
    while queue.merge_nearest():
        pass
    attached = 0
    queue.allow_all()
    while queue.merge_nearest():
        attached += 1
    return Grouping(_renumbered(_alone(queue.groups)), attached)


class _Queue:
    """Local centroids that wait for a group, with their distances from the groups."""

    def __init__(self, points: LocalCentroids, widths: FloatArray, groups: IntArray) -> None:
        self.groups = groups
        self._points, self._widths = points, widths
        n_groups = int(groups.max()) + 1
        _, sites = np.unique(points.sites, return_inverse=True)
        self._sites = sites.reshape(-1)
        placed = groups >= 0
        self._inside = np.zeros((n_groups, int(self._sites.max()) + 1), dtype=np.bool_)
        self._inside[groups[placed], self._sites[placed]] = True
        self._merged = merge(points, groups, n_groups)
        self._ruler = Ruler(points.values, points.mask)
        self._gaps = np.empty((n_groups, len(points)))
        self._best = np.zeros(n_groups, dtype=np.int64)
        self._separate = True
        self._measure_all()

    def allow_all(self) -> None:
        """From now on a site may be in a group twice."""
        self._separate = False
        self._measure_all()

    def merge_nearest(self) -> bool:
        """Put the nearest waiting centroid into its group; False where none may join any."""
        least = self._gaps[np.arange(len(self._best)), self._best]
        group = int(tolerant_argmin(least))
        if not np.isfinite(least[group]):
            return False
        point = int(self._best[group])
        self.groups[point] = group
        self._inside[group, self._sites[point]] = True
        one = self._points.of(np.array([point])).merged()
        self._merged.sums[group] += one.sums[0]
        self._merged.counts[group] += one.counts[0]
        self._gaps[:, point] = np.inf
        self._measure(group)
        for other in np.flatnonzero(self._best == point):
            self._best[other] = tolerant_argmin(self._gaps[other])
        return True

    def _measure_all(self) -> None:
        for group in range(len(self._gaps)):
            self._measure(group)

    def _measure(self, group: int) -> None:
        """Measure all that wait from a group, and find the nearest."""
        own = slice(group, group + 1)
        merged = Merged(self._merged.sums[own], self._merged.counts[own])
        gaps = self._ruler.squared_distances(merged.means, merged.mask, self._widths)[:, 0]
        gaps[self.groups >= 0] = np.inf
        if self._separate:
            gaps[self._inside[group, self._sites]] = np.inf
        self._gaps[group] = gaps
        self._best[group] = tolerant_argmin(gaps)


def _site_with(points: LocalCentroids, n_clusters: int) -> IntArray | None:
    """Return the points of the first site that has ``n_clusters``, None without one."""
    sites, sizes = np.unique(points.sites, return_counts=True)
    complete = sites[sizes == n_clusters]
    return np.flatnonzero(points.sites == complete[0]) if len(complete) else None


# --- B --------------------------------------------------------------------------------------------


def method_b(points: LocalCentroids, n_clusters: int) -> Grouping:
    """Method B: k-means of the local centroids from those farthest apart.

    A centroid that shares no feature with any group stays a group of its own; a group that loses
    all its members keeps its place until one comes.
    """
    widths = ranges(points.values, points.mask)
    ruler = Ruler(points.values, points.mask)
    seeds = farthest(points, n_clusters, widths)
    means, known = points.values[seeds], points.mask[seeds]
    groups = np.full(len(points), -1, dtype=np.int64)
    for _ in range(_MAX_ITERATIONS):
        gaps = ruler.squared_distances(means, known, widths)
        moved = np.where(np.isfinite(gaps).any(axis=1), tolerant_argmin(gaps), -1)
        if np.array_equal(moved, groups):
            break
        groups = moved.astype(np.int64)
        merged = merge(points, groups, len(seeds))
        filled = merged.mask.any(axis=1)
        means[filled], known[filled] = merged.means[filled], merged.mask[filled]
    return Grouping(_renumbered(_alone(groups)))


def farthest(points: LocalCentroids, n_clusters: int, widths: FloatArray) -> IntArray:
    """Return the points (K',) of largest smallest distance, greedily; pairs that share none skip.

    Fewer than ``n_clusters`` where no other point is apart from all of them.
    """
    n = min(n_clusters, len(points))
    ruler = Ruler(points.values, points.mask)
    seeds = _farthest_pair(points, ruler, widths)[: max(n, 1)]
    smallest = np.full(len(points), np.inf)
    for seed in seeds:
        smallest = np.minimum(smallest, _from(points, ruler, seed, widths))
    while len(seeds) < n:
        # What shares no feature with any seed tells nothing, and comes last.
        apart = np.where(np.isfinite(smallest), smallest, 0.0)
        apart[seeds] = -1.0
        seed = int(tolerant_argmax(apart))
        if apart[seed] <= 0.0:
            blind = np.flatnonzero(~np.isfinite(smallest))
            blind = blind[~np.isin(blind, seeds)]
            if not len(blind):
                break
            seed = int(blind[0])
        seeds.append(seed)
        smallest = np.minimum(smallest, _from(points, ruler, seed, widths))
    return np.array(seeds, dtype=np.int64)


def _farthest_pair(points: LocalCentroids, ruler: Ruler, widths: FloatArray) -> list[int]:
    """Return the two comparable points farthest apart; the first where no two are apart."""
    best, pair = 0.0, [0]
    for begin in range(0, len(points), _BLOCK):
        block = slice(begin, begin + _BLOCK)
        gaps = ruler.squared_distances(points.values[block], points.mask[block], widths)
        gaps = np.where(np.isfinite(gaps), gaps, 0.0)
        place, row = np.unravel_index(int(tolerant_argmax(gaps.reshape(-1))), gaps.shape)
        if gaps[place, row] > best * (1.0 + TIE_TOLERANCE):
            best, pair = float(gaps[place, row]), sorted((int(place), begin + int(row)))
    return pair


def _from(points: LocalCentroids, ruler: Ruler, seed: int, widths: FloatArray) -> FloatArray:
    """Return the squared distances (m,) of all points from one; infinite where none is shared."""
    own = slice(seed, seed + 1)
    return ruler.squared_distances(points.values[own], points.mask[own], widths)[:, 0]


# --- both -----------------------------------------------------------------------------------------


def _alone(groups: IntArray) -> IntArray:
    """Return groups in which every point that has none is one of its own."""
    left = np.flatnonzero(groups < 0)
    groups = groups.copy()
    groups[left] = groups.max(initial=-1) + 1 + np.arange(len(left))
    return groups


def _renumbered(groups: IntArray) -> IntArray:
    """Return groups numbered from 0 in the order of their first members."""
    _, first, inverse = np.unique(groups, return_index=True, return_inverse=True)
    place = np.empty(len(first), dtype=np.int64)
    place[np.argsort(first, kind="stable")] = np.arange(len(first))
    return place[inverse.reshape(-1)]
