"""overlap_oneshot at a site: Gaussians of its local clusters, labels."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedclust.methods.common.assign import check_mapping, label_by_centroid
from fedclust.methods.common.own_features import (
    expand_to_all_columns,
    local_cells,
    select_site_columns,
)
from fedclust.methods.overlap_oneshot.config import Config
from fedclust.methods.overlap_oneshot.gaussians import cell_covariances, cell_variances
from fedclust.methods.overlap_oneshot.messages import Gaussians, GaussiansTask, max_variances
from fedclust.numeric.distances import nearest_centroid
from fedclust.schema.method import LocalAnswer
from fedclust.schema.model import Memory
from fedclust.schema.points import Points
from fedclust.schema.result import Result
from fedclust.schema.run_config import RunConfig
from fedclust.schema.task import SiteTask

#: The key of a site's memory for its local means, which label its rows.
_MEMORY_KEY = "overlap_oneshot"


def local_step(
    task: SiteTask[GaussiansTask],
    points: Points,
    config: RunConfig[Config],
    rng: np.random.Generator,
    memory: Memory,
) -> LocalAnswer[Gaussians]:
    """Cluster a site's scaled points and describe the cells."""
    own = select_site_columns(points, config)
    found = local_cells(task.common, own, rng)
    labels = nearest_centroid(own.X, found.centroids)
    means = expand_to_all_columns(found.means, config)
    variances = expand_to_all_columns(cell_variances(own, labels, found), config)
    full = task.common.full
    payload = Gaussians(
        counts=found.counts,
        means=means,
        variances=np.minimum(variances, max_variances(means, config)),
        covariances=cell_covariances(own, labels, found) if full else np.zeros((0, 0, 0)),
    )
    return payload, {**memory, _MEMORY_KEY: {"means": means, "mask": config.mask}}


def label(result: Result, X: NDArray[np.float64], memory: Memory | None) -> NDArray[np.int64]:
    """Label rows (n, d) in own units; -1 for rows that cannot be labelled.

    A site's own rows get the cluster of the nearest local mean. New rows, and rows of a site that
    joined later, get the nearest centroid over the features that they have.
    """
    own = (memory or {}).get(_MEMORY_KEY)
    if own is None or not result.mapping:
        return label_by_centroid(result, X)
    (clusters,) = result.mapping.values()
    check_mapping(clusters, len(own["means"]))
    mask = None if result.mask is None else np.tile(own["mask"], (len(clusters), 1))
    local = result.model_copy(update={"centroids": own["means"], "mask": mask})
    cells = label_by_centroid(local, X)
    return np.where(cells >= 0, np.array(clusters, dtype=np.int64)[cells], -1)
