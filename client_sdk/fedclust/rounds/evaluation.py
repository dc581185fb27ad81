"""The closing round: how good the final centroids are, over the sites' points.

What it computes
    - Inertia and sizes.
    - Simplified silhouette: the mean over persons of (b - a) / max(a, b), with a the distance to
      the own centroid and b to the nearest other one; 0 where both are 0 (Hruschka, de Castro &
      Campello, "Evolutionary algorithms for clustering gene-expression data", 2004).
    - Davies-Bouldin index, with distances to the centroids (Davies & Bouldin, "A cluster
      separation measure", 1979).
    - Means and standard deviations of each cluster (Chan, Golub & LeVeque, 1979). Each site's
      variance within groups is added.
    - At how many sites all records of a column are equal, and where half of them or more are.

    With soft clusters a point belongs to the most probable one.

    With one cluster, or where prototypes assign the points, both indices are null. Where sites lack
    features, a squared distance is d times the mean over the features that point and centroid
    share.

It is a part of the closing round (``rounds.evidence``), for each K.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from fedclust.methods.common.finalize import raw_result
from fedclust.methods.common.kmeans_rounds import (
    ClusterSums,
    check_centroids,
    check_sizes,
    cluster_sums,
    disclosures,
)
from fedclust.numeric.array_types import BoolArray, FloatArray, IntArray
from fedclust.numeric.arrays import (
    BoolMatrix,
    BoolVector,
    FloatMatrix,
    FloatVector,
    IntMatrix,
    IntVector,
)
from fedclust.numeric.distances import (
    ROW_BLOCK,
    gower_dissimilarities,
    masked_squared_distances,
    nearest_by_gower,
    nearest_centroid,
    own_dissimilarities,
)
from fedclust.numeric.moments import Moments, merge_moments, no_moments
from fedclust.protection.message_checks import check_counts, check_empty, check_means, check_shapes
from fedclust.rounds.resolution import resolution_warning
from fedclust.schema.display import first_few
from fedclust.schema.errors import RuleViolation
from fedclust.schema.model import Model
from fedclust.schema.result import ClusterProfile, FinalModel, Quality, Result
from fedclust.schema.run_config import RunConfig
from fedclust.schema.scaling import binary_columns, scaled_bounds
from fedclust.schema.task import CentroidTask, Contribution, Points, payloads_of, total_variances

_SLACK = 1e-9
#: A mean of records stands for that of the persons as far as the two differ by at most so many
#: standard deviations of all persons,
_NEAR = 0.15
#: of which the middle values of skewed groups take so many of the cluster's own,
_SKEW = 0.05
#: and missing values so many times more: by how much groups are larger than without any, and the
#: share of persons whose record is imputed.
_LACKING = 7.0
#: Without missing values a mean group has so many times its site's p persons.
_MEAN_GROUP = 1.2
#: By chance a mean of records is off by up to so many standard errors of a mean of the persons; a
#: group of a larger p counts as one of this p. Of the means of 25 kinds of data without, with 15
#: and with 30 % missing values (benchmarks/table_one.py) 99 % are then so near.
_ERRORS, _P = 2.5, 5.0
#: Fewer times p persons with a record give no difference (docs/results/table_one.md).
_FEWEST = 4
#: The largest share of variance that a site's records can say lies within its groups.
_MOST_WITHIN = 0.8
#: Columns or clusters that a warning names.
_MOST_NAMED = 10
#: A cluster of at most this share of the persons is small. It is a point if the variance of its
#: records is below this share of that of every other cluster. Where records are rounded to wide
#: steps, several clusters may be points.
_FEW, _EQUAL = 0.05, 0.01


class EvaluationTask(CentroidTask):
    """Measure your points against these centroids.

    Attributes
    ----------
    centroids : (K, d) float64
        Scaled, no two equal.
    mask : (K, d) bool or None
        Where the centroids are known; None: everywhere.
    prototypes : (M, d) float64 or None
        Points go with the nearest of these, where there are any, and not with the centroids.
    prototype_centroids : (M,) int64 or None
        The centroid of each prototype.
    soft : dict of matrices, or None
        Of a method with soft clusters, where points go with the most probable one: the result's.
    """

    centroids: FloatMatrix
    mask: BoolMatrix | None = None
    prototypes: FloatMatrix | None = None
    prototype_centroids: IntVector | None = None
    soft: dict[str, FloatMatrix] | None = None


class Evaluation(Model):
    """A site's part of the quality: additive.

    Attributes
    ----------
    counts : (K,) int64
        Persons.
    points : (K,) int64
    costs, distances, silhouettes : (K,) float64
        Squared distances, distances and silhouette terms, weighted by persons and added up. With
        one centroid ``silhouettes`` is 0. With ``dissimilarity: gower`` both are dissimilarities.
    known : (K, d) int64 or None
        Persons in groups whose record holds a value that is not imputed. None if all do.
    means, m2 : (K, d) float64
        Of these records, scaled: mean and sum of squared deviations from it.
    within : (d,) float64
        Variance within the site's groups, scaled.
    constant, typical : (d,) bool
        Whether all records hold one value, and whether records of half the persons or more do; of
        the records that have one. False with ``protection: none``, where records are rows.
    left_out : int
        Persons of the groups that ``missing: drop`` leaves out.
    """

    counts: IntVector
    points: IntVector
    costs: FloatVector
    distances: FloatVector
    silhouettes: FloatVector
    known: IntMatrix | None = None
    means: FloatMatrix
    m2: FloatMatrix
    within: FloatVector
    constant: BoolVector
    typical: BoolVector
    left_out: int = 0


_ALL = "Describes all your groups together."
#: What a site discloses of one K, as lines of the closing round.
DISCLOSES = disclosures(
    "parts",
    "Sums over whole groups.",
    counts="K numbers, for each K: How many of your persons are in each final cluster.",
    points="K numbers, for each K: How many of your groups are in each final cluster.",
    costs="K numbers, for each K: How far the groups' records lie from their centroid, squared and "
    "added up.",
    distances="K numbers, for each K: How far the groups' records lie from their centroid, added "
    "up.",
    silhouettes="K numbers, for each K: How much closer the groups' records lie to their own "
    "centroid than to the next one, between -1 and 1 a person, added up.",
    known="K x d numbers, with imputed values, for each K: For how many of your persons in each "
    "final cluster the record's value is not imputed.",
    means="K x d numbers, for each K: The mean of each column over these records, scaled.",
    m2="K x d numbers, for each K: How widely these records are spread: squared deviations, added "
    "up.",
    within="d numbers, for each K: The variance of each column within the groups, estimated from "
    "the records alone: half the squared difference between each group's record and that of the "
    "nearest other group.",
    constant="d times yes or no, for each K: Whether all your groups' records hold one value of a "
    "column.",
    typical="d times yes or no, for each K: Whether the records of half your persons or more hold "
    "one value of a column.",
    left_out="one number, for each K: How many of your persons are in groups that lack a value and "
    "are left out.",
    identify={
        "points": "Counts of whole groups.",
        "means": "Means over whole groups.",
        "within": "A sum over all your groups.",
        "constant": _ALL,
        "typical": _ALL,
        "left_out": "A sum over whole groups.",
    },
)


def task(raw: FinalModel) -> EvaluationTask:
    """Return the task that evaluates a result with sorted clusters."""
    of = raw.prototype_labels
    return EvaluationTask(
        centroids=raw.centroids,
        mask=raw.mask,
        prototypes=raw.prototypes,
        prototype_centroids=None if of is None else np.array(of, dtype=np.int64),
        soft=raw.soft,
    )


def check_task(asked: EvaluationTask, config: RunConfig) -> None:
    """Refuse what the definition does not provide for; RuleViolation."""
    check_centroids(asked, config)
    given = asked.prototypes is not None and len(asked.prototypes) > 0
    message = "the method does not tell clusters apart like this"
    lacking = (asked.prototypes is None) != (asked.prototype_centroids is None)
    if lacking or (given and not config.prototypes):
        raise RuleViolation("task", message, "/parameters/prototypes")
    if (asked.soft is None) != (config.assign is None):
        raise RuleViolation("task", message, "/parameters/soft")
    of = asked.prototype_centroids
    if asked.prototypes is not None and of is not None:
        check_shapes(asked, "/parameters", prototypes=(len(of), len(config.columns)))
        if len(of) and not 0 <= of.min() <= of.max() < len(asked.centroids):
            message = "a prototype belongs to one of the centroids"
            raise RuleViolation("task", message, "/parameters/prototype_centroids")


# --- Local step -----------------------------------------------------------------------------------


def local_step(
    common: EvaluationTask, points: Points, config: RunConfig, labels: IntArray
) -> Evaluation:
    """Measure a site's scaled points against the task's centroids, by their ``labels`` (m,)."""
    centroids, mask = common.centroids, common.mask
    shared = config.mask & (np.True_ if mask is None else mask)
    shared = np.broadcast_to(shared, centroids.shape)
    # The factor of masked_squared_distances.
    factor = centroids.shape[1] / np.maximum(shared.sum(axis=1), 1)
    distances, silhouettes = _sum_distances(common, points, labels, shared, factor, config)
    plain = cluster_sums(points, labels, np.where(config.mask, centroids, 0.0))
    costs = plain.costs
    if config.policy.dissimilarity == "gower":
        costs = distances
    elif not shared.all():
        apart = np.where(shared[labels], points.X - centroids[labels], 0.0)
        squares = np.einsum("ij,ij->i", apart, apart) * points.sizes
        costs = _by_cluster(labels, squares, len(centroids)) * factor
    known, means, m2 = _describe_records(points, plain, labels)
    if config.policy.protection == "none":
        constant, typical = np.zeros((2, centroids.shape[1]), dtype=np.bool_)
    else:
        constant, typical = _repeated(points, config)
    return Evaluation(
        counts=plain.counts,
        points=np.bincount(labels + 1, minlength=len(centroids) + 1)[1:].astype(np.int64),
        costs=costs,
        distances=distances,
        silhouettes=silhouettes,
        known=known,
        means=means,
        m2=m2,
        within=points.within * total_variances(points),
        constant=constant,
        typical=typical,
        left_out=points.left_out,
    )


def _describe_records(
    points: Points, plain: ClusterSums, labels: IntArray
) -> tuple[IntArray | None, FloatArray, FloatArray]:
    """Return each cluster's persons with a record that is not imputed, its mean and squares (K, d).

    None for the persons if these are all; ``plain`` are the sums over all records.
    """
    known = None if points.observed is None else np.zeros(plain.means.shape, dtype=np.int64)
    means, m2 = plain.means.copy(), np.zeros(plain.means.shape)
    for j, column in enumerate(points.X.T):
        weights = points.sizes
        if known is not None and points.observed is not None:
            weights = weights * points.observed[:, j]
            known[:, j] = _by_cluster(labels, weights, len(m2))
            # Around the mean of all: sums of offsets keep the digits of values far from 0.
            offsets = (column - np.append(means[:, j], 0.0)[labels]) * weights
            sums = _by_cluster(labels, offsets, len(m2))
            means[:, j] = np.where(known[:, j], means[:, j] + sums / np.maximum(known[:, j], 1), 0)
        squares = (column - np.append(means[:, j], 0.0)[labels]) ** 2
        m2[:, j] = _by_cluster(labels, squares * weights, len(m2))
    return known, means, m2


def _by_cluster(labels: IntArray, values: FloatArray | IntArray, n_clusters: int) -> FloatArray:
    """Add up values (m,) by cluster: (K,). Those of cluster -1 are left out."""
    sums = np.bincount(labels + 1, weights=values, minlength=n_clusters + 1)
    return sums[1:].astype(np.float64)


def _repeated(points: Points, config: RunConfig) -> BoolArray:
    """Return in which columns all records hold one value, and in which half or more do: (2, d)."""
    found = np.zeros((2, points.X.shape[1]), dtype=np.bool_)
    for j in np.flatnonzero(config.mask):
        known = slice(None) if points.observed is None else points.observed[:, j]
        values, which = np.unique(points.X[known, j], return_inverse=True)
        if len(values):
            persons = np.bincount(which, weights=points.sizes[known])
            found[:, j] = len(values) == 1, 2 * persons.max() >= persons.sum()
    return found


def label_points(common: EvaluationTask, points: Points, config: RunConfig) -> IntArray:
    """Return the centroid (m,) of each point; -1 where it shares no feature with any."""
    if common.prototypes is not None and common.prototype_centroids is not None:
        nearest = nearest_centroid(points.X, common.prototypes)
        return np.asarray(common.prototype_centroids[nearest])
    if config.policy.dissimilarity == "gower":
        return nearest_by_gower(points.X, common.centroids)
    if common.soft is not None and config.assign is not None:
        k = config.options.n_clusters
        raw = raw_result(common.centroids, config, soft=common.soft, n_clusters=k)
        return config.assign(raw, points.X)
    own = config.mask
    known = None if common.mask is None else common.mask[:, own]
    if known is not None and not known.any():
        return np.full(len(points.X), -1, dtype=np.int64)
    return nearest_centroid(points.X[:, own], common.centroids[:, own], known)


def _sum_distances(
    common: EvaluationTask,
    points: Points,
    labels: IntArray,
    shared: BoolArray,
    factor: FloatArray,
    config: RunConfig,
) -> tuple[FloatArray, FloatArray]:
    """Return sums of distances and of silhouette terms, each (K,), over persons."""
    centroids, gower = common.centroids, config.policy.dissimilarity == "gower"
    n_clusters = len(centroids)
    distances, silhouettes = np.zeros(n_clusters), np.zeros(n_clusters)
    for begin in range(0, len(labels), ROW_BLOCK):
        chosen = begin + np.flatnonzero(labels[begin : begin + ROW_BLOCK] >= 0)
        if not len(chosen):
            continue
        own, rows, sizes = labels[chosen], points.X[chosen], points.sizes[chosen]
        # Directly, not expanded: a point on its centroid is at distance 0 wherever that is.
        if gower:
            a = own_dissimilarities(rows, centroids, own)
        else:
            offsets = np.where(shared[own], rows - centroids[own], 0.0)
            a = np.sqrt(np.einsum("ij,ij->i", offsets, offsets) * factor[own])
        distances += np.bincount(own, weights=a * sizes, minlength=n_clusters)
        if n_clusters > 1 and common.prototypes is None:
            if gower:
                apart = gower_dissimilarities(rows, centroids)
            else:
                squares = masked_squared_distances(rows, config.mask, centroids, common.mask)
                apart = np.sqrt(squares)
            apart[np.arange(len(rows)), own] = np.inf
            b = apart.min(axis=1)
            b = np.where(np.isfinite(b), b, a)
            widest = np.maximum(a, b)
            terms = np.divide(b - a, widest, out=np.zeros_like(a), where=widest > 0)
            silhouettes += np.bincount(own, weights=terms * sizes, minlength=n_clusters)
    return distances, silhouettes


# --- Check ----------------------------------------------------------------------------------------


def check(asked: EvaluationTask, payload: Evaluation, config: RunConfig) -> None:
    """Check a site's evaluation at either end; RuleViolation."""
    centroids = asked.centroids
    k, d = centroids.shape
    check_shapes(payload, counts=(k,), points=(k,), costs=(k,), distances=(k,), silhouettes=(k,))
    check_shapes(payload, means=(k, d), m2=(k, d), within=(d,), constant=(d,), typical=(d,))
    check_sizes(payload.counts, config)
    _refuse(payload.points > payload.counts, "points", "there are more groups than persons")
    _refuse((payload.points > 0) != (payload.counts > 0), "points", "groups have persons")
    for name in ("costs", "distances", "silhouettes"):
        check_empty(payload.counts, getattr(payload, name), f"/{name}")
    # Cauchy-Schwarz: a sum of n terms is at most the root of n times the sum of their squares.
    # Rounding is of the size of the coordinates, not of the distances.
    norms = 1.0 + np.sqrt((centroids**2).sum(axis=1))
    widest = np.sqrt(payload.counts * np.maximum(payload.costs, 0.0))
    if config.policy.dissimilarity == "gower":
        widest = payload.costs
    wide = payload.distances > widest * (1.0 + _SLACK) + _SLACK * payload.counts * norms
    wrong = (payload.costs < 0) | (payload.distances < 0) | wide
    _refuse(wrong, "distances", "the distances do not fit the cost")
    wrong = np.abs(payload.silhouettes) > payload.counts * (1.0 + _SLACK)
    _refuse(wrong, "silhouettes", "the silhouette is outside -1 to 1 a person")
    everybody = np.broadcast_to(payload.counts[:, None], (k, d))
    known = everybody * config.mask if payload.known is None else payload.known
    if payload.known is not None:
        check_shapes(payload, known=(k, d))
    for some in (known, everybody - known):
        check_counts(some.ravel(), config.p, "/known")
    for name, values in (("known", known), ("means", payload.means), ("m2", payload.m2)):
        lacking = ((known == 0) & (values != 0)).any(axis=1)
        _refuse(lacking, name, "nobody has a value", rule="empty-cell")
        foreign = np.asarray(((values != 0) & ~config.mask).any(axis=1))
        _refuse(foreign, name, "a lacking feature must be 0")
    lower, upper = scaled_bounds(config)
    check_means(known, payload.means, lower, upper, "/means")
    _refuse(np.asarray((payload.m2 < 0).any(axis=1)), "m2", "a spread is negative")
    if (payload.within < 0).any():
        raise RuleViolation("within", "a variance is negative", "/within")
    for name, flags in (("constant", payload.constant), ("typical", payload.typical)):
        if (flags & ~config.mask).any() or (flags.any() and config.policy.protection == "none"):
            message = "only records of a feature that the site has can be equal"
            raise RuleViolation(name, message, f"/{name}")
    if (payload.constant & ~payload.typical).any():
        raise RuleViolation("typical", "equal records hold one value", "/typical")
    if config.policy.missing != "drop" and payload.left_out:
        raise RuleViolation("left-out", "only missing: drop leaves persons out", "/left_out")
    check_counts(np.array([payload.left_out]), config.p, "/left_out")


