"""The messages of ``dual``, and their checks at both ends.

A dual answer is checked against the site's own cells, which give number, mean and scatter of its
points: its clusters must add up to them, its centroids must be the best for its clusters, and its
value must be possible for both. A value that is too low cannot be detected: a site can always claim
less than it could prove.
"""

import hashlib
from dataclasses import replace
from typing import TypeVar

import numpy as np
from pydantic import FiniteFloat

from fedclust.methods.common import kmeans_rounds
from fedclust.methods.common.kmeans_rounds import CellsTask, Steps, check_sizes
from fedclust.numeric.array_types import FloatArray
from fedclust.numeric.arrays import FloatMatrix, FloatTensor3, FloatVector, IntVector
from fedclust.protection.message_checks import SLACK, check_empty, check_means, check_shapes
from fedclust.schema.errors import RuleViolation
from fedclust.schema.model import Model
from fedclust.schema.run_config import RunConfig
from fedclust.schema.scaling import scaled_bounds
from fedclust.schema.task import CentroidTask, SiteTask
from fedclust_dual.config import Config
from fedclust_dual.feasible_set import CentroidBounds, Region
from fedclust_dual.multiplier_update import SiteAssignment
from fedclust_dual.quadratic_program import box_minimiser

_PartT = TypeVar("_PartT", bound=Model)
#: Names of the phases.
CELLS, DUAL, PRIMAL = "cells", "dual", "primal"
#: Limit of candidate sets of centroids in a primal round.
MAX_CANDIDATES = 10
#: Relative error of a claimed dual value or cost.
_TOLERANCE = 1e-7
#: Relative rounding error of scaling and adding up numbers far from 0.
_ROUNDING = 1e-14
#: Violation of a region by sent centroids, in units of the region's own tolerance.
_VIOLATION = 1e3

# --- Payloads -------------------------------------------------------------------------------------


class DualCells(kmeans_rounds.Cells):
    """A site's local cells.

    Attributes
    ----------
    counts : (K,) int64
        Persons in each cell. Missing cells have counts, means and costs of 0.
    means : (K, d) float64
        Scaled.
    costs : (K,) float64
        Sum of the points' squared distances from their cell's mean.
    """

    costs: FloatVector


class DualTask(Model):
    """Solve your clustering problem for your own multipliers.

    Attributes
    ----------
    references : (K, d) float64
        The references of the symmetry form, scaled.
    origin : (d,) float64
        Objective and multipliers are relative to it, scaled.
    lower, upper : (K, d) float64 or None
        Bounds of each centroid in this round, scaled; None: the declared bounds.
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
        Digest of the multipliers, which the answer repeats.
    n : int
        Persons in this site's cells. The answer is checked against ``n``, ``mean`` and ``scatter``.
    mean : (d,) float64
        Mean of its points, scaled.
    scatter : float
        Sum of their squared distances from that mean.
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
        Digest of the multipliers that the answer belongs to.
    counts : (K,) int64
        Persons in each cluster of the node problem's best assignment.
    means : (K, d) float64
        Mean of each cluster, scaled.
    centroids : (K, d) float64
        The node problem's centroids, scaled, including those of empty clusters.
    value : float
        Proven lower bound of the node problem, relative to the task's origin.
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
    """A site's own part of a primal round: the number of persons in its cells."""

    n: int


# --- Tasks ----------------------------------------------------------------------------------------


def multiplier_digest(multipliers: FloatArray) -> str:
    """Return the SHA-256 of multipliers (K, d), little-endian."""
    return hashlib.sha256(np.ascontiguousarray(multipliers, dtype="<f8").tobytes()).hexdigest()


def task_region(task: DualTask, config: RunConfig[Config]) -> Region:
    """Return the feasible set of a round's centroids, relative to its origin.

    Raises
    ------
    RuleViolation
        If the task's boxes or references are not within the declared bounds, or the symmetry form
        does not allow boxes.
    """
    if (task.lower is None) != (task.upper is None):
        raise RuleViolation("task", "a round's boxes have lower and upper bounds", "/lower")
    lower, upper = scaled_bounds(config)
    references = task.references - task.origin
    try:
        region = Region(
            lower - task.origin, upper - task.origin, references, config.options.symmetry
        )
        if task.lower is None or task.upper is None:
            return region
        bounds = CentroidBounds(task.lower - task.origin, task.upper - task.origin)
        return replace(region, subdomain=bounds)
    except ValueError as error:
        message = f"the round's boxes or references cannot be used: {error}"
        raise RuleViolation("task", message, "/parameters") from None


