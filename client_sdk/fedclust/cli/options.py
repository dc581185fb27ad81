"""Options that several commands share, what they are turned into, and the end of every help.

A parameter whose type is a dataclass stands for the fields of that class: each is an option of the
command. Those of :class:`Persons`, :class:`Reading` and :class:`Connection` come last in its help.
"""

import dataclasses
import functools
import inspect
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Final, get_type_hints

import typer

from fedclust.cli.console import JSON
from fedclust.cli.output_files import Output, is_labels, is_result
from fedclust.cli.session_file import slug
from fedclust.client import Client
from fedclust.client.http import ConnectionOptions, Http
from fedclust.client.token_file import read_token_file
from fedclust.data.mapping import ReadOptions, read_options
from fedclust.data.secret_files import refuse_address
from fedclust.site import Site
from fedclust.site.data_sources import MARK, DataSource, DataSources
from fedclust.site.prepare import RowOptions, table_options
from fedclust.wire import errors
from fedclust.wire.errors import UsageError

EXIT_CODES: tuple[tuple[type[errors.FedclustError], int], ...] = (
    (errors.UsageError, 2),
    (errors.DataError, 3),
    (errors.ConsentError, 4),
    # Refused by the coordinator, and the same kind of mistake as one that is found here.
    (errors.ConsentMissing, 4),
    (errors.ConsentMismatch, 4),
    (errors.DisclosureRefused, 9),
    (errors.RequestTimeout, 6),
    (errors.TooManyRequests, 6),
    (errors.Unavailable, 6),
    (errors.CoordinatorError, 5),
    (errors.TransportError, 6),
    (errors.SessionError, 7),
    (errors.StateError, 8),
    (errors.DisclosureError, 9),
)
#: What a proxy in between answers for a coordinator that it does not reach.
_NO_ANSWER = frozenset({502, 504})
EXIT_MEANINGS: dict[int, str] = {
    0: "done",
    1: "unexpected",
    2: "usage",
    3: "data",
    4: "no consent",
    5: "refused by the coordinator",
    6: "unreachable, busy or TLS",
    7: "session failed, cancelled or left",
    8: "the site's state",
    9: "disclosure check",
    130: "interrupted",
}
EPILOG = "Exit codes: " + ", ".join(f"{n} {said}" for n, said in EXIT_MEANINGS.items()) + "."


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fedclust {version('fedclust')}")
        raise typer.Exit


#: The option of the command itself.
Version = Annotated[
    bool,
    typer.Option(
        "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
    ),
]


def epilog(*lines: str) -> str:
    """Return examples and the exit codes; ``\\b`` stops the lines from being joined."""
    return "\n\n".join(["\b\n" + "\n".join(["Examples:", *(f"  {t}" for t in lines)]), EPILOG])


def exit_code(error: errors.FedclustError) -> int:
    """Return the code that a command ends with."""
    if isinstance(error, errors.CoordinatorError) and error.status in _NO_ANSWER:
        return 6
    return next(code for kind, code in EXIT_CODES if isinstance(error, kind))


#: How long a command that a person waits for is repeated: a coordinator restarts within it.
PATIENCE_S: Final = 15.0
#: Whether the command that runs prints JSON for a script.
wants_json = JSON.get


def opt(name: str, text: str, **more: Any) -> Any:
    """Return an option without a default that the help would show."""
    return typer.Option(name, help=text, show_default=False, **more)


def arg(text: str, **more: Any) -> Any:
    """Return an argument without a default that the help would show."""
    return typer.Argument(help=text, show_default=False, **more)


def group(text: str) -> typer.Typer:
    """Return a command with commands of its own."""
    return typer.Typer(help=text, no_args_is_help=True, rich_markup_mode=None)


def split_names(text: str) -> list[str]:
    """Return the names in a comma-separated list."""
    return [name.strip() for name in text.split(",") if name.strip()]


def slug_or_none(name: str | None) -> str | None:
    """Return a valid name, or None if none was given; UsageError for another."""
    return None if name is None else slug(name)


