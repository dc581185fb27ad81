"""An analyst with a completed session of which a paper is written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from docs.hospitals import Hospitals
from docs.page import Page


@contextmanager
def around(page: Page) -> Iterator[None]:
    hospitals = Hospitals(page, [{"name": "x0"}, {"name": "x1"}], reader="ada")
    hospitals.create("heart-2026")
    hospitals.finish("heart-2026")
    yield
    assert page.names["result"].methods_text().startswith("We clustered 180 persons of 3 sites")
    assert (page.place / "heart.bib").read_text("utf-8").startswith("@misc{fedclust,")
