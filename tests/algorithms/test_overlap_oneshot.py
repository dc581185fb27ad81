"""overlap_oneshot: forces, merges, the number of clusters, Gaussians, and what leaves a site."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedclust import SimulationResult, simulate
from fedclust.algorithms import overlap_oneshot
from fedclust.algorithms.base import (
    Contribution,
    Feature,
    Memory,
    Policy,
    RuleViolation,
    RunConfig,
    SiteData,
    SiteTask,
    Space,
)
from fedclust.algorithms.forces import FLOOR, Forces, best_cut, forces, merge_tree
from fedclust.algorithms.gaussians import covariance, proxies, without_few
from fedclust.algorithms.masked import Points, components
from fedclust.algorithms.overlap_oneshot import (
    Config,
    Gaussians,
    GaussiansTask,
    check,
    check_config,
)
from fedclust.algorithms.releasing import Released, release
from fedclust.privacy.counting import PersonIndex
from support.attacker import recover
from support.traces import statistics_of

FloatArray = NDArray[np.float64]


# --- forces ---------------------------------------------------------------------------------------


def _two_sites(seed: int) -> tuple[list[FloatArray], list[NDArray[np.bool_]]]:
    rng = np.random.default_rng(seed)
    masks = [
        np.array([1, 1, 1, 0], bool),
        np.array([0, 1, 1, 1], bool),
        np.array([1, 0, 0, 0], bool),
    ]
    return [
        rng.normal(size=(k, 5, 4)) * mask for k, mask in zip((3, 2, 2), masks, strict=True)
    ], masks


@pytest.mark.parametrize("w", [1.0, 2.0, 5.0])
def test_forces_are_equation_10(w: float) -> None:
    drawn, masks = _two_sites(0)
    points = [(mask, cell) for mask, cells in zip(masks, drawn, strict=True) for cell in cells]
    everything = np.concatenate([np.where(mask, cell, np.nan) for mask, cell in points])
    widths = np.nanmax(everything, axis=0) - np.nanmin(everything, axis=0)

    found = forces(drawn, masks, w)

    for a, b in combinations(range(len(points)), 2):
        shared = points[a][0] & points[b][0]
        total = 0.0
        for x in points[a][1]:
            for y in points[b][1]:
                gap = ((x - y)[shared] ** 2).sum() / max((widths[shared] ** 2).sum(), 1e-300)
                total += max(gap**0.5, FLOOR) ** -w
        assert found.pairs[a, b] == found.pairs[b, a] == int(shared.any())
        expected = total / 25 if shared.any() else 0.0
        np.testing.assert_allclose([found.sums[a, b], found.sums[b, a]], expected, rtol=1e-9)


def test_proxies_at_one_place_attract_by_the_floor() -> None:
    found = forces([np.zeros((2, 3, 1))], [np.ones(1, dtype=np.bool_)], 2.0)

    assert found.sums[0, 1] == pytest.approx(FLOOR**-2)


def test_a_force_far_from_the_origin_is_the_same() -> None:
    drawn, masks = _two_sites(1)
    moved = [np.where(mask, cells + 1e6, 0.0) for mask, cells in zip(masks, drawn, strict=True)]

    np.testing.assert_allclose(
        forces(moved, masks, 2.0).sums, forces(drawn, masks, 2.0).sums, rtol=1e-5
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
def test_chains_of_neighbours_find_the_tree_of_the_greatest_forces(seed: int, apart: bool) -> None:
    rng = np.random.default_rng(seed)
    sites = rng.integers(0, 5, 24)
    # Some sites share no feature, and in some cases parts of them never meet.
    meet = rng.random((5, 5)) < (0.25 if seed % 2 else 0.7)
    meet |= meet.T
    between = rng.random((24, 24)) * meet[np.ix_(sites, sites)]
    sums = np.triu(between, 1) + np.triu(between, 1).T
    made = Forces(sums, (sums > 0).astype(np.int64))
    own = sites if apart else None

    tree = merge_tree(made, own)
    expected = _greedy(made, own)

    assert tree.n_roots == len(expected[-1])
    for groups in expected:
        cut = tree.cut(len(groups))
        assert {frozenset(np.flatnonzero(cut == k).tolist()) for k in set(cut)} == groups


def _between(forces_of: dict[tuple[int, int], float], m: int) -> Forces:
    sums = np.zeros((m, m))
    for (a, b), force in forces_of.items():
        sums[a, b] = sums[b, a] = force
    return Forces(sums, (sums > 0).astype(np.int64))


def test_both_factors_of_equation_11_count_their_own_group() -> None:
    """As printed both are over G[s]: the force of a larger group is a sum instead of a mean."""
    made = _between({(0, 1): 10, (0, 2): 3, (1, 2): 3, (2, 3): 5, (0, 3): 1, (1, 3): 1}, 4)

    assert merge_tree(made).cut(2).tolist() == [0, 0, 1, 1]


def test_pairs_without_a_common_feature_do_not_count() -> None:
    """With a force of 0 for them, {0, 2} and 4 would have 3, and 4 would go with 5."""
    near = {(0, 2): 10.0, (1, 3): 10.0, (2, 4): 6.0, (3, 5): 6.0}
    far = dict.fromkeys([(0, 1), (2, 3), (4, 5)], 4.0) | dict.fromkeys([(0, 3), (1, 2)], 3.0)
    made = _between(near | far | dict.fromkeys([(2, 5), (3, 4)], 3.0), 6)

    assert merge_tree(made).cut(2).tolist() == [0, 1, 0, 1, 0, 1]


def test_figure_7_the_force_heeds_the_near_part_of_a_long_cluster() -> None:
    """A set beside a long cluster and a round one: mean distances take the round one."""
    rng = np.random.default_rng(3)
    line = np.column_stack([np.linspace(0.0, 10.0, 50), rng.normal(scale=0.1, size=50)])
    beside = rng.normal([-0.8, 0.0], 0.2, (50, 2))
    round_one = rng.normal([-3.0, 2.0], 0.3, (50, 2))
    drawn, masks = [np.array([beside, line, round_one])], [np.ones(2, dtype=np.bool_)]
    gaps = np.sqrt(((beside[:, None, None] - np.array([line, round_one])) ** 2).sum(axis=3))

    assert gaps.mean(axis=(0, 2)).argmin() == 1
    assert merge_tree(forces(drawn, masks, 2.0)).cut(2).tolist() == [0, 0, 1]


# --- the number of clusters -----------------------------------------------------------------------


def _cells(seed: int, k: int) -> tuple[Points, FloatArray, list[FloatArray]]:
    """Return four sites' cells of ``k`` clusters, with masks, and their proxies."""
    rng = np.random.default_rng(seed)
    # Each feature tells clusters apart.
    centres = np.array([rng.permutation(k) for _ in range(8)]).T * 6.0
    masks = np.array([np.roll([1, 1, 1, 1, 1, 0, 0, 0], 2 * i) for i in range(4)], dtype=np.bool_)
    values = np.concatenate([(centres + rng.normal(scale=0.2, size=(k, 8))) * m for m in masks])
    known = np.repeat(masks, k, axis=0)
    points = Points(
        values, known, rng.integers(20, 60, 4 * k).astype(float), np.repeat(np.arange(4), k)
    )
    variances = np.where(known, rng.uniform(0.5, 1.5, known.shape), 0.0)
    counts = points.counts.astype(np.int64)
    drawn = [
        proxies(
            values[i * k : (i + 1) * k],
            (variances * points.counts[:, None])[i * k : (i + 1) * k],
            counts[i * k : (i + 1) * k],
            np.flatnonzero(masks[i]),
            50,
            rng,
        )
        for i in range(4)
    ]
    return points, variances, drawn


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("k", [2, 5, 9])
def test_the_number_of_clusters_is_found(k: int, seed: int) -> None:
    points, variances, drawn = _cells(seed, k)
    tree = merge_tree(forces(drawn, list(points.mask[::k]), 2.0))

    found, _ = best_cut(tree, points, variances)

    assert found == k
    assert tree.cut(found).tolist() == np.tile(np.arange(k), 4).tolist()


