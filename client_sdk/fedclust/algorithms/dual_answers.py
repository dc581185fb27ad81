"""What the sites of ``dual`` are asked and answer, and how both ends check it.

A dual answer is checked against what the site told of all its rows: its clusters must add up to
them, its centroids must be the best for its clusters, and its value must be one that they allow.
That a value is too low shows nowhere: a site can always claim less than it could prove.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import FiniteFloat, StringConstraints

from fedclust.algorithms import guarded_lloyd as lloyd
from fedclust.algorithms.arrays import (
    BoolVector,
    FloatMatrix,
    FloatTensor3,
    FloatVector,
    IntMatrix,
    IntVector,
)
from fedclust.algorithms.base import Disclosure, Model, Phase, RuleViolation, RunConfig, SiteTask
from fedclust.algorithms.dual_masters import SiteModel
from fedclust.algorithms.dual_region import Part, Region
from fedclust.algorithms.spaces import scaled_bounds
from fedclust.algorithms.totals import SitePart, check_sizes
from fedclust.privacy.checks import (
    SLACK,
    check_complement,
    check_costs,
    check_counts,
    check_empty,
    check_means,
    check_shape,
)

#: The two kinds of rounds, and what the guard calls their partitions.
DUAL, PRIMAL = "dual", "primal"
#: Relative: a claimed dual value or cost may differ by this from what the same numbers come to.
TOLERANCE = 1e-7
#: Of a number far from 0, what may be lost of it in scaling and adding up, as a part of it.
_LAST_DIGITS = 1e-14

# --- Payloads -------------------------------------------------------------------------------------


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
        these are all there is. A site whose smallest count is above 1 answers no such task.
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
    rows : int
        What this site told of all its rows, to check its answer by.
    mean : (d,) float64
    scatter : float
        The sum of its rows' squared distances from their mean.
    """

    multipliers: FloatMatrix
    digest: str
    rows: int
    mean: FloatVector
    scatter: float


class DualAnswer(Model):
    """A site's answer to a dual round.

    Attributes
    ----------
    digest : str
        Of the multipliers that it was computed for.
    sent : (K,) bool
        Which clusters are told; all false where the assignment may not be sent: the coordinator
        goes on with the last one that was.
    counts : (K,) int64
        Rows in each cluster of the node problem's optimal assignment.
    means : (K, d) float64
        Of these rows, scaled.
    centroids : (K, d) float64
        The node problem's, scaled; of an empty cluster as well.
    value : float or None
        Proven lower bound of the node problem, about the task's origin; None unless every cluster
        is told.
    limited : bool
        Whether the search ended at the node limit: the value is then proven, but not the optimum.
    """

    digest: str
    sent: BoolVector
    counts: IntVector
    means: FloatMatrix
    centroids: FloatMatrix
    value: FiniteFloat | None = None
    limited: bool = False


class PrimalTask(Model):
    """Assign your rows to the nearest of each candidate's centroids; ties to the lowest.

    Attributes
    ----------
    names : tuple of str, length C
        Of the candidates.
    centroids : (C, K, d) float64
        Scaled.
    """

    names: tuple[Annotated[str, StringConstraints(pattern=r"^primal-[0-9]{1,3}$")], ...]
    centroids: FloatTensor3


class PrimalAnswer(Model):
    """A site's part of the inertia of each candidate; its sums serve a Lloyd step.

    Attributes
    ----------
    counts : (C, K) int64
    sums : (C, K, d) float64
        Scaled.
    costs : (C, K) float64
        Squared distances of the rows from the candidate's centroid, added up.
    exact : (C,) bool
        Whether no share was rounded; a candidate where one was has no upper bound.
    """

    counts: IntMatrix
    sums: FloatTensor3
    costs: FloatMatrix
    exact: BoolVector


