"""Rule: counts of outcomes leave a site with discrete Gaussian noise.

The operating system's random numbers make the noise: nothing can seed them. Only this module sees
exact counts of outcomes. The sampler is that of Canonne, Kamath and Steinke
(2020, algorithms 1 to 3). It computes with whole numbers only: the digits of rounded noise
would betray a count.
"""

import secrets
from collections.abc import Callable
from fractions import Fraction
from math import isqrt
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedclust.numeric.array_types import IntArray

#: Returns a uniform whole number from 0 up to, but not including, its argument.
RandBelow: TypeAlias = Callable[[int], int]


def count_outcomes(
    clusters: NDArray[Any],
    cells: NDArray[Any],
    n_clusters: int,
    n_cells: int,
    variance: Fraction,
    *,
    randbelow: RandBelow = secrets.randbelow,
) -> IntArray:
    """Count persons by cluster and cell, and add noise to each count.

    Parameters
    ----------
    clusters : (n,) int
        Each person's cluster, from 0 to ``n_clusters`` - 1; -1 for none.
    cells : (n,) int
        Each person's cell, from 0 to ``n_cells`` - 1.
    n_clusters, n_cells : int
        K and J.
    variance : Fraction
        The parameter sigma^2 of the discrete Gaussian; 0: the counts are exact.
    randbelow : callable
        Only a simulation gives another one than the system's; a test looks for others.

    Returns
    -------
    (K + 1, J) int64
        The last row counts the persons without a cluster.
    """
    rows = np.where(clusters < 0, n_clusters, clusters).astype(np.int64)
    counts = np.zeros((n_clusters + 1, n_cells), dtype=np.int64)
    np.add.at(counts, (rows, cells), 1)
    if variance:
        noise = [_discrete_gaussian(variance, randbelow) for _ in range(counts.size)]
        counts += np.array(noise, dtype=np.int64).reshape(counts.shape)
    return counts


def _discrete_gaussian(variance: Fraction, randbelow: RandBelow) -> int:
    """Draw x with a probability proportional to exp(-x^2 / (2 variance)): algorithm 3."""
    a, b = variance.numerator, variance.denominator
    scale = isqrt(a // b) + 1
    while True:
        found = _discrete_laplace(scale, randbelow)
        # Accept with exp(-(|x| - variance / scale)^2 / (2 variance)).
        off = abs(found) * scale * b - a
        if _is_one(off * off, 2 * a * b * scale * scale, randbelow):
            return found


def _discrete_laplace(scale: int, randbelow: RandBelow) -> int:
    """Draw x with a probability proportional to exp(-|x| / scale): algorithm 2."""
    while True:
        rest = randbelow(scale)
        if not _is_one(rest, scale, randbelow):
            continue
        whole = 0
        while _is_one(1, 1, randbelow):
            whole += 1
        found = rest + scale * whole
        # Zero has no sign: drawn with both, it would be twice as frequent.
        if not randbelow(2):
            return found
        if found:
            return -found


def _is_one(numerator: int, denominator: int, randbelow: RandBelow) -> bool:
    """Return True with probability exp(-numerator / denominator): algorithm 1."""
    while numerator > denominator:
        if not _is_one(1, 1, randbelow):
            return False
        numerator -= denominator
    k = 1
    while randbelow(denominator * k) < numerator:
        k += 1
    return k % 2 == 1
