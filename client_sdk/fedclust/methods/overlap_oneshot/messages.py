"""What the sites of ``overlap_oneshot`` are asked and answer, and how both ends check it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedclust.methods.common.cluster_sums import check_sizes
from fedclust.methods.common.kmeans_rounds import Cells
from fedclust.methods.common.own_features import SINGLE_SITE_NOTE, CellsTask, check_cell_values
from fedclust.methods.overlap_oneshot.config import Config
from fedclust.methods.overlap_oneshot.gaussians import (
    check_covariances,
    check_variances,
)
from fedclust.numeric.arrays import FloatMatrix, FloatTensor3
from fedclust.protection.message_checks import check_means, check_shape
from fedclust.schema.errors import RuleViolation
from fedclust.schema.run_config import RunConfig
from fedclust.schema.scaling import scaled_bounds
from fedclust.schema.task import Disclosure, Phase, SiteTask


class GaussiansTask(CellsTask, title="GaussiansTask"):
    """Cluster your points by the features that you have, and describe each cell by a Gaussian.

    Attributes
    ----------
    n_clusters : int
        Into at most so many cells.
    search : bool
        Whether to make fewer where that has the better simplified silhouette.
    n_init : int or None
        Restarts; None leaves them to the site.
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
        Scaled; 0 in the features that the site has not got.
    covariances : (K_i, d_i, d_i) float64
        Over the site's columns in their order. Of shape (0, 0, 0) where the task asks for none.
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
            Disclosure(
                field="counts",
                shape="up to K_i numbers",
                meaning="How many of your persons are in each cell of your own clustering.",
                identifies="Sums over whole groups of your protected table.",
            ),
            Disclosure(
                field="means",
                shape="up to K_i x d numbers",
                meaning=(
                    "The mean of each column over each cell, scaled. 0 in the features that your "
                    "site has not got."
                ),
                identifies="Means over whole groups." + SINGLE_SITE_NOTE,
            ),
            Disclosure(
                field="variances",
                shape="up to K_i x d numbers",
                meaning=(
                    "How widely each column is spread in each cell: the variance of the groups' "
                    "records, and the variance within groups, from the share that is released "
                    "once with the table."
                ),
                identifies="Sums over whole groups.",
            ),
            Disclosure(
                field="covariances",
                shape="up to K_i x d_i x d_i numbers",
                meaning=(
                    "Only with covariance: full, which needs protection: none. How your site's "
                    "columns hang together in each cell."
                ),
                identifies="Computed from exact records, like all that is sent then.",
            ),
        ),
    ),
)


def check_task(task: SiteTask[GaussiansTask], config: RunConfig[Config]) -> None:
    """Refuse another task than the definition's."""
    if task.common != gaussians_task(config.options):
        raise RuleViolation(
            "task", "the task asks for other cells than the definition", "/parameters"
        )


def check(task: SiteTask[GaussiansTask], payload: Gaussians, config: RunConfig[Config]) -> None:
    """Check an answer at either end: shapes, counts, mask, bounds, variances, covariances."""
    # A site may make fewer cells than it was asked for.
    n_cells = min(max(len(payload.counts), 1), task.common.n_clusters)
    shape = (n_cells, len(config.columns))
    check_shape(payload.counts, (n_cells,), "/counts")
    check_shape(payload.means, shape, "/means")
    check_shape(payload.variances, shape, "/variances")
    check_sizes(payload.counts, config)
    check_cell_values(payload.counts, payload.means, config, "/means")
    check_cell_values(payload.counts, payload.variances, config, "/variances")
    lower, upper = scaled_bounds(config)
    known = np.where(config.mask, payload.counts[:, None], 0)
    check_means(known, payload.means, lower, upper, "/means")
    check_variances(known, payload.variances, widest_variances(payload.means, config))
    if task.common.full:
        check_covariances(payload.covariances, payload.variances[:, config.mask])
    else:
        check_shape(payload.covariances, (0, 0, 0), "/covariances")


def widest_variances(means: NDArray[np.float64], config: RunConfig) -> NDArray[np.float64]:
    """Return the largest variances (K, d) of values within the columns' bounds."""
    lower, upper = scaled_bounds(config)
    bounded = np.isfinite(lower) & np.isfinite(upper)
    with np.errstate(invalid="ignore"):
        return np.where(bounded, np.maximum((upper - means) * (means - lower), 0.0), np.inf)


def gaussians_task(options: Config) -> GaussiansTask:
    return GaussiansTask(
        n_clusters=options.most_cells,
        search=options.searches,
        n_init=options.n_init,
        full=options.covariance == "full",
    )
