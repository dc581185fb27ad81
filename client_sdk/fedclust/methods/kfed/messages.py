"""The tasks and messages of ``kfed``, and their checks."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from fedclust.methods.common import kmeans_rounds
from fedclust.methods.common.kmeans_rounds import Cells, Step, StepTask
from fedclust.methods.common.task_checks import check_expected_task
from fedclust.methods.kfed.config import DefaultConfig, Variants
from fedclust.schema.model import Model
from fedclust.schema.run_config import RunConfig
from fedclust.schema.task import Phase, SiteTask


class CellsTask(Model, title="KfedCellsTask"):
    """Cluster your own points.

    Attributes
    ----------
    n_clusters : int
        The most cells, k'.
    variant : {"default", "paper"}
        By :func:`restarted_cells`, or by :func:`algorithm_1`.
    n_init : int or None
        Restarts of the default variant; None: :func:`local_restarts`.
    project : bool
        Whether to project the points on their first singular vectors to find cells.
    """

    n_clusters: Annotated[int, Field(ge=1)]
    variant: Literal["default", "paper"]
    n_init: Annotated[int, Field(ge=1)] | None
    project: bool


AnyTask: TypeAlias = CellsTask | StepTask
AnyPayload: TypeAlias = Cells | Step
_SHAPES = {"counts": "up to k' numbers", "means": "up to k' x d numbers"}

PHASES: tuple[Phase, ...] = (
    replace(
        kmeans_rounds.CELLS,
        summary="Each site clusters its own points; the coordinator clusters the cells' means.",
        task=CellsTask,
        discloses=tuple(
            line.model_copy(update={"shape": _SHAPES[line.field]})
            for line in kmeans_rounds.CELLS.discloses
        ),
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


def cells_task(options: Variants) -> CellsTask:
    """Return the task of the phase ``cells``."""
    return CellsTask(
        n_clusters=options.cells,
        variant=options.variant,
        n_init=options.n_init if isinstance(options, DefaultConfig) else None,
        project=options.projects,
    )


def check_task(task: SiteTask[AnyTask], config: RunConfig[Variants]) -> None:
    """Raise RuleViolation if a task asks for other cells or more centroids than the definition."""
    if isinstance(task.common, StepTask):
        kmeans_rounds.check_centroid_number(task.common.centroids, config.options.k)
    else:
        check_expected_task(task.common, cells_task(config.options))


def check(task: SiteTask[AnyTask], payload: AnyPayload, config: RunConfig[Variants]) -> None:
    """Check a message at either end: shapes, counts, bounds, costs."""
    match task.common, payload:
        case CellsTask() as asked, Cells() as cells:
            n_cells = kmeans_rounds.count_sent_cells(cells, asked.n_clusters)
            kmeans_rounds.check_cells(cells, n_cells, config)
        case StepTask() as asked, Step() as sent:
            kmeans_rounds.check_step(sent, asked.centroids, config)
        case _:
            raise kmeans_rounds.wrong_phase()
