"""How well clusters are separated, and how few of them each site holds: k-FED's conditions.

Dennis, Li & Smith, "Heterogeneity for the win: one-shot federated clustering", ICML 2021, section
3. This needs all rows in one place: only ``simulate`` and the benchmarks have them.

The paper states its requirements in several versions. Here the active requirement is that of
Theorem 3.1 (Definition 3.5 has twice its right-hand side), and the inactive one that of Corollary
1.1, where lambda_r has the cluster's rows under the root (equation 4: the smallest device's rows).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedclust.numeric.array_types import FloatArray, IntArray


@dataclass(frozen=True)
class Separation:
    """The quantities of k-FED's conditions for one round to be enough.

    Attributes
    ----------
    k : int
        Clusters that hold rows.
    clusters : (k,) int64
        Their numbers.
    k_site : dict of site to int
        Clusters that each site holds rows of, k^(z).
    k_prime : int
        The largest k^(z), k'.
    heterogeneous : bool
        Whether k' is at most sqrt(k) (Definition 3.2).
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
    bad_rows : dict of site to int
        Rows that violate the proximity condition (Definition 3.1) within their site.
    rows : dict of site to int
        Rows that have a cluster.
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
        The cluster of each row, of a target or of a result; -1 leaves a row out.

    Raises
    ------
    ValueError
        Rows and labels do not match, or no row has a cluster.

    Examples
    --------
    Each site holds one of two clusters, so the pair is inactive:

    >>> import numpy as np
    >>> rows = {"a": np.array([[0.0], [2.0]]), "b": np.array([[50.0], [52.0]])}
    >>> measured = separation(rows, {"a": np.array([0, 0]), "b": np.array([1, 1])})
    >>> measured.k_prime, measured.heterogeneous, measured.inactive.tolist()
    (1, True, [[0, 1]])
    >>> round(float(measured.inactive_separation[0]), 1), measured.proximity
    (17.7, 1.0)
    """
    labelled = _labelled_rows(rows, labels)
    all_rows, all_labels = map(np.concatenate, zip(*labelled.values(), strict=True))
    if not len(all_rows):
        raise ValueError("no row has a cluster")
    clusters, dense = np.unique(all_labels, return_inverse=True)
    ends = np.cumsum([len(own) for _, own in labelled.values()])[:-1]
    dense_by_site = dict(zip(labelled, np.split(dense, ends), strict=True))
    k = len(clusters)
    sizes, means = _means(all_rows, dense, k)
    spread = float(np.linalg.norm(all_rows - means[dense], ord=2))
    counts = np.array([np.bincount(own, minlength=k) for own in dense_by_site.values()])
    held = counts > 0
    k_site = {site: int(row.sum()) for site, row in zip(labelled, held, strict=True)}
    k_prime = max(k_site.values())
    m0 = float((np.broadcast_to(sizes, counts.shape)[held] / counts[held]).max())
    pairs = np.stack(np.triu_indices(k, 1), axis=1).astype(np.int64)
    active = np.array([(held[:, r] & held[:, s]).any() for r, s in pairs], dtype=np.bool_)
    ratio = _pair_separation(pairs, sizes, means, spread, m0)
    return Separation(
        k=k,
        clusters=clusters.astype(np.int64),
        k_site=k_site,
        k_prime=k_prime,
        heterogeneous=k_prime**2 <= k,
        m0=m0,
        spread=spread,
        active=clusters[pairs[active]],
        inactive=clusters[pairs[~active]],
        active_separation=ratio[active] / k_prime,
        inactive_separation=ratio[~active] / np.sqrt(k_prime),
        bad_rows={site: _count_bad_rows(*own) for site, own in labelled.items()},
        rows={site: len(X) for site, (X, _) in labelled.items()},
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


def _labelled_rows(
    rows: Mapping[str, FloatArray], labels: Mapping[str, IntArray]
) -> dict[str, tuple[FloatArray, IntArray]]:
    """Return each site's rows that have a cluster, with their labels, sorted by site."""
    if rows.keys() != labels.keys():
        raise ValueError("name the same sites for rows and labels")
    labelled: dict[str, tuple[FloatArray, IntArray]] = {}
    for site in sorted(rows):
        X, own = np.asarray(rows[site], dtype=np.float64), np.asarray(labels[site])
        if X.ndim != 2 or own.shape != X.shape[:1]:
            raise ValueError(f"site {site!r}: one label is needed for each row")
        labelled[site] = (X[own >= 0], own[own >= 0])
    return labelled


def _means(X: FloatArray, labels: IntArray, k: int) -> tuple[IntArray, FloatArray]:
    """Return the sizes (k,) and means (k, d) of the clusters."""
    sizes = np.bincount(labels, minlength=k)
    means = np.zeros((k, X.shape[1]))
    np.add.at(means, labels, X)
    return sizes, means / np.maximum(sizes, 1)[:, None]


def _count_bad_rows(X: FloatArray, labels: IntArray) -> int:
    """Count one site's rows that violate the proximity condition (Definition 3.1)."""
    if not len(X):
        return 0
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
