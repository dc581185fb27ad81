"""``fedclust check``: how a site's rows match a session, before anything is joined or sent."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from fedclust.algorithms.engine import Plan
from fedclust.answers import accepted_plan, count_usable
from fedclust.cli import options as o
from fedclust.cli.console import ProgressLine, consent_screen, out, print_json, show
from fedclust.cli.help_text import epilog
from fedclust.cli.session_file import read_json
from fedclust.consent import ConsentRequest
from fedclust.data.persons import read_persons
from fedclust.data.profile import ColumnProfile, Profile, profile
from fedclust.data.tables import held_features, measure_persons, session_rows, site_data
from fedclust.definition import DefinitionError, check_definition, freeze, plan_of
from fedclust.errors import DataError, DisclosureError, UsageError
from fedclust.privacy.bands import size_band
from fedclust.protection.figures import TableFigures
from fedclust.wire.codec import canonical_json
from fedclust.wire.models import SessionCreate

app = typer.Typer(rich_markup_mode=None)


@app.command(
    epilog=epilog(
        "fedclust check heart-2026 --data cohort.csv --token-file token \\",
        "    --coordinator https://coordinator.example",
        "fedclust check --definition heart.json --data cohort.csv --mapping columns.toml",
    )
)
@o.connected
@o.reading
def check(
    connection: o.Connection,
    how: o.Reading,
    data: o.Data,
    session: Annotated[
        str | None, typer.Argument(help="Name of the session.", show_default=False)
    ] = None,
    definition: Annotated[
        Path | None,
        typer.Option(
            "--definition",
            help="The session's definition in a JSON file, instead of a session: no coordinator "
            "is asked.",
            show_default=False,
        ),
    ] = None,
    id_column: o.IdColumn = None,
    person_column: o.PersonColumn = None,
    min_group_size: o.MinGroupSize = None,
    cohort: o.Cohort = None,
    separate_groups: o.SeparateGroups = None,
    full: o.Full = False,
    journal_dir: o.JournalDir = None,
    as_json: o.AsJson = False,
) -> None:
    """Match rows with a session's features and show what consent would be to; send nothing."""
    if (session is None) == (definition is None):
        raise UsageError("give the name of a session, or --definition FILE: one of them")
    line = ProgressLine(at_once=False)
    rows, request = how.of(data, line.read), None
    identified: dict[str, Any] = {"person": person_column, "id_column": id_column}
    if definition is not None:
        body = read_definition(definition)
    else:
        assert session is not None  # noqa: S101  (one of the two is given)
        with connection.client() as client:
            info = client.session(session)
        accepted_plan(session, info)
        body = info.definition
    text = [name for name in (person_column, id_column) if name is not None]
    lacking = body.policy.missing == "mask"
    p = max(body.policy.min_group_size, min_group_size or 0)
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
        # As participating would read them, for what a profile does not look at.
        try:
            if session is None:
                plan = plan_of(freeze(body, seed=0))
                with line:
                    usable, figures = _table_of(plan, rows, p, identified)
            else:
                with connection.site(journal_dir) as site, line:
                    request = site.check(
                        session,
                        rows,
                        **identified,
                        min_group_size=min_group_size,
                        cohort=cohort,
                        separate_groups=separate_groups,
                    )
                usable, figures = request.persons, request.figures
        except (DataError, DisclosureError) as error:
            found = dataclasses.replace(found, refused=error)
    if as_json:
        print_json(_facts(body, found, request, usable, p, figures))
    else:
        if request is not None:
            consent_screen(request, full=full)
        _show(found, usable, p, figures)
    if found.refused is not None:
        raise found.refused


def _table_of(
    plan: Plan, rows: Any, p: int, identified: Mapping[str, Any]
) -> tuple[int, TableFigures | None]:
    """Return how many persons would take part, and the figures of the table that they would form.

    Raises
    ------
    DataError, DisclosureError
        Taking part would be refused.
    """
    if plan.policy.protection == "none":
        data, _ = site_data(plan, rows, session_rows(plan, rows, **identified), p, **identified)
        return count_usable(plan, data), None
    lacking = plan.policy.missing == "mask"
    persons = read_persons(rows, plan.features, **identified, lacking=lacking)
    data, figures = measure_persons(plan, persons, p)
    held_features(plan, persons, data)
    return count_usable(plan, data), figures


