"""Options that several commands share, what they are turned into, and the end of every help.

A parameter whose type is an :class:`OptionGroup` stands for the fields of that class: each is an
option of the command. Those of :class:`Persons`, :class:`Reading` and :class:`Connection` come last
in its help.
"""

import functools
import inspect
import math
import os
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from pydantic.fields import FieldInfo
from typer.models import OptionInfo

from fedclust.cli.console import JSON
from fedclust.cli.output_files import Output, is_labels, is_result
from fedclust.cli.session_file import slug
from fedclust.client import Client
from fedclust.client.http import ConnectionOptions, Http
from fedclust.client.token_file import read_token_file
from fedclust.data.mapping import ReadOptions, read_options
from fedclust.schema.model import Written
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


def opt(name: str, text: str, *, show_default: bool = False, **more: Any) -> Any:
    """Return an option, by default without a default that the help would show."""
    return typer.Option(name, help=text, show_default=show_default, **more)


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


class OptionGroup(Written):
    """Base of options that belong together: their names are those of the fields, with hyphens.

    The text below a field is its help. A mapping in its ``Annotated`` has further arguments of
    ``typer.Option``.
    """

    def refuse_unusable(self) -> None:
        """Raise UsageError for options that cannot be used, before anything else is done."""


class Connection(OptionGroup):
    """How a command reaches its coordinator."""

    coordinator: Annotated[str | None, {"envvar": "FEDCLUST_COORDINATOR"}] = None
    """Address of the coordinator: https://host[:port]"""
    token_file: Annotated[Path | None, {"envvar": "FEDCLUST_TOKEN_FILE"}] = None
    """File with the token, mode 0600; or set FEDCLUST_TOKEN. There is no option for the token
    itself: a command line is visible to others."""
    ca_bundle: Annotated[Path | None, {"envvar": "FEDCLUST_CA_BUNDLE"}] = None
    """Certificate authorities to trust instead of the system's, PEM."""
    client_cert: Path | None = None
    """Client certificate, PEM."""
    client_key: Path | None = None
    """Key of the client certificate, PEM, not encrypted."""
    proxy: Annotated[str | None, {"envvar": "FEDCLUST_PROXY"}] = None
    """Address of the proxy: http://host:port. If it needs a password, set FEDCLUST_PROXY or
    HTTPS_PROXY instead: a command line is visible to others."""

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


class WhoseRows(OptionGroup):
    """Which columns say whose the rows are."""

    id_column: IdColumn = None
    person_column: PersonColumn = None
    id_map: Path | None = None
    """File with the columns new and old: the old id of each new one, for persons whose ids have
    changed; never sent."""


class Persons(WhoseRows):
    """Who the rows are about, and by which of the site's groups they are protected."""

    min_group_size: Annotated[int | None, {"min": 3}] = None
    """Least group size of this site: the smallest number of persons behind any number that it
    sends. If the session's, or that in site.toml, is larger, that applies."""
    cohort: str | None = None
    """Start of the id of the table to use, if persons are in several."""
    separate_groups: str | None = None
    """Approval for forming separate groups of persons who already have groups. A second grouping
    reveals more about each person; the ledger records the approval."""
    other_persons: str | None = None
    """Name of the person who approves it if persons take part whom none of this site's tables
    holds. The ledger records it."""
    no_person_in_another_table: bool = False
    """With --other-persons: the approver also states that none of these persons is in another table
    of this site under another id. The new table then has its own points for questions about
    outcomes."""
    later: str | None = None
    """The rows are later measurements: release each column under its name with this suffix, such as
    _2027."""

    def given(self, source: DataSource) -> RowOptions:
        """Return what :class:`fedclust.Site` takes; the columns are those of ``source``."""
        return {**source.row_options, **table_options(self)}


