"""The tutorial of an hour: its files, its coordinator, and the figures that it shows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from docs.page import Page

FIGURES = Path(__file__).parents[3] / "docs" / "figures"
_APPROVE = 'approve tumours --name "Dr Ruth Levi"'


@contextmanager
def around(page: Page) -> Iterator[None]:
    page.file("four_hospitals.py", "load_breast_cancer")
    page.file("ada/tumours.json", '"n_clusters"')
    page.file("graz/columns.toml", "Radius_mm")
    page.file("compare.py", "Counter")
    page.serve_here()

    def read_the_code() -> None:
        """The steward types what the page says."""
        printed = (page.place / "aarhus" / "review.html").read_text("utf-8")
        code = re.search(r"Approval code <b>(\w{12})</b>", printed)
        page.replace(_APPROVE, f"{_APPROVE} --code {code[1]}")

    page.before(_APPROVE, read_the_code)
    yield
    for name in ("choice", "profile", "mix"):
        drawn, shown = page.place / f"{name}.svg", FIGURES / f"four_hospitals_{name}.svg"
        assert drawn.read_text("utf-8") == shown.read_text("utf-8"), name
