"""How a site of ``kfed`` clusters its own rows: Algorithm 1 as published, and what replaces it.

What it says and cites
    Dennis, Li & Smith, "Heterogeneity for the win: one-shot federated clustering", ICML 2021
    (PMLR 139): :func:`algorithm_1` is the sites' part, whose lines are named here.

:func:`k_means` is the default variant's; :func:`filled` and :func:`without_small` see to it that
its cells may be sent. Pure functions of rows: nothing here knows a session or what was sent before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedclust.algorithms.assigning import first_occurrences, nearest, squared_distances
from fedclust.algorithms.canonical import TIE, eigenbasis, lowest, snapped
from fedclust.algorithms.kmeans import plus_plus_rows, restarts
from fedclust.algorithms.local_cells import local_kmeans
from fedclust.algorithms.rows import ArrayRows, Rows, rows_of, whole
from fedclust.algorithms.tallies import assign, cells_of
from fedclust.privacy.counting import Labels, PersonIndex
from fedclust.privacy.moments import cell_moments

#: Singular values no larger than this part of the largest are rounding.
_RANK = 1e-6
#: The part of a site's rows that may be spoken for; the others choose their cell.
_FILLED = 0.9
_FILLING_STEPS = 30
_MAX_ITERATIONS = 300
_MOST_RESTARTS = 10


def local_restarts(n_rows: int, n_features: int, n_cells: int) -> int:
    """Return the restarts of a site's own k-means: 10, down to 2 at a large site."""
    return min(restarts(n_rows, n_features, n_cells), _MOST_RESTARTS)


def algorithm_1(
    X: NDArray[np.float64], n_cells: int, rng: np.random.Generator, *, project: bool = True
) -> NDArray[np.int64]:
    """Return the cell (n,) of each row (n, d) by Algorithm 1, lines 2 to 4.

    The 10-approximation of line 2 is one k-means++ seeding. Where no row lies within a third
    (line 3), the centre is the mean of the rows nearest to its seed.
    """
    seed = int(rng.integers(2**31))
    if n_cells <= 1:
        return np.zeros(len(X), dtype=np.int64)
    projected = _projected(X, n_cells) if project else X
    seeds = plus_plus_rows(projected, n_cells, seed)
    seeds = seeds[first_occurrences(seeds)]
    squares = squared_distances(projected, seeds)
    closest = lowest(squares)
    ordered = np.partition(squares, 1, axis=1) if len(seeds) > 1 else None
    # Line 3, squared: nine times the nearest is at most the second nearest.
    core = np.full(len(X), True)
    if ordered is not None:
        core = ordered[:, 0] <= ordered[:, 1] / 9.0 + TIE * ordered.max()
    inner = cell_moments(X, np.where(core, closest, -1), len(seeds))
    voronoi = cell_moments(X, closest, len(seeds))
    centres = np.where(inner.counts[:, None] > 0, inner.means, voronoi.means)
    return converged(X, centres[voronoi.counts > 0])


def k_means(
    X: NDArray[np.float64] | Rows,
    n_cells: int,
    n_init: int,
    rng: np.random.Generator,
    n_clusters: int | None = None,
) -> Labels:
    """Return the cell (n,) of each row (n, d) by k-means with restarts, to convergence.

    With ``n_clusters``, K, it runs among the projections on the first :func:`directions`: a cell of
    two or three rows in many dimensions is otherwise found by noise, and mixes clusters. Cells no
    more than these are large, and Lloyd goes on from the best among the rows themselves.
    """
    if n_clusters is None:
        return local_kmeans(X, n_cells, n_init, rng)
    rows = rows_of(X)
    project, values = _singular(rows)
    # Constant columns hold no noise, and would pass for such.
    first = rows.take(np.zeros(1, dtype=np.intp))
    varies = np.zeros(rows.shape[1], dtype=np.bool_)
    for part in rows.map(partial(_run_varies, first)):
        varies |= part
    kept = directions(values, (rows.shape[0], int(varies.sum())), n_clusters)
    if kept is None:
        return local_kmeans(rows, n_cells, n_init, rng)
    labels = local_kmeans(project(kept), n_cells, n_init, rng)
    if n_cells > kept:
        return labels
    moments = cells_of(rows, labels, n_cells)
    return converged(rows, moments.means[moments.counts > 0])


def _run_varies(first: NDArray[np.float64], run: NDArray[np.float64]) -> NDArray[np.bool_]:
    return np.asarray((first != run).any(axis=0))


def directions(values: NDArray[np.float64], shape: tuple[int, ...], n_clusters: int) -> int | None:
    """Return how many singular vectors tell clusters apart, the others being noise.

    Those whose singular value is above the optimal threshold for noise of unknown size (Gavish &
    Donoho, "The optimal hard threshold for singular values is 4/sqrt(3)", 2014, equation 11), and
    never fewer than the root of K, rounded up: the clusters that a heterogeneous site holds
    (Definition 3.2) span as many, whether or not each stands out.

    Parameters
    ----------
    values : (m,) float64
        All singular values of a site's rows, descending.
    shape : tuple of int
        (n, d), of the columns that vary.
    n_clusters : int
        K. Means of K clusters span up to K directions: where there are no more, all are kept.

    Returns
    -------
    int or None
        None: all of them.
    """
    if not values.any():
        return None
    # What is only rounding (constant or repeated columns) is no noise to measure.
    values = values[values > _RANK * values[0]]
    if len(values) <= n_clusters:
        return None
    beta = len(values) / max(shape)
    omega = 0.56 * beta**3 - 0.95 * beta**2 + 1.82 * beta + 1.43
    found = int((values > omega * np.median(values)).sum())
    return max(found, int(np.ceil(np.sqrt(n_clusters))))


