"""``fedclust check``: how a site's rows match a session, before the site joins."""

from __future__ import annotations

import dataclasses
import textwrap
from pathlib import Path
from typing import Annotated, Any

import typer

from fedclust.cli import options as o
from fedclust.cli.console import ProgressLine, consent_screen, out, print_json, show, show_table
from fedclust.cli.session_file import read_definition_file
from fedclust.data.persons import read_persons
from fedclust.data.profile import ColumnProfile, SourceProfile, profile
from fedclust.data.site_data import held_features, measure_persons, session_rows, site_data
from fedclust.definition import freeze, plan_of
from fedclust.engine import Plan
from fedclust.errors import DataError, DisclosureError, UsageError
from fedclust.protection.figures import TableFigures
from fedclust.protection.size_bands import size_band
from fedclust.site.compute import accepted_plan, count_usable
from fedclust.site.consent import ConsentRequest
from fedclust.site.data_sources import DataSource
from fedclust.wire.models import SessionCreate

app = typer.Typer(rich_markup_mode=None)


@o.command(
    app,
    "check",
    "fedclust check heart-2026 --data cohort.csv --token-file token \\",
    "    --coordinator https://coordinator.example",
    "fedclust check --definition heart.json --data cohort.csv --mapping columns.toml",
)
# Each parameter is an option, or a group of them, of the command.
def check(
    connection: o.Connection,
    how: o.Reading,
    persons: o.Persons,
    data: o.Data,
    session: Annotated[str | None, o.arg("Name of the session.")] = None,
    definition: Annotated[
        Path | None,
        o.opt(
            "--definition",
            "JSON file with the session's definition, instead of SESSION; no coordinator is "
            "needed.",
        ),
    ] = None,
    full: o.Full = False,
    journal_dir: o.JournalDir = None,
    as_json: o.AsJson = False,
) -> None:
    """Match rows with a session's features and show what you would consent to; send nothing."""
    if (session is None) == (definition is None):
        raise UsageError("give either the name of a session or --definition FILE")
    line = ProgressLine(at_once=False)
    source = how.source(data, persons)
    rows, given, request = source.rows(line.read), persons.given(source), None
    body = _body(connection, session, definition)
    text = [name for name in (source.person_column, source.id_column) if name is not None]
    lacking = body.policy.missing == "mask"
    p = max(body.policy.min_group_size, persons.min_group_size or 0)
    try:
        with line:
            found = profile(rows, body.features, text=text, lacking=lacking)
    except DataError as error:
        if as_json:
            print_json(_unread(body, error, p))
        raise
    usable = found.complete_rows if body.policy.missing == "drop" else found.rows
    figures = None
    if found.refused is None:
        # Read the rows as participating would: a profile does not check everything.
        try:
            if session is None:
                plan = plan_of(freeze(body, seed=0))
                with line:
                    usable, figures = _table_of(plan, rows, p, source)
            else:
                with connection.site(journal_dir) as site, line:
                    request = site.check(session, rows, **given)
                usable, figures = request.persons, request.figures
        except (DataError, DisclosureError) as error:
            found = dataclasses.replace(found, refused=error)
    if as_json:
        print_json(_check_facts(body, found, request, usable, p, figures))
    else:
        if request is not None:
            consent_screen(request, full=full)
        _show_profile(found, usable, p, figures)
    if found.refused is not None:
        raise found.refused


def _body(connection: o.Connection, session: str | None, definition: Path | None) -> SessionCreate:
    if session is None:
        assert definition is not None  # noqa: S101  (one of the two is given)
        return read_definition_file(definition)
    with connection.client() as client:
        info = client.session(session)
    accepted_plan(session, info)
    return info.definition


def _table_of(plan: Plan, rows: Any, p: int, source: DataSource) -> tuple[int, TableFigures | None]:
    """Return how many persons would take part, and the figures of the table that they would form.

    DataError or DisclosureError if taking part would be refused.
    """
    identified: Any = source.row_options
    if plan.policy.protection == "none":
        data, _ = site_data(plan, rows, session_rows(plan, rows, **identified), p, **identified)
        return count_usable(plan, data), None
    lacking = plan.policy.missing == "mask"
    read = read_persons(rows, plan.features, **identified, lacking=lacking)
    data, figures = measure_persons(plan, read, p)
    held_features(plan, read, data)
    return count_usable(plan, data), figures


