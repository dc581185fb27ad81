"""overlap_oneshot: forces, merges, the number of clusters, Gaussians, sessions."""

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedclust import SessionResult, simulate
from fedclust.methods import overlap_oneshot
from fedclust.methods.common.own_features import LocalCentroids
from fedclust.methods.overlap_oneshot import (
    Config,
    Gaussians,
    GaussiansTask,
    check,
    check_config,
    draw_proxies,
)
from fedclust.methods.overlap_oneshot.agglomeration import (
    MIN_DISTANCE,
    Forces,
    best_cut,
    build_merge_tree,
    cluster_forces,
)
from fedclust.rounds import evaluation
from fedclust.schema.errors import RuleViolation
from fedclust.schema.feature import Feature
from fedclust.schema.run_config import MAX_FOUND_CLUSTERS, RunConfig
from fedclust.schema.task import Points, SiteTask, row_points
from support.points import answer_task, config_of, violation
from support.site_rows import agreement

FloatArray = NDArray[np.float64]


# --- forces ---------------------------------------------------------------------------------------


def _two_sites(seed: int) -> tuple[list[FloatArray], list[NDArray[np.bool_]]]:
    rng = np.random.default_rng(seed)
    masks = [*np.array([[1, 1, 1, 0], [0, 1, 1, 1], [1, 0, 0, 0]], bool)]
    cells = [rng.normal(size=(k, 5, 4)) * mask for k, mask in zip((3, 2, 2), masks, strict=True)]
    return cells, masks


@pytest.mark.parametrize("w", [1.0, 2.0, 5.0])
def test_forces_are_equation_10(w: float) -> None:
    drawn, masks = _two_sites(0)
    points = [(mask, cell) for mask, cells in zip(masks, drawn, strict=True) for cell in cells]
    everything = np.concatenate([np.where(mask, cell, np.nan) for mask, cell in points])
    widths = np.nanmax(everything, axis=0) - np.nanmin(everything, axis=0)

    found = cluster_forces(drawn, masks, w)

    for a, b in combinations(range(len(points)), 2):
        shared = points[a][0] & points[b][0]
        total = 0.0
        for x in points[a][1]:
            for y in points[b][1]:
                gap = ((x - y)[shared] ** 2).sum() / max((widths[shared] ** 2).sum(), 1e-300)
                total += max(gap**0.5, MIN_DISTANCE) ** -w
        assert found.pairs[a, b] == found.pairs[b, a] == int(shared.any())
        expected = total / 25 if shared.any() else 0.0
        np.testing.assert_allclose([found.sums[a, b], found.sums[b, a]], expected, rtol=1e-9)


def test_the_force_between_equal_proxies_is_that_of_the_least_distance() -> None:
    found = cluster_forces([np.zeros((2, 3, 1))], [np.ones(1, dtype=np.bool_)], 2.0)

    assert found.sums[0, 1] == pytest.approx(MIN_DISTANCE**-2)


def test_forces_do_not_depend_on_the_distance_from_the_origin() -> None:
    drawn, masks = _two_sites(1)
    moved = [np.where(mask, cells + 1e6, 0.0) for mask, cells in zip(masks, drawn, strict=True)]

    np.testing.assert_allclose(
        cluster_forces(moved, masks, 2.0).sums, cluster_forces(drawn, masks, 2.0).sums, rtol=1e-5
    )


# --- the tree -------------------------------------------------------------------------------------


def _force(between: Forces, r: list[int], s: list[int]) -> float:
    pairs = between.pairs[np.ix_(r, s)].sum()
    return float(between.sums[np.ix_(r, s)].sum() / pairs) if pairs else 0.0


