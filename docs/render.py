"""Fill the marked blocks of the documentation from the code: ``python docs/render.py``.

A block stands between ``<!-- name: begin -->`` and ``<!-- name: end -->``. A test fails when a page
differs from what this gives.
"""

import re
import sys
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path

from fedclust.methods.registry import METHODS
from fedclust.rounds import all_phases, evidence, outcomes, preparation, resampling
from fedclust.schema.errors import TASK_RULES
from fedclust.schema.task import Phase

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS))
from render_options import markdown_table, options, paper_options, shared_options  # noqa: E402
from render_reference import (  # noqa: E402
    DEFINITIONS,
    commands,
    definition_fields,
    problem_list,
    service_commands,
    settings,
    site_settings,
)

#: The phases after the method's rounds: the same for every method.
_CLOSING = (evidence.PHASE, resampling.PHASE, outcomes.PHASE)


def disclosures(method: str) -> str:
    """Return, phase by phase, what leaves a site in the rounds of ``method`` alone."""
    shared = (preparation.PHASE, *_CLOSING)
    left = [each for each in all_phases(METHODS[method]) if each not in shared]
    return phase_tables(each for each in left if each.name not in PAPER_PHASES.get(method, ()))


#: Phases of variants that reproduce a paper.
PAPER_PHASES = {"fkm": ("seeds", "means"), "spectral": ("anchors", "eigen")}


def paper_disclosures(method: str) -> str:
    """Return what leaves a site only in the variants of ``method`` that reproduce a paper."""
    phases = all_phases(METHODS[method])
    return phase_tables(each for each in phases if each.name in PAPER_PHASES[method])


#: The methods' pages say this once, above all tables.
_AS_COMMON = "Sums over whole groups of your protected table."


def phase_tables(phases: Iterable[Phase]) -> str:
    """Return, phase by phase, what leaves a site."""
    parts = []
    for phase in phases:
        rows = [
            (f"`{line.field}`", line.shape, line.meaning, line.identifies)
            for line in phase.discloses
        ]
        head = ["field", "shape", "meaning", "what it can identify"]
        said = f"**{phase.name}**: {phase.summary}"
        if len(rows) > 1 and len({identifies for *_, identifies in rows}) == 1:
            said += "" if rows[0][3] == _AS_COMMON else f" What it can identify: {rows[0][3]}"
            head, rows = head[:3], [(field, shape, text, "") for field, shape, text, _ in rows]
        table = markdown_table(head, (row[: len(head)] for row in rows))
        parts.append(f"{textwrap.fill(said, 99, break_on_hyphens=False)}\n\n{table}")
    return "\n\n".join(parts)


def task_rules() -> str:
    """Return the rules that a task can break."""
    rows = ((f"`{rule}`", text) for rule, text in TASK_RULES.items())
    return markdown_table(("rule", "what is wrong with the task"), rows)


def blocks() -> dict[tuple[str, str], Callable[[], str]]:
    """Return what renders each block, by page and block name."""
    found: dict[tuple[str, str], Callable[[], str]] = {
        ("cli.md", "commands"): commands,
        ("reference/service-cli.md", "commands"): service_commands,
        ("reference/settings.md", "settings"): settings,
        ("reference/settings.md", "site"): site_settings,
        ("reference/problems.md", "list"): problem_list,
        ("protocol.md", "task rules"): task_rules,
        ("methods/common.md", "options"): shared_options,
        ("methods/common.md", "disclosures"): lambda: phase_tables([preparation.PHASE]),
        ("evidence.md", "disclosures"): lambda: phase_tables(_CLOSING),
    }
    for part, model in DEFINITIONS.items():
        page = "reference/definition.md"
        found[page, part] = lambda model=model: definition_fields(model)
    for name in ("fkm", "kfed", "spectral"):
        found["results/papers.md", f"{name} options"] = lambda name=name: paper_options(name)
    for name in PAPER_PHASES:
        block = f"{name} disclosures"
        found["results/papers.md", block] = lambda name=name: paper_disclosures(name)
    for name in METHODS:
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
