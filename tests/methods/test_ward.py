"""ward: cells, the tree against scipy's, cuts, labels, and what the result shows of the tree."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.cluster.hierarchy import dendrogram, fcluster, is_valid_linkage, linkage
from sklearn.metrics import adjusted_rand_score

from fedclust import simulate
from fedclust.methods import ward
from fedclust.methods.common.kmeans_rounds import Cells
from fedclust.numeric import ward as numeric_ward
from fedclust.result.figures.tree import cut_height, places
from fedclust.schema.feature import Feature
from fedclust.schema.model import Memory
from fedclust.schema.run_config import RunConfig
from fedclust.schema.task import Contribution, Points, SiteTask
from fedclust.wire.codec import encode_model
from fedclust.wire.errors import UsageError
from support.points import answer_task, config_of, violation
from support.site_rows import breast_cancer, pooled

CENTRES = np.array([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0], [10.0, 10.0]])
EXACT = {"scaling": "none", "missing": "drop", "protection": "none"}
RNG = np.random.default_rng(0)


def _config(p: int = 1, **options: Any) -> RunConfig:
    features = (Feature(name="age", lower=-50, upper=50), Feature(name="dose"))
    return config_of(ward.Config(**{"n_clusters": 2, **options}), p=p, features=features)


def _task(n_cells: int = 200) -> SiteTask:
    return SiteTask("cells", ward.CellsTask(n_cells=n_cells))


def _cells(counts: Any, means: Any) -> Cells:
    return Cells(counts=np.array(counts), means=np.array(means, dtype=float))


def _blobs(n: int = 30, seed: int = 0, d: int = 2) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.concatenate([c + rng.normal(size=(n, d)) for c in CENTRES])


def _aggregated(sent: dict[str, Cells], **options: Any) -> Any:
    contributions = [Contribution(site, sent[site], 5) for site in sorted(sent)]
    return ward.aggregate(ward.State(), contributions, _config(**options)).result


# --- at a site ------------------------------------------------------------------------------------


def test_a_site_with_few_groups_sends_its_records() -> None:
    points = Points(_blobs(3), np.arange(5, 17), np.zeros(2))
    memory: Memory = {}
    sent = answer_task(ward.METHOD, _task(), points, _config(), memory=memory)
    np.testing.assert_allclose(sent.means, points.X, rtol=1e-14)
    assert np.array_equal(sent.counts, points.sizes)
    assert memory == {}


def test_other_sites_merge_them_as_the_tree_does() -> None:
    points = Points(_blobs(), np.full(120, 5), np.zeros(2))
    memory: Memory = {"own": 1}
    sent = answer_task(ward.METHOD, _task(7), points, _config(labels="tree"), memory=memory)
    labels = fcluster(linkage(points.X, "ward"), 7, "maxclust")
    means = [points.X[labels == label].mean(axis=0) for label in np.unique(labels)]
    np.testing.assert_allclose(np.sort(sent.means, axis=0), np.sort(means, axis=0), rtol=1e-12)
    assert sent.counts.sum() == 600
    assert memory.keys() == {"own", "cells"}
    ward.check(_task(7), sent, _config(p=5))


def test_a_large_site_merges_its_groups_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numeric_ward, "_MAX_WORK", 100_000_000)
    n = 3 * numeric_ward.affordable_points(784)
    X = np.zeros((n, 784))
    X[:, 0] = np.repeat([0.0, 50.0, 100.0], n // 3) + np.random.default_rng(0).normal(size=n)
    cells = ward.merge_points(X, np.ones(n), 3)
    assert adjusted_rand_score(np.repeat(range(3), n // 3), cells) == 1.0


@pytest.mark.parametrize(
    ("counts", "means", "rule"),
    [
        ([9, 0], [[1, 1], [0, 0]], "empty"),
        ([9, 9, 9], [[1, 1]] * 3, "shape"),
    ],
)
def test_false_cells_are_refused(counts: list[int], means: Any, rule: str) -> None:
    ward.check(_task(2), _cells([9, 5], [[1, 1], [2, 2]]), _config(p=5))
    assert violation(ward.check, _task(2), _cells(counts, means), _config(p=5)).rule == rule


# --- the tree -------------------------------------------------------------------------------------


def test_on_exact_rows_it_is_scipys_tree() -> None:
    sites = breast_cancer()
    X = pooled(sites)
    ks = [2, 3, 5, 9]
    config = {"n_clusters": ks, "cells": 500, "labels": "tree"}
    result = simulate("ward", sites, config=config, policy=EXACT)
    expected = linkage(X, "ward")
    np.testing.assert_allclose(result.linkage_[:, 2], expected[-49:, 2], rtol=1e-9)
    for k in ks:
        labels = pooled(result.at(k).labels_)
        assert adjusted_rand_score(labels, fcluster(expected, k, "maxclust")) == 1.0


def test_a_cell_counts_as_its_persons() -> None:
    rng = np.random.default_rng(1)
    means, counts = rng.normal(size=(40, 2)), rng.integers(5, 12, 40)
    found = _aggregated(
        {"a": _cells(counts[:20], means[:20]), "b": _cells(counts[20:], means[20:])}
    )
    expected = linkage(np.repeat(means, counts, axis=0), "ward")[-39:, 2]
    np.testing.assert_allclose(found.dendrogram.heights, expected, rtol=1e-9)
    assert found.dendrogram.sizes.sum() == counts.sum()


def test_names_of_sites_decide_no_tie() -> None:
    """On a grid all nearest distances are equal."""
    grid = np.stack(np.meshgrid(*[np.arange(6) * 0.1] * 2), axis=-1).reshape(-1, 2)
    parts = [_cells(np.full(12, 5), part) for part in np.split(grid, 3)]
    results = [
        _aggregated(dict(zip(names, parts, strict=True)), n_clusters=(2, 3, 4))
        for names in ("abc", "cab", "bca")
    ]
    first, *others = (encode_model(each) for each in results)
    assert all(other == first for other in others)


def test_too_many_cells_are_merged_by_site_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numeric_ward, "_MAX_WORK", 30_000_000)
    rng = np.random.default_rng(2)
    n = numeric_ward.affordable_points(2) // 100 + 200
    corners = np.repeat(CENTRES, n // 4 + 1, axis=0)[:n] * 100
    sent = {
        f"s{i:03}": _cells(np.full(n, 5), corners + rng.normal(size=(n, 2))) for i in range(100)
    }
    means, counts, cell_of = ward.gather(sent, 2)
    assert len(means) == 100 * (numeric_ward.affordable_points(2) // 100)
    assert counts.sum() == 100 * n * 5
    assert all(len(own) == n for own in cell_of.values())
    nearest = means[cell_of["s042"]] - sent["s042"].means
    assert np.abs(nearest).max() < 20


def test_fewer_cells_than_clusters_give_as_many_clusters_and_say_so() -> None:
    rows = {site: CENTRES[:2] + i for i, site in enumerate("abc")}
    result = simulate("ward", rows, config={"n_clusters": 9}, policy=EXACT)
    assert len(result.cluster_centers_) == 6
    assert "9 were asked for" in " ".join(result.warnings_)


# --- labels ---------------------------------------------------------------------------------------


def test_rows_go_with_the_nearest_centroid_or_with_their_branch() -> None:
    sites = breast_cancer()
    by = {
        labels: simulate("ward", sites, config={"n_clusters": 4, "labels": labels}, seed=1)
        for labels in ("nearest", "tree")
    }
    nearest, tree = by["nearest"], by["tree"]
    assert not nearest.result.mapping
    assert np.array_equal(nearest.cluster_centers_, tree.cluster_centers_)
    for site, rows in sites.items():
        assert np.array_equal(nearest.labels_[site], nearest.predict(rows))
        assert np.array_equal(tree.predict(rows), nearest.predict(rows))
    assert any((tree.labels_[site] != nearest.labels_[site]).any() for site in sites)


# --- several K, and what the result shows ---------------------------------------------------------


def test_one_message_serves_every_k() -> None:
    sites = breast_cancer()
    sizes = {}
    for ks in (3, [2, 3, 4, 5, 6]):
        result = simulate("ward", sites, config={"n_clusters": ks})
        sizes[str(ks)] = [entry.size for entry in result.trace_ if entry.phase == "cells"]
    one, several = sizes.values()
    assert one == several


def test_the_result_shows_the_top_of_the_tree() -> None:
    result = simulate("ward", breast_cancer(), config={"n_clusters": [2, 3]}).at(3)
    tree = result.result.dendrogram
    assert is_valid_linkage(result.linkage_, throw=True)
    assert result.linkage_.shape == (49, 4)
    assert (np.diff(tree.heights) >= 0).all()
    assert tree.sizes.min() >= 5
    assert tree.sizes.sum() == sum(result.sizes_)
    # Leaves of a cluster are what is left together at its cut.
    cut = fcluster(result.linkage_, cut_height(tree, 3), "distance")
    assert adjusted_rand_score(cut, tree.clusters) == 1.0
    persons = np.bincount(tree.clusters, weights=tree.sizes)
    centroids = result.cluster_centers_
    assert np.array_equal(np.lexsort(centroids.T[::-1]), np.arange(3))
    assert abs(persons - result.sizes_).max() < 0.3 * sum(result.sizes_)
    drawn = dendrogram(result.linkage_, no_plot=True)
    across, _ = places(tree)
    assert sorted(across[:50]) == list(range(50)) == sorted(drawn["leaves"])


def test_more_clusters_than_shown_leaves_are_all_shown() -> None:
    result = simulate("ward", breast_cancer(), config={"n_clusters": 60})
    assert len(result.result.dendrogram.sizes) == 60
    assert cut_height(result.result.dendrogram, 61) is None


def test_the_figure_shows_the_cuts_and_the_page_what_it_cannot_tell(
    tmp_path: Path,
) -> None:
    result = simulate("ward", breast_cancer(), config={"n_clusters": [2, 3]})
    figure = result.plot.tree()
    assert "K = 2" in figure.svg
    assert "K = 3 is cut at" in figure.description
    result.save_report(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text("utf-8")
    assert "of groups, not of persons" in figure.svg
    assert "it cannot tell which clusters of persons join first" in page
    assert "Top of the tree" not in page
    other = simulate("lloyd", breast_cancer(), config={"n_clusters": 2})
    assert other.linkage_ is None
    with pytest.raises(UsageError, match="no tree"):
        other.plot.tree()
