"""Fill the marked blocks of the documentation from the code: ``python docs/render.py``.

A block stands between ``<!-- name: begin -->`` and ``<!-- name: end -->``. A test fails when a page
differs from what this gives.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command

from fedclust.cli.main import app
from fedclust.cli.options import Connection, field_names
from fedclust.engine import all_phases
from fedclust.methods.registry import BUILT_IN, METHODS
from fedclust.wire.problems import CATALOGUE

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS))
from render_options import markdown_table, options  # noqa: E402  # found through the line above


def problems() -> str:
    """Return the catalogue of problem types as a table."""
    rows = ((f"`{slug}`", str(status), title) for slug, (status, title) in CATALOGUE.items())
    return markdown_table(("type", "status", "title"), rows)


def disclosures(method: str) -> str:
    """Return, phase by phase, what leaves a site in sessions of ``method``."""
    parts = []
    for phase in all_phases(METHODS[method]):
        rows = (
            (f"`{line.field}`", line.shape, line.meaning, line.identifies)
            for line in phase.discloses
        )
        table = markdown_table(("field", "shape", "meaning", "what it can identify"), rows)
        summary = textwrap.fill(f"**{phase.name}**: {phase.summary}", 99, break_on_hyphens=False)
        parts.append(f"{summary}\n\n{table}")
    return "\n\n".join(parts)


def commands() -> str:
    """Return every command of ``fedclust`` with its arguments and options."""
    root, connection = get_command(app), field_names(Connection)
    leaves = dict(_leaves("fedclust", root))
    shared = [each for each in leaves["fedclust status"].params if each.name in connection]
    table = markdown_table(("option", "meaning"), map(_option, shared))
    lead = "*connection* stands for these options, which all commands with a coordinator have:"
    parts = [f"{lead}\n\n{table}"]
    for path, command in leaves.items():
        own = [each for each in command.params if each.name not in (*connection, "help")]
        words = [each.name.upper().replace("_", "-") for each in own if not _is_option(each)]
        if any(each.name in connection for each in command.params):
            words.append("[*connection*]")
        options = [_option(each) for each in own if _is_option(each)]
        table = f"\n\n{markdown_table(('option', 'meaning'), options)}" if options else ""
        usage = " ".join([f"`{path}`", *words])
        help_text = textwrap.fill(" ".join((command.help or "").split()), 99)
        parts.append(f"### {path.removeprefix('fedclust ')}\n\n{usage}\n\n{help_text}{table}")
    return "\n\n".join(parts)


def _leaves(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Yield every command that does something, with the words that call it."""
    inner = getattr(command, "commands", {})
    if not inner or getattr(command, "invoke_without_command", False):
        yield path, command
    for name, each in inner.items():
        yield from _leaves(f"{path} {name}", each)


def _is_option(parameter: Any) -> bool:
    return bool(parameter.param_type_name == "option")


def _option(parameter: Any) -> tuple[str, str]:
    said = [parameter.help or ""]
    if parameter.envvar:
        said.append(f"({parameter.envvar})")
    return f"`{', '.join(parameter.opts)}`", " ".join(said).replace("|", "\\|").strip()


def blocks() -> dict[tuple[str, str], Callable[[], str]]:
    """Return what renders each block, by page and block name."""
    found: dict[tuple[str, str], Callable[[], str]] = {
        ("protocol.md", "problems"): problems,
        ("cli.md", "commands"): commands,
    }
    for name in BUILT_IN:
        found[f"methods/{name}.md", "options"] = lambda name=name: options(name)
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
