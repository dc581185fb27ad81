"""Quality and profile against the same figures computed from repeated points and true rows."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedclust import simulate
from fedclust.methods import lloyd
from fedclust.methods.common.finalize import raw_result
from fedclust.rounds import evaluation
from fedclust.schema.errors import RuleViolation
from fedclust.schema.feature import Feature
from fedclust.schema.result import Result
from fedclust.schema.run_config import RunConfig
from fedclust.schema.task import Contribution, Points
from support.points import config_of, of_rows, repeated, violation, weighted
from support.site_rows import pooled

OPTIONS = lloyd.Config(n_clusters=4)


def _measure(points: Points, centroids: Any, config: RunConfig) -> evaluation.Evaluation:
    task = evaluation.task(raw_result(centroids, config))
    labels = evaluation.label_points(task, points, config)
    payload = evaluation.local_step(task, points, config, labels)
    evaluation.check(task, payload, config)
    return payload


def _outcome(sites: dict[str, Points], centroids: Any, config: RunConfig) -> Result:
    answers = []
    for site, points in sites.items():
        own = replace(config, mask=config.masks.get(site, config.mask))
        answers.append(Contribution(site, _measure(points, centroids, own), config.p))
    return evaluation.aggregate(raw_result(centroids, config), answers, config)


def _two_digits(values: Any) -> list[float]:
    return [float(f"{value:.2g}") for value in np.ravel(values)]


def _random(rng: np.random.Generator, m: int, d: int, offset: float = 0.0) -> Points:
    return weighted(rng.normal(size=(m, d)) + offset, rng.integers(5, 12, m))


@pytest.mark.parametrize("offset", [0.0, 1e5])
def test_quality_is_that_of_the_repeated_points_of_all_sites(offset: float) -> None:
    rng = np.random.default_rng(0)
    centroids = rng.normal(size=(4, 3)) + offset
    sites = {"a": _random(rng, 40, 3, offset), "b": _random(rng, 90, 3, offset)}
    outcome = _outcome(sites, centroids, config_of(OPTIONS, d=3))
    X = np.concatenate([repeated(points) for points in sites.values()])
    gaps = np.sqrt(((X[:, None] - centroids) ** 2).sum(axis=2))
    ordered, labels = np.sort(gaps, axis=1), gaps.argmin(axis=1)
    spread = np.array([gaps[labels == k, k].mean() for k in range(4)])
    apart = np.linalg.norm(centroids[:, None] - centroids, axis=2)
    np.fill_diagonal(apart, np.inf)
    quality = outcome.quality

    assert quality.n_rows == len(X)
    assert quality.inertia == pytest.approx((gaps.min(axis=1) ** 2).sum())
    silhouette = ((ordered[:, 1] - ordered[:, 0]) / ordered[:, 1]).mean()
    assert quality.simplified_silhouette == pytest.approx(silhouette)
    worst = ((spread[:, None] + spread) / apart).max(axis=1)
    assert quality.davies_bouldin == pytest.approx(worst.mean())
    assert outcome.sizes == tuple(np.bincount(labels, minlength=4))
    for site, points in sites.items():
        gaps = ((points.X[:, None] - centroids) ** 2).sum(axis=2)
        counts = np.bincount(gaps.argmin(axis=1), weights=points.sizes, minlength=4)
        assert outcome.site_sizes[site] == tuple(counts)


def test_one_cluster_has_no_silhouette_and_no_davies_bouldin() -> None:
    points = _random(np.random.default_rng(2), 20, 2)
    outcome = _outcome({"a": points}, np.zeros((1, 2)), config_of(OPTIONS))

    assert outcome.quality.simplified_silhouette is None
    assert outcome.quality.davies_bouldin is None
    assert outcome.quality.inertia == pytest.approx((repeated(points) ** 2).sum())


def test_a_point_on_its_centroid_counts_one() -> None:
    points = weighted([[0.0], [0.0], [1.0], [1.0]], [5, 6, 7, 8])
    payload = _measure(points, np.array([[0.0], [1.0]]), config_of(OPTIONS, d=1))

    assert payload.counts.tolist() == [11, 15]
    assert payload.points.tolist() == [2, 2]
    assert payload.silhouettes.tolist() == [11.0, 15.0]
    assert payload.distances.tolist() == payload.costs.tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"counts": np.array([199, 1])}, "smallest-count"),
        ({"counts": np.array([0, 0])}, "empty"),
        ({"points": np.array([201, 0])}, "points"),
        ({"points": np.array([0, 0])}, "points"),
        ({"silhouettes": np.array([201.0, 0.0])}, "silhouettes"),
        ({"distances": np.array([-1.0, 0.0])}, "distances"),
        ({"distances": np.array([1e6, 0.0])}, "distances"),
        ({"costs": np.array([1.0, 1.0])}, "empty-cell"),
        ({"costs": np.zeros(3)}, "shape"),
        ({"means": np.zeros((2, 3))}, "shape"),
        ({"means": np.ones((2, 2))}, "empty-cell"),
        ({"known": np.zeros((2, 3), dtype=np.int64)}, "shape"),
        ({"known": np.array([[2, 200], [0, 0]])}, "smallest-count"),
        ({"known": np.array([[198, 200], [0, 0]])}, "smallest-count"),
        ({"known": np.array([[205, 200], [0, 0]])}, "smallest-count"),
        ({"known": np.array([[0, 200], [0, 0]])}, "empty-cell"),
        ({"m2": np.array([[-1.0, 1.0], [0.0, 0.0]])}, "m2"),
        ({"within": np.array([-1.0, 1.0])}, "within"),
        ({"within": np.ones(3)}, "shape"),
        ({"constant": np.array([True, False])}, "typical"),
        ({"typical": np.zeros(3, dtype=np.bool_)}, "shape"),
    ],
)
def test_check_refuses_what_cannot_be(change: dict[str, Any], rule: str) -> None:
    config = config_of(OPTIONS)
    points = weighted(np.random.default_rng(3).normal(size=(40, 2)), 5)
    centroids = np.array([[0.0, 0.0], [50.0, 50.0]])
    payload = _measure(points, centroids, config)
    task = evaluation.EvaluationTask(centroids=centroids)

    found = violation(evaluation.check, task, payload.model_copy(update=change), config)
    assert found.rule == rule
    assert found.pointer.split("/")[1] in evaluation.Evaluation.model_fields


EQUAL = np.array([True, True])


@pytest.mark.parametrize(
    ("mask", "protection"), [([True, False], "groups"), ([True, True], "none")]
)
def test_columns_that_a_site_lacks_and_exact_rows_are_not_equal(
    mask: list[bool], protection: str
) -> None:
    config = replace(config_of(OPTIONS, protection=protection), mask=np.array(mask))
    points, centroids = weighted(np.ones((8, 2)) * mask), np.zeros((1, 2))
    payload = _measure(points, centroids, config)
    here = [protection == "groups", False]
    assert payload.constant.tolist() == payload.typical.tolist() == here
    task = evaluation.EvaluationTask(centroids=centroids)
    for change in ({"typical": EQUAL}, {"constant": EQUAL, "typical": EQUAL}):
        with pytest.raises(RuleViolation, match="that the site has"):
            evaluation.check(task, payload.model_copy(update=change), config)


@pytest.mark.parametrize(("sizes", "half"), [([10, 5, 5], True), ([9, 5, 6], False)])
def test_equal_records_count_by_persons_where_they_have_a_value(
    sizes: list[int], *, half: bool
) -> None:
    X = np.array([[1.0, 4.0, 0.1], [1.0, 4.0, 0.2], [1.0, 5.0, 0.3]])
    observed = np.array([[True, True, True], [True, True, True], [True, False, True]])
    points = replace(weighted(X, sizes), observed=observed)
    payload = _measure(points, np.zeros((1, 3)), config_of(OPTIONS, d=3, missing="impute"))

    assert payload.constant.tolist() == [True, True, False]
    assert payload.typical.tolist() == [True, True, half]


def test_more_centroids_than_the_definition_names_are_refused() -> None:
    task = evaluation.EvaluationTask(centroids=np.zeros((5, 2)))
    with pytest.raises(RuleViolation, match="4 clusters"):
        evaluation.check_task(task, config_of(OPTIONS))
    # Sites without a feature in common keep groups of their own.
    evaluation.check_task(task, config_of(OPTIONS, missing="mask"))
    many = evaluation.EvaluationTask(centroids=np.zeros((9, 2)))
    with pytest.raises(RuleViolation, match="8 clusters"):
        evaluation.check_task(many, config_of(OPTIONS, missing="mask"))


# --- profiles -------------------------------------------------------------------------------------


def test_deviations_are_completed_by_the_variance_within_groups() -> None:
    rng = np.random.default_rng(4)
    config = config_of(OPTIONS, d=2)
    within = {"a": np.array([0.3, 0.05]), "b": np.array([0.5, 0.1])}
    sites = {site: replace(_random(rng, 60, 2), within=share) for site, share in within.items()}
    centroids = np.array([[-1.0, 0.0], [1.0, 0.0]])
    outcome = _outcome(sites, centroids, config)
    profile = outcome.profile

    weights, means, squares = np.zeros(2), np.zeros((2, 2)), np.zeros((2, 2))
    for points in sites.values():
        X = repeated(points)
        inside = points.within / (1 - points.within) * X.var(axis=0)
        labels = ((X[:, None] - centroids) ** 2).sum(axis=2).argmin(axis=1)
        for k in range(2):
            weights[k] += (labels == k).sum()
            means[k] += X[labels == k].sum(axis=0)
            squares[k] += (X[labels == k] ** 2).sum(axis=0) + (labels == k).sum() * inside
    means /= weights[:, None]
    np.testing.assert_allclose(profile.means, means)
    spreads = np.sqrt(squares / weights[:, None] - means**2)
    assert profile.estimated_deviations.ravel().tolist() == _two_digits(spreads)
    overall = (weights @ means) / weights.sum()
    np.testing.assert_allclose(profile.overall_means, overall)
    every = np.sqrt(squares.sum(axis=0) / weights.sum() - overall**2)
    assert profile.estimated_overall_deviations.tolist() == _two_digits(every)


def test_clusters_of_records_look_clearer_than_those_of_the_persons() -> None:
    """As pages and the methods text say of the figures of quality."""
    rng = np.random.default_rng(7)
    sites = {site: rng.normal(size=(200, 4)) for site in "abc"}
    result = simulate("lloyd", sites, config={"n_clusters": 4}, seed=1)
    quality, space = result.result.quality, result.result
    scaled = (pooled(sites) - space.center) / space.scale
    labels = ((scaled[:, None] - space.centroids) ** 2).sum(axis=2).argmin(axis=1)
    persons = weighted(scaled, np.ones(len(scaled), dtype=np.int64))
    everybody = _outcome({"all": persons}, space.centroids, config_of(OPTIONS, d=4)).quality

    assert np.bincount(labels).min() > 0
    assert quality.inertia < 0.95 * everybody.inertia
    assert quality.simplified_silhouette > 1.05 * everybody.simplified_silhouette
    assert quality.davies_bouldin < 0.95 * everybody.davies_bouldin


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_imputed_values_count_in_no_mean_and_no_spread(offset: float) -> None:
    config = config_of(OPTIONS, missing="impute")
    rng = np.random.default_rng(6)
    centroids = np.array([[0.0, 0.0], [9.0, 9.0]]) + offset
    sites, rows = {}, []
    for site in "ab":
        which = np.arange(60) % 2
        X = rng.normal(size=(60, 2)) + centroids[which]
        observed = np.ones(X.shape, dtype=np.bool_)
        observed[:25, 1] = False
        points = weighted(np.where(observed, X, offset + 4.0), rng.integers(5, 9, 60))
        sites[site] = replace(points, observed=observed)
        held = np.where(observed, X, np.nan)
        rows.append((np.repeat(held, points.sizes, axis=0), np.repeat(which, points.sizes)))
    held, labels = (np.concatenate(each) for each in zip(*rows, strict=True))
    # A point without its second value may be in either cluster: it lies half-way.
    task = evaluation.task(raw_result(centroids, config))
    labels[np.isnan(held).any(axis=1)] = [
        label
        for points in sites.values()
        for label in np.repeat(
            evaluation.label_points(task, points, config)[:25], points.sizes[:25]
        )
    ]
    profile = _outcome(sites, centroids, config).profile

    for k in range(2):
        own = held[labels == k]
        np.testing.assert_allclose(profile.means[k], np.nanmean(own, axis=0), rtol=1e-12)
        assert profile.estimated_deviations[k].tolist() == _two_digits(np.nanstd(own, axis=0))
    np.testing.assert_allclose(profile.overall_means, np.nanmean(held, axis=0), rtol=1e-12)
    payload = _measure(sites["a"], centroids, config)
    here = sites["a"]
    assert payload.known.sum(axis=0).tolist() == [here.n, here.sizes[25:].sum()]


def test_a_mean_is_uncertain_where_persons_can_lie_further_out_than_records() -> None:
    features = (
        Feature(name="apart"),
        Feature(name="noise"),
        Feature(name="log", lower=1.0, transform="log"),
        Feature(name="yes", kind="binary"),
    )
    rng = np.random.default_rng(9)
    which = np.arange(200) % 2
    X = np.column_stack(
        [10.0 * which, rng.normal(size=200) + which, 1.0 + 0.1 * which, which]
    ) + 0.01 * rng.normal(size=(200, 4)) * [1, 1, 1, 0]
    within = np.array([0.05, 0.6, 0.05, 0.6])
    sites = {site: replace(weighted(X), within=within) for site in "ab"}
    centroids = np.array([X[which == k].mean(axis=0) for k in range(2)])
    config = config_of(OPTIONS, features=features)
    profile = _outcome(sites, centroids, config).profile

    assert profile.uncertain is not None
    variances = X.var(axis=0) / (1.0 - within)
    labels = np.linalg.norm(X[:, None] - centroids, axis=2).argmin(axis=1)
    for k in range(2):
        own = X[labels == k]
        apart = np.abs(own.mean(axis=0) - X.mean(axis=0)) / np.sqrt(variances)
        spread = np.sqrt((own.var(axis=0) + within * variances) / variances)
        error = apart * (1.0 / np.sqrt(1.0 - within) - 1.0) + 0.05 * spread
        assert (error > 0.15).tolist()[:2] == [False, True]
        assert profile.uncertain[k].tolist() == [False, True, True, False]
    unprotected = config_of(OPTIONS, features=features, protection="none")
    none = {site: replace(points, within=np.zeros(4)) for site, points in sites.items()}
    exact = _outcome(none, centroids, unprotected).profile
    assert exact.uncertain is None


@pytest.mark.parametrize(
    ("p", "n_groups", "size", "n_known", "uncertain"),
    [
        # 2.5 standard errors of a mean of 282 or 276 persons are below or above .15,
        (5, 47, 6, 47, False),
        (5, 46, 6, 46, True),
        # and with a larger p it takes as many groups.
        (20, 47, 24, 47, False),
        (20, 46, 24, 46, True),
        # Groups a sixth or a third larger than without missing values.
        (5, 400, 7, 400, False),
        (5, 400, 8, 400, True),
        # The record of 25 or 35 % of the persons is imputed.
        (5, 800, 6, 600, False),
        (5, 800, 6, 520, True),
    ],
)
def test_a_mean_of_few_persons_or_with_many_missing_values_is_uncertain(
    p: int, n_groups: int, size: int, n_known: int, *, uncertain: bool
) -> None:
    X = np.tile([[1.0, 1.0], [-1.0, -1.0]], (400, 1))[:n_groups]
    observed = np.ones(X.shape, dtype=np.bool_)
    observed[n_known:, 1] = False
    points = replace(weighted(X, np.full(n_groups, size)), within=np.zeros(2), observed=observed)
    config = config_of(OPTIONS, missing="impute", p=p)
    profile = _outcome({"a": points}, np.zeros((1, 2)), config).profile

    loss = 1.0 + 7.0 * (max(size / (1.2 * p) - 1.0, 0.0) + 1.0 - n_known / n_groups)
    error = max(0.05 * loss, 2.5 * np.sqrt(loss / (n_known * size * 5 / p)))
    assert (error > 0.15) == uncertain
    assert profile.uncertain[0, 1] == uncertain


@pytest.mark.parametrize("p", [5, 10])
def test_a_difference_rests_on_four_times_p_persons_with_a_record(p: int) -> None:
    observed = np.ones((4, 2), dtype=np.bool_)
    observed[3, 1] = False
    points = replace(weighted(np.ones((4, 2)), np.full(4, p)), observed=observed)
    exact = config_of(OPTIONS, missing="impute", protection="none")

    found = [
        _outcome({"a": points}, np.zeros((1, 2)), config).profile
        for config in (config_of(OPTIONS, missing="impute", p=p), exact)
    ]
    assert found[0].few.tolist() == [[False, True]]
    assert found[1].few is None


def test_a_site_with_a_larger_p_is_not_taken_for_one_with_missing_values() -> None:
    X = np.tile([[1.0], [-1.0]], (200, 1))
    config, centroid = config_of(OPTIONS, d=1), np.zeros((1, 1))
    sites = {"a": weighted(X, np.full(400, 6)), "b": weighted(X, np.full(400, 24))}
    found = []
    for p in (5, 20):
        answers = [
            Contribution(site, _measure(replace(points, within=np.zeros(1)), centroid, config), own)
            for (site, points), own in zip(sites.items(), (5, p), strict=True)
        ]
        raw = raw_result(centroid, config)
        found.append(evaluation.aggregate(raw, answers, config).profile)

    assert [each.uncertain.tolist() for each in found] == [[[True]], [[False]]]
    # Four groups are what a difference needs of either site.
    few = []
    for counts in ((4, 0), (0, 3), (0, 4), (3, 1)):
        answers = [
            Contribution(site, _measure(weighted(X[:n], np.full(n, own)), centroid, config), own)
            for site, n, own in zip("ab", counts, (5, 20), strict=True)
            if n
        ]
        few.append(evaluation.aggregate(raw, answers, config).profile.few.item())
    assert few == [False, True, False, False]


@pytest.mark.parametrize(("n_equal", "warns"), [(0, False), (2, False), (3, True), (4, True)])
def test_the_result_says_at_how_many_sites_all_records_are_equal(
    n_equal: int, *, warns: bool
) -> None:
    X = np.random.default_rng(8).normal(size=(20, 2))
    equal = X * [1.0, 0.0]
    sites = {f"s{i}": weighted(equal if i < n_equal else X) for i in range(4)}
    outcome = _outcome(sites, np.zeros((1, 2)), config_of(OPTIONS))

    assert outcome.profile.all_equal == ({"x1": (n_equal, 4)} if n_equal else {})
    assert outcome.profile.typical == (("x1",) if n_equal else ())
    said = f"All records are equal in 'x1' at {n_equal} of 4 sites: a rare trait vanishes there"
    assert any(said in text for text in outcome.warnings) == warns


def test_sites_that_lack_a_column_are_not_among_those_that_have_it() -> None:
    masks = {"a": np.array([True, False]), "b": np.array([True, True])}
    config = replace(config_of(OPTIONS, missing="mask"), masks=masks)
    X = np.random.default_rng(8).normal(size=(20, 2)) * [1.0, 0.0]
    profile = _outcome({site: weighted(X) for site in masks}, np.zeros((1, 2)), config).profile

    assert profile.all_equal == {"x1": (1, 1)}


@pytest.mark.parametrize(
    ("persons", "p", "warns"),
    [([19, 0], 5, True), ([20, 0], 5, False), ([20, 0], 6, True), ([10, 6], 5, False)],
)
@pytest.mark.parametrize("protection", ["groups", "none"])
def test_a_small_cluster_at_one_site_alone_is_warned_of(
    persons: list[int], p: int, protection: str, *, warns: bool
) -> None:
    sites = {}
    for site, far in zip("ab", persons, strict=True):
        sites[site] = weighted([[0.0], [9.0]] if far else [[0.0]], [99, far] if far else [99])
    config = config_of(OPTIONS, d=1, p=p, protection=protection)
    config = replace(config, p=p if protection == "groups" else 1)
    centroids = np.array([[0.0], [9.0]])

    said = f"all at one site: cluster 1 ({persons[0]} persons)"
    assert any(said in text for text in _outcome(sites, centroids, config).warnings) == warns
    alone = _outcome({"a": sites["a"]}, centroids, config)
    assert not any("all at one site" in text for text in alone.warnings)


@pytest.mark.parametrize(("width", "warns"), [(0.0, True), (0.02, True), (0.3, False)])
@pytest.mark.parametrize("kind", ["numeric", "binary"])
def test_a_small_cluster_at_one_point_is_warned_of(width: float, kind: Any, *, warns: bool) -> None:
    X = np.random.default_rng(3).normal(size=(3, 41, 2))
    X[:, 0] = 9.0 + width * X[:, 0]
    X = (X > 8.0) * 1.0 if kind == "binary" else X
    sites = {site: weighted(own) for site, own in zip("abc", X, strict=True)}
    config = config_of(
        OPTIONS, features=(Feature(name="x0", kind=kind), Feature(name="x1", kind=kind))
    )
    # Not at the point, as a class of `mixture`.
    centroids = np.array([[0.0, 0.0], X[0, 0] + 0.5])

    said = "all at one point: cluster 1 (15 persons)."
    for each in (sites, {"a": weighted(np.concatenate(X))}):
        warned = any(said in text for text in _outcome(each, centroids, config).warnings)
        assert warned == (warns and kind == "numeric")


def test_a_table_tells_nothing_finer_than_its_groups() -> None:
    """Two sites with one table answer alike, whatever stands behind it."""
    X = np.random.default_rng(6).normal(size=(120, 2))
    points = of_rows(X)
    other = weighted(points.X, points.sizes)
    config, centroids = config_of(OPTIONS), X[:4]
    one, two = (_measure(each, centroids, config) for each in (points, other))

    for name in ("counts", "points", "costs", "distances", "silhouettes", "means", "m2"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))
