"""A page or a fragment that nothing may be loaded for."""

from html.parser import HTMLParser
from typing import Any


class Page(HTMLParser):
    """Collects tags and words.

    Fails on tags that are not closed in order, run something or point elsewhere.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._open: list[str] = []
        self.words = ""
        self.feed(text)
        self.close()
        assert self._open == []

    @property
    def names(self) -> set[str]:
        return {tag for tag, _ in self.tags}

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in ("meta", "br"):
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        assert not [name for name, _ in attrs if name.startswith("on") or name in ("src", "href")]
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data
