"""A headless Chromium, for the PDF, the screenshots and the tests of pages."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

#: The shell draws no window of its own: a third less work for the same pages.
_NAMES = (
    "chromium-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
)
ABSENT = "no Chromium here: apt-get install --no-install-recommends chromium-headless-shell"


@contextmanager
def chromium() -> Iterator[Browser | None]:
    """Start Chromium until the block ends; None where there is none."""
    found = next((path for name in _NAMES if (path := shutil.which(name))), None)
    if found is None:
        yield None
        return
    # As root, in a container, Chromium's own sandbox cannot start.
    alone = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=alone)
        yield browser
        browser.close()
