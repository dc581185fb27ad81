"""Table 1 of a manuscript: the clusters' features and outcomes, as people print them."""

import csv
import io
import itertools
import math
import re
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import PurePath
from typing import Any

from fedclust.result.drawing import short
from fedclust.result.facts import ClusterColumn, Facts
from fedclust.result.markup import html_document, html_table
from fedclust.result.one_cloud import verdict
from fedclust.result.outcomes import cluster_lines, effect_text, event_of, measure_text, noise_notes
from fedclust.result.wording import isolated, percent, plain, spreadsheet_text
from fedclust.schema.display import aligned
from fedclust.schema.encoding import Column
from fedclust.schema.outcomes import OutcomeResult
from fedclust.wire.errors import UsageError, of_extra

#: Endings of a table's file.
FORMATS = (".docx", ".xlsx", ".csv", ".html")
#: The time of files without one: the first that a ZIP file can hold.
_NO_TIME = datetime(1980, 1, 1, tzinfo=UTC)
#: Measures that may differ from those of persons.
_OF_GROUPS = frozenset({"typical value", "share of groups"})
_DASH = "–"
_MARK = " *"


@dataclass(frozen=True)
class TableOne:
    """Features and outcomes by cluster.

    Attributes
    ----------
    title : str
    header : tuple of str
        The headings: an empty one, all persons, each cluster, the largest difference.
    rows : tuple of tuples of str, each as long as ``header``
    footnotes : tuple of str
        What a reader has to know of the numbers.
    completed_at : datetime or None
        When the session ended; None for a simulation.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    footnotes: tuple[str, ...]
    completed_at: datetime | None = None

    def __str__(self) -> str:
        lines = [self.header, *self.rows]
        return "\n".join([self.title, *aligned(lines), *self.footnotes])

    def _repr_html_(self) -> str:
        return self.html()

    def html(self) -> str:
        """Return the table with its footnotes as a fragment of HTML."""
        table = html_table(self.title, self.header, self.rows)
        return table + "".join(f"<p>{escape(line)}</p>" for line in self.footnotes)

    def csv(self) -> str:
        """Return the table as CSV; the footnotes follow as lines of one field."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        lines = [self.header, *self.rows, *((note,) for note in self.footnotes)]
        writer.writerows([_cell_text(cell) for cell in line] for line in lines)
        return text.getvalue()

    def content(self, path: str | PurePath) -> bytes:
        """Return the file in the form given by the ending of its name.

        The same table gives the same bytes.

        Parameters
        ----------
        path : str or path
            Ends in one of ``FORMATS``.

        Raises
        ------
        UsageError
            Another ending, or a package is missing: python-docx for ``.docx``, openpyxl for
            ``.xlsx``.
        """
        ending = PurePath(path).suffix.lower()
        if ending == ".csv":
            return self.csv().encode()
        if ending == ".html":
            return html_document(self.title, self.html()).encode()
        if ending == ".docx":
            return self._docx()
        if ending == ".xlsx":
            return self._xlsx()
        raise UsageError(f"{path}: the file of a table 1 ends in {', '.join(FORMATS)}")

    def _docx(self) -> bytes:
        with of_extra("docx", "a DOCX file needs python-docx"):
            import docx
        document = docx.Document()
        document.add_paragraph(self.title, style="Caption")
        table = document.add_table(rows=0, cols=len(self.header), style="Table Grid")
        for line in (self.header, *self.rows):
            for cell, text in zip(table.add_row().cells, line, strict=True):
                cell.text = text
        for note in self.footnotes:
            document.add_paragraph(note)
        return self._repacked(document)

    def _xlsx(self) -> bytes:
        with of_extra("excel", "an XLSX file needs openpyxl"):
            import openpyxl
        workbook = openpyxl.Workbook()
        sheet = workbook.active
        sheet.title = "Table 1"
        for line in ((self.title,), self.header, *self.rows, *((n,) for n in self.footnotes)):
            sheet.append(list(line))
            for cell in sheet[sheet.max_row]:
                cell.data_type = "s"  # no formula, whatever it begins with
        return self._repacked(workbook)

    def _repacked(self, document: Any) -> bytes:
        """Return a saved document with the session's time in the place of this moment's."""
        at = (self.completed_at or _NO_TIME).astimezone(UTC)
        saved, packed = io.BytesIO(), io.BytesIO()
        document.save(saved)
        with zipfile.ZipFile(saved) as source, zipfile.ZipFile(packed, "w") as target:
            for name in source.namelist():
                entry = zipfile.ZipInfo(name, at.timetuple()[:6])
                entry.create_system = 3  # Unix, on every platform
                content = source.read(name)
                if name == "docProps/core.xml":
                    content = re.sub(
                        rb">[\dT:.-]+Z<", f">{at:%Y-%m-%dT%H:%M:%SZ}<".encode(), content
                    )
                target.writestr(entry, content, zipfile.ZIP_DEFLATED)
        return packed.getvalue()


