"""What the docstrings of models say about their fields, for pages, forms and the reference."""

import functools
import inspect
import re

from pydantic import BaseModel, RootModel

_SECTION = re.compile(r"^(\w[\w ]*)\n-{3,}\n", re.MULTILINE)
_ENTRY = re.compile(r"^(\w+(?:, \w+)*) *(?::.*)?\n?((?:(?: +\S.*)?(?:\n|$))*)", re.MULTILINE)


@functools.lru_cache(maxsize=256)
def model_help(model: type[BaseModel], *, code: str = "") -> dict[str, str]:
    """Return what a model and its bases say about fields; a schema has only the model's text.

    ``code`` is put around what the docstrings mark as code.
    """
    found: dict[str, str] = {}
    for each in reversed(model.__mro__):
        if each not in (BaseModel, RootModel, object):
            found |= attribute_help(each.__doc__ or "", code=code)
    return found


def attribute_help(doc: str, *, code: str = "") -> dict[str, str]:
    """Return the text about each attribute in a docstring in numpy's format."""
    parts = _SECTION.split(inspect.cleandoc(doc))
    found: dict[str, str] = {}
    for title, body in zip(parts[1::2], parts[2::2], strict=True):
        if title not in ("Attributes", "Parameters"):
            continue
        for names, text in _ENTRY.findall(body):
            plain = re.sub(r":\w+:`([^`]*)`|``([^`]*)``|`([^`]*)`", rf"{code}\1\2\3{code}", text)
            for name in names.split(", "):
                found[name] = " ".join(plain.split())
    return {name: text for name, text in found.items() if text}