def read_definition(path: Path) -> SessionCreate:
    """Read a definition: what creates a session, or what `fedclust session show --json` prints."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    tree = read_json(data, path)
    try:
        if isinstance(tree, dict) and isinstance(tree.get("definition"), dict):
            tree = tree["definition"]
        if isinstance(tree, dict):
            tree = {key: value for key, value in tree.items() if key != "method_version"}
        body = SessionCreate.model_validate_json(canonical_json(tree))
        check_definition(body)
    except DefinitionError as error:
        raise UsageError(f"{path}: {error}") from None
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = "/".join(str(part) for part in fault["loc"])
        raise UsageError(f"{path}: /{place}: {fault['msg']}") from None
    except (ValueError, TypeError):
        raise UsageError(f"{path}: this is no definition of a session in JSON") from None
    return body


def _facts(
    body: SessionCreate,
    found: Profile,
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
    """Return the facts about a source that could not be read: why, and no number of rows."""
    found = Profile(error.source, 0, 0, (), 0, (), error)
    unknown = dict.fromkeys(("rows", "usable_rows", "size_band", "enough_rows"))
    return {**_facts(body, found, None, 0, p), **unknown}


def _show(found: Profile, usable: int, p: int, figures: TableFigures | None) -> None:
    show(out, f"{found.source}: {_matched(found)}, {found.rows} rows", "bold")
    for line in _grid(found):
        show(out, line)
    for column in found.columns:
        for line in _lines(column):
            show(out, textwrap.fill(line, 98, initial_indent="  ", subsequent_indent="    "))
    if found.unused:
        show(out, f"the mapping's features that are not in this session: {', '.join(found.unused)}")
    if found.ignored:
        show(out, f"columns that are left alone: {found.ignored}")
    show(out, "These figures stay here: check sends nothing of the rows.")
    if found.refused is None:
        show(out, f"persons who take part: {usable}")
        if usable < p:
            show(out, f"fewer persons than {p}: this site would answer every round empty")
    if figures is not None:
        for line in _of_table(figures):
            show(out, line)


def _of_table(figures: TableFigures) -> Iterator[str]:
    """Yield how close the protected table is to the persons behind it, by column."""
    smallest, largest = figures.group_sizes
    yield f"table: {figures.n_groups} groups of {smallest} to {largest} persons"
    if figures.distance_sd is not None:
        yield f"half of the persons are within {figures.distance_sd:.2f} sd of their group's mean"
    shares = {
        "in groups of one value": figures.one_value,
        "beyond a fence": figures.fenced,
        "not released": figures.unreleased,
    }
    yield f"{'persons by column':24}" + "".join(f"{name:>24}" for name in shares)
    for column in figures.one_value:
        told = (f"{share[column]:.1%}" if column in share else "" for share in shares.values())
        yield f"  {column:22}" + "".join(f"{each:>24}" for each in told)


def _grid(found: Profile) -> list[str]:
    """Return a line for each feature; not a table that folds where a terminal is narrow."""
    lines = [["feature", "column here", "", "missing", "least", "mean", "sd", "most"]]
    for column in found.columns:
        unit = f" [{column.unit}]" if column.unit else ""
        line = [column.feature + unit, column.column or "-", column.state]
        if column.column is not None:
            numbers = (column.minimum, column.mean, column.sd, column.maximum)
            line.append(f"{1 - column.present:.1%}")
            line += ["" if value is None else f"{value:.5g}" for value in numbers]
        lines.append(line + [""] * (8 - len(line)))
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if place < 3 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]


def _matched(found: Profile) -> str:
    d, there = len(found.columns), sum(c.state in ("ok", "warning") for c in found.columns)
    return f"all {d} features" if there == d else f"{there} of {d} features"


def _lines(column: ColumnProfile) -> list[str]:
    lines = [f"{column.feature}: {text}" for text in column.says]
    if column.levels and column.n:
        shares = (f"{name} {count / column.n:.1%}" for name, count in column.levels.items())
        lines.append(f"{column.feature}: {', '.join(shares)}")
    return lines
