"""Options that several commands share, and what they are turned into."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from fedclust.errors import UsageError
from fedclust.site import Site

Session = Annotated[str, typer.Argument(help="Name of the session.", show_default=False)]
Data = Annotated[Path, typer.Option("--data", help="CSV file with a header.", show_default=False)]
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
MinClusterSize = Annotated[
    int | None,
    typer.Option(
        "--min-cluster-size",
        min=2,
        help="This site's own smallest count; the larger of it and the session's holds.",
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


def read_token(path: Path | None) -> str | None:
    """Read a token from a file that only its owner may read; None to use FEDCLUST_TOKEN."""
    if path is None:
        if not os.environ.get("FEDCLUST_TOKEN"):
            raise UsageError("no token: give --token-file, or set FEDCLUST_TOKEN")
        return None
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


def open_site(
    coordinator: str | None,
    token_file: Path | None,
    journal_dir: Path | None,
    ca_bundle: Path | None,
    client_cert: Path | None,
    client_key: Path | None,
    proxy: str | None,
    give_up_after: float = 86_400.0,
    json_bodies: bool = False,
) -> Site:
    """Return the connection that the shared options describe."""
    if coordinator is None:
        raise UsageError("no coordinator: give --coordinator, or set FEDCLUST_COORDINATOR")
    return Site(
        coordinator,
        read_token(token_file),
        journal_dir=journal_dir,
        ca_bundle=ca_bundle,
        client_cert=client_cert,
        client_key=client_key,
        proxy=proxy,
        give_up_after_s=give_up_after,
        json_bodies=json_bodies,
    )


def check_outputs(outputs: Sequence[Path | None], inputs: Sequence[Path]) -> None:
    """Refuse outputs that could not be written, before a session takes its days.

    Nor may one replace what the command reads, or another output.
    """
    taken = [path.resolve() for path in inputs]
    for path in outputs:
        if path is None:
            continue
        if path.exists() and not path.is_file():
            raise UsageError(f"{path} cannot be written: it is no file")
        if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
            raise UsageError(f"{path} cannot be written: the directory is missing or read-only")
        if path.resolve() in taken:
            raise UsageError(f"{path} would be overwritten: name another file for the output")
        taken.append(path.resolve())
