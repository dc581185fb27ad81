"""Rows of three sites for a notebook, and a session that has ended."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from xml.etree import ElementTree

import numpy as np
import pytest

from docs.hospitals import Hospitals
from docs.page import Page
from fedclust.errors import UsageError
from fedclust.result.one_cloud import chosen_text
from support.site_rows import blobs

CENTRES = np.array([[0.0, 0.0], [6.0, 0.0], [0.0, 9.0]])


@contextmanager
def around(page: Page) -> Iterator[None]:
    sites = blobs(CENTRES, [40, 50, 45], spread=0.5).values()
    page.names["rows"] = dict(zip(("berlin", "oslo", "porto"), sites, strict=True))
    hospitals = Hospitals(page, [{"name": "x0"}, {"name": "x1"}], reader="ada")
    hospitals.create("heart-2026")
    page.before("session result", lambda: hospitals.finish("heart-2026"))
    yield
    for name in ("sizes.svg", "choice.svg"):
        ElementTree.parse(page.place / name)  # noqa: S314
    assert (page.place / "clusters.html").stat().st_size > 1000
    assert (page.place / "labels.csv").exists()
    check_results(page)


def check_results(page: Page) -> None:
    """The figures and errors of the page's results are what the page says."""
    result, three = page.names["result"], page.names["three"]
    assert three.cluster_centers_.shape == (3, 2)
    assert len(page.names["found"].only_second) == 1
    assert f"number of clusters ({chosen_text(result.result)})" in result.plot.choice().svg
    assert ">persons, by cluster<" in three.plot.sizes().svg
    two = result.at(2).plot.centroids().svg
    # Several K: the sites sent cells, so the clusters are on the axes of all persons.
    assert "Map of the clusters and sites" in two
    assert {"0", "1"} <= set(re.findall(r'font-weight="600">(\d)</text>', two))
    with pytest.raises(AttributeError, match="There are: profile, sizes, "):
        three.plot.dendrogram  # noqa: B018
    with pytest.raises(UsageError, match=r"name the figure: plot\.profile"):
        three.plot()
    with pytest.raises(UsageError, match=r"each figure is a method: plot\.profile\(\)"):
        three.plot("profile")
    with pytest.raises(UsageError, match='did you mean "profile"'):
        three.plot("profiles")
    section = page.source.partition("## In a notebook")[2].partition("\n## ")[0]
    for name in [name for name in dir(three.plot) if not name.startswith("_")]:
        assert f"`{name}`" in section
