"""A site that takes part by itself, and by its agent."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from docs.hospitals import Hospitals
from docs.page import Page


@contextmanager
def around(page: Page) -> Iterator[None]:
    hospitals = Hospitals(page)
    hospitals.create("heart-2026")
    data = page.folder("/data")
    shutil.copy(page.place / "cohort.csv", data)
    page.save_token(hospitals.tokens["cleveland"], "site.token")
    page.before("fedclust participate", lambda: hospitals.others_take_part("heart-2026"))
    written = [data / "labels.csv", data / "heart.fedclust"]
    page.in_another_terminal(
        r"^fedclust agent$", lambda: all(path.exists() for path in written), ends=False
    )
    yield