def _refuse(wrong: BoolArray, name: str, message: str, rule: str = "") -> None:
    """Raise for the first wrong cluster of a field; ``rule`` is by default the field's name."""
    if wrong.any():
        cluster = int(np.flatnonzero(wrong)[0])
        raise RuleViolation(rule or name, f"cluster {cluster}: {message}", f"/{name}/{cluster}")


# --- Aggregation ----------------------------------------------------------------------------------


def aggregate(raw: Result, contributions: Sequence[Contribution], config: RunConfig) -> Result:
    """Return a result with sorted clusters, and what the sites measured of it.

    Contributions are sorted by site.
    """
    n_clusters = len(raw.centroids)
    judged = n_clusters > 1 and raw.prototypes is None
    sent = payloads_of(contributions, Evaluation)
    counts = np.zeros(n_clusters, dtype=np.int64)
    sums = np.zeros((3, n_clusters))
    for payload in sent.values():
        counts = counts + payload.counts
        sums += [payload.costs, payload.distances, payload.silhouettes]
    costs, distances, silhouettes = sums
    n = int(counts.sum())
    quality = None
    if n:
        apart = _centroid_distances(raw.centroids, raw.mask, config)
        quality = Quality(
            inertia=float(costs.sum()),
            simplified_silhouette=float(silhouettes.sum() / n) if judged else None,
            davies_bouldin=_davies_bouldin(apart, counts, distances) if judged else None,
            n_rows=n,
            n_left_out=sum(each.left_out for each in sent.values()),
        )
    profile = _cluster_profile(sent, {each.site: each.p for each in contributions}, config)
    update = {
        "quality": quality,
        "sizes": tuple(int(count) for count in counts),
        "site_sizes": {site: tuple(int(n) for n in each.counts) for site, each in sent.items()},
        "profile": profile,
        "warnings": (
            *_resolution_warnings(raw, list(sent.values()), config),
            *_number_warnings(raw, list(sent.values()), len(contributions), config),
            *_small_warnings(sent, config),
            *_equal_warning(profile),
            *raw.warnings,
        ),
    }
    return raw.model_copy(update=update)


