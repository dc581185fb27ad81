"""A sweep of three sites, which takes place after its creation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from docs.hospitals import Hospitals
from docs.page import Page


@contextmanager
def around(page: Page) -> Iterator[None]:
    features = [{"name": "age"}, {"name": "chol"}]
    hospitals = Hospitals(page, features, sites=("a", "b", "c"), reader="ada")
    page.before("session result heart-k ", lambda: hospitals.finish("heart-k"))
    with hospitals.site() as site:
        page.names["site"] = site
        yield
    assert (page.place / "labels-5.csv").exists()
    assert page.names["result"].result.recommendation
