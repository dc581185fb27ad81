"""Figures of what the clusters are like: legible, in order, and never by colour alone."""

from __future__ import annotations

import math
import re
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from numpy.typing import NDArray

from fedclust.errors import UsageError
from fedclust.report import Plots, html
from fedclust.report.figures import MOST_PAIRS, profile_pairs
from support.drawings import check_drawing, words_of
from support.results import facts_of

NAMES = ["age", "systolic blood pressure after ten minutes at rest", "lactate", "noise"]
MEANS = np.array([[50.0, 120.0, 2.0, 0.1], [50.0, 150.0, 8.0, 0.1], [62.0, 120.0, 2.0, 0.0]])


def test_the_columns_that_separate_most_come_first_with_their_gap() -> None:
    figure = Plots(facts_of(MEANS, NAMES)).profile()
    words = words_of(figure)

    # In standard deviations of 10, 20, 4 and 1.
    assert [words[words.index(name) + 1] for name in ("lactate", "age", "noise")] == [
        "1.5",
        "1.2",
        "0.1",
    ]
    places = [words.index(name) for name in ("lactate", "age", "noise")]
    assert places == sorted(places)
    # The long name comes between, and ends with an ellipsis.
    assert next(word for word in words if word.startswith("systolic")).endswith("…")
    assert "+0.0" not in words
    assert "-0.0" not in words
    check_drawing(figure)


def test_a_cell_says_mean_and_difference_in_numbers() -> None:
    words = words_of(Plots(facts_of(MEANS, NAMES)).profile())
    at = words.index("lactate")
    assert words[at + 2 : at + 8] == ["2", "-0.5", "8", "+1.0", "2", "-0.5"]


@pytest.mark.parametrize("count", [11, 40])
def test_cells_without_room_for_numbers_have_marks(count: int) -> None:
    rng = np.random.default_rng(0)
    means = rng.normal(0.0, 1.0, (count, 3))
    means[:, 2] = 0.0
    figure = Plots(facts_of(means, ["u", "v", "w"])).profile()

    apart = (means - means.mean(axis=0))[:, :2]
    # Two marks of the legend have each direction for every step of half a deviation from it on.
    assert figure.svg.count("<path") - 1 == int((np.abs(apart) >= 0.5).sum()) + 8
    check_drawing(figure)


def test_a_session_without_evaluation_has_no_profile_to_draw() -> None:
    with pytest.raises(UsageError, match="no differences between clusters are known"):
        Plots(facts_of(MEANS, NAMES, profile=None)).profile()


def test_at_most_forty_columns_are_drawn() -> None:
    means: NDArray[Any] = np.outer([0.0, 1.0], np.linspace(0.1, 4.0, 60))
    figure = Plots(facts_of(means, [f"c{j}" for j in range(60)])).profile()
    drawn = [word for word in words_of(figure) if word.startswith("c") and word != "cluster"]
    assert drawn == [f"c{j}" for j in range(59, 19, -1)]


def test_a_bar_points_to_the_cluster_with_the_higher_mean() -> None:
    facts = facts_of(MEANS, NAMES)
    figure = Plots(facts).pairs()
    pairs = profile_pairs(facts)

    assert [(pair.first, pair.second) for pair in pairs] == [(0, 1), (0, 2), (1, 2)]
    assert [(e.column.name, round(e.difference, 2)) for e in pairs[1].columns][:2] == [
        ("age", -1.2),
        ("noise", 0.1),
    ]
    assert pairs[0].columns[0].means == ("120", "150")
    assert pairs[0].apart == pytest.approx(math.sqrt((1.5**2 + 1.5**2) / 4))
    words = words_of(figure)
    at = words.index("0 and 2")
    assert words[at : at + 5] == ["0 and 2", "← 2 higher", "0 higher →", "age", "-1.2"]
    root = ElementTree.fromstring(figure.svg)  # noqa: S314 (our own)
    zero = [e for e in root.iter() if e.tag.endswith("line") and e.get("stroke") == "#333333"]
    bars = [e for e in root.iter() if e.tag.endswith("rect")]
    # The second panel stands to the right, so its bars are after the four of the first.
    first, second = bars[4:6]
    middle = float(zero[1].attrib["x1"])
    assert float(first.attrib["x"]) + float(first.attrib["width"]) == pytest.approx(middle, abs=0.2)
    assert float(second.attrib["x"]) == pytest.approx(middle, abs=0.2)
    check_drawing(figure)