def _resolution_warnings(
    raw: Result, sent: Sequence[Evaluation], config: RunConfig
) -> Iterator[str]:
    """Warn that clusters are finer than the sites' groups, where they are.

    Where prototypes tell clusters apart, centroids say nothing of how fine these are.
    """
    if not sent or raw.prototypes is not None:
        return
    # Variances can be added to squared differences, but not to Gower's dissimilarities.
    gower = config.policy.dissimilarity == "gower"
    warning = resolution_warning(
        np.stack([each.counts for each in sent]),
        np.stack([each.points for each in sent]),
        np.stack([each.m2.sum(axis=1) if gower else each.costs for each in sent]),
        np.stack([each.within for each in sent]),
        raw.centroids,
    )
    if warning is not None:
        yield warning


def _number_warnings(
    raw: Result, sent: Sequence[Evaluation], n_answers: int, config: RunConfig
) -> Iterator[str]:
    """Warn of too few groups, empty clusters, and sites without numbers."""
    if not sent:
        return
    asked = raw.n_clusters or config.options.n_clusters
    counts = np.sum([each.counts for each in sent], axis=0)
    n_points = int(np.sum([each.points for each in sent]))
    n_empty, n_silent = int((counts == 0).sum()), n_answers - len(sent)
    left_out = sum(each.left_out for each in sent)
    if left_out:
        total = left_out + int(counts.sum())
        yield (
            f"{left_out:,} of {total:,} persons are not in the result: their groups lack a value. "
            "With missing: impute they would be in it."
        )
    if isinstance(asked, int) and n_points <= asked:
        points = "rows" if config.policy.protection == "none" else "groups of persons"
        yield (
            f"The sites have {n_points} {points} in all, and {asked} clusters were asked for: "
            "clusters are no more than these. Choose a smaller K, or invite larger sites."
        )
    if n_empty:
        yield f"{n_empty} of the {len(counts)} clusters hold no persons: try a smaller K."
    if n_silent:
        yield (
            f"{n_silent} of {n_answers} sites sent no numbers, and their persons are not in the "
            f"result: a site needs {config.policy.min_group_size} persons, or more where it asks "
            "for larger groups, in groups that have what the session asks for."
        )


