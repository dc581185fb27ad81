"""Check a built site: every link leads somewhere, and no page loads anything from elsewhere.

``python docs/check_site.py SITE`` prints what is wrong and exits with 1. Links of text to
other hosts are allowed: a reader decides to follow them.
"""

import re
import sys
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

#: What a browser loads from a style sheet without being asked.
_LOADED_BY_CSS = re.compile(r"(?:@import\s*|url\(\s*)['\"]?((?:https?:)?//[^'\")]*)")


class _Page(HTMLParser):
    """The ids of a page, its links, and what is written into it that a policy would refuse."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        #: (the element, its address)
        self.links: list[tuple[str, str]] = []
        self.inline: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        said = {name: value or "" for name, value in attrs}
        self.ids |= {said[name] for name in ("id", "name") if name in said}
        self.links += [(tag, said[name]) for name in ("href", "src", "action") if name in said]
        if tag == "style" or (tag == "script" and "src" not in said):
            self.inline.append(f"a {tag}")
        if "style" in said or any(name.startswith("on") for name in said):
            self.inline.append(f"a style or a handler of <{tag}>")


@cache
def _read(path: Path) -> _Page:
    return _Page(path.read_text("utf-8"))


def faults(site: Path) -> Iterator[str]:
    """Return what is wrong with a built site, one line each."""
    for path in sorted(site.rglob("*.html")):
        page, name = _read(path), path.relative_to(site).as_posix()
        yield from (f"{name}: {each} inside the page" for each in page.inline)
        for tag, address in page.links:
            why = _fault_of(site, path, tag, address)
            if why:
                yield f"{name}: {address}: {why}"
    for path in sorted(site.rglob("*.css")):
        for address in _LOADED_BY_CSS.findall(path.read_text("utf-8")):
            yield f"{path.relative_to(site).as_posix()}: {address}: loaded from elsewhere"


def _fault_of(site: Path, path: Path, tag: str, address: str) -> str | None:
    parts = urlsplit(address)
    if parts.scheme == "data":
        return None
    if parts.scheme or parts.netloc:
        return None if tag == "a" else "loaded from elsewhere"
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if not target.is_relative_to(site.resolve()):
        return "leads out of the site"
    if target.is_dir():
        target /= "index.html"
    if not target.is_file():
        return "no such file"
    if parts.fragment and target.suffix == ".html":
        anchor = unquote(parts.fragment)
        return None if anchor in _read(target).ids else "no such section"
    return None


def main() -> None:
    """Check the site named on the command line."""
    site = Path(sys.argv[1]).resolve()
    pages = len(list(site.rglob("*.html")))
    found = list(faults(site)) if pages else ["there is no page"]
    for line in found:
        print(line, file=sys.stderr)
    if found:
        sys.exit(1)
    size = sum(path.stat().st_size for path in site.rglob("*") if path.is_file())
    print(f"{pages} pages, {size / 1e6:.1f} MB, every link leads somewhere")


if __name__ == "__main__":
    main()
