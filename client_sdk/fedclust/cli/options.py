"""Options that several commands share, and what they are turned into."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from fedclust._http import Options
from fedclust.client import Client
from fedclust.data import Dataset
from fedclust.data.mapping import OnRead, ReadOptions, read_options
from fedclust.errors import UsageError
from fedclust.site import Site

#: How long a command goes on trying that a person waits for: a coordinator is restarted within it.
PATIENCE_S: Final = 15.0
Session = Annotated[str, typer.Argument(help="Name of the session.", show_default=False)]
Data = Annotated[
    Path,
    typer.Option(
        "--data",
        help="CSV file with a header; Parquet file or directory; .sql file with a query.",
        show_default=False,
    ),
]
Coordinator = Annotated[
    str | None,
    typer.Option(
        "--coordinator",
        envvar="FEDCLUST_COORDINATOR",
        help="https://host[:port]",
        show_default=False,
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        envvar="FEDCLUST_TOKEN_FILE",
        help="File with the token, mode 0600; or set FEDCLUST_TOKEN. There is no option for the "
        "token itself: a command line is visible to others.",
        show_default=False,
    ),
]
IdColumn = Annotated[
    str | None,
    typer.Option(
        "--id-column",
        help="Column that names rows in the label file; never sent.",
        show_default=False,
    ),
]
PersonColumn = Annotated[
    str | None,
    typer.Option(
        "--person-column",
        help="Column that says which rows belong to one person; never sent.",
        show_default=False,
    ),
]
Full = Annotated[
    bool, typer.Option("--full", help="List every field that leaves and what it can identify.")
]
MinGroupSize = Annotated[
    int | None,
    typer.Option(
        "--min-group-size",
        min=3,
        help="This site's own least group size; the larger of it and the session's holds.",
        show_default=False,
    ),
]
Cohort = Annotated[
    str | None,
    typer.Option(
        "--cohort",
        help="The start of the id of the table that is meant, where persons are in several.",
        show_default=False,
    ),
]
SeparateGroups = Annotated[
    str | None,
    typer.Option(
        "--separate-groups",
        help="The approval of groups apart from those that these persons have. A second grouping "
        "tells more about each person; the approval is entered in the ledger.",
        show_default=False,
    ),
]
Report = Annotated[
    Path | None,
    typer.Option(
        "--report",
        help="Where a report of the result goes: profiles, sizes, quality, provenance. "
        ".html, .json or .csv.",
        show_default=False,
    ),
]
JournalDir = Annotated[
    Path | None,
    typer.Option(
        "--journal-dir",
        envvar="FEDCLUST_JOURNAL_DIR",
        help="Where journal and ledger are kept; by default the platform's state directory.",
        show_default=False,
    ),
]
CaBundle = Annotated[
    Path | None,
    typer.Option(
        "--ca-bundle",
        help="Authorities to trust, PEM, instead of the system's.",
        show_default=False,
    ),
]
ClientCert = Annotated[
    Path | None,
    typer.Option("--client-cert", help="Client certificate, PEM.", show_default=False),
]
ClientKey = Annotated[
    Path | None,
    typer.Option("--client-key", help="Its key, PEM, not encrypted.", show_default=False),
]
Proxy = Annotated[
    str | None,
    typer.Option(
        "--proxy",
        envvar="FEDCLUST_PROXY",
        help="http://host:port. Where it needs a password, set FEDCLUST_PROXY or HTTPS_PROXY "
        "instead: a command line is visible to others.",
        show_default=False,
    ),
]
GiveUpAfter = Annotated[
    float,
    typer.Option("--give-up-after", help="Seconds to go on trying without any answer.", min=0),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for a script.")]


def read_token(path: Path | None) -> str:
    """Read a token from a file that only its owner may read, or from FEDCLUST_TOKEN."""
    if path is None:
        given = os.environ.get("FEDCLUST_TOKEN")
        if not given:
            raise UsageError("no token: give --token-file, or set FEDCLUST_TOKEN_FILE")
        return given
    try:
        if path.is_file() and sys.platform != "win32" and path.stat().st_mode & 0o077:
            raise UsageError(f"{path} can be read by others: chmod 600 {path}")
        token = path.read_text(encoding="utf-8-sig").strip()
    except OSError as error:
        raise UsageError(f"{path}: the token cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: this is no token file") from None
    if not token:
        raise UsageError(f"{path} is empty: it holds the token, fcs_..., and nothing else")
    return token


@dataclass(frozen=True)
class Connection:
    """How a command reaches its coordinator, as given."""

    coordinator: str | None = None
    token_file: Path | None = None
    ca_bundle: Path | None = None
    client_cert: Path | None = None
    client_key: Path | None = None
    proxy: str | None = None

    @property
    def url(self) -> str:
        """The coordinator's address; UsageError without one."""
        if self.coordinator is None:
            raise UsageError("no coordinator: give --coordinator, or set FEDCLUST_COORDINATOR")
        return self.coordinator

    @property
    def token(self) -> str:
        """The token; UsageError without one."""
        return read_token(self.token_file)

    def site(
        self,
        journal_dir: Path | None,
        give_up_after_s: float = PATIENCE_S,
        *,
        json_bodies: bool = False,
    ) -> Site:
        """Return the connection of a site."""
        return Site(
            self.url,
            self.token,
            journal_dir=journal_dir,
            ca_bundle=self.ca_bundle,
            client_cert=self.client_cert,
            client_key=self.client_key,
            proxy=self.proxy,
            give_up_after_s=give_up_after_s,
            json_bodies=json_bodies,
        )

    def client(self, give_up_after_s: float = PATIENCE_S) -> Client:
        """Return the connection of an analyst, an operator or a site."""
        return Client(self.url, self.token, self.options(give_up_after_s))

    def options(self, give_up_after_s: float) -> Options:
        """Return certificates, proxy and patience."""
        return Options(
            self.ca_bundle, self.client_cert, self.client_key, self.proxy, give_up_after_s
        )


