"""Who lies outside what a model saw."""

from typing import Any

import numpy as np
import pytest

from fedclust import simulate
from fedclust.result.predictions import find_outside
from fedclust.schema.encoding import columns_of
from fedclust.schema.feature import Feature
from fedclust.schema.result import ClusterProfile
from support.results import profile_of

FEATURES = (
    Feature(name="age", lower=0.0, upper=120.0),
    Feature(name="crp", lower=1.0, transform="log"),
    Feature(name="sex", kind="binary"),
    Feature(name="pain", kind="categorical", levels=("typical", "none", "other")),
)
COLUMNS = columns_of(FEATURES)
NAN = np.nan


def profile(**more: Any) -> ClusterProfile:
    """Two clusters of persons aged 40 and 70, and no person with the level "other"."""
    means = np.array([[40.0, 1.0, 0.5, 0.5, 0.5, 0.0], [70.0, 3.0, 0.5, 0.0, 1.0, 0.0]])
    deviations = [[5.0, 0.5, 0.5, 0.5, 0.5, 0.0], [5.0, 0.5, 0.5, 0.0, 0.0, 0.0]]
    return profile_of(means, deviations, [16.0, 1.1, 0.5, 0.43, 0.43, 0.0], **more)


def found(
    rows: list[list[float]], labels: list[int], of: ClusterProfile | None
) -> list[tuple[int, list[str]]]:
    outside, why = find_outside(COLUMNS, of, np.array(rows), np.array(labels, dtype=np.int64))
    names = [[COLUMNS[j].name for j in places] for places in why]
    return list(zip(outside.tolist(), names, strict=True))


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ([42, 1.2, 1, 1, 0, 0], []),
        ([62, 1.2, 1, 1, 0, 0], ["age"]),
        ([130, 1.2, 1, 1, 0, 0], ["age"]),
        ([62, 3.8, 0, 0, 1, 0], ["crp", "age"]),
        ([42, 1.2, 0, 0, 0, 1], ["pain=other"]),
        # What is missing does not count.
        ([NAN, 1.2, NAN, NAN, NAN, NAN], []),
    ],
)
def test_a_row_is_compared_with_its_cluster(row: list[float], why: list[str]) -> None:
    assert found([row], [0], profile()) == [(int(bool(why)), why)]


def test_it_is_not_known_without_a_label_or_a_profile() -> None:
    row = [42.0, 1.2, 1.0, 1.0, 0.0, 0.0]
    assert found([row, row], [0, -1], None) == [(-1, []), (-1, [])]
    assert found([row, row], [0, -1], profile()) == [(0, []), (-1, [])]
    empty = np.array([[False] * 6, [True] * 6])
    assert found([row, row], [0, 1], profile(known=empty))[0] == (-1, [])


def test_a_constant_column_and_a_small_spread() -> None:
    """Rounding is not outside; where all persons agree, another value is."""
    same = profile(estimated_deviations=np.zeros((2, 6)), estimated_overall_deviations=np.zeros(6))
    assert found([[40.0 + 1e-12, 1.0, 1, 1, 0, 0]], [0], same) == [(0, [])]
    assert found([[41.0, 1.0, 1, 1, 0, 0]], [0], same) == [(1, ["age"])]
    # A quarter of the deviation of all persons at least: 4 years.
    narrow = profile(estimated_deviations=np.zeros((2, 6)))
    assert found([[50.0, 1.0, 1, 1, 0, 0]], [0], narrow) == [(0, [])]


def test_several_moderate_distances_count_together() -> None:
    columns = columns_of(tuple(Feature(name=f"x{j}") for j in range(6)))
    alike = profile_of(np.zeros((1, 6)))
    rows = np.array([[2.0] * 6, [3.0] * 6, [3.0] * 3 + [0.0] * 3, [3.0, 3.0] + [NAN] * 4])
    outside, why = find_outside(columns, alike, rows, np.zeros(4, dtype=np.int64))
    # It takes three numbers.
    assert outside.tolist() == [0, 1, 0, 0]
    assert len(why[1]) == 6


def test_rows_of_the_session_are_inside_and_rows_moved_far_away_are_not() -> None:
    rng = np.random.default_rng(3)
    X = rng.normal(size=(3, 6))[rng.integers(0, 3, 600)] * 3.0 + rng.normal(size=(600, 6))
    result = simulate("fkm", {s: X[i::3] for i, s in enumerate("abc")}, config={"n_clusters": 3})
    own = result.predict_details(X)
    assert (own.outside > 0).mean() <= 0.01
    far = X.copy()
    at, column = np.arange(600), rng.integers(0, 6, 600)
    away = np.where(far[at, column] > X[:, column].mean(), 1.0, -1.0)
    far[at, column] += 6.0 * X.std(axis=0)[column] * away
    moved = result.predict_details(far)
    assert (moved.outside > 0).mean() >= 0.98
    named = [why[0] == f"x{j}" for why, j in zip(moved.why, column, strict=True) if why]
    assert np.mean(named) > 0.95
    without = simulate(
        "fkm",
        {s: X[i::3] for i, s in enumerate("abc")},
        config={"n_clusters": 3, "evaluate": False},
    )
    assert set(without.predict_details(far).outside) == {-1}
