"""Placing cells of a site that was not there: k-FED's Theorem 3.2, for every centroid method.

Dennis, Li & Smith, "Heterogeneity for the win: one-shot federated clustering", ICML 2021: the
means of a yet unseen device are assigned right by going to the nearest of the k global means, with
k' k distances and nobody else involved. Nothing is kept of what is placed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedclust.algorithms.assigning import nearest, squared_distances
from fedclust.algorithms.base import Feature, Method, Result, RuleViolation, Space
from fedclust.algorithms.columns import columns_of, transformed
from fedclust.algorithms.spaces import own_bounds
from fedclust.privacy.checks import check_means, check_shape


def tells_new(method: Method, result: Result) -> bool:
    """Return whether a result alone tells where rows belong that took no part.

    Not so where clusters are told apart by what only the sites that took part remember.
    """
    rows = Space(result.center, result.scale).to_original(result.centroids[:1])
    if result.mask is not None:
        rows = np.where(result.mask[:1], rows, np.nan)
    alone = result.model_copy(update={"mapping": {}})
    return bool((method.label(alone, rows, None) >= 0).all())


def place(
    result: Result,
    features: Sequence[Feature],
    centroids: NDArray[np.float64],
    counts: NDArray[np.int64],
    p: int,
    names: Sequence[str] | None = None,
) -> NDArray[np.int64]:
    """Return the global cluster (m,) of each cell of a site that took no part.

    Parameters
    ----------
    result : Result
    features : sequence of Feature
        The session's.
    centroids : (m, d) float64
        Means of the site's own cells, in the units that were declared: geometric means of what is
        taken logarithms of, and the share of each level, a column for each.
    counts : (m,) int64
        Rows behind each.
    p : int
        Smallest number of persons that a cell may stand for.
    names : sequence of str, optional
        The features that the columns of ``centroids`` are of, in their order; by default all, in
        the session's. Fewer only where the session lets sites lack features.

    Raises
    ------
    RuleViolation
        Features are named twice, unknown or lacking, or no cluster is known by any; shapes do not
        fit, a count is below ``p`` (0 included), or a mean is not finite or lies
        outside its feature's declared bounds. Names cell and rule, never a value.
    """
    own = _columns(result, features, names)
    every = columns_of(tuple(features))
    columns = [every[j] for j in own]
    check_shape(centroids, (len(centroids), len(columns)), "/centroids")
    centroids = transformed(columns, centroids)
    check_shape(counts, (len(centroids),), "/counts")
    if not len(counts):
        raise RuleViolation("shape", "at least one cell is needed", "/centroids")
    small = np.flatnonzero(counts < p)
    if small.size:
        cell = int(small[0])
        raise RuleViolation(
            "smallest-count",
            f"cell {cell} stands for fewer than {p} rows: leave it out or merge it with another",
            f"/counts/{cell}",
        )
    check_means(counts, centroids, *own_bounds(columns), "/centroids")
    scaled = Space(result.center[own], result.scale[own]).to_scaled(centroids)
    compared = (result.centroids if result.prototypes is None else result.prototypes)[:, own]
    with np.errstate(over="ignore", invalid="ignore"):
        far = ~np.isfinite(squared_distances(scaled, compared)).all(axis=1)
    if far.any():
        cell = int(np.flatnonzero(far)[0])
        raise RuleViolation(
            "bounds", f"the mean of cell {cell} is too large to be compared", f"/centroids/{cell}"
        )
    found = nearest(scaled, compared, None if result.mask is None else result.mask[:, own])
    if result.prototypes is not None:
        found = np.array(result.prototype_labels, dtype=np.int64)[found]
    return found


def _columns(
    result: Result, features: Sequence[Feature], names: Sequence[str] | None
) -> NDArray[np.int64]:
    """Return which columns, by number, those of the named features are."""
    if names is None:
        names = [feature.name for feature in features]
    place: dict[str, list[int]] = {}
    for j, column in enumerate(columns_of(tuple(features))):
        place.setdefault(column.feature, []).append(j)
    named: set[str] = set()
    for number, name in enumerate(names):
        if name not in place or name in named:
            what = "is no feature of the session" if name not in place else "is named twice"
            raise RuleViolation("features", f"feature {number} {what}", f"/features/{number}")
        named.add(name)
    own = np.array([j for name in names for j in place[name]], dtype=np.int64)
    if result.mask is None and len(named) < len(features):
        lacking = next(feature.name for feature in features if feature.name not in named)
        raise RuleViolation(
            "features", f"feature {lacking!r} is lacking: this session needs all", "/features"
        )
    if result.mask is not None and not result.mask[:, own].any():
        raise RuleViolation("features", "no cluster is known by any of these", "/features")
    return own
