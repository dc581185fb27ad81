"""Measures of agreement against loops over persons, and against scikit-learn."""

from itertools import combinations

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score, jaccard_score

from fedclust.numeric import agreement

SHAPES = [(3, 3), (2, 4), (4, 2), (1, 3), (3, 1)]


def drawn(shape: tuple[int, int], seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a table and the two labels of each of its persons."""
    rng = np.random.default_rng(seed)
    points = rng.integers(0, shape, size=(9, 2))
    sizes = rng.integers(1, 6, 9)
    table = agreement.contingency_table(points[:, 0], points[:, 1], sizes, shape)
    persons = np.repeat(points, sizes, axis=0)
    return table, persons[:, 0], persons[:, 1]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", range(4))
def test_measures_are_those_of_the_persons_and_of_their_pairs(
    shape: tuple[int, int], seed: int
) -> None:
    table, a, b = drawn(shape, seed)
    expected = adjusted_rand_score(a, b)
    assert agreement.adjusted_rand_index(table) == pytest.approx(expected, abs=1e-12)
    n_rows, n_columns = shape
    best = [
        max(jaccard_score(a == k, b == c, zero_division=0.0) for c in range(n_columns))
        for k in range(n_rows)
    ]
    assert agreement.jaccard_by_cluster(table) == pytest.approx(np.array(best), abs=1e-12)
    seen, kept = np.zeros((n_rows, n_rows)), np.zeros((n_rows, n_rows))
    for i, j in combinations(range(len(a)), 2):
        k, other = sorted((a[i], a[j]))
        seen[k, other] += 1
        kept[k, other] += b[i] == b[j]
    upper = seen > 0
    found = agreement.consensus(np.array([table]))
    assert found[upper] == pytest.approx(kept[upper] / seen[upper], abs=1e-12)
    assert (found == found.T).all()


def test_consensus_is_the_mean_over_models() -> None:
    tables = np.array([drawn((3, 3), seed)[0] for seed in range(5)])
    each = [agreement.consensus(table[None]) for table in tables]
    assert agreement.consensus(tables) == pytest.approx(np.mean(each, axis=0), abs=1e-12)


def test_chance_alone_gives_corrected_cramers_v_about_0() -> None:
    rng = np.random.default_rng(1)
    tables = [rng.multinomial(200, np.full(80, 1 / 80)).reshape(8, 10) for _ in range(200)]
    assert np.mean([agreement.cramers_v(table) for table in tables]) < 0.06


def test_cramers_v_by_hand() -> None:
    assert agreement.cramers_v(np.diag([30, 30, 30])) == pytest.approx(1.0)
    assert agreement.cramers_v(np.array([[4, 6], [0, 0]])) == 0.0
    # chi2 = 40 (15 * 15 - 5 * 5)^2 / 20^4 = 10.
    table = np.array([[15, 5], [5, 15]])
    # Bergsma: phi2 = 1/4 - 1/39, each number of categories 2 - 1/39.
    assert agreement.cramers_v(table) == pytest.approx(np.sqrt((1 / 4 - 1 / 39) / (1 - 1 / 39)))


def test_empty_and_lone_clusters() -> None:
    table = np.array([[0, 0], [1, 0], [2, 2]])
    assert agreement.jaccard_by_cluster(table).tolist() == [0.0, 1 / 3, 0.5]
    found = agreement.consensus(table[None])
    assert np.diag(found) == pytest.approx([0.0, 1.0, 1 / 3])
    assert agreement.adjusted_rand_index(np.zeros((2, 2), dtype=np.int64)) == 1.0
