"""Lists of a coordinator with 1,000 sessions of 20 sites, as each role reads them."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from support.api_caller import ApiCaller
from support.clock import ManualClock
from support.local_coordinator import local_coordinator
from support.many_sessions import SESSIONS, fill, session_name, site_names

from .conftest import Watched, signed_in

SITE = site_names()[2]


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiCaller]:
    """A coordinator after some years, and tokens of three who read at it."""
    place = tmp_path_factory.mktemp("years")
    with local_coordinator(place, clock=ManualClock()) as local:
        co = local.coordinator
        fill(co.store, co.clock.now(), entries=1)
        found = ApiCaller(local.base_url, local.operator_token)
        for role, name in (("analysts", "ada"), ("sites", SITE)):
            found.tokens[name] = found.ok("POST", f"/v1/{role}/{name}/tokens", "operator")["token"]
        yield found


def lines(page: Page) -> Locator:
    """Return the lines of the list."""
    return page.locator("#sessions tbody tr")


def names(page: Page) -> Locator:
    """Return the names of the sessions in the order in which the list shows them."""
    return page.locator("#sessions tbody th > a")


@pytest.mark.parametrize(
    ("reader", "first", "step"),
    [
        pytest.param("operator", 999, 1, marks=pytest.mark.long),
        ("ada", 998, 2),
        pytest.param(SITE, 999, 1, marks=pytest.mark.long),
    ],
)
def test_a_long_list_is_paged_sorted_filtered_and_opened(
    browser: Browser, api: ApiCaller, reader: str, first: int, step: int
) -> None:
    """Every second session is ada's; sites were invited to all."""
    assert SESSIONS == 1000
    context = signed_in(browser, api.base_url, api.tokens[reader])
    watched = Watched(context.new_page())
    page = watched.page
    page.goto("/ui/sessions")
    for number in range(3):
        top = first - number * 50 * step
        expect(names(page)).to_have_text([session_name(top - i * step) for i in range(50)])
        page.get_by_role("link", name="Older").click()
    page.get_by_role("link", name="Newest").click()
    expect(lines(page).first).to_contain_text(session_name(first))

    heading = page.get_by_role("columnheader", name="Session", exact=True)
    heading.get_by_role("button").click()
    expect(heading).to_have_attribute("aria-sort", "ascending")
    expect(names(page)).to_have_text([session_name(first - i * step) for i in reversed(range(50))])

    page.get_by_label("State").select_option("running")
    page.get_by_role("button", name="Show", exact=True).click()
    expect(page.locator("#sessions td[data-label=State]")).to_have_text(["running"] * 50)
    page.get_by_role("link", name=names(page).nth(1).inner_text()).click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("running")
    expect(page.locator("#sites tbody tr")).to_have_count(20)
    assert watched.elsewhere(api.base_url) == []
    assert watched.complaints == []
    context.close()
