"""Whether this machine can take part: what is well, what is not, and what to do about it."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import socket
import ssl
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import typer

from fedclust import errors, journal
from fedclust._http import Http, tls_context
from fedclust.cli import options as o
from fedclust.cli.screen import out, print_json, show
from fedclust.cli.texts import epilog, exit_code
from fedclust.client import Client
from fedclust.data import load
from fedclust.privacy.files import private_directory
from fedclust.privacy.ledger import Ledger
from fedclust.wire.models import PROTOCOL_VERSION, WhoAmI

app = typer.Typer(rich_markup_mode=None)
_LEAST_DISK = 200 * 2**20
_MOST_SKEW_S = 120.0
_SOON_DAYS = 30


@dataclass(frozen=True)
class Finding:
    """One line: what was looked at, how it is, and what to do where it is not well."""

    check: str
    state: Literal["ok", "warning", "failed", "skipped"]
    said: str


@app.command(
    epilog=epilog(
        "fedclust doctor --token-file token --coordinator https://coordinator.example",
        "fedclust doctor --data cohort.csv --session heart-2026",
    )
)
@o.connected
def doctor(
    connection: o.Connection,
    data: Annotated[
        Path | None,
        typer.Option("--data", help="Also whether this file can be read.", show_default=False),
    ] = None,
    session: Annotated[
        str | None,
        typer.Option(
            "--session", help="Also whether it has this session's columns.", show_default=False
        ),
    ] = None,
    journal_dir: o.JournalDir = None,
    as_json: o.AsJson = False,
) -> None:
    """Look at connection, token, versions, clock, disk and data; send nothing of the data.

    The exit code is that of the first thing that failed, 0 if none did.
    """
    worst: list[errors.FedclustError] = []
    found = []
    for finding in _findings(connection, data, session, journal_dir, worst):
        found.append(finding)
        if not as_json:
            style = {"warning": "yellow", "failed": "red"}.get(finding.state)
            show(out, f"{finding.state:<8} {finding.check:<12} {finding.said}", style)
    if as_json:
        print_json([vars(each) for each in found])
    if worst:
        raise typer.Exit(exit_code(worst[0]))


def _findings(
    connection: o.Connection,
    data: Path | None,
    session: str | None,
    journal_dir: Path | None,
    worst: list[errors.FedclustError],
) -> Iterator[Finding]:
    def tried(check: str, look: Callable[[], Finding]) -> Finding:
        try:
            return look()
        except errors.FedclustError as error:
            worst.append(error)
            return Finding(check, "failed", str(error))

    yield Finding("versions", "ok", _versions())
    directory = journal_dir or journal.default_directory()
    yield tried("journal", lambda: _journal(directory))
    yield tried("disk", lambda: _disk(directory))
    client: Client | None = None
    http: Http | None = None
    try:
        yield Finding("proxy", "ok", _proxy(connection))
        http = Http(connection.url, connection.token, connection.options(10.0))
        client = Client(http.url, "", http=http)
    except errors.FedclustError as error:
        worst.append(error)
        yield Finding("settings", "failed", str(error))
    if http is not None and client is not None:
        with client:
            # Bound as arguments: the closures are called at once, but a checker cannot know.
            reached = tried("coordinator", lambda http=http: _reached(http))  # type: ignore[misc]
            yield reached
            if reached.state == "failed":
                yield Finding("token", "skipped", "the coordinator was not reached")
            else:
                yield tried("tls", lambda: _tls(connection))
                yield tried("clock", lambda http=http: _clock(http))  # type: ignore[misc]
                yield tried("token", lambda client=client: _token(client))  # type: ignore[misc]
            if data is not None:
                known = client if reached.state == "ok" else None
                yield tried("data", lambda: _data(data, session, known))
    elif data is not None:
        yield tried("data", lambda: _data(data, None, None))


def _versions() -> str:
    own = importlib.metadata.version("fedclust")
    return f"fedclust {own}, protocol {PROTOCOL_VERSION}, Python {sys.version.split()[0]}"


def _journal(directory: Path) -> Finding:
    with journal.state_errors(directory):
        private_directory(directory)
        lines = len(list(Ledger(directory).read()))
        flying = sum(outcome is None for _, outcome in journal.recorded(directory))
    said = f"{directory}: {lines} lines in the ledger"
    if flying:
        return Finding(
            "journal", "warning", f"{said}; {flying} answers await a receipt: run participate again"
        )
    return Finding("journal", "ok", said)


def _disk(directory: Path) -> Finding:
    free = shutil.disk_usage(directory if directory.exists() else Path.home()).free
    said = f"{free // 2**20} MiB free where the journal is kept"
    if free < _LEAST_DISK:
        raise errors.JournalError(f"{said}: at least {_LEAST_DISK // 2**20} are wanted")
    return Finding("disk", "ok", said)


def _proxy(connection: o.Connection) -> str:
    parts = urlsplit(connection.url)
    if connection.proxy:
        return "given by --proxy or FEDCLUST_PROXY"
    host = parts.hostname or ""
    if getproxies().get(parts.scheme) and not proxy_bypass(host):
        return f"from the environment, for {parts.scheme}"
    return "none"


def _reached(http: Http) -> Finding:
    http.request("GET", "/healthz")
    return Finding("coordinator", "ok", f"{http.url} answers")


def _tls(connection: o.Connection) -> Finding:
    parts = urlsplit(connection.url)
    if parts.scheme != "https":
        return Finding("tls", "ok", "none: plain HTTP on this machine")
    if connection.proxy or getproxies().get("https"):
        return Finding("tls", "ok", "certificate accepted, through the proxy")
    until = _certificate_ends(connection, parts.hostname or "", parts.port or 443)
    if until is None:
        return Finding("tls", "ok", "certificate accepted")
    days = (until - datetime.now(UTC)).days
    said = f"certificate accepted; it ends in {days} days"
    if days < _SOON_DAYS:
        return Finding("tls", "warning", f"{said}: tell the coordinator's operator")
    return Finding("tls", "ok", said)


def _certificate_ends(connection: o.Connection, host: str, port: int) -> datetime | None:
    try:
        context = tls_context(connection.options(10.0))
        with (
            socket.create_connection((host, port), timeout=10) as plain,
            context.wrap_socket(plain, server_hostname=host) as secure,
        ):
            found = secure.getpeercert()
    except (OSError, ssl.SSLError) as error:
        raise errors.TLSError(f"no TLS connection to {host}: {type(error).__name__}") from None
    ends = (found or {}).get("notAfter")
    # Some platforms verify a certificate without showing it.
    return datetime.fromtimestamp(ssl.cert_time_to_seconds(str(ends)), UTC) if ends else None


def _clock(http: Http) -> Finding:
    said = http.request("GET", "/healthz").headers.get("Date")
    if not said:
        return Finding("clock", "skipped", "the coordinator tells no time")
    skew = (parsedate_to_datetime(said) - datetime.now(UTC)).total_seconds()
    if abs(skew) > _MOST_SKEW_S:
        advice = "set this machine's clock (or the coordinator's): tokens and certificates expire"
        return Finding("clock", "warning", f"{abs(skew):.0f} s apart: {advice}")
    return Finding("clock", "ok", "agrees with the coordinator's")


def _token(client: Client) -> Finding:
    who: WhoAmI = client.whoami()
    if who.protocol_version != PROTOCOL_VERSION:
        raise errors.ProtocolError(
            f"the coordinator speaks protocol {who.protocol_version}, this SDK {PROTOCOL_VERSION}: "
            "pip install --upgrade fedclust"
        )
    days = (who.expires_at - datetime.now(UTC)).days
    said = f"{who.role} {who.name}, valid for {days} days; coordinator {who.server_version}"
    if days < _SOON_DAYS:
        return Finding("token", "warning", f"{said}: ask its operator for a new one")
    return Finding("token", "ok", said)


def _data(path: Path, session: str | None, client: Client | None) -> Finding:
    if session is None or client is None:
        if not path.is_file() or not os.access(path, os.R_OK):
            raise errors.DataError(path.name, "unreadable", "this is no file that can be read")
        note = "; --session says whether its columns fit" if session is None else ""
        return Finding("data", "ok", f"{path.name} can be read{note}")
    definition = client.session(session).definition
    lacking = definition.policy.missing == "mask"
    table = load(path, definition.features, lacking=lacking)
    return Finding(
        "data", "ok", f"{path.name}: {len(table.X)} rows, {len(table.features)} features of it"
    )
