"""The model of ``mixture``: its options, messages and their checks, its classes, and the EM steps.

The first partition counts persons, so each count is 0 or at least p. The sums of EM weigh every
artificial person by a class's probability: no number among them counts persons, and none has a
least value. They are checked for shapes, declared bounds and totals.

A record is near to its persons, but they are spread around it: EM on records alone finds classes
that are too tight, and loses those that differ in spread. So a site draws artificial persons
around each record. They come from the records, the groups' sizes and the session's seed alone.

A simulation says where protection loses much of what the classes are. Persons are drawn from the
classes that were found, at sites of the same sizes. EM on their groups is compared with EM on their
rows: by how much worse it tells the drawn persons' classes.
"""

from collections.abc import Collection, Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, FiniteFloat

from fedclust.methods.common.kmeans_rounds import check_sizes
from fedclust.methods.common.options import StartOptions, Tolerance
from fedclust.numeric.agreement import adjusted_rand_index, contingency_table
from fedclust.numeric.array_types import BoolArray, FloatArray, IntArray
from fedclust.numeric.arrays import FloatMatrix, FloatVector, IntVector
from fedclust.numeric.random import server_rng
from fedclust.protection.columns import SourceColumn
from fedclust.protection.message_checks import SLACK, check_empty, check_shapes, refuse_first
from fedclust.protection.table import form_table
from fedclust.schema.encoding import Column, Space, blocks_of
from fedclust.schema.errors import RuleViolation
from fedclust.schema.model import Model
from fedclust.schema.run_config import RunConfig
from fedclust.schema.scaling import scaled_bounds
from fedclust.schema.size_bands import check_not_above
from fedclust.schema.task import CentroidTask, Points, SiteTask

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
    """Options of ``mixture``."""

    proportions: Literal["common", "by_site"] = "common"
    """Whether all sites have the classes in the same proportions, or each site in its own. A site's
    own proportions do not leave it.
    """
    reg_covar: Annotated[FiniteFloat, Field(ge=0, le=1)] = 1e-6
    """Added to every variance, scaled, as in scikit-learn."""
    tol: Tolerance = 1e-6
    """Relative gain of the log-likelihood below which a round counts as no improvement."""

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
        message = "class {}: the mean of column {} lies outside its bounds"
        refuse_first(outside & known, "bounds", message, "/offsets")
    numbers = column_kinds(config.columns) == NUMBER
    # Cauchy-Schwarz.
    lacking = sent.offsets**2 - totals[:, None] * sent.squares
    uneven = numbers & (lacking > SLACK * (sent.offsets**2) + slack**2)
    negative = sent.squares < 0
    message = "class {}: the squares of column {} do not fit its sum"
    refuse_first(uneven | negative, "spread", message, "/squares")
    message = "class {}: column {} is no number: 0 is sent"
    refuse_first((sent.squares != 0) & ~numbers, "spread", message, "/squares")


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


#: Artificial persons drawn for each person, each with this part of the weight,
_COPIES = 5
#: up to this number at a site; then fewer with larger weights.
_MOST_ARTIFICIAL = 50_000
#: Around at most so many records, spread over the table: each is compared with all others.
_MOST_RECORDS = 5_000
#: So many nearest records say how tight the surroundings of a group are.
_SURROUNDINGS = 3
#: The share of a column's variance within groups where neighbours do not differ in it.
_LEAST_SHARE = 0.05
#: Records that are compared with all others at once.
_CHOSEN_BLOCK = 500


