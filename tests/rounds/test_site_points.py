"""From a protected table to scaled points: columns, bounds, missing values, units, spreads."""

from dataclasses import replace

import numpy as np
import pytest

from fedclust.rounds.site_points import complete_points, released_points, scaled_points
from fedclust.schema.encoding import Space
from fedclust.schema.errors import RuleViolation
from fedclust.schema.feature import Feature
from fedclust.schema.task import total_variances
from support.points import config_of, of_rows, weighted


def test_released_values_become_points_in_the_sessions_columns_and_units() -> None:
    """Bounds clip what groups release, before the transform."""
    features = (
        Feature(name="stage", kind="categorical", levels=("i", "ii")),
        Feature(name="dose", lower=1, upper=100, transform="log"),
        Feature(name="smoker", kind="binary"),
    )
    values = np.array([[1.0, 0.0, 1e-9, 0.0], [1.0, 0.0, 50.0, 0.0], [0.0, 1.0, np.nan, 1.0]])
    neighbours = np.array([[0, 1], [1, 0], [2, 1]])
    points = released_points(values, np.array([5, 6, 7]), features, neighbours)

    np.testing.assert_array_equal(points.X[:, [0, 1, 3]], values[:, [0, 1, 3]])
    np.testing.assert_array_equal(points.X[:, 2], [0.0, np.log(50.0), np.nan])
    assert points.n == 18
    # Half the squared differences, over the variance: of 0 and 1, and of log 1 and log 50.
    share = 7 / 2 / 18 / (11 / 18 * 7 / 18)
    assert share > 0.8
    np.testing.assert_allclose(points.within, [0.8, 0.8, 0.8, 0.8])


@pytest.mark.parametrize("d", [1, 4, 16])
def test_shares_within_groups_complete_the_variance_of_persons(d: int) -> None:
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(600, d)) * 30.0 + rng.choice([0.0, 200.0], (600, 1)) + 1e3
    points = of_rows(rows)
    found = np.sqrt(total_variances(points))

    np.testing.assert_allclose(found, rows.std(axis=0), rtol=0.1)
    assert (points.within >= 0.05).all()
    assert (points.within <= 0.8).all()


def test_points_without_a_column_are_dropped_or_imputed_as_the_policy_says() -> None:
    X = np.arange(12.0).reshape(6, 2)
    X[1, 0] = X[4, 1] = np.nan
    points = weighted(X)
    dropped = complete_points(points, config_of(None, missing="drop"))
    assert dropped.X[:, 0].tolist() == [0.0, 4.0, 6.0, 10.0]
    assert dropped.sizes.tolist() == [5] * 4
    config = config_of(None)
    space = Space(
        center=np.array([1.0, 2.0]),
        scale=np.array([2.0, 4.0]),
        impute=np.array([3.0, 10.0]),
        limit=None,
    )
    scaled = scaled_points(complete_points(points, config), space, config)

    assert scaled.observed is not None
    assert np.argwhere(~scaled.observed).tolist() == [[1, 0], [4, 1]]
    assert scaled.X[1].tolist() == [(3 - 1) / 2, (3 - 2) / 4]
    assert scaled.X[4].tolist() == [(8 - 1) / 2, (10 - 2) / 4]


def test_columns_of_features_that_the_site_lacks_are_zero() -> None:
    points = weighted([[1.0, np.nan], [3.0, np.nan]])
    config = replace(config_of(None, missing="mask"), mask=np.array([True, False]))
    space = Space(
        center=np.array([1.0, 5.0]),
        scale=np.array([2.0, 1.0]),
        impute=np.array([1.0, 5.0]),
        limit=None,
    )

    found = scaled_points(complete_points(points, config), space, config)
    assert found.X.tolist() == [[0.0, 0.0], [1.0, 0.0]]


@pytest.mark.parametrize(
    ("X", "message"),
    [(np.ones((4, 3)), "2 columns"), ([[1.0, np.inf], [-np.inf, np.inf]], r"'x0': 1, 'x1': 2")],
)
def test_points_that_do_not_fit_are_refused_by_column_and_count(X: object, message: str) -> None:
    with pytest.raises(RuleViolation, match=message):
        complete_points(weighted(np.asarray(X)), config_of(None))