#: The options by which a coordinator is reached.
CONNECTION: Final = {
    "coordinator": Coordinator,
    "token_file": TokenFile,
    "ca_bundle": CaBundle,
    "client_cert": ClientCert,
    "client_key": ClientKey,
    "proxy": Proxy,
}


#: The options by which a site says how its rows are to be read.
READING: Final = {
    "mapping": Annotated[
        Path | None,
        typer.Option(
            "--mapping",
            help="TOML file: the site's own column names, units, codes and markers, by feature.",
            show_default=False,
        ),
    ],
    "missing": Annotated[
        list[str] | None,
        typer.Option(
            "--missing",
            help="What means a missing value in any column, such as '?'; may be repeated. Empty, "
            "NA, NaN, null, None and . always do.",
            show_default=False,
        ),
    ],
    "sentinel": Annotated[
        list[str] | None,
        typer.Option(
            "--sentinel",
            help="FEATURE=NUMBER that means a missing value, such as chol=0; may be repeated.",
            show_default=False,
        ),
    ],
    "delimiter": Annotated[
        str | None,
        typer.Option(
            "--delimiter",
            help="Between the columns of a CSV file: one character, or tab. By default the one "
            "that the header speaks for.",
            show_default=False,
        ),
    ],
    "encoding": Annotated[
        str | None,
        typer.Option(
            "--encoding",
            help="Of a CSV file, such as cp1252. By default UTF-8, or what its first bytes say.",
            show_default=False,
        ),
    ],
    "decimal": Annotated[
        str | None,
        typer.Option(
            "--decimal", help="Decimal mark of a CSV file: a point, or ','.", show_default=False
        ),
    ],
    "columns": Annotated[
        str | None,
        typer.Option(
            "--columns",
            help="Names of the columns of a CSV file without a header, comma-separated.",
            show_default=False,
        ),
    ],
    "min_present": Annotated[
        float | None,
        typer.Option(
            "--min-present",
            help="Share of values, 0 to 1, below which this site counts as lacking a feature.",
            show_default=False,
        ),
    ],
    "sql_url_file": Annotated[
        Path | None,
        typer.Option(
            "--sql-url-file",
            help="File with the database's address for a query; or set FEDCLUST_SQL_URL.",
            show_default=False,
        ),
    ],
    "out_of_core": Annotated[
        bool | None,
        typer.Option(
            "--out-of-core",
            help="Read the rows in blocks, where memory cannot hold them.",
            show_default=False,
        ),
    ],
}


@dataclass(frozen=True)
class Reading:
    """How rows are to be read, as given."""

    options: ReadOptions

    @property
    def inputs(self) -> tuple[Path, ...]:
        """The files that are read beside the rows; no output may replace one."""
        named = (self.options.mapping, self.options.sql_url_file)
        return tuple(Path(name) for name in named if isinstance(name, str))

    def of(self, path: Path, on_read: OnRead | None = None) -> Dataset:
        """Return a file's rows, read like this."""
        return Dataset.of(path, self.options, on_read)

    @classmethod
    def given(
        cls,
        mapping: Path | None,
        missing: list[str] | None,
        sentinel: list[str] | None,
        delimiter: str | None,
        encoding: str | None,
        decimal: str | None,
        columns: str | None,
        min_present: float | None,
        sql_url_file: Path | None,
        out_of_core: bool | None,
    ) -> Reading:
        """Check what was given; UsageError says what cannot be. Paths become absolute."""
        sentinels: dict[str, list[float]] = {}
        for text in sentinel or ():
            name, _, number = text.rpartition("=")
            try:
                sentinels.setdefault(name.strip(), []).append(float(number))
            except ValueError:
                name = ""
            if not name.strip():
                raise UsageError("--sentinel wants FEATURE=NUMBER, for example chol=0")
        given = {
            "mapping": None if mapping is None else str(mapping.resolve()),
            "missing": missing or [],
            "sentinels": sentinels,
            "delimiter": "\t" if delimiter in ("tab", "\\t") else delimiter,
            "encoding": encoding,
            "decimal": decimal,
            "columns": [name.strip() for name in columns.split(",")] if columns else [],
            "min_present": min_present,
            "sql_url_file": None if sql_url_file is None else str(sql_url_file.resolve()),
            "out_of_core": bool(out_of_core),
        }
        return cls(read_options(given))


def connected(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options by which a coordinator is reached; it takes ``connection``."""
    return _with(command, "connection", CONNECTION, Connection)


def reading(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options by which rows are read; it takes ``how``."""
    return _with(command, "how", READING, Reading.given)


def _with(
    command: Callable[..., None],
    parameter: str,
    options: dict[str, Any],
    made: Callable[..., Any],
) -> Callable[..., None]:
    """Replace a command's ``parameter`` by ``options``, of which ``made`` makes its value."""
    own = [
        each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for each in inspect.signature(command, eval_str=True).parameters.values()
        if each.name != parameter
    ]
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in options.items()
    ]

    @functools.wraps(command)
    def run(**given: Any) -> None:
        value = made(**{name: given.pop(name) for name in options})
        command(**{parameter: value}, **given)

    # What typer reads; it would follow __wrapped__ to the command itself.
    run.__signature__ = inspect.Signature([*own, *shared])  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in [*own, *shared]}
    del run.__wrapped__
    return run
