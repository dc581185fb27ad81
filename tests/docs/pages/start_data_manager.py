"""A hospital that is invited to a session."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from docs.hospitals import Hospitals
from docs.page import Page


@contextmanager
def around(page: Page) -> Iterator[None]:
    hospitals = Hospitals(page)
    page.save_token(hospitals.tokens["cleveland"], "token")
    hospitals.create("heart-2026")
    page.before("fedclust participate", lambda: hospitals.others_take_part("heart-2026"))
    yield
