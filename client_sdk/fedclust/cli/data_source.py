"""``fedclust data``: register where this site's rows are and how they are read."""

import json
from datetime import UTC, datetime
from typing import Annotated, Any

from fedclust.cli import options as o
from fedclust.cli.console import conclude, err, print_json, show, show_facts, show_list
from fedclust.cli.row_check import show_recognition
from fedclust.data.secret_files import URL_VARIABLE
from fedclust.data.sources import query_has_rows
from fedclust.site.cohorts import CohortStore
from fedclust.site.data_sources import MARK, DataSource, DataSources
from fedclust.site.prepare import SiteRows, recognize
from fedclust.site.state import SiteState
from fedclust.wire.errors import DataError

app = o.group("Register data sources: then --data @NAME stands for a file and all its options.")


def _without_mark(name: str) -> str:
    return name.removeprefix(MARK)


Name = Annotated[str, o.arg("Name of the data source.", callback=_without_mark)]


@o.command(
    app,
    "add",
    "fedclust data add cohort --data cohort.csv --id-column mrn --mapping columns.toml",
    "fedclust data add visits --data visits.sql --sql-url-file address.txt --person-column mrn",
    "fedclust participate heart-2026 --data @cohort",
)
def add(
    how: o.Reading,
    name: Name,
    data: o.Data,
    whose: o.WhoseRows,
    replace: Annotated[bool, o.opt("--replace", "Replace a source of the same name.")] = False,
) -> None:
    """Register a data source, after reading the names of its columns. No row is stored.

    If this site has groups, the command also says how many of the persons are known.
    """
    sources = DataSources()
    columns = sources.add(name, how.given(data, whose), replace=replace)
    source = sources.get(name)
    if not query_has_rows(source.rows()):
        show(err, "warning: the query has no rows; check its dates, concepts and schema")
    if source.data.endswith(".sql") and source.reading.sql_url_file is None:
        show(err, f"warning: the address in {URL_VARIABLE} is not stored: --sql-url-file is")
    facts = _facts(name, source, columns)
    rows = SiteRows(source.rows(), **source.row_options)
    try:
        found = recognize(CohortStore(SiteState()), rows, datetime.now(UTC))
        facts["persons_known"] = None if found is None else vars(found)
        if found is not None:
            show_recognition(found, err)
    except DataError as error:
        show(err, f"warning: a session would refuse these rows: {error}")
    said = f"{MARK}{name}: {len(columns)} columns; now give other commands --data {MARK}{name}"
    conclude(said, facts)


@o.command(app, "list", "fedclust data list --json")
def show_all() -> None:
    """List the registered data sources."""
    show_list(
        [_facts(name, source) for name, source in DataSources().read().items()],
        "no data sources; to register one: fedclust data add NAME --data FILE",
        lambda e: {
            "name": f"{MARK}{e['name']}",
            **{name: e[name] for name in ("data", "id_column", "person_column")},
        },
    )


@o.command(app, "show", "fedclust data show cohort")
def show_one(name: Name) -> None:
    """Show a data source, its options and the names of its columns; no value."""
    source = DataSources().get(name)
    columns: list[str] | None = None
    unreadable: DataError | None = None
    try:
        columns = source.columns()
    except DataError as error:
        unreadable = error
    facts = _facts(name, source, columns)
    if o.wants_json():
        print_json(facts)
    else:
        options = {option: _text(value) for option, value in facts.pop("reading").items()}
        facts.pop("unmatched", None)
        show_facts({**facts, "columns": ", ".join(columns or ()), **options})
    if unreadable is not None:
        raise unreadable
    if names := source.unmatched(columns or []):
        show(err, f"warning: the mapping names columns that are not there: {', '.join(names)}")


@o.command(app, "remove", "fedclust data remove cohort")
def remove(name: Name) -> None:
    """Forget a data source. Its data stay as they are.

    A session that the agent answers with it waits until a source of that name is registered again.
    """
    DataSources().remove(name)
    conclude(f"{MARK}{name} is no longer registered", {"name": name, "state": "removed"})


def _facts(name: str, source: DataSource, columns: list[str] | None = None) -> dict[str, Any]:
    facts: dict[str, Any] = {"name": name, **source.model_dump(mode="json")}
    facts["reading"] = source.reading.model_dump(mode="json", exclude_defaults=True)
    if columns is not None:
        facts |= {"columns": columns, "unmatched": source.unmatched(columns)}
    return facts


def _text(value: Any) -> str:
    """Return an option's value in one line."""
    if isinstance(value, dict):
        return json.dumps(value)
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