_WHOLE = (
    "Told only of clusters of no rows or at least the smallest count of persons, of the very "
    "assignment that solves your part, and only where it differs from all that was sent before by "
    "no row or that many persons. Otherwise nothing goes out in this round but that it is so."
)
PHASES = (
    replace(lloyd.PHASES[0], needs_all=True),
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
                identifies="Nothing of your rows.",
            ),
            Disclosure(
                field="sent",
                shape="K yes/no",
                meaning="Which clusters of your optimal assignment are told.",
                identifies="That a cluster is not told says that it is small, or too like an "
                "earlier one.",
            ),
            Disclosure(
                field="counts",
                shape="K numbers",
                meaning="How many of your rows are in each of these clusters.",
                identifies=_WHOLE,
            ),
            Disclosure(
                field="means",
                shape="K x d numbers",
                meaning="The mean of each feature over these rows, scaled.",
                identifies=_WHOLE,
            ),
            Disclosure(
                field="centroids",
                shape="K x d numbers",
                meaning="Your problem's centroids. They follow from counts, means and the "
                "multipliers. The sites before and after yours in the order of names can "
                "reckon them: the first and the last site see their one neighbour's exactly.",
                identifies=_WHOLE,
            ),
            Disclosure(
                field="value",
                shape="one number",
                meaning="How well your rows can be clustered at best with these multipliers.",
                identifies="Told only together with the whole assignment, from which it follows; "
                "where the search ended at its limit, what would hold for any rows is told.",
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
        site_part=SitePart,
        payload=PrimalAnswer,
        needs_all=True,
        ends_with_site=True,
        discloses=(
            *(
                line.model_copy(update={"shape": f"C x {line.shape}"})
                for line in lloyd.PHASES[1].discloses
                if line.field != "totals"
            ),
            Disclosure(
                field="exact",
                shape="C yes/no",
                meaning="Whether no share of a yes/no feature or level had to be rounded.",
                identifies="That fewer than the smallest count have, or lack, one; not who.",
            ),
        ),
    ),
)


def digest_of(multipliers: NDArray[np.float64]) -> str:
    """Return the SHA-256 of multipliers (K, d), little-endian."""
    return hashlib.sha256(np.ascontiguousarray(multipliers, dtype="<f8").tobytes()).hexdigest()


def region_of(task: DualTask, config: RunConfig) -> Region:
    """Return where a round's centroids may be, about its origin.

    Raises
    ------
    RuleViolation
        If the task's boxes are not within the declared bounds, or the symmetry form has none.
    """
    lower, upper = scaled_bounds(config)
    symmetry = config.options.symmetry
    whole = Region(
        lower - task.origin, upper - task.origin, task.references - task.origin, symmetry
    )
    if task.lower is None and task.upper is None:
        return whole
    if task.lower is None or task.upper is None:
        raise RuleViolation("task", "a round's boxes have lower and upper bounds", "/lower")
    part = Part(task.lower - task.origin, task.upper - task.origin)
    try:
        return replace(whole, part=part)
    except ValueError as error:
        message = f"the round's boxes cannot be used: {error}"
        raise RuleViolation("task", message, "/lower") from None


def objective_of(
    model: SiteModel, centroids: NDArray[np.float64], mu: NDArray[np.float64]
) -> float:
    """Return what an assignment costs with centroids and multipliers (K, d), about one origin."""
    square = model.counts @ (centroids**2).sum(axis=1) + model.square
    return float(square + ((mu - 2.0 * model.sums) * centroids).sum())


def check(task: SiteTask, payload: object, config: RunConfig) -> None:
    """Check an answer at either end: shapes, counts, complement, bounds, costs, dual values."""
    if isinstance(payload, lloyd.Cells):
        lloyd.check(task, payload, config)
    elif isinstance(payload, DualAnswer):
        _check_dual(task.common, task.site, payload, config)
    elif isinstance(payload, PrimalAnswer):
        _check_primal(task, payload, config)
    else:
        raise TypeError("an answer of none of this method's phases")


def _check_primal(task: SiteTask, payload: PrimalAnswer, config: RunConfig) -> None:
    candidates = task.common.centroids
    lower, upper = scaled_bounds(config)
    check_shape(payload.counts, candidates.shape[:2], "/counts")
    check_shape(payload.sums, candidates.shape, "/sums")
    check_shape(payload.costs, candidates.shape[:2], "/costs")
    check_shape(payload.exact, candidates.shape[:1], "/exact")
    for i, centroids in enumerate(candidates):
        counts, sums, costs = payload.counts[i], payload.sums[i], payload.costs[i]
        check_sizes(counts, None, task.site, config, f"/counts/{i}")
        check_empty(counts, sums, f"/sums/{i}")
        check_empty(counts, costs, f"/costs/{i}")
        means = sums / np.maximum(counts, 1)[:, None]
        check_means(counts, means, lower, upper, f"/sums/{i}")
        check_costs(counts, sums, costs, centroids, f"/costs/{i}")


