"""Attractive forces between local clusters, and the merge tree that follows from them.

Maritan & Schenato, "Distributed clustering in partially overlapping feature spaces", 2025, section
5.1. The force between two points is 1 / distance^w over the features that both know (equations 2
and 3). Between two local clusters it is the mean over their pairs of proxies (equation 10),
between two groups of clusters the mean over all pairs of their clusters (equation 11). The two
groups of greatest force are merged, repeatedly.

Where the paper is wrong or silent:

- In equation 11 the first factor of the denominator ranges over ``G[r]``.
- Only pairs of clusters that share a feature count, in numerator and denominator. Counting the
  others as a force of 0 would separate groups whose sites have different features.
- A distance below ``MIN_DISTANCE`` counts as that. Otherwise two proxies in the same place would
  outweigh all others.

A force between groups is a mean of forces between their parts, so a merge never brings another
group nearer than the nearer part was; incomparable and forbidden pairs count as no force. Two
groups that are each other's nearest therefore stay so until they merge. Following chains of
nearest neighbours finds the same tree as searching the greatest force each time, in O(m^2) instead
of O(m^3) (Murtagh, "A survey of recent advances in hierarchical clustering algorithms", 1983).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedclust.methods.common.own_features import (
    LocalCentroids,
    MergedCentroids,
    RelativeDistances,
    feature_ranges,
    sum_groups,
)
from fedclust.numeric.array_types import BoolArray, FloatArray, IntArray
from fedclust.numeric.canonical import TIE_TOLERANCE, tolerant_argmax, tolerant_argsort
from fedclust.numeric.ward import cut_merges
from fedclust.schema.run_config import MAX_FOUND_CLUSTERS

#: The least distance, relative to the range. Chosen, not measured: without it the mean of 1 / d^2
#: over one or two shared features is unbounded.
MIN_DISTANCE = 0.01
#: Pairs of proxies measured at a time: bounds memory.
_BLOCK = 2_000_000


@dataclass(frozen=True)
class Forces:
    """Forces between m local clusters: numerator and denominator of equation 11.

    Attributes
    ----------
    sums : (m, m) float64
        The mean force between the proxies of two clusters (equation 10); 0 without a shared
        feature.
    pairs : (m, m) int64
        1 for two clusters that share a feature, else 0.
    """

    sums: FloatArray
    pairs: IntArray


def cluster_forces(proxies: Sequence[FloatArray], masks: Sequence[BoolArray], w: float) -> Forces:
    """Return the forces between all local clusters (equation 10).

    Parameters
    ----------
    proxies : sequence of (K_i, M, d) float64
        The proxies of each site's clusters, 0 in the features that the site lacks.
    masks : sequence of (d,) bool
        The features that each site has.
    w : float
        The power of the distance.
    """
    flat = [cells.reshape(-1, cells.shape[2]) for cells in proxies]
    known = [np.broadcast_to(mask, rows.shape) for mask, rows in zip(masks, flat, strict=True)]
    ranges = feature_ranges(np.concatenate(flat), np.concatenate(known))
    ends = np.cumsum([0, *(len(cells) for cells in proxies)])
    sums = np.zeros((ends[-1], ends[-1]))
    pairs = np.zeros(sums.shape, dtype=np.int64)
    for i in range(len(flat)):
        for j in range(i, len(flat)):
            shared = masks[i] & masks[j]
            if not shared.any():
                continue
            means = _mean_forces(
                proxies[i][:, :, shared], proxies[j][:, :, shared], ranges[shared], w
            )
            if i == j:
                # Symmetric to the last bit.
                means = np.triu(means, 1) + np.triu(means, 1).T
            rows, columns = slice(ends[i], ends[i + 1]), slice(ends[j], ends[j + 1])
            sums[rows, columns] = means
            sums[columns, rows] = means.T
            pairs[rows, columns] = 1
            pairs[columns, rows] = 1
    np.fill_diagonal(sums, 0.0)
    np.fill_diagonal(pairs, 0)
    return Forces(sums, pairs)


def _mean_forces(a: FloatArray, b: FloatArray, ranges: FloatArray, w: float) -> FloatArray:
    """Return the mean forces (K_i, K_j) between two sites' clusters over the shared features."""
    # Relative to the mean: far from the origin expanded squares lose digits. Without any range all
    # points are equal, and the unit does not matter.
    origin, squared_range = a.mean(axis=(0, 1)), float((ranges**2).sum())
    unit = np.sqrt(squared_range) if squared_range > 0 else 1.0
    a, b = (a - origin) / unit, (b - origin) / unit
    n_b, m_b, _ = b.shape
    others = b.reshape(n_b * m_b, -1)
    # One product gives squared distances: |x|^2 * 1 + 1 * |y|^2 - 2 x y.
    norms = np.einsum("ij,ij->i", others, others)
    right = np.vstack([-2.0 * others.T, np.ones(len(others)), norms])
    means = np.empty((len(a), n_b))
    step = max(1, _BLOCK // max(len(others), 1))
    for k, cell in enumerate(a):
        total = np.zeros(n_b)
        for begin in range(0, len(cell), step):
            rows = cell[begin : begin + step]
            norms = np.einsum("ij,ij->i", rows, rows)
            forces = np.column_stack([rows, norms, np.ones(len(rows))]) @ right
            np.maximum(forces, MIN_DISTANCE**2, out=forces)
            if w == 2:
                np.reciprocal(forces, out=forces)
            else:
                np.power(forces, -w / 2.0, out=forces)
            total += forces.sum(axis=0).reshape(n_b, m_b).sum(axis=1)
        means[k] = total / (len(cell) * m_b)
    return means


# --- The merge tree -------------------------------------------------------------------------------


@dataclass(frozen=True)
class MergeTree:
    """Merges of local clusters, those of the greatest force first.

    Attributes
    ----------
    n_leaves : int
        Local clusters m.
    merges : (s, 2) int64
        A leaf of each of the two groups that are merged.
    forced : int
        The number of last merges that join clusters of one site in spite of ``cannot_link``.
    """

    n_leaves: int
    merges: IntArray
    forced: int = 0

    @property
    def n_roots(self) -> int:
        """Groups left after all merges; they share no feature."""
        return self.n_leaves - len(self.merges)

    def cut(self, n_groups: int) -> IntArray:
        """Return the group (m,) of each leaf when ``n_groups`` are left, or ``n_roots`` if more.

        Groups are numbered in the order of their first leaves.
        """
        return cut_merges(self.merges, n_groups, self.n_leaves)


def build_merge_tree(forces: Forces, sites: IntArray | None = None) -> MergeTree:
    """Merge clusters by the greatest force until no two groups share a feature.

    Parameters
    ----------
    forces : Forces
    sites : (m,) int64, optional
        The site of each cluster. Groups with a common site are merged after all others.
    """
    pool = _ForcePool(forces, sites)
    merges, forced = _sort_by_strength(pool.merge_chains()), []
    if sites is not None:
        pool.allow_common_sites()
        forced = _sort_by_strength(pool.merge_chains())
    pairs = [pair for pair, _ in (*merges, *forced)]
    return MergeTree(
        n_leaves=len(forces.sums),
        merges=np.array(pairs, dtype=np.int64).reshape(-1, 2),
        forced=len(forced),
    )


#: The first leaves of two groups, and the force between them.
_Merge = tuple[tuple[int, int], float]


def _sort_by_strength(merges: list[_Merge]) -> list[_Merge]:
    return [merges[place] for place in tolerant_argsort([-strength for _, strength in merges])]


class _ForcePool:
    """Groups and the forces between them; the number of a group is that of its first leaf."""

    def __init__(self, forces: Forces, sites: IntArray | None) -> None:
        self._sums, self._pairs = forces.sums.copy(), forces.pairs.copy()
        self._open = np.ones(len(self._sums), dtype=np.bool_)
        self._strength = np.full(len(self._sums), np.inf)
        self._inside: BoolArray | None = None
        if sites is not None:
            numbers = np.unique(sites, return_inverse=True)[1].reshape(-1)
            self._inside = numbers[:, None] == np.arange(int(numbers.max(initial=-1)) + 1)

    def allow_common_sites(self) -> None:
        """Allow merges of groups that have a site in common."""
        self._inside = None
        self._strength[:] = np.inf

    def merge_chains(self) -> list[_Merge]:
        """Merge groups that are each other's nearest until no two groups may be merged."""
        merges: list[_Merge] = []
        chain: list[int] = []
        waiting = self._open.copy()
        while chain or waiting.any():
            if not chain:
                chain.append(int(waiting.argmax()))
            last = chain[-1]
            if not self._open[last]:  # By rounding the chain passed it twice.
                chain.pop()
                continue
            forces = self._forces(last)
            nearest = int(tolerant_argmax(forces))
            if len(chain) > 1 and forces[chain[-2]] >= forces[nearest] * (1.0 - TIE_TOLERANCE):
                nearest = chain[-2]  # On a tie step back, or the chain could become a cycle.
            if not forces[nearest] > 0:
                waiting[last] = False
                chain.pop()
            elif len(chain) > 1 and nearest == chain[-2]:
                del chain[-2:]
                kept, gone = sorted((last, nearest))
                merges.append(((kept, gone), self._merge(kept, gone, float(forces[nearest]))))
                waiting[gone] = False
            else:
                chain.append(nearest)
        return merges

    def _forces(self, group: int) -> FloatArray:
        """Return the forces (m,) between a group and all others; 0 for forbidden merges."""
        pairs = self._pairs[group]
        forces = np.where(pairs > 0, self._sums[group] / np.maximum(pairs, 1), 0.0)
        forces[~self._open] = 0.0
        forces[group] = 0.0
        if self._inside is not None:
            forces[self._inside[:, self._inside[group]].any(axis=1)] = 0.0
        return forces

    def _merge(self, kept: int, gone: int, strength: float) -> float:
        """Merge group ``gone`` into ``kept``; return the strength of the merge."""
        for array in (self._sums, self._pairs):
            array[kept] += array[gone]
            array[:, kept] += array[:, gone]
        self._open[gone] = False
        if self._inside is not None:
            self._inside[kept] |= self._inside[gone]
        # Without rounding no merge is stronger than those it contains.
        strength = min(strength, float(self._strength[kept]), float(self._strength[gone]))
        self._strength[kept] = strength
        return strength


# --- The number of clusters -----------------------------------------------------------------------


def best_cut(
    tree: MergeTree, points: LocalCentroids, variances: FloatArray, n_groups: int | None = None
) -> tuple[int, float]:
    """Return the number of groups of the cut with the best simplified silhouette, and its score.

    Each local cluster counts with its rows. a is the root of their mean squared distance
    (equation 3) from the merged centroid of their group, b from the nearest other centroid. The
    score is the mean of (b - a) / max(a, b) over all rows, 0 for those without another comparable
    group. Of equally good cuts the one with fewer groups is best; at least two groups, unless
    there is only one local cluster.

    Parameters
    ----------
    tree : MergeTree
    points : LocalCentroids
        The local clusters' means.
    variances : (m, d) float64
        0 outside their masks.
    n_groups : int, optional
        Score only the cut into this many groups.
    """
    if n_groups is None:
        most, fewest = min(tree.n_leaves, MAX_FOUND_CLUSTERS), max(tree.n_roots, 2)
    else:
        most = fewest = int(tree.cut(n_groups).max()) + 1
    groups = tree.cut(most)
    merged = sum_groups(points, groups, most)
    distances = _RowDistances(points, variances)
    gaps = distances.to_groups(merged)
    scores = {most: _silhouette(gaps, groups, points.counts)}
    # Columns have the numbers of the groups at the first cut; a merge removes the later one.
    for a, b in tree.merges[tree.n_leaves - most :]:
        if most - len(scores) < fewest:
            break
        kept, gone = sorted((int(groups[a]), int(groups[b])))
        groups = np.where(groups == gone, kept, groups)
        merged.absorb(kept, merged, gone)
        gaps[:, kept : kept + 1] = distances.to_groups(merged.group(kept))
        gaps[:, gone] = np.inf
        scores[most - len(scores)] = _silhouette(gaps, groups, points.counts)
    numbers = sorted(scores)
    best = numbers[int(tolerant_argmax([scores[k] for k in numbers]))]
    return best, scores[best]


class _RowDistances:
    """Distances from the rows of local clusters to groups' centroids, by means and variances."""

    def __init__(self, points: LocalCentroids, variances: FloatArray) -> None:
        ranges = feature_ranges(points.values, points.mask)
        self._means = RelativeDistances(points.values, points.mask, ranges)
        self._known = points.mask.astype(np.float64)
        self._variances, self._squared_ranges = variances, ranges**2

    def to_groups(self, merged: MergedCentroids) -> FloatArray:
        """Return root mean squared distances (m, k) from the clusters' rows to centroids."""
        squares = self._means.squared_to(merged.means, merged.mask)
        known = merged.mask.astype(np.float64)
        ranges = self._known @ (known * self._squared_ranges).T
        spread = self._variances @ known.T
        squares += np.divide(spread, ranges, out=np.zeros_like(spread), where=ranges > 0)
        return np.asarray(np.sqrt(squares))


def _silhouette(gaps: FloatArray, groups: IntArray, counts: FloatArray) -> float:
    """Return the mean silhouette of rows with distances ``gaps`` (m, k) from the centroids."""
    rows = np.arange(len(gaps))
    own = gaps[rows, groups]
    others = gaps.copy()
    others[rows, groups] = np.inf
    other = others.min(axis=1)
    compared = np.isfinite(other)
    widest = np.maximum(own, np.where(compared, other, 0.0))
    difference = np.where(compared, other, own) - own
    terms = np.divide(difference, widest, out=np.zeros_like(own), where=widest > 0)
    return float(np.average(terms, weights=counts))
