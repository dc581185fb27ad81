"""A coordinator that runs while its operator makes a backup."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from docs.page import Page


@contextmanager
def around(page: Page) -> Iterator[None]:
    copies = page.folder("/backup")
    page.replace("/var/lib/fedclust", str(page.coordinator.settings.data_dir))
    yield
    assert len(list(copies.iterdir())) == 1
