"""Every example of every page runs as it stands: see "Examples in pages" in `tests/support`."""

import os
import re
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from unittest import SkipTest

import pytest

from docs import examples, page
from docs.page_set_ups import SET_UPS

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no POSIX shell here")

ROOT = Path(__file__).parents[2]

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def title(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", PAGES, ids=title)
def test_the_examples_of_a_page_run(
    path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    """In the order of the page; all in one test, as they share variables and files."""
    set_up = SET_UPS.get(title(path), lambda _: nullcontext())
    with (
        page.opened(title(path), path.read_text("utf-8"), tmp_path, monkeypatch) as here,
        set_up(here),
    ):
        skips = []
        for example in examples.parse(path, here):
            try:
                example.evaluate()
            except SkipTest as skipped:
                skips.append(f"line {example.line}: {skipped}")
        here.finish()
    record_property("skipped examples", "\n".join(skips))


def test_every_set_up_has_its_page() -> None:
    assert SET_UPS.keys() <= {title(path) for path in PAGES}


_SKIP = re.compile(r"<!--+\s*;?\s*skip\b(.*?)--+>", re.DOTALL)
_REASON = re.compile(r': (?:end|(?:next|start) "([^"]{10,})")')
#: A skipped example may be wrong. More of them need a look at each.
MOST_SKIPPED = 38


def test_a_skipped_example_says_why() -> None:
    """In the comment above it: `<!-- skip: next "a reason" -->`."""
    skips = [
        f"{title(path)}{skip.strip()}"
        for path in PAGES
        for skip in _SKIP.findall(path.read_text("utf-8"))
    ]
    assert [skip for skip in skips if not _REASON.search(skip)] == []
    assert len(skips) <= MOST_SKIPPED, "\n".join(skips)
