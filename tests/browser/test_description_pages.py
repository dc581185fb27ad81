"""``/docs`` and ``/help`` in a real browser: examples work, nothing is fetched from elsewhere."""

import json
import os
from typing import Any

import pytest
from playwright.sync_api import Locator, expect

from fedclust_service.http.docs import site_folder

from .conftest import Registered, Watched


def answered(answer: Locator, status: int) -> dict[str, Any]:
    """Return the body of an answer."""
    expect(answer.locator("tr.response td.response-col_status")).to_contain_text(str(status))
    read: dict[str, Any] = json.loads(answer.locator(".highlight-code code").first.inner_text())
    return read


def test_a_request_is_tried_out_without_a_token_and_with_one(
    registered: Registered, watched: Watched
) -> None:
    """That all examples can be sent as they are: `http/test_openapi.py`."""
    page, base_url = watched.page, registered.local.base_url
    page.goto(f"{base_url}/docs")
    block = page.locator("[id$=-whoami]")
    block.locator(".opblock-summary-control").first.click()
    block.get_by_role("button", name="Try it out").click()
    execute = block.get_by_role("button", name="Execute", exact=True)
    execute.click()
    answer = block.locator(".live-responses-table")
    assert answered(answer, 401)["type"] == "urn:fedclust:problem:unauthenticated"
    page.locator(".auth-wrapper .authorize").first.click()
    dialog = page.locator(".dialog-ux")
    dialog.locator("input").fill(registered.api.tokens["ada"])
    dialog.get_by_role("button", name="Apply credentials").click()
    dialog.locator(".btn-done").click()
    execute.click()
    assert answered(answer, 200)["name"] == "ada"
    assert watched.elsewhere(base_url) == []
    # The browser itself notes every answer of 400 and more.
    assert all("401 (Unauthorized)" in complaint for complaint in watched.complaints)


def test_the_documentation_works_under_the_policy_and_loads_nothing_from_elsewhere(
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
    page.get_by_role("navigation", name="Pages").get_by_text("Glossary").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Glossary")
    page.goto(f"{base_url}/help/search.html?q=quorum")
    expect(page.locator("#search-results li a").first).to_be_visible()
    expect(page.locator("#search-results .context").first).to_contain_text("quorum")
    assert watched.elsewhere(base_url) == []
    assert watched.complaints == []