def _greedy(between: Forces, sites: NDArray[np.int64] | None) -> list[set[frozenset[int]]]:
    """Return the partitions of lines 5 to 10 as printed: the greatest force of all, each time."""
    groups = [[i] for i in range(len(between.sums))]
    found = [{frozenset(group) for group in groups}]
    while True:
        best, pair = 0.0, None
        for a, b in combinations(range(len(groups)), 2):
            if sites is not None and set(sites[groups[a]]) & set(sites[groups[b]]):
                continue
            force = _force(between, groups[a], groups[b])
            if force > best:
                best, pair = force, (a, b)
        if pair is None:
            if sites is None:
                return found
            sites = None
            continue
        groups[pair[0]] += groups.pop(pair[1])
        found.append({frozenset(group) for group in groups})


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_nearest_neighbour_chains_find_the_tree_of_greatest_forces(seed: int, apart: bool) -> None:
    rng = np.random.default_rng(seed)
    sites = rng.integers(0, 5, 24)
    # Some sites share no feature, and in some cases parts of them never meet.
    meet = rng.random((5, 5)) < (0.25 if seed % 2 else 0.7)
    meet |= meet.T
    between = rng.random((24, 24)) * meet[np.ix_(sites, sites)]
    sums = np.triu(between, 1) + np.triu(between, 1).T
    made = Forces(sums, (sums > 0).astype(np.int64))
    own = sites if apart else None

    tree = build_merge_tree(made, own)
    expected = _greedy(made, own)

    assert tree.n_roots == len(expected[-1])
    for groups in expected:
        cut = tree.cut(len(groups))
        assert {frozenset(np.flatnonzero(cut == k).tolist()) for k in set(cut)} == groups


# --- the number of clusters -----------------------------------------------------------------------


def _cells(seed: int, k: int) -> tuple[LocalCentroids, FloatArray, list[FloatArray]]:
    """Return four sites' cells of ``k`` clusters, with masks, and their proxies."""
    rng = np.random.default_rng(seed)
    # Each feature tells clusters apart.
    centres = np.array([rng.permutation(k) for _ in range(8)]).T * 6.0
    masks = np.array([np.roll([1, 1, 1, 1, 1, 0, 0, 0], 2 * i) for i in range(4)], dtype=np.bool_)
    values = np.concatenate([(centres + rng.normal(scale=0.2, size=(k, 8))) * m for m in masks])
    known = np.repeat(masks, k, axis=0)
    points = LocalCentroids(
        values, known, rng.integers(20, 60, 4 * k).astype(float), np.repeat(np.arange(4), k)
    )
    variances = np.where(known, rng.uniform(0.5, 1.5, known.shape), 0.0)
    own = [slice(i * k, (i + 1) * k) for i in range(4)]
    drawn = [
        draw_proxies(values[own[i]], variances[own[i]], np.flatnonzero(masks[i]), 50, rng)
        for i in range(4)
    ]
    return points, variances, drawn


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("k", [2, 5, 9])
def test_the_number_of_clusters_is_found(k: int, seed: int) -> None:
    points, variances, drawn = _cells(seed, k)
    tree = build_merge_tree(cluster_forces(drawn, list(points.mask[::k]), 2.0))

    found, _ = best_cut(tree, points, variances)

    assert found == k
    assert tree.cut(found).tolist() == np.tile(np.arange(k), 4).tolist()


def _silhouette(points: LocalCentroids, variances: FloatArray, groups: NDArray[np.int64]) -> float:
    """The definition, cell by cell."""
    values = np.where(points.mask, points.values, np.nan)
    widths = np.nanmax(values, axis=0) - np.nanmin(values, axis=0)
    total = 0.0
    for cell in range(len(points)):
        gaps = {}
        for group in set(groups):
            inside = (groups == group)[:, None] & points.mask
            shared = points.mask[cell] & inside.any(axis=0)
            if not shared.any():
                continue
            weights = np.where(inside, points.counts[:, None], 0.0)[:, shared]
            centre = (weights * points.values[:, shared]).sum(axis=0) / weights.sum(axis=0)
            apart = ((points.values[cell, shared] - centre) ** 2 + variances[cell, shared]).sum()
            gaps[group] = (apart / (widths[shared] ** 2).sum()) ** 0.5
        own = gaps.pop(groups[cell])
        other = min(gaps.values())
        total += points.counts[cell] * (other - own) / max(other, own)
    return float(total / points.counts.sum())


