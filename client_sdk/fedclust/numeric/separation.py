"""How well clusters are separated, and how few of them each site holds: k-FED's conditions.

Dennis, Li & Smith, "Heterogeneity for the win: one-shot federated clustering", ICML 2021, Section
3. Only where all rows are at hand: in ``simulate``, and in benchmarks.

The paper states its requirements more than once, and not alike. Here the active one is Theorem
3.1's (Definition 3.5 has twice its right-hand side) and the inactive one Corollary 1.1's, whose
lambda_r has the cluster's rows under the root (equation 4 has the smallest device's).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Separation:
    """What decides whether one round is enough.

    Attributes
    ----------
    k : int
        Clusters that hold rows.
    clusters : (k,) int64
        Their numbers.
    k_site : dict of site to int
        Clusters that each site holds rows of, k^(z).
    k_prime : int
        The most of them, k'.
    heterogeneous : bool
        Whether k' is at most the root of k (Definition 3.2).
    m0 : float
        The least m0 with n_r^(z) >= n_r / m0 wherever a site holds rows of a cluster.
    spread : float
        ||A - C||, the spectral norm of the rows about their clusters' means.
    active, inactive : (a, 2), (i, 2) int64
        Pairs of clusters that some site, or no site, holds rows of both of (Definition 3.4).
    active_separation : (a,) float64
        ||mu_r - mu_s|| / (sqrt(m0) (Delta_r + Delta_s)): the c that Theorem 3.1 has for each pair.
        Infinite where nothing is spread.
    inactive_separation : (i,) float64
        ||mu_r - mu_s|| / (sqrt(m0) (lambda_r + lambda_s)); Theorem 3.1 asks for 10.
    bad_rows : dict of site to int
        Rows that miss the proximity condition (Definition 3.1) of their site's own problem.
    rows : dict of site to int
    """

    k: int
    clusters: IntArray
    k_site: dict[str, int]
    k_prime: int
    heterogeneous: bool
    m0: float
    spread: float
    active: IntArray
    inactive: IntArray
    active_separation: FloatArray
    inactive_separation: FloatArray
    bad_rows: dict[str, int]
    rows: dict[str, int]

    @property
    def proximity(self) -> float:
        """Share of all rows that satisfy the proximity condition."""
        return 1.0 - sum(self.bad_rows.values()) / sum(self.rows.values())


def separation(rows: Mapping[str, FloatArray], labels: Mapping[str, IntArray]) -> Separation:
    """Measure a clustering of several sites' rows against the conditions of Theorem 3.1.

    Parameters
    ----------
    rows : mapping of site to (n, d) float64
        Without NaN.
    labels : mapping of site to (n,) int64
        The cluster of each row: a target clustering, or one that was found; -1 leaves a row out.

    Raises
    ------
    ValueError
        Rows and labels do not fit each other, or no row has a cluster.
    """
    if rows.keys() != labels.keys():
        raise ValueError("name the same sites for rows and labels")
    kept: dict[str, tuple[FloatArray, IntArray]] = {}
    for site in sorted(rows):
        X, own = np.asarray(rows[site], dtype=np.float64), np.asarray(labels[site])
        if X.ndim != 2 or own.shape != X.shape[:1]:
            raise ValueError(f"site {site!r}: one label is needed for each row")
        kept[site] = (X[own >= 0], own[own >= 0])
    pooled = np.concatenate([X for X, _ in kept.values()])
    if not len(pooled):
        raise ValueError("no row has a cluster")
    clusters, dense = np.unique(
        np.concatenate([own for _, own in kept.values()]), return_inverse=True
    )
    dense = dense.reshape(-1)
    ends = np.cumsum([len(own) for _, own in kept.values()])[:-1]
    parts = dict(zip(kept, np.split(dense, ends), strict=True))
    k = len(clusters)
    sizes, means = _means(pooled, dense, k)
    spread = float(np.linalg.norm(pooled - means[dense], ord=2))
    held = np.array([np.bincount(own, minlength=k) for own in parts.values()])
    k_site = {site: int((row > 0).sum()) for site, row in zip(kept, held, strict=True)}
    k_prime = max(k_site.values())
    m0 = float((np.broadcast_to(sizes, held.shape)[held > 0] / held[held > 0]).max())
    together = (held > 0).astype(np.int64)
    first, second = np.triu_indices(k, 1)
    met = (together.T @ together)[first, second] > 0
    apart = np.sqrt(((means[first] - means[second]) ** 2).sum(axis=1))
    # ||A - C|| / sqrt(n_r) + ||A - C|| / sqrt(n_s), which both requirements have.
    unit = spread / np.sqrt(sizes[first]) + spread / np.sqrt(sizes[second])
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(unit > 0, apart / (np.sqrt(m0) * unit), np.inf)
    pairs = np.stack([first, second], axis=1).astype(np.int64)
    return Separation(
        k=k,
        clusters=clusters.astype(np.int64),
        k_site=k_site,
        k_prime=k_prime,
        heterogeneous=k_prime**2 <= k,
        m0=m0,
        spread=spread,
        active=clusters[pairs[met]],
        inactive=clusters[pairs[~met]],
        active_separation=ratio[met] / k_prime,
        inactive_separation=ratio[~met] / np.sqrt(k_prime),
        bad_rows={site: _bad_rows(X, parts[site]) for site, (X, _) in kept.items()},
        rows={site: len(X) for site, (X, _) in kept.items()},
    )


def _means(X: FloatArray, labels: IntArray, k: int) -> tuple[IntArray, FloatArray]:
    sizes = np.bincount(labels, minlength=k)
    means = np.zeros((k, X.shape[1]))
    np.add.at(means, labels, X)
    return sizes, means / np.maximum(sizes, 1)[:, None]


def _bad_rows(X: FloatArray, labels: IntArray) -> int:
    """Return how many rows miss the proximity condition among one site's rows (Definition 3.1)."""
    if not len(X):
        return 0
    held, own = np.unique(labels, return_inverse=True)
    own = own.reshape(-1)
    sizes, means = _means(X, own, len(held))
    spread = float(np.linalg.norm(X - means[own], ord=2))
    bad = np.zeros(len(X), dtype=np.bool_)
    for s in range(len(held)):
        mine = own == s
        for r in range(len(held)):
            if r == s:
                continue
            line = means[s] - means[r]
            length = float(np.linalg.norm(line))
            needed = (1.0 / np.sqrt(sizes[r]) + 1.0 / np.sqrt(sizes[s])) * spread
            if length == 0:
                bad |= mine & (needed > 0)
                continue
            # Where the row's projection falls on the line, from mu_r at 0 to mu_s at its length.
            along = (X - means[r]) @ line / length
            bad |= mine & (np.abs(along) - np.abs(along - length) < needed)
    return int(bad.sum())
