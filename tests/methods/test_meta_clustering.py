"""Meta-clustering and masked means against a direct computation of the printed formulas."""

from itertools import combinations, permutations
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score

from fedclust.methods.common.own_features import (
    LocalCentroids,
    MergedCentroids,
    RelativeDistances,
    connected_components,
    feature_ranges,
    sum_groups,
)
from fedclust.methods.overlap.meta_clustering import (
    Meta,
    agglomerate,
    choose_form,
    farthest_points,
    group_centroids,
    method_a,
    method_b,
)

NAN = np.nan


def _points(values: Any, sites: list[int], counts: list[int] | None = None) -> LocalCentroids:
    """Return local centroids; NaN where a site has not got the feature."""
    rows = np.array(values, dtype=float)
    mask = ~np.isnan(rows)
    weights = np.ones(len(rows)) if counts is None else np.array(counts, dtype=float)
    return LocalCentroids(np.where(mask, rows, 0.0), mask, weights, np.array(sites))


def _federation(seed: int, n: int = 8, k: int = 4, d: int = 12, noise: float = 0.2) -> Any:
    """Return local centroids of sites with random masks, and their true clusters."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=(k, d)) + 5.0
    rows, sites, labels = [], [], []
    for site in range(n):
        lacks = rng.random(d) < 0.4
        for cluster_number in range(k):
            row = truth[cluster_number] + noise * rng.normal(size=d)
            rows.append(np.where(lacks, NAN, row))
            sites.append(site)
            labels.append(cluster_number)
    counts = [int(count) for count in rng.integers(5, 50, len(rows))]
    return _points(rows, sites, counts), np.array(labels)


def _squared_distances(points: LocalCentroids) -> NDArray[np.float64]:
    ranges = feature_ranges(points.values, points.mask)
    distances = RelativeDistances(points.values, points.mask, ranges)
    return distances.squared_to(points.values, points.mask)


def _distance(
    a: LocalCentroids, i: int, b: LocalCentroids, j: int, ranges: NDArray[np.float64]
) -> float:
    """Equation 3, feature by feature; infinite where nothing is shared."""
    shared = [m for m in range(len(ranges)) if a.mask[i, m] and b.mask[j, m]]
    if not shared:
        return np.inf
    widest = sum(ranges[m] ** 2 for m in shared)
    squares = sum((a.values[i, m] - b.values[j, m]) ** 2 for m in shared)
    return float(squares / widest) if widest > 0 else 0.0


# --- masked means and distances -------------------------------------------------------------------


def test_merging_divides_by_the_rows_that_know_the_feature() -> None:
    """Equation 4 as printed has min(1, .) below and no count above: 3 c + 7 c', or c + c'."""
    points = _points([[1.0, 10.0, NAN], [2.0, NAN, NAN]], [0, 1], [3, 7])
    merged = sum_groups(points, np.array([0, 0]), 2)
    assert merged.means[0].tolist() == [pytest.approx(1.7), 10.0, 0.0]
    assert merged.mask.tolist() == [[True, True, False], [False, False, False]]
    assert not merged.means[1].any()


def test_merging_gives_the_means_of_the_rows() -> None:
    """Equation 1, from rows; with one count a centroid it would depend on the order of merging."""
    rng = np.random.default_rng(1)
    rows = [rng.normal(size=(n, 3)) for n in (4, 9, 2)]
    lacks = np.array([[0, 0, 1], [1, 0, 0], [0, 1, 0]], dtype=bool)
    points = _points(
        [np.where(lacks[i], NAN, rows[i].mean(axis=0)) for i in range(3)], [0, 1, 2], [4, 9, 2]
    )
    expected = [
        np.concatenate([rows[i][:, m] for i in range(3) if not lacks[i, m]]).mean()
        for m in range(3)
    ]
    whole = sum_groups(points, np.zeros(3, dtype=np.int64), 1)
    np.testing.assert_allclose(whole.means[0], expected, rtol=1e-12)
    alone = points.as_groups()
    for a, b, c in permutations(range(3)):
        pair = MergedCentroids(alone.sums[a] + alone.sums[b], alone.counts[a] + alone.counts[b])
        three = MergedCentroids(pair.sums + alone.sums[c], pair.counts + alone.counts[c])
        np.testing.assert_allclose(three.means, expected, rtol=1e-12)


def test_ranges_ignore_masked_entries() -> None:
    """A masked entry taken for 0 would make the ranges 12, 7 and 5."""
    points = _points([[10.0, -4.0, NAN], [12.0, -7.0, 5.0], [NAN, NAN, NAN]], [0, 1, 2])
    assert feature_ranges(points.values, points.mask).tolist() == [2.0, 3.0, 0.0]


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_distances_are_those_of_equation_3(offset: float) -> None:
    points, _ = _federation(2)
    points = _points(np.where(points.mask, points.values + offset, NAN), list(points.sites))
    ranges = feature_ranges(points.values, points.mask)
    found = _squared_distances(points)
    for i, j in combinations(range(len(points)), 2):
        expected = _distance(points, i, points, j, ranges)
        assert found[i, j] == pytest.approx(expected, rel=1e-6, abs=1e-9)
    assert np.allclose(np.diag(found), 0.0, atol=1e-9)


def test_the_distance_without_a_common_feature_is_infinite() -> None:
    points = _points([[0.0, NAN], [NAN, 0.0], [1.0, 1.0]], [0, 1, 2])
    found = _squared_distances(points)
    assert found[0, 1] == found[1, 0] == np.inf
    assert np.isfinite(found[2]).all()


def test_features_without_range_give_distance_zero() -> None:
    points = _points([[3.0, 1.0], [3.0, NAN], [NAN, 1.0]], [0, 1, 2])
    found = _squared_distances(points)
    assert found[0].tolist() == [0.0, 0.0, 0.0]


def test_components_of_the_overlap_graph() -> None:
    masks = np.array([[1, 0, 0, 0], [0, 0, 1, 0], [1, 1, 0, 0], [0, 1, 0, 0], [0, 0, 1, 1]])
    assert connected_components(masks.astype(bool)).tolist() == [0, 1, 0, 0, 1]


# --- agglomerative --------------------------------------------------------------------------------


def _slow_agglomeration(points: LocalCentroids, k: int) -> NDArray[np.int64]:
    """Merge the nearest two permitted groups, computing all distances each time."""
    ranges = feature_ranges(points.values, points.mask)
    labels = np.arange(len(points))
    separate = True
    while (n_groups := labels.max() + 1) > k:
        merged = sum_groups(points, labels, n_groups)
        none = np.zeros(n_groups, dtype=np.int64)
        centres = LocalCentroids(merged.means, merged.mask, none + 1.0, none)
        best: tuple[float, int, int] | None = None
        for a, b in combinations(range(n_groups), 2):
            if separate and set(points.sites[labels == a]) & set(points.sites[labels == b]):
                continue
            gap = _distance(centres, a, centres, b, ranges)
            if np.isfinite(gap) and (best is None or gap < best[0]):
                best = (gap, a, b)
        if best is None:
            if not separate:
                break
            separate = False
            continue
        _, a, b = best
        labels[labels == b] = a
        labels[labels > b] -= 1
    return labels


@pytest.mark.parametrize("seed", range(6))
def test_incremental_agglomeration_equals_the_naive_one(seed: int) -> None:
    points, _ = _federation(seed, n=6, k=4, noise=0.8)
    found = agglomerate(points, 4)
    assert found.n_groups == 4
    assert adjusted_rand_score(_slow_agglomeration(points, 4), found.groups) == 1.0


def test_no_site_is_in_a_group_twice_if_that_is_possible() -> None:
    """Two clusters of one site lie nearer to each other than either to its like elsewhere."""
    points = _points([[0.0], [1.0], [2.0], [3.0]], [0, 0, 1, 1])
    found = agglomerate(points, 2)
    assert found.groups.tolist() == [0, 1, 0, 1] or found.groups.tolist() == [0, 1, 1, 0]
    assert found.attached == 0


def test_more_local_clusters_than_groups_attach_with_a_warning() -> None:
    points = _points([[0.0], [0.1], [9.0], [0.2], [9.1]], [0, 0, 0, 1, 1])
    grouping, warnings = group_centroids(points, 2, "agglomerative")
    assert grouping.groups.tolist() == [0, 0, 1, 0, 1]
    assert grouping.attached == 1
    assert "joined a group that their site was in already" in warnings[0]


@pytest.mark.parametrize("meta", ["agglomerative", "A", "B", "auto"])
def test_groups_without_a_common_feature_stay_separate_with_a_warning(meta: Any) -> None:
    """Disjoint features: zero-filled distances would merge the two halves."""
    points = _points([[1.0, NAN], [2.0, NAN], [NAN, 1.0], [NAN, 2.0]], [0, 0, 1, 1])
    grouping, warnings = group_centroids(points, 2, meta)
    assert grouping.groups.tolist() == [0, 1, 2, 3]
    assert any("share no feature" in warning for warning in warnings)


def test_no_more_groups_than_points() -> None:
    points = _points([[1.0], [2.0]], [0, 1])
    metas: tuple[Meta, ...] = ("agglomerative", "A", "B")
    for meta in metas:
        grouping, _ = group_centroids(points, 5, meta)
        assert grouping.groups.tolist() == [0, 1]


@pytest.mark.parametrize("meta", ["agglomerative", "A", "B"])
def test_equal_points_are_grouped(meta: Any) -> None:
    points = _points([[4.0, 4.0]] * 6, [0, 0, 1, 1, 2, 2])
    grouping, _ = group_centroids(points, 2, meta)
    assert 1 <= grouping.n_groups <= 2


@pytest.mark.parametrize("meta", ["agglomerative", "A", "B"])
def test_the_order_of_points_does_not_matter(meta: Any) -> None:
    points, truth = _federation(4, d=24, noise=0.1)
    order = np.random.default_rng(0).permutation(len(points))
    turned = LocalCentroids(
        points.values[order], points.mask[order], points.counts[order], points.sites[order]
    )
    found, _ = group_centroids(turned, 4, meta)
    assert adjusted_rand_score(truth[order], found.groups) == 1.0


def test_compaction_keeps_the_groups() -> None:
    """Enough points for the pool to be shrunk several times."""
    points, truth = _federation(5, n=40, k=6, d=30, noise=0.1)
    assert adjusted_rand_score(truth, agglomerate(points, 6).groups) == 1.0


# --- A --------------------------------------------------------------------------------------------


def test_method_a_places_every_local_centroid() -> None:
    """``while |L| > 1`` leaves the last one out."""
    points, truth = _federation(6, d=24, noise=0.1)
    found = method_a(points, 4)
    assert found.n_groups == 4
    assert adjusted_rand_score(truth, found.groups) == 1.0


def test_method_a_compares_with_the_merged_centroid_and_its_mask() -> None:
    """Line 20 takes the vector from G; the third site shares features with the second alone."""
    points = _points(
        [
            *([0.0, NAN, NAN], [9.0, NAN, NAN]),
            *([0.5, 3.0, NAN], [8.5, 7.0, NAN]),
            *([NAN, 7.0, 1.0], [NAN, 3.0, 2.0]),
        ],
        [0, 0, 1, 1, 2, 2],
    )
    assert method_a(points, 2).groups.tolist() == [0, 1, 0, 1, 1, 0]


def test_method_a_warns_if_no_site_has_all_clusters() -> None:
    points = _points([[0.0], [5.0], [5.1], [9.0], [9.1], [0.1]], [0, 0, 1, 1, 2, 2])
    grouping, warnings = group_centroids(points, 3, "A")
    assert grouping.groups.tolist() == [0, 1, 1, 2, 2, 0]
    assert "starts from a site with 3 clusters" in warnings[0]


def test_method_a_attaches_the_remaining_clusters_of_a_site() -> None:
    points = _points([[0.0], [9.0], [0.1], [0.2], [9.1]], [0, 0, 1, 1, 1])
    found = method_a(points, 2)
    assert found.groups.tolist() == [0, 1, 0, 0, 1]
    assert found.attached == 1


# --- B --------------------------------------------------------------------------------------------


def test_method_b_starts_from_k_centroids_far_apart() -> None:
    """``Z u z`` adds the loop's last point instead of the farthest."""
    points = _points([[0.0], [0.2], [10.0], [5.0], [9.9], [5.2], [0.1]], [0, 1, 0, 0, 1, 1, 2])
    seeds = farthest_points(points, 3)
    assert sorted(points.values[seeds, 0].tolist()) == [0.0, 5.0, 10.0]
    assert method_b(points, 3).groups.tolist() == [0, 0, 1, 2, 1, 2, 0]


