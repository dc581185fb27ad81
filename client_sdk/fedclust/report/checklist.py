"""The reporting checklist of a result: filled in where the software knows, else for the authors.

``WRITE_UP`` has all that helps to write a paper, as files.
"""

from __future__ import annotations

import functools
import json
import tomllib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.resources import files
from typing import Any

from fedclust.report.drawing import short
from fedclust.report.facts import Facts
from fedclust.report.markup import html_table
from fedclust.report.methods_text import SENTENCES, bibtex, methods_text
from fedclust.report.outcomes import effect_text, measure_text
from fedclust.report.wording import from_markdown, in_markdown, named_values

__all__ = ["WRITE_UP", "Checklist", "ChecklistItem", "checklist"]


@dataclass(frozen=True)
class ChecklistItem:
    """One item of the checklist.

    Attributes
    ----------
    id, section : str
    report : str
        What a report should say.
    software : str
        What this result says of it, in Markdown; "" for nothing.
    authors : str
        What remains for the authors; "" for nothing.
    """

    id: str
    section: str
    report: str
    software: str
    authors: str

    @property
    def text(self) -> str:
        """The entry as one text, with what remains in brackets."""
        open_part = f"[to be completed by the authors: {self.authors}]" if self.authors else ""
        return " ".join(part for part in (self.software, open_part) if part)


@dataclass(frozen=True)
class Checklist:
    """A reporting checklist, for people (Markdown, HTML) and programs (JSON).

    Attributes
    ----------
    session : str
    source : str
        Where the items come from.
    items : tuple of ChecklistItem
    """

    session: str
    source: str
    items: tuple[ChecklistItem, ...]

    def markdown(self) -> str:
        """Return the checklist as a Markdown table for each section."""
        lines = [f"# Reporting checklist: {self.session}", "", self.source]
        section = ""
        for item in self.items:
            if item.section != section:
                section = item.section
                lines += ["", f"## {section}", "", "| item | what to report | this analysis |"]
                lines.append("|---|---|---|")
            lines.append(f"| {item.id} | {item.report} | {item.text} |")
        return "\n".join(lines) + "\n"

    def html(self) -> str:
        """Return the checklist as an HTML table, for a page."""
        rows = [[item.section, item.report, from_markdown(item.text)] for item in self.items]
        header = ["section", "what to report", "this analysis"]
        return html_table(self.source, header, rows, text=(1, 2))

    def json(self) -> str:
        """Return the checklist as JSON."""
        return json.dumps(asdict(self), ensure_ascii=False, indent=1) + "\n"

    def __str__(self) -> str:
        return self.markdown()

    def _repr_markdown_(self) -> str:
        return self.markdown()


def checklist(facts: Facts) -> Checklist:
    """Return the checklist of a result, as far as its reader may see the result."""
    data = _data()
    return Checklist(
        session=facts.definition.name,
        source=data["source"],
        items=tuple(_filled(facts, each) for each in data["item"]),
    )


def _filled(facts: Facts, item: dict[str, Any]) -> ChecklistItem:
    said = (FIELDS[name](facts) for name in item["software"])
    return ChecklistItem(
        id=item["id"],
        section=item["section"],
        report=item["report"],
        software=" ".join(filter(None, said)) or item.get("absent", ""),
        authors=item["authors"],
    )


@functools.cache
def _data() -> dict[str, Any]:
    text = files("fedclust.report").joinpath("reporting_checklist.toml").read_text("utf-8")
    return tomllib.loads(text)


# --- what is in a checklist and not in the text ---------------------------------------------------


def _purpose(facts: Facts) -> str:
    return in_markdown(facts.definition.purpose)


def _approval(facts: Facts) -> str:
    approval = facts.definition.approval
    return f"Approval named in the definition: {in_markdown(approval)}." if approval else ""


def _options(facts: Facts) -> str:
    return f"All options: {in_markdown(named_values(facts.definition.config))}."


def _starts(_facts: Facts) -> str:
    return "The entry on the algorithm says how it started."


def _tried(facts: Facts) -> str:
    lines = []
    for entry in facts.result.sweep or ():
        values = {
            "inertia": entry.inertia,
            "simplified silhouette": entry.simplified_silhouette,
            "Davies-Bouldin": entry.davies_bouldin,
            "agreement of starts": entry.start_agreement,
        }
        stability = entry.result.stability
        if stability is not None:
            values |= {
                "least mean Jaccard index": float(stability.jaccard.min()),
                "prediction strength": stability.prediction_strength,
                "gap": stability.gap,
            }
        known = ", ".join(f"{name} {short(v)}" for name, v in values.items() if v is not None)
        lines.append(f"K = {entry.n_clusters}: {known or 'nothing measured'}")
    return f"{'; '.join(lines)}." if lines else ""


def _definition(facts: Facts) -> str:
    found = (
        "The same rows, definition and software give the same result; only the last digits may "
        "depend on the processor."
    )
    if facts.provenance is None:
        return found
    return f"{found} SHA-256 of the definition: {facts.provenance.definition_sha256}."


def _profiles(facts: Facts) -> str:
    if facts.result.profile is None:
        return ""
    measures = dict.fromkeys(entry.measure for each in facts.clusters for entry in each.entries)
    return (
        f"The report gives by cluster and variable: {', '.join(measures)}; of numbers also the "
        "standard deviation."
    )


def _effects(facts: Facts) -> str:
    """Return what differs between the clusters, over all sites, for each outcome."""
    found = facts.result.outcomes
    if found is None:
        return ""
    lines = []
    for outcome in found.results:
        effects: dict[str, list[str]] = {}
        for each in outcome.comparisons:
            said = f"cluster {each.cluster} {effect_text(each)}"
            effects.setdefault(measure_text(each), []).append(said)
        lines += [
            in_markdown(f"{outcome.name}, {measure}: {'; '.join(said)}.")
            for measure, said in effects.items()
        ]
    return " ".join(lines)


def _warnings(facts: Facts) -> str:
    warnings = facts.result.warnings
    return (
        f"Warnings of the software: {in_markdown(' '.join(warnings))}"
        if warnings
        else "The software gave no warnings."
    )


#: All that an item can name.
FIELDS: dict[str, Callable[[Facts], str]] = {
    **SENTENCES,
    "purpose": _purpose,
    "approval": _approval,
    "options": _options,
    "starts": _starts,
    "tried": _tried,
    "definition": _definition,
    "profiles": _profiles,
    "effects": _effects,
    "warnings": _warnings,
}


#: Files for those who write a paper: what a command or a page writes under each name.
WRITE_UP: dict[str, Callable[[Facts], str]] = {
    "methods.md": methods_text,
    "references.bib": bibtex,
    "checklist.md": lambda facts: checklist(facts).markdown(),
    "checklist.json": lambda facts: checklist(facts).json(),
}
