"""A coordinator with some entries."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from docs.hospitals import Hospitals
from docs.page import Page
from support.server import service
from support.timeouts import eventually


@contextmanager
def around(page: Page) -> Iterator[None]:
    Hospitals(page).create("heart-2026")
    page.env["FEDCLUST_DATA_DIR"] = str(page.coordinator.settings.data_dir)

    def said() -> str:
        return service("audit", "verify", env=page.env).stdout

    eventually(lambda: " 0 not yet" in said())
    n_entries, head = re.findall(r"^(\d+) entries.* head ([0-9a-f]{64})", said())[0]
    page.replace("1284", n_entries)
    page.replace("5d41…", head)
    yield
