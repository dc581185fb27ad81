"""The built documentation in a real browser, as the coordinator serves it."""

from __future__ import annotations

import os

import pytest
from playwright.sync_api import expect

from fedclust_service.http.help_pages import site_folder

from .conftest import Registered, Watched


def test_pages_work_under_the_policy_and_load_nothing_from_elsewhere(
    registered: Registered, watched: Watched
) -> None:
    if site_folder() is None:
        if os.environ.get("CI"):
            pytest.fail("`make docs-site` has to come first")
        pytest.skip("the documentation is not built: make docs-site")
    page, base_url = watched.page, registered.local.base_url
    page.goto(f"{base_url}/help/")
    expect(page.get_by_role("heading", level=1)).to_contain_text("fedclust")
    pictures = "() => [...document.images].every((image) => image.naturalWidth > 0)"
    assert page.evaluate(pictures)
    page.get_by_role("navigation", name="Pages").get_by_text("The data model").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("The data model")
    page.goto(f"{base_url}/help/search.html?q=quorum")
    expect(page.locator("#search-results li a").first).to_be_visible()
    expect(page.locator("#search-results .context").first).to_contain_text("quorum")
    assert watched.elsewhere(base_url) == []
    assert watched.complaints == []