def filled(X: NDArray[np.float64], labels: Labels, p: int) -> Labels:
    """Return labels (n,) of k-means with at least ``p`` rows in every cell (Bradley et al., 2000).

    From cells of which some are too small. A few rows stay free to choose: as many cells as there
    are groups of p rows would all have p, whatever the rows say. Each step is an assignment problem
    of rows to p places in every cell, and of the rest to the nearest.
    """
    n_cells = min(len(np.unique(labels)), int(_FILLED * len(X) / p))
    if n_cells < 2:
        return labels
    # Imported here: it takes a while, and few need it.
    from scipy.optimize import linear_sum_assignment

    sizes = np.bincount(labels)
    centres = cell_moments(X, labels, len(sizes)).means
    centres = centres[np.sort(np.argsort(-sizes, kind="stable")[:n_cells])]
    before = None
    for _ in range(_FILLING_STEPS):
        squares = squared_distances(X, centres)
        closest = lowest(squares)
        # What a row in a reserved place costs more than in the cell of its choice.
        extra = snapped(squares - squares.min(axis=1)[:, None])
        free = np.full((len(X), len(X) - n_cells * p), 0.0)
        _, places = linear_sum_assignment(np.hstack([np.repeat(extra, p, axis=1), free]))
        labels = np.where(places < n_cells * p, places // p, closest).astype(np.int64)
        if before is not None and np.array_equal(labels, before):
            break
        before = labels
        centres = cell_moments(X, labels, n_cells).means
    return labels


def without_small(
    X: NDArray[np.float64] | Rows, labels: Labels, index: PersonIndex, p: int
) -> NDArray[Any]:
    """Return labels (n,) in which every cell stands for at least ``p`` persons, if any can.

    One by one, smallest first, a cell that may not be sent gives its rows to the nearest others.
    """
    rows = rows_of(X)
    centres = cells_of(rows, labels, int(labels.max(initial=-1)) + 1).means
    while True:
        counts = np.bincount(labels, minlength=len(centres))
        used = np.flatnonzero(counts)
        small = [k for k in used if not index.reaches(labels == k, p)]
        if not small or len(used) == 1:
            return labels
        smallest = min(small, key=lambda k: counts[k])
        others = used[used != smallest]
        moving = np.flatnonzero(labels == smallest)
        labels = labels.copy()
        labels[moving] = others[nearest(rows.take(moving), centres[others])]


def _projected(X: NDArray[np.float64], n_vectors: int) -> NDArray[np.float64]:
    """Return coordinates (n, m) in the span of the top singular vectors of X, not centred.

    Algorithm 1, line 2. Distances are those of the projections in the original space.
    """
    return X if n_vectors >= min(X.shape) else whole(_singular(ArrayRows(X))[0](n_vectors))


def _singular(rows: Rows) -> tuple[Callable[[int], Rows], NDArray[np.float64]]:
    """Return what projects rows on their first singular vectors, and all values, descending.

    By the smaller of the two matrices of products: rows may be many.
    """
    n, d = rows.shape
    wide = d > n
    if wide:
        X = whole(rows)
        products = X @ X.T
    else:
        products = np.zeros((d, d))
        for part in rows.map(_run_products):
            products += part
    squares, vectors = np.linalg.eigh(products)
    vectors = eigenbasis(squares / max(float(squares[-1]), 1e-300), vectors)
    values = np.sqrt(np.maximum(squares[::-1], 0.0))
    vectors = vectors[:, ::-1]
    if wide:
        return lambda m: ArrayRows(vectors[:, :m] * values[:m]), values
    return lambda m: rows.changed(_Projection(vectors[:, :m]), m), values


def _run_products(run: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(run.T @ run)


@dataclass(frozen=True)
class _Projection:
    """Takes rows (m, d) to their coordinates along some vectors (d, k)."""

    vectors: NDArray[np.float64]

    def __call__(self, run: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(run @ self.vectors)


def converged(X: NDArray[np.float64] | Rows, centres: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return labels (n,) after Lloyd steps until none changes (Algorithm 1, line 4).

    From centres (K, d); one that no row is nearest to stays where it is.
    """
    rows = rows_of(X)
    labels = assign(rows, [centres])[0][0]
    for _ in range(_MAX_ITERATIONS):
        moments = cells_of(rows, labels, len(centres))
        centres = np.where(moments.counts[:, None] > 0, moments.means, centres)
        moved = assign(rows, [centres])[0][0]
        if np.array_equal(moved, labels):
            break
        labels = moved
    return labels.astype(np.int64)