def _small_warnings(sent: dict[str, Evaluation], config: RunConfig) -> Iterator[str]:
    """Warn of small clusters that may be wrong values: at one of several sites, or at a point."""
    if not sent:
        return
    counts = np.stack([each.counts for each in sent.values()])
    persons = counts.sum(axis=0)
    alone = ((counts > 0).sum(axis=0) == 1) & (persons < 4 * config.policy.min_group_size)
    alone &= len(sent) > 1
    # Around the records' own mean: artificial persons move the centroids of `mixture`.
    records = _merge_clusters(sent, config, within=False)
    spread = (records.m2 / np.maximum(records.n, 1.0)).sum(axis=1)
    points = np.sum([each.points for each in sent.values()], axis=0)
    equal = (persons <= _FEW * persons.sum()) & (points > 1)
    equal &= spread < _EQUAL * np.sort(spread[persons > 0])[:2][-1]
    # That yes/no features alone are equal is no surprise.
    equal &= (~binary_columns(config.columns)).sum() > 1
    for where, found in (("site", alone & ~equal), ("point", equal)):
        small = [f"cluster {k} ({persons[k]} persons)" for k in np.flatnonzero(found)]
        if small:
            yield (
                f"Small and all at one {where}: "
                f"{first_few(small, _MOST_NAMED)}"
                ". A few wrong values, a code for missing ones, or a real small group: ask the "
                "sites that have it to look at their rows (fedclust check), or declare bounds."
            )


