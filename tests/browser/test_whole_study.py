"""A study as people do it: defined, watched and read in a browser, computed at the sites."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from playwright.sync_api import Browser, Page, expect

from fedclust.client.http import ConnectionOptions
from support.consortium import Command, Consortium, columns, write_csv
from support.ledgers import body_lines
from support.purpose import PURPOSE
from support.server import running_server
from support.timeouts import TIMEOUT_S

from .conftest import Watched, follow
from .test_session_form import paste

SITES = ("north", "south", "west")
SESSION, TITLE = "heart-2026", "Hearts of three hospitals"
FEATURES = columns(2)


@contextmanager
def somebody(browser: Browser, base_url: str, token: str, all_: list[Watched]) -> Iterator[Page]:
    """Sign in through the form, in a browser that knows nothing."""
    context = browser.new_context(base_url=base_url)
    context.set_default_timeout(TIMEOUT_S * 1_000)
    all_.append(Watched(context.new_page()))
    page = all_[-1].page
    page.goto("/")
    page.get_by_label("Your token").fill(token)
    follow(page, page.get_by_role("button", name="Sign in"))
    yield page
    context.close()


def register(page: Page, role: str, name: str) -> str:
    """Register somebody as an operator does; return the token that the page shows."""
    page.get_by_role("navigation", name="Pages").get_by_role("link", name=f"{role}s").click()
    page.get_by_role("link", name=f"Register {'a' if role == 'Site' else 'an'}").first.click()
    page.get_by_label("Name").fill(name)
    page.get_by_role("button", name="Register").click()
    page.get_by_role("button", name="Issue a token").click()
    return page.locator("code.secret").inner_text()


def create(page: Page) -> None:
    """Fill the form of a session and create it."""
    follow(page, page.get_by_role("link", name="Define a session").first)
    page.locator("#f-algorithm").select_option("lloyd")
    lines = "\n".join(f"{each}\tnumeric\t\t-1000\t1000" for each in FEATURES)
    paste(page, f"name\tkind\tunit\tmin\tmax\n{lines}\n")
    page.locator("[name='/name']").fill(SESSION)
    page.get_by_text("Expert:").click()
    page.locator("[name='/title']").fill(TITLE)
    page.locator("[name='/purpose']").fill(PURPOSE)
    page.locator("[name='/config/n_clusters']").fill("3")
    page.locator("[name='/seed']").fill("7")
    page.locator("[name='/start']").select_option("manual")
    for site in SITES:
        page.get_by_role("checkbox", name=site).check()
    expect(page.get_by_text("Complete: the session can be created.")).to_be_visible()
    page.get_by_role("button", name="Create the session").click()
    expect(page.locator("#state")).to_have_text("recruiting")


def take_part(url: str, tokens: dict[str, str], place: Path) -> list[Command]:
    """Start each site's command on a CSV file of its own."""
    rng, commands = np.random.default_rng(5), []
    consortium = Consortium(url, tokens["ada"], tokens, ConnectionOptions())
    for site in SITES:
        rows = 8.0 * rng.integers(0, 3, (60, 1)) + rng.normal(size=(60, len(FEATURES)))
        command = Command(consortium, SESSION, site, place / site)
        write_csv(command.directory / "rows.csv", rows)
        command.start()
        commands.append(command)
    return commands


def watch(page: Page, sites: list[Command]) -> None:
    """Start the session when all have joined, and look on until it is complete."""
    expect(page.locator("#now")).to_contain_text("3 of 3 sites have joined")
    page.get_by_role("link", name="Start", exact=True).click()
    page.get_by_role("button", name="Start with 3 sites").click()
    expect(page.get_by_text("The session has started.")).to_be_visible()
    page.evaluate("() => { window.loadedOnce = true; }")
    expect(page.locator("#state")).to_have_text("completed")
    assert page.evaluate("() => window.loadedOnce")
    assert [site.wait() for site in sites] == [0, 0, 0], [site.log.read_text() for site in sites]


def downloaded(page: Page, label: str) -> bytes:
    """Download what the first link of a name leads to."""
    with page.expect_download() as download:
        page.get_by_role("link", name=label).first.click()
    return Path(download.value.path()).read_bytes()


def read_result(page: Page) -> None:
    """Open the result and download its files. What these hold: `http/ui/test_result_pages.py`."""
    follow(page, page.get_by_role("link", name="Result", exact=True))
    expect(page.get_by_role("heading", level=1)).to_have_text(TITLE)
    page.get_by_role("link", name="Downloads", exact=True).click()  # It unfolds the chapter.
    assert json.loads(downloaded(page, "Result as JSON"))["result"]
    assert downloaded(page, "Centroids as CSV").startswith(b"cluster,size,")
    assert TITLE in downloaded(page, "Report as HTML").decode()
    assert downloaded(page, "as PNG").startswith(b"\x89PNG\r\n\x1a\n")


def read_as_site(page: Page, site: Command) -> None:
    """Read what the session asked of a site, and what left it: what its own ledger says."""
    page.get_by_role("link", name=SESSION).click()
    page.get_by_role("link", name="What it asks of this site").click()
    expect(page.get_by_role("main")).to_contain_text(PURPOSE)
    page.go_back()
    follow(page, page.get_by_role("link", name="What left this site"))
    rows = page.locator("section[aria-labelledby=receipts] tbody tr")
    received = [
        (row.locator("code").inner_text(), row.locator("td[data-sort]")) for row in rows.all()
    ]
    sent = body_lines(site.directory / "state")
    assert [(sha, int(size.get_attribute("data-sort") or 0)) for sha, size in received] == [
        (line["sha256"], line["size"]) for line in sent
    ]
    # Of the clusters' sizes the result says this site's own alone.
    page.goto(f"/ui/sessions/{SESSION}/result#clusters")
    sizes = page.locator("#clusters").inner_text()
    assert "your site" in sizes
    assert not [other for other in SITES if other in sizes]


def test_a_study_from_registration_to_what_left(browser: Browser, tmp_path: Path) -> None:
    with running_server(tmp_path / "coordinator") as server:
        url, people = server.base_url, list[Watched]()
        with somebody(browser, url, server.operator_token, people) as page:
            tokens = {site: register(page, "Site", site) for site in SITES}
            tokens["ada"] = register(page, "Analyst", "ada")
        with somebody(browser, url, tokens["ada"], people) as page:
            create(page)
            sites = take_part(url, tokens, tmp_path)
            watch(page, sites)
            read_result(page)
        with somebody(browser, url, tokens["north"], people) as page:
            read_as_site(page, sites[0])
        for watched in people:
            assert watched.elsewhere(url) == []
            assert watched.complaints == []
