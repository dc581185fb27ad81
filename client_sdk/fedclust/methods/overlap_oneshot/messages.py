"""The task and message of ``overlap_oneshot``, and their checks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedclust.methods.common.kmeans_rounds import (
    Cells,
    check_cell_values,
    check_cells,
    count_sent_cells,
    disclosure,
)
from fedclust.methods.common.own_features import SINGLE_SITE_NOTE, CellsTask
from fedclust.methods.common.task_checks import check_expected_task
from fedclust.methods.overlap_oneshot.config import Config
from fedclust.methods.overlap_oneshot.gaussians import check_covariances, check_variances
from fedclust.numeric.arrays import FloatMatrix, FloatTensor3
from fedclust.protection.message_checks import check_shape
from fedclust.schema.run_config import RunConfig
from fedclust.schema.scaling import scaled_bounds
from fedclust.schema.task import Phase, SiteTask


class GaussiansTask(CellsTask, title="GaussiansTask"):
    """Cluster your points by the features that you have, and describe each cell by a Gaussian.

    Attributes
    ----------
    n_clusters : int
        The most cells.
    search : bool
        Whether to choose the number of cells by the simplified silhouette.
    n_init : int or None
        Restarts; None: the site chooses.
    full : bool
        Whether to send covariance matrices.
    """

    full: bool


class Gaussians(Cells):
    """A site's local clusters.

    Attributes
    ----------
    counts : (K_i,) int64
        Persons in each cell.
    means, variances : (K_i, d) float64
        Scaled; 0 in the features that the site lacks.
    covariances : (K_i, d_i, d_i) float64
        Over the site's columns in their order; shape (0, 0, 0) if the task asks for none.
    """

    variances: FloatMatrix
    covariances: FloatTensor3


PHASES = (
    Phase(
        name="gaussians",
        once=True,
        summary=(
            "Each site clusters its own points by the features that it has and describes every "
            "cluster by a bell curve; the coordinator finds out which sites' clusters are one."
        ),
        task=GaussiansTask,
        payload=Gaussians,
        discloses=(
            disclosure(
                "counts",
                "up to K_i numbers",
                "How many of your persons are in each cell of your own clustering.",
            ),
            disclosure(
                "means",
                "up to K_i x d numbers",
                "The mean of each column over each cell, scaled. 0 in the features that your site "
                "has not got.",
                "Means over whole groups." + SINGLE_SITE_NOTE,
            ),
            disclosure(
                "variances",
                "up to K_i x d numbers",
                "How widely each column is spread in each cell: the variance of the groups' "
                "records, and the variance within groups that is estimated from them.",
                "Sums over whole groups.",
            ),
            disclosure(
                "covariances",
                "up to K_i x d_i x d_i numbers",
                "Only with covariance: full, which needs protection: none. How your site's columns "
                "hang together in each cell.",
                "Computed from exact records, like all that is sent then.",
            ),
        ),
    ),
)


def gaussians_task(options: Config) -> GaussiansTask:
    """Return the task of the phase ``gaussians``."""
    return GaussiansTask(
        n_clusters=options.most_cells,
        search=options.searches,
        n_init=options.n_init,
        full=options.covariance == "full",
    )


def check_task(task: SiteTask[GaussiansTask], config: RunConfig[Config]) -> None:
    """Raise RuleViolation if a task differs from the definition's."""
    check_expected_task(task.common, gaussians_task(config.options))


def check(task: SiteTask[GaussiansTask], payload: Gaussians, config: RunConfig[Config]) -> None:
    """Check a message at either end: shapes, counts, mask, bounds, variances, covariances."""
    n_cells = count_sent_cells(payload, task.common.n_clusters)
    check_shape(payload.variances, (n_cells, len(config.columns)), "/variances")
    check_cells(payload, n_cells, config)
    check_cell_values(payload.counts, payload.variances, config, "/variances")
    known = np.where(config.mask, payload.counts[:, None], 0)
    check_variances(known, payload.variances, max_variances(payload.means, config))
    if task.common.full:
        check_covariances(payload.covariances, payload.variances[:, config.mask])
    else:
        check_shape(payload.covariances, (0, 0, 0), "/covariances")


def max_variances(means: NDArray[np.float64], config: RunConfig) -> NDArray[np.float64]:
    """Return the largest variances (K, d) that values within the columns' bounds can have."""
    lower, upper = scaled_bounds(config)
    bounded = np.isfinite(lower) & np.isfinite(upper)
    with np.errstate(invalid="ignore"):
        return np.where(bounded, np.maximum((upper - means) * (means - lower), 0.0), np.inf)
