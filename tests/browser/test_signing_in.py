"""Signing in as people do: by keyboard, without JavaScript, after a pause, with a lost token."""

from playwright.sync_api import Browser, Locator, expect

from .conftest import Registered, Watched, signed_in


def test_a_site_is_registered_by_keyboard_alone(registered: Registered, watched: Watched) -> None:
    page, base_url, token = watched.page, registered.local.base_url, registered.local.operator_token

    def reach(target: Locator) -> None:
        page.wait_for_load_state()
        for _ in range(40):
            page.keyboard.press("Tab")
            if target.evaluate("element => element === document.activeElement"):
                return
        raise AssertionError(f"{target} is not reached by the keyboard")

    page.goto(f"{base_url}/ui/sites")
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator(".skip")).not_to_be_focused()
    page.keyboard.press("Tab")
    expect(page.get_by_label("Your token")).to_be_focused()
    page.keyboard.type(token)
    page.keyboard.press("Enter")
    register = page.get_by_role("link", name="Register a site").first
    expect(register).to_be_visible()
    page.wait_for_load_state()
    # Neither the address nor anything the browser keeps holds the token.
    assert token not in page.url
    stored = page.evaluate("() => [{...localStorage}, {...sessionStorage}]")
    assert stored == [{}, {"htmx-current-path-for-history": "/ui/sites"}]
    assert page.evaluate("() => document.cookie") == ""
    reach(register)
    page.keyboard.press("Enter")
    expect(page.get_by_label("Name")).to_be_visible()
    reach(page.get_by_label("Name"))
    page.keyboard.type("east")
    page.keyboard.press("Enter")
    issue = page.get_by_role("button", name="Issue a token")
    expect(issue).to_be_visible()
    reach(issue)
    page.keyboard.press("Enter")
    expect(page.locator("code.secret")).to_contain_text("fcs_")
    assert watched.elsewhere(base_url) == []
    assert watched.complaints == []


def test_what_is_typed_outlives_the_sign_in(registered: Registered, browser: Browser) -> None:
    """Without scripts: `http/ui/test_form_pages.py`."""
    token = registered.api.tokens["ada"]
    context = signed_in(browser, registered.local.base_url, token)
    page = context.new_page()
    page.goto("/ui/new-session")
    typed = "Which types of tumours do the hospitals share?"
    registered.local.coordinator.clock.advance(31 * 60)  # type: ignore[attr-defined]
    purpose = page.get_by_label("Purpose")
    purpose.fill(typed)
    with context.expect_page() as opened:  # A check while typing says it.
        page.get_by_role("alert").get_by_role("link", name="Sign in").click()
    other = opened.value
    other.get_by_label("Your token").fill(token)
    other.get_by_role("button", name="Sign in").click()
    expect(other.get_by_role("heading", name="Sessions")).to_be_visible()
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_text("You signed in again.")).to_be_visible()
    expect(purpose).to_have_value(typed)
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_text("The session was not created.")).to_be_visible()
    expect(purpose).to_have_value(typed)
    context.close()
