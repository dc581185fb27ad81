"""Cells of a site that was not there go to the nearest centroid (k-FED, Theorem 3.2)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedclust.algorithms.base import Feature, Result, RuleViolation
from fedclust.algorithms.placing import place

FEATURES = (Feature(name="age", lower=0, upper=100), Feature(name="dose"))
# Nearest in own units and in the scaled space differ: age is divided by 50, dose by 1.
RESULT = Result(
    centroids=np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 4.0]]),
    centroids_original=np.array([[20.0, 5.0], [70.0, 5.0], [70.0, 9.0]]),
    center=np.array([20.0, 5.0]),
    scale=np.array([50.0, 1.0]),
)


# The second cluster is known by its dose alone.
MASKED = RESULT.model_copy(update={"mask": np.array([[True, True], [False, True], [True, True]])})


def _place(centroids: Any, counts: Any, p: int = 5, **named: Any) -> Any:
    result = named.pop("result", RESULT)
    cells = np.array(centroids, float), np.array(counts, np.int64)
    return place(result, FEATURES, *cells, p, **named)


def test_each_cell_goes_to_the_nearest_in_the_scaled_space() -> None:
    assert _place([[22, 5.1], [60, 5.0], [22, 8.5]], [5, 9, 700]).tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("centroids", "counts", "rule", "pointer"),
    [
        ([[22, 5.0], [60, 5.0]], [5, 4], "smallest-count", "/counts/1"),
        ([[22, 5.0], [60, 5.0]], [0, 5], "smallest-count", "/counts/0"),
        ([[22, 5.0], [60, 5.0]], [5, -7], "smallest-count", "/counts/1"),
        ([[22, 5.0], [160, 5.0]], [5, 5], "bounds", "/centroids/1/0"),
        ([[22, np.nan]], [5], "bounds", "/centroids/0/1"),
        ([[22, 1e300]], [5], "bounds", "/centroids/0"),
        ([[22, 5.0]], [5, 5], "shape", "/counts"),
        ([[22, 5.0, 1.0]], [5], "shape", "/centroids"),
        (np.empty((0, 2)), [], "shape", "/centroids"),
    ],
)
def test_a_refusal_names_cell_and_rule_and_repeats_no_value(
    centroids: Any, counts: Any, rule: str, pointer: str
) -> None:
    with pytest.raises(RuleViolation) as caught:
        _place(centroids, counts)

    assert (caught.value.rule, caught.value.pointer) == (rule, pointer)
    assert "160" not in caught.value.message


def test_columns_are_compared_by_name() -> None:
    assert _place([[5.1, 22], [8.5, 22]], [5, 9], names=["dose", "age"]).tolist() == [0, 2]
    assert _place([[7.2], [4.0]], [5, 5], result=MASKED, names=["dose"]).tolist() == [2, 0]
    assert _place([[80.0]], [5], result=MASKED, names=["age"]).tolist() == [2]


@pytest.mark.parametrize(
    ("names", "result", "pointer"),
    [
        (["dose"], RESULT, "/features"),
        (["dose", "dose"], MASKED, "/features/1"),
        (["dose", "height"], MASKED, "/features/1"),
        ([], MASKED, "/features"),
        (["age"], MASKED.model_copy(update={"mask": MASKED.mask & [False, True]}), "/features"),
    ],
)
def test_columns_that_say_nothing_are_refused(
    names: list[str], result: Result, pointer: str
) -> None:
    with pytest.raises(RuleViolation) as caught:
        _place([[22.0] * len(names)], [5], result=result, names=names)
    assert (caught.value.rule, caught.value.pointer) == ("features", pointer)


def test_means_of_every_kind_are_placed_in_declared_units() -> None:
    features = (
        Feature(name="crp", lower=0.1, transform="log"),
        Feature(name="pain", kind="categorical", levels=("yes", "some", "no")),
        Feature(name="sex", kind="binary"),
    )
    scaled = np.array([[0.0, 1, 0, 0, 0.5], [np.log(100), 0, 0.2, 0.8, 0.5]])
    known = Result(
        centroids=scaled, centroids_original=scaled, center=np.zeros(5), scale=np.ones(5)
    )
    counts = np.array([5, 5])
    means = np.array([[30.0, 0, 0, 1.0, 0], [1.2, 0.7, 0.3, 0, 1]])
    assert place(known, features, means, counts, 5).tolist() == [1, 0]
    masked = known.model_copy(update={"mask": np.ones((2, 5), dtype=bool)})
    levels_first = means[:, [1, 2, 3, 0]]
    assert place(masked, features, levels_first, counts, 5, ["pain", "crp"]).tolist() == [1, 0]
    for wrong in ([0.0, 1, 0, 0, 0], [-1.0, 1, 0, 0, 0], [1.0, 1.5, 0, 0, 0]):
        with pytest.raises(RuleViolation) as caught:
            place(known, features, np.array([wrong]), counts[:1], 5)
        assert caught.value.rule == "bounds"