Session = Annotated[str, arg("Name of the session.", callback=slug)]
Data = Annotated[
    str,
    opt(
        "--data",
        "CSV or Excel file with a header; Parquet file or directory; .sql file with a query; @NAME "
        "for a source that fedclust data add registered.",
        metavar="FILE",
    ),
]
IdColumn = Annotated[
    str | None, opt("--id-column", "Column that identifies rows in the label file; never sent.")
]
LabelsOut = Annotated[
    Path | None, opt("--labels-out", "Write the labels of this site's rows to this CSV file.")
]
ResultOut = Annotated[
    Path | None, opt("--result-out", "Write the result to this file, for `fedclust predict`.")
]
Report = Annotated[
    Path | None,
    opt(
        "--report",
        "Write a report of the result to this .html, .json or .csv file: profiles, sizes, "
        "quality, provenance.",
    ),
]
Full = Annotated[bool, opt("--full", "List every field that leaves and what it can identify.")]
Consent = Annotated[bool, opt("--yes", "Consent to everything that is shown, without asking.")]


@dataclass(frozen=True)
class Connection:
    """How a command reaches its coordinator."""

    coordinator: Annotated[
        str | None,
        opt(
            "--coordinator",
            "Address of the coordinator: https://host[:port]",
            envvar="FEDCLUST_COORDINATOR",
        ),
    ] = None
    token_file: Annotated[
        Path | None,
        opt(
            "--token-file",
            "File with the token, mode 0600; or set FEDCLUST_TOKEN. There is no option for the "
            "token itself: a command line is visible to others.",
            envvar="FEDCLUST_TOKEN_FILE",
        ),
    ] = None
    ca_bundle: Annotated[
        Path | None,
        opt("--ca-bundle", "Certificate authorities to trust instead of the system's, PEM."),
    ] = None
    client_cert: Annotated[Path | None, opt("--client-cert", "Client certificate, PEM.")] = None
    client_key: Annotated[
        Path | None, opt("--client-key", "Key of the client certificate, PEM, not encrypted.")
    ] = None
    proxy: Annotated[
        str | None,
        opt(
            "--proxy",
            "Address of the proxy: http://host:port. If it needs a password, set FEDCLUST_PROXY "
            "or HTTPS_PROXY instead: a command line is visible to others.",
            envvar="FEDCLUST_PROXY",
        ),
    ] = None

    @property
    def url(self) -> str:
        """The coordinator's address; UsageError without one."""
        if self.coordinator is None:
            raise UsageError("no coordinator: give --coordinator, or set FEDCLUST_COORDINATOR")
        return self.coordinator

    @property
    def token(self) -> str:
        """The token, from a file or from FEDCLUST_TOKEN; UsageError without one."""
        if self.token_file is not None:
            return read_token_file(self.token_file)
        if given := os.environ.get("FEDCLUST_TOKEN"):
            return given
        raise UsageError("no token: give --token-file, or set FEDCLUST_TOKEN_FILE")

    def site(self, give_up_after_s: float = PATIENCE_S, *, json_bodies: bool = False) -> Site:
        """Return the connection of a site."""
        http = Http(self.url, self.token, self.options(give_up_after_s))
        # Commands show progress themselves.
        return Site(http=http, json_bodies=json_bodies, progress=False)

    def client(self, give_up_after_s: float = PATIENCE_S) -> Client:
        """Return the connection of an analyst, an operator or a site."""
        return Client(self.url, self.token, self.options(give_up_after_s))

    def options(self, give_up_after_s: float) -> ConnectionOptions:
        """Return certificates, proxy and patience."""
        return ConnectionOptions(
            self.ca_bundle, self.client_cert, self.client_key, self.proxy, give_up_after_s
        )


PersonColumn = Annotated[
    str | None,
    opt("--person-column", "Column that says which rows belong to one person; never sent."),
]


@dataclass(frozen=True)
class WhoseRows:
    """Which columns say whose the rows are."""

    id_column: IdColumn = None
    person_column: PersonColumn = None
    id_map: Annotated[
        Path | None,
        opt(
            "--id-map",
            "File with the columns new and old: the old id of each new one, for persons whose ids "
            "have changed; never sent.",
        ),
    ] = None


