"""A real Chromium, and all that it asked for and complained of."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Locator, Page, expect

from chromium import ABSENT, chromium
from operation_bodies import SITES
from support.api_caller import ApiCaller
from support.clock import ManualClock
from support.local_coordinator import LocalCoordinator, local_coordinator
from support.timeouts import TIMEOUT_S

WIDE = {"width": 1280, "height": 900}


@dataclass
class Watched:
    """A page, with every address that it asked for and every complaint of its console."""

    page: Page
    asked: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", self._note)

    def _note(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self.complaints.append(message.text)

    def elsewhere(self, base_url: str) -> list[str]:
        """Return the addresses that are not of this coordinator, or made by the page itself."""
        own = (f"{base_url}/", f"blob:{base_url}/", "data:")
        return [url for url in self.asked if not url.startswith(own)]


def signed_in(
    browser: Browser, base_url: str, token: str | None, *, script: bool = True
) -> BrowserContext:
    """Return a browser of its own in which somebody has signed in, or nobody."""
    context = browser.new_context(base_url=base_url, viewport=WIDE, java_script_enabled=script)
    context.set_default_timeout(TIMEOUT_S * 1_000)
    if token is not None:
        headers, form = {"Origin": base_url}, {"token": token}
        answer = context.request.post("/ui/sign-in", form=form, headers=headers, max_redirects=0)
        assert answer.status == 303, answer.text()
    return context


def follow(page: Page, control: Locator) -> None:
    """Click what leads to another page, and wait until that has loaded, with its scripts.

    A click alone returns when the address has changed, while the page is read.
    """
    page.wait_for_load_state()
    with page.expect_event("load"):
        control.click()


@dataclass
class Registered:
    """A coordinator at which the sites and the analyst of the story are registered."""

    local: LocalCoordinator
    api: ApiCaller


# Until it ends, Playwright's event loop runs in this thread: asyncio.run of other tests would fail.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Start Chromium; without one the tests are skipped, but never in CI."""
    with chromium() as running:
        if running is None:
            if os.environ.get("CI"):
                pytest.fail(ABSENT)
            pytest.skip(ABSENT)
        expect.set_options(timeout=TIMEOUT_S * 1_000)
        yield running


@pytest.fixture
def watched(browser: Browser) -> Iterator[Watched]:
    """Return a fresh page."""
    context = browser.new_context(viewport=WIDE)
    context.set_default_timeout(TIMEOUT_S * 1_000)
    yield Watched(context.new_page())
    context.close()


@pytest.fixture
def registered(tmp_path: Path) -> Iterator[Registered]:
    """Return a coordinator that knows people and no session."""
    with local_coordinator(tmp_path, clock=ManualClock(), threads=True) as local:
        api = ApiCaller.found(local, SITES)
        yield Registered(local, api)
