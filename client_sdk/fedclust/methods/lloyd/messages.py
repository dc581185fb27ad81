"""The tasks and messages of ``lloyd``, and their checks."""

from __future__ import annotations

from fedclust.methods.common.given_start import check_first_centroids
from fedclust.methods.common.kmeans_rounds import (
    CELLS,
    STEP,
    AnyPayload,
    AnyTask,
    CellsTask,
    check,
    check_cells_task,
    check_centroid_number,
)
from fedclust.methods.lloyd.config import Config
from fedclust.schema.run_config import RunConfig
from fedclust.schema.task import SiteTask

__all__ = ["PHASES", "AnyPayload", "AnyTask", "check", "check_task"]

PHASES = (CELLS, STEP)


def check_task(task: SiteTask[AnyTask], config: RunConfig[Config]) -> None:
    """Raise RuleViolation if a task asks for other cells, more clusters or another start."""
    options = config.options
    if isinstance(task.common, CellsTask):
        check_cells_task(task.common, options.k, options.n_init)
        return
    check_centroid_number(task.common.centroids, options.k)
    check_first_centroids(task.common.centroids, config)
