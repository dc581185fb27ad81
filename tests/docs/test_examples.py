"""A wrong example fails, and one that would change this machine is not run."""

import os
from pathlib import Path

import pytest

from docs import examples, page

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no POSIX shell here")


def run(source: str, place: Path, patch: pytest.MonkeyPatch) -> None:
    """Run the examples of a page with this text."""
    path = place / "page.md"
    path.write_text(source, "utf-8")
    with page.opened("page.md", source, place, patch) as here:
        for example in examples.parse(path, here):
            example.evaluate()
        here.finish()


@pytest.mark.parametrize(
    ("block", "said"),
    [
        ("python\nassert 1 == 2", ""),
        ("python\nprint(1, 2.50)  # 1 2.4", "1 2.4 of 1 2.5"),
        ("sh\ntrue\nfalse", "page.md:3: this failed"),
        ("sh\nexit 0", "page.md:2: this failed"),
        ("console\n$ echo a\nb", "page.md:2: "),
        ("console\n$ false", "page.md:2: "),
        ("sh\nrm /etc/passwd", "not the page's"),
        ("sh\nsudo ls", "change this machine"),
        ("bash\nls", "bash is not run"),
        ("json\n{", "Expecting"),
        ('json\n{"algorithm": "none"}', "choose one of"),
    ],
)
def test_a_wrong_example_fails(
    block: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises((AssertionError, ValueError), match=said):
        run(f"```{block}\n```\n", tmp_path, monkeypatch)
