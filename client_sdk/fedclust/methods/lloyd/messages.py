"""The tasks and messages of ``lloyd``, and their checks."""

from __future__ import annotations

import numpy as np

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
from fedclust.methods.lloyd.config import Config, given_centroids
from fedclust.numeric.canonical import coordinate_tolerance
from fedclust.schema.errors import RuleViolation
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
    asked = task.common.centroids
    check_centroid_number(asked, options.k)
    given = given_centroids(config)
    if not config.first or given is None:
        return
    if asked.shape != given.shape or (np.abs(asked - given) > coordinate_tolerance(given)).any():
        raise RuleViolation(
            "task", "the definition gives other first centroids", "/parameters/centroids"
        )
