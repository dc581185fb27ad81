"""Local clusters as Gaussians: their moments, checks of these, and points drawn from them.

Maritan & Schenato, "Distributed clustering in partially overlapping feature spaces", 2025, section
5.2. A site fits a Gaussian to each of its clusters by maximum likelihood: the mean and the second
central moments. The coordinator draws points from it, called proxies.
"""

from __future__ import annotations

import numpy as np

from fedclust.methods.common.kmeans_rounds import ClusterSums
from fedclust.numeric.array_types import FloatArray, IntArray
from fedclust.protection.message_checks import check_shape
from fedclust.schema.errors import RuleViolation
from fedclust.schema.points import Points, total_variances

#: Relative slack of comparisons of floating-point numbers.
_SLACK = 1e-9

# --- At a site ------------------------------------------------------------------------------------


def cell_variances(points: Points, labels: IntArray, found: ClusterSums) -> FloatArray:
    """Return the variances (K, d_i) of the cells' persons, between and within groups.

    Parameters
    ----------
    points : Points
        In the site's own columns.
    labels : (m,) int64
        The cell of each point.
    found : ClusterSums
    """
    squares = np.zeros(found.means.shape)
    np.add.at(squares, labels, points.sizes[:, None] * (points.X - found.means[labels]) ** 2)
    between = squares / found.counts[:, None]
    return between + points.within * total_variances(points)


def cell_covariances(points: Points, labels: IntArray, found: ClusterSums) -> FloatArray:
    """Return the covariance matrices (K, d_i, d_i) of the cells' points.

    Parameters are those of :func:`cell_variances`.
    """
    d = points.X.shape[1]
    matrices = np.zeros((len(found.counts), d, d))
    for cell, (count, mean) in enumerate(zip(found.counts, found.means, strict=True)):
        inside = labels == cell
        deviations = points.X[inside] - mean
        matrix = (deviations * points.sizes[inside, None]).T @ deviations / count
        matrices[cell] = (matrix + matrix.T) / 2.0
    return matrices


# --- Checks at either end -------------------------------------------------------------------------


def check_variances(known: IntArray, variances: FloatArray, widest: FloatArray) -> None:
    """Raise RuleViolation if a variance (K, d) is negative, or above ``widest`` where known."""
    wrong = np.argwhere(
        (variances < 0) | ((variances > widest + _SLACK * np.maximum(1.0, widest)) & (known > 0))
    )
    if wrong.size:
        cell, column = (int(place) for place in wrong[0])
        raise RuleViolation(
            "spread",
            f"cell {cell}: the variance of column {column} is negative or wider than its bounds "
            "allow",
            f"/variances/{cell}/{column}",
        )


def check_covariances(matrices: FloatArray, variances: FloatArray) -> None:
    """Raise RuleViolation unless matrices (K, d_i, d_i) are covariances with these variances."""
    d = variances.shape[1]
    check_shape(matrices, (len(variances), d, d), "/covariances")
    for cell, matrix in enumerate(matrices):
        fault = _covariance_fault(matrix, variances[cell])
        if fault is not None:
            raise RuleViolation(fault[0], f"cell {cell}: {fault[1]}", f"/covariances/{cell}")


def _covariance_fault(matrix: FloatArray, variances: FloatArray) -> tuple[str, str] | None:
    """Return rule and message if a matrix (d_i, d_i) is no covariance of these variances."""
    if not np.array_equal(matrix, matrix.T):
        return "symmetry", "a covariance matrix must be symmetric"
    if not np.allclose(matrix.diagonal(), variances, rtol=_SLACK, atol=0.0):
        return "covariance", "the diagonal of the covariance must be the variances"
    # Relative to each feature's deviation, or one wide feature would hide the others.
    unit = np.sqrt(np.where(variances > 0, variances, 1.0))
    scaled = matrix / unit / unit[:, None]
    bounded = (np.abs(scaled) <= 1.0 + _SLACK).all() and not matrix[variances == 0].any()
    if not (bounded and np.linalg.eigvalsh(scaled)[0] >= -_SLACK * len(variances)):
        return "definite", "a covariance matrix must have no eigenvalue below 0"
    return None


# --- At the coordinator ---------------------------------------------------------------------------


def draw_proxies(
    means: FloatArray,
    variances: FloatArray,
    own: IntArray,
    n_proxies: int,
    rng: np.random.Generator,
    matrices: FloatArray | None = None,
) -> FloatArray:
    """Draw points from the Gaussians of a site's cells.

    The points of a cell are shifted and scaled to have exactly the mean and variances sent; with
    covariances they are scaled along the principal axes. Only their shape is random.

    Parameters
    ----------
    means, variances : (K, d) float64
    own : (d_i,) int64
        The site's columns.
    n_proxies : int
        M, at least 2.
    rng : numpy.random.Generator
    matrices : (K, d_i, d_i) float64, optional
        Covariances, instead of the variances.

    Returns
    -------
    (K, M, d) float64
        0 in the other columns.
    """
    points = np.zeros((len(means), n_proxies, means.shape[1]))
    for cell in range(len(means)):
        drawn = rng.standard_normal((n_proxies, len(own)))
        drawn -= drawn.mean(axis=0)
        drawn /= drawn.std(axis=0)
        if matrices is None:
            drawn *= np.sqrt(variances[cell, own])
        else:
            # By rounding the smallest eigenvalues can be slightly negative.
            values, vectors = np.linalg.eigh(matrices[cell])
            # The symmetric root does not depend on the signs or order of the eigenvectors.
            drawn = drawn @ (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
        points[cell][:, own] = means[cell, own] + drawn
    return points
