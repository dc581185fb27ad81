"""Tie-breaking that gives the same result on every processor.

Matrix products and sums differ in the last digits between processors. Where values are equal in
exact arithmetic, these digits must not decide: one different choice early in a session changes the
result. The functions here treat values within a tolerance as equal and take the first of them.
Bases of eigenspaces follow a rule that does not depend on what the library returned.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedclust.numeric.array_types import FloatArray

#: Values count as equal if they differ by at most this, relative to the largest magnitude.
#: Rounding errors are about 1e-15; results are promised to 1e-9.
TIE_TOLERANCE = 1e-11
#: Coordinates count as equal if they differ by at most this, relative to the width of all points.
#: Larger than TIE_TOLERANCE: they accumulate the rounding errors of a round or an eigensolver.
COORDINATE_TOLERANCE = 1e-9
#: Eigenvalues of a matrix of norm 1 count as equal if they differ by at most this. An eigenvector
#: is known to about 1e-15 over the gap between its eigenvalue and the next.
_EIGENVALUE_TOLERANCE = 1e-5


def _magnitude(values: FloatArray) -> FloatArray:
    """Return the largest finite magnitude along the last axis, which is kept."""
    magnitudes = np.where(np.isfinite(values), np.abs(values), 0.0)
    return np.asarray(magnitudes.max(axis=-1, keepdims=True, initial=0.0))


def tolerant_argmin(values: ArrayLike) -> NDArray[np.intp]:
    """Return the index of the minimum along the last axis; ties go to the first."""
    values = np.asarray(values, dtype=np.float64)
    minimum = values.min(axis=-1, keepdims=True)
    return np.asarray((values <= minimum + TIE_TOLERANCE * _magnitude(values)).argmax(axis=-1))


def tolerant_argmax(values: ArrayLike) -> NDArray[np.intp]:
    """Return the index of the maximum along the last axis; ties go to the first."""
    return tolerant_argmin(-np.asarray(values, dtype=np.float64))


def tolerant_ranks(values: FloatArray, tolerance: float) -> NDArray[np.intp]:
    """Return the ranks (n,) of values (n,); neighbours within ``tolerance`` share a rank."""
    order = np.argsort(values, kind="stable")
    ranks = np.empty(len(values), dtype=np.intp)
    ranks[order] = np.cumsum(np.diff(values[order], prepend=values[order[:1]]) > tolerance)
    return ranks


def tolerant_argsort(values: ArrayLike) -> NDArray[np.intp]:
    """Return the indices (n,) that sort values (n,) ascending; ties keep their order."""
    values = np.asarray(values, dtype=np.float64)
    tolerance = TIE_TOLERANCE * float(_magnitude(values)[0])
    return np.argsort(tolerant_ranks(values, tolerance), kind="stable")


def coordinate_tolerance(points: FloatArray) -> float:
    """Return the difference up to which coordinates of points (n, d) count as equal."""
    if not points.size:
        return 0.0
    width = float(np.ptp(points, axis=0).max())
    return max(COORDINATE_TOLERANCE * width, TIE_TOLERANCE * float(np.abs(points).max()))


def tolerant_lexsort(points: FloatArray) -> NDArray[np.intp]:
    """Return the indices (n,) that sort points (n, d) by the first coordinate, then the next."""
    tolerance = coordinate_tolerance(points)
    return np.lexsort([tolerant_ranks(column, tolerance) for column in points.T[::-1]])


def round_to_tolerance(values: FloatArray) -> FloatArray:
    """Round values so that those equal within the tolerance become equal to the last bit."""
    step = TIE_TOLERANCE * float(_magnitude(values.reshape(-1))[0])
    return values if step == 0.0 else np.asarray(np.round(values / step) * step)


def break_distance_ties(points: FloatArray) -> FloatArray:
    """Move points (n, d) slightly so that no two distances between them are equal by symmetry.

    For scikit-learn's k-means and neighbours, which let rounding decide ties. Points that differ
    by rounding become equal and stay equal. All points move along one curve, by an amount that
    depends on their coordinates and is about :func:`coordinate_tolerance`.
    """
    step = coordinate_tolerance(points)
    if step == 0.0:
        return points
    points = np.round(points / step) * step
    width = max(float(np.ptp(points, axis=0).max()), step)
    factors, square, cube = np.random.default_rng(0).standard_normal((3, points.shape[1]))
    # Column by column: a matrix product could differ between equal points in the last digits.
    position = np.zeros((len(points), 1))
    for j, factor in enumerate(factors):
        position[:, 0] += (points[:, j] - points[:, j].min()) * (factor / width)
    return np.asarray(points + step * (position**2 * square + position**3 * cube))


def canonical_eigenbasis(
    values: FloatArray, vectors: FloatArray, first: FloatArray | None = None
) -> FloatArray:
    """Return eigenvectors (m, k) whose signs and bases do not depend on the library.

    In each eigenspace the basis is the Gram-Schmidt basis of fixed random directions projected
    into it.

    Parameters
    ----------
    values : (k,) float64
        Ascending eigenvalues of a matrix of norm about 1.
    vectors : (m, k) float64
        Orthonormal. The last eigenspace must be complete; see :func:`eigenspace_is_complete`.
    first : (m,) float64, optional
        A known eigenvector of the lowest eigenvalue.
    """
    m, k = vectors.shape
    directions = np.random.default_rng(0).standard_normal((k, m)).T
    if first is not None:
        directions[:, 0] = first
    basis = np.empty_like(vectors)
    spaces = np.cumsum(np.diff(values, prepend=values[:1]) > _EIGENVALUE_TOLERANCE)
    for space in range(int(spaces[-1]) + 1):
        members = np.flatnonzero(spaces == space)
        rotation, upper = np.linalg.qr(vectors[:, members].T @ directions[:, members])
        signs = np.where(np.diag(upper) < 0, -1.0, 1.0)
        basis[:, members] = vectors[:, members] @ (rotation * signs)
    return basis


def eigenspace_is_complete(values: FloatArray, k: int) -> bool:
    """Return whether ascending eigenvalues continue beyond the eigenspace of the ``k``-th."""
    return bool((np.diff(values[k - 1 :]) > _EIGENVALUE_TOLERANCE).any())
