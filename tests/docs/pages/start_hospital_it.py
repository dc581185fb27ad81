"""A hospital with a token."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from docs.hospitals import Hospitals
from docs.page import Page


@contextmanager
def around(page: Page) -> Iterator[None]:
    page.save_token(Hospitals(page).tokens["cleveland"], "token")
    yield
