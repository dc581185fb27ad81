"""The tasks and messages of ``overlap``, and their checks."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import Field

from fedclust.methods.common.kmeans_rounds import (
    GROUP_SUMS,
    Cells,
    check_cells,
    count_sent_cells,
    disclosure,
)
from fedclust.methods.common.own_features import SINGLE_SITE_NOTE, CellsTask
from fedclust.methods.common.task_checks import check_centroids, check_expected_task
from fedclust.methods.overlap.config import Config
from fedclust.numeric.arrays import BoolMatrix, FloatMatrix
from fedclust.protection.message_checks import check_shape
from fedclust.schema.errors import RuleViolation
from fedclust.schema.run_config import RunConfig
from fedclust.schema.task import CentroidTask, Phase, SiteTask

__all__ = ["PHASES", "AnyTask", "Cells", "FederatedTask", "cells_task", "check", "check_task"]


class FederatedTask(CentroidTask):
    """Run ``iterations`` Lloyd steps from the centroids that your points are nearest to.

    Attributes
    ----------
    centroids : (K, d) float64
        Scaled; 0 where unknown.
    mask : (K, d) bool
        The entries that are known.
    iterations : int
    """

    centroids: FloatMatrix
    mask: BoolMatrix
    iterations: Annotated[int, Field(ge=1)]


AnyTask: TypeAlias = CellsTask | FederatedTask

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
                GROUP_SUMS + SINGLE_SITE_NOTE,
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
            disclosure(
                "counts",
                "K numbers",
                "How many of your persons are in each local cluster that belongs to a global one, "
                "after a few steps from the global centroids.",
            ),
            disclosure(
                "means",
                "K x d numbers",
                "The mean of each column over these, scaled. 0 in the features that your site has "
                "not got.",
                GROUP_SUMS + SINGLE_SITE_NOTE,
            ),
        ),
    ),
)


def cells_task(options: Config) -> CellsTask:
    """Return the task of the phase ``cells``."""
    most = options.local_clusters
    return CellsTask(
        n_clusters=most if isinstance(most, int) else options.n_clusters,
        search=most == "silhouette",
        n_init=options.n_init,
    )


def check_task(task: SiteTask[AnyTask], config: RunConfig[Config]) -> None:
    """Raise RuleViolation if a task differs from the definition's or does not fit the features."""
    options, asked = config.options, task.common
    if isinstance(asked, CellsTask):
        check_expected_task(asked, cells_task(options))
        return
    shape = (len(asked.centroids), len(config.columns))
    check_shape(asked.centroids, shape, "/parameters/centroids")
    check_shape(asked.mask, shape, "/parameters/mask")
    check_centroids(asked.centroids, asked.mask, config)
    if asked.iterations != options.local_iterations:
        raise RuleViolation(
            "task",
            f"the definition names {options.local_iterations} local iterations",
            "/parameters/iterations",
        )


def check(task: SiteTask[AnyTask], payload: Cells, config: RunConfig[Config]) -> None:
    """Check a message at either end: shapes, counts, mask, bounds."""
    asked = task.common
    if isinstance(asked, CellsTask):
        n_cells = count_sent_cells(payload, asked.n_clusters)
    else:
        n_cells = len(asked.centroids)
    check_cells(payload, n_cells, config)
