"""A coordinator with some entries."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from docs.hospitals import Hospitals
from docs.page import Page
from fedclust_service.usecases.audit.trail import verify_trail
from support.timeouts import eventually


@contextmanager
def around(page: Page) -> Iterator[None]:
    Hospitals(page).create("heart-2026")
    page.env["FEDCLUST_DATA_DIR"] = str(page.coordinator.settings.data_dir)

    store = page.coordinator.coordinator.store
    # The command would record that it verified.
    eventually(lambda: verify_trail(store).unsealed == 0)
    number, _, digest = verify_trail(store).head.partition(":")
    page.replace("1284", number)
    page.replace("5d41…", digest)
    yield
