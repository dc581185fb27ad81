"""Print the site as one PDF through headless Chromium: ``make docs-pdf``.

``python docs/pdf.py build/one-page build/fedclust.pdf`` prints what Sphinx's builder ``singlehtml``
wrote, with page numbers, and fails if a picture is missing.
"""

import re
import sys
from pathlib import Path

from playwright.sync_api import Page

from chromium import ABSENT, chromium

_FOOTER = (
    '<div style="width: 100%; font-size: 8px; text-align: center">'
    '<span class="pageNumber"></span> / <span class="totalPages"></span></div>'
)
#: Pictures that did not load.
_MISSING = """() => [...document.images]
    .filter((image) => !image.complete || image.naturalWidth === 0)
    .map((image) => image.getAttribute("src"))"""


def main() -> None:
    """Print the page in the first folder to the second path."""
    source, target = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    with chromium() as browser:
        if browser is None:
            sys.exit(ABSENT)
        page = browser.new_page()
        page.goto((source / "index.html").as_uri(), wait_until="load")
        pictures = _print(page, target)
    content = target.read_bytes()
    pages = len(re.findall(rb"/Type\s*/Page\b", content))
    print(f"{target.name}: {pages} pages, {pictures} pictures, {len(content) / 1e6:.1f} MB")


def _print(page: Page, target: Path) -> int:
    missing = page.evaluate(_MISSING)
    if missing:
        sys.exit(f"pictures are missing: {missing}")
    page.pdf(
        path=target,
        format="A4",
        margin={"top": "18mm", "bottom": "18mm", "left": "16mm", "right": "16mm"},
        display_header_footer=True,
        header_template="<span></span>",
        footer_template=_FOOTER,
        outline=True,
        tagged=True,
    )
    pictures: int = page.evaluate("() => document.images.length")
    return pictures


if __name__ == "__main__":
    main()
