"""What methods share whose sites cluster by the features that they have."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedclust.methods.common.cluster_sums import ClusterSums
from fedclust.methods.common.kmeans_rounds import Cells
from fedclust.methods.common.local_kmeans import local_kmeans, local_restarts
from fedclust.methods.common.partial_features import LocalCentroids, components
from fedclust.numeric.canonical import tolerant_argmax
from fedclust.protection.message_checks import check_empty
from fedclust.schema.encoding import feature_names
from fedclust.schema.errors import RuleViolation
from fedclust.schema.model import Model
from fedclust.schema.points import Points, total_variances
from fedclust.schema.run_config import RunConfig


def check_roster(config: RunConfig) -> None:
    """Refuse sites whose features leave them apart, or leave a feature to nobody.

    Raises
    ------
    RuleViolation
        Names the features that nobody has, or the smallest group of sites that shares no feature
        with the others, and what to change.
    """
    masks = np.array([config.masks[site] for site in config.roster], dtype=np.bool_)
    unseen = np.asarray(~masks.any(axis=0))
    if unseen.any():
        raise RuleViolation(
            "overlap",
            f"no site has the features {_named(unseen, config)}: leave them out of the session, "
            "or invite a site that has them",
            "/features",
        )
    parts = components(masks)
    if parts.max(initial=0) > 0:
        smallest = min(np.unique(parts), key=lambda part: int((parts == part).sum()))
        names = ", ".join(np.array(config.roster)[parts == smallest][:5])
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
        Whether to make fewer where that has the better simplified silhouette.
    n_init : int or None
        Restarts; None leaves them to the site.
    """

    n_clusters: Annotated[int, Field(ge=1)]
    search: bool
    n_init: Annotated[int, Field(ge=1)] | None


#: Of means that a site alone contributes to.
SINGLE_SITE_NOTE = (
    " Of a feature that your site alone has, the result shows everybody your own means."
)


def check_cell_values(
    counts: NDArray[np.int64], values: NDArray[np.float64], config: RunConfig, pointer: str
) -> None:
    """Raise unless values (K, d) are 0 in empty cells and in features that the site lacks."""
    check_empty(counts, values, pointer)
    foreign = np.argwhere((values != 0) & ~config.mask)
    if foreign.size:
        cell, column = (int(place) for place in foreign[0])
        raise RuleViolation(
            "mask",
            f"cell {cell}: the site joined without column {column}, so its number there must be 0",
            f"{pointer}/{cell}/{column}",
        )


def select_site_columns(points: Points, config: RunConfig) -> Points:
    """Return the points in the columns that the site has."""
    X = np.ascontiguousarray(points.X[:, config.mask])
    return Points(X, points.sizes, points.within[config.mask])


def expand_to_all_columns(values: NDArray[np.float64], config: RunConfig) -> NDArray[np.float64]:
    """Return values (K, d_i) of the site's columns as (K, d), 0 in the others."""
    whole = np.zeros((len(values), len(config.columns)))
    whole[:, config.mask] = values
    return whole


def local_cells(task: CellsTask, points: Points, rng: np.random.Generator) -> ClusterSums:
    """Cluster a site's points, in its own columns, by k-means (lines 1 to 3)."""
    most = min(task.n_clusters, len(points.X))
    n_init = task.n_init or local_restarts(len(points.X), points.X.shape[1], most)
    if not task.search or most <= 2:
        return local_kmeans(points, most, n_init, rng)
    found = [local_kmeans(points, k, n_init, rng) for k in range(2, most + 1)]
    return found[
        int(tolerant_argmax([simplified_silhouette(points, each.means) for each in found]))
    ]


def simplified_silhouette(points: Points, means: NDArray[np.float64]) -> float:
    """Return the mean over persons of (b - a) / max(a, b); 0 with one of the ``means`` (K, d).

    a and b are the root mean squared distances of a point's persons from the nearest mean and the
    next, so that points that are means of groups are not taken for clusters of their own.
    """
    if len(means) < 2:
        return 0.0
    within = float((points.within * total_variances(points)).sum())
    squares = np.column_stack([((points.X - mean) ** 2).sum(axis=1) for mean in means])
    nearest_two = np.sqrt(np.partition(squares, 1, axis=1)[:, :2] + within)
    a, b = nearest_two.T
    terms = np.divide(b - a, b, out=np.zeros_like(b), where=b > 0)
    return float(np.average(terms, weights=points.sizes))


def collect_centroids(sent: Mapping[str, Cells], config: RunConfig) -> LocalCentroids:
    """Return all local centroids that the sites sent, with their masks."""
    values, masks, counts, sites = [], [], [], []
    for number, (site, cells) in enumerate(sent.items()):
        filled = cells.counts > 0
        values.append(cells.means[filled])
        counts.append(cells.counts[filled].astype(np.float64))
        masks.append(np.tile(config.masks[site], (int(filled.sum()), 1)))
        sites.append(np.full(int(filled.sum()), number, dtype=np.int64))
    return LocalCentroids(
        np.concatenate(values), np.concatenate(masks), np.concatenate(counts), np.concatenate(sites)
    )


def single_site_feature_warning(sites: Collection[str], config: RunConfig) -> tuple[str, ...]:
    """Return a warning that names the features that one site alone has, if there are any."""
    alone = np.array([config.masks[site] for site in sites]).sum(axis=0) == 1
    if not alone.any():
        return ()
    names = _named(alone, config)
    return (f"One site alone has {names}: the centroids hold its own means there.",)


def _named(columns: NDArray[np.bool_], config: RunConfig) -> str:
    """Return the names of the features of some columns (d,), five at most."""
    features = feature_names(config.columns, columns)
    names = ", ".join(map(repr, features[:5]))
    return names if len(features) <= 5 else f"{names} and {len(features) - 5} more"
