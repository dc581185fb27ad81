"""The page on notebooks: its code runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from fedclust.errors import UsageError
from support.site_rows import blobs

PAGE = Path(__file__).parents[2] / "docs" / "result.md"
CENTRES = np.array([[0.0, 0.0], [6.0, 0.0], [0.0, 9.0]])


def test_the_code_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pages = PAGE.read_text("utf-8").partition("## In a notebook")[2].partition("## New rows")[0]
    section = pages.partition("\n## ")[0]
    blocks = re.findall(r"```python\n(.*?)```", pages, re.DOTALL)
    assert len(blocks) == 5
    sites = blobs(CENTRES, [40, 50, 45], spread=0.5)
    names: dict[str, Any] = {
        "rows": dict(zip(("berlin", "oslo", "porto"), sites.values(), strict=True))
    }
    for block in blocks:
        exec(block, names)  # noqa: S102

    assert names["three"].cluster_centers_.shape == (3, 2)
    assert len(names["found"].only_second) == 1
    for figure in ("sizes.svg", "choice.svg"):
        ElementTree.parse(tmp_path / figure)  # noqa: S314
    assert (tmp_path / "clusters.html").stat().st_size > 1000
    assert "is recommended)" in names["result"].plot.choice().svg
    assert ">persons<" in names["three"].plot.sizes().svg
    two = names["result"].at(2).plot.centroids().svg
    assert "the line through the two centroids" in two
    assert "0 %" not in two
    # One axis: both centroids stand at one height, and no number stands beside a second one.
    circles = re.findall(r'<circle cx="([0-9.]+)" cy="([0-9.]+)"', two)
    assert len({cx for cx, _ in circles}) == 2
    assert len({cy for _, cy in circles}) == 1
    assert 'text-anchor="end"' not in two
    assert re.findall(r'font-weight="600">(\d)</text>', two) == ["0", "1"]
    with pytest.raises(AttributeError, match=r"there are: plot\.profile\(\), plot\.sizes"):
        names["three"].plot.dendrogram  # noqa: B018
    with pytest.raises(UsageError, match=r"name the figure: plot\.profile"):
        names["three"].plot()
    shown = {name for name in dir(names["three"].plot) if not name.startswith("_")}
    for name in shown:
        assert f"`{name}`" in section