def draw_persons(
    points: Points, numbers: BoolArray, rng: np.random.Generator
) -> tuple[FloatArray, FloatArray]:
    """Return artificial persons (q, d), scaled, and their weights (q,), which add up to persons.

    Numbers are normal around the record. Their variance is half the mean squared difference
    between neighbouring records of the site, larger where a record's neighbours are farther away.
    Yes/no answers and levels are the record's: answers of neighbours in their place made latent
    classes worse.

    Parameters
    ----------
    points : Points
        Scaled.
    numbers : (d,) bool
        The columns of numbers.
    rng : numpy.random.Generator
    """
    if len(points.X) < 2 or not numbers.any():
        return points.X, points.sizes.astype(np.float64)
    chosen = np.arange(0, len(points.X), -(-len(points.X) // _MOST_RECORDS))
    sizes = points.sizes[chosen]
    a_person = min(float(_COPIES), _MOST_ARTIFICIAL / sizes.sum())
    copies = np.maximum((sizes * a_person).astype(np.int64), 1)
    weights = np.repeat(sizes / copies, copies) * (points.n / sizes.sum())
    X = np.repeat(points.X[chosen], copies, axis=0)
    sds = np.repeat(np.sqrt(_variances(points, numbers, chosen)), copies, axis=0)
    X[:, numbers] += sds * rng.standard_normal(sds.shape)
    return X, weights


def _variances(points: Points, numbers: BoolArray, chosen: IntArray) -> FloatArray:
    """Return the variance (q, s) of each column of numbers around each chosen record."""
    sizes, own = points.sizes[chosen], points.X[:, numbers]
    nearest, near = _find_nearest(points.X, chosen)
    within = np.average((own[chosen] - own[nearest]) ** 2, axis=0, weights=sizes) / 2.0
    least = _LEAST_SHARE / (1.0 - _LEAST_SHARE) * own.var(axis=0)
    mean = float(np.average(near, weights=sizes))
    parts = near / mean if mean > 0.0 else np.ones(len(near))
    return np.asarray(parts[:, None] * np.where(within > 0.0, within, least))


def _find_nearest(X: FloatArray, chosen: IntArray) -> tuple[IntArray, FloatArray]:
    """Return each chosen record's nearest other, and the mean squared distance of the nearest."""
    wanted = min(_SURROUNDINGS, len(X) - 1)
    nearest, near = np.empty(len(chosen), dtype=np.int64), np.empty(len(chosen))
    squares = (X**2).sum(axis=1)
    for begin in range(0, len(chosen), _CHOSEN_BLOCK):
        block = slice(begin, begin + _CHOSEN_BLOCK)
        rows = chosen[block]
        apart = np.maximum(squares + squares[rows, None] - 2.0 * (X[rows] @ X.T), 0.0)
        apart[np.arange(len(rows)), rows] = np.inf
        nearest[block] = apart.argmin(axis=1)
        near[block] = np.partition(apart, wanted - 1, axis=1)[:, :wanted].mean(axis=1)
    return nearest, near


#: The warning comes if the adjusted Rand index falls by more than this, on average,
_FALL = 0.05
#: of so many simulations.
_TIMES = 3
#: Persons drawn at a site, and at all sites, at most: larger sites have finer groups.
_MOST_OF_SITE, _MOST = 2000, 4000
_ROUNDS = 50

_Persons = list[tuple[FloatArray, FloatArray]]


def loss_warning(
    classes: Classes, sites: Sequence[tuple[int, int]], config: RunConfig[Config], seed: int
) -> tuple[str, ...]:
    """Return a warning, if any; ``sites`` are each one's persons and least size of a group."""
    if config.policy.protection == "none" or len(classes.means) < 2 or not sites:
        return ()
    kept, total = [], 0
    for n, p in sites:
        kept.append((min(n, _MOST_OF_SITE), p))
        total += kept[-1][0]
        if total >= _MOST:
            break
    falls = [
        _fall(classes, kept, config, server_rng(seed, f"mixture-loss-{time}"))
        for time in range(_TIMES)
    ]
    if np.mean(falls) <= _FALL:
        return ()
    warning = (
        "Groups of persons cost these classes much: of persons drawn from them, groups tell the "
        f"classes worse than rows do, by {np.mean(falls):.2f} of the adjusted Rand index. Larger "
        "sites, fewer classes or a smaller min_group_size help; compare with the method fkm."
    )
    return (warning,)


def _fall(
    classes: Classes,
    sites: Sequence[tuple[int, int]],
    config: RunConfig[Config],
    rng: np.random.Generator,
) -> float:
    """Return by how much the adjusted Rand index falls from rows to groups."""
    rows, groups, truth = [], [], []
    for n, p in sites:
        labels = rng.choice(len(classes.means), size=n, p=classes.proportions)
        X = _draw(labels, classes, config, rng)
        rows.append((X, np.ones(n)))
        points = _points(X, p, config)
        groups.append(draw_persons(points, column_kinds(config.columns) == NUMBER, rng))
        truth.append(labels)
    everybody, of = np.concatenate([X for X, _ in rows]), np.concatenate(truth)
    return _agreement(rows, everybody, of, classes, config) - _agreement(
        groups, everybody, of, classes, config
    )


def _draw(
    labels: IntArray, classes: Classes, config: RunConfig[Config], rng: np.random.Generator
) -> FloatArray:
    """Return a person (n, d), scaled, of each label."""
    kinds, space = column_kinds(config.columns), config.space
    shape = classes.means[labels].shape
    scaled = classes.means[labels] + np.sqrt(classes.variances[labels]) * rng.normal(size=shape)
    own, shares = space.to_original(scaled), space.to_original(classes.means)
    yes = rng.random(shape) < shares[labels]
    own = np.where(kinds == NUMBER, own, yes)
    for places in blocks_of(config.columns):
        # The level of the largest noise is drawn with its probability.
        noise = np.log(np.maximum(shares[labels][:, places], 1e-12))
        noise += rng.gumbel(size=noise.shape)
        own[:, places] = np.eye(len(places))[noise.argmax(axis=1)]
    return space.to_scaled(own)


def _points(X: FloatArray, p: int, config: RunConfig) -> Points:
    """Return the points (m, d) of the protected table of persons (n, d), scaled."""
    blocks = blocks_of(config.columns)
    of_level = {int(j): places for places in blocks for j in places}
    single = [j for j in range(X.shape[1]) if j not in of_level]
    own = config.space.to_original(X)
    sources = [SourceColumn(str(j), np.ascontiguousarray(own[:, j])) for j in single]
    sources += [
        SourceColumn(str(places[0]), own[:, places].argmax(axis=1).astype(np.float64), len(places))
        for places in blocks
    ]
    table = form_table(sources, p)
    records = np.empty((len(table.sizes), X.shape[1]))
    for j in single:
        records[:, j] = table.values(str(j))
    for places in blocks:
        records[:, places] = np.eye(len(places))[table.values(str(places[0])).astype(np.int64)]
    return Points(config.space.to_scaled(records), table.sizes, np.zeros(X.shape[1]))


def _agreement(
    persons: _Persons, X: FloatArray, truth: IntArray, classes: Classes, config: RunConfig[Config]
) -> float:
    """Return the adjusted Rand index of rows' labels after EM from the true classes."""
    before = -np.inf
    for _ in range(_ROUNDS):
        sent = [expect(*each, classes, config) for each in persons]
        totals = np.sum([each.totals for each in sent], axis=0)
        classes = maximize(classes, totals, sent, config)
        now = sum(each.log_likelihood for each in sent)
        if now - before <= 1e-5 * abs(now):
            break
        before = now
    densities = log_densities(X, classes, column_kinds(config.columns), config.space)
    labels = posterior(densities, classes.proportions)[0].argmax(axis=1)
    k = len(classes.means)
    return adjusted_rand_index(contingency_table(truth, labels, np.ones_like(truth), (k, k)))
