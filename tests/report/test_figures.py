"""Figures for every reader: without styles, in colours that stay distinct, with readable ink."""

import re
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedclust import simulate
from fedclust.result.drawing import PALETTE, Figure, ink_on, labels, line_chart, tag, ticks
from fedclust.result.facts import Facts
from fedclust.result.figures.profile import difference_colour
from fedclust.result.page import sections
from support.method_variants import TRIED
from support.site_rows import blobs

#: Machado, Oliveira and Fernandes, "A physiologically-based model for simulation of color vision
#: deficiency", IEEE TVCG 15(6), 2009: severity 1, on linear RGB.
SEEN_BY = {
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
    "all cones": [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]],
}
#: Linear sRGB to XYZ.
XYZ = [
    [0.4124564, 0.3575761, 0.1804375],
    [0.2126729, 0.7151522, 0.0721750],
    [0.0193339, 0.1191920, 0.9503041],
]


def _linear(colour: str) -> NDArray[np.float64]:
    value = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def _lab(linear: NDArray[np.float64]) -> NDArray[np.float64]:
    part = XYZ @ np.clip(linear, 0.0, 1.0) / np.sum(XYZ, axis=1)
    f = np.where(part > (6 / 29) ** 3, np.cbrt(part), part * (29 / 6) ** 2 / 3 + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def _contrast(one: str, other: str) -> float:
    light, dark = sorted((float(np.dot(XYZ[1], _linear(c))) for c in (one, other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("eyes", SEEN_BY)
def test_neighbouring_colours_stay_distinct(eyes: str) -> None:
    seen = [_lab(SEEN_BY[eyes] @ _linear(colour)) for colour in (*PALETTE, PALETTE[0])]
    apart = [float(np.linalg.norm(one - other)) for one, other in pairwise(seen)]
    # A difference of 2.3 is just noticeable.
    assert min(apart) > 15


def test_ink_on_a_heat_map_and_on_bars_is_readable() -> None:
    for difference in (None, *np.linspace(-3, 3, 601).tolist()):
        fill, ink = difference_colour(difference)
        assert _contrast(fill, ink) >= 4.5, difference
    for colour in PALETTE:
        assert _contrast(colour, ink_on(colour)) >= 4.5
    # A thin blue over white is light.
    assert (ink_on("#0072b2"), ink_on("#0072b2", 0.3)) == ("#ffffff", "#000000")


@pytest.mark.parametrize("method", TRIED)
def test_no_section_of_any_method_has_a_style_an_id_or_a_script(method: str) -> None:
    options: dict[str, Any] = dict(TRIED[method].variants[0])
    sites = blobs(np.array([[0.0, 0.0], [6.0, 0.0], [0.0, 9.0]]), [12, 12, 12], spread=0.5)
    bounded = [{"name": name, "lower": -9.0, "upper": 20.0} for name in ("u", "v")]
    config = {"n_clusters": 2, **options}
    if method == "dual":  # A search as short as can be.
        config["node_limit"] = 2
    found = simulate(method, sites, config=config, features=bounded, seed=0, progress=False)
    shown = sections(Facts(found.result, found.definition))
    text = "".join(section.html for section in shown)

    assert not re.search(r"<style|<script|<h[12]|\s(style|id|class=\"?[^\"]*:|on\w+)=", text)
    keys = [section.key for section in shown]
    assert len(set(keys)) == len(keys)
    assert keys[0] == "participants"
    assert all(re.fullmatch("[a-z]+", key) for key in keys)
    assert text.count("<svg") == text.count("<title>") == text.count("<desc>") >= 1


def test_a_file_has_the_title_above_the_drawing() -> None:
    mark = tag("rect", x=0.0, y=0.0, width=9.0, height=9.0)
    figure = Figure([mark], 100, "a < b", "9 & more")

    assert "<text" not in figure.svg
    assert 'viewBox="0 0 720 100"' in figure.svg
    assert 'viewBox="0 0 720 136"' in figure.titled_svg
    assert ">a &lt; b</text>" in figure.titled_svg
    assert mark in figure.titled_svg
    assert 'aria-label="a &lt; b. 9 &amp; more"' in figure.svg


@pytest.mark.parametrize("low", [0.0, -3.0, 2088.3, 1e-9, 5e11])
@pytest.mark.parametrize("span", [0.0, 1e-6, 0.02, 1.0, 1e4])
def test_marks_of_an_axis_are_few_and_inside_and_have_different_numbers(
    low: float, span: float
) -> None:
    marks = ticks(low, low + span)
    shown = labels(marks)
    assert 1 <= len(set(shown)) == len(marks) <= 7
    slack = 1e-9 * (abs(low) + span)
    assert all(low - slack <= mark <= low + span + slack for mark in marks)
    assert np.allclose([float(label) for label in shown], marks, rtol=1e-3, atol=span / 5)


def test_what_differs_by_rounding_is_a_flat_line() -> None:
    values = [2088.3, np.nextafter(2088.3, 3000.0), 2088.3 * (1 + 1e-12)]

    def heights(ys: list[float]) -> set[str]:
        drawn = line_chart("t", "round", "inertia", {"a": list(enumerate(ys))}).svg
        return set(re.findall(r' cy="([0-9.]+)"', drawn))

    assert len(heights(values)) == 1
    assert len(heights([2088.3, 2088.31, 2088.32])) == 3