def _cell_text(text: str) -> str:
    """Return a text that no spreadsheet reads as a formula; a negative number is none."""
    return text if re.match(r"-\d", text) else spreadsheet_text(text)


def table_one(facts: Facts) -> TableOne:
    """Return the table of a result.

    Parameters
    ----------
    facts : Facts
    """
    clusters = facts.clusters
    titles = [isolated(name) for name in facts.cluster_names]
    persons = sum(each.size or 0 for each in clusters)
    sizes = [
        _DASH if each.size is None else f"{each.size} ({percent(each.share)})" for each in clusters
    ]
    rows = [("Persons", str(persons or _DASH), *sizes, "")]
    outcomes = facts.result.outcomes
    # An outcome comes from rows, so it is shown, also where its column is a feature.
    asked = {found.name for found in (outcomes.results if outcomes is not None else ())}
    shown = [j for j, column in enumerate(facts.columns) if column.feature not in asked]
    blocks = itertools.groupby(shown, lambda j: facts.columns[j].feature)
    for feature, places in blocks:
        of_feature = [*places]
        if facts.columns[of_feature[0]].level is not None:
            measure = _written(clusters[0].entries[of_feature[0]].measure, spreads=False)
            rows.append((f"{isolated(feature)}, {measure}", *[""] * (len(clusters) + 2)))
        rows += [_feature_row(facts, j) for j in of_feature]
    for found in outcomes.results if outcomes is not None else ():
        rows += _outcome_rows(found, len(clusters))
    # Groups tell too roughly how far clusters differ (docs/results/table_one.md).
    last = len(clusters) + 2 + (not facts.of_groups)
    return TableOne(
        title=f"Table 1. {facts.definition.title or facts.definition.name}",
        header=("", "All", *titles, "Difference")[:last],
        rows=tuple(row[:last] for row in rows),
        footnotes=tuple(_footnotes(facts)),
        completed_at=facts.completed_at,
    )


def _feature_row(facts: Facts, j: int) -> tuple[str, ...]:
    column, profile = facts.columns[j], facts.result.profile
    entries = [each.entries[j] for each in facts.clusters]
    unit = f" [{column.unit}]" if column.unit else ""
    measures = [entry.measure for entry in entries if entry.mean is not None]
    # A typical value in a row of means has a mark.
    measure = next((each for each in measures if each not in _OF_GROUPS), entries[0].measure)
    marks = [_MARK if entry.measure in _OF_GROUPS - {measure} else "" for entry in entries]
    name = f"  {column.level}" if column.level is not None else f"{isolated(column.name)}{unit}"
    # A level stands below the name of its feature, which says what its numbers are.
    spreads = not facts.of_groups
    said = name if column.level is not None else f"{name}, {_written(measure, spreads=spreads)}"
    everybody = _DASH
    if profile is not None:
        spread = spreads * float(profile.estimated_overall_deviations[j])
        everybody = _value(column, float(profile.overall_means[j]), spread)
    shown = [
        _DASH
        if entry.mean is None or profile is None
        else _value(
            column,
            float(profile.means[k, j]),
            spreads * float(profile.estimated_deviations[k, j]),
        )
        + marks[k]
        for k, entry in enumerate(entries)
    ]
    return (said, everybody, *shown, _largest_difference(entries))