def test_of_many_pairs_those_that_differ_least_are_drawn() -> None:
    means = np.arange(9.0)[:, None] ** 2 * [1.0, 0.5]
    facts = facts_of(means, ["u", "v"])
    pairs = profile_pairs(facts)
    assert len(pairs) == MOST_PAIRS
    assert max(pair.apart for pair in pairs) < 36
    assert (0, 1) in [(pair.first, pair.second) for pair in pairs]
    assert (0, 8) not in [(pair.first, pair.second) for pair in pairs]
    assert "the 15 pairs of clusters that differ least" in html(facts)
    check_drawing(Plots(facts).pairs())


def test_of_very_many_clusters_no_pairs_are_compared() -> None:
    assert profile_pairs(facts_of(np.arange(201.0)[:, None] * [1.0, 2.0], ["u", "v"])) == []


def test_pairs_leave_out_what_is_unknown() -> None:
    profile = facts_of(MEANS, NAMES).result.profile
    assert profile is not None
    known = profile.known.copy()
    known[0, 2], known[2] = False, False
    changed = profile.model_copy(update={"known": known})
    (pair,) = profile_pairs(facts_of(MEANS, NAMES, profile=changed))
    assert (pair.first, pair.second, pair.apart) == (0, 1, pytest.approx(1.5 / math.sqrt(3)))
    assert [each.column.name for each in pair.columns] == [NAMES[1], "age", "noise"]


def test_a_radar_states_its_scale_and_cuts_nothing_off() -> None:
    facts = facts_of(MEANS, NAMES)
    figure = Plots(facts).radar()

    assert "Rings: -1 at the centre, 0 (bold, all persons) to +1" in figure.description
    assert words_of(figure)[-1] in figure.description
    # The zero ring lies half way, as a polygon with a corner on each of four axes.
    rings = re.findall(r'<path d="([^"]+)" fill="none" stroke="#333333"', figure.svg)
    assert len(rings) == 3
    corners = np.array([point.split() for point in rings[0].strip("Mz").split("L")], dtype=float)
    ends = np.array(re.findall(r' x2="([\d.]+)" y2="([\d.]+)"', figure.svg), dtype=float)[:4]
    middle = corners.mean(axis=0)
    np.testing.assert_allclose(ends - middle, 2 * (corners - middle), atol=0.3)
    far = Plots(facts_of(MEANS * 3, NAMES)).radar()
    assert "Rings: -3 at the centre" in far.description
    for image in (figure, far):
        check_drawing(image)


def test_a_radar_has_three_to_twelve_axes_and_at_most_eight_clusters() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(UsageError, match="needs three columns"):
        Plots(facts_of([[0.0, 1.0], [1.0, 0.0]], ["u", "v"])).radar()
    names = [f"column {j} with a long name that does not fit" for j in range(20)]
    figure = Plots(facts_of(rng.normal(size=(11, 20)), names)).radar()
    assert figure.description.startswith("12 axes.")
    assert sum(word.startswith("cluster ") for word in words_of(figure)) == 8
    check_drawing(figure)


def test_no_line_of_a_radar_passes_over_an_unknown_value() -> None:
    profile = facts_of(MEANS, NAMES).result.profile
    assert profile is not None
    known = profile.known.copy()
    known[0, 0] = False
    facts = facts_of(MEANS, NAMES, profile=profile.model_copy(update={"known": known}))
    svg = Plots(facts).radar().svg
    shapes = re.findall(r'<path d="([^"]+)" stroke="#0072b2"', svg)
    assert len([shape for shape in shapes if shape.endswith("z")]) == 2
    assert len([shape for shape in shapes if not shape.endswith("z")]) == 2
    assert svg.count("<circle") == 11


def test_a_report_has_the_numbers_of_the_figures() -> None:
    page = html(facts_of(MEANS, NAMES))
    for figure in ("Profile of the clusters", "Radars of the", "Differences between pairs of"):
        assert f"<title>{figure}" in page
    assert "<td>-0.50</td><td>+1.00</td>" in page
    assert "<td>2</td><td>8</td><td>-1.50</td>" in page
