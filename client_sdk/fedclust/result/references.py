"""The BibTeX entries that a methods paragraph cites, from the one file ``references.bib``."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from importlib.resources import files

_CITED = re.compile(r"@([a-z]+[0-9]*)")
_ENTRY = re.compile(r"^@\w+\{(\w+),\n.*?^\}$", re.MULTILINE | re.DOTALL)


@functools.cache
def entries() -> dict[str, str]:
    """Return the entries of the file by their keys, in its order."""
    text = files("fedclust.result").joinpath("references.bib").read_text("utf-8")
    return {found[1]: found[0] for found in _ENTRY.finditer(text)}


def cite(*keys: str) -> str:
    """Return citations as Pandoc reads them, such as ``[@hubert1985; @lloyd1982]``."""
    return f"[{'; '.join(f'@{key}' for key in keys)}]"


def cited(text: str) -> tuple[str, ...]:
    """Return the keys that a text cites, each once, in their order."""
    brackets = re.findall(r"\[(@[^\]]*)\]", text)
    return tuple(dict.fromkeys(key for part in brackets for key in _CITED.findall(part)))


def bibtex_of(keys: Iterable[str], version: str) -> str:
    """Return the entries with these keys; ``version`` is that of fedclust.

    A coordinator names its version, so characters that no version has are left out.
    """
    wanted = set(keys)
    found = [entry for key, entry in entries().items() if key in wanted]
    plain = re.sub(r"[^\w.+!-]", "", version, flags=re.ASCII)
    return "\n\n".join(found).replace("{VERSION}", plain) + "\n"
