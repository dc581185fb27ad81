"""An analyst whose session three hospitals answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from docs.hospitals import AGE, CHOL, SEX, Hospitals
from docs.page import Page


@contextmanager
def around(page: Page) -> Iterator[None]:
    hospitals = Hospitals(page, [AGE, SEX, CHOL], reader="ada")
    page.save_token(hospitals.analyst_token, "analyst.token")
    page.file("heart.json", '"Coronary patients at three hospitals"')
    page.before("session watch", lambda: hospitals.finish("heart-2026"))
    yield