def _equal_warning(profile: ClusterProfile | None) -> Iterator[str]:
    """Warn where records are all equal at most sites that have a column."""
    every = {} if profile is None else profile.all_equal
    most = [f"{name!r} at {n} of {held} sites" for name, (n, held) in every.items() if 2 * n > held]
    if most:
        yield (
            f"All records are equal in {first_few(most, _MOST_NAMED)}: a rare trait vanishes "
            "there, such as one of 5 % at ten sites of 40 persons. Ask it as an outcome, or use "
            "larger sites."
        )


def _centroid_distances(
    centroids: FloatArray, mask: BoolArray | None, config: RunConfig
) -> FloatArray:
    """Return the distances (K, K) between centroids; infinite where no feature is shared."""
    if config.policy.dissimilarity == "gower":
        return gower_dissimilarities(centroids, centroids)
    known = np.ones_like(centroids, dtype=np.bool_) if mask is None else mask
    rows = zip(centroids, known, strict=True)
    squares = [masked_squared_distances(row[None], own, centroids, known)[0] for row, own in rows]
    return np.asarray(np.sqrt(np.stack(squares)))


def _davies_bouldin(apart: FloatArray, counts: IntArray, distances: FloatArray) -> float | None:
    """Return the index over the clusters that hold persons; None with fewer than two of them.

    Parameters
    ----------
    apart : (K, K) float64
        Distances between centroids; infinite where two share no feature.
    counts : (K,) int64
        Persons.
    distances : (K,) float64
        Sums of the persons' distances from their centroid.
    """
    filled = counts > 0
    if filled.sum() < 2:
        return None
    spread = distances[filled] / counts[filled]
    apart = apart[filled][:, filled]
    # Clusters that share no feature, or that do not differ in those, are not compared.
    np.fill_diagonal(apart, np.inf)
    apart[apart == 0] = np.inf
    return float(((spread[:, None] + spread[None, :]) / apart).max(axis=1).mean())


