"""Means of, and distances between, centroids that know different features.

Maritan & Schenato, "Distributed clustering in partially overlapping feature spaces", 2025,
equations 1 to 4. Each local centroid has a mask of the features that its site has. Two centroids
are compared over the features that both know, relative to the range of values there (equations 2
and 3). Centroids are merged feature by feature (equations 1 and 4). The printed formulas contain
two errors: the divisor needs ``max(1, .)`` instead of ``min(1, .)``, and the numerator needs the
counts.

A merged centroid has a count for each feature. :class:`MergedCentroids` keeps sums and counts, so
the order of merging does not matter. Entries outside a mask are 0 and never used.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedclust.numeric.array_types import BoolArray, FloatArray, IntArray


@dataclass(frozen=True)
class LocalCentroids:
    """The local centroids of all sites.

    Attributes
    ----------
    values : (m, d) float64
        0 outside the mask.
    mask : (m, d) bool
        The features that each centroid knows.
    counts : (m,) float64
        Rows behind each; positive.
    sites : (m,) int64
        The number of each centroid's site.
    """

    values: FloatArray
    mask: BoolArray
    counts: FloatArray
    sites: IntArray

    def __len__(self) -> int:
        return len(self.values)

    def select(self, chosen: IntArray) -> LocalCentroids:
        """Return the centroids with indices ``chosen`` (s,)."""
        return LocalCentroids(
            self.values[chosen], self.mask[chosen], self.counts[chosen], self.sites[chosen]
        )

    def as_groups(self) -> MergedCentroids:
        """Return each centroid as a group of its own."""
        counts = np.where(self.mask, self.counts[:, None], 0.0)
        return MergedCentroids(np.where(self.mask, self.values, 0.0) * counts, counts)


@dataclass(frozen=True)
class MergedCentroids:
    """Merged local centroids, one for each group: numerator and denominator of equation 4.

    Attributes
    ----------
    sums : (K, d) float64
        Count times value, summed over the members that know the feature.
    counts : (K, d) float64
        Their counts, summed; 0 if no member knows the feature.
    """

    sums: FloatArray
    counts: FloatArray

    @property
    def mask(self) -> BoolArray:
        """The features (K, d) that some member knows."""
        return self.counts > 0

    @property
    def means(self) -> FloatArray:
        """Equation 4 (K, d): the mean over the members that know the feature; 0 if none does."""
        return self.sums / np.where(self.counts > 0, self.counts, 1.0)

    def group(self, k: int) -> MergedCentroids:
        """Return group ``k`` alone."""
        return MergedCentroids(self.sums[k : k + 1], self.counts[k : k + 1])

    def absorb(self, kept: int, other: MergedCentroids, k: int) -> None:
        """Add group ``k`` of ``other`` to group ``kept``, in place."""
        self.sums[kept] += other.sums[k]
        self.counts[kept] += other.counts[k]


def sum_groups(points: LocalCentroids, groups: IntArray, n_groups: int) -> MergedCentroids:
    """Merge local centroids into groups (equation 4).

    Parameters
    ----------
    points : LocalCentroids
    groups : (m,) int64
        The group of each centroid; -1 for none.
    n_groups : int
    """
    single = points.as_groups()
    sums = np.zeros((n_groups, points.values.shape[1]))
    counts = np.zeros_like(sums)
    placed = groups >= 0
    np.add.at(sums, groups[placed], single.sums[placed])
    np.add.at(counts, groups[placed], single.counts[placed])
    return MergedCentroids(sums, counts)


def feature_ranges(values: FloatArray, mask: BoolArray) -> FloatArray:
    """Return the range (d,) of each feature's known values (m, d) (equation 2); 0 if none."""
    highest = np.where(mask, values, -np.inf).max(axis=0, initial=-np.inf)
    lowest = np.where(mask, values, np.inf).min(axis=0, initial=np.inf)
    return np.asarray(np.where(highest > lowest, highest - lowest, 0.0))


class RelativeDistances:
    """Squared distances from fixed centroids to others (equation 3).

    Precomputes what depends on the fixed centroids; those with equal masks share what depends on
    masks only.

    Parameters
    ----------
    values : (m, d) float64
    mask : (m, d) bool
    ranges : (d,) float64
        Of :func:`feature_ranges`.
    """

    def __init__(self, values: FloatArray, mask: BoolArray, ranges: FloatArray) -> None:
        # Relative to the mean of the known values: far from the origin squares lose digits.
        self._origin = np.where(mask, values, 0.0).sum(axis=0) / np.maximum(mask.sum(axis=0), 1)
        self._values = np.where(mask, values - self._origin, 0.0)
        self._squares = self._values**2
        masks, kind = np.unique(mask, axis=0, return_inverse=True)
        self._masks, self._kind = masks.astype(np.float64), kind.reshape(-1)
        self._squared_ranges = ranges**2

    def squared_to(self, others: FloatArray, mask: BoolArray) -> FloatArray:
        """Return squared distances (m, k) to ``others`` (k, d), known by ``mask`` (k, d).

        The sum of squared differences over the shared features, divided by the sum of squared
        ranges there. Infinite if no feature is shared; 0 if the shared features have no range.
        """
        known = mask.astype(np.float64)
        values = np.where(mask, others - self._origin, 0.0)
        squares = self._values @ (-2.0 * values.T)
        squares += self._squares @ known.T
        squares += (self._masks @ (values**2).T)[self._kind]
        np.maximum(squares, 0.0, out=squares)
        ranges = (self._masks @ (known * self._squared_ranges).T)[self._kind]
        return relative_squares(squares, ranges, (self._masks @ known.T)[self._kind])


def relative_squares(squares: FloatArray, ranges: FloatArray, shared: FloatArray) -> FloatArray:
    """Return ``squares / ranges``, 0 if the range is 0, infinite if nothing is ``shared``."""
    scaled = np.where(ranges > 0, squares / np.where(ranges > 0, ranges, 1.0), 0.0)
    return np.asarray(np.where(shared > 0, scaled, np.inf))


def connected_components(masks: BoolArray) -> IntArray:
    """Return the number (n,), from 0, of each site's component of the overlap graph.

    Two sites are neighbours if their ``masks`` (n, d) share a feature (section 3.3).
    """
    # Imported here: they take a while.
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components as components

    n, d = masks.shape
    # A graph of sites and features: an edge for each feature that a site has.
    sites, features = np.nonzero(masks)
    edges = coo_array((np.ones(len(sites)), (sites, n + features)), shape=(n + d, n + d))
    _, parts = components(edges, directed=False)
    return np.asarray(parts[:n], dtype=np.int64)
