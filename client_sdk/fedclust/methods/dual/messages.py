"""What the sites of ``dual`` are asked and answer, and how both ends check it.

A dual answer is checked against the site's own cells, which tell n, mean and scatter of all its
points: its clusters must add up to them, its centroids must be the best for its clusters, and its
value must be one that they allow. A value that is too low does not show: a site can always claim
less than it could prove.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import FiniteFloat

from fedclust.methods.common import kmeans_rounds
from fedclust.methods.common.cluster_sums import check_sizes
from fedclust.methods.common.kmeans_rounds import CellsTask
from fedclust.methods.dual.config import Config
from fedclust.methods.dual.feasible_set import Part, Region
from fedclust.methods.dual.multiplier_update import SiteModel
from fedclust.numeric.arrays import FloatMatrix, FloatTensor3, FloatVector, IntMatrix, IntVector
from fedclust.protection.message_checks import SLACK, check_empty, check_means, check_shape
from fedclust.schema.errors import RuleViolation
from fedclust.schema.model import Model
from fedclust.schema.run_config import RunConfig
from fedclust.schema.scaling import scaled_bounds
from fedclust.schema.task import CentroidTask, Disclosure, Phase, SiteTask

#: The kinds of rounds.
CELLS, DUAL, PRIMAL = "cells", "dual", "primal"
#: The most sets of centroids that a primal round measures.
MOST_CANDIDATES = 10
#: Relative: a claimed dual value or cost may differ by this from what the same numbers come to.
TOLERANCE = 1e-7
#: Of a number far from 0, what may be lost of it in scaling and adding up, as a part of it.
_LAST_DIGITS = 1e-14

# --- Payloads -------------------------------------------------------------------------------------


class DualCells(kmeans_rounds.Cells):
    """A site's local cells.

    Attributes
    ----------
    counts : (K,) int64
        Persons in each cell; 0 for the cells that are not there, whose means and costs are 0.
    means : (K, d) float64
        Scaled.
    costs : (K,) float64
        Squared distances of the points from their cell's mean, added up.
    """

    costs: FloatVector


class DualTask(Model):
    """Solve your clustering problem for your own multipliers.

    Attributes
    ----------
    references : (K, d) float64
        Scaled: what the symmetry form compares centroids with.
    origin : (d,) float64
        Scaled: about it objective and multipliers are reckoned.
    lower, upper : (K, d) float64 or None
        Scaled: where each centroid may be in this round, within the declared bounds; None where
        these are all there is.
    """

    references: FloatMatrix
    origin: FloatVector
    lower: FloatMatrix | None = None
    upper: FloatMatrix | None = None


class DualPart(Model):
    """A site's own part of a dual round.

    Attributes
    ----------
    multipliers : (K, d) float64
        The part A_i^T lambda of this site (equation 11).
    digest : str
        Of the multipliers: the answer repeats it.
    n : int
        Persons, as this site's cells told: the answer is checked by it and by what follows.
    mean : (d,) float64
        Of all its points.
    scatter : float
        The sum of their squared distances from that mean.
    """

    multipliers: FloatMatrix
    digest: str
    n: int
    mean: FloatVector
    scatter: float


class DualAnswer(Model):
    """A site's answer to a dual round.

    Attributes
    ----------
    digest : str
        Of the multipliers that it was computed for.
    counts : (K,) int64
        Persons in each cluster of the node problem's optimal assignment.
    means : (K, d) float64
        Of these, scaled.
    centroids : (K, d) float64
        The node problem's, scaled; of an empty cluster as well.
    value : float
        Proven lower bound of the node problem, about the task's origin.
    limited : bool
        Whether the search ended at the node limit: the value is then proven, but not the optimum.
    """

    digest: str
    counts: IntVector
    means: FloatMatrix
    centroids: FloatMatrix
    value: FiniteFloat
    limited: bool


class PrimalTask(CentroidTask):
    """Assign your points to the nearest of each candidate's centroids; ties to the lowest.

    Attributes
    ----------
    centroids : (C, K, d) float64
        Scaled.
    """

    centroids: FloatTensor3


class PrimalPart(Model):
    """A site's own part of a primal round: its persons, as its cells told."""

    n: int


