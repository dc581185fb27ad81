"""What the sites of ``lloyd`` are asked and answer, and how both ends check it."""

from __future__ import annotations

import numpy as np

from fedclust.methods.common.kmeans_rounds import CELLS, STEP, check_requested_sizes
from fedclust.methods.lloyd.config import given_centroids
from fedclust.numeric.canonical import coordinate_tolerance
from fedclust.schema.errors import RuleViolation
from fedclust.schema.run_config import RunConfig
from fedclust.schema.task import SiteTask

PHASES = (CELLS, STEP)


def check_task(task: SiteTask, config: RunConfig) -> None:
    """Refuse other cells, more clusters or another start than the definition names."""
    check_requested_sizes(task, config)
    given = given_centroids(config)
    if config.first and given is not None:
        asked = task.common.centroids
        if (
            asked.shape != given.shape
            or (np.abs(asked - given) > coordinate_tolerance(given)).any()
        ):
            raise RuleViolation(
                "task", "the definition gives other first centroids", "/parameters/centroids"
            )