def test_the_cut_has_the_best_silhouette_of_all_cuts() -> None:
    points, variances, drawn = _cells(7, 4)
    tree = build_merge_tree(cluster_forces(drawn, list(points.mask[::4]), 2.0))
    scores = {k: _silhouette(points, variances, tree.cut(k)) for k in range(2, len(points) + 1)}

    k, score = best_cut(tree, points, variances)

    assert k == max(scores, key=lambda k: scores[k])
    assert score == pytest.approx(scores[k])
    for number in (2, 3, 7):
        assert best_cut(tree, points, variances, number)[1] == pytest.approx(scores[number])


# --- Gaussians ------------------------------------------------------------------------------------


def test_proxies_have_exactly_the_moments_that_were_sent() -> None:
    rng = np.random.default_rng(0)
    means, variances = rng.normal(size=(2, 5)), rng.uniform(size=(2, 5))
    own = np.array([0, 2, 3])

    drawn = draw_proxies(means, variances, own, 40, rng)

    np.testing.assert_allclose(drawn.mean(axis=1)[:, own], means[:, own], atol=1e-12)
    np.testing.assert_allclose(drawn.var(axis=1)[:, own], variances[:, own])
    assert not drawn[:, :, [1, 4]].any()
    # A variance of zero puts all of them at the mean.
    assert (draw_proxies(np.ones((1, 2)), np.zeros((1, 2)), np.arange(2), 30, rng) == 1.0).all()


def test_proxies_of_a_full_covariance_have_it() -> None:
    rng = np.random.default_rng(0)
    root = rng.normal(size=(3, 2))
    matrix = root @ root.T  # Of rank 2: singular.

    drawn = draw_proxies(
        np.zeros((1, 3)), np.diag(matrix)[None], np.arange(3), 20_000, rng, matrix[None]
    )

    np.testing.assert_allclose(np.cov(drawn[0].T, bias=True), matrix, atol=0.05)


def _config(d: int, protection: Any = "groups", **options: Any) -> RunConfig:
    features = tuple(Feature(name=f"f{j}") for j in range(d))
    policy = {"missing": "mask", "protection": protection, "scaling": "standard"}
    made = config_of(Config(**options), features=features, **policy)
    return replace(made, mask=np.ones(d, dtype=np.bool_))


def _answer(points: Points, config: RunConfig, k: int, *, full: bool = False) -> Gaussians:
    task = GaussiansTask(n_clusters=k, search=False, n_init=3, full=full)
    site = SiteTask("gaussians", task)
    payload = answer_task(overlap_oneshot.METHOD, site, points, config)
    assert isinstance(payload, Gaussians)
    return payload


def test_variances_are_those_of_the_points_and_the_released_share_within() -> None:
    rng = np.random.default_rng(1)
    X = np.repeat([[0.0, 0, 0], [9.0, 9, 0]], 12, axis=0) + rng.normal(size=(24, 3)) * [1, 2, 0]
    sizes, within = rng.integers(5, 10, 24), np.array([0.3, 0.1, 0.0])
    config = replace(_config(4), mask=np.array([True, True, False, True]))
    wide = Points(np.insert(X, 2, 0.0, axis=1), sizes, np.insert(within, 2, 0.0))

    sent = _answer(wide, config, 2)

    total = np.average((X - np.average(X, axis=0, weights=sizes)) ** 2, axis=0, weights=sizes)
    for count, mean, variances in zip(sent.counts, sent.means, sent.variances, strict=True):
        rows = slice(0, 12) if mean[0] < 4 else slice(12, 24)
        centre = np.average(X[rows], axis=0, weights=sizes[rows])
        between = np.average((X[rows] - centre) ** 2, axis=0, weights=sizes[rows])
        assert count == sizes[rows].sum()
        np.testing.assert_allclose(mean[[0, 1, 3]], centre, atol=1e-12)
        expected = between + within / (1.0 - within) * total
        np.testing.assert_allclose(variances[[0, 1, 3]], expected, atol=1e-12)
        assert mean[2] == variances[2] == 0.0