class PrimalAnswer(Model):
    """A site's part of the inertia of each candidate; its sums serve a Lloyd step.

    Attributes
    ----------
    counts : (C, K) int64
        Persons.
    sums : (C, K, d) float64
        Scaled.
    costs : (C, K) float64
        Squared distances of the points from the candidate's centroid, added up.
    """

    counts: IntMatrix
    sums: FloatTensor3
    costs: FloatMatrix


AnyTask: TypeAlias = CellsTask | DualTask | PrimalTask
AnyPayload: TypeAlias = DualCells | DualAnswer | PrimalAnswer

PHASES = (
    replace(
        kmeans_rounds.CELLS,
        payload=DualCells,
        needs_all=True,
        discloses=(
            *kmeans_rounds.CELLS.discloses,
            Disclosure(
                field="costs",
                shape="K numbers",
                meaning="How far the records of each cell lie from its mean, squared and added up.",
                identifies=kmeans_rounds.GROUP_SUMS,
            ),
        ),
    ),
    Phase(
        name=DUAL,
        summary="Each site solves its own clustering problem for its own multipliers: a proven "
        "lower bound of what any centroids cost.",
        task=DualTask,
        site_part=DualPart,
        payload=DualAnswer,
        needs_all=True,
        ends_with_site=True,
        discloses=(
            Disclosure(
                field="digest",
                shape="64 characters",
                meaning="Which multipliers the answer belongs to.",
                identifies="Nothing.",
            ),
            Disclosure(
                field="counts",
                shape="K numbers",
                meaning="How many of your persons are in each cluster of your best assignment.",
                identifies=kmeans_rounds.GROUP_SUMS,
            ),
            Disclosure(
                field="means",
                shape="K x d numbers",
                meaning="The mean of each column over these, scaled.",
                identifies=kmeans_rounds.GROUP_SUMS,
            ),
            Disclosure(
                field="centroids",
                shape="K x d numbers",
                meaning="Your problem's centroids. They follow from counts, means and the "
                "multipliers. The sites before and after yours in the order of names can compute "
                "them: the first and the last site learn their one neighbour's exactly.",
                identifies=kmeans_rounds.GROUP_SUMS,
            ),
            Disclosure(
                field="value",
                shape="one number",
                meaning="How well your points can be clustered at best with these multipliers.",
                identifies=kmeans_rounds.GROUP_SUMS,
            ),
            Disclosure(
                field="limited",
                shape="yes or no",
                meaning="Whether the search for it ended at its node limit.",
                identifies="How hard the problem is; no person.",
            ),
        ),
    ),
    Phase(
        name=PRIMAL,
        summary="Each site measures what the same centroids cost, of each of C candidates: an "
        "upper bound.",
        task=PrimalTask,
        site_part=PrimalPart,
        payload=PrimalAnswer,
        needs_all=True,
        ends_with_site=True,
        discloses=tuple(
            line.model_copy(update={"shape": f"C x {line.shape}"})
            for line in kmeans_rounds.STEP.discloses
        ),
    ),
)


def digest_of(multipliers: NDArray[np.float64]) -> str:
    """Return the SHA-256 of multipliers (K, d), little-endian."""
    return hashlib.sha256(np.ascontiguousarray(multipliers, dtype="<f8").tobytes()).hexdigest()


def region_of(task: DualTask, config: RunConfig[Config]) -> Region:
    """Return where a round's centroids may be, about its origin.

    Raises
    ------
    RuleViolation
        If the task's boxes or references are not within the declared bounds, or the symmetry form
        has no boxes.
    """
    if (task.lower is None) != (task.upper is None):
        raise RuleViolation("task", "a round's boxes have lower and upper bounds", "/lower")
    lower, upper = scaled_bounds(config)
    references = task.references - task.origin
    try:
        whole = Region(
            lower - task.origin, upper - task.origin, references, config.options.symmetry
        )
        if task.lower is None or task.upper is None:
            return whole
        return replace(whole, part=Part(task.lower - task.origin, task.upper - task.origin))
    except ValueError as error:
        message = f"the round's boxes or references cannot be used: {error}"
        raise RuleViolation("task", message, "/parameters") from None


