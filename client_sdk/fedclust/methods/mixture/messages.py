"""The tasks and messages of ``mixture``, and their checks.

The first partition counts persons, so each count is 0 or at least p. The sums of EM weigh every
artificial person by a class's probability: no number among them counts persons, and none has a
least value. They are checked for shapes, declared bounds and totals.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field, FiniteFloat

from fedclust.methods.common.given_start import StartOptions
from fedclust.methods.common.kmeans_rounds import check_sizes
from fedclust.methods.common.options import Tolerance
from fedclust.methods.mixture.classes import NUMBER, Classes, column_kinds
from fedclust.numeric.array_types import BoolArray, FloatArray
from fedclust.numeric.arrays import FloatMatrix, FloatVector, IntVector
from fedclust.protection.message_checks import SLACK, check_empty, check_shape
from fedclust.schema.errors import RuleViolation
from fedclust.schema.model import Model
from fedclust.schema.run_config import RunConfig
from fedclust.schema.scaling import scaled_bounds
from fedclust.schema.size_bands import check_not_above
from fedclust.schema.task import CentroidTask, SiteTask

# --- Options --------------------------------------------------------------------------------------


class Config(StartOptions, title="MixtureConfig"):
    """Options of ``mixture``.

    Attributes
    ----------
    proportions : {"common", "by_site"}
        Whether all sites have the classes in the same proportions, or each site in its own. A
        site's own proportions do not leave it.
    reg_covar : float
        Added to every variance, scaled, as in scikit-learn.
    tol : float
        Relative gain of the log-likelihood below which a round counts as no improvement.
    """

    proportions: Literal["common", "by_site"] = "common"
    reg_covar: Annotated[FiniteFloat, Field(ge=0, le=1)] = 1e-6
    tol: Tolerance = 1e-6

    @property
    def phases(self) -> tuple[str, ...]:
        """The phases of a session; given centroids need no cells."""
        own = ("partition", "em")
        return own if self.start == "given" else ("cells", *own)


# --- What travels ---------------------------------------------------------------------------------


class PartitionTask(CentroidTask, title="MixturePartitionTask"):
    """Assign your points to the nearest of ``centroids`` (K, d), scaled; ties go to the first."""

    centroids: FloatMatrix


class EMTask(CentroidTask, title="MixtureEMTask"):
    """Weigh your points by the probabilities of the classes.

    Attributes
    ----------
    centroids : (K, d) float64
        The classes' means, scaled.
    variances : (K, d) float64
        Scaled; 1 in columns of yes/no and of levels.
    proportions : (K,) float64
    """

    centroids: FloatMatrix
    variances: FloatMatrix
    proportions: FloatVector

    @property
    def classes(self) -> Classes:
        """The parameters to weigh by."""
        return Classes(proportions=self.proportions, means=self.centroids, variances=self.variances)


class Partition(Model, title="MixturePartition"):
    """A site's sums over the first partition: additive.

    Attributes
    ----------
    counts : (K,) int64
        Persons.
    offsets : (K, d) float64
        Sums of differences from the task's centroid, scaled.
    squares : (K, d) float64
        Sums of squared differences; 0 in columns of yes/no and of levels.
    """

    counts: IntVector
    offsets: FloatMatrix
    squares: FloatMatrix


class Weighted(Model, title="MixtureSums"):
    """A site's sums over its persons, weighted by the probabilities of the classes: additive.

    Attributes
    ----------
    totals : (K,) float64
        Sums of probabilities; in all the site's persons.
    offsets, squares : (K, d) float64
        As in :class:`Partition`.
    log_likelihood : float
        In the scaled space.
    entropy : float
        Sum of -p log p of the probabilities p, over persons and classes.
    """

    totals: FloatVector
    offsets: FloatMatrix
    squares: FloatMatrix
    log_likelihood: FiniteFloat
    entropy: FiniteFloat


# --- Tasks ----------------------------------------------------------------------------------------


def check_em_task(task: SiteTask[EMTask], config: RunConfig) -> None:
    """Raise RuleViolation if a task's classes are no mixture."""
    shape = (len(task.common.centroids), len(config.columns))
    check_classes(task.common.classes, shape, "/parameters")


