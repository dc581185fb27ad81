"""Take pictures of every page, light, dark and on a phone: ``make screenshots``.

They are written to ``build/screenshots``. Those that pages of the documentation show are also
written to ``docs/figures``. A temporary coordinator with made-up sessions answers.
"""

import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser

from chromium import ABSENT, chromium

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))
from support.page_list import PAGES  # noqa: E402
from support.showcase import Showcase, showcase  # noqa: E402

TARGET, FIGURES = ROOT / "build" / "screenshots", ROOT / "docs" / "figures"
#: Pictures that the documentation shows, each with its name there and where it begins.
KEPT = {
    ("operator", "overview"): ("page_overview", "body"),
    ("ada", "result"): ("page_result", "body"),
    ("basel", "consent"): ("page_consent", "body"),
}
_WIDE, _PHONE = {"width": 1280, "height": 800}, {"width": 375, "height": 812}


def main() -> None:
    """Take all pictures."""
    shutil.rmtree(TARGET, ignore_errors=True)
    TARGET.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as place, chromium() as browser:
        if browser is None:
            sys.exit(ABSENT)
        with showcase(Path(place)) as shown:
            for name in PAGES:
                _take(browser, shown, name)
    print(f"{len(list(TARGET.iterdir()))} pictures in {TARGET.relative_to(ROOT)}")


def _take(browser: Browser, shown: Showcase, name: str) -> None:
    base_url = shown.local.base_url
    context = browser.new_context(
        base_url=base_url, locale="en-GB", timezone_id="Europe/Zurich", viewport=_WIDE
    )
    if name != "visitor":
        headers = {"Origin": base_url}
        token = {"token": shown.tokens[name]}
        context.request.post("/ui/sign-in", form=token, headers=headers, max_redirects=0)
    page = context.new_page()
    for page_name, path in PAGES[name].items():
        page.emulate_media(color_scheme="light")
        page.set_viewport_size(_WIDE)
        page.goto(path)
        if (name, page_name) in KEPT:
            kept, begin = KEPT[name, page_name]
            page.locator(begin).evaluate("element => element.scrollIntoView()")
            page.screenshot(path=FIGURES / f"{kept}.png")
        for kind in ("light", "dark", "phone"):
            page.emulate_media(color_scheme="dark" if kind == "dark" else "light")
            page.set_viewport_size(_PHONE if kind == "phone" else _WIDE)
            page.screenshot(path=TARGET / f"{name}-{page_name}-{kind}.png", full_page=True)
    context.close()


if __name__ == "__main__":
    main()
