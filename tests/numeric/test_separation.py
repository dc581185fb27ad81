"""k-FED's conditions on separation, against numbers computed by hand."""

from __future__ import annotations

import doctest
import importlib

import numpy as np
import pytest

from fedclust.local.simulate import measure_separation, simulate
from fedclust.numeric.separation import separation


def _line(*values: float) -> np.ndarray:
    return np.array([[value, 0.0] for value in values])


# Clusters 0, 1 and 2 about 0, 10 and 40, of 4, 4 and 2 rows; each row 1 from its mean.
ROWS = {
    "a": _line(-1, 1, -1, 9, 11),
    "b": _line(1, 39, 41),
    "c": _line(9, 11),
}
LABELS = {
    "a": np.array([0, 0, 0, 1, 1]),
    "b": np.array([0, 2, 2]),
    "c": np.array([1, 1]),
}


def test_the_documented_example_holds() -> None:
    module = importlib.import_module("fedclust.numeric.separation")
    results = doctest.testmod(module)

    assert (results.failed, results.attempted > 0) == (0, True)


def test_the_conditions_of_theorem_3_1() -> None:
    found = separation(ROWS, LABELS)

    # All ten rows are 1 from their means along one axis: ||A - C|| is the root of 10.
    assert found.spread == pytest.approx(np.sqrt(10))
    assert (found.k, found.k_prime, found.k_site) == (3, 2, {"a": 2, "b": 2, "c": 1})
    assert not found.heterogeneous
    assert found.m0 == 4.0
    assert found.active.tolist() == [[0, 1], [0, 2]]
    assert found.inactive.tolist() == [[1, 2]]
    root = np.sqrt(10)
    delta = {r: 2 * root / np.sqrt(n) for r, n in ((0, 4), (1, 4), (2, 2))}
    expected = [10 / (2 * (delta[0] + delta[1])), 40 / (2 * (delta[0] + delta[2]))]
    np.testing.assert_allclose(found.active_separation, expected)
    lambdas = [np.sqrt(2) * root / 2, np.sqrt(2) * root / np.sqrt(2)]
    np.testing.assert_allclose(found.inactive_separation, [30 / (2 * sum(lambdas))])


def test_a_row_between_two_clusters_violates_the_proximity_condition() -> None:
    found = separation(ROWS, LABELS)
    # At c all rows are of one cluster: nothing to be told apart from.
    assert found.bad_rows["c"] == 0
    assert found.proximity == 1 - sum(found.bad_rows.values()) / 10

    near = np.concatenate([_line(*np.linspace(-1, 1, 40)), _line(*np.linspace(99, 101, 40))])
    labels = np.repeat([0, 1], 40)
    assert separation({"a": near}, {"a": labels}).bad_rows == {"a": 0}
    near[0] = (49.0, 0.0)
    assert separation({"a": near}, {"a": labels}).bad_rows == {"a": 1}


def test_rows_without_a_cluster_do_not_count() -> None:
    rows = {**ROWS, "c": np.concatenate([ROWS["c"], _line(500.0)])}
    labels = {**LABELS, "c": np.array([1, 1, -1])}

    assert separation(rows, labels).spread == separation(ROWS, LABELS).spread
    assert separation(rows, labels).rows["c"] == 2


def test_the_separation_of_clusters_of_equal_rows_is_infinite() -> None:
    rows = {"a": _line(0, 0, 5, 5)}
    found = separation(rows, {"a": np.array([3, 3, 7, 7])})

    assert found.active.tolist() == [[3, 7]]
    assert found.active_separation.tolist() == [np.inf]
    assert found.proximity == 1.0


def test_labels_that_do_not_match_the_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="same sites"):
        separation(ROWS, {"a": LABELS["a"]})
    with pytest.raises(ValueError, match="'b'"):
        separation(ROWS, {**LABELS, "b": np.array([0, 1])})
    with pytest.raises(ValueError, match="no row"):
        separation({"a": _line(1, 2)}, {"a": np.array([-1, -1])})


@pytest.mark.parametrize("method", ["lloyd", "kfed"])
def test_a_simulation_measures_its_own_labels_or_a_target(method: str) -> None:
    rng = np.random.default_rng(0)
    truth = {site: np.repeat(own, 15) for site, own in (("a", [0, 1]), ("b", [1, 2]), ("c", [2]))}
    centres = np.array([[0.0, 0.0], [30.0, 0.0], [0.0, 30.0]])
    sites = {site: centres[y] + rng.normal(size=(len(y), 2)) for site, y in truth.items()}
    sites["a"][3, 1] = np.nan
    drop = {"missing": "drop"}
    result = simulate(method, sites, config={"n_clusters": 3}, policy=drop)

    found, target = measure_separation(result, sites), measure_separation(result, sites, truth)
    assert found.rows == {"a": 29, "b": 30, "c": 15}
    assert (found.m0, found.k_prime) == (target.m0, target.k_prime) == (2.0, 2)
    np.testing.assert_allclose(found.spread, target.spread)
    assert target.inactive.tolist() == [[0, 2]]
    with pytest.raises(ValueError, match="one label"):
        measure_separation(result, sites, {**truth, "c": np.zeros(4, dtype=int)})
