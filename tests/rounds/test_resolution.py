"""The warning on resolution comes where clusters are finer than groups, and not without groups."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedclust.rounds.resolution import resolution_warning
from support.points import of_rows, weighted

FloatArray = NDArray[np.float64]


#: What sites send of their tables.
Sent = dict[str, NDArray[Any]]


def _sent(sites: list[FloatArray], centroids: FloatArray, *, exact: bool = False) -> Sent:
    """Return what sites send of their tables, or of their exact rows."""
    shape = (len(sites), len(centroids))
    counts, points = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    costs, within = np.zeros(shape), np.zeros((len(sites), centroids.shape[1]))
    for site, rows in enumerate(sites):
        table = weighted(rows, 1) if exact else of_rows(rows)
        X, sizes = table.X, table.sizes
        between = np.average((X - np.average(X, axis=0, weights=sizes)) ** 2, 0, sizes)
        within[site] = table.within * between / (1.0 - table.within)
        squares = ((X[:, None] - centroids) ** 2).sum(axis=2)
        nearest = squares.argmin(axis=1)
        np.add.at(counts[site], nearest, sizes)
        np.add.at(points[site], nearest, 1)
        np.add.at(costs[site], nearest, sizes * squares.min(axis=1))
    return Sent(counts=counts, points=points, costs=costs, within=within, centroids=centroids)


def _clusters(n_sites: int, a_site: int, k: int = 12) -> tuple[list[FloatArray], FloatArray]:
    """Return sites with ``a_site`` rows of each of ``k`` clusters, and the clusters' centres."""
    rng = np.random.default_rng(0)
    centres = 5.0 * np.array([(place % 4, place // 4) for place in range(k)], dtype=np.float64)
    own = np.repeat(centres, a_site, axis=0)
    return [own + rng.normal(size=own.shape) for _ in range(n_sites)], centres


def test_clusters_of_fewer_persons_than_a_group_are_warned_of() -> None:
    sites, centres = _clusters(50, 3)
    warning = resolution_warning(**_sent(sites, centres))

    assert "12 clusters" in warning
    assert "smaller min_group_size" in warning
    # Exact rows and one cluster are not.
    assert resolution_warning(**_sent(sites, centres, exact=True)) is None
    assert resolution_warning(**_sent(sites, centres[:1])) is None


@pytest.mark.parametrize(
    ("n_sites", "a_site"), [(5, 30), (1, 150), pytest.param(50, 60, marks=pytest.mark.long)]
)
def test_clusters_of_several_groups_are_not(n_sites: int, a_site: int) -> None:
    assert resolution_warning(**_sent(*_clusters(n_sites, a_site))) is None


@pytest.mark.parametrize(("cost", "warns"), [(10.0, False), (2_000.0, True)])
def test_lone_groups_far_from_their_centroid_cause_a_warning(cost: float, warns: bool) -> None:
    sent = Sent(
        counts=np.full((4, 2), [300, 6]),
        points=np.full((4, 2), [50, 1]),
        costs=np.full((4, 2), [900.0, cost]),
        within=np.full((4, 2), 0.1),
        centroids=np.array([[0.0, 0.0], [50.0, 50.0]]),
    )

    assert (resolution_warning(**sent) is not None) == warns


def test_unit_order_and_empty_clusters_do_not_matter() -> None:
    sites, centres = _clusters(10, 6)
    sent = _sent(sites, centres)
    warning = resolution_warning(**sent)
    order = np.random.default_rng(0).permutation(len(centres))

    scales = {"costs": 1e-6, "within": 1e-6, "centroids": 1e-3}
    scaled = {name: values * scales.get(name, 1) for name, values in sent.items()}
    by_cluster = ("counts", "points", "costs")
    shuffled = {name: sent[name][::-1][:, order] for name in by_cluster}
    shuffled |= {"within": sent["within"][::-1], "centroids": centres[order]}
    with_empty = {name: np.pad(sent[name], ((0, 0), (0, 1))) for name in by_cluster}
    with_empty |= {"within": sent["within"], "centroids": np.vstack([centres, centres[0] + 0.1])}

    for other in (scaled, shuffled, with_empty):
        assert resolution_warning(**other) == warning


def test_records_without_any_spread_are_not_warned_of() -> None:
    sites = [np.repeat([[0.0, 0.0, 1.0], [5.0, 2.0, 4.0], [9.0, 7.0, 2.0]], 10, axis=0)]

    assert resolution_warning(**_sent(sites, sites[0][::10])) is None


def test_as_many_clusters_as_groups_are_warned_of() -> None:
    rows = np.random.default_rng(0).normal(size=(60, 2))
    sent = _sent([rows], of_rows(rows).X)

    assert not sent["costs"].any()
    assert resolution_warning(**sent) is not None


def test_large_costs_without_any_spread_do_not_overflow() -> None:
    sites, centres = _clusters(2, 40)
    sent = _sent(sites, centres)
    sent["costs"] *= 1e12
    sent["within"] *= 0.0
    sent["centroids"] *= 1e6

    with np.errstate(all="raise"):
        assert resolution_warning(**sent) is None
