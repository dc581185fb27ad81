"""How fast the pages of the documentation open at a coordinator, in Chromium.

It builds the site, starts a coordinator, and opens every page of `/help` five times
in one browser, as somebody who reads several pages. The time is that of the load event: the page,
its pictures, style sheets and scripts are there.

The target: the median of every page at most 200 ms. ``--only`` takes pages whose name contains a
text; ``--built`` builds nothing.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from playwright.sync_api import Browser, sync_playwright

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from _report import write  # noqa: E402
from support.local_coordinator import local_coordinator  # noqa: E402

SITE = ROOT / "service" / "fedclust_service" / "http" / "help"
TIMES, REACH_MS, SHOWN = 5, 200, 10
_BROWSERS = (
    "chromium",
    "chromium-headless-shell",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
)
_LOADED = "() => performance.getEntriesByType('navigation')[0].loadEventEnd"
_SPHINX = ("-m", "sphinx", "--quiet", "--builder", "html")


def build(doctrees: Path) -> float:
    """Build the site from the start; return how long that took, in seconds."""
    began = time.perf_counter()
    shutil.rmtree(SITE, ignore_errors=True)
    command = [sys.executable, *_SPHINX, "--doctree-dir", str(doctrees)]
    subprocess.run([*command, str(ROOT / "docs"), str(SITE)], check=True)
    return time.perf_counter() - began


def measure(browser: Browser, address: str, page: str) -> dict[str, Any]:
    """Return how long a page takes to open in a browser that has opened another one before."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    opened = context.new_page()
    opened.goto(f"{address}/help/glossary.html", wait_until="load")
    taken = []
    for _ in range(TIMES):
        opened.goto(f"{address}/help/{page}", wait_until="load")
        opened.wait_for_function("performance.getEntriesByType('navigation')[0].loadEventEnd > 0")
        taken.append(float(opened.evaluate(_LOADED)))
    context.close()
    return {"page": page, "median ms": median(taken), "least ms": min(taken), "most ms": max(taken)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="pages whose name contains this text")
    parser.add_argument("--built", action="store_true", help="measure the site that was built last")
    given = parser.parse_args()
    chromium = next((path for name in _BROWSERS if (path := shutil.which(name))), None)
    if chromium is None:
        print("no Chromium here: apt-get install --no-install-recommends chromium")
        return
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        took = None if given.built else build(place / "doctrees")
        files = [path for path in SITE.rglob("*") if path.is_file()]
        pages = sorted(path.relative_to(SITE).as_posix() for path in SITE.rglob("*.html"))
        size = sum(path.stat().st_size for path in files) / 1e6
        write("help_site", [{"build s": took, "pages": len(pages), "MB": size}])
        with local_coordinator(place) as local, sync_playwright() as play:
            browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            rows = [measure(browser, local.base_url, page) for page in pages if given.only in page]
            browser.close()
    rows.sort(key=lambda row: -row["median ms"])
    slow = [row["page"] for row in rows if row["median ms"] > REACH_MS]
    note = (
        f"The slowest {SHOWN} of {len(rows)} pages, opened {TIMES} times. At most: {REACH_MS} ms."
    )
    write("help_pages", rows[:SHOWN], note=f"{note} Over it: {', '.join(slow) or 'none'}.")


if __name__ == "__main__":
    main()
