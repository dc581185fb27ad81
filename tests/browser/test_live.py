"""The page of a session keeps up with it, without being loaded again."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from operation_bodies import SITES
from support.timeouts import eventually

from .conftest import Registered, Watched, signed_in

SESSION = "heart"


@pytest.fixture
def watching(registered: Registered, browser: Browser) -> Iterator[Watched]:
    """The analyst looks at a session whose first round collects answers."""
    api, base_url = registered.api, registered.local.base_url
    api.begin("ada", SESSION, SITES)
    context = signed_in(browser, base_url, api.tokens["ada"])
    watched = Watched(context.new_page())
    with watched.page.expect_response(lambda answer: "/events" in answer.url):
        watched.page.goto(f"/ui/sessions/{SESSION}")
    # Loading the page again would lose it.
    watched.page.evaluate("() => { window.loadedOnce = true; }")
    yield watched
    context.close()


def site_row(page: Page, site: str) -> Locator:
    """Return the row of the table of sites."""
    return page.locator("#sites tbody tr").filter(has=page.get_by_role("rowheader", name=site))


def test_a_page_follows_the_rounds_to_the_result(registered: Registered, watching: Watched) -> None:
    page = watching.page
    first, second, last = SITES
    expect(page.locator("#now")).to_contain_text("Round 1 collects: 0 of 3")
    registered.api.send(SESSION, first)
    expect(site_row(page, first)).to_contain_text("answered")
    expect(page.locator("#now")).to_contain_text("1 of 3")
    registered.api.send(SESSION, second)
    expect(site_row(page, second)).to_contain_text("answered")
    expect(site_row(page, last)).to_contain_text("waiting")
    expect(page.locator("#now")).to_contain_text(f"{last} has until")
    registered.api.send(SESSION, last)
    expect(page.locator("#now")).to_contain_text("Round 2 collects: 0 of 3")
    expect(page.locator("#rounds tbody tr")).to_have_count(2)
    assert registered.api.finish(SESSION, SITES) == "completed"
    expect(page.locator("#state")).to_have_text("completed")
    expect(page.get_by_role("link", name="Result", exact=True)).to_be_visible()
    # The stream has ended, and nothing opens it again.
    expect(page.locator("#stream")).to_have_count(0)
    eventually(lambda: page.evaluate("() => stream.readyState === EventSource.CLOSED"))
    assert page.evaluate("() => window.loadedOnce")
    assert len([url for url in watching.asked if "/events" in url]) == 1
    assert watching.elsewhere(registered.local.base_url) == []
    assert watching.complaints == []


def test_a_page_whose_sign_in_is_revoked_leads_to_the_form(
    registered: Registered, watching: Watched
) -> None:
    page, operator = watching.page, registered.local.operator_token
    first, second, _ = SITES
    registered.api.send(SESSION, first)
    expect(site_row(page, first)).to_contain_text("answered")
    (token,) = registered.api.ok("GET", "/v1/analysts/ada", operator)["tokens"]
    registered.api.ok("DELETE", f"/v1/analysts/ada/tokens/{token['id']}", operator)
    registered.api.send(SESSION, second)
    expect(page.get_by_role("alert").filter(has_text="revoked")).to_be_visible()
    expect(page.get_by_text(first)).to_have_count(0)
    page.get_by_label("Your token").fill(registered.api.tokens[first])
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="This site")).to_be_visible()
    # The browser itself notes every answer of 400 and more, and htmx a stream that ended.
    noted = ("401 (Unauthorized)", "[object Event]")
    assert all(complaint.endswith(noted) for complaint in watching.complaints)


def test_many_open_pages_leave_connections_for_each_other(
    registered: Registered, watching: Watched
) -> None:
    first, context = watching.page, watching.page.context
    pages = [first, *(context.new_page() for _ in range(6))]
    for page in pages[1:]:
        page.clock.install()
        page.goto(f"/ui/sessions/{SESSION}")
    assert not any(page.evaluate("() => document.hidden") for page in pages)
    registered.api.send(SESSION, SITES[0])
    expect(site_row(first, SITES[0])).to_contain_text("answered")
    last = pages[-1]
    last.clock.fast_forward(10_000)
    expect(site_row(last, SITES[0])).to_contain_text("answered")

    def streams() -> int:
        last.clock.fast_forward(10_000)
        return sum(page.evaluate("() => stream !== null") for page in pages)

    eventually(lambda: streams() == 4)
    # Another page takes the place of one that is closed.
    pages.remove(first)
    first.close()
    eventually(lambda: streams() == 4)


def test_an_open_result_shows_new_names(registered: Registered, browser: Browser) -> None:
    api, base_url = registered.api, registered.local.base_url
    api.begin("ada", SESSION, SITES)
    assert api.finish(SESSION, SITES) == "completed"
    context = signed_in(browser, base_url, api.tokens["ada"])
    page = context.new_page()
    with page.expect_response(lambda answer: "/names/events" in answer.url):
        page.goto(f"/ui/sessions/{SESSION}/result")
    page.evaluate("() => { window.loadedOnce = true; }")
    for names in (["Elderly", "Young"], ["", "Frail"]):
        api.ok("PATCH", f"/v1/sessions/{SESSION}", "ada", json={"cluster_names": names})
        expect(page.locator("#report .card h2").nth(1)).to_have_text(names[1])
    expect(page.locator("#report .card h2").first).to_have_text("Cluster 0")
    assert page.evaluate("() => window.loadedOnce")
    context.close()
