"""``/docs`` and ``/help`` in a real browser: examples work, nothing is fetched from elsewhere."""

import json
import os
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from fedclust_service.http.docs import site_folder
from operation_bodies import SESSION

from .conftest import Registered, Watched


def authorize(page: Page, token: str) -> None:
    """Enter a token in the dialog, in place of the one before."""
    page.locator(".auth-wrapper .authorize").first.click()
    dialog = page.locator(".dialog-ux")
    expect(dialog).to_be_visible()
    leave = dialog.locator("button", has_text="Logout")
    if leave.count():
        leave.click()
    dialog.locator("input").fill(token)
    dialog.get_by_role("button", name="Apply credentials").click()
    dialog.locator(".btn-done").click()
    expect(dialog).to_have_count(0)


def try_out(page: Page, operation: str, parameters: dict[str, str] | None = None) -> Locator:
    """Execute an operation with what is filled in already; return where the answer is shown."""
    block = page.locator(f"[id$=-{operation}]")
    block.locator(".opblock-summary-control").first.click()
    block.get_by_role("button", name="Try it out").click()
    for name, value in (parameters or {}).items():
        block.locator(f"tr[data-param-name='{name}'] input").fill(value)
    block.get_by_role("button", name="Execute", exact=True).click()
    answer = block.locator(".live-responses-table")
    expect(answer).to_be_visible()
    return answer


def answered(answer: Locator, status: int) -> dict[str, Any]:
    """Return the body of an answer."""
    expect(answer.locator("tr.response td.response-col_status")).to_contain_text(str(status))
    read: dict[str, Any] = json.loads(answer.locator(".highlight-code code").first.inner_text())
    return read


@pytest.mark.long
def test_a_session_is_tried_out_from_create_to_submit(
    registered: Registered, watched: Watched
) -> None:
    """With the bodies and parameters that the page fills in: nothing is typed but tokens."""
    page, api = watched.page, registered.api
    base_url = registered.local.base_url
    page.goto(f"{base_url}/docs")

    authorize(page, api.tokens["ada"])
    created = answered(try_out(page, "create_session"), 201)
    assert (created["name"], created["state"]) == (SESSION, "recruiting")

    authorize(page, api.tokens["north"])
    joined = answered(try_out(page, "join_session"), 201)
    assert (joined["site"], joined["state"]) == ("north", "joined")
    for site in ("south", "west"):
        api.join(site, SESSION)

    task = answered(try_out(page, "get_task"), 200)
    assert (task["status"], task["round"]) == ("work", 1)
    receipt = answered(try_out(page, "put_submission"), 201)
    assert (receipt["session"], receipt["site"], receipt["round"]) == (SESSION, "north", 1)

    # What the coordinator stored, not what the page says of it.
    assert api.ok("GET", f"/v1/sessions/{SESSION}/task", "north")["status"] == "answered"
    answers = "".join(page.locator(".live-responses-table").all_inner_texts())
    assert "received_at" in answers
    assert not [token for token in api.tokens.values() if token in answers]
    assert watched.elsewhere(base_url) == []
    assert watched.complaints == []


def test_a_refusal_is_shown_as_a_problem(registered: Registered, watched: Watched) -> None:
    page, base_url = watched.page, registered.local.base_url
    page.goto(f"{base_url}/docs")
    problem = answered(try_out(page, "whoami"), 401)
    assert problem["type"] == "urn:fedclust:problem:unauthenticated"
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
