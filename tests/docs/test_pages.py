"""Every example of every page runs as it stands: see "Examples in pages" in `tests/support`."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from unittest import SkipTest

import pytest

from docs import examples, page

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="no POSIX shell here"),
    pytest.mark.usefixtures("all_clouds"),
]

ROOT = Path(__file__).parents[2]

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
SET_UPS = Path(__file__).parent / "pages"


def title(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def set_up_name(path: Path) -> str:
    """Return the module that sets up a page: ``methods_fkm`` for ``docs/methods/fkm.md``."""
    words = re.split(r"\W", title(path).removeprefix("docs/").removesuffix(".md"))
    return "_".join(words).lower()


@pytest.mark.parametrize("path", PAGES, ids=title)
def test_the_examples_of_a_page_run(
    path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    """In the order of the page; all in one test, as they share variables and files."""
    with page.opened(title(path), path.read_text("utf-8"), tmp_path, monkeypatch) as here:
        name = set_up_name(path)
        around: AbstractContextManager[None] = nullcontext()
        if (SET_UPS / f"{name}.py").exists():
            around = importlib.import_module(f"docs.pages.{name}").around(here)
        with around:
            skips = []
            document = examples.parse(path, here)
            for example in document:
                try:
                    example.evaluate()
                except SkipTest as skipped:
                    skips.append(f"line {example.line}: {skipped}")
            here.finish()
    record_property("skipped examples", "\n".join(skips))


def test_every_set_up_has_its_page() -> None:
    found = {path.stem for path in SET_UPS.glob("*.py")}
    assert found <= {set_up_name(path) for path in PAGES}


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
