"""Attractive forces between local clusters, and the tree of merges that they make.

What it says and cites
    Maritan & Schenato, "Distributed clustering in partially overlapping feature spaces", 2025,
    section 5.1. Two points attract each other with one over a power w of their distance on the
    features that both know (equations 2 and 3); two local clusters with the mean over their pairs
    of proxies (equation 10); two groups of clusters with the mean over all pairs of their
    clusters (equation 11). Again and again the two groups of the greatest force are merged.

Where the paper is wrong or silent: the first factor below the line of equation 11 is over
``G[r]``; only pairs of clusters that share a feature count, above the line and below it, for a
force of 0 between the others would keep groups apart whose sites see different things; a distance
below ``FLOOR`` counts as that, or two proxies at one place would outweigh all others.

A force between groups is a mean of the forces between their parts, so a merge never brings
anything closer to a group than the nearer part was, incomparable and forbidden pairs counted as
no force. Two groups that are each other's nearest therefore stay so until they merge, whatever
else is merged before: following nearest neighbours finds the same tree as looking for the greatest
force of all each time, in O(m^2) instead of O(m^3) (Murtagh, "A survey of recent advances in
hierarchical clustering algorithms", 1983).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedclust.methods.common.partial_features import LocalCentroids, Merged, Ruler, merge, ranges
from fedclust.numeric.canonical import TIE_TOLERANCE, tolerant_argmax, tolerant_argsort
from fedclust.schema.options import MAX_FOUND_CLUSTERS

__all__ = ["FLOOR", "Forces", "Tree", "best_cut", "forces", "merge_tree"]

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
IntArray = NDArray[np.int64]

#: Distances, in units of the widest seen, count as at least this. Chosen, not measured: where two
#: sites share one or two features the mean of 1/d^2 is unbounded without it.
FLOOR = 0.01
#: Pairs of proxies measured at once: bounds memory.
_BLOCK = 2_000_000


@dataclass(frozen=True)
class Forces:
    """What equation 11 divides, for m local clusters.

    Attributes
    ----------
    sums : (m, m) float64
        Mean force between the proxies of two clusters (equation 10); 0 where they share nothing.
    pairs : (m, m) int64
        1 for two clusters that share a feature, else 0.
    """

    sums: FloatArray
    pairs: IntArray


def forces(
    proxies: Sequence[FloatArray], masks: Sequence[BoolArray], w: float, floor: float = FLOOR
) -> Forces:
    """Return the forces between all local clusters (equation 10).

    Parameters
    ----------
    proxies : sequence of (K_i, M, d) float64
        Each site's clusters' proxies, 0 in the features that the site has not got.
    masks : sequence of (d,) bool
        Which features each site has.
    w : float
        The power of the distance.
    floor : float
        Smaller distances count as this.
    """
    flat = [cells.reshape(-1, cells.shape[2]) for cells in proxies]
    known = [np.broadcast_to(mask, rows.shape) for mask, rows in zip(masks, flat, strict=True)]
    widths = ranges(np.concatenate(flat), np.concatenate(known))
    ends = np.cumsum([0, *(len(cells) for cells in proxies)])
    sums = np.zeros((ends[-1], ends[-1]))
    pairs = np.zeros(sums.shape, dtype=np.int64)
    for i in range(len(flat)):
        for j in range(i, len(flat)):
            shared = masks[i] & masks[j]
            if not shared.any():
                continue
            found = _mean_force(
                proxies[i][:, :, shared], proxies[j][:, :, shared], widths[shared], w, floor
            )
            if i == j:
                # To the last bit the same from both sides.
                found = np.triu(found, 1) + np.triu(found, 1).T
            rows, columns = slice(ends[i], ends[i + 1]), slice(ends[j], ends[j + 1])
            sums[rows, columns] = found
            sums[columns, rows] = found.T
            pairs[rows, columns] = 1
            pairs[columns, rows] = 1
    np.fill_diagonal(sums, 0.0)
    np.fill_diagonal(pairs, 0)
    return Forces(sums, pairs)


def _mean_force(
    a: FloatArray, b: FloatArray, widths: FloatArray, w: float, floor: float
) -> FloatArray:
    """Return the mean forces (K_i, K_j) between two sites' clusters over what both see."""
    # About the mean: expanded squares would cancel away far from the origin. Where all that is
    # shared has no width, all are at one place.
    origin, widest = a.mean(axis=(0, 1)), float((widths**2).sum())
    unit = np.sqrt(widest) if widest > 0 else 1.0
    a, b = (a - origin) / unit, (b - origin) / unit
    n_b, m_b, _ = b.shape
    others = b.reshape(n_b * m_b, -1)
    # Squares and product in one: |x|^2 * 1 + 1 * |y|^2 - 2 x y.
    norms = np.einsum("ij,ij->i", others, others)
    right = np.vstack([-2.0 * others.T, np.ones(len(others)), norms])
    found = np.empty((len(a), n_b))
    step = max(1, _BLOCK // max(len(others), 1))
    for k, cell in enumerate(a):
        total = np.zeros(n_b)
        for begin in range(0, len(cell), step):
            rows = cell[begin : begin + step]
            norms = np.einsum("ij,ij->i", rows, rows)
            pull = np.column_stack([rows, norms, np.ones(len(rows))]) @ right
            np.maximum(pull, floor**2, out=pull)
            if w == 2:
                np.reciprocal(pull, out=pull)
            else:
                np.power(pull, -w / 2.0, out=pull)
            total += pull.sum(axis=0).reshape(n_b, m_b).sum(axis=1)
        found[k] = total / (len(cell) * m_b)
    return found


# --- the tree of merges ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Tree:
    """Merges, in their order: those of the greatest force first.

    Attributes
    ----------
    n_leaves : int
        Local clusters m.
    merges : (s, 2) int64
        Two leaves of the two groups that are merged.
    forced : int
        How many of the last merges put a site's clusters together that were to be kept apart.
    """

    n_leaves: int
    merges: IntArray
    forced: int = 0

    @property
    def n_roots(self) -> int:
        """Groups that are left when all is merged that shares a feature."""
        return self.n_leaves - len(self.merges)

    def cut(self, n_groups: int) -> IntArray:
        """Return the group (m,) of each leaf when ``n_groups``, or as few as can be, are left.

        Groups are numbered in the order of their first leaves.
        """
        root = np.arange(self.n_leaves)
        for a, b in self.merges[: max(self.n_leaves - n_groups, 0)]:
            keep, gone = sorted((int(root[a]), int(root[b])))
            root[root == gone] = keep
        # The root of a group is its first leaf.
        return np.unique(root, return_inverse=True)[1].reshape(-1).astype(np.int64)


def merge_tree(between: Forces, sites: IntArray | None = None) -> Tree:
    """Merge clusters by the greatest force until nothing is left that can be compared.

    Parameters
    ----------
    between : Forces
    sites : (m,) int64, optional
        Whose each cluster is: groups with a site in common are merged only after all others.
    """
    pool = _Pool(between, sites)
    found = pool.chain()
    order = _by_strength(found)
    forced = []
    if sites is not None:
        pool.allow_all()
        forced = pool.chain()
        order += _by_strength(forced)
    return Tree(
        n_leaves=len(between.sums),
        merges=np.array([pair for pair, _ in order], dtype=np.int64).reshape(-1, 2),
        forced=len(forced),
    )


_Merge = tuple[tuple[int, int], float]


def _by_strength(merges: list[_Merge]) -> list[_Merge]:
    return [merges[place] for place in tolerant_argsort([-strength for _, strength in merges])]


class _Pool:
    """Groups and the forces between them; a group has the number of its first leaf."""

    def __init__(self, between: Forces, sites: IntArray | None) -> None:
        self._sums, self._pairs = between.sums.copy(), between.pairs.copy()
        self._open = np.ones(len(self._sums), dtype=np.bool_)
        self._strength = np.full(len(self._sums), np.inf)
        self._inside: BoolArray | None = None
        if sites is not None:
            numbers = np.unique(sites, return_inverse=True)[1].reshape(-1)
            self._inside = numbers[:, None] == np.arange(int(numbers.max(initial=-1)) + 1)

    def allow_all(self) -> None:
        """From now on groups with a site in common may merge."""
        self._inside = None
        self._strength[:] = np.inf

    def chain(self) -> list[_Merge]:
        """Merge whatever is each other's nearest, until no two groups may be merged."""
        merges: list[_Merge] = []
        path: list[int] = []
        waiting = self._open.copy()
        while path or waiting.any():
            if not path:
                path.append(int(waiting.argmax()))
            last = path[-1]
            if not self._open[last]:  # Rounding led the chain through it twice.
                path.pop()
                continue
            row = self._row(last)
            nearest = int(tolerant_argmax(row))
            if len(path) > 1 and row[path[-2]] >= row[nearest] * (1.0 - TIE_TOLERANCE):
                nearest = path[-2]  # Ties go back, or the chain could run in a circle.
            if not row[nearest] > 0:
                waiting[last] = False
                path.pop()
            elif len(path) > 1 and nearest == path[-2]:
                del path[-2:]
                kept, gone = sorted((last, nearest))
                merges.append(((kept, gone), self._merge(kept, gone, float(row[nearest]))))
                waiting[gone] = False
            else:
                path.append(nearest)
        return merges

    def _row(self, group: int) -> FloatArray:
        """Return the forces (m,) of a group; 0 where it may not be merged."""
        pairs = self._pairs[group]
        row = np.where(pairs > 0, self._sums[group] / np.maximum(pairs, 1), 0.0)
        row[~self._open] = 0.0
        row[group] = 0.0
        if self._inside is not None:
            row[self._inside[:, self._inside[group]].any(axis=1)] = 0.0
        return row

    def _merge(self, kept: int, gone: int, strength: float) -> float:
        for array in (self._sums, self._pairs):
            array[kept] += array[gone]
            array[:, kept] += array[:, gone]
        self._open[gone] = False
        if self._inside is not None:
            self._inside[kept] |= self._inside[gone]
        # No merge is stronger than what it merges, but for rounding.
        strength = min(strength, float(self._strength[kept]), float(self._strength[gone]))
        self._strength[kept] = strength
        return strength


# --- the number of clusters -----------------------------------------------------------------------


def best_cut(
    tree: Tree, points: LocalCentroids, variances: FloatArray, n_groups: int | None = None
) -> tuple[int, float]:
    """Return the number of groups of the cut with the best simplified silhouette, and that.

    Each local cluster counts with its rows: a is the root of their mean squared distance from its
    own group's merged centroid, b that from the nearest other one (equation 3; means and
    variances give both), and (b - a) / max(a, b) is averaged over all rows, 0 where no other group
    can be compared. Two groups at least, the fewer of equally good ones; one where there is but
    one local cluster.

    Parameters
    ----------
    tree : Tree
    points : LocalCentroids
        The local clusters' means.
    variances : (m, d) float64
        0 outside their masks.
    n_groups : int, optional
        Only the cut into so many, or as few as can be, is looked at.
    """
    if n_groups is None:
        most, fewest = min(tree.n_leaves, MAX_FOUND_CLUSTERS), max(tree.n_roots, 2)
    else:
        most = fewest = int(tree.cut(n_groups).max()) + 1
    groups = tree.cut(most)
    merged = merge(points, groups, most)
    measure = _Spread(points, variances, ranges(points.values, points.mask))
    gaps = measure.to(merged)
    scores = {most: _silhouette(gaps, groups, points.counts)}
    # Groups are numbered by first leaves, and so are the columns: the later one goes.
    for a, b in tree.merges[tree.n_leaves - most :]:
        if most - len(scores) < fewest:
            break
        keep, gone = sorted((int(groups[a]), int(groups[b])))
        groups = np.where(groups == gone, keep, groups)
        merged.sums[keep] += merged.sums[gone]
        merged.counts[keep] += merged.counts[gone]
        one = slice(keep, keep + 1)
        gaps[:, one] = measure.to(Merged(merged.sums[one], merged.counts[one]))
        gaps[:, gone] = np.inf
        scores[most - len(scores)] = _silhouette(gaps, groups, points.counts)
    numbers = sorted(scores)
    best = numbers[int(tolerant_argmax([scores[k] for k in numbers]))]
    return best, scores[best]


class _Spread:
    """Local clusters as a whole, to measure groups' centroids from."""

    def __init__(self, points: LocalCentroids, variances: FloatArray, widths: FloatArray) -> None:
        self._ruler = Ruler(points.values, points.mask)
        self._known = points.mask.astype(np.float64)
        self._variances, self._widths = variances, widths

    def to(self, merged: Merged) -> FloatArray:
        """Return the root mean squared distances (m, k) of the clusters' rows from centroids."""
        squares = self._ruler.squared_distances(merged.means, merged.mask, self._widths)
        known = merged.mask.astype(np.float64)
        widest = self._known @ (known * self._widths**2).T
        spread = self._variances @ known.T
        squares += np.divide(spread, widest, out=np.zeros_like(spread), where=widest > 0)
        return np.asarray(np.sqrt(squares))


def _silhouette(gaps: FloatArray, groups: IntArray, counts: FloatArray) -> float:
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