@dataclass(frozen=True)
class Persons(WhoseRows):
    """Who the rows are about, and by which of the site's groups they are protected."""

    min_group_size: Annotated[
        int | None,
        opt(
            "--min-group-size",
            "Least group size of this site: the smallest number of persons behind any number that "
            "it sends. If the session's, or that in site.toml, is larger, that applies.",
            min=3,
        ),
    ] = None
    cohort: Annotated[
        str | None,
        opt("--cohort", "Start of the id of the table to use, if persons are in several."),
    ] = None
    separate_groups: Annotated[
        str | None,
        opt(
            "--separate-groups",
            "Approval for forming separate groups of persons who already have groups. A second "
            "grouping reveals more about each person; the ledger records the approval.",
        ),
    ] = None
    other_persons: Annotated[
        str | None,
        opt(
            "--other-persons",
            "Who approves that persons take part whom no table of this site knows; the ledger "
            "records it.",
        ),
    ] = None
    no_person_in_another_table: Annotated[
        bool,
        opt(
            "--no-person-in-another-table",
            "With --other-persons: who approves it states that none of these persons is in "
            "another table of this site, under any id. Their table then has points for outcomes of "
            "its own.",
        ),
    ] = False
    later: Annotated[
        str | None,
        opt(
            "--later",
            "The rows are later measurements: release each column under its name with this suffix, "
            "such as _2027.",
        ),
    ] = None

    def given(self, source: DataSource) -> RowOptions:
        """Return what :class:`fedclust.Site` takes; the columns are those of ``source``."""
        return {**source.row_options, **table_options(self)}


@dataclass(frozen=True)
class Reading:
    """How a site's rows are read; UsageError says which option is wrong."""

    mapping: Annotated[
        Path | None,
        opt(
            "--mapping",
            "TOML file: the site's own column names, units, codes and markers, by feature.",
        ),
    ] = None
    missing: Annotated[
        list[str] | None,
        opt(
            "--missing",
            "Text that means a missing value in any column, such as '?'; may be repeated. Empty "
            "cells, NA, NaN, null, None and . always mean one.",
        ),
    ] = None
    sentinel: Annotated[
        list[str] | None,
        opt(
            "--sentinel",
            "FEATURE=NUMBER: this number of the feature means a missing value, such as chol=0; "
            "may be repeated.",
        ),
    ] = None
    delimiter: Annotated[
        str | None,
        opt(
            "--delimiter",
            "Character between the columns of a CSV file, or tab. By default it is detected in "
            "the header.",
        ),
    ] = None
    encoding: Annotated[
        str | None,
        opt(
            "--encoding",
            "Encoding of a CSV file, such as cp1252. By default UTF-8, or what its first bytes "
            "declare.",
        ),
    ] = None
    decimal: Annotated[str | None, opt("--decimal", "Decimal mark of a CSV file: '.' or ','.")] = (
        None
    )
    columns: Annotated[
        str | None,
        opt("--columns", "Names of the columns of a CSV file without a header, comma-separated."),
    ] = None
    sheet: Annotated[
        str | None,
        opt("--sheet", "Sheet of an Excel workbook. By default the only sheet with rows."),
    ] = None
    header_row: Annotated[
        int | None,
        opt(
            "--header-row",
            "Number of the header's row in the sheet, or of its line in a CSV file. By default the "
            "first that is not empty.",
            min=1,
        ),
    ] = None
    min_present: Annotated[
        float | None,
        opt(
            "--min-present",
            "Least share of values present, 0 to 1. With fewer, this site counts as lacking the "
            "feature.",
        ),
    ] = None
    sql_url_file: Annotated[
        Path | None,
        opt(
            "--sql-url-file",
            "File with the address of the database that a query is for, mode 0600; or set "
            "FEDCLUST_SQL_URL.",
        ),
    ] = None
    out_of_core: Annotated[
        bool | None, opt("--out-of-core", "Read the rows in blocks, if memory cannot hold them.")
    ] = None

    def __post_init__(self) -> None:
        _ = self.options  # before anything else is done

    @functools.cached_property
    def options(self) -> ReadOptions:
        """The options as the SDK takes them; paths are absolute."""
        sentinels: dict[str, list[float]] = {}
        for text in self.sentinel or ():
            name, _, number = text.rpartition("=")
            try:
                marker = float(number)
            except ValueError:
                marker = math.nan
            sentinels.setdefault(name.strip(), []).append(marker)
            if not (name.strip() and math.isfinite(marker)):
                raise UsageError("--sentinel needs FEATURE=NUMBER, for example chol=0")
        given = {name: getattr(self, name) for name in field_names(Reading) if name != "sentinel"}
        given |= {
            "mapping": _absolute_file(self.mapping, "--mapping"),
            "sentinels": sentinels,
            "delimiter": "\t" if self.delimiter in ("tab", "\\t") else self.delimiter,
            "columns": [name.strip() for name in (self.columns or "").split(",") if self.columns],
            "sql_url_file": _absolute_file(self.sql_url_file, "--sql-url-file"),
        }
        return read_options(given, lambda field: "--" + field.replace("_", "-"))

    def given(self, data: str, whose: WhoseRows) -> DataSource:
        """Return what this command says of ``--data``, a file or a registered source."""
        return DataSource(
            data=absolute_data(data),
            reading=self.options,
            id_column=whose.id_column,
            person_column=whose.person_column,
            id_map=_absolute_file(whose.id_map, "--id-map"),
            given=data,
        )

    def source(self, data: str, whose: WhoseRows = WhoseRows()) -> DataSource:
        """Return the rows that ``--data`` names.

        Options of this command replace those of a registered source.
        """
        return self.given(data, whose).resolved()


