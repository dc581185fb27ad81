"""Figures of what the clusters are like: legible, in order, and never by colour alone."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedclust.result.figures.plots import Plots
from fedclust.result.page import html
from fedclust.result.table_one import table_one
from support.drawings import check_drawing, words_of
from support.results import facts_of

NAMES = ["age", "systolic blood pressure after ten minutes at rest", "lactate", "noise"]
MEANS = np.array([[50.0, 120.0, 2.0, 0.1], [50.0, 150.0, 8.0, 0.1], [62.0, 120.0, 2.0, 0.0]])


def test_the_columns_that_separate_most_come_first() -> None:
    figure = Plots(facts_of(MEANS, NAMES)).profile()
    words = words_of(figure)

    # Their gaps are 1.5, 1.2 and .1 standard deviations.
    places = [words.index(name) for name in ("lactate", "age", "noise")]
    assert places == sorted(places)
    # The long name comes between, and ends with an ellipsis.
    assert next(word for word in words if word.startswith("systolic")).endswith("…")
    check_drawing(figure)
    # A cell says the mean and marks on which side it is.
    at = words.index("lactate")
    assert words[at + 1 : at + 4] == ["2", "8", "2"]
    # Two columns are -.5, 1 and -.5 away, one .8; and the legend has four colours each way.
    up, down = (figure.svg.count(mark) for mark in ("h7l-3.5 -6z", "h7l-3.5 6z"))
    assert (up, down) == (3 + 4, 4 + 4)


def test_a_row_says_the_unit_also_where_the_name_is_too_long() -> None:
    facts = facts_of(MEANS, NAMES)
    units = dict(zip(NAMES, ("years", "mmHg", "mmol/l", ""), strict=True))
    features = tuple(
        each.model_copy(update={"unit": units[each.name]}) for each in facts.definition.features
    )
    facts = replace(facts, definition=facts.definition.model_copy(update={"features": features}))
    words = words_of(Plots(facts).profile())
    assert {"age (years)", "lactate (mmol/l)", "noise"} <= set(words)
    (long,) = (word for word in words if word.startswith("systolic"))
    assert long.endswith("… (mmHg)")
    # The card has the values behind its words.
    assert " at rest and lactate higher</summary>" in html(facts)
    assert "lactate 8 mmol/l<" in html(facts)


@pytest.mark.parametrize("count", [11, 40])
def test_cells_without_room_for_numbers_have_marks(count: int) -> None:
    rng = np.random.default_rng(0)
    means = rng.normal(0.0, 1.0, (count, 3))
    means[:, 2] = 0.0
    figure = Plots(facts_of(means, ["u", "v", "w"])).profile()

    apart = (means - means.mean(axis=0))[:, :2]
    # Two marks of the legend have each direction for every step of half a deviation from it on.
    assert figure.svg.count("<path") - 1 == int((np.abs(apart).round(1) >= 0.5).sum()) + 8
    check_drawing(figure)


def test_at_most_forty_columns_are_drawn() -> None:
    means: NDArray[Any] = np.outer([0.0, 1.0], 0.2 * np.arange(1, 61))
    figure = Plots(facts_of(means, [f"c{j}" for j in range(60)])).profile()
    drawn = [word for word in words_of(figure) if word.startswith("c") and word != "cluster"]
    assert drawn == [f"c{j}" for j in range(59, 19, -1)]


def test_a_report_has_the_numbers_of_the_figures() -> None:
    page = html(facts_of(MEANS, NAMES))
    assert "<title>Profile of the clusters" in page
    for line in table_one(facts_of(MEANS, NAMES)).rows:
        assert all(f">{cell}<" in page for cell in line if cell)
