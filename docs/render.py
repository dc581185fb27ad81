"""Fill the marked blocks of the documentation from the code: ``python docs/render.py``.

A block stands between ``<!-- name: begin -->`` and ``<!-- name: end -->``. A test fails when a page
differs from what this gives.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path

from fedclust.algorithms.engine import all_phases
from fedclust.algorithms.registry import METHODS
from fedclust.wire.problems import CATALOGUE

DOCS = Path(__file__).parent


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def problems() -> str:
    """Return the catalogue of problem types as a table."""
    rows = ((f"`{slug}`", str(status), title) for slug, (status, title) in CATALOGUE.items())
    return _table(("type", "status", "title"), rows)


def disclosures(method: str) -> str:
    """Return, phase by phase, what leaves a site in sessions of ``method``."""
    parts = []
    for phase in all_phases(METHODS[method]):
        rows = (
            (f"`{line.field}`", line.shape, line.meaning, line.identifies)
            for line in phase.discloses
        )
        table = _table(("field", "shape", "meaning", "what it can identify"), rows)
        summary = textwrap.fill(f"**{phase.name}**: {phase.summary}", 99, break_on_hyphens=False)
        parts.append(f"{summary}\n\n{table}")
    return "\n\n".join(parts)


def blocks() -> dict[tuple[str, str], Callable[[], str]]:
    """Return what renders each block, by page and block name."""
    found: dict[tuple[str, str], Callable[[], str]] = {("protocol.md", "problems"): problems}
    for name in METHODS:
        found[f"methods/{name}.md", "disclosures"] = lambda name=name: disclosures(name)
    return found


def render(page: str, text: str) -> str:
    """Return ``text`` of ``page`` with its blocks filled; ValueError where one is missing."""
    for (owner, name), content in blocks().items():
        if owner != page:
            continue
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
        if not pattern.search(text):
            raise ValueError(f"docs/{page} has no block called {name}")
        filled = f"{begin}\n\n{content()}\n\n{end}"
        text = pattern.sub(lambda _, filled=filled: filled, text)
    return text


def main() -> None:
    for page in sorted({page for page, _ in blocks()}):
        path = DOCS / page
        path.write_text(render(page, path.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