def test_a_variance_is_no_wider_than_the_bounds_allow() -> None:
    """Completed by the share within groups, that of a yes/no column could be."""
    features = (Feature(name="f0", kind="binary"), Feature(name="f1", lower=0, upper=4))
    config = replace(_config(2), features=features)
    X = np.array([[0.0, 0.0], [1.0, 4.0]] * 5)
    sent = _answer(Points(X, np.full(10, 6), np.array([0.6, 0.6])), config, 1)

    np.testing.assert_allclose(sent.variances, [[0.25, 4.0]])


def test_full_covariances_are_those_of_the_rows() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 4)) @ rng.normal(size=(4, 4)) * [1, 1, 1, 0] + [0, 0, 0, 0.1]
    config = replace(_config(4, "none", covariance="full"), p=1)

    sent = _answer(row_points(X), config, 1, full=True)

    np.testing.assert_allclose(sent.covariances[0], np.cov(X.T, bias=True), atol=1e-12)


def test_a_cell_of_one_row_is_a_defined_answer() -> None:
    X = np.array([[0.0, 1.0], [50.0, 2.0], [0.5, 1.0]])
    config = replace(_config(2, "none", covariance="full"), p=1)

    sent = _answer(row_points(X), config, 2, full=True)

    alone = int(sent.counts.argmin())
    assert sent.counts[alone] == 1
    assert not sent.variances[alone].any()
    assert not sent.covariances[alone].any()


# --- checks ---------------------------------------------------------------------------------------


NONE = np.zeros((0, 0, 0))


def _payload(**update: Any) -> Gaussians:
    matrix = np.array([[1.0, 0.5, 0.0], [0.5, 1.0, 0.0], [0.0, 0.0, 2.0]])
    sent: dict[str, Any] = {
        "counts": np.array([20, 30]),
        "means": np.zeros((2, 3)),
        "variances": np.tile(np.diag(matrix), (2, 1)),
        "covariances": np.stack([matrix, matrix]),
    }
    return Gaussians(**{**sent, **update})


def _check(payload: Gaussians, *, full: bool = True) -> None:
    task = GaussiansTask(n_clusters=3, search=False, n_init=None, full=full)
    # Of three features: the fourth is another site's.
    wide = replace(_config(4, "none", covariance="full"), mask=np.array([1, 1, 1, 0], bool))
    pad = np.zeros((len(payload.means), 1))
    update = {name: np.hstack([getattr(payload, name), pad]) for name in ("means", "variances")}
    check(SiteTask("gaussians", task), payload.model_copy(update=update), wide)


def _covariances(i: int, j: int, value: float) -> FloatArray:
    matrices = np.array(_payload().covariances)
    matrices[0, i, j] = value
    return matrices


@pytest.mark.parametrize(
    ("update", "rule"),
    [
        ({"covariances": _covariances(0, 1, 0.4)}, "symmetry"),
        ({"covariances": np.array([[[1, 2, 0], [2, 1, 0], [0, 0, 2.0]]] * 2)}, "definite"),
        (
            {
                "covariances": np.array([[[1, 0.9, -0.9], [0.9, 1, 0.9], [-0.9, 0.9, 1.0]]] * 2),
                "variances": np.ones((2, 3)),
            },
            "definite",
        ),
        (
            {
                "covariances": np.array([[[1, 0, 0.1], [0, 1, 0], [0.1, 0, 0.0]]] * 2),
                "variances": np.array([[1.0, 1.0, 0.0]] * 2),
            },
            "definite",
        ),
        ({"covariances": _covariances(0, 0, 1.5)}, "covariance"),
        ({"covariances": np.ones((2, 2, 2))}, "shape"),
        ({"covariances": np.zeros((0, 0, 0))}, "shape"),
        ({"variances": np.array([[1.0, 1.0, -1.0], [1.0, 1.0, 2.0]])}, "spread"),
        ({"counts": np.array([20, 0])}, "empty-cell"),
    ],
)
def test_an_invalid_message_is_refused_by_rule(update: dict[str, Any], rule: str) -> None:
    assert violation(_check, _payload(**update)).rule == rule


