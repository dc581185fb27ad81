"""How well clusters are separated, and how few of them each site holds: k-FED's conditions.

Dennis, Li & Smith, "Heterogeneity for the win: one-shot federated clustering", ICML 2021, section
3. This needs all rows in one place.

The paper states its requirements in several versions. Here the active requirement is that of
Theorem 3.1 (Definition 3.5 has twice its right-hand side), and the inactive one that of Corollary
1.1, where lambda_r has the cluster's rows under the root (equation 4: the smallest device's rows).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from _data import FloatArray, IntArray


@dataclass(frozen=True)
class Separation:
    """The quantities of k-FED's conditions for one round to be enough.

    Attributes
    ----------
    k_prime : int
        The most clusters of which one site holds rows, k'.
    m0 : float
        The least m0 with n_r^(z) >= n_r / m0 wherever a site holds rows of a cluster.
    spread : float
        ||A - C||, the spectral norm of the rows about their clusters' means.
    active, inactive : (a, 2), (i, 2) int64
        Pairs of clusters of which some site, or no site, holds rows of both (Definition 3.4).
    active_separation : (a,) float64
        ||mu_r - mu_s|| / (sqrt(m0) (Delta_r + Delta_s)): the c of Theorem 3.1 for each pair.
        Infinite if ``spread`` is 0.
    inactive_separation : (i,) float64
        ||mu_r - mu_s|| / (sqrt(m0) (lambda_r + lambda_s)); Theorem 3.1 requires 10.
    proximity : float
        Share of all rows that satisfy the proximity condition (Definition 3.1) within their site.
    """

    k_prime: int
    m0: float
    spread: float
    active: IntArray
    inactive: IntArray
    active_separation: FloatArray
    inactive_separation: FloatArray
    proximity: float


def separation(rows: Mapping[str, FloatArray], labels: Mapping[str, IntArray]) -> Separation:
    """Measure a clustering of several sites' rows against the conditions of Theorem 3.1.

    Parameters
    ----------
    rows : mapping of site to (n, d) float64
        Without NaN, scaled as the session scales them.
    labels : mapping of site to (n,) int64
        The cluster of each row, of a target or of a result.
    """
    sites = sorted(rows)
    all_rows = np.concatenate([rows[site] for site in sites])
    clusters, dense = np.unique(
        np.concatenate([labels[site] for site in sites]), return_inverse=True
    )
    k = len(clusters)
    sizes, means = _means(all_rows, dense, k)
    spread = float(np.linalg.norm(all_rows - means[dense], ord=2))
    ends = np.cumsum([len(rows[site]) for site in sites])[:-1]
    counts = np.array([np.bincount(own, minlength=k) for own in np.split(dense, ends)])
    held = counts > 0
    k_prime = int(held.sum(axis=1).max())
    m0 = float((np.broadcast_to(sizes, counts.shape)[held] / counts[held]).max())
    pairs = np.stack(np.triu_indices(k, 1), axis=1).astype(np.int64)
    active = np.array([(held[:, r] & held[:, s]).any() for r, s in pairs], dtype=np.bool_)
    ratio = _pair_separation(pairs, sizes, means, spread, m0)
    bad = sum(_count_bad_rows(rows[site], labels[site]) for site in sites)
    return Separation(
        k_prime=k_prime,
        m0=m0,
        spread=spread,
        active=clusters[pairs[active]],
        inactive=clusters[pairs[~active]],
        active_separation=ratio[active] / k_prime,
        inactive_separation=ratio[~active] / np.sqrt(k_prime),
        proximity=1.0 - bad / len(all_rows),
    )


def _pair_separation(
    pairs: IntArray, sizes: IntArray, means: FloatArray, spread: float, m0: float
) -> FloatArray:
    """Return the factor (p,) of both separations of pairs (p, 2): k' is 1 in it."""
    first, second = pairs.T
    gaps = np.sqrt(((means[first] - means[second]) ** 2).sum(axis=1))
    unit = spread / np.sqrt(sizes[first]) + spread / np.sqrt(sizes[second])
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(unit > 0, gaps / (np.sqrt(m0) * unit), np.inf)


def _means(X: FloatArray, labels: IntArray, k: int) -> tuple[IntArray, FloatArray]:
    """Return the sizes (k,) and means (k, d) of the clusters."""
    sizes = np.bincount(labels, minlength=k)
    means = np.zeros((k, X.shape[1]))
    np.add.at(means, labels, X)
    return sizes, means / np.maximum(sizes, 1)[:, None]


def _count_bad_rows(X: FloatArray, labels: IntArray) -> int:
    """Count one site's rows that violate the proximity condition (Definition 3.1)."""
    held, own = np.unique(labels, return_inverse=True)
    own = own.reshape(-1)
    sizes, means = _means(X, own, len(held))
    spread = float(np.linalg.norm(X - means[own], ord=2))
    bad = np.zeros(len(X), dtype=np.bool_)
    for s in range(len(held)):
        members = own == s
        for r in range(len(held)):
            if r == s:
                continue
            line = means[s] - means[r]
            length = float(np.linalg.norm(line))
            required = (1.0 / np.sqrt(sizes[r]) + 1.0 / np.sqrt(sizes[s])) * spread
            if length == 0:
                bad |= members & (required > 0)
                continue
            # The row's projection on the line from mu_r (at 0) to mu_s (at its length).
            along = (X - means[r]) @ line / length
            bad |= members & (np.abs(along) - np.abs(along - length) < required)
    return int(bad.sum())
