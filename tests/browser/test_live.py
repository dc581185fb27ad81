"""The page of a session keeps up with it, without being loaded again."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from operation_bodies import SITES

from .conftest import Registered, Watched, signed_in

SESSION = "heart"


@pytest.fixture
def watching(registered: Registered, browser: Browser) -> Iterator[Watched]:
    """The analyst looks at a session whose first round collects answers."""
    api, base_url = registered.api, registered.local.base_url
    api.begin("ada", SESSION, SITES)
    context = signed_in(browser, base_url, api.tokens["ada"])
    watched = Watched(context.new_page())
    watched.page.clock.install()
    watched.page.goto(f"/ui/sessions/{SESSION}")
    # Loading the page again would lose it.
    watched.page.evaluate("() => { window.loadedOnce = true; }")
    yield watched
    context.close()


def site_row(page: Page, site: str) -> Locator:
    """Return the row of the table of sites."""
    return page.locator("#sites tbody tr").filter(has=page.get_by_role("rowheader", name=site))


def asked_again(page: Page) -> int:
    """Let the page ask what has changed; return the status of the answer."""
    with page.expect_response(lambda answer: "/live?" in answer.url) as answer:
        page.clock.fast_forward(3_000)
    return answer.value.status


def test_a_page_follows_the_rounds_to_the_result(registered: Registered, watching: Watched) -> None:
    page = watching.page
    first, second, last = SITES
    expect(page.locator("#now")).to_contain_text("Round 1 collects: 0 of 3")
    registered.api.send(SESSION, first)
    asked_again(page)
    expect(site_row(page, first)).to_contain_text("answered")
    expect(page.locator("#now")).to_contain_text("1 of 3")
    registered.api.send(SESSION, second)
    asked_again(page)
    expect(site_row(page, second)).to_contain_text("answered")
    expect(site_row(page, last)).to_contain_text("waiting")
    expect(page.locator("#now")).to_contain_text(f"{last} has until")
    registered.api.send(SESSION, last)
    expect(page.locator("#now")).to_contain_text("Round 2 collects: 0 of 3")
    expect(page.locator("#rounds tbody tr")).to_have_count(2)
    assert registered.api.finish(SESSION, SITES) == "completed"
    expect(page.locator("#state")).to_have_text("completed")
    expect(page.get_by_role("link", name="Result", exact=True)).to_be_visible()
    # It asks no more.
    asked = len(watching.asked)
    page.clock.run_for(10_000)
    assert len(watching.asked) == asked
    assert page.evaluate("() => window.loadedOnce")
    assert watching.elsewhere(registered.local.base_url) == []
    assert watching.complaints == []


def test_nothing_moves_where_nothing_has_changed(watching: Watched) -> None:
    page = watching.page
    page.evaluate(
        """() => {
          window.moved = 0;
          const watch = new MutationObserver((changes) => {
            window.moved += changes.filter((each) => each.type === "childList").length;
          });
          watch.observe(document.body, { childList: true, subtree: true });
        }"""
    )
    page.locator("#do-cancel").focus()
    assert [asked_again(page) for _ in range(2)] == [204, 204]
    assert page.evaluate("() => [window.moved, document.activeElement.id]") == [0, "do-cancel"]
    # A page that nobody looks at asks nothing.
    page.evaluate("() => Object.defineProperty(document, 'hidden', { value: true })")
    asked = len(watching.asked)
    page.clock.run_for(10_000)
    assert len(watching.asked) == asked


def test_a_page_goes_on_when_the_coordinator_is_back(
    registered: Registered, watching: Watched
) -> None:
    page = watching.page
    page.context.set_offline(True)
    page.clock.fast_forward(3_000)
    expect(page.get_by_role("alert")).to_contain_text("does not answer")
    registered.api.send(SESSION, SITES[0])
    page.context.set_offline(False)
    asked_again(page)
    expect(site_row(page, SITES[0])).to_contain_text("answered")
    expect(page.locator("#failure")).to_be_hidden()


def test_a_page_whose_sign_in_is_revoked_leads_to_the_form(
    registered: Registered, watching: Watched
) -> None:
    page, operator = watching.page, registered.local.operator_token
    first = SITES[0]
    (token,) = registered.api.ok("GET", "/v1/analysts/ada", operator)["tokens"]
    registered.api.ok("DELETE", f"/v1/analysts/ada/tokens/{token['id']}", operator)
    page.clock.fast_forward(3_000)
    expect(page.get_by_role("alert").filter(has_text="revoked")).to_be_visible()
    expect(page.get_by_text(first)).to_have_count(0)
    page.get_by_label("Your token").fill(registered.api.tokens[first])
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="This site")).to_be_visible()
    # The browser itself notes every answer of 400 and more.
    assert all(complaint.endswith("401 (Unauthorized)") for complaint in watching.complaints)