def _silhouette(points: Points, variances: FloatArray, groups: NDArray[np.int64]) -> float:
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


def test_the_cut_is_the_best_of_all_by_the_definition_of_the_silhouette() -> None:
    points, variances, drawn = _cells(7, 4)
    tree = merge_tree(forces(drawn, list(points.mask[::4]), 2.0))
    scores = {k: _silhouette(points, variances, tree.cut(k)) for k in range(2, len(points) + 1)}

    k, score = best_cut(tree, points, variances)

    assert k == max(scores, key=lambda k: scores[k])
    assert score == pytest.approx(scores[k])
    for number in (2, 3, 7):
        assert best_cut(tree, points, variances, number)[1] == pytest.approx(scores[number])


# --- Gaussians ------------------------------------------------------------------------------------


def test_proxies_have_the_very_moments_that_were_sent() -> None:
    rng = np.random.default_rng(0)
    means, m2 = rng.normal(size=(2, 5)), rng.uniform(size=(2, 5))
    counts, own = np.array([7, 30]), np.array([0, 2, 3])

    drawn = proxies(means, m2, counts, own, 40, rng)

    np.testing.assert_allclose(drawn.mean(axis=1)[:, own], means[:, own], atol=1e-12)
    np.testing.assert_allclose(drawn.var(axis=1)[:, own], (m2 / counts[:, None])[:, own])
    assert not drawn[:, :, [1, 4]].any()


