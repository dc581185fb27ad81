"""Every page in every role: it loads from here alone, complains of nothing, and can be read."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from support.page_list import PAGES
from support.showcase import Showcase, showcase
from support.timeouts import TIMEOUT_S

from . import axe
from .conftest import Watched

WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 375, "height": 812}


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Showcase]:
    with showcase(tmp_path_factory.mktemp("showcase")) as made:
        yield made


@pytest.fixture(scope="module")
def readers(browser: Browser, shown: Showcase) -> Iterator[dict[str, BrowserContext]]:
    """A signed-in browser for each role."""
    contexts = {}
    for name in PAGES:
        contexts[name] = context = browser.new_context(viewport=WIDE)
        context.set_default_timeout(TIMEOUT_S * 1_000)
        if name != "visitor":
            sign_in(context.new_page(), shown, name)
    yield contexts
    for context in contexts.values():
        context.close()


def sign_in(page: Page, shown: Showcase, name: str) -> None:
    """Sign in through the form."""
    page.goto(f"{shown.local.base_url}/ui/sign-in?next=/ui/account")
    page.get_by_label("Your token").fill(shown.tokens[name])
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("button", name="Sign out", exact=True)).to_be_visible()


@pytest.mark.parametrize(
    ("name", "page_name"), [(name, page) for name, pages in PAGES.items() for page in pages]
)
def test_a_page_can_be_read_by_everybody(
    shown: Showcase, readers: dict[str, BrowserContext], name: str, page_name: str
) -> None:
    watched = Watched(readers[name].new_page())
    page, base_url = watched.page, shown.local.base_url
    answer = page.goto(f"{base_url}{PAGES[name][page_name]}")
    assert answer is not None
    assert answer.status == 200
    assert page.locator("h1").count() == 1
    assert "{{" not in page.locator("body").inner_text().replace("{{ 7 * 7 }}", "")
    assert axe.found(page) == []
    page.emulate_media(color_scheme="dark")
    assert axe.found(page, "color-contrast") == []
    page.set_viewport_size(PHONE)
    assert page.evaluate("() => document.documentElement.scrollWidth") <= PHONE["width"]
    assert watched.elsewhere(base_url) == []
    assert watched.complaints == []
    page.close()
