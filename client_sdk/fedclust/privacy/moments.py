"""Counts, means and sums of squared deviations of cells, and the rounding of prevalences.

Moments are taken block by block, in row order, and merged pairwise (Chan, Golub & LeVeque 1983,
"Algorithms for computing the sample variance", eq. 2.1), so that rows in memory and rows read
piece by piece give the same bits, and a large common offset costs no digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedclust.privacy.counting import BoolVector, Labels, PersonIndex

__all__ = [
    "BLOCK_ROWS",
    "CellMoments",
    "FeatureMoments",
    "cell_costs",
    "cell_moments",
    "merge_cells",
    "merge_features",
    "round_feature_prevalence",
    "round_prevalence",
    "sides_of",
    "total_moments",
]

FloatArray = NDArray[np.float64]
IntVector = NDArray[np.int64]

#: Rows added up before partial results are merged. Part of the arithmetic: another value gives
#: other last bits.
BLOCK_ROWS: Final = 8_192
#: A share is known up to this.
_WHOLE: Final = 1e-12


@dataclass(frozen=True)
class CellMoments:
    """Moments of K cells: ``counts`` (K,) int64, ``means`` and ``m2`` (K, d); 0 in empty cells."""

    counts: IntVector
    means: FloatArray
    m2: FloatArray

    @property
    def sums(self) -> FloatArray:
        """Sum of the rows of each cell, (K, d)."""
        return self.means * self.counts[:, None]


@dataclass(frozen=True)
class FeatureMoments:
    """Moments of d features over the rows that have them.

    ``counts`` (d,) int64, ``means`` and ``m2`` (d,); 0 where a feature has no rows.
    """

    counts: IntVector
    means: FloatArray
    m2: FloatArray


def cell_moments(X: FloatArray, labels: Labels, n_cells: int) -> CellMoments:
    """Return count, mean and sum of squared deviations of every cell.

    Parameters
    ----------
    X : (n, d) float64
        May be memory-mapped: it is read once, in blocks of ``BLOCK_ROWS``.
    labels : (n,) int
        Cell of each row; -1 leaves a row out.
    n_cells : int

    Returns
    -------
    CellMoments
    """
    n, d = X.shape
    merged = CellMoments(
        np.zeros(n_cells, dtype=np.int64), np.zeros((n_cells, d)), np.zeros((n_cells, d))
    )
    if n_cells == 0:
        return merged
    for start in range(0, n, BLOCK_ROWS):
        block = np.asarray(X[start : start + BLOCK_ROWS], dtype=np.float64)
        part = _block_moments(block, labels[start : start + BLOCK_ROWS], n_cells)
        merged = merge_cells(merged, part)
    return merged


def _block_moments(block: FloatArray, labels: Labels, n_cells: int) -> CellMoments:
    # Row n_cells collects what is left out, so that no row has to be copied away first.
    inside = np.where(labels >= 0, labels, n_cells)
    counts = np.bincount(inside, minlength=n_cells + 1)
    weights = np.zeros((n_cells + 1, block.shape[0]))
    weights[inside, np.arange(block.shape[0])] = 1.0
    divisor = np.maximum(counts, 1).astype(np.float64)[:, None]
    # Twice: the first mean carries the rounding of a large offset, the second pass takes it out
    # of both the mean and the squares (the corrected two-pass formula, ibid. eq. 1.7).
    means = (weights @ block) / divisor
    deviations = block - means[inside]
    residue = weights @ deviations
    np.multiply(deviations, deviations, out=deviations)
    m2 = np.maximum(weights @ deviations - residue**2 / divisor, 0.0)
    means += residue / divisor
    return CellMoments(counts[:n_cells].astype(np.int64), means[:n_cells], m2[:n_cells])


def merge_cells(a: CellMoments, b: CellMoments) -> CellMoments:
    """Return the moments of the union of two disjoint sets of rows, cell by cell."""
    counts, means, m2 = _merge(a.counts[:, None], a.means, a.m2, b.counts[:, None], b.means, b.m2)
    return CellMoments(counts[:, 0], means, m2)


def merge_features(a: FeatureMoments, b: FeatureMoments) -> FeatureMoments:
    """Return the moments of the union of two disjoint sets of rows, feature by feature."""
    return FeatureMoments(*_merge(a.counts, a.means, a.m2, b.counts, b.means, b.m2))


def _merge(
    n_a: IntVector,
    mean_a: FloatArray,
    m2_a: FloatArray,
    n_b: IntVector,
    mean_b: FloatArray,
    m2_b: FloatArray,
) -> tuple[IntVector, FloatArray, FloatArray]:
    n = n_a + n_b
    share = n_b / np.maximum(n, 1)
    gap = mean_b - mean_a
    # Where one side is empty the other's numbers are taken as they are, to the last bit.
    mean = np.where(n_a == 0, mean_b, np.where(n_b == 0, mean_a, mean_a + gap * share))
    apart = gap * gap * (n_a * share)
    m2 = np.where(n_a == 0, m2_b, np.where(n_b == 0, m2_a, m2_a + m2_b + apart))
    return n, mean, m2


def total_moments(X: FloatArray, observed: NDArray[np.bool_] | None = None) -> FeatureMoments:
    """Return count, mean and sum of squared deviations of every feature.

    Parameters
    ----------
    X : (n, d) float64
        May hold anything, NaN included, where ``observed`` is False.
    observed : (n, d) bool, optional
        Values to count. None: all.

    Returns
    -------
    FeatureMoments
    """
    n, d = X.shape
    merged = FeatureMoments(np.zeros(d, dtype=np.int64), np.zeros(d), np.zeros(d))
    for start in range(0, n, BLOCK_ROWS):
        block = np.asarray(X[start : start + BLOCK_ROWS], dtype=np.float64)
        seen = (
            np.ones(block.shape, dtype=np.bool_)
            if observed is None
            else observed[start : start + BLOCK_ROWS]
        )
        counts = seen.sum(axis=0, dtype=np.int64)
        divisor = np.maximum(counts, 1).astype(np.float64)
        means = np.where(seen, block, 0.0).sum(axis=0) / divisor
        deviations = np.where(seen, block - means, 0.0)
        residue = deviations.sum(axis=0)
        m2 = np.maximum((deviations**2).sum(axis=0) - residue**2 / divisor, 0.0)
        part = FeatureMoments(counts, np.where(counts > 0, means + residue / divisor, 0.0), m2)
        merged = merge_features(merged, part)
    return merged


def cell_costs(moments: CellMoments, centroids: FloatArray) -> FloatArray:
    """Return (K,) sums of squared distances of each cell's rows to its centroid.

    From moments only, never from rows: once a prevalence has been rounded, a cost taken from the
    rows would give the exact one back.
    """
    apart = (moments.means - centroids) ** 2
    costs: FloatArray = (moments.m2 + moments.counts[:, None] * apart).sum(axis=1)
    return costs


def round_prevalence(
    moments: CellMoments,
    rounded: NDArray[np.bool_],
    p: int,
    *,
    center: FloatArray,
    scale: FloatArray,
    blocks: Sequence[IntVector] = (),
) -> CellMoments:
    """Return moments in which some binary means are rounded (rule 4; which, says ``shares``).

    A mean is rounded to the nearest multiple of p/n, clipped to [0, 1], in own units, and M2
    becomes n m (1 - m) of the rounded mean m. The shares of a block's levels are rounded together.

    Parameters
    ----------
    moments : CellMoments
    rounded : (K, d) bool
        Which means to round; of a block all or none.
    p : int
    center, scale : (d,) float64
        The scaled space.
    blocks : sequence of (L,) int64
        The columns of each categorical feature's levels.
    """
    means, m2 = moments.means.copy(), moments.m2.copy()
    needed = np.asarray(rounded.any(axis=0))
    for own in (own for own in _together(needed.size, blocks) if needed[own[0]]):
        for cell in np.flatnonzero(rounded[:, own[0]]):
            n = int(moments.counts[cell])
            raw = _rounded(means[cell, own] * scale[own] + center[own], n, p)
            means[cell, own] = (raw - center[own]) / scale[own]
            m2[cell, own] = n * raw * (1.0 - raw) / scale[own] ** 2
    return CellMoments(moments.counts, means, m2)


def round_feature_prevalence(
    moments: FeatureMoments,
    X: FloatArray,
    index: PersonIndex,
    p: int,
    *,
    columns: BoolVector,
    center: FloatArray,
    scale: FloatArray,
    observed: NDArray[np.bool_] | None = None,
    blocks: Sequence[IntVector] = (),
    sides: NDArray[np.bool_] | None = None,
) -> FeatureMoments:
    """Return moments of all rows, their binary means rounded where they rest on too few (rule 4).

    Where one is, no cell of any partition has an exact share: the persons on the side that is too
    small would be left over. For totals and the preparation round. ``X`` may be in own units
    (center 0, scale 1). The shares of a block's levels are exact together or rounded together.
    ``sides`` (2, b, n): who has each of the yes/no ``columns`` and who lacks it, where that is
    known; nothing is then asked of ``X``.
    """
    if sides is None:
        sides = sides_of(X, columns, center, scale, observed)
    place = np.cumsum(columns) - 1
    means, m2 = moments.means.copy(), moments.m2.copy()
    known = columns & (moments.counts > 0)
    for own in (own for own in _together(columns.size, blocks) if known[own[0]]):
        if all(index.allows(side[place[j]], p) for j in own for side in sides):
            continue
        n = int(moments.counts[own[0]])
        raw = _rounded(means[own] * scale[own] + center[own], n, p)
        means[own] = (raw - center[own]) / scale[own]
        m2[own] = n * raw * (1.0 - raw) / scale[own] ** 2
    return FeatureMoments(moments.counts, means, m2)


def sides_of(
    X: FloatArray,
    columns: BoolVector,
    center: FloatArray,
    scale: FloatArray,
    observed: NDArray[np.bool_] | None = None,
) -> NDArray[np.bool_]:
    """Return which rows have each yes/no feature, and which lack it, (2, b, n).

    Parameters
    ----------
    X : (n, d) float64
        Own units = X * scale + center.
    columns : (d,) bool
        Which features are yes/no: b of them.
    center, scale : (d,) float64
    observed : (n, d) bool, optional
        False where a value was imputed or is lacking: such rows are on neither side.
    """
    sides = np.empty((2, int(columns.sum()), X.shape[0]), dtype=np.bool_)
    for place, j in enumerate(np.flatnonzero(columns)):
        positive = X[:, j] * scale[j] + center[j] > 0.5
        seen = True if observed is None else observed[:, j]
        sides[0, place] = positive & seen
        sides[1, place] = ~positive & seen
    return sides


def _together(d: int, blocks: Sequence[IntVector]) -> list[IntVector]:
    """Return the columns, by number, that are rounded together: blocks, and each other one."""
    alone = np.ones(d, dtype=np.bool_)
    for block in blocks:
        alone[block] = False
    return [*np.flatnonzero(alone)[:, None], *blocks]


def _rounded(shares: FloatArray, n: int, p: int) -> FloatArray:
    """Return rounded shares (L,) of n rows: of one feature, or of all levels of a block."""
    if len(shares) == 1:
        return np.clip(np.round(_counts(shares, n) / p) * p / n, 0.0, 1.0)
    return _rounded_levels(shares, n, p)


def _counts(shares: FloatArray, n: int) -> FloatArray:
    """Return of how many of n rows these are the shares.

    A mean's last bits hang on the order in which rows were added up; what lies half way between
    two multiples of p would go either way with them.
    """
    counts, whole = shares * n, np.round(shares * n)
    return np.where(np.abs(counts - whole) <= _WHOLE * n, whole, counts)


def _rounded_levels(shares: FloatArray, n: int, p: int) -> FloatArray:
    """Return rounded shares of levels, in an order (L,): some that could be exact ones.

    Rounding each by itself would tell too much, for they add up to 1: of 24 rows of which 2 and 22
    have the two levels, 0 and 20 are shown for p = 5, and only 2 and 22 fit both. Giving one level
    what is left over would pin the others where each is shown as high as it may be. So not they
    are rounded but how many rows have one of the first j levels, for all j: to the nearest multiple
    of p that leaves 0 or at least p to the others. Whatever is shown, each level then has 0 or at
    least p rows and all add up to n, as in an exact answer; and that answer would be shown so too.
    """
    reached = _counts(np.cumsum(shares[:-1]), n)
    most = max((n // p - 1) * p, 0)
    nearest = np.minimum(np.floor(reached / p + 0.5) * p, most)
    nearest = np.where((reached > most) & (reached - most >= n - reached), n, nearest)
    return np.diff(nearest, prepend=0.0, append=n) / n