def test_method_b_skips_pairs_without_a_common_feature() -> None:
    """As an invalid number taken for 0 they would be nearest; for infinite, farthest."""
    points = _points(
        [[0.0, NAN], [8.0, NAN], [NAN, 1.0], [5.0, 3.0], [5.1, 6.0], [4.0, 0.5]], [0, 0, 1, 2, 3, 4]
    )
    seeds = farthest_points(points, 3)
    assert seeds.tolist() == [0, 1, 5]
    assert method_b(points, 3).groups.tolist() == [0, 1, 2, 2, 1, 2]


def test_method_b_may_take_several_clusters_of_a_site() -> None:
    """Under Assumption 2 a site may have split a cluster: no constraint."""
    points = _points([[0.0], [0.3], [9.0], [0.1], [9.2]], [0, 0, 0, 1, 1])
    grouping, warnings = group_centroids(points, 2, "B")
    assert grouping.groups.tolist() == [0, 0, 1, 0, 1]
    assert not warnings


# --- auto -----------------------------------------------------------------------------------------


def test_auto_chooses_by_the_overlap_graph_and_says_why() -> None:
    everyone = _points([[0.0, 1.0], [1.0, NAN]], [0, 1])
    chain = [[0.0, NAN, NAN], [0.0, 1.0, NAN], [NAN, 1.0, 2.0], [NAN, NAN, 2.0]]
    linked = _points(chain, [0, 1, 2, 3])
    split = _points([[0.0, NAN], [NAN, 0.0]], [0, 1])
    for points, k, form, why in (
        (everyone, 1, "B", "any two sites share features"),
        (linked, 1, "A", "a site has 1 clusters"),
        (linked, 2, "agglomerative", "no site has 2 clusters"),
        (split, 1, "B", "fall into parts that share none"),
    ):
        used, reason = choose_form("auto", points, k)
        assert used == form
        assert why in reason
    assert choose_form("A", everyone, 1) == ("A", None)
