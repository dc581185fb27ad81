"""The record that a group releases: one that all of its persons could have."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedclust.protection.columns import NumericColumn

__all__ = ["release_counts", "release_means"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


def release_means(
    column: NumericColumn, values: FloatArray, groups: IntArray, n_groups: int
) -> FloatArray:
    """Return the rounded mean of each group, NaN where a person of the group has no value.

    Parameters
    ----------
    column : NumericColumn
    values : (n,) float64
        Within the fences; NaN where missing.
    groups : (n,) int64
    n_groups : int

    Returns
    -------
    (n_groups,) float64
    """
    sizes = np.bincount(groups, minlength=n_groups)
    # About the origin: sums of numbers on the grid are then exact. A missing value makes its
    # group's sum NaN.
    sums = np.bincount(groups, weights=values - column.origin, minlength=n_groups)
    means = sums / np.maximum(sizes, 1)
    if column.step > 0.0:
        # Nine decimals first: a mean half-way between two steps is rounded the same way everywhere.
        steps = np.rint(np.round(means / column.step, 9))
        means = steps * column.step
    return np.where(sizes > 0, means + column.origin, np.nan)


def release_counts(counts: IntArray, p: int) -> IntArray:
    """Return the counts that groups release for the levels of a column.

    Each is 0 or at least ``p``, and they add up to the group's size. They are the nearest such
    counts in squares. A group of fewer than ``2p`` releases its commonest level alone. Of equal
    choices the one with fewer levels counts, then the one with the earlier levels.

    Parameters
    ----------
    counts : (m, L) int64
        Persons by group and level. A row of zeros stays.
    p : int

    Returns
    -------
    (m, L) int64
    """
    kinds, place = np.unique(counts, axis=0, return_inverse=True)
    return np.stack([_nearest(kind, p) for kind in kinds])[place.ravel()]


def _nearest(counts: IntArray, p: int) -> IntArray:
    total = int(counts.sum())
    order = np.argsort(-counts, kind="stable")
    best = np.zeros_like(counts)
    least = np.inf
    for kept in range(1, min(len(counts), max(total // p, 1)) + 1):
        draft = np.zeros_like(counts)
        chosen = order[:kept]
        draft[chosen] = _fill(counts[chosen], total, p if kept > 1 else 0)
        distance = float(((draft - counts) ** 2).sum())
        if distance < least:
            best, least = draft, distance
    return best


def _fill(counts: IntArray, total: int, p: int) -> IntArray:
    """Return the nearest counts that are at least ``p`` each and add up to ``total``."""
    found = np.maximum(counts, p)
    while found.sum() < total:
        found[int((found - counts).argmin())] += 1
    while found.sum() > total:
        excess = np.where(found > p, found - counts, np.iinfo(np.int64).min)
        found[int(excess.argmax())] -= 1
    return found