@dataclass(frozen=True)
class Outputs:
    """Where a site's part of the result is written."""

    labels_out: LabelsOut = None
    result_out: ResultOut = None

    @property
    def files(self) -> tuple[Output, Output]:
        """Both, for :func:`check_outputs`."""
        return (self.labels_out, is_labels), (self.result_out, is_result)


_LAST: Final = (Persons, Reading, Connection)


def command(
    app: typer.Typer, name: str | None, *examples: str, text: str | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a command with ``--json``, and examples for its help.

    ``text`` replaces its docstring there.
    """

    def register(function: Callable[..., None]) -> Callable[..., None]:
        run = with_groups(function, _AS_JSON)
        app.command(name, help=text, epilog=epilog(*examples))(run)
        return run

    return register


_AS_JSON: Final = inspect.Parameter(
    "as_json",
    inspect.Parameter.KEYWORD_ONLY,
    default=False,
    annotation=Annotated[bool, opt("--json", "Print JSON for a script.")],
)


def with_groups(function: Callable[..., None], *further: inspect.Parameter) -> Callable[..., None]:
    """Replace each parameter that is a group of options by these options.

    ``further`` ones the function does not get.
    """
    parameters = inspect.signature(function, eval_str=True).parameters.values()
    groups: dict[str, Any] = {
        each.name: each.annotation
        for each in parameters
        if dataclasses.is_dataclass(each.annotation)
    }
    last = sorted(set(groups.values()).intersection(_LAST), key=_LAST.index)
    shown: list[inspect.Parameter] = []
    for each in parameters:
        if each.name not in groups:
            shown.append(each.replace(kind=inspect.Parameter.KEYWORD_ONLY))
        elif each.annotation not in _LAST:
            shown += _options_of(each.annotation)
    shown += further
    for kind in last:
        shown += _options_of(kind)

    @functools.wraps(function)
    def run(**given: Any) -> None:
        JSON.set(given.pop("as_json", False))
        for name, kind in groups.items():
            given[name] = kind(**{field: given.pop(field) for field in field_names(kind)})
        function(**given)

    # What typer reads; it would follow __wrapped__ to the function itself.
    run.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in shown}
    del run.__wrapped__
    return run


def _options_of(kind: type) -> list[inspect.Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=hints[field.name],
        )
        for field in dataclasses.fields(kind)
    ]


def field_names(kind: type) -> list[str]:
    """Return the names of a group's options."""
    return [field.name for field in dataclasses.fields(kind)]


def absolute(path: Path | None) -> str | None:
    """Return a path that still holds in another directory."""
    return None if path is None else str(path.resolve())


def answered_later(data: str, how: Reading, persons: Persons, outputs: Outputs) -> dict[str, Any]:
    """Return the fields of a :class:`SessionSource`; they still hold in another directory."""
    paths = {name: absolute(path) for name, path in vars(outputs).items()}
    given = {**vars(persons), "id_map": absolute(persons.id_map)}
    return {"data": absolute_data(data), "reading": how.options, **given, **paths}


def _absolute_file(path: Path | None, option: str) -> str | None:
    """Return :func:`absolute`; UsageError if the option was given a database's address."""
    return None if path is None else absolute(Path(refuse_address(str(path), option)))


def absolute_data(data: str) -> str:
    """Return the path of data that still holds in another directory; ``@NAME`` as it is."""
    if data == "-":
        raise UsageError("rows are read twice, so not from standard input: give a file")
    if data.startswith(MARK):
        return data
    path = Path(refuse_address(data, "--data"))
    if not path.exists() and data in DataSources().read():
        raise UsageError(f"there is no file {data} here; for the registered source: {MARK}{data}")
    return str(path.absolute())
