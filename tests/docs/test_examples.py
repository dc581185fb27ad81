"""A wrong example fails, and one that would change this machine is not run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from docs import examples, page
from docs.terminal import commands, fits, transcript

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no POSIX shell here")


def run(source: str, place: Path, patch: pytest.MonkeyPatch) -> page.Page:
    """Run the examples of a page with this text."""
    path = place / "page.md"
    path.write_text(source, "utf-8")
    with page.opened("page.md", source, place, patch) as here:
        for example in examples.parse(path, here):
            example.evaluate()
        here.finish()
    return here


def test_examples_share_variables_and_directories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = run(
        "1. Do this:\n\n   ```python\n   a = 2\n   ```\n\n```sh\nB=3\nmkdir d && cd d\n\necho \\\n"
        "  $B > f\n```\n\n```console\n$ cat f | \n> cat\n3\n$ ls x\n...No such file...\n"
        "```\n\n```python\n>>> a + 1\n3\n```\n",
        tmp_path,
        monkeypatch,
    )
    assert here.names["a"] == 2
    assert (here.place / "d" / "f").read_text() == "3\n"


@pytest.mark.parametrize(
    ("block", "said"),
    [
        ("python\nassert 1 == 2", ""),
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


def test_a_script_is_taken_apart_where_the_shell_would() -> None:
    script = "# a\na \\\n  b\n\nif x; then\n  y\nfi\ncat <<'END'\n\"\nEND\nc |\n  d\n"
    assert list(commands(script)) == [
        (1, "a \\\n  b"),
        (4, "if x; then\n  y\nfi"),
        (7, "cat <<'END'\n\"\nEND"),
        (10, "c |\n  d"),
    ]
    assert list(transcript("$ a\n> b\nc\n$ d <<'E'\n> x\nE\n")) == [
        (0, "a\nb", "c"),
        (3, "d <<'E'\n> x\nE", ""),
    ]


def test_outputs_are_told_from_others() -> None:
    assert fits('{"a":"…","b":1}\n', '{"a":"x",\n"b":1}')
    assert not fits('{"a":"...","b":1}', '{"a":"x","b":2}')
    assert not fits('{"a":1}', '{"a":1,"b":2}')
