"""One choice among equals, the same on every processor.

Matrix products and sums end in other digits on other processors. Where the mathematics leaves a
choice, these digits must not make it: one other choice early in a session gives another result.
So values that differ by rounding alone count as equal, the first of them is taken, and the
vectors of an eigenspace are chosen by a rule that does not depend on what the library returned.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]

#: Values this close count as equal, relative to the largest beside them. Rounding makes about
#: 1e-15; a hundredth of what DESIGN promises, 1e-9, is left for what a session adds to that.
TIE_TOLERANCE = 1e-11
#: The same for squared distances to centroids, relative to the squared width of all centroids. A
#: larger limit would take centroids for one that lie a millionth of the width apart.
_NEAREST_TIE = 1e-14
#: Coordinates this close count as equal, relative to the width of all points: they come of whole
#: rounds, and of eigenvectors.
COORDINATE_TOLERANCE = 1e-9
#: Eigenvalues this close, of a matrix of norm 1, count as equal. An eigenvector is known to about
#: 1e-15 over the gap between its eigenvalue and the next.
_SAME_EIGENVALUE = 1e-5


def _size(values: FloatArray) -> FloatArray:
    """Return the largest finite magnitude along the last axis, which is kept."""
    found = np.where(np.isfinite(values), np.abs(values), 0.0)
    return np.asarray(found.max(axis=-1, keepdims=True, initial=0.0))


def tolerant_argmin(values: ArrayLike) -> NDArray[np.intp]:
    """Return the place of the lowest value along the last axis; the first of equal ones."""
    values = np.asarray(values, dtype=np.float64)
    least = values.min(axis=-1, keepdims=True)
    return np.asarray((values <= least + TIE_TOLERANCE * _size(values)).argmax(axis=-1))


def tolerant_argmax(values: ArrayLike) -> NDArray[np.intp]:
    """Return the place of the highest value along the last axis; the first of equal ones."""
    return tolerant_argmin(-np.asarray(values, dtype=np.float64))


def tolerant_ranks(values: FloatArray, within: float) -> NDArray[np.intp]:
    """Return the ranks (n,) of values (n,); no further than ``within`` from the next is equal."""
    order = np.argsort(values, kind="stable")
    found = np.empty(len(values), dtype=np.intp)
    found[order] = np.cumsum(np.diff(values[order], prepend=values[order[:1]]) > within)
    return found


def tolerant_argsort(values: ArrayLike) -> NDArray[np.intp]:
    """Return the order (n,) of values (n,) from the lowest on; equal ones stay as they are."""
    values = np.asarray(values, dtype=np.float64)
    return np.argsort(
        tolerant_ranks(values, TIE_TOLERANCE * float(_size(values)[0])), kind="stable"
    )


def coordinate_tolerance(points: FloatArray) -> float:
    """Return how far apart coordinates of points (n, d) may be and count as equal."""
    if not points.size:
        return 0.0
    width = float(np.ptp(points, axis=0).max())
    return max(COORDINATE_TOLERANCE * width, TIE_TOLERANCE * float(np.abs(points).max()))


def tolerant_lexsort(points: FloatArray) -> NDArray[np.intp]:
    """Return the order (n,) of points (n, d) by their first coordinate, then by the next."""
    within = coordinate_tolerance(points)
    return np.lexsort([tolerant_ranks(column, within) for column in points.T[::-1]])


def round_to_tolerance(values: FloatArray) -> FloatArray:
    """Return values in steps of rounding's size: equal ones become equal to the last bit."""
    step = TIE_TOLERANCE * float(_size(values.reshape(-1))[0])
    return values if step == 0.0 else np.asarray(np.round(values / step) * step)


def break_distance_ties(points: FloatArray) -> FloatArray:
    """Return points (n, d) moved by so little that only ties between distances are decided by it.

    For the library's k-means and neighbours, which leave ties to rounding. Points that differ by
    rounding become equal. Then each goes along a curve through all directions by what it is: equal
    points stay equal, and between others no distances, nor sums of them, are equal by symmetry.
    """
    step = coordinate_tolerance(points)
    if step == 0.0:
        return points
    points = np.round(points / step) * step
    width = max(float(np.ptp(points, axis=0).max()), step)
    factors, square, cube = np.random.default_rng(0).standard_normal((3, points.shape[1]))
    # Column by column: sums of products could differ between equal points in the last digits.
    place = np.zeros((len(points), 1))
    for j, factor in enumerate(factors):
        place[:, 0] += (points[:, j] - points[:, j].min()) * (factor / width)
    return np.asarray(points + step * (place**2 * square + place**3 * cube))


def nearest_tie_offsets(squares: FloatArray) -> FloatArray:
    """Return what makes the first of equally near centroids the nearest, if added to distances.

    Parameters
    ----------
    squares : (K,) float64
        The centroids' squared lengths. What is added (K,) is far above rounding and far below
        what tells centroids apart.
    """
    return np.asarray(_NEAREST_TIE * squares.max(initial=0.0) * np.arange(len(squares)))


def canonical_eigenbasis(
    values: FloatArray, vectors: FloatArray, first: FloatArray | None = None
) -> FloatArray:
    """Return eigenvectors (m, k) with signs, and bases of eigenspaces, chosen by a rule.

    Every space of equal eigenvalues gets the basis that Gram and Schmidt's method makes of fixed
    directions projected into it: whatever basis it came with, it is the same.

    Parameters
    ----------
    values : (k,) float64
        Ascending, of a matrix of norm about 1.
    vectors : (m, k) float64
        Orthonormal. The last eigenspace must be complete; see :func:`eigenspace_is_complete`.
    first : (m,) float64, optional
        An eigenvector of the lowest eigenvalue that is known beforehand.
    """
    m, k = vectors.shape
    directions = np.random.default_rng(0).standard_normal((k, m)).T
    if first is not None:
        directions[:, 0] = first
    found = np.empty_like(vectors)
    spaces = np.cumsum(np.diff(values, prepend=values[:1]) > _SAME_EIGENVALUE)
    for space in range(int(spaces[-1]) + 1):
        own = np.flatnonzero(spaces == space)
        turn, upper = np.linalg.qr(vectors[:, own].T @ directions[:, own])
        found[:, own] = vectors[:, own] @ (turn * np.where(np.diag(upper) < 0, -1.0, 1.0))
    return found


def eigenspace_is_complete(values: FloatArray, k: int) -> bool:
    """Whether ascending ``values`` go on beyond the eigenspace of the ``k``-th."""
    return bool((np.diff(values[k - 1 :]) > _SAME_EIGENVALUE).any())
