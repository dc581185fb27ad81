"""Local clusters as Gaussians: what may be sent of them, and points drawn from them.

What it says and cites
    Maritan & Schenato, "Distributed clustering in partially overlapping feature spaces", 2025,
    section 5.2: a site fits a Gaussian on each of its clusters by maximum likelihood, that is,
    mean and second central moments by n; the coordinator draws points from it ("proxies").

Second moments tell more than means. Two rows are known by their mean and variance, feature by
feature; so a cluster is told of only where it stands for three persons at least. A full
covariance of few rows spans them: it is sent of clusters with at least five rows for each feature
only (ALGORITHMS, "Disclosure control", rule 5). A covariance with a yes/no feature tells what the
others are among those who answer yes: where those, or the others, are fewer than p persons, or
where fewer than p persons have both values, the feature is sent as if it hung together with none.
So is a value that many share. Where all of a cell but fewer than p persons have it, mean and
variance would tell what the others have: the variance is sent as 0.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedclust.algorithms.base import Memory, RuleViolation, RunConfig, SiteData
from fedclust.algorithms.columns import blocks_of
from fedclust.algorithms.releasing import Released, index_of
from fedclust.algorithms.spaces import binary_columns
from fedclust.algorithms.spreads import tellable
from fedclust.privacy.checks import check_shape
from fedclust.privacy.counting import PersonIndex

__all__ = [
    "ROWS_PER_FEATURE",
    "SMALLEST",
    "check_covariances",
    "check_spread",
    "covariance",
    "proxies",
    "rows_needed",
    "smallest_cell",
    "without_few",
]

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
IntArray = NDArray[np.int64]

#: Rows for each feature behind a full covariance (rule 5).
ROWS_PER_FEATURE = 5
#: Persons behind a variance: two values follow from their mean and variance.
SMALLEST = 3
#: Relative slack of comparisons of floating-point numbers.
_SLACK = 1e-9
#: Standard deviations below this multiple of |mean| are rounding noise.
_CONSTANT = 1e-12


def smallest_cell(p: int) -> int:
    """Return the least number of persons behind a Gaussian; 1 where ``simulate`` asks for that."""
    return p if p <= 1 else max(p, SMALLEST)


def rows_needed(p: int, n_features: int) -> int:
    """Return the rows behind a full covariance; ``n_features`` are those of the site.

    With p = 1, which ``simulate`` alone takes, nothing is protected: two rows have one.
    """
    return 2 if p <= 1 else max(smallest_cell(p), ROWS_PER_FEATURE * n_features)


# --- at a site ------------------------------------------------------------------------------------


def without_few(
    data: SiteData, released: Released, config: RunConfig, memory: Memory
) -> tuple[Released, Memory]:
    """Return what was released with no spread (M2 of 0) where fewer than p persons make it up.

    Where all but one row of a cell have one value of a feature, count, mean and M2 are equations
    enough for that value and the one's. So where a feature has two values in a cell, or one that p
    persons share, fewer than p others have no M2 of their own, nor has what it would follow from
    (``spreads``). A yes/no feature's M2 follows from its share, which is rounded. Also the memory
    that records what is told.
    """
    moments = released.moments
    told, memory = tellable(data, released.labels, moments.m2, config, memory)
    moments = replace(moments, m2=np.where(told, moments.m2, 0.0))
    return replace(released, moments=moments), memory


def _usual(values: FloatArray, inside: BoolArray) -> BoolArray:
    """Return which rows (n,) have the most frequent of the ``values`` (n,) of those inside."""
    distinct, counts = np.unique(values[inside], return_counts=True)
    return np.asarray(values == distinct[counts.argmax()]) if len(distinct) else inside


def covariance(data: SiteData, released: Released, cell: int, config: RunConfig) -> FloatArray:
    """Return the covariance matrix (d_i, d_i) of a released cell, as far as it may be told.

    Over the site's features. The diagonal follows from the released moments; the feature that
    fails with most others is cut off from all, until none fails. What is left of a covariance
    matrix by that is one.
    """
    own = np.flatnonzero(config.mask)
    inside = released.labels == cell
    rows = data.X[np.ix_(inside, own)]
    count = int(released.moments.counts[cell])
    deviations = rows - rows.mean(axis=0)
    found = (deviations.T @ deviations) / count
    found = (found + found.T) / 2.0
    failing = _untellable(data, inside, own, config)
    variances, mean = released.moments.m2[cell, own] / count, released.moments.means[cell, own]
    # A rounded prevalence must not be told by what comes with it; of a constant there is nothing
    # to tell but rounding noise.
    alone = released.rounded[cell, own] | (variances <= _CONSTANT**2 * np.maximum(1.0, mean**2))
    while True:
        fails = (failing & ~alone & ~alone[:, None]).sum(axis=0)
        if not fails.any():
            break
        alone[fails.argmax()] = True
    found[alone, :] = 0.0
    found[:, alone] = 0.0
    np.fill_diagonal(found, variances)
    return np.asarray(found)


def _untellable(data: SiteData, inside: BoolArray, own: IntArray, config: RunConfig) -> BoolArray:
    """Return for which pairs (d_i, d_i) of features a covariance would tell of too few persons."""
    failing = np.zeros((len(own), len(own)), dtype=np.bool_)
    binary = binary_columns(config.columns)[own]
    index, rows = index_of(data), data.X[:, own]
    seen = np.ones(rows.shape, dtype=np.bool_) if data.observed is None else data.observed[:, own]
    yes = rows * config.space.scale[own] + config.space.center[own] > 0.5
    # The sets of rows that a feature tells apart: those with a value; yes and no; a value that
    # many share, and the others.
    sides = []
    for j in range(len(own)):
        known = inside & seen[:, j]
        apart = yes[:, j] if binary[j] else _usual(rows[:, j], known)
        two = binary[j] or int((known & apart).sum()) >= config.p
        sides.append([known & apart, known & ~apart] if two else [known])
    for j in range(len(own)):
        for k in range(j):
            if not _all_reach(sides[j], sides[k], index, config.p):
                failing[j, k] = failing[k, j] = True
    # The covariances of a feature with all levels of another add up to 0.
    columns = [config.columns[j] for j in own]
    for block in blocks_of(columns):
        failing[block] = np.asarray(failing[block].any(axis=0))
        failing[:, block] = np.asarray(failing[:, block].any(axis=1))[:, None]
    for block in blocks_of(columns):
        failing[np.ix_(block, block)] = False
    return failing


def _all_reach(these: list[BoolArray], those: list[BoolArray], index: PersonIndex, p: int) -> bool:
    return all(index.allows(a & b, p) for a in these for b in those)


# --- checks, at either end ------------------------------------------------------------------------


def check_spread(
    counts: IntArray, means: FloatArray, m2: FloatArray, lower: FloatArray, upper: FloatArray
) -> None:
    """Raise unless sums of squares (K, d) are none below 0 and within the bounds' widest.

    Values within bounds have a variance of at most (upper - mean)(mean - lower).
    """
    with np.errstate(invalid="ignore", over="ignore"):
        n = counts[:, None].astype(np.float64)
        widest = n * np.maximum((upper - means) * (means - lower), 0.0)
        widest = widest + _SLACK * np.maximum(1.0, n * (upper - lower) ** 2)
    widest = np.where(np.isfinite(widest), widest, np.inf)
    wrong = np.argwhere(~(m2 >= 0) | ((m2 > widest) & (counts > 0)[:, None]))
    if wrong.size:
        cell, feature = (int(place) for place in wrong[0])
        raise RuleViolation(
            "spread",
            f"cell {cell}: the spread of feature {feature} is negative or wider than its bounds "
            "allow",
            f"/m2/{cell}/{feature}",
        )


def check_covariances(
    covariances: FloatArray, counts: IntArray, m2: FloatArray, config: RunConfig
) -> None:
    """Raise unless the matrices are covariances, of cells large enough, and agree with ``m2``.

    Parameters
    ----------
    covariances : (K, d_i, d_i) float64
        0 for the cells that have none.
    counts : (K,) int64
    m2 : (K, d) float64
    config : RunConfig
    """
    own = np.flatnonzero(config.mask)
    check_shape(covariances, (len(counts), len(own), len(own)), "/covariances")
    needed = rows_needed(config.p, len(own))
    for cell in np.flatnonzero(covariances.any(axis=(1, 2))):
        if counts[cell] < needed:
            raise RuleViolation(
                "covariance-count",
                f"cell {cell}: a full covariance needs at least {needed} rows",
                f"/covariances/{cell}",
            )
        fault = _fault(covariances[cell], m2[cell, own] / counts[cell])
        if fault is not None:
            raise RuleViolation(fault[0], f"cell {cell}: {fault[1]}", f"/covariances/{cell}")


def _fault(matrix: FloatArray, variances: FloatArray) -> tuple[str, str] | None:
    """Return rule and message where a matrix (d_i, d_i) is no covariance of these variances."""
    if not np.array_equal(matrix, matrix.T):
        return "symmetry", "a covariance matrix must be symmetric"
    if not np.allclose(matrix.diagonal(), variances, rtol=_SLACK, atol=0.0):
        return "covariance", "the diagonal of the covariance must be m2 by the count"
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
    m2: FloatArray,
    counts: IntArray,
    own: IntArray,
    n_proxies: int,
    rng: np.random.Generator,
    covariances: FloatArray | None = None,
) -> FloatArray:
    """Return points (K, M, d) drawn from Gaussians, 0 in the features that a site has not got.

    The draws of a cell are moved and stretched to the very means and variances that were sent
    (along the principal axes where the covariance is full), so that chance tells in their shape
    alone. A variance of 0 puts all of them at the mean.

    Parameters
    ----------
    means, m2 : (K, d) float64
    counts : (K,) int64
        Positive.
    own : (d_i,) int64
        The site's features.
    n_proxies : int
        M, at least 2.
    rng : numpy.random.Generator
    covariances : (K, d_i, d_i) float64, optional
        0 for the cells that have none.
    """
    found = np.zeros((len(means), n_proxies, means.shape[1]))
    for cell in range(len(means)):
        drawn = rng.standard_normal((n_proxies, len(own)))
        drawn -= drawn.mean(axis=0)
        drawn /= drawn.std(axis=0)
        if covariances is None or not covariances[cell].any():
            drawn *= np.sqrt(m2[cell, own] / counts[cell])
        else:
            # A covariance of few rows, or a rounded one, has eigenvalues of 0 or just below.
            values, vectors = np.linalg.eigh(covariances[cell])
            # Its symmetric root: whatever signs, or order of equal ones, the vectors came in.
            drawn = drawn @ (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
        found[cell][:, own] = means[cell, own] + drawn
    return found
