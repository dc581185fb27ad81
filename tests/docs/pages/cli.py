"""An agent that answers one session."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from docs.hospitals import Hospitals
from docs.page import Page


@contextmanager
def around(page: Page) -> Iterator[None]:
    hospitals = Hospitals(page)
    hospitals.create("heart-2026")
    data = page.folder("/data")
    (page.place / "cohort.csv").rename(data / "cohort.csv")
    page.before("fedclust agent add", lambda: hospitals.others_take_part("heart-2026"))
    written = [data / "labels.csv", data / "heart.fedclust"]
    page.in_another_terminal(
        r"^fedclust agent$", lambda: all(path.exists() for path in written), ends=False
    )
    yield
