"""The model of ``mixture``: its options, messages and their checks, its classes, and the EM steps.

The first partition counts persons, so each count is 0 or at least p. The sums of EM weigh every
artificial person by a class's probability: no number among them counts persons, and none has a
least value. They are checked for shapes, declared bounds and totals.
"""

from collections.abc import Collection, Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, FiniteFloat

from fedclust.methods.common.given_start import StartOptions
from fedclust.methods.common.kmeans_rounds import check_sizes
from fedclust.methods.common.options import Tolerance
from fedclust.numeric.array_types import BoolArray, FloatArray, IntArray
from fedclust.numeric.arrays import FloatMatrix, FloatVector, IntVector
from fedclust.protection.message_checks import SLACK, check_empty, check_shapes
from fedclust.schema.encoding import Column, Space
from fedclust.schema.errors import RuleViolation
from fedclust.schema.model import Model
from fedclust.schema.run_config import RunConfig
from fedclust.schema.scaling import scaled_bounds
from fedclust.schema.size_bands import check_not_above
from fedclust.schema.task import CentroidTask, SiteTask

# --- The classes ----------------------------------------------------------------------------------


#: Kinds of columns.
NUMBER, YES_NO, LEVEL = 0, 1, 2
#: A probability of a yes or a level counts as at least this: nothing is impossible in a class.
_RAREST = 1e-9
#: A proportion counts as at least this in logarithms.
_LEAST = 1e-300
#: Points at a time: their temporary arrays stay in the cache.
_BLOCK = 4096


class Classes(Model, title="MixtureClasses"):
    """The parameters of a mixture.

    Attributes
    ----------
    proportions : (K,) float64
    means : (K, d) float64
        Scaled: those of yes/no columns and levels become probabilities in own units.
    variances : (K, d) float64
        Scaled; 1 in columns of yes/no and of levels, where it is not used.
    """

    proportions: FloatVector
    means: FloatMatrix
    variances: FloatMatrix


def column_kinds(columns: Sequence[Column]) -> IntArray:
    """Return the kind (d,) of each column: ``NUMBER``, ``YES_NO`` or ``LEVEL``."""
    kinds = [
        NUMBER if column.kind == "numeric" else YES_NO if column.block is None else LEVEL
        for column in columns
    ]
    return np.array(kinds, dtype=np.int64)


def log_densities(X: FloatArray, classes: Classes, kinds: IntArray, space: Space) -> FloatArray:
    """Return the logarithm (m, K) of the density of each row in each class.

    Parameters
    ----------
    X : (m, d) float64
        Scaled.
    classes : Classes
    kinds : (d,) int64
    space : Space
    """
    found = np.empty((len(X), len(classes.means)))
    numbers, shares = kinds == NUMBER, kinds != NUMBER
    means, variances = classes.means[:, numbers], classes.variances[:, numbers]
    constants = -0.5 * np.log(2.0 * np.pi * variances).sum(axis=1)
    yes, no = _log_probabilities(classes.means, kinds, space)
    for begin in range(0, len(X), _BLOCK):
        block = slice(begin, begin + _BLOCK)
        rows = X[block, numbers]
        for k in range(len(means)):
            squares = (rows - means[k]) ** 2
            found[block, k] = constants[k] - 0.5 * (squares / variances[k]).sum(axis=1)
        if shares.any():
            own = np.clip(space.to_original(X[block])[:, shares], 0.0, 1.0)
            found[block] += own @ (yes - no).T + no.sum(axis=1)
    return found


def _log_probabilities(
    means: FloatArray, kinds: IntArray, space: Space
) -> tuple[FloatArray, FloatArray]:
    """Return logarithms of the probabilities of yes and of no, (K, s) each; 0 for no level.

    That a person does not have a level says nothing beyond which level the person has.
    """
    shares = kinds != NUMBER
    probabilities = space.to_original(means)[:, shares]
    yes = np.log(np.clip(probabilities, _RAREST, 1.0))
    no = np.log(np.clip(1.0 - probabilities, _RAREST, 1.0))
    return yes, np.where(kinds[shares] == YES_NO, no, 0.0)


