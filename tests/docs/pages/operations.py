"""A machine with a coordinator, which the page's own commands start."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from docs.hospitals import Hospitals
from docs.page import Page
from support.server import service


@contextmanager
def around(page: Page) -> Iterator[None]:
    data_dir = page.folder("/var/lib/fedclust")
    page.folder("/backup")
    page.serve_here()

    def finish_a_session() -> None:
        hospitals = Hospitals(page, sites=("north", "south", "west"))
        hospitals.create("heart-2026")
        hospitals.finish("heart-2026")
        said = service("audit", "verify", "--data-dir", str(data_dir)).stdout
        (page.place / "noted-last-time").write_text(re.findall(r"head (\w+)", said)[0], "ascii")

    page.before("session watch", finish_a_session)
    page.before("api=", lambda: page.terminal.run(f"OPERATOR={page.operator_token}"))
    yield