def _cluster_profile(
    sent: dict[str, Evaluation], ps: dict[str, int], config: RunConfig
) -> ClusterProfile | None:
    """Return means and standard deviations of each cluster and of all persons, in own units.

    ``ps`` are the sites' least numbers of persons behind a number, which may exceed the session's.
    """
    if not sent:
        return None
    clusters = _merge_clusters(sent, config, within=True)
    whole = no_moments(clusters.n.shape[1:])
    for cluster in zip(*clusters, strict=True):
        whole = merge_moments(whole, Moments(*cluster))
    exact = config.policy.protection == "none"
    known = clusters.n > 0
    held = np.array([config.masks.get(site, config.mask) for site in sent]).sum(axis=0)
    equal = np.sum([each.constant for each in sent.values()], axis=0)
    typical = np.any([each.typical for each in sent.values()], axis=0)
    names = [column.name for column in config.columns]
    spreads, overall = (_deviations(each, config) for each in (clusters, whole))
    if not exact:
        spreads, overall = _in_two_digits(spreads), _in_two_digits(overall)
    return ClusterProfile(
        known=known,
        means=np.where(known, config.space.to_original(clusters.mean), 0.0),
        estimated_deviations=np.where(known, spreads, 0.0),
        overall_means=config.space.to_original(whole.mean),
        estimated_overall_deviations=overall,
        typical=tuple(name for name, one in zip(names, typical, strict=True) if one),
        uncertain=None if exact else _uncertain_means(sent, ps, clusters, whole, config),
        few=None if exact else _persons_in_p(sent, ps, config) < _FEWEST - _SLACK,
        all_equal={
            name: (int(n), int(of)) for name, n, of in zip(names, equal, held, strict=True) if n
        },
    )


