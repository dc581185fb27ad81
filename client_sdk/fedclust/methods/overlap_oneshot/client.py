"""overlap_oneshot at a site: Gaussians of its own clusters, labels."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedclust.methods.common.assign import label_by_centroid
from fedclust.methods.common.cluster_sums import ClusterSums
from fedclust.methods.common.own_features import (
    expand_to_all_columns,
    local_cells,
    select_site_columns,
)
from fedclust.methods.overlap_oneshot.config import Config
from fedclust.methods.overlap_oneshot.gaussians import covariances
from fedclust.methods.overlap_oneshot.messages import Gaussians, GaussiansTask, widest_variances
from fedclust.numeric.distances import nearest_centroid
from fedclust.schema.method import LocalAnswer
from fedclust.schema.model import Memory
from fedclust.schema.points import Points, total_variances
from fedclust.schema.result import Result
from fedclust.schema.run_config import RunConfig
from fedclust.schema.task import SiteTask

#: What a site remembers: its local means, for its own rows' labels.
_OWN = "overlap_oneshot"


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
    matrices = covariances(own, labels, found) if task.common.full else np.zeros((0, 0, 0))
    means = expand_to_all_columns(found.means, config)
    payload = Gaussians(
        counts=found.counts,
        means=means,
        variances=np.minimum(
            expand_to_all_columns(_variances(own, labels, found), config),
            widest_variances(means, config),
        ),
        covariances=matrices,
    )
    return payload, {**memory, _OWN: {"means": means, "mask": config.mask}}


def _variances(
    points: Points, labels: NDArray[np.int64], found: ClusterSums
) -> NDArray[np.float64]:
    """Return the variances (K, d_i) of the cells' persons, between and within groups."""
    squares = np.zeros(found.means.shape)
    np.add.at(squares, labels, points.sizes[:, None] * (points.X - found.means[labels]) ** 2)
    between = squares / found.counts[:, None]
    return between + points.within * total_variances(points)


def label(result: Result, X: NDArray[np.float64], memory: Memory | None) -> NDArray[np.int64]:
    """Label rows (n, d) in own units.

    A site's own rows go with the local cluster of the nearest mean. New rows, and those of a site
    that came later, take the nearest centroid over the features that they have.
    """
    own = (memory or {}).get(_OWN)
    if own is None or not result.mapping:
        return label_by_centroid(result, X)
    (groups,) = result.mapping.values()
    mask = None if result.mask is None else np.tile(own["mask"], (len(groups), 1))
    local = result.model_copy(update={"centroids": own["means"], "mask": mask})
    cells = label_by_centroid(local, X)
    return np.where(cells >= 0, np.array(groups, dtype=np.int64)[cells], -1)