class Reading(OptionGroup):
    """How a site's rows are read; UsageError says which option is wrong."""

    mapping: Path | None = None
    """TOML file: the site's own column names, units, codes and markers, by feature."""
    missing: list[str] | None = None
    """Text that means a missing value in any column, such as '?'; may be repeated. Empty cells, NA,
    NaN, null, None and . always mean one."""
    sentinel: list[str] | None = None
    """FEATURE=NUMBER: this number of the feature means a missing value, such as chol=0; may be
    repeated."""
    delimiter: str | None = None
    """Character between the columns of a CSV file, or tab. By default it is detected in the
    header."""
    encoding: str | None = None
    """Encoding of a CSV file, such as cp1252. By default UTF-8, or what its first bytes declare."""
    decimal: str | None = None
    """Decimal mark of a CSV file: '.' or ','."""
    columns: str | None = None
    """Names of the columns of a CSV file without a header, comma-separated."""
    sheet: list[str] | None = None
    """Sheet of an Excel workbook; may be repeated for sheets with one header. By default the only
    sheet with rows."""
    header_row: Annotated[int | None, {"min": 1}] = None
    """Number of the header's row in the sheet, or of its line in a CSV file. By default the first
    that is not empty."""
    min_present: float | None = None
    """Least share of values present, 0 to 1. With fewer, this site counts as lacking the
    feature."""
    sql_url_file: Path | None = None
    """File with the address of the database that a query is for, mode 0600; or set
    FEDCLUST_SQL_URL."""
    out_of_core: bool | None = None
    """Read the rows in blocks, if memory cannot hold them."""

    def refuse_unusable(self) -> None:
        """Raise UsageError for an option that cannot be read."""
        _ = self.options

    @property
    def options(self) -> ReadOptions:
        """The options as the SDK takes them."""
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
        given = {name: getattr(self, name) for name in Reading.model_fields if name != "sentinel"}
        given |= {
            "sentinels": sentinels,
            "delimiter": "\t" if self.delimiter in ("tab", "\\t") else self.delimiter,
            "columns": [name.strip() for name in (self.columns or "").split(",") if self.columns],
        }
        return read_options(given, lambda field: "--" + field.replace("_", "-"))

    def given(self, data: str, whose: WhoseRows) -> DataSource:
        """Return what this command says of ``--data``, a file or a registered source."""
        if data == "-":
            raise UsageError("rows are read twice, so not from standard input: give a file")
        if not (data.startswith(MARK) or Path(data).exists()) and data in DataSources().read():
            named = f"{MARK}{data}"
            raise UsageError(f"there is no file {data} here; for the registered source: {named}")
        return DataSource(
            data=data,
            reading=self.options,
            id_column=whose.id_column,
            person_column=whose.person_column,
            id_map=None if whose.id_map is None else str(whose.id_map),
            given=data,
        ).absolute()

    def source(self, data: str, whose: WhoseRows) -> DataSource:
        """Return the rows that ``--data`` names.

        Options of this command replace those of a registered source.
        """
        return self.given(data, whose).resolved()


class Outputs(OptionGroup):
    """Where a site's part of the result is written."""

    labels_out: Path | None = None
    """Write the labels of this site's rows to this CSV file."""
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
        if isinstance(each.annotation, type) and issubclass(each.annotation, OptionGroup)
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
            given[name] = kind(**{field: given.pop(field) for field in kind.model_fields})
            given[name].refuse_unusable()
        function(**given)

    # What typer reads; it would follow __wrapped__ to the function itself.
    run.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in shown}
    del run.__wrapped__
    return run


def _options_of(kind: type[OptionGroup]) -> list[inspect.Parameter]:
    return [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=Annotated[field.annotation, _option(name, field)],
        )
        for name, field in kind.model_fields.items()
    ]


def _option(name: str, field: FieldInfo) -> Any:
    """Return a field of a group as an option of typer."""
    more: dict[str, Any] = {}
    for each in field.metadata:
        if isinstance(each, OptionInfo):
            return each
        if isinstance(each, dict):
            more |= each
    text = " ".join((field.description or "").split())
    return opt(**{"name": "--" + name.replace("_", "-"), "text": text, **more})


def option_names(kind: type[OptionGroup]) -> dict[str, str]:
    """Return a group's options by the names of its fields."""
    return {name: "--" + name.replace("_", "-") for name in kind.model_fields}


def answered_later(data: str, how: Reading, persons: Persons, outputs: Outputs) -> dict[str, Any]:
    """Return the fields of a :class:`SessionSource`; they still hold in another directory."""
    paths = {
        name: None if path is None else str(path.absolute()) for name, path in vars(outputs).items()
    }
    return {**dict(how.given(data, persons)), "given": None, **table_options(persons), **paths}