def test_a_variance_beyond_the_bounds_is_refused() -> None:
    features = tuple(Feature(name=f"f{j}", lower=-1, upper=1) for j in range(3))
    config = replace(_config(3), features=features)
    task = SiteTask("gaussians", GaussiansTask(n_clusters=3, search=False, n_init=None, full=False))
    ones = np.ones((2, 3))
    check(task, _payload(variances=ones, covariances=NONE), config)

    broken = violation(check, task, _payload(variances=1.01 * ones, covariances=NONE), config)
    assert broken.pointer == "/variances/0/0"


def test_covariances_that_the_task_did_not_ask_for_are_refused() -> None:
    assert violation(_check, _payload(), full=False).pointer == "/covariances"


def test_values_in_features_that_the_site_lacks_are_refused() -> None:
    config = replace(_config(3), mask=np.array([1, 1, 0], bool))
    task = GaussiansTask(n_clusters=3, search=False, n_init=None, full=False)
    payload = _payload(covariances=NONE)

    assert violation(check, SiteTask("gaussians", task), payload, config).rule == "mask"


def test_full_covariances_need_exact_records_and_fit_a_message() -> None:
    with pytest.raises(RuleViolation, match="fewer features"):
        check_config(_config(561, "none", covariance="full", n_clusters=20))
    check_config(_config(561, covariance="diagonal", n_clusters=20))
    with pytest.raises(RuleViolation, match="covariance: diagonal, or protection: none"):
        check_config(_config(3, covariance="full", n_clusters=2))
    check_config(_config(3, "none", covariance="full", n_clusters=2))


# --- what was consented to ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "most"), [({}, MAX_FOUND_CLUSTERS), ({"n_clusters": 2}, 2 * 3)]
)
def test_a_site_measures_no_more_centroids_than_the_method_can_find(
    options: dict[str, Any], most: int
) -> None:
    config = _config(3, **options)
    small, large = (evaluation.EvaluationTask(centroids=np.zeros((n, 3))) for n in (most, most + 1))
    evaluation.check_task(small, config)
    with pytest.raises(RuleViolation, match=f"provides for {most} clusters"):
        evaluation.check_task(large, config)


# --- sessions -------------------------------------------------------------------------------------

WINDOWS = {"a": (0, 1, 2, 3), "b": (2, 3, 4, 5), "c": (4, 5, 6, 7), "d": (0, 1, 6, 7)}


def _hospitals(
    seed: int = 0, k: int = 3, rows: int = 90
) -> tuple[dict[str, FloatArray], dict[str, NDArray[np.int64]]]:
    """Return rows with NaN in the columns that a site lacks, and their clusters."""
    rng = np.random.default_rng(seed)
    # Each feature tells clusters apart.
    centres = np.array([rng.permutation(k) for _ in range(8)]).T * 6.0
    X, y = {}, {}
    for site, window in WINDOWS.items():
        y[site] = rng.integers(0, k, rows)
        whole = centres[y[site]] + rng.normal(size=(rows, 8))
        X[site] = np.where(np.isin(np.arange(8), window), whole, np.nan)
    return X, y


def _run(X: dict[str, FloatArray], protection: str = "groups", **config: Any) -> SessionResult:
    policy = {"missing": "mask", "protection": protection}
    return simulate("overlap_oneshot", X, config=config, policy=policy, seed=3)


