"""The figures of the methods' pages show what the methods compute today."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from diagrams import FIGURES as FOLDER
from fedclust.methods.registry import BUILT_IN
from method_figures import FIGURES
from support.drawings import check_current


def test_every_page_of_a_method_has_its_figure() -> None:
    assert FIGURES.keys() == {f"method_{name}" for name in BUILT_IN}
    for name in BUILT_IN:
        page = Path(FOLDER, "..", "methods", f"{name}.md").read_text("utf-8")
        assert f"](../figures/method_{name}.svg)" in page


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_what_its_method_computes(name: str) -> None:
    drawn = FIGURES[name]().svg
    check_current(name, drawn)
    assert 'role="img"' in drawn
    assert min(float(size) for size in re.findall(r'font-size="([\d.]+)"', drawn)) >= 12
