"""What methods share in which each site clusters by the features that it has."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated

import numpy as np
from pydantic import Field

from fedclust.methods.common.kmeans_rounds import Cells, ClusterSums, local_kmeans, local_restarts
from fedclust.methods.common.partial_features import LocalCentroids, connected_components
from fedclust.numeric.array_types import BoolArray, FloatArray
from fedclust.numeric.canonical import tolerant_argmax
from fedclust.schema.encoding import feature_names
from fedclust.schema.errors import RuleViolation
from fedclust.schema.model import Model
from fedclust.schema.points import Points, total_variances
from fedclust.schema.run_config import RunConfig

#: What means of a feature that only one site has can identify.
SINGLE_SITE_NOTE = (
    " Of a feature that your site alone has, the result shows everybody your own means."
)
_MAX_NAMES = 5


def check_roster(config: RunConfig) -> None:
    """Check that chains of shared features connect all sites, and that every feature has a site.

    Raises
    ------
    RuleViolation
        Names the features that no site has, or the smallest group of sites that shares no feature
        with the others, and what to change.
    """
    masks = np.array([config.masks[site] for site in config.roster], dtype=np.bool_)
    unseen = np.asarray(~masks.any(axis=0))
    if unseen.any():
        raise RuleViolation(
            "overlap",
            f"no site has the features {_feature_list(unseen, config)}: leave them out of the "
            "session, or invite a site that has them",
            "/features",
        )
    parts = connected_components(masks)
    if parts.max(initial=0) > 0:
        smallest = min(np.unique(parts), key=lambda part: int((parts == part).sum()))
        names = ", ".join(np.array(config.roster)[parts == smallest][:_MAX_NAMES])
        raise RuleViolation(
            "overlap",
            f"the sites fall into {int(parts.max()) + 1} groups that share no feature, so their "
            f"clusters cannot be compared; one of them is: {names}. Let them have a feature of "
            "the others, exclude them, or invite a site whose features overlap with both groups'",
            "/features",
        )


class CellsTask(Model, title="OverlapCellsTask"):
    """Cluster your points by the features that you have into at most ``n_clusters`` cells.

    Attributes
    ----------
    n_clusters : int
    search : bool
        Whether to choose the number of cells by the simplified silhouette.
    n_init : int or None
        Restarts; None: the site chooses.
    """

    n_clusters: Annotated[int, Field(ge=1)]
    search: bool
    n_init: Annotated[int, Field(ge=1)] | None


# --- At a site ------------------------------------------------------------------------------------


def select_site_columns(points: Points, config: RunConfig) -> Points:
    """Return the points in the columns that the site has."""
    X = np.ascontiguousarray(points.X[:, config.mask])
    return Points(X, points.sizes, points.within[config.mask])


def expand_to_all_columns(values: FloatArray, config: RunConfig) -> FloatArray:
    """Return values (K, d_i) of the site's columns as (K, d), 0 in the others."""
    expanded = np.zeros((len(values), len(config.columns)))
    expanded[:, config.mask] = values
    return expanded


def local_cells(task: CellsTask, points: Points, rng: np.random.Generator) -> ClusterSums:
    """Cluster a site's points, in its own columns, by k-means (Algorithms 1 and 2, lines 1 to 3).

    With ``task.search`` the number of cells is the one of best simplified silhouette, from 2.
    """
    most = min(task.n_clusters, len(points.X))
    n_init = task.n_init or local_restarts(len(points.X), points.X.shape[1], most)
    if not task.search or most <= 2:
        return local_kmeans(points, most, n_init, rng)
    found = [local_kmeans(points, k, n_init, rng) for k in range(2, most + 1)]
    scores = [simplified_silhouette(points, cells.means) for cells in found]
    return found[int(tolerant_argmax(scores))]


def simplified_silhouette(points: Points, means: FloatArray) -> float:
    """Return the mean over persons of (b - a) / max(a, b); 0 with one of the ``means`` (K, d).

    a and b are the root mean squared distances of a point's persons from the nearest and from the
    second nearest mean. They include the variance within groups: without it, points that are means
    of groups would pass for clusters.
    """
    if len(means) < 2:
        return 0.0
    within = float((points.within * total_variances(points)).sum())
    squares = np.column_stack([((points.X - mean) ** 2).sum(axis=1) for mean in means])
    nearest_two = np.sqrt(np.partition(squares, 1, axis=1)[:, :2] + within)
    a, b = nearest_two.T
    terms = np.divide(b - a, b, out=np.zeros_like(b), where=b > 0)
    return float(np.average(terms, weights=points.sizes))


# --- At the coordinator ---------------------------------------------------------------------------


def collect_centroids(sent: Mapping[str, Cells], config: RunConfig) -> LocalCentroids:
    """Return all local centroids that the sites sent, with their sites' masks."""
    values, masks, counts, sites = [], [], [], []
    for number, (site, cells) in enumerate(sent.items()):
        filled = cells.counts > 0
        n_filled = int(filled.sum())
        values.append(cells.means[filled])
        counts.append(cells.counts[filled].astype(np.float64))
        masks.append(np.tile(config.masks[site], (n_filled, 1)))
        sites.append(np.full(n_filled, number, dtype=np.int64))
    return LocalCentroids(
        np.concatenate(values), np.concatenate(masks), np.concatenate(counts), np.concatenate(sites)
    )


def too_many_groups_warning(n_groups: int, n_clusters: int) -> tuple[str, ...]:
    """Return a warning if groups that share no feature leave more groups than clusters."""
    if n_groups <= n_clusters:
        return ()
    warning = (
        f"{n_groups} groups remain where {n_clusters} clusters were asked for: they share no "
        "feature, so nothing tells which of them are one."
    )
    return (warning,)


def single_site_feature_warning(sites: Collection[str], config: RunConfig) -> tuple[str, ...]:
    """Return a warning that names the features that only one site has, if there are any."""
    single = np.array([config.masks[site] for site in sites]).sum(axis=0) == 1
    if not single.any():
        return ()
    names = _feature_list(single, config)
    return (f"One site alone has {names}: the centroids hold its own means there.",)


def _feature_list(columns: BoolArray, config: RunConfig) -> str:
    """Return the names of the features of some columns (d,), at most ``_MAX_NAMES``."""
    features = feature_names(config.columns, columns)
    names = ", ".join(map(repr, features[:_MAX_NAMES]))
    more = len(features) - _MAX_NAMES
    return names if more <= 0 else f"{names} and {more} more"
