"""The tasks and messages of both variants of ``fkm``, and their checks.

Each candidate's step is checked as a Lloyd step, and the paper variant's means as local cells.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedclust.methods.common import kmeans_rounds
from fedclust.methods.common.kmeans_rounds import Cells, CellsTask, Step, disclosure
from fedclust.methods.fkm.config import PaperConfig, Variants
from fedclust.numeric.arrays import FloatMatrix, FloatTensor3, IntMatrix
from fedclust.protection.message_checks import check_shape
from fedclust.schema.errors import RuleViolation
from fedclust.schema.model import Model
from fedclust.schema.run_config import RunConfig
from fedclust.schema.task import CentroidTask, Phase, SiteTask


class SeedsTask(Model):
    """Draw K of your points by k-means++."""


class MeansTask(CentroidTask):
    """Do one k-means iteration from ``centroids`` (K, d), scaled."""

    centroids: FloatMatrix


class CandidatesTask(CentroidTask):
    """Assign your points to the nearest centroid of each candidate.

    ``centroids`` (c, K, d) are scaled.
    """

    centroids: FloatTensor3


class Steps(Model):
    """A site's part of one Lloyd step of every candidate: additive.

    Attributes
    ----------
    counts : (c, K) int64
        Persons.
    sums : (c, K, d) float64
        Scaled.
    costs : (c, K) float64
        Sums of squared distances of the points from the candidate's centroid.
    """

    counts: IntMatrix
    sums: FloatTensor3
    costs: FloatMatrix

    def step(self, candidate: int) -> Step:
        """Return the part of one candidate."""
        return Step(
            counts=self.counts[candidate], sums=self.sums[candidate], costs=self.costs[candidate]
        )


AnyTask: TypeAlias = CellsTask | CandidatesTask | SeedsTask | MeansTask
AnyPayload: TypeAlias = Cells | Steps

PHASES = (
    kmeans_rounds.CELLS,
    Phase(
        name="candidates",
        summary="Each site adds up its points at the nearest centroids, for c candidates.",
        task=CandidatesTask,
        payload=Steps,
        discloses=(
            disclosure(
                "counts",
                "c x K numbers",
                "How many of your persons are nearest to each centroid, for each of c clusterings "
                "that are tried side by side: at first as many as the option candidates says, "
                "later fewer.",
            ),
            disclosure("sums", "c x K x d numbers", "The sum of each column over these, scaled."),
            disclosure(
                "costs",
                "c x K numbers",
                "How far their records lie from the centroid, squared and added up.",
            ),
        ),
    ),
    Phase(
        name="seeds",
        once=True,
        summary="Only in the paper's variant: means of the points nearest to K seeds of k-means++.",
        task=SeedsTask,
        payload=Cells,
        discloses=(
            disclosure(
                "counts",
                "K numbers",
                "How many of your persons are nearest to each of K points drawn at random.",
            ),
            disclosure(
                "means",
                "K x d numbers",
                "The means of the points nearest to each of them, scaled.",
            ),
        ),
    ),
    Phase(
        name="means",
        summary="Only in the paper's variant: each site does one k-means iteration of its own.",
        task=MeansTask,
        payload=Cells,
        discloses=(
            disclosure(
                "counts",
                "K numbers",
                "How many of your persons are nearest to each of the new means.",
            ),
            disclosure(
                "means",
                "K x d numbers",
                "The mean of each column over the points nearest to each centroid, scaled.",
            ),
        ),
    ),
)


def check_task(task: SiteTask[AnyTask], config: RunConfig[Variants]) -> None:
    """Raise RuleViolation if a task asks for another variant's phase, or for more than agreed."""
    options, asked = config.options, task.common
    if isinstance(asked, SeedsTask | MeansTask) != isinstance(options, PaperConfig):
        raise RuleViolation(
            "task", f"variant: {options.variant} has no phase {task.phase!r}", "/phase"
        )
    if isinstance(options, PaperConfig):
        if isinstance(asked, MeansTask):
            kmeans_rounds.check_centroid_number(asked.centroids, options.k)
    elif isinstance(asked, CandidatesTask):
        n_candidates, n_clusters, _ = asked.centroids.shape
        if n_candidates > options.candidates or n_clusters > options.k:
            raise RuleViolation(
                "task",
                f"the definition names {options.candidates} candidates of {options.k} clusters",
                "/parameters/centroids",
            )
    elif isinstance(asked, CellsTask):
        kmeans_rounds.check_cells_task(asked, options.k, options.n_init)


def check(task: SiteTask[AnyTask], payload: AnyPayload, config: RunConfig[Variants]) -> None:
    """Check a message at either end: shapes, counts, bounds, costs."""
    match task.common, payload:
        case CandidatesTask() as asked, Steps() as steps:
            _check_steps(asked.centroids, steps, config)
        case MeansTask() as asked, Cells() as cells:
            kmeans_rounds.check_cells(cells, len(asked.centroids), config)
        case ((CellsTask() | SeedsTask()), Cells() as cells):
            kmeans_rounds.check_cells(cells, config.options.k, config)
        case _:
            raise kmeans_rounds.wrong_phase()


def _check_steps(centroids: NDArray[np.float64], payload: Steps, config: RunConfig) -> None:
    n_candidates, n_clusters, _ = centroids.shape
    width = kmeans_rounds.step_width(config)
    check_shape(payload.counts, (n_candidates, n_clusters), "/counts")
    check_shape(payload.sums, (n_candidates, n_clusters, width), "/sums")
    check_shape(payload.costs, (n_candidates, n_clusters), "/costs")
    for i in range(n_candidates):
        try:
            kmeans_rounds.check_step(payload.step(i), centroids[i], config)
        except RuleViolation as error:
            _, field, *rest = error.pointer.split("/")
            raise RuleViolation(
                error.rule, f"candidate {i}: {error.message}", "/".join(["", field, str(i), *rest])
            ) from None
