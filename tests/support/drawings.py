"""Figures: those kept in the repository are current, and all of them are readable."""

import re
from xml.etree import ElementTree

from diagrams import FIGURES
from fedclust.result.drawing import WIDTH, Figure, words_width

#: In pixels: on another processor the last digit of a drawn result may differ.
TOLERANCE = 0.3
_SPACE = "{http://www.w3.org/2000/svg}"
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def check_current(name: str, drawn: str) -> None:
    """AssertionError if the kept figure of a name is not what was drawn."""
    kept = (FIGURES / f"{name}.svg").read_text("utf-8").rstrip("\n")
    assert _NUMBER.sub("0", drawn) == _NUMBER.sub("0", kept), "run `make docs`"
    pairs = zip(_NUMBER.findall(drawn), _NUMBER.findall(kept), strict=True)
    assert all(abs(float(new) - float(old)) <= TOLERANCE for new, old in pairs), "run `make docs`"


def words_of(figure: Figure) -> list[str]:
    """Return the words in a drawing, in the order in which they were drawn."""
    root = ElementTree.fromstring(figure.svg)  # noqa: S314 (our own)
    return [element.text or "" for element in root.iter(f"{_SPACE}text")]


def check_drawing(figure: Figure) -> None:
    """AssertionError unless everybody can read a figure, and a page can hold it.

    It describes itself in words; letters have 12 pixels at least; words and rectangles stay inside;
    there are no ids, styles, scripts or links.
    """
    root = ElementTree.fromstring(figure.svg)  # noqa: S314 (our own)
    assert root.get("role") == "img"
    assert root.get("aria-label") == f"{figure.title}. {figure.description}"
    assert len(figure.description) > len(figure.title)
    assert not re.search(r"<style|<script|\s(style|id|href|on\w+)=|url\(|nan|inf\b", figure.svg)
    assert min(float(size) for size in re.findall(r'font-size="([\d.]+)"', figure.svg)) >= 12
    for element in root.iter(f"{_SPACE}text"):
        assert 0 <= float(element.get("y", "0")) <= figure.size[1], element.text
        if "transform" in element.attrib:  # it runs upwards
            continue
        width = words_width(element.text or "", float(element.get("font-size", "0")))
        before = {"start": 0.0, "middle": 0.5, "end": 1.0}[element.get("text-anchor", "start")]
        start = float(element.get("x", "0")) - before * width
        assert start >= 0.0, element.text
        assert start + width <= WIDTH, element.text
    for element in root.iter(f"{_SPACE}rect"):
        x, y, wide, high = (float(element.attrib[key]) for key in ("x", "y", "width", "height"))
        assert 0 <= x <= x + wide <= figure.size[0] + 0.1
        assert 0 <= y <= y + high <= figure.size[1] + 0.1