def check_dual_task(task: SiteTask[DualTask], config: RunConfig[Config]) -> None:
    """Refuse another number of clusters, and boxes without ``splits``."""
    common = task.common
    n_clusters, d = len(common.references), len(config.columns)
    part = own_part(task, DualPart)
    check_shapes(common, "/parameters", references=(n_clusters, d), origin=(d,))
    check_shapes(part, "/site", multipliers=(n_clusters, d), mean=(d,))
    if common.lower is not None and not config.options.splits:
        raise RuleViolation("task", "the definition allows no splits", "/parameters/lower")
    _check_n_clusters(n_clusters, config.options)


def check_primal_task(task: SiteTask[PrimalTask], config: RunConfig[Config]) -> None:
    """Refuse another number of clusters or candidates."""
    own_part(task, PrimalPart)
    centroids = task.common.centroids
    if len(centroids) > MAX_CANDIDATES:
        raise RuleViolation(
            "task",
            f"a primal round measures 1 to {MAX_CANDIDATES} sets of centroids",
            "/parameters/centroids",
        )
    _check_n_clusters(centroids.shape[1], config.options)


def own_part(task: SiteTask, kind: type[_PartT]) -> _PartT:
    """Return a site's own part of a task; RuleViolation where it has none."""
    if not isinstance(task.site, kind):
        raise RuleViolation("task", "each site has a part of this round's task", "/site")
    return task.site


def _check_n_clusters(n_clusters: int, options: Config) -> None:
    if not 1 <= n_clusters <= options.n_clusters:
        raise RuleViolation(
            "task", f"the definition names {options.n_clusters} clusters", "/parameters"
        )


# --- Checks of answers ----------------------------------------------------------------------------


def check_cells(task: SiteTask[CellsTask], payload: DualCells, config: RunConfig) -> None:
    """Check cells at either end: shapes, counts, bounds, costs; RuleViolation."""
    kmeans_rounds.check_cells(payload, task.common.n_clusters, config)
    check_shapes(payload, costs=payload.counts.shape)
    check_empty(payload.counts, payload.costs, "/costs")
    if (payload.costs < 0).any():
        raise RuleViolation("cost", "a sum of squares is negative", "/costs")


def check_primal(task: SiteTask[PrimalTask], payload: Steps, config: RunConfig) -> None:
    """Check what candidates cost, at either end; RuleViolation."""
    candidates = task.common.centroids
    check_shapes(payload, counts=candidates.shape[:2])
    if (payload.counts.sum(axis=1) != own_part(task, PrimalPart).n).any():
        raise RuleViolation("counts", "the counts do not add up to those of the cells", "/counts")
    kmeans_rounds.check_steps(payload, candidates, config)


def check_dual(asked: SiteTask[DualTask], payload: DualAnswer, config: RunConfig[Config]) -> None:
    """Check a site's bound at either end: shapes, counts, bounds, dual value; RuleViolation."""
    task, part = asked.common, own_part(asked, DualPart)
    shape = n_clusters, _ = task.references.shape
    lower, upper = scaled_bounds(config)
    check_shapes(payload, counts=(n_clusters,), means=shape, centroids=shape)
    if payload.digest != part.digest:
        raise RuleViolation(
            "multipliers",
            "the answer was computed for other multipliers than this round's: compute it again "
            "from the task",
            "/digest",
        )
    check_sizes(payload.counts, config)
    check_empty(payload.counts, payload.means, "/means")
    check_means(payload.counts, payload.means, lower, upper, "/means")
    check_means(np.ones(n_clusters, dtype=np.int64), payload.centroids, lower, upper, "/centroids")
    region = task_region(task, config)
    clipped = np.clip(payload.centroids - task.origin, *region.centroid_bounds) + task.origin
    outside = np.abs(payload.centroids - clipped) > _VIOLATION * region.tolerance
    if outside.any():
        cluster, feature = np.argwhere(outside)[0]
        raise RuleViolation(
            "bounds",
            f"the centroid of cluster {cluster} lies outside of this round's box",
            f"/centroids/{cluster}/{feature}",
        )
    space = config.space
    noise = _ROUNDING * float(np.abs(space.center / space.scale).max(initial=0.0))
    answer = _DualAnswerCheck(region, task.origin, part, payload, noise)
    answer.check_assignment()
    answer.check_centroids()
    answer.check_value()