def test_proxies_of_a_full_covariance_have_it() -> None:
    rng = np.random.default_rng(0)
    root = rng.normal(size=(3, 2))
    matrix = root @ root.T  # Of rank 2: singular.
    m2 = 50.0 * np.diag(matrix)[None]

    drawn = proxies(np.zeros((1, 3)), m2, np.array([50]), np.arange(3), 20_000, rng, matrix[None])

    np.testing.assert_allclose(np.cov(drawn[0].T, bias=True), matrix, atol=0.05)


def test_a_variance_of_zero_puts_all_proxies_at_the_mean() -> None:
    rng = np.random.default_rng(0)
    drawn = proxies(np.ones((1, 2)), np.zeros((1, 2)), np.array([5]), np.arange(2), 30, rng)

    assert (drawn == 1.0).all()


def _config(d: int, p: int = 5, binary: int = 0, **options: Any) -> RunConfig:
    features = tuple(
        Feature(name=f"f{j}", kind="binary" if j < binary else "numeric") for j in range(d)
    )
    return RunConfig(
        options=Config(**options),
        features=features,
        policy=Policy(missing="mask", min_group_size=max(p, 2)),
        roster=("a", "b", "c"),
        p=p,
        mask=np.ones(d, dtype=np.bool_),
    )


def _sent_covariance(
    X: FloatArray, config: RunConfig, observed: NDArray[np.bool_] | None = None
) -> FloatArray:
    data = SiteData(X, observed=observed, index=PersonIndex(X))
    config = replace(config, space=type(config.space).identity(X.shape[1]))
    released, _ = release(data, config, {}, np.zeros(len(X), dtype=np.int64), 1)
    return covariance(data, released, 0, config)


def test_a_full_covariance_is_that_of_the_rows() -> None:
    X = np.random.default_rng(0).normal(size=(60, 4)) @ np.random.default_rng(1).normal(size=(4, 4))

    np.testing.assert_allclose(_sent_covariance(X, _config(4)), np.cov(X.T, bias=True))


def test_a_constant_column_has_no_covariance() -> None:
    X = np.random.default_rng(0).normal(size=(60, 3))
    X[:, 1] = 0.1

    sent = _sent_covariance(X, _config(3))

    assert not sent[1, [0, 2]].any()
    assert sent[1, 1] == pytest.approx(0.0, abs=1e-30)


