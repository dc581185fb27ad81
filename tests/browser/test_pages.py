"""Every page in every role: it loads from here alone, complains of nothing, and can be read."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from playwright.sync_api import Browser

from fedclust.site.review import review_page
from fedclust_service.http import ui
from support.fake_coordinator import FakeCoordinator
from support.page_list import PAGES
from support.purpose import PURPOSE
from support.showcase import Showcase, showcase

from . import axe
from .conftest import WIDE, Watched, signed_in

PHONE = {"width": 375, "height": 812}
CONTRAST = "color-contrast"
#: Who is the first to read an address: axe looks at it once.
FIRST = {path: name for name, pages in reversed(PAGES.items()) for path in pages.values()}


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Showcase]:
    with showcase(tmp_path_factory.mktemp("showcase")) as made:
        yield made


@pytest.fixture(scope="module")
def readers(browser: Browser, shown: Showcase) -> Iterator[dict[str, Watched]]:
    """A page for each role, who has signed in; each new one would take Chromium a process."""
    tokens = {name: shown.tokens.get(name) for name in PAGES}
    base_url = shown.local.base_url
    contexts = {name: signed_in(browser, base_url, token) for name, token in tokens.items()}
    yield {name: Watched(context.new_page()) for name, context in contexts.items()}
    for context in contexts.values():
        context.close()


@pytest.mark.parametrize(
    ("name", "page_name"), [(name, page) for name, pages in PAGES.items() for page in pages]
)
def test_a_page_can_be_read_by_everybody(
    shown: Showcase, readers: dict[str, Watched], name: str, page_name: str
) -> None:
    watched, base_url = readers[name], shown.local.base_url
    watched.asked.clear()
    watched.complaints.clear()
    page = watched.page
    page.set_viewport_size(WIDE)
    page.emulate_media(color_scheme="light")
    answer = page.goto(f"{base_url}{PAGES[name][page_name]}")
    assert answer.status == 200
    assert page.locator("h1").count() == 1
    if page_name == "sessions":  # The list needs no scrolling.
        table = page.locator(".wide").first
        assert table.evaluate("each => each.scrollWidth - each.clientWidth") <= 0
    assert "{{" not in page.locator("body").inner_text().replace("{{ 7 * 7 }}", "")
    if FIRST[PAGES[name][page_name]] == name:
        assert axe.found(page) == []
        page.emulate_media(color_scheme="dark")
        assert axe.found(page, CONTRAST) == []
        for each in page.locator("figure svg").all():  # It is drawn on white.
            assert each.evaluate("each => getComputedStyle(each).filter") != "none"
    page.set_viewport_size(PHONE)
    assert page.evaluate("() => document.documentElement.scrollWidth") <= PHONE["width"]
    for each in page.locator("figure:visible").all():  # It scrolls in its own box, to its end.
        end = each.evaluate("""each => {
          each.scrollLeft = 10_000;
          return each.querySelector("svg").getBoundingClientRect().right;
        }""")
        assert end <= PHONE["width"]
    assert watched.elsewhere(base_url) == []
    assert watched.complaints == []


def test_every_page_is_in_the_list() -> None:
    """All but files, parts of pages, and those that look as one in the list does."""
    others = (
        r"/ui/|.*/(live|events|enable|disable|revoke)|.*/result/.*|.*\.json|/ui/register/operators"
    )
    addresses = [address for of in PAGES.values() for address in of.values()]
    listed = [address.partition("?")[0] for address in addresses]
    unlisted = [
        route.path
        for route in ui.ROUTES
        if "GET" in (route.methods or ()) and not any(map(route.path_regex.fullmatch, listed))
    ]
    assert [path for path in unlisted if not re.fullmatch(others, path)] == []


def test_a_review_is_printed_on_one_sheet_and_an_annex(browser: Browser, tmp_path: Path) -> None:
    """With outcomes; each sheet shows the code, so that none is exchanged."""
    features = [
        *({"name": f"laboratory value {j}", "unit": "mg/dl"} for j in range(8)),
        {"name": "died", "kind": "binary", "role": "outcome"},
        {"name": "readmitted", "kind": "binary", "role": "outcome"},
    ]
    rows = np.random.default_rng(1).integers(0, 2, (80, 10)).astype(float)
    fake = FakeCoordinator(
        {"alpha": rows[:, :8], "beta": rows[:, :8]},
        features=features,
        config={"n_clusters": [2, 3], "stability": 20},
        outcomes_k=3,
        purpose=PURPOSE,
    )
    table = pd.DataFrame(rows, columns=[each["name"] for each in features])
    request = fake.site(tmp_path).check("heart", table)
    page = review_page(request, datetime(2026, 2, 3, tzinfo=UTC))
    assert f'content:"heart, code {request.approval_code[:12]}"' in page
    sheets = []
    for shown in (page, page.partition('<h1 class="annex">')[0]):
        printed = browser.new_page()
        printed.set_content(shown)
        sheets.append(len(re.findall(rb"/Type\s*/Page\b", printed.pdf(format="A4"))))
        printed.close()
    assert sheets[1] == 1
    assert sheets[0] > 1