@pytest.mark.parametrize(
    ("n_clusters", "protection", "form"),
    [(3, "groups", "diagonal"), (None, "groups", "diagonal"), (None, "none", "full")],
)
def test_a_session_finds_the_clusters(n_clusters: int | None, protection: str, form: str) -> None:
    X, y = _hospitals()

    result = _run(X, protection, n_clusters=n_clusters, covariance=form)

    assert len(result.cluster_centers_) == 3
    assert agreement(result, y) == 1.0
    assert result.result.warnings == ()
    # New rows of a site take the nearest centroid over what it has.
    for site, rows in X.items():
        assert (result.predict(rows, site=site) == result.labels_[site]).mean() > 0.97


def test_cannot_link_decides_whether_clusters_of_one_site_are_merged() -> None:
    rng = np.random.default_rng(0)
    y = {site: rng.integers(0, 2, 90) for site in "abc"} | {"d": np.zeros(90, dtype=np.int64)}
    # Site d holds one cluster, and splits it.
    X = {site: 8.0 * own[:, None] + rng.normal(size=(90, 4)) for site, own in y.items()}

    assert agreement(_run(X, n_clusters=2), y) == 1.0
    assert agreement(_run(X, n_clusters=2, cannot_link="off"), y) == 1.0
    apart = _run(X, n_clusters=2, cannot_link="on")
    said = any("cannot_link kept them apart" in warning for warning in apart.warnings_)
    assert said or len(set(apart.labels_["d"].tolist())) == 2


def test_forced_merges_of_one_sites_clusters_warn() -> None:
    X, _ = _hospitals(k=4)

    result = _run(X, n_clusters=2, local_clusters=4, cannot_link="on")

    assert len(result.cluster_centers_) == 2
    assert any("cannot_link" in warning for warning in result.result.warnings)


def test_a_session_of_sites_that_share_no_feature_is_refused() -> None:
    X = {
        site: np.where(np.arange(8) // 2 == at, np.nan_to_num(rows), np.nan)
        for at, (site, rows) in enumerate(_hospitals()[0].items())
    }
    with pytest.raises(RuleViolation, match="share no feature"):
        _run(X, n_clusters=3)


def test_own_rows_follow_the_nearest_mean_of_their_own_site() -> None:
    """Where the merged centroid of another group is nearer, too."""
    X, _ = _hospitals(k=4)
    result = _run(X, n_clusters=3, local_clusters=4)
    for entry in result.trace_:
        if entry.phase == "gaussians":
            has = list(WINDOWS[entry.site])
            scaled = (X[entry.site] - result.result.center) / result.result.scale
            apart = (scaled[:, None] - entry.payload.means)[:, :, has] ** 2
            groups = np.array(result.result.mapping[entry.site])
            expected = groups[apart.sum(axis=2).argmin(axis=1)]
            assert np.array_equal(result.labels_[entry.site], expected)


def test_a_site_with_fewer_points_than_cells_sends_as_many_as_it_has() -> None:
    X, _ = _hospitals()
    X["d"] = X["d"][:12]  # Two groups of five at most.
    result = _run(X, n_clusters=3)
    sent = {e.site: e.payload for e in result.trace_ if e.phase == "gaussians"}
    assert 1 <= len(sent["d"].counts) <= 2
    assert sent["d"].counts.sum() == 12
    assert (result.labels_["d"] >= 0).all()


def test_a_sites_proxies_do_not_depend_on_other_sites() -> None:
    payload = Gaussians(
        counts=np.array([9]),
        means=np.zeros((1, 2)),
        variances=np.ones((1, 2)),
        covariances=np.zeros((0, 0, 0)),
    )
    config = replace(_config(2), masks={site: np.ones(2, dtype=np.bool_) for site in "ab"})
    drawn = [overlap_oneshot._draw_site_proxies(7, site, payload, config) for site in "aab"]

    assert np.array_equal(drawn[0], drawn[1])
    # The same Gaussian at two sites; drawn alike, their proxies would lie at one place.
    assert np.abs(drawn[0] - drawn[2]).min(axis=1).max() > 1e-3