def _persons_in_p(sent: dict[str, Evaluation], ps: dict[str, int], config: RunConfig) -> FloatArray:
    """Return how many persons (K, d) have a record, each site's counted in its p."""
    known = ((site, _known_persons(site, each, config)) for site, each in sent.items())
    return np.asarray(sum(n / ps[site] for site, n in known))


def _uncertain_means(
    sent: dict[str, Evaluation],
    ps: dict[str, int],
    clusters: Moments,
    whole: Moments,
    config: RunConfig,
) -> BoolArray:
    """Return which means of numbers (K, d) may differ from those of the cluster's persons.

    Persons are spread wider than records. So the persons of a cluster, who are labelled by their
    own values, can lie further from the mean of all than its records do: at most by the ratio of
    the two spreads. A cluster's records also differ from its persons by chance, about as a mean of
    as many persons does, or of fewer if p is large. Missing values add to both, for they mix
    persons in groups and no record shows it; groups are then larger than a site's p makes them.

    Parameters
    ----------
    sent : dict of site to Evaluation
    ps : dict of site to int
    clusters, whole : Moments
        Of each cluster (K, d) and of all (d,), with the variance within groups.
    config : RunConfig
    """
    between = _merge_clusters(sent, config, within=False).m2.sum(axis=0)
    spread = np.sqrt(whole.m2 / np.maximum(whole.n, 1.0))
    spread[spread == 0.0] = np.inf
    share_within = (clusters.m2.sum(axis=0) - between) / np.where(whole.m2 > 0.0, whole.m2, 1.0)
    wider = 1.0 / np.sqrt(1.0 - np.minimum(share_within, _MOST_WITHIN))
    apart = np.abs(clusters.mean - whole.mean) / spread * (wider - 1.0)
    own = np.sqrt(clusters.m2 / np.maximum(clusters.n, 1.0)) / spread
    # Of columns with a transform too few means were near.
    changed = np.array([column.transform != "none" for column in config.columns])
    persons = {site: each.counts.sum() for site, each in sent.items()}
    held = np.sum([n * config.masks.get(site, config.mask) for site, n in persons.items()], axis=0)
    expected = sum(n / (_MEAN_GROUP * ps[site]) for site, n in persons.items())
    larger = max(expected / max(sum(each.points.sum() for each in sent.values()), 1), 1.0)
    lacking = larger - whole.n / np.maximum(held, 1.0)
    loss = 1.0 + _LACKING * lacking
    n = np.minimum(clusters.n, _P * _persons_in_p(sent, ps, config))
    chance = _ERRORS * own * np.sqrt(loss / np.maximum(n, 1.0))
    uncertain = (apart + _SKEW * loss * own > _NEAR) | (chance > _NEAR) | changed
    return np.asarray(uncertain & (clusters.n > 0) & ~binary_columns(config.columns))


