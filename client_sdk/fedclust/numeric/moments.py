"""Counts, means and sums of squared deviations (M2), merged pairwise.

Chan, Golub & LeVeque, "Updating formulae and a pairwise algorithm for computing sample
variances", 1979. Plain sums of squares are wrong by 7 % at an offset of 1e8.
"""

from typing import NamedTuple

import numpy as np

from fedclust.numeric.array_types import FloatArray


class Moments(NamedTuple):
    """Counts ``n``, means and M2 of the entries of an array; all of the same shape."""

    n: FloatArray
    mean: FloatArray
    m2: FloatArray


def no_moments(shape: tuple[int, ...]) -> Moments:
    """Return the moments of empty sets."""
    return Moments(np.zeros(shape), np.zeros(shape), np.zeros(shape))


def merge_moments(one: Moments, other: Moments) -> Moments:
    """Return the moments of the union of two disjoint sets, entry by entry."""
    n = one.n + other.n
    share = np.divide(other.n, n, out=np.zeros_like(n), where=n > 0)
    step = np.where(other.n > 0, other.mean - one.mean, 0.0)
    return Moments(n, one.mean + step * share, one.m2 + other.m2 + step**2 * one.n * share)
