"""An operator with a token."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from docs.page import Page


@contextmanager
def around(page: Page) -> Iterator[None]:
    page.save_token(page.operator_token, "operator.token")
    yield
