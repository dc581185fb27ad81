"""An analyst with a completed session."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager

from docs.page import Page
from support.api_caller import ApiCaller

SITES = ("north", "south", "west")


@contextmanager
def around(page: Page) -> Iterator[None]:
    api = ApiCaller(page.url, page.coordinator.operator_token)
    api.register("sites", *SITES)
    api.register("analysts", "ada")
    page.save_token(api.tokens["ada"], "analyst.token")
    api.define("ada", "heart-2026", list(SITES))
    for site in SITES:
        api.join(site, "heart-2026")
    assert api.finish("heart-2026", SITES) == "completed"
    page.env["FEDCLUST_COORDINATOR"] = page.url
    page.env["FEDCLUST_TOKEN_FILE"] = str(page.place / "analyst.token")
    yield
    with zipfile.ZipFile(page.place / "heart.zip") as crate:
        assert set(crate.namelist()) >= {"report.html", "definition.json", "SHA256SUMS"}