def _written(measure: str, *, spreads: bool) -> str:
    """Return a measure with what stands in brackets."""
    brackets = {"mean": " (SD)", "geometric mean": " (within one SD)"} if spreads else {}
    words = {"share": "%", "share of groups": "% of groups"}
    return words.get(measure, measure) + brackets.get(measure, "")


def _value(column: Column, mean: float, spread: float) -> str:
    """Return a cell of a feature from mean and spread (0: unknown), both with the transform."""
    if column.kind == "binary":
        return f"{100 * min(max(mean, 0.0), 1.0):.1f}"
    undo = {"log": math.exp, "log1p": math.expm1}.get(column.transform)
    if undo is not None:
        centre, low, high = (short(undo(at)) for at in (mean, mean - spread, mean + spread))
        return f"{centre} ({low} to {high})" if spread else centre
    if not spread:
        return short(mean)
    if spread < 1e-4:
        return f"{plain(mean, 3)} ({plain(spread, 3)})"
    # Three digits of the standard deviation, as journals print them.
    digits = min(max(0, 2 - math.floor(math.log10(spread))), 6)
    return f"{mean:.{digits}f} ({spread:.{digits}f})"


def _largest_difference(entries: Sequence[ClusterColumn]) -> str:
    known = [entry.difference for entry in entries if entry.difference is not None]
    if not known or len(known) < len(entries):
        return _DASH
    return f"{max(known) - min(known):.2f}"


def _outcome_rows(found: OutcomeResult, n_clusters: int) -> list[tuple[str, ...]]:
    unit = f" [{isolated(found.unit)}]" if found.unit else ""
    blank = [""] * (n_clusters + 1)
    rows = [(f"{isolated(found.name)}{unit}", _DASH, *blank)]
    lines = [cluster_lines(found, own) for own in found.clusters]
    for place, first in enumerate(lines[0] if lines else ()):
        rows.append((f"  {first.what}", _DASH, *(row[place].number for row in lines), ""))
    compared: dict[str, dict[int, str]] = {}
    for each in found.comparisons:
        compared.setdefault(measure_text(each), {})[each.cluster] = effect_text(each)
    for measure, effects in compared.items():
        cells = [effects.get(k, "reference") for k in range(n_clusters)]
        rows.append((f"  {measure}", _DASH, *cells, ""))
    return rows


def _footnotes(facts: Facts) -> list[str]:
    policy = facts.definition.policy
    notes = []
    if facts.of_groups:
        notes.append(
            f"Features and numbers of persons: from groups of at least {policy.min_group_size} "
            f"persons at {len(facts.sites)} sites, each group with the middle value of its persons."
        )
    else:
        notes.append(
            "Difference: the largest between two clusters, in standard deviations of all persons."
        )
    measures = {entry.measure for each in facts.clusters for entry in each.entries}
    if measures & _OF_GROUPS:
        notes.append(
            f"Typical value ({_MARK.strip()} in a row of means), % of groups: the mean or share of "
            "persons can differ, by an estimate from the groups or because half of a site's groups "
            "or more hold one value."
        )
    outcomes = facts.result.outcomes
    notes += noise_notes(outcomes)
    results = outcomes.results if outcomes is not None else ()
    for found in (each for each in results if each.kind == "time"):
        event, name = event_of(facts, found), isolated(found.name)
        notes.append(f"S(t) of {name}: the share without {event} after t.")
    if any(found.kind == "ordered" for found in results):
        notes.append("Median: interpolated within its cell; it has no number in an open cell.")
    notes.append(verdict(facts.result))
    return [note for note in notes if note]
