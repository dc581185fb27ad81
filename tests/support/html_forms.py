"""A form of a page as a browser reads it: which fields it posts, and what stands at them."""

from bs4 import BeautifulSoup, Tag


class PageForm:
    """The fields that a browser posts for the forms of a page, without buttons.

    Attributes
    ----------
    html : str
    fields : list of (name, value)
    messages : dict of str to str
        The messages about inputs, by the id of the input.
    text : str
        What the page shows.
    """

    def __init__(self, html: str) -> None:
        page = BeautifulSoup(html, "html.parser")
        self.html, self.text = html, page.get_text()
        inputs = page.select("input[name], select[name], textarea[name]")
        self.fields = [(str(own["name"]), text) for own in inputs for text in _posted(own)]
        said = [(str(each["data-wrong"]), each.get_text()) for each in page.select("[data-wrong]")]
        self.messages = {at: text.strip() for at, text in said if text.strip()}

    def value(self, name: str) -> str:
        """Return what is posted for a name; the last value of several."""
        return dict(self.fields)[name]

    def changed(self, *more: tuple[str, str], **texts: str) -> list[tuple[str, str]]:
        """Return the posted fields with other texts, named with ``__`` for ``/``, and ``more``."""
        others = {"/" + name.replace("__", "/"): text for name, text in texts.items()}
        kept = [(name, text) for name, text in self.fields if name not in others]
        return [*kept, *others.items(), *more]


def _posted(own: Tag) -> list[str]:
    if own.name == "textarea":
        return [own.get_text().removeprefix("\n")]
    if own.name == "select":
        options = own.select("option")
        chosen = [each for each in options if "selected" in each.attrs] or options
        return [str(each.get("value", "")) for each in chosen[:1]]
    off = own.get("type") in ("checkbox", "radio") and "checked" not in own.attrs
    return [] if off else [str(own.get("value", ""))]
