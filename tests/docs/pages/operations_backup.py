"""A coordinator that runs while its operator makes a backup."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from docs.page import Page


@contextmanager
def around(page: Page) -> Iterator[None]:
    copies = page.folder("/backup")
    page.replace("/var/lib/fedclust", str(page.coordinator.settings.data_dir))
    page.register("sites", "cleveland")
    page.save_token(page.operator_token, "operator.token")
    page.env["FEDCLUST_COORDINATOR"] = page.url
    page.env["FEDCLUST_TOKEN_FILE"] = "operator.token"
    yield
    (accepted,) = page.operator.site_tables("cleveland")
    assert accepted.number == 7
    assert len(list(copies.iterdir())) == 1
