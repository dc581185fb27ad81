"""Whether this machine can take part: what is well, what is not, and what to do about it."""

from __future__ import annotations

import importlib.metadata
import shutil
import socket
import ssl
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies, proxy_bypass

import typer

from fedclust import errors, journal, places
from fedclust._http import Http, tls_context
from fedclust.answers import accepted_plan
from fedclust.cli import options as o
from fedclust.cli.console import err, out, print_json, show
from fedclust.cli.help_text import epilog, exit_code
from fedclust.client import Client
from fedclust.data import load
from fedclust.privacy.files import FileLock, private_directory
from fedclust.privacy.ledger import Ledger
from fedclust.wire.models import PROTOCOL_VERSION, Definition, WhoAmI

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
@o.reading
def doctor(
    connection: o.Connection,
    how: o.Reading,
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

    ok: well. warning: well today; somebody should act before it fails. failed: nothing can be
    done here until it is mended. skipped: could not be looked at, for an earlier line. The exit
    code is that of the first line that failed, 0 if none did.
    """
    worst: list[errors.FedclustError] = []
    found = []
    for finding in _findings(connection, data, session, journal_dir, worst, how):
        found.append(finding)
        if not as_json:
            style = {"warning": "yellow", "failed": "red"}.get(finding.state)
            show(out, f"{finding.state:<8} {finding.check:<12} {finding.said}", style)
    if as_json:
        print_json([vars(each) for each in found])
    else:
        show(err, _conclusion(found))
    if worst:
        raise typer.Exit(exit_code(worst[0]))


def _conclusion(found: list[Finding]) -> str:
    """Return what all of it comes to, and what to do next."""
    failed = [each.check for each in found if each.state == "failed"]
    soon = [each.check for each in found if each.state == "warning"]
    if failed:
        return f"not before this is mended: {', '.join(failed)}"
    if soon:
        return f"nothing stands in the way today; have a look at: {', '.join(soon)}"
    return "nothing stands in the way; a site goes on with: fedclust check SESSION --data FILE"


def _findings(
    connection: o.Connection,
    data: Path | None,
    session: str | None,
    journal_dir: Path | None,
    worst: list[errors.FedclustError],
    how: o.Reading | None = None,
) -> Iterator[Finding]:
    def tried(check: str, look: Callable[[], Finding]) -> Finding:
        try:
            return look()
        except errors.FedclustError as error:
            worst.append(error)
            return Finding(check, "failed", str(error))

    yield Finding("versions", "ok", _versions())
    try:
        directory = journal_dir or places.default_directory()
        yield tried("journal", lambda: _journal(directory))
        yield tried("disk", lambda: _disk(directory))
    except errors.UsageError as error:
        worst.append(error)
        yield Finding("journal", "failed", str(error))
    token, complaint = _given_token(connection)
    client: Client | None = None
    try:
        yield Finding("proxy", "ok", _proxy(connection))
        # Whether the coordinator answers is asked without a token, too.
        http = Http(connection.url, token or "none", connection.options(10.0))
        client = Client(http.url, "", http=http)
    except errors.FedclustError as error:
        worst.append(error)
        yield Finding("settings", "failed", str(error))
    definition: Definition | None = None
    if client is not None:
        with client:
            reached = tried("coordinator", partial(_reached, http))
            yield reached
            if reached.state == "ok":
                yield tried("tls", partial(_tls, connection))
                yield tried("clock", partial(_clock, http))
            else:
                for check in ("tls", "clock"):
                    yield Finding(check, "skipped", "the coordinator was not reached")
            if complaint is not None:
                worst.append(complaint)
                yield Finding("token", "failed", str(complaint))
            elif reached.state == "failed":
                yield Finding("token", "skipped", "the coordinator was not reached")
            else:
                known = tried("token", partial(_token, client))
                yield known
                if session is not None and known.state != "failed":
                    try:
                        definition = _definition(client, session)
                        yield Finding("session", "ok", _described(definition))
                    except errors.FedclustError as error:
                        worst.append(error)
                        yield Finding("session", "failed", str(error))
    elif complaint is not None:
        worst.append(complaint)
        yield Finding("token", "failed", str(complaint))
    if data is not None:
        yield tried("data", partial(_data, data, definition, how))


def _given_token(
    connection: o.Connection,
) -> tuple[str, None] | tuple[None, errors.FedclustError]:
    """Return the token, or what keeps it from being read."""
    try:
        return connection.token, None
    except errors.UsageError as error:
        return None, error


def _versions() -> str:
    own = importlib.metadata.version("fedclust")
    return f"fedclust {own}, protocol {PROTOCOL_VERSION}, Python {sys.version.split()[0]}"


def _journal(directory: Path) -> Finding:
    with journal.state_errors(directory):
        private_directory(directory)
        # Written and locked, as a session does both: some network drives know no locks.
        probe = FileLock(directory / "doctor.lock")
        try:
            with probe:
                lines = len(list(Ledger(directory).read()))
                flying = sum(outcome is None for _, outcome in journal.recorded(directory))
        finally:
            probe.path.unlink(missing_ok=True)
        shared = sys.platform != "win32" and directory.stat().st_mode & 0o077
    said = f"{directory}: {lines} lines in the ledger"
    if shared:
        return Finding("journal", "warning", f"{said}; others can look in: chmod 700 {directory}")
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
    if _proxy_in_environment(parts):
        return f"from the environment, for {parts.scheme}"
    return "none"


def _proxy_in_environment(parts: SplitResult) -> bool:
    return bool(getproxies().get(parts.scheme)) and not proxy_bypass(parts.hostname or "")


def _reached(http: Http) -> Finding:
    http.request("GET", "/healthz")
    return Finding("coordinator", "ok", f"{http.url} answers")


def _tls(connection: o.Connection) -> Finding:
    parts = urlsplit(connection.url)
    if parts.scheme != "https":
        return Finding("tls", "ok", "none: plain HTTP on this machine")
    if connection.proxy or _proxy_in_environment(parts):
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


def _definition(client: Client, session: str) -> Definition:
    """Return what a session would ask of this site; an error where this SDK cannot take part."""
    info = client.session(session)
    accepted_plan(session, info)
    return info.definition


def _described(definition: Definition) -> str:
    method = f"{definition.algorithm} version {definition.method_version}"
    return f"{definition.name}: {method}, {len(definition.features)} features"


def _data(path: Path, definition: Definition | None, how: o.Reading | None) -> Finding:
    if definition is None:
        try:
            with path.open("rb") as file:
                file.read(1)
        except OSError as error:
            complaint = f"this is no file that can be read ({error.strerror})"
            raise errors.DataError(path.name, "unreadable", complaint) from None
        return Finding("data", "ok", f"{path.name} can be read; --session says if its columns fit")
    lacking = definition.policy.missing == "mask"
    rows = path if how is None else how.of(path)
    table = load(rows, definition.features, lacking=lacking)
    return Finding(
        "data", "ok", f"{path.name}: {len(table.X)} rows, {len(table.features)} features of it"
    )
