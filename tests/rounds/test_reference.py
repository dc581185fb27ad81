"""Clusters against one cloud: what the cloud is like, and what is said of clusters beside it."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import pytest

from fedclust.numeric.weighted_kmeans import weighted_kmeans
from fedclust.protection.columns import SourceColumn
from fedclust.protection.table import form_table
from fedclust.rounds import reference
from fedclust.rounds.record_cells import RecordCells, find_cells
from fedclust.rounds.reference import compare_with_cloud
from fedclust.schema.result import CloudComparison
from fedclust.schema.task import Points, row_points
from support import few_clouds

pytestmark = pytest.mark.usefixtures("all_clouds")

CENTRES = np.array([[0.0, 0, 0, 0], [6, 0, 0, 0], [0, 6, 0, 0]])


def correlated(n: int, r: float, d: int = 4, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.multivariate_normal(np.zeros(d), np.full((d, d), r) + (1 - r) * np.eye(d), n)


def released(rows: np.ndarray, p: int = 5) -> Points:
    columns = [SourceColumn(f"x{j}", np.ascontiguousarray(x)) for j, x in enumerate(rows.T)]
    table = form_table(columns, p)
    X = np.column_stack(table.released)
    known = ~np.isnan(X)
    return Points(np.where(known, X, 0.0), table.sizes, np.zeros(X.shape[1]), known)


def cells(rows: np.ndarray, n_sites: int = 2) -> list[RecordCells]:
    rng = np.random.default_rng(1)
    return [find_cells(released(part), rng) for part in np.array_split(rows, n_sites)]


def against(
    sites: Sequence[RecordCells], centroids: dict[int, np.ndarray], seed: int = 1
) -> dict[int, CloudComparison]:
    """Compare with one cloud; each group is a cell."""
    n_groups = [len(site.counts) for site in sites]
    return compare_with_cloud(sites, n_groups, centroids, p=5, seed=seed)


def centroids(sites: Sequence[RecordCells], ks: Sequence[int]) -> dict[int, np.ndarray]:
    X = np.concatenate([site.means for site in sites])
    weights = np.concatenate([site.counts for site in sites]).astype(float)
    return {k: weighted_kmeans(X, weights, k, np.random.default_rng(2)) for k in ks}


@pytest.fixture(scope="module")
def clustered() -> list[RecordCells]:
    rng = np.random.default_rng(0)
    rows = CENTRES[rng.integers(3, size=240)] + rng.normal(size=(240, 4))
    # In the last column all are equal.
    return cells(np.pad(rows, ((0, 0), (0, 1)), constant_values=4.2))


@pytest.fixture
def few_draws() -> Iterator[None]:
    """Draw few clouds, where their number does not matter."""
    few_clouds.draw(few_clouds.FEW)
    yield
    few_clouds.draw(few_clouds.ALL)


def test_pieces_of_one_correlated_cloud_are_not_clearer_than_one_cloud() -> None:
    sites = cells(correlated(160, 0.6))
    found = against(sites, centroids(sites, (2, 3)))
    for comparison in found.values():
        assert comparison.n_draws == 20
        assert comparison.p > 0.05
        assert comparison.cluster_p is None
        assert comparison.not_judged is None


def test_clusters_that_are_there_are_clearer_and_each_stands_apart_in_the_sessions_order(
    clustered: list[RecordCells],
) -> None:
    found = against(clustered, centroids(clustered, (3, 4)))
    assert found[3].p < 0.001
    assert found[3].gap > 3 * found[3].gap_error > 0
    assert (found[3].cluster_p <= 0.05).all()
    # With one cluster too many, two halves of a real one do not stand apart.
    split = found[4].cluster_p
    assert split is None or (split > 0.05).sum() == 2


@pytest.mark.usefixtures("few_draws")
def test_each_cluster_has_its_own_p_whatever_the_order() -> None:
    rng = np.random.default_rng(0)
    middles = np.array([[0.0, 0], [1.8, 0], [20, 0]])
    rows = middles[rng.integers(3, size=160)] + rng.normal(size=(160, 2))
    sites = cells(rows)
    own = centroids(sites, (3,))[3]
    order = own[:, 0].argsort()
    for chosen in (order, order[::-1]):
        found = against(sites, {3: own[chosen]})[3]
        far = found.cluster_p[chosen == order[2]]
        assert far < found.cluster_p[chosen != order[2]].min()


def test_other_clusters_than_those_of_the_cells_are_not_judged_one_by_one(
    clustered: list[RecordCells],
) -> None:
    elsewhere = {3: np.array([[0.0, 0, 0, -1, 4.2], [0, 0, 0, 0, 4.2], [0, 0, 0, 1, 4.2]])}
    found = against(clustered, elsewhere)[3]
    assert found.p < 0.001
    assert found.cluster_p is None
    assert "differ from the session's own" in found.not_judged


def test_one_cluster_or_too_few_different_records_are_not_judged(
    clustered: list[RecordCells],
) -> None:
    yes = cells(np.eye(2)[np.repeat([0, 1], 40)])
    for sites, k in ((clustered, 1), (yes, 2), (yes, 3)):
        found = against(sites, {k: np.zeros((k, 2))})[k]
        assert found.n_draws == 0
        assert found.p is None
        assert found.not_judged


@pytest.mark.usefixtures("few_draws")
def test_the_same_seed_gives_the_same_comparison(clustered: list[RecordCells]) -> None:
    own = centroids(clustered, (3,))
    first, again, other = (against(clustered, own, seed)[3] for seed in (1, 1, 2))
    assert (first.p, first.gap, first.gap_error) == (again.p, again.gap, again.gap_error)
    assert (first.cluster_p == again.cluster_p).all()
    assert first.gap != other.gap


def test_cells_of_the_cloud_have_the_covariance_and_shares_of_the_sites() -> None:
    rows = correlated(800, 0.5, seed=3)
    rows[:, 0] = np.exp(rows[:, 0])
    rows[:, 3] = rows[:, 3] > 0.6
    sites = cells(rows, 4)
    cloud = reference._OneCloud(sites, [len(site.counts) for site in sites], 5)
    cloud.fit(1)
    drawn = [cloud.draw(np.random.default_rng(seed)) for seed in range(5)]
    covariances = [reference._covariance(each.cells.X, each.cells.weights) for each in drawn]
    expected = reference._covariance(cloud.cells.X, cloud.cells.weights)
    sd = np.sqrt(np.diag(expected))
    error = (np.mean(covariances, axis=0) - expected) / np.outer(sd, sd)
    assert np.abs(error).max() < 0.15
    # Records lie on the column's own values, as often as at the sites.
    assert set(np.unique(drawn[0].cells.X[:, 3])) == {0.0, 1.0}
    observed = sum(site.columns()[3][1][0] for site in sites) / 800
    assert np.mean([each.reached[3] for each in drawn]) == pytest.approx(observed, abs=0.05)
    # Skewed where the sites are.
    assert all(np.median(each.cells.X[:, 0]) < each.cells.X[:, 0].mean() for each in drawn)


def test_columns_whose_drawn_cells_have_too_long_a_tail_get_a_shorter_one() -> None:
    sites = cells(np.exp(correlated(400, 0.0, seed=3)), 2)

    def last_quantile(stretch: float) -> float:
        """Fit to draws whose cells are those of the sites, but for the last tenth of a column."""
        cloud = reference._OneCloud(sites, [len(site.counts) for site in sites], 5)
        X = cloud.cells.X.copy()
        tail = X[:, 0] > np.quantile(X[:, 0], 0.9)
        X[tail, 0] *= stretch
        drawn = reference._Draw(cloud.cells._replace(X=X), np.zeros_like(cloud._covariance), {})
        cloud.draw = lambda _: drawn
        cloud.fit(1)
        return float(cloud._shapes[0][-10:].mean())

    assert last_quantile(1.3) < last_quantile(1.0) - 0.1
    assert last_quantile(0.8) > last_quantile(1.0) + 0.1


def test_as_many_persons_lack_values_in_the_cloud_and_the_same_ones_lack_several() -> None:
    rows = correlated(400, 0.5, seed=3)
    sick = rows[:, 0] > 0.6
    rows[np.ix_(sick, [2, 3])] = np.nan
    sites = cells(rows)
    cloud = reference._OneCloud(sites, [len(site.counts) for site in sites], 5)
    cloud.fit(1)
    known = np.concatenate([cloud.draw(np.random.default_rng(s)).cells.known for s in range(3)])
    assert (known[:, :2] == 1.0).all()
    assert 1.0 - known[:, 2].mean() == pytest.approx(sick.mean(), abs=0.1)
    assert np.corrcoef(known[:, 2], known[:, 3])[0, 1] > 0.7
    # Two halves, those with a panel and those without, are no clusters.
    found = against(sites, centroids(sites, (2,)))[2]
    assert found.p > 0.05


def test_who_lacks_a_value_is_drawn_at_random_where_few_do() -> None:
    """Two draws of a handful of persons gave correlations as absurd as -1.9."""
    rows = correlated(400, 0.5, seed=3)

    def correlations(lacking: np.ndarray) -> np.ndarray:
        some = rows.copy()
        some[lacking, 3] = np.nan
        sites = cells(some)
        cloud = reference._OneCloud(sites, [len(site.counts) for site in sites], 5)
        cloud.fit(1)
        return cloud._root @ cloud._root.T

    rarely = correlations(rows[:, 0] > np.quantile(rows[:, 0], 0.98))
    assert rarely[4, :4] == pytest.approx(np.zeros(4), abs=1e-9)
    assert rarely[:4, :4] == pytest.approx(np.full((4, 4), 0.5) + np.eye(4) / 2, abs=0.2)
    often = correlations(rows[:, 0] > np.quantile(rows[:, 0], 0.7))
    assert often[4, 0] > 0.5


def test_a_column_that_no_drawn_person_has_keeps_its_shape(clustered: list[RecordCells]) -> None:
    cloud = reference._OneCloud(clustered, [len(site.counts) for site in clustered], 5)
    known = cloud.cells.known.copy()
    known[:, 0] = 0.0
    reached = {j: few.reached for j, few in cloud._few.items()}
    lost = np.zeros_like(cloud._covariance)
    drawn = reference._Draw(cloud.cells._replace(known=known), lost, reached)
    cloud.draw = lambda _: drawn
    with np.errstate(all="raise"):
        cloud.fit(1)
    assert cloud._shapes[0].std() == pytest.approx(1.0)


def test_a_distribution_gets_one_peak_and_keeps_its_persons() -> None:
    two = np.array([1.0, 8, 2, 0, 3, 9, 1])
    fitted = reference._one_peak(two)
    assert fitted.sum() == pytest.approx(two.sum())
    signs = [np.sign(after - before) for before, after in pairwise(fitted) if after != before]
    assert signs == sorted(signs, reverse=True)
    one = np.array([0.0, 1, 5, 5, 3, 0])
    assert reference._one_peak(one) == pytest.approx(one)


def test_of_many_sites_some_are_drawn_and_of_large_ones_a_part(
    clustered: list[RecordCells],
) -> None:
    rows = find_cells(row_points(np.zeros((90, 1))), np.random.default_rng(0))
    assert reference._drawn_sites([rows], [90], 1) == [(90, 1)]
    many, n_groups = clustered * 50, [len(site.counts) for site in clustered] * 50
    drawn = reference._drawn_sites(many, n_groups, 5)
    assert sum(n for n, _ in drawn) == pytest.approx(2_000, rel=0.05)
    assert {least for _, least in drawn} == {5}
    assert reference._drawn_sites(many, n_groups, 8)[0][1] == 8


def test_cells_of_a_large_site_hold_means_and_middle_values_of_records() -> None:
    rng = np.random.default_rng(0)
    # The last column is lacking.
    rows = np.column_stack([rng.normal(size=900), rng.integers(3, size=900), np.full(900, np.nan)])
    points = released(rows)
    site = find_cells(points, rng)
    assert len(points.X) > len(site.means) == 60
    assert site.counts.sum() == 900
    expected = np.average(points.X, axis=0, weights=points.sizes)
    assert np.average(site.means, axis=0, weights=site.counts) == pytest.approx(expected)
    ((column, (values, persons)),) = site.columns().items()
    assert column == 1
    assert site.middles.shape == (60, 1)
    assert set(np.unique(site.middle_values()[:, 1])) <= set(values.tolist())
    assert persons.sum() == 900