class _DualAnswerCheck:
    """Checks a dual answer, relative to the round's origin, against all points of the site.

    ``noise`` is the rounding error of a scaled mean of points far from 0.
    """

    def __init__(
        self,
        region: Region,
        origin: FloatArray,
        part: DualPart,
        payload: DualAnswer,
        noise: float,
    ) -> None:
        self.region, self.part, self.payload, self.noise = region, part, payload, noise
        self.counts = payload.counts.astype(np.float64)
        self.mean, self.means = part.mean - origin, payload.means - origin
        self.centroids, self.mu = payload.centroids - origin, part.multipliers
        self.sums = self.counts[:, None] * self.means
        #: The sum of the squares of all points.
        self.square = part.scatter + part.n * float(self.mean @ self.mean)
        assignment = SiteAssignment(counts=payload.counts, sums=self.sums, square=self.square)
        self.objective = assignment.objective(self.centroids, self.mu)
        reach, pull = float(np.maximum(-region.lower, region.upper).max()), np.abs(self.mu).sum()
        #: Rounding error of a cost.
        self.slack = _TOLERANCE * (self.square + pull * reach) + SLACK * part.n * reach**2
        self.slack += noise * (part.n * reach + pull)

    def check_assignment(self) -> None:
        """Check counts and means against number, mean and scatter of the points."""
        n = self.part.n
        size = np.abs(self.mean).max(initial=0.0) + np.abs(self.means).max(initial=0.0)
        difference = np.abs(self.sums.sum(axis=0) - n * self.mean)
        tolerance = n * (10 * SLACK * max(size, 1.0) + self.noise)
        if self.payload.counts.sum() != n or (difference > tolerance).any():
            raise RuleViolation(
                "assignment", "the clusters do not add up to the site's cells", "/counts"
            )
        if float(self.counts @ (self.means**2).sum(axis=1)) > self.square + self.slack:
            raise RuleViolation(
                "assignment", "the clusters' means lie farther apart than all points do", "/means"
            )

    def check_centroids(self) -> None:
        """Check that the centroids are in the region, and the best ones for the assignment."""
        if self.region.violation(self.centroids) > _VIOLATION * self.region.tolerance:
            raise RuleViolation(
                "symmetry", "the centroids break the session's symmetry form", "/centroids"
            )
        if self._exceeds_minimum(self.objective, self.counts, self.sums):
            raise RuleViolation(
                "dual-value",
                "the centroids are not the best ones for the counts and means",
                "/centroids",
            )

    def check_value(self) -> None:
        """Check the value against the centroids, the declared bounds and the points."""
        value = self.payload.value
        if value > self.objective + self.slack:
            raise RuleViolation(
                "dual-value",
                "the value contradicts the centroids: they reach a lower one",
                "/value",
            )
        # The cost of all points in one cluster is known from the cells.
        for counts in self.part.n * np.eye(len(self.counts)):
            if self._exceeds_minimum(value, counts, counts[:, None] * self.mean):
                raise RuleViolation(
                    "dual-value", "the value exceeds what the declared bounds allow", "/value"
                )
        if value < least_value(self.region, self.mu) - self.slack:
            raise RuleViolation(
                "dual-value", "the value is lower than any points could make it", "/value"
            )

    def _exceeds_minimum(self, value: float, counts: FloatArray, sums: FloatArray) -> bool:
        """Return whether a value is larger than the least cost of an assignment in the region."""
        limit = self.square + self.slack
        # The minimum in the box alone is a lower one, and cheap.
        weights, slopes = counts[:, None], self.mu - 2.0 * sums
        lower, upper = self.region.centroid_bounds
        best = box_minimiser(weights, -slopes, lower, upper, lower)
        if value <= float((weights * best**2 + slopes * best).sum()) + limit:
            return False
        least = self.region.optimal_centroids(counts, sums, self.mu)[1]
        return bool(value > least + limit)


def least_value(region: Region, mu: FloatArray) -> float:
    """Return the optimum of a node problem without points: no points have a lower one."""
    lower, upper = region.centroid_bounds
    return float(np.minimum(mu * lower, mu * upper).sum())
