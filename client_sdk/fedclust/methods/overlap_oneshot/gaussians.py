"""Local clusters as Gaussians: what is checked of them, and points drawn from them.

What it says and cites
    Maritan & Schenato, "Distributed clustering in partially overlapping feature spaces", 2025,
    section 5.2: a site fits a Gaussian on each of its clusters by maximum likelihood, that is,
    mean and second central moments by n; the coordinator draws points from it ("proxies").
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedclust.methods.common.cluster_sums import ClusterSums
from fedclust.protection.message_checks import check_shape
from fedclust.schema.errors import RuleViolation
from fedclust.schema.points import Points

__all__ = ["check_covariances", "check_variances", "covariances", "proxies"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

#: Relative slack of comparisons of floating-point numbers.
_SLACK = 1e-9


# --- at a site ------------------------------------------------------------------------------------


def covariances(points: Points, labels: IntArray, found: ClusterSums) -> FloatArray:
    """Return the covariance matrices (K, d_i, d_i) of the cells' points.

    Parameters
    ----------
    points : Points
        In the site's own columns.
    labels : (m,) int64
        The cell of each point.
    found : ClusterSums
    """
    d = points.X.shape[1]
    matrices = np.zeros((len(found.counts), d, d))
    for cell, (count, mean) in enumerate(zip(found.counts, found.means, strict=True)):
        inside = labels == cell
        deviations = points.X[inside] - mean
        matrix = (deviations * points.sizes[inside, None]).T @ deviations / count
        matrices[cell] = (matrix + matrix.T) / 2.0
    return matrices


# --- checks, at either end ------------------------------------------------------------------------


def check_variances(known: IntArray, variances: FloatArray, widest: FloatArray) -> None:
    """Raise unless variances (K, d) are none below 0, nor above ``widest`` (K, d) where known."""
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
    """Raise unless matrices (K, d_i, d_i) are covariances with these variances (K, d_i)."""
    d = variances.shape[1]
    check_shape(matrices, (len(variances), d, d), "/covariances")
    for cell, matrix in enumerate(matrices):
        fault = _fault(matrix, variances[cell])
        if fault is not None:
            raise RuleViolation(fault[0], f"cell {cell}: {fault[1]}", f"/covariances/{cell}")


def _fault(matrix: FloatArray, variances: FloatArray) -> tuple[str, str] | None:
    """Return rule and message where a matrix (d_i, d_i) is no covariance of these variances."""
    if not np.array_equal(matrix, matrix.T):
        return "symmetry", "a covariance matrix must be symmetric"
    if not np.allclose(matrix.diagonal(), variances, rtol=_SLACK, atol=0.0):
        return "covariance", "the diagonal of the covariance must be the variances"
    # In units of each feature's own spread, or one wide feature would hide the others.
    unit = np.sqrt(np.where(variances > 0, variances, 1.0))
    scaled = matrix / unit / unit[:, None]
    bounded = (np.abs(scaled) <= 1.0 + _SLACK).all() and not matrix[variances == 0].any()
    if not (bounded and np.linalg.eigvalsh(scaled)[0] >= -_SLACK * len(variances)):
        return "definite", "a covariance matrix must have no eigenvalue below 0"
    return None


# --- at the coordinator ---------------------------------------------------------------------------


def proxies(
    means: FloatArray,
    variances: FloatArray,
    own: IntArray,
    n_proxies: int,
    rng: np.random.Generator,
    matrices: FloatArray | None = None,
) -> FloatArray:
    """Return points (K, M, d) drawn from Gaussians, 0 in the features that a site has not got.

    The draws of a cell are moved and stretched to exactly the means and variances that were sent
    (along the principal axes where the covariance is full): only their shape is random. A
    variance of 0 puts all of them at the mean.

    Parameters
    ----------
    means, variances : (K, d) float64
    own : (d_i,) int64
        The site's columns.
    n_proxies : int
        M, at least 2.
    rng : numpy.random.Generator
    matrices : (K, d_i, d_i) float64, optional
        Covariances, in place of the variances.
    """
    found = np.zeros((len(means), n_proxies, means.shape[1]))
    for cell in range(len(means)):
        drawn = rng.standard_normal((n_proxies, len(own)))
        drawn -= drawn.mean(axis=0)
        drawn /= drawn.std(axis=0)
        if matrices is None:
            drawn *= np.sqrt(variances[cell, own])
        else:
            # A covariance of few rows has eigenvalues of 0, or just below by rounding.
            values, vectors = np.linalg.eigh(matrices[cell])
            # Its symmetric root: whatever signs, or order of equal ones, the vectors came in.
            drawn = drawn @ (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
        found[cell][:, own] = means[cell, own] + drawn
    return found
