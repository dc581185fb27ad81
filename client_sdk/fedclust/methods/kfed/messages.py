"""What the sites of ``kfed`` are asked and answer, and how both ends check it."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field

from fedclust.methods.common import kmeans_rounds
from fedclust.methods.common.kmeans_rounds import Cells, Step
from fedclust.methods.kfed.config import DefaultConfig, PaperConfig
from fedclust.schema.errors import RuleViolation
from fedclust.schema.model import Model
from fedclust.schema.run_config import RunConfig
from fedclust.schema.task import Disclosure, Phase, SiteTask


class CellsTask(Model, title="KfedCellsTask"):
    """Cluster your points by yourself.

    Attributes
    ----------
    n_clusters : int
        Into at most so many cells, k'.
    variant : {"default", "paper"}
        How; see :func:`own_cells` and :func:`algorithm_1`.
    n_init : int or None
        Restarts, in the default variant; None: :func:`local_restarts`.
    project : bool
        Whether to seed among the points' projections on their first singular vectors.
    """

    n_clusters: Annotated[int, Field(ge=1)]
    variant: Literal["default", "paper"]
    n_init: Annotated[int, Field(ge=1)] | None
    project: bool


_SHAPES = {"counts": "up to k' numbers", "means": "up to k' x d numbers"}


def _described(line: Disclosure) -> Disclosure:
    return line.model_copy(update={"shape": _SHAPES.get(line.field, line.shape)})


PHASES: tuple[Phase, ...] = (
    replace(
        kmeans_rounds.CELLS,
        summary="Each site clusters its own points; the coordinator clusters the cells' means.",
        task=CellsTask,
        discloses=tuple(_described(line) for line in kmeans_rounds.CELLS.discloses),
    ),
    replace(
        kmeans_rounds.STEP,
        name="refine",
        summary=(
            "Only where the analyst asks for refinement: each site assigns its points to the "
            "nearest centroid and adds them up."
        ),
    ),
)


def cells_task(options: DefaultConfig | PaperConfig) -> CellsTask:
    return CellsTask(
        n_clusters=options.cells,
        variant=options.variant,
        n_init=options.n_init if isinstance(options, DefaultConfig) else None,
        project=options.projects,
    )


def check_task(task: SiteTask, config: RunConfig) -> None:
    """Refuse other cells than the definition's, and more centroids than it names."""
    if task.phase == "cells":
        if task.common != cells_task(config.options):
            raise RuleViolation(
                "task", "the task asks for other cells than the definition", "/parameters"
            )
        return
    kmeans_rounds.check_requested_sizes(task, config)


def check(task: SiteTask, payload: Cells | Step, config: RunConfig) -> None:
    """Check an answer at either end: shapes, counts, bounds, costs."""
    if isinstance(payload, Cells):
        # As many cells as the site made, which are fewer than were asked for where it is small.
        n_cells = min(max(len(payload.counts), 1), task.common.n_clusters)
        task = replace(task, common=task.common.model_copy(update={"n_clusters": n_cells}))
    kmeans_rounds.check(task, payload, config)
