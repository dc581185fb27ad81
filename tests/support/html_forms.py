"""A form of a page as a browser reads it: which fields it posts, and what stands at them."""

from dataclasses import dataclass, field
from html.parser import HTMLParser


@dataclass
class PageForm(HTMLParser):
    """The fields that a browser posts for the forms of a page, without buttons.

    Attributes
    ----------
    fields : list of (name, value)
    messages : dict of str to str
        The messages about inputs, by the id of the input.
    texts : list of str
        What the page shows.
    """

    html: str
    fields: list[tuple[str, str]] = field(default_factory=list)
    messages: dict[str, str] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    _select: list[tuple[str, bool]] = field(default_factory=list)
    _open: list[str] = field(default_factory=list)
    _textarea: str | None = None
    _message: str | None = None

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.feed(self.html)
        self.close()

    def value(self, name: str) -> str:
        """Return what is posted for a name; the last value of several."""
        return dict(self.fields)[name]

    def changed(self, *more: tuple[str, str], **texts: str) -> list[tuple[str, str]]:
        """Return the posted fields with other texts, named with ``__`` for ``/``, and ``more``."""
        others = {"/" + name.replace("__", "/"): text for name, text in texts.items()}
        kept = [(name, text) for name, text in self.fields if name not in others]
        return [*kept, *others.items(), *more]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Read an element."""
        own = {name: value or "" for name, value in attrs}
        if "data-wrong" in own:
            self._message = own["data-wrong"]
        if tag == "input" and own.get("name"):
            if own.get("type") not in ("checkbox", "radio") or "checked" in own:
                self.fields.append((own["name"], own.get("value", "")))
        elif tag == "select":
            self._open, self._select = [own["name"]], []
        elif tag == "option" and self._open:
            self._select.append((own.get("value", ""), "selected" in own))
        elif tag == "textarea":
            self._textarea = own["name"]
            self.fields.append((own["name"], ""))

    def handle_endtag(self, tag: str) -> None:
        """Read the end of an element."""
        if tag == "select" and self._select:
            chosen = next((each for each, on in self._select if on), self._select[0][0])
            self.fields.append((self._open[0], chosen))
            self._open = []
        if tag == "textarea":
            self._textarea = None
        if tag == "p":
            self._message = None

    def handle_data(self, data: str) -> None:
        """Read text."""
        if self._textarea is not None:
            self.fields[-1] = (self._textarea, self.fields[-1][1] + data.removeprefix("\n"))
        if self._message is not None and data.strip():
            self.messages[self._message] = data.strip()
        self.texts.append(data)