def test_a_covariance_tells_nothing_of_few_real_records_that_answer_yes() -> None:
    """n times the covariance with a yes/no feature is what those who say yes deviate by."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 4))
    X[:, 0] = np.arange(80) < 2  # Two of them: the prevalence itself is rounded.
    X[:, 1] = np.arange(80) < 30
    X[:, 2] = (np.arange(80) >= 26) & (np.arange(80) < 60)  # Four have both.

    sent = _sent_covariance(X, _config(4, binary=3))

    assert not sent[0, 1:].any()
    assert sent[1, 2] == sent[2, 1] == 0.0
    assert np.linalg.eigvalsh(sent)[0] >= 0.0
    # Thirty said yes: what they deviate by may be told of one of the two.
    assert sent[1, 3] != 0.0 or sent[2, 3] != 0.0


def test_a_covariance_with_a_level_does_not_follow_from_those_with_the_others() -> None:
    """Those of a feature with all levels of another add up to 0."""
    n = 90
    places = np.repeat([0, 1, 2], n // 3)
    number = np.arange(float(n))
    X = np.column_stack([np.eye(3)[places], number % 2, number % 7 < 3, number])
    X[:30, 3] = np.arange(30) < 3  # Three of the first level say yes.
    features = (
        Feature(name="side", kind="categorical", levels=("l", "m", "r")),
        Feature(name="smoker", kind="binary"),
        Feature(name="fever", kind="binary"),
        Feature(name="number"),
    )
    config = replace(_config(0), features=features, mask=np.ones(6, dtype=np.bool_))

    sent = _sent_covariance(X, config)

    exact = np.cov(X.T, bias=True)
    assert abs(exact[3, :3]).min() > 0.01
    assert not sent[3, :3].any()
    np.testing.assert_allclose(sent[4, :3], exact[4, :3], atol=1e-12)
    np.testing.assert_allclose(sent[:3, :3], exact[:3, :3], atol=1e-12)


def test_a_covariance_of_two_features_that_few_have_both_is_not_told() -> None:
    rng = np.random.default_rng(0)
    X, observed = rng.normal(size=(60, 3)), np.ones((60, 3), dtype=np.bool_)
    observed[:32, 0] = False
    observed[35:, 1] = False
    X[~observed] = 0.0

    sent = _sent_covariance(X, _config(3), observed)

    assert sent[0, 1] == 0.0


# --- checks ---------------------------------------------------------------------------------------


NONE = np.zeros((0, 0, 0))


def _payload(**update: Any) -> Gaussians:
    matrix = np.array([[1.0, 0.5, 0.0], [0.5, 1.0, 0.0], [0.0, 0.0, 2.0]])
    counts = np.array([20, 30, 0])
    m2 = np.diag(matrix) * counts[:, None]
    sent: dict[str, Any] = {
        "counts": counts,
        "means": np.zeros((3, 3)),
        "m2": m2,
        "covariances": np.stack([matrix, matrix, np.zeros((3, 3))]),
    }
    return Gaussians(**{**sent, **update})


def _check(payload: Gaussians, *, full: bool = True, **config: Any) -> None:
    task = GaussiansTask(n_clusters=3, search=False, n_init=None, full=full)
    # Of three features: the fourth is another site's.
    wide = _config(4, covariance="full", **config)
    wide = replace(wide, mask=np.array([1, 1, 1, 0], bool), space=type(wide.space).identity(4))
    pad = np.zeros((len(payload.counts), 1))
    means, m2 = np.hstack([payload.means, pad]), np.hstack([payload.m2, pad])
    check(SiteTask("gaussians", task), payload.model_copy(update={"means": means, "m2": m2}), wide)


def _covariances(i: int, j: int, value: float) -> FloatArray:
    matrices = np.array(_payload().covariances)
    matrices[0, i, j] = value
    return matrices


def _m2(value: float) -> FloatArray:
    m2 = np.array(_payload().m2)
    m2[0, 2] = value
    return m2


def test_a_right_answer_passes() -> None:
    _check(_payload())
    _check(_payload(covariances=NONE), full=False)


@pytest.mark.parametrize(
    ("update", "rule"),
    [
        ({"covariances": _covariances(0, 1, 0.4)}, "symmetry"),
        (
            {
                "covariances": np.array(
                    [[[1, 2, 0], [2, 1, 0], [0, 0, 2.0]]] * 2 + [[[0.0] * 3] * 3]
                )
            },
            "definite",
        ),
        (
            {
                "covariances": np.array(
                    [[[1, 0.9, -0.9], [0.9, 1, 0.9], [-0.9, 0.9, 1.0]]] * 2 + [[[0.0] * 3] * 3]
                ),
                "m2": np.array([[20.0] * 3, [30.0] * 3, [0.0] * 3]),
            },
            "definite",
        ),
        (
            {
                "covariances": np.array(
                    [[[1, 0, 0.1], [0, 1, 0], [0.1, 0, 0.0]]] * 2 + [[[0.0] * 3] * 3]
                ),
                "m2": np.array([[20.0, 20, 0], [30.0, 30, 0], [0.0] * 3]),
            },
            "definite",
        ),
        ({"covariances": _covariances(0, 0, 1.5)}, "covariance"),
        ({"covariances": np.array([np.diag([1, 1, 2.0])] * 3)}, "covariance-count"),
        ({"covariances": np.ones((3, 2, 2))}, "shape"),
        ({"covariances": np.ones((3, 4, 4))}, "shape"),
        ({"covariances": np.zeros((0, 0, 0))}, "shape"),
        ({"m2": _m2(-1.0)}, "spread"),
        ({"counts": np.array([20, 2, 0])}, "smallest-count"),
        ({"means": np.ones((3, 3))}, "empty-cell"),
    ],
)
def test_a_wrong_answer_is_refused_by_name(update: dict[str, Any], rule: str) -> None:
    with pytest.raises(RuleViolation) as refused:
        _check(_payload(**update))

    assert refused.value.rule == rule


def test_a_variance_of_zero_is_a_defined_answer() -> None:
    _check(_payload(m2=np.zeros((3, 3)), covariances=NONE), full=False)
    _check(_payload(m2=np.zeros((3, 3)), covariances=np.zeros((3, 3, 3))))


def test_covariances_that_nobody_asked_for_are_refused() -> None:
    with pytest.raises(RuleViolation) as refused:
        _check(_payload(), full=False)

    assert refused.value.pointer == "/covariances"


def test_a_full_covariance_needs_five_rows_for_each_feature_of_the_site() -> None:
    few = _payload(counts=np.array([14, 30, 0]))
    few = few.model_copy(update={"m2": np.array([[14.0, 14, 28], [30.0, 30, 60], [0.0] * 3])})
    with pytest.raises(RuleViolation) as refused:
        _check(few)

    assert refused.value.rule == "covariance-count"
    assert "15 rows" in str(refused.value)


def test_a_gaussian_of_two_is_refused_at_p_2() -> None:
    """Two rows are their mean plus and minus the root of half their m2."""
    two = _payload(counts=np.array([2, 30, 0]), covariances=NONE)

    with pytest.raises(RuleViolation) as refused:
        _check(two, full=False, p=2)

    assert refused.value.rule == "smallest-count"


def test_values_in_features_that_the_site_has_not_got_are_refused() -> None:
    config = replace(_config(3), mask=np.array([1, 1, 0], bool))
    config = replace(config, space=type(config.space).identity(3))
    task = GaussiansTask(n_clusters=3, search=False, n_init=None, full=False)
    payload = _payload(covariances=NONE)

    with pytest.raises(RuleViolation) as refused:
        check(SiteTask("gaussians", task), payload, config)

    assert refused.value.rule == "mask"


def test_covariances_that_fit_no_answer_are_refused_when_the_session_is_made() -> None:
    with pytest.raises(RuleViolation, match="fewer features"):
        check_config(_config(561, covariance="full", n_clusters=20))
    check_config(_config(561, covariance="diagonal", n_clusters=20))


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


def _run(X: dict[str, FloatArray], **config: Any) -> SimulationResult:
    policy = {"missing": "mask", "min_group_size": 5}
    return simulate("overlap_oneshot", X, config=config, policy=policy, seed=3)


def _agrees(result: SimulationResult, y: dict[str, NDArray[np.int64]], k: int) -> bool:
    """Whether labels and clusters are the same up to their names."""
    pairs = {
        (int(a), int(b)) for site in y for a, b in zip(result.labels_[site], y[site], strict=True)
    }
    return len(pairs) == k


@pytest.mark.parametrize("covariance_form", ["diagonal", "full"])
@pytest.mark.parametrize("n_clusters", [3, None])
def test_a_session_finds_the_clusters(n_clusters: int | None, covariance_form: str) -> None:
    X, y = _hospitals()

    result = _run(X, n_clusters=n_clusters, covariance=covariance_form)

    assert len(result.cluster_centers_) == 3
    assert _agrees(result, y, 3)
    assert result.result_.warnings == ()
    # New rows of a site take the nearest centroid over what it has.
    for site, rows in X.items():
        assert (result.predict(rows, site=site) == result.labels_[site]).mean() > 0.97


def test_clusters_of_one_site_are_kept_apart_or_not_as_asked() -> None:
    rng = np.random.default_rng(0)
    y = {site: rng.integers(0, 2, 90) for site in "abc"} | {"d": np.zeros(90, dtype=np.int64)}
    # Site d holds one cluster, and splits it.
    X = {site: 8.0 * own[:, None] + rng.normal(size=(90, 4)) for site, own in y.items()}

    assert _agrees(_run(X, n_clusters=2), y, 2)
    assert _agrees(_run(X, n_clusters=2, cannot_link="off"), y, 2)
    apart = _run(X, n_clusters=2, cannot_link="on")
    assert len(set(apart.labels_["d"].tolist())) == 2


def test_more_local_clusters_than_clusters_are_forced_together_with_a_warning() -> None:
    X, _ = _hospitals(k=4)

    result = _run(X, n_clusters=2, local_clusters=4, cannot_link="on")

    assert len(result.cluster_centers_) == 2
    assert any("cannot_link" in warning for warning in result.result_.warnings)


def test_a_session_of_sites_that_share_no_feature_is_refused() -> None:
    X, _ = _hospitals()
    assert components(np.array([[1, 0], [0, 1]], dtype=np.bool_)).max() == 1
    for site in ("b", "c", "d"):
        del X[site]
    left = np.where(
        np.isin(np.arange(8), (6, 7)), np.random.default_rng(0).normal(size=(90, 8)), np.nan
    )
    X["b"] = np.where(np.isin(np.arange(8), (4, 5)), np.nan_to_num(left), np.nan)
    X["c"] = left

    with pytest.raises(RuleViolation, match="share no feature"):
        _run(X, n_clusters=3)


def _as_released(
    data: SiteData, released: Released, config: RunConfig, memory: Memory
) -> tuple[Released, Memory]:
    del data, config
    return released, memory


@pytest.mark.parametrize("smallest", [2, 3])
def test_no_real_record_is_told_by_a_gaussian_of_two(
    smallest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attacker takes a mean plus and minus the root of half the m2: of two rows, a record."""
    monkeypatch.setattr("fedclust.algorithms.gaussians.SMALLEST", smallest)
    monkeypatch.setattr(overlap_oneshot, "without_few", _as_released)
    rng = np.random.default_rng(0)
    X = {site: rng.normal(size=(14, 3)) for site in "abc"}
    policy = {"min_group_size": 2, "scaling": "none"}

    result = simulate("overlap_oneshot", X, config={"n_clusters": 6}, policy=policy, seed=0)
    recovered = [recover(statistics_of(result, site), X[site], p=2) for site in X]

    assert any(recovered) == (smallest == 2)


