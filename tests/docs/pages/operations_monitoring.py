"""A coordinator with a session that has ended, and the operator's shell."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from docs.hospitals import Hospitals
from docs.page import Page
from support.server import service


@contextmanager
def around(page: Page) -> Iterator[None]:
    hospitals = Hospitals(page, sites=("north", "south", "west"), reader="ada")
    hospitals.create("heart-2026")
    hospitals.finish("heart-2026")
    data_dir = str(page.coordinator.settings.data_dir)
    said = service("audit", "verify", "--data-dir", data_dir).stdout
    (page.place / "noted-last-time").write_text(re.findall(r"head (\w+)", said)[0], "ascii")
    page.replace("/var/lib/fedclust", data_dir)
    page.env |= {"api": f"{page.url}/v1", "OPERATOR": page.coordinator.operator_token}
    yield
