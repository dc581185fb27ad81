"""An operator reads that a site's table was refused, and accepts what the site has."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import Browser, expect

from operation_bodies import SITES

from . import axe
from .conftest import Registered, Watched, signed_in

TABLE = "5b0a0ad3f5f0443fbd2f3a4a8f6f7a3e"


def test_a_refused_table_is_found_and_accepted(registered: Registered, browser: Browser) -> None:
    api, base_url, site = registered.api, registered.local.base_url, SITES[0]

    def join(session: str, *letters: str) -> int:
        heads: dict[str, Any] = {"first": 1, "heads": [each * 16 for each in letters]}
        body = api.participation(site, session) | {"table_id": TABLE, "heads": heads}
        path = f"/v1/sessions/{session}/participation"
        return api.request("PUT", path, site, json=body).status_code

    for session in ("one", "two"):
        api.define("ada", session, SITES)
    assert (join("one", "a", "b", "c"), join("two", "a", "d")) == (201, 409)
    context = signed_in(browser, base_url, registered.local.operator_token)
    watched = Watched(context.new_page())
    page = watched.page
    page.goto(f"{base_url}/ui/overview")
    concern = f"Site {site} cannot join: its protected table does not continue what was accepted."
    expect(page.get_by_text(concern, exact=True)).to_be_visible()
    expect(
        page.get_by_text("its table ends with change 2, and change 3 was accepted")
    ).to_be_visible()
    page.get_by_role("link", name="Open site :").click()
    page.get_by_label("Table", exact=True).fill(TABLE)
    page.get_by_label("Number of its last change").fill("2")
    head = page.get_by_label("Head of that change")
    head.fill("d" * 15)
    accept = page.get_by_role("button", name="Accept this chain")
    accept.click()
    # What was typed stays, and the fault is said at its field.
    expect(head).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_label("Table", exact=True)).to_have_value(TABLE)
    assert axe.found(page) == []
    head.fill("d" * 16)
    accept.click()
    expect(page.get_by_text("Accepted: the site can join with this table.")).to_be_visible()
    expect(page.get_by_role("row").filter(has_text=TABLE)).to_contain_text("d" * 16)
    page.goto(f"{base_url}/ui/overview")
    expect(page.get_by_text(concern, exact=True)).to_have_count(0)
    assert join("two", "a", "d") == 201
    assert watched.elsewhere(base_url) == []
    # Chromium notes the refused form, whose status is 422.
    assert all("422" in each for each in watched.complaints)
    context.close()
