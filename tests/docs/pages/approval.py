"""A session that a steward approves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from docs.hospitals import Hospitals
from docs.page import Page


@contextmanager
def around(page: Page) -> Iterator[None]:
    hospitals = Hospitals(page)
    hospitals.create("heart-2026")

    def read_the_code() -> None:
        """The steward types what the signed page says."""
        signed = (page.place / "review.html").read_text("utf-8")
        found = re.search(r"Approval code <b>([0-9a-f]+)", signed)
        name = 'heart-2026 --name "Dr Ruth Levi"'
        page.replace(name, f"{name} --code {found[1]}")
        page.replace("3f2a9bc177de", found[1])

    page.before("fedclust approve", read_the_code)
    page.before("site.participate", lambda: hospitals.others_take_part("heart-2026"))
    with hospitals.site() as site:
        page.names["site"] = site
        yield
    assert set(page.names["result"].labels_) == {0, 1}
