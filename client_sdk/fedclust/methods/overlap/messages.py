"""What the sites of ``overlap`` are asked and answer, and how both ends check it."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import numpy as np
from pydantic import Field

from fedclust.methods.common import task_checks
from fedclust.methods.common.cluster_sums import check_sizes
from fedclust.methods.common.kmeans_rounds import Cells
from fedclust.methods.common.own_features import SINGLE_SITE_NOTE, CellsTask, check_cell_values
from fedclust.methods.overlap.config import Config
from fedclust.numeric.arrays import BoolMatrix, FloatMatrix
from fedclust.protection.message_checks import check_means, check_shape
from fedclust.schema.errors import RuleViolation
from fedclust.schema.run_config import RunConfig
from fedclust.schema.scaling import scaled_bounds
from fedclust.schema.task import CentroidTask, Disclosure, Phase, SiteTask

__all__ = [
    "PHASES",
    "AnyTask",
    "Cells",
    "FederatedTask",
    "cells_task",
    "check",
    "check_task",
]


class FederatedTask(CentroidTask):
    """Run ``iterations`` Lloyd steps from those of the centroids that your points are nearest to.

    Attributes
    ----------
    centroids : (K, d) float64
        Scaled; 0 where unknown.
    mask : (K, d) bool
        Where they are known.
    iterations : int
    """

    centroids: FloatMatrix
    mask: BoolMatrix
    iterations: Annotated[int, Field(ge=1)]


AnyTask: TypeAlias = CellsTask | FederatedTask

_OF_GROUPS = "Sums over whole groups of your protected table."
PHASES = (
    Phase(
        name="cells",
        once=True,
        summary=(
            "Each site clusters its own points by the features that it has; the coordinator finds "
            "out which sites' clusters are one."
        ),
        task=CellsTask,
        payload=Cells,
        discloses=(
            Disclosure(
                field="counts",
                shape="up to K_i numbers",
                meaning="How many of your persons are in each cell of your own clustering.",
                identifies=_OF_GROUPS,
            ),
            Disclosure(
                field="means",
                shape="up to K_i x d numbers",
                meaning=(
                    "The mean of each column over each cell, scaled. 0 in the features that your "
                    "site has not got."
                ),
                identifies=_OF_GROUPS + SINGLE_SITE_NOTE,
            ),
        ),
    ),
    Phase(
        name="federated",
        optional=True,
        summary=(
            "Each site improves the global centroids that its points are nearest to by a few steps "
            "of its own."
        ),
        task=FederatedTask,
        payload=Cells,
        discloses=(
            Disclosure(
                field="counts",
                shape="K numbers",
                meaning=(
                    "How many of your persons are in each local cluster that belongs to a global "
                    "one, after a few steps from the global centroids."
                ),
                identifies=_OF_GROUPS,
            ),
            Disclosure(
                field="means",
                shape="K x d numbers",
                meaning=(
                    "The mean of each column over these, scaled. 0 in the features that your site "
                    "has not got."
                ),
                identifies=_OF_GROUPS + SINGLE_SITE_NOTE,
            ),
        ),
    ),
)


def check_task(task: SiteTask[AnyTask], config: RunConfig[Config]) -> None:
    """Refuse another task than the definition's, and centroids that do not fit the features."""
    options, asked = config.options, task.common
    if isinstance(asked, CellsTask):
        if asked != cells_task(options):
            raise RuleViolation(
                "task", "the task asks for other cells than the definition", "/parameters"
            )
        return
    shape = (len(asked.centroids), len(config.columns))
    check_shape(asked.centroids, shape, "/parameters/centroids")
    check_shape(asked.mask, shape, "/parameters/mask")
    task_checks.check_centroids(asked.centroids, asked.mask, config)
    if asked.iterations != options.local_iterations:
        raise RuleViolation(
            "task",
            f"the definition names {options.local_iterations} local iterations",
            "/parameters/iterations",
        )


def check(task: SiteTask[AnyTask], payload: Cells, config: RunConfig[Config]) -> None:
    """Check an answer at either end: shapes, counts, mask, bounds."""
    asked = task.common
    if isinstance(asked, CellsTask):
        # A site may make fewer cells than it was asked for.
        n_cells = min(max(len(payload.counts), 1), asked.n_clusters)
    else:
        n_cells = len(asked.centroids)
    check_shape(payload.counts, (n_cells,), "/counts")
    check_shape(payload.means, (n_cells, len(config.columns)), "/means")
    check_sizes(payload.counts, config)
    check_cell_values(payload.counts, payload.means, config, "/means")
    known = np.where(config.mask, payload.counts[:, None], 0)
    check_means(known, payload.means, *scaled_bounds(config), "/means")


def cells_task(options: Config) -> CellsTask:
    most = options.local_clusters
    return CellsTask(
        n_clusters=most if isinstance(most, int) else options.n_clusters,
        search=most == "silhouette",
        n_init=options.n_init,
    )