def _check_facts(
    body: SessionCreate,
    found: SourceProfile,
    request: ConsentRequest | None,
    usable: int,
    p: int,
    figures: TableFigures | None = None,
) -> dict[str, Any]:
    refused = found.refused
    return {
        "session": body.name,
        "definition_sha256": None if request is None else request.definition_sha256,
        "features": [feature.name for feature in body.features],
        "rows": found.rows,
        "usable_rows": usable,
        "size_band": size_band(usable),
        "min_group_size": p,
        "enough_rows": usable >= p,
        "refused": None if refused is None else {"rule": refused.rule, "message": str(refused)},
        "table": None if figures is None else dataclasses.asdict(figures),
        "columns": [dataclasses.asdict(column) for column in found.columns],
        "ignored_columns": found.ignored,
        "unused_mappings": found.unused,
    }


def _unread(body: SessionCreate, error: DataError, p: int) -> dict[str, Any]:
    """Return the facts about a source that could not be read: the reason, but no counts."""
    found = SourceProfile(error.source, 0, 0, (), 0, (), error)
    unknown = dict.fromkeys(("rows", "usable_rows", "size_band", "enough_rows"))
    return {**_check_facts(body, found, None, 0, p), **unknown}


def _show_profile(found: SourceProfile, usable: int, p: int, figures: TableFigures | None) -> None:
    show(out, f"{found.source}: {_matched(found)}, {found.rows} rows", "bold")
    headings = ["feature", "column here", "", "missing", "least", "mean", "sd", "most"]
    show_table(headings, map(_column_row, found.columns), right=3)
    for column in found.columns:
        for line in _column_lines(column):
            show(out, textwrap.fill(line, 98, initial_indent="  ", subsequent_indent="    "))
    if found.unused:
        show(out, f"features of the mapping that this session has not: {', '.join(found.unused)}")
    if found.ignored:
        show(out, f"columns that are not used: {found.ignored}")
    show(out, "These figures stay here; check sends nothing about the rows.")
    if found.refused is None:
        show(out, f"persons who take part: {usable}")
        if usable < p:
            show(out, f"fewer persons than {p}: this site would send only empty submissions")
    if figures is not None:
        _show_table_figures(figures)


def _show_table_figures(figures: TableFigures) -> None:
    """Show how close the protected table is to the persons behind it, by column."""
    smallest, largest = figures.group_sizes
    show(out, f"table: {figures.n_groups} groups of {smallest} to {largest} persons")
    if figures.distance_sd is not None:
        near = f"{figures.distance_sd:.2f} sd of their group's mean"
        show(out, f"half of the persons are within {near}")
    shares = {
        "in groups of one value": figures.one_value,
        "beyond a fence": figures.fenced,
        "not released": figures.unreleased,
    }
    rows = [
        [name, *(f"{each[name]:.1%}" if name in each else "" for each in shares.values())]
        for name in figures.one_value
    ]
    show_table(["persons by column", *shares], rows, right=1)


def _column_row(column: ColumnProfile) -> list[str]:
    """Return what is shown of a feature."""
    unit = f" [{column.unit}]" if column.unit else ""
    cells = [column.feature + unit, column.column or "-", column.state]
    if column.column is None:
        return cells + [""] * 5
    numbers = (column.minimum, column.mean, column.sd, column.maximum)
    shown = ["" if value is None else f"{value:.5g}" for value in numbers]
    return [*cells, f"{1 - column.present:.1%}", *shown]


def _matched(found: SourceProfile) -> str:
    d, there = len(found.columns), sum(c.state in ("ok", "warning") for c in found.columns)
    return f"all {d} features" if there == d else f"{there} of {d} features"


def _column_lines(column: ColumnProfile) -> list[str]:
    lines = [f"{column.feature}: {text}" for text in column.says]
    if column.levels and column.n:
        shares = (f"{name} {count / column.n:.1%}" for name, count in column.levels.items())
        lines.append(f"{column.feature}: {', '.join(shares)}")
    return lines
