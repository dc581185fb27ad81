"""A site's own clustering of its own rows: the first thing that several methods ask for."""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import NDArray

from fedclust.algorithms.assigning import nearest
from fedclust.algorithms.base import Memory, RunConfig, SiteData
from fedclust.algorithms.releasing import CANDIDATE, release
from fedclust.privacy.moments import cell_moments

#: The local cells' partition: the guard's candidate, and its place in a site's memory.
LOCAL = "cells"


def local_kmeans(
    X: NDArray[np.float64], n_clusters: int, n_init: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return the cell (n,) of each row in the site's own k-means; fewer cells where rows repeat."""
    seed = int(rng.integers(2**31))
    if n_clusters <= 1:
        return np.zeros(len(X), dtype=np.int64)
    # Imported here: it takes seconds, and only this step needs it.
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    kmeans = KMeans(n_clusters, n_init=n_init, random_state=seed, algorithm="lloyd")
    with warnings.catch_warnings():
        # Fewer distinct rows than clusters: the surplus cells stay empty, which is what we want.
        warnings.simplefilter("ignore", ConvergenceWarning)
        labels = kmeans.fit(X).labels_
    return np.asarray(labels, dtype=np.int64)


def lay_base(
    centroids: NDArray[np.float64],
    data: SiteData,
    config: RunConfig,
    memory: Memory,
    candidate: str = CANDIDATE,
    known: NDArray[np.bool_] | None = None,
    of: NDArray[np.int64] | None = None,
    n_cells: int | None = None,
) -> Memory:
    """Give the guard, once, a partition to go back to: the site's own cells, each whole.

    Rows that the guard may not let change place in the first step would otherwise take their
    whole cell into the rest. Every sent cell goes to the centroid nearest its mean, so this
    partition says nothing that the cells did not say; it is remembered as if it had been sent.
    ``known`` (K, d): where the centroids are. ``of`` (K,): the cell that each of the ``centroids``
    stands for, of ``n_cells``, where they are prototypes; by default each has its own.
    """
    cells = memory.get(LOCAL)
    if cells is None:
        return memory
    memory = {name: kept for name, kept in memory.items() if name != LOCAL}
    sent = cells >= 0
    if not sent.any():
        return memory
    moments = cell_moments(data.X, cells, int(cells.max()) + 1)
    own = config.mask
    seen = None if known is None else known[:, own]
    of = np.arange(len(centroids)) if of is None else of
    placed = of[nearest(moments.means[:, own], centroids[:, own], seen)]
    whole = np.where(sent, placed[cells], -1)
    return release(data, config, memory, whole, n_cells or len(centroids), candidate)[1]
