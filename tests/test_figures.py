"""The figures of the documentation are what the code draws, and readers of every kind see them."""

from __future__ import annotations

import re
from collections.abc import Callable
from xml.etree import ElementTree

import pytest

import concept_figures
import protection_figures
import states
from diagrams import FIGURES, words_width, wrap
from fedclust.report.drawing import Figure

DRAWN: dict[str, Callable[[], Figure]] = {
    **concept_figures.FIGURES,
    **protection_figures.FIGURES,
    **states.FIGURES,
}


@pytest.mark.parametrize("name", DRAWN)
def test_a_figure_is_current_and_readable(name: str) -> None:
    drawn = DRAWN[name]().svg
    assert (FIGURES / f"{name}.svg").read_text("utf-8") == drawn + "\n", "run `make docs`"
    root = ElementTree.fromstring(drawn)  # noqa: S314 (our own)
    assert root.get("role") == "img"
    assert len(root.get("aria-label", "")) > 200
    assert min(float(size) for size in re.findall(r'font-size="([\d.]+)"', drawn)) >= 12
    assert "<script" not in drawn
    assert "href" not in drawn
    for element in root.iter("{http://www.w3.org/2000/svg}text"):
        if "transform" in element.attrib:  # it runs upwards
            continue
        width = words_width(element.text or "", float(element.get("font-size", "0")))
        before = {"start": 0.0, "middle": 0.5, "end": 1.0}[element.get("text-anchor", "start")]
        start = float(element.get("x", "0")) - before * width
        assert start >= 0.0, element.text
        assert start + width <= 720.0, element.text


def test_words_are_broken_where_the_line_is_full() -> None:
    assert wrap("one two\nthree", 1000) == ["one two", "three"]
    assert wrap("one two", 1) == ["one", "two"]
    assert len(wrap("i " * 30, 200)) < len(wrap("m " * 30, 200))