# --- a value that many share, and few have another ------------------------------------------------


def _other_value(count: int, mean: FloatArray, m2: FloatArray) -> FloatArray:
    """Return what one of ``count`` rows has where all others have one value, feature by feature.

    (mean - a) count = b - a and (b - a)^2 (1 - 1 / count) = m2; here b is the larger.
    """
    apart = np.sqrt(m2 / (1.0 - 1.0 / count))
    return np.asarray(mean - apart / count + apart)


@pytest.mark.parametrize("guarded", [False, True])
def test_no_real_record_among_rows_of_one_value_is_told_by_a_variance(
    guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not guarded:
        monkeypatch.setattr(overlap_oneshot, "without_few", _as_released)
    X = {site: np.tile([2.0, 5.0, 1.0], (12, 1)) for site in "abc"}
    for rows in X.values():
        rows[7] = [9.0, 6.5, 4.25]

    config = {"n_clusters": 1, "local_clusters": 1}
    policy = {"min_group_size": 5, "scaling": "none"}
    result = simulate("overlap_oneshot", X, config=config, policy=policy, seed=0)

    sent = result.trace_[0].payload
    assert sent.counts.tolist() == [12]
    told = _other_value(12, sent.means[0], sent.m2[0])
    assert np.allclose(told, X["a"][7]) == (not guarded)
    assert not (guarded and sent.m2.any())


@pytest.mark.parametrize(
    ("values", "kept"),
    [
        (np.arange(5.0), True),  # p rows of as many values
        (np.repeat([1.0, 2.0], [5, 4]), False),
        (np.repeat([1.0, 2.0], [5, 5]), True),
        (np.repeat([1.0, 2.0], [4, 1]), False),  # p rows of two values
        (np.array([1.0, 1.0, 2.0, 3.0, 4.0]), True),  # a tie, but of fewer than p
        (np.array([1.0] * 20 + [2.0, 3.0]), False),
        (np.array([1.0] * 20 + [2.0, 3.0, 4.0, 5.0, 6.0]), True),
    ],
)
def test_a_spread_stays_unless_fewer_than_p_persons_make_it_up(
    values: FloatArray, kept: bool
) -> None:
    X = np.random.default_rng(0).normal(size=(len(values), 3))
    X[:, 2] = values
    data = SiteData(X, index=PersonIndex(X))
    config = replace(_config(3), space=Space.identity(3))
    released, _ = release(data, config, {}, np.zeros(len(X), dtype=np.int64), 1)

    sent = without_few(data, released, config, {})[0].moments.m2[0]

    # A second column goes with it: costs are sums over all.
    assert (sent[:2] > 0).sum() == 1 + kept
    assert sent[2] == (released.moments.m2[0, 2] if kept else 0.0)


def test_a_covariance_with_a_value_that_many_share_tells_of_no_few() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3))
    X[:, 0] = np.where(np.arange(60) < 20, X[:, 0], 0.0)  # Twenty have another value.
    X[:, 1] = np.where((np.arange(60) >= 17) & (np.arange(60) < 40), X[:, 1], 0.0)  # Three, both.

    sent = _sent_covariance(X, _config(3))

    assert sent[0, 1] == 0.0
    assert sent[0, 2] != 0.0 or sent[1, 2] != 0.0


def test_each_site_has_proxies_of_its_own_whoever_else_takes_part() -> None:
    payload = Gaussians(
        counts=np.array([9]),
        means=np.zeros((1, 2)),
        m2=np.ones((1, 2)),
        covariances=np.zeros((0, 0, 0)),
    )
    config = replace(_config(2), masks={site: np.ones(2, dtype=np.bool_) for site in "ab"})
    drawn = [overlap_oneshot._drawn(7, Contribution(site, payload, p=5), config) for site in "aab"]

    assert np.array_equal(drawn[0], drawn[1])
    # The same Gaussian at two sites; drawn alike, their proxies would lie at one place.
    assert np.abs(drawn[0] - drawn[2]).min(axis=1).max() > 1e-3