def _check_dual(task: DualTask, part: DualPart, payload: DualAnswer, config: RunConfig) -> None:
    n_clusters, d = task.references.shape
    lower, upper = scaled_bounds(config)
    check_shape(payload.sent, (n_clusters,), "/sent")
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
    check_counts(payload.counts, config.p)
    check_complement(part.rows, payload.counts, config.p)
    check_empty(payload.counts, payload.means, "/means")
    check_means(payload.counts, payload.means, lower, upper, "/means")
    untold = ~payload.sent
    if payload.counts[untold].any() or payload.centroids[untold].any():
        raise RuleViolation("untold", "a cluster that is not told has no numbers", "/sent")
    told = payload.sent.astype(np.int64)
    check_means(told, payload.centroids, lower, upper, "/centroids")
    region = region_of(task, config)
    inside = np.clip(payload.centroids - task.origin, *region.boxes) + task.origin
    astray = np.abs(payload.centroids - inside) > 1e3 * region.tolerance
    if (astray & payload.sent[:, None]).any():
        cluster, feature = np.argwhere(astray & payload.sent[:, None])[0]
        raise RuleViolation(
            "bounds",
            f"the centroid of cluster {cluster} lies outside of this round's box",
            f"/centroids/{cluster}/{feature}",
        )
    if region.part is not None and config.p > 1 and payload.sent.any():
        raise RuleViolation(
            "boxes",
            "a site whose smallest count is above 1 tells nothing of a round's boxes",
            "/sent",
        )
    if not payload.sent.all():
        if payload.value is not None:
            raise RuleViolation(
                "dual-value",
                "a dual value is told only together with its whole assignment",
                "/value",
            )
        return
    if payload.value is None:
        raise RuleViolation("dual-value", "a whole assignment comes with its value", "/value")
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
    """Check a whole assignment, its centroids and its value against the site's totals.

    ``noise`` is what rounding may have left of a scaled mean, of rows far from 0.
    """
    counts = payload.counts.astype(np.float64)
    means, centroids = payload.means - origin, payload.centroids - origin
    mean, mu = part.mean - origin, part.multipliers
    sums = counts[:, None] * means
    square = part.scatter + part.rows * float(mean @ mean)
    size = np.abs(mean).max(initial=0.0) + np.abs(means).max(initial=0.0)
    if (
        payload.counts.sum() != part.rows
        or (
            np.abs(sums.sum(axis=0) - part.rows * mean)
            > part.rows * (10 * SLACK * max(size, 1.0) + noise)
        ).any()
    ):
        raise RuleViolation(
            "assignment", "the clusters' rows do not add up to what was told of all rows", "/counts"
        )
    wide = float(np.maximum(-region.lower, region.upper).max())
    slack = TOLERANCE * (square + np.abs(mu).sum() * wide) + SLACK * part.rows * wide**2
    slack += noise * (part.rows * wide + np.abs(mu).sum())
    if float(counts @ (means**2).sum(axis=1)) > square + slack:
        raise RuleViolation(
            "assignment", "the clusters' means lie farther apart than all rows do", "/means"
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
    value = float(payload.value or 0.0)
    if value > objective + slack:
        raise RuleViolation(
            "dual-value", "the value contradicts the centroids: they reach a lower one", "/value"
        )
    for together in part.rows * np.eye(len(counts)):
        # All rows in one cluster: its cost is known from what was told of all rows.
        everything = together[:, None] * mean
        if value <= _box_minimum(region, together, everything, mu) + square + slack:
            continue
        if value > region.optimal_centroids(together, everything, mu)[1] + square + slack:
            raise RuleViolation(
                "dual-value", "the value exceeds what the declared bounds allow", "/value"
            )
    if value < np.minimum(mu * region.boxes.lower, mu * region.boxes.upper).sum() - slack:
        raise RuleViolation(
            "dual-value", "the value is lower than any rows could make it", "/value"
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
