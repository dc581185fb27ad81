"""What the sites of ``kfed`` are asked and answer, and how both ends check it."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from fedclust.methods.common import kmeans_rounds
from fedclust.methods.common.kmeans_rounds import Cells, Step, StepTask
from fedclust.methods.kfed.config import DefaultConfig, Variants
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


AnyTask: TypeAlias = CellsTask | StepTask
AnyPayload: TypeAlias = Cells | Step
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


def cells_task(options: Variants) -> CellsTask:
    return CellsTask(
        n_clusters=options.cells,
        variant=options.variant,
        n_init=options.n_init if isinstance(options, DefaultConfig) else None,
        project=options.projects,
    )


def check_task(task: SiteTask[AnyTask], config: RunConfig[Variants]) -> None:
    """Refuse other cells than the definition's, and more centroids than it names."""
    if isinstance(task.common, StepTask):
        kmeans_rounds.check_centroid_number(task.common.centroids, config.options.k)
    elif task.common != cells_task(config.options):
        raise RuleViolation(
            "task", "the task asks for other cells than the definition", "/parameters"
        )


def check(task: SiteTask[AnyTask], payload: AnyPayload, config: RunConfig[Variants]) -> None:
    """Check an answer at either end: shapes, counts, bounds, costs."""
    match task.common, payload:
        case CellsTask() as asked, Cells() as cells:
            # A small site makes fewer cells than it was asked for.
            n_cells = min(max(len(cells.counts), 1), asked.n_clusters)
            kmeans_rounds.check_cells(cells, n_cells, config)
        case StepTask() as asked, Step() as sent:
            kmeans_rounds.check_step(sent, asked.centroids, config)
        case _:
            raise TypeError("the answer is of another phase than the task")