def posterior(densities: FloatArray, proportions: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the classes' probabilities (m, K), and the logarithm (m,) of the mixture's density.

    Parameters
    ----------
    densities : (m, K) float64
        Of :func:`log_densities`.
    proportions : (K,) float64
    """
    joint = densities + np.log(np.maximum(proportions, _LEAST))
    highest = joint.max(axis=1)
    ratios = np.exp(joint - highest[:, None])
    totals = ratios.sum(axis=1)
    return ratios / totals[:, None], highest + np.log(totals)


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


# --- Checks at either end -------------------------------------------------------------------------


def check_em_task(task: SiteTask[EMTask], config: RunConfig) -> None:
    """Raise RuleViolation if a task's classes are no mixture."""
    shape = (len(task.common.centroids), len(config.columns))
    check_classes(task.common.classes, shape, "/parameters")


def check_classes(classes: Classes, shape: tuple[int, int], pointer: str) -> None:
    """Raise RuleViolation unless these are parameters of a mixture of K classes, d columns."""
    check_shapes(classes, pointer, variances=shape, proportions=shape[:1])
    if not (classes.variances > 0).all():
        raise RuleViolation("mixture", "a variance is positive", f"{pointer}/variances")
    proportions = classes.proportions
    if not (proportions >= 0).all() or abs(float(proportions.sum()) - 1.0) > SLACK:
        raise RuleViolation("mixture", "proportions add up to 1", f"{pointer}/proportions")


def check_partition(task: SiteTask[PartitionTask], sent: Partition, config: RunConfig) -> None:
    """Check the first partition at either end: shapes, counts, bounds."""
    centroids = task.common.centroids
    check_shapes(sent, counts=(len(centroids),))
    check_sizes(sent.counts, config)
    _check_sums(sent, sent.counts.astype(np.float64), centroids, config)
    check_empty(sent.counts, sent.offsets, "/offsets")
    check_empty(sent.counts, sent.squares, "/squares")


def check_weighted(task: SiteTask[EMTask], sent: Weighted, config: RunConfig) -> None:
    """Check totals, sums, log-likelihood and entropy of a round of EM."""
    asked = task.common
    n_classes = len(asked.centroids)
    check_shapes(sent, totals=(n_classes,))
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
    check_shapes(sent, offsets=centroids.shape, squares=centroids.shape)
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


# --- The steps of EM ------------------------------------------------------------------------------


#: With protection, so many further persons with the overall share of an answer count in each class:
#: few records leave the shares of rare answers to chance.
_PRIOR = 50.0
#: A variance is at least this, also with ``reg_covar: 0``: it is divided by.
_LEAST_VARIANCE = 1e-12


def expect(X: FloatArray, sizes: FloatArray, classes: Classes, config: RunConfig) -> Weighted:
    """Do an E step over rows (n, d), scaled, that count as so many persons (n,)."""
    kinds = column_kinds(config.columns)
    densities = log_densities(X, classes, kinds, config.space)
    probabilities, logs = posterior(densities, classes.proportions)
    weights = sizes[:, None] * probabilities
    offsets, squares = weighted_sums(X, weights, classes.means, kinds)
    uncertain = probabilities * np.log(np.maximum(probabilities, np.finfo(np.float64).tiny))
    return Weighted(
        totals=weights.sum(axis=0),
        offsets=offsets,
        squares=squares,
        log_likelihood=float(sizes @ logs),
        entropy=-float(sizes @ uncertain.sum(axis=1)),
    )


def weighted_sums(
    X: FloatArray, weights: FloatArray, means: FloatArray, kinds: IntArray
) -> tuple[FloatArray, FloatArray]:
    """Return weighted sums (K, d) of differences from the means, and of their squares.

    Sums of differences keep digits that sums of points far from the origin lose.
    """
    offsets, squares = np.zeros(means.shape), np.zeros(means.shape)
    for k in range(len(means)):
        apart = X - means[k]
        offsets[k] = weights[:, k] @ apart
        squares[k] = weights[:, k] @ apart**2
    return offsets, np.where(kinds == NUMBER, squares, 0.0)


def maximize(
    classes: Classes,
    totals: FloatArray,
    sent: Collection[Partition | Weighted],
    config: RunConfig[Config],
) -> Classes:
    """Do an M step by persons (K,) and the sites' sums, which are from ``classes.means``.

    A class that nobody belongs to keeps its mean and variances.
    """
    offsets = np.sum([each.offsets for each in sent], axis=0)
    squares = np.sum([each.squares for each in sent], axis=0)
    persons = totals[:, None]
    some = persons > np.finfo(np.float64).tiny
    shift = offsets / np.where(some, persons, 1.0)
    spread = squares / np.where(some, persons, 1.0) - shift**2
    variances = np.maximum(spread, 0.0) + config.options.reg_covar
    kinds = column_kinds(config.columns)
    numbers = some & (kinds == NUMBER)
    means = np.where(some, classes.means + shift, classes.means)
    if config.policy.protection != "none":
        overall = totals @ means / totals.sum()
        smoothed = (persons * means + _PRIOR * overall) / (persons + _PRIOR)
        means = np.where(kinds == NUMBER, means, smoothed)
    return Classes(
        proportions=totals / totals.sum(),
        means=means,
        variances=np.where(numbers, np.maximum(variances, _LEAST_VARIANCE), classes.variances),
    )