def check_classes(classes: Classes, shape: tuple[int, int], pointer: str) -> None:
    """Raise RuleViolation unless these are parameters of a mixture of K classes, d columns."""
    check_shape(classes.variances, shape, f"{pointer}/variances")
    check_shape(classes.proportions, shape[:1], f"{pointer}/proportions")
    if not (classes.variances > 0).all():
        raise RuleViolation("mixture", "a variance is positive", f"{pointer}/variances")
    proportions = classes.proportions
    if not (proportions >= 0).all() or abs(float(proportions.sum()) - 1.0) > SLACK:
        raise RuleViolation("mixture", "proportions add up to 1", f"{pointer}/proportions")


# --- Messages -------------------------------------------------------------------------------------


def check_partition(task: SiteTask[PartitionTask], sent: Partition, config: RunConfig) -> None:
    """Check the first partition at either end: shapes, counts, bounds."""
    centroids = task.common.centroids
    check_shape(sent.counts, (len(centroids),), "/counts")
    check_sizes(sent.counts, config)
    _check_sums(sent, sent.counts.astype(np.float64), centroids, config)
    check_empty(sent.counts, sent.offsets, "/offsets")
    check_empty(sent.counts, sent.squares, "/squares")


def check_weighted(task: SiteTask[EMTask], sent: Weighted, config: RunConfig) -> None:
    """Check totals, sums, log-likelihood and entropy of a round of EM."""
    asked = task.common
    n_classes = len(asked.centroids)
    check_shape(sent.totals, (n_classes,), "/totals")
    persons = float(sent.totals.sum())
    if (sent.totals < 0).any():
        raise RuleViolation("totals", "probabilities are not negative", "/totals")
    if abs(persons - round(persons)) > SLACK * max(persons, 1.0):
        raise RuleViolation("totals", "the totals do not add up to persons", "/totals")
    if round(persons) < max(config.p, 1):
        raise RuleViolation("smallest-count", f"a site has at least {config.p} persons", "/totals")
    if config.size_band is not None:
        check_not_above(round(persons), config.size_band, "/totals")
    _check_sums(sent, sent.totals, asked.centroids, config)
    numbers = column_kinds(config.columns) == NUMBER
    peaks = -0.5 * np.log(2.0 * np.pi * asked.variances[:, numbers]).sum(axis=1)
    highest = persons * float(peaks.max())
    if sent.log_likelihood > highest + SLACK * max(abs(highest), persons):
        raise RuleViolation(
            "log-likelihood", "no records can fit these classes so well", "/log_likelihood"
        )
    most = persons * float(np.log(n_classes))
    if not -SLACK * persons <= sent.entropy <= most + SLACK * persons:
        raise RuleViolation("entropy", "it lies outside 0 to log K a person", "/entropy")


def _check_sums(
    sent: Partition | Weighted, totals: FloatArray, centroids: FloatArray, config: RunConfig
) -> None:
    """Check offsets and squares (K, d) from ``centroids``, of so many persons (K,)."""
    for name, values in (("offsets", sent.offsets), ("squares", sent.squares)):
        check_shape(values, centroids.shape, f"/{name}")
    # Sums are compared, not means: a class can have as good as no persons at a site.
    slack = SLACK * (1.0 + np.abs(centroids)) * max(float(totals.sum()), 1.0)
    for bound, sign in zip(scaled_bounds(config), (1.0, -1.0), strict=True):
        known = np.isfinite(bound)
        reach = totals[:, None] * (np.where(known, bound, 0.0) - centroids)
        wide = SLACK * np.abs(np.where(known, bound, 0.0)) * max(float(totals.sum()), 1.0)
        outside = sign * (reach - sent.offsets) > slack + wide
        _refuse(
            outside & known, "bounds", "the mean of column {} lies outside its bounds", "offsets"
        )
    numbers = column_kinds(config.columns) == NUMBER
    # Cauchy-Schwarz.
    lacking = sent.offsets**2 - totals[:, None] * sent.squares
    uneven = numbers & (lacking > SLACK * (sent.offsets**2) + slack**2)
    negative = sent.squares < 0
    _refuse(uneven | negative, "spread", "the squares of column {} do not fit its sum", "squares")
    _refuse(
        (sent.squares != 0) & ~numbers, "spread", "column {} is no number: 0 is sent", "squares"
    )


def _refuse(wrong: BoolArray, rule: str, message: str, name: str) -> None:
    """Raise for the first wrong class and column (K, d), which ``message`` has a place for."""
    if wrong.any():
        k, j = (int(place) for place in np.argwhere(wrong)[0])
        raise RuleViolation(rule, f"class {k}: {message.format(j)}", f"/{name}/{k}/{j}")
