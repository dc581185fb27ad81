"""A site's table of groups, and a session that gets a second one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from docs.hospitals import AGE, CHOL, Hospitals
from docs.page import Page


@contextmanager
def around(page: Page) -> Iterator[None]:
    hospitals = Hospitals(page, [AGE, CHOL, {"name": "trestbps", "lower": 50, "upper": 250}])
    hospitals.create("heart-2027")
    page.folder("/backup")
    (page.place / "id.txt").write_text("p7\n", "utf-8")
    page.before("participate", lambda: hospitals.others_take_part("heart-2027"))
    yield
