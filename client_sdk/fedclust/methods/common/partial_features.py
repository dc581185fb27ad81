"""Means and distances of centroids that know only some of the features.

What it says and cites
    Maritan & Schenato, "Distributed clustering in partially overlapping feature spaces", 2025,
    equations 1 to 4. Every centroid comes with a mask of the features that its site has. Two
    centroids are compared on the features that both have, in units of the widest distance seen
    there (equations 2 and 3). Centroids are merged feature by feature (equations 1 and 4): with
    ``max(1, .)`` in the divisor, where ``min(1, .)`` is printed, and with the counts in the
    numerator as well, or neither would be a mean.

A merged centroid has a count **for each feature**: :class:`Merged` carries sums and counts, so
that the order of merging does not matter. Entries outside a mask are never looked at: they are 0
where arrays need a number.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "LocalCentroids",
    "Merged",
    "Ruler",
    "components",
    "merge",
    "normalised",
    "ranges",
    "squared_distances",
]

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class LocalCentroids:
    """Local centroids, cell by cell.

    Attributes
    ----------
    values : (m, d) float64
        0 outside the mask.
    mask : (m, d) bool
        Which features each of them knows.
    counts : (m,) float64
        Rows behind each; positive.
    sites : (m,) int64
        Whose each of them is: equal numbers, one site.
    """

    values: FloatArray
    mask: BoolArray
    counts: FloatArray
    sites: IntArray

    def __len__(self) -> int:
        return len(self.values)

    def of(self, chosen: IntArray) -> LocalCentroids:
        """Return some of the points, by number."""
        return LocalCentroids(
            self.values[chosen], self.mask[chosen], self.counts[chosen], self.sites[chosen]
        )

    def merged(self) -> Merged:
        """Return every point as a group of its own."""
        counts = np.where(self.mask, self.counts[:, None], 0.0)
        return Merged(np.where(self.mask, self.values, 0.0) * counts, counts)


@dataclass(frozen=True)
class Merged:
    """Groups of centroids: what equation 4 divides, kept apart.

    Attributes
    ----------
    sums : (K, d) float64
        Count times value, added up over the members that know the feature.
    counts : (K, d) float64
        Their counts, added up; 0 where no member knows the feature.
    """

    sums: FloatArray
    counts: FloatArray

    @property
    def mask(self) -> BoolArray:
        """Which features (K, d) some member knows."""
        return self.counts > 0

    @property
    def means(self) -> FloatArray:
        """Equation 4 (K, d): at each feature the mean over the members that know it, else 0."""
        return self.sums / np.where(self.counts > 0, self.counts, 1.0)


def merge(points: LocalCentroids, groups: IntArray, n_groups: int) -> Merged:
    """Merge points into groups (equation 4).

    Parameters
    ----------
    points : LocalCentroids
    groups : (m,) int64
        Group of each point; -1 for none.
    n_groups : int
    """
    alone = points.merged()
    sums = np.zeros((n_groups, points.values.shape[1]))
    counts = np.zeros_like(sums)
    placed = groups >= 0
    np.add.at(sums, groups[placed], alone.sums[placed])
    np.add.at(counts, groups[placed], alone.counts[placed])
    return Merged(sums, counts)


def ranges(values: FloatArray, mask: BoolArray) -> FloatArray:
    """Return the widest difference (d,) of each feature among the entries known (equation 2).

    0 where at most one of ``values`` (m, d) is known.
    """
    highest = np.where(mask, values, -np.inf).max(axis=0, initial=-np.inf)
    lowest = np.where(mask, values, np.inf).min(axis=0, initial=np.inf)
    return np.asarray(np.where(highest > lowest, highest - lowest, 0.0))


def squared_distances(
    a: FloatArray, mask_a: BoolArray, b: FloatArray, mask_b: BoolArray, widths: FloatArray
) -> FloatArray:
    """Return squared distances (m, k) of equation 3 between points that know other features.

    The squares of the differences, added up over the features that both know, by the squares of
    ``widths`` there: a few matrix products.

    Parameters
    ----------
    a, b : (m, d), (k, d) float64
        0 outside their masks.
    mask_a, mask_b : (m, d), (k, d) bool
    widths : (d,) float64
        Of :func:`ranges`.

    Returns
    -------
    (m, k) float64
        Infinite where nothing is shared; 0 where all that is shared has no width.
    """
    return Ruler(a, mask_a).squared_distances(b, mask_b, widths)


class Ruler:
    """LocalCentroids (m, d) to measure others from: what their distances need, computed once.

    LocalCentroids known by one mask share what depends on masks alone.
    """

    def __init__(self, values: FloatArray, mask: BoolArray) -> None:
        # About the mean of what is known: expanded squares would cancel away far from the origin.
        self._origin = np.where(mask, values, 0.0).sum(axis=0) / np.maximum(mask.sum(axis=0), 1)
        self._values = np.where(mask, values - self._origin, 0.0)
        self._squares = self._values**2
        distinct, kind = np.unique(mask, axis=0, return_inverse=True)
        self._masks, self._kind = distinct.astype(np.float64), kind.reshape(-1)

    def squared_distances(self, b: FloatArray, mask: BoolArray, widths: FloatArray) -> FloatArray:
        """Return :func:`squared_distances` (m, k) of the points from others ``b`` (k, d)."""
        known = mask.astype(np.float64)
        values = np.where(mask, b - self._origin, 0.0)
        product = self._values @ (-2.0 * values.T)
        product += self._squares @ known.T
        product += (self._masks @ (values**2).T)[self._kind]
        np.maximum(product, 0.0, out=product)
        widest = (self._masks @ (known * widths**2).T)[self._kind]
        return normalised(product, widest, (self._masks @ known.T)[self._kind])


def normalised(squares: FloatArray, widest: FloatArray, shared: FloatArray) -> FloatArray:
    """Return ``squares`` by ``widest``, infinite where nothing is ``shared``; all of one shape.

    0 where ``widest`` is: all that was ever seen there is equal.
    """
    scaled = np.where(widest > 0, squares / np.where(widest > 0, widest, 1.0), 0.0)
    return np.asarray(np.where(shared > 0, scaled, np.inf))


def components(masks: BoolArray) -> IntArray:
    """Return the part (n,) of the overlap graph that each site belongs to, numbered from 0.

    Two sites are neighbours where their ``masks`` (n, d) share a feature (section 3.3).
    """
    parts = np.full(len(masks), -1, dtype=np.int64)
    number = 0
    for first in range(len(masks)):
        if parts[first] >= 0:
            continue
        inside = np.zeros(len(masks), dtype=np.bool_)
        inside[first] = True
        known = masks[first]
        while True:
            reached = inside | (masks & known).any(axis=1)
            if np.array_equal(reached, inside):
                break
            inside = reached
            known = masks[inside].any(axis=0)
        parts[inside] = number
        number += 1
    return parts