def objective_of(
    model: SiteModel, centroids: NDArray[np.float64], mu: NDArray[np.float64]
) -> float:
    """Return what an assignment costs with centroids and multipliers (K, d), about one origin."""
    square = model.counts @ (centroids**2).sum(axis=1) + model.square
    return float(square + ((mu - 2.0 * model.sums) * centroids).sum())


def check_task(task: SiteTask[AnyTask], config: RunConfig[Config]) -> None:
    """Refuse other numbers of clusters, candidates or restarts, and boxes without ``splits``."""
    options = config.options
    match task.common, task.site:
        case CellsTask() as asked, _:
            kmeans_rounds.check_cells_task(asked, options.n_clusters, options.n_init)
            return
        case DualTask() as asked, DualPart() as part:
            n_clusters, d = len(asked.references), len(config.columns)
            check_shape(asked.references, (n_clusters, d), "/parameters/references")
            check_shape(asked.origin, (d,), "/parameters/origin")
            check_shape(part.multipliers, (n_clusters, d), "/site/multipliers")
            if asked.lower is not None and not options.splits:
                raise RuleViolation("task", "the definition allows no splits", "/parameters/lower")
        case PrimalTask() as asked, PrimalPart():
            n_candidates, n_clusters, d = asked.centroids.shape
            if not 1 <= n_candidates <= MOST_CANDIDATES or d != len(config.columns):
                raise RuleViolation(
                    "task",
                    f"a primal round measures 1 to {MOST_CANDIDATES} sets of centroids",
                    "/parameters/centroids",
                )
        case _:
            raise RuleViolation("task", "each site has a part of this round's task", "/site")
    if not 1 <= n_clusters <= options.n_clusters:
        raise RuleViolation(
            "task", f"the definition names {options.n_clusters} clusters", "/parameters"
        )


def check(task: SiteTask[AnyTask], payload: AnyPayload, config: RunConfig[Config]) -> None:
    """Check an answer at either end: shapes, counts, bounds, costs, dual values."""
    match task.common, task.site, payload:
        case CellsTask() as asked, _, DualCells() as cells:
            kmeans_rounds.check_cells(cells, asked.n_clusters, config)
            check_shape(cells.costs, cells.counts.shape, "/costs")
            check_empty(cells.counts, cells.costs, "/costs")
            if (cells.costs < 0).any():
                raise RuleViolation("cost", "a sum of squares is negative", "/costs")
        case DualTask() as asked, DualPart() as part, DualAnswer() as answer:
            _check_dual(asked, part, answer, config)
        case PrimalTask() as asked, PrimalPart(n=n), PrimalAnswer() as answer:
            _check_primal(asked.centroids, n, answer, config)
        case _:
            raise TypeError("the answer is of another phase than the task")


def _check_primal(
    candidates: NDArray[np.float64], n: int, payload: PrimalAnswer, config: RunConfig
) -> None:
    check_shape(payload.counts, candidates.shape[:2], "/counts")
    check_shape(payload.sums, candidates.shape, "/sums")
    check_shape(payload.costs, candidates.shape[:2], "/costs")
    if (payload.counts.sum(axis=1) != n).any():
        raise RuleViolation("counts", "the counts do not add up to those of the cells", "/counts")
    each = zip(payload.counts, payload.sums, payload.costs, strict=True)
    for centroids, (counts, sums, costs) in zip(candidates, each, strict=True):
        kmeans_rounds.check_step(
            kmeans_rounds.Step(counts=counts, sums=sums, costs=costs), centroids, config
        )


def _check_dual(
    task: DualTask, part: DualPart, payload: DualAnswer, config: RunConfig[Config]
) -> None:
    n_clusters, d = task.references.shape
    lower, upper = scaled_bounds(config)
    check_shape(payload.counts, (n_clusters,), "/counts")
    check_shape(payload.means, (n_clusters, d), "/means")
    check_shape(payload.centroids, (n_clusters, d), "/centroids")
    if payload.digest != part.digest:
        raise RuleViolation(
            "multipliers",
            "the answer was computed for other multipliers than this round's: compute it anew "
            "from the task",
            "/digest",
        )
    check_sizes(payload.counts, config)
    check_empty(payload.counts, payload.means, "/means")
    check_means(payload.counts, payload.means, lower, upper, "/means")
    check_means(np.ones(n_clusters, dtype=np.int64), payload.centroids, lower, upper, "/centroids")
    region = region_of(task, config)
    inside = np.clip(payload.centroids - task.origin, *region.boxes) + task.origin
    astray = np.abs(payload.centroids - inside) > 1e3 * region.tolerance
    if astray.any():
        cluster, feature = np.argwhere(astray)[0]
        raise RuleViolation(
            "bounds",
            f"the centroid of cluster {cluster} lies outside of this round's box",
            f"/centroids/{cluster}/{feature}",
        )
    space = config.space
    noise = _LAST_DIGITS * float(np.abs(space.center / space.scale).max(initial=0.0))
    _check_value(region, task.origin, part, payload, noise)


