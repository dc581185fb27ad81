"""The figures of the methods' pages show what the methods compute today."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from diagrams import FIGURES as FOLDER
from fedclust.methods.registry import BUILT_IN
from method_figures import FIGURES

#: In pixels: on another processor the last digit may differ.
TOLERANCE = 0.3
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def test_every_page_of_a_method_has_its_figure() -> None:
    assert FIGURES.keys() == {f"method_{name}" for name in BUILT_IN}
    for name in BUILT_IN:
        page = Path(FOLDER, "..", "methods", f"{name}.md").read_text("utf-8")
        assert f"](../figures/method_{name}.svg)" in page


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_what_its_method_computes(name: str) -> None:
    drawn, kept = FIGURES[name]().svg, (FOLDER / f"{name}.svg").read_text("utf-8").rstrip("\n")
    assert NUMBER.sub("0", drawn) == NUMBER.sub("0", kept), "run `make docs`"
    pairs = zip(NUMBER.findall(drawn), NUMBER.findall(kept), strict=True)
    assert all(abs(float(new) - float(old)) <= TOLERANCE for new, old in pairs), "run `make docs`"
    assert 'role="img"' in drawn
    assert min(float(size) for size in re.findall(r'font-size="([\d.]+)"', drawn)) >= 12