def _merge_clusters(sent: dict[str, Evaluation], config: RunConfig, *, within: bool) -> Moments:
    """Return the moments (K, d) of each cluster's records, with or without variance in groups."""
    clusters = no_moments(next(iter(sent.values())).means.shape)
    for site, payload in sent.items():
        known = _known_persons(site, payload, config)
        spread = payload.m2 + known * payload.within if within else payload.m2
        clusters = merge_moments(clusters, Moments(known.astype(np.float64), payload.means, spread))
    return clusters


def _known_persons(site: str, payload: Evaluation, config: RunConfig) -> IntArray:
    """Return a site's persons with a record that is not imputed, by cluster and column (K, d)."""
    if payload.known is not None:
        return payload.known
    return payload.counts[:, None] * config.masks.get(site, config.mask)


def _in_two_digits(values: FloatArray) -> FloatArray:
    """Round estimates: `predict` finds as many persons outside with two digits, not with one."""
    return np.array([float(f"{each:.1e}") for each in values.flat]).reshape(values.shape)


def _deviations(moments: Moments, config: RunConfig) -> FloatArray:
    """Return standard deviations in own units; those of shares follow from the shares."""
    means = config.space.to_original(moments.mean)
    variances = moments.m2 / np.maximum(moments.n, 1.0) * config.space.scale**2
    shares = np.clip(means * (1.0 - means), 0.0, None)
    return np.sqrt(np.where(binary_columns(config.columns), shares, variances))
