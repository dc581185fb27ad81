"""A machine with a coordinator, which the page's own commands start."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from docs.page import Page


@contextmanager
def around(page: Page) -> Iterator[None]:
    page.folder("/var/lib/fedclust")
    page.serve_here()
    yield