def _check_value(
    region: Region,
    origin: NDArray[np.float64],
    part: DualPart,
    payload: DualAnswer,
    noise: float,
) -> None:
    """Check an assignment, its centroids and its value against all of the site's points.

    ``noise`` is what rounding may have left of a scaled mean, of points far from 0.
    """
    counts = payload.counts.astype(np.float64)
    means, centroids = payload.means - origin, payload.centroids - origin
    mean, mu = part.mean - origin, part.multipliers
    sums = counts[:, None] * means
    square = part.scatter + part.n * float(mean @ mean)
    size = np.abs(mean).max(initial=0.0) + np.abs(means).max(initial=0.0)
    if (
        payload.counts.sum() != part.n
        or (
            np.abs(sums.sum(axis=0) - part.n * mean)
            > part.n * (10 * SLACK * max(size, 1.0) + noise)
        ).any()
    ):
        raise RuleViolation(
            "assignment", "the clusters do not add up to what the cells told", "/counts"
        )
    wide = float(np.maximum(-region.lower, region.upper).max())
    slack = TOLERANCE * (square + np.abs(mu).sum() * wide) + SLACK * part.n * wide**2
    slack += noise * (part.n * wide + np.abs(mu).sum())
    if float(counts @ (means**2).sum(axis=1)) > square + slack:
        raise RuleViolation(
            "assignment", "the clusters' means lie farther apart than all points do", "/means"
        )
    if region.violation(centroids) > 1e3 * region.tolerance:
        raise RuleViolation(
            "symmetry", "the centroids break the session's symmetry form", "/centroids"
        )
    model = SiteModel(counts=payload.counts, sums=sums, square=square)
    objective = objective_of(model, centroids, mu)
    # The box alone allows no more than box and symmetry: where that suffices nothing is searched.
    suffices = objective <= _box_minimum(region, counts, sums, mu) + square + slack
    if not suffices and (
        objective > region.optimal_centroids(counts, sums, mu)[1] + square + slack
    ):
        raise RuleViolation(
            "dual-value",
            "the centroids are not those that are best for the counts and means",
            "/centroids",
        )
    value = payload.value
    if value > objective + slack:
        raise RuleViolation(
            "dual-value", "the value contradicts the centroids: they reach a lower one", "/value"
        )
    for together in part.n * np.eye(len(counts)):
        # All points in one cluster: its cost is known from the cells.
        everything = together[:, None] * mean
        if value <= _box_minimum(region, together, everything, mu) + square + slack:
            continue
        if value > region.optimal_centroids(together, everything, mu)[1] + square + slack:
            raise RuleViolation(
                "dual-value", "the value exceeds what the declared bounds allow", "/value"
            )
    if value < np.minimum(mu * region.boxes.lower, mu * region.boxes.upper).sum() - slack:
        raise RuleViolation(
            "dual-value", "the value is lower than any points could make it", "/value"
        )


def _box_minimum(
    region: Region,
    counts: NDArray[np.float64],
    sums: NDArray[np.float64],
    mu: NDArray[np.float64],
) -> float:
    """Return the least of ``sum_k n_k|m_k|^2 - 2 s_k.m_k + mu_k.m_k`` in the box alone."""
    n_rows, slopes = counts[:, None], mu - 2.0 * sums
    lower, upper = region.boxes
    corner = np.where(slopes > 0, lower, upper)
    inner = -slopes / np.where(n_rows > 0, 2.0 * n_rows, 1.0)
    best = np.clip(np.where(n_rows > 0, inner, corner), lower, upper)
    return float((n_rows * best**2 + slopes * best).sum())
