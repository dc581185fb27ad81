"""An operator who registers addresses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from docs.page import Page


@contextmanager
def around(page: Page) -> Iterator[None]:
    page.save_token(page.operator_token, "operator.token")
    page.env["FEDCLUST_COORDINATOR"] = page.url
    page.env["FEDCLUST_TOKEN_FILE"] = "operator.token"
    yield
