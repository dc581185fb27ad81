"""Whether this machine can take part, and what to do if it cannot."""

import importlib.metadata
import shutil
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

from fedclust.cli import options as o
from fedclust.cli.console import conclude, out, show
from fedclust.cli.options import exit_code
from fedclust.client import Client, require_protocol
from fedclust.client.http import Http
from fedclust.data import load
from fedclust.data.table import read_id_map
from fedclust.durable_files import FileLock, private_directory
from fedclust.methods.registry import METHODS
from fedclust.schema.feature import clustered, outcomes_of
from fedclust.site.backup import verify_state
from fedclust.site.charges import Charges, open_text
from fedclust.site.compute import accepted_plan
from fedclust.site.data_sources import DataSource
from fedclust.site.settings import read_settings, settings_path
from fedclust.site.state import SiteState, state_directory
from fedclust.wire import errors
from fedclust.wire.models import PROTOCOL_VERSION, Definition

app = typer.Typer(rich_markup_mode=None)
_LEAST_DISK = 200 * 2**20
_MOST_SKEW_S = 120.0
_SOON_DAYS = 30
_HOW = "fedclust allowance show names them; run fedclust status there"


@dataclass(frozen=True)
class Finding:
    """One line: what was checked, the outcome, and what to do about it."""

    check: str
    state: Literal["ok", "warning", "failed", "skipped"]
    said: str


class _Notice(Exception):
    """Nothing has failed, but something will, or it could not be checked."""

    def __init__(self, state: Literal["warning", "skipped"], said: str) -> None:
        super().__init__(said)
        self.state = state


class _Also(o.OptionGroup):
    """What is checked only where it is given."""

    data: Annotated[str | None, {"metavar": "FILE"}] = None
    """Also check whether this file, or the registered source @NAME, can be read."""
    session: str | None = None
    """Also check whether the file has this session's columns."""


@o.command(
    app,
    "doctor",
    "fedclust doctor --token-file token --coordinator https://coordinator.example",
    "fedclust doctor --data cohort.csv --id-column mrn --session heart-2026",
)
def doctor(
    connection: o.Connection,
    how: o.Reading,
    whose: o.WhoseRows,
    also: _Also,
) -> None:
    """Check connection, token, versions, clock, disk and data; send nothing of the data.

    ok: nothing to do. warning: works today, but act before it fails. failed: fix this first.
    skipped: not checked, because of an earlier line. The exit code is that of the first line that
    failed, or 0.
    """
    worst: list[errors.FedclustError] = []
    found = []
    read = None if (data := also.data) is None else lambda: how.source(data, whose)
    for finding in _findings(connection, read, also.session, worst):
        found.append(finding)
        if not o.wants_json():
            style = {"warning": "yellow", "failed": "red"}.get(finding.state)
            show(out, f"{finding.state:<8} {finding.check:<12} {finding.said}", style)
    conclude(_conclusion(found), found)
    if worst:
        raise typer.Exit(exit_code(worst[0]))


def _conclusion(found: list[Finding]) -> str:
    """Return the conclusion and the next step."""
    failed = [each.check for each in found if each.state == "failed"]
    soon = [each.check for each in found if each.state == "warning"]
    if failed:
        return f"fix this first: {', '.join(failed)}"
    if soon:
        return f"ready today, but see the warnings: {', '.join(soon)}"
    return "ready; a site continues with: fedclust check SESSION --data FILE"


def _findings(
    connection: o.Connection,
    read: Callable[[], DataSource] | None,
    session: str | None,
    worst: list[errors.FedclustError],
) -> Iterator[Finding]:
    """Yield the findings; what failed is added to ``worst``. ``read`` returns the rows."""

    def look(check: str, ask: Callable[[], str]) -> Finding:
        try:
            return Finding(check, "ok", ask())
        except _Notice as notice:
            return Finding(check, notice.state, str(notice))
        except errors.FedclustError as error:
            worst.append(error)
            return Finding(check, "failed", str(error))

    yield look("versions", _versions)
    if METHODS.problems():
        yield Finding("methods", "warning", " ".join(METHODS.problems()))
    yield look("state", lambda: _state(SiteState()))
    yield look("disk", lambda: _disk(state_directory()))
    yield look("site.toml", _site_settings)
    known: list[Definition] = []
    try:
        yield Finding("proxy", "ok", _proxy_of(connection))
        http = Http(connection.url, _token_if_any(connection), connection.options(10.0))
    except errors.FedclustError as error:
        worst.append(error)
        yield Finding("settings", "failed", str(error))
        yield look("token", lambda: _token(connection, None))
        yield look("allowance", lambda: _allowance(SiteState()))
    else:
        with Client(http.url, "", http=http) as client:
            coordinator = look("coordinator", lambda: _reached(http))
            reached = coordinator.state == "ok"
            yield coordinator
            yield look("tls", lambda: _tls(http) if reached else _skip())
            yield look("clock", lambda: _clock(http) if reached else _skip())
            token = look("token", lambda: _token(connection, client if reached else None))
            yield token
            known_here = client if token.state in ("ok", "warning") else None
            yield look("allowance", lambda: _allowance(SiteState(), known_here))
            if session is not None and token.state in ("ok", "warning"):
                yield look("session", lambda: _check_session(client, session, known))
    if read is not None:
        yield look("data", lambda: _data(read(), known[0] if known else None))


def _skip() -> str:
    raise _Notice("skipped", "the coordinator was not reached")


def _token_if_any(connection: o.Connection) -> str:
    """Return the token, or a stand-in: whether the coordinator answers needs no token."""
    try:
        return connection.token
    except errors.UsageError:
        return "none"


def _versions() -> str:
    own = importlib.metadata.version("fedclust")
    return f"fedclust {own}, protocol {PROTOCOL_VERSION}, Python {sys.version.split()[0]}"


def _state(state: SiteState) -> str:
    state.refuse_unusable()
    with state.errors():
        private_directory(state.directory)
        # Lock as in a session.
        probe = FileLock(state.directory / "doctor.lock")
        try:
            probe.acquire(wait=True)
        finally:
            probe.release()
            probe.path.unlink(missing_ok=True)
        shared = sys.platform != "win32" and state.directory.stat().st_mode & 0o077
    if state.path.exists():
        found = verify_state(state)
        said = (
            f"{state.path}: {found.tables} tables, {found.sessions} sessions, {found.lines} lines "
            "in the ledger; verified"
        )
    else:
        found, said = None, f"{state.directory}: nothing yet"
    if shared:
        raise _Notice("warning", f"{said}; others can read it: chmod 700 {state.directory}")
    if found is not None and found.in_flight:
        raise _Notice(
            "warning",
            f"{said}; {found.in_flight} submissions await a receipt: run participate again",
        )
    return said


def _allowance(state: SiteState, client: Client | None = None) -> str:
    """Say which points are left and which are open, after ``client`` gave back what has ended."""
    charges = Charges(state)
    if client is not None:
        charges.look_after(client, datetime.now(UTC))
    tables = charges.overview()
    said = "; ".join(
        f"table {each.table[:8]}: {each.left} of {each.allowance.limit} points left"
        for each in tables
    )
    if not tables:
        return "no table of groups yet: taking part forms one"
    for charge in charges.open_charges():
        said += f". {open_text(charge)}"
    if any(each.allowance.doubted for each in tables):
        raise _Notice("warning", f"{said}. Coordinators have to confirm the restored state: {_HOW}")
    return said


def _disk(directory: Path) -> str:
    free = shutil.disk_usage(directory if directory.exists() else Path.home()).free
    said = f"{free // 2**20} MiB free where the state is kept"
    if free < _LEAST_DISK:
        raise errors.StateError(f"{said}: at least {_LEAST_DISK // 2**20} are needed")
    return said


def _site_settings() -> str:
    directory = state_directory()
    in_use, path = ", ".join(read_settings(directory).lines()), settings_path(directory)
    return f"{path}: {in_use}" if path.exists() else f"{in_use} (default; no {path})"


def _proxy_of(connection: o.Connection) -> str:
    parts = urlsplit(connection.url)
    if connection.proxy:
        return "given by --proxy or FEDCLUST_PROXY"
    if getproxies().get(parts.scheme) and not proxy_bypass(parts.hostname or ""):
        return f"from the environment, for {parts.scheme}"
    return "none"


def _reached(http: Http) -> str:
    http.request("GET", "/healthz")
    return f"{http.url} answers"


def _tls(http: Http) -> str:
    if http.certificate is None:
        return "none: plain HTTP on this machine"
    ends = http.certificate.get("notAfter")
    if not ends:  # some platforms verify a certificate without showing it
        return "certificate accepted"
    days = (datetime.fromtimestamp(ssl.cert_time_to_seconds(ends), UTC) - datetime.now(UTC)).days
    said = f"certificate accepted; it expires in {days} days"
    if days < _SOON_DAYS:
        raise _Notice("warning", f"{said}: tell the coordinator's operator")
    return said


def _clock(http: Http) -> str:
    said = http.request("GET", "/healthz").headers.get("Date")
    if not said:
        raise _Notice("skipped", "the coordinator does not send its time")
    skew = (parsedate_to_datetime(said) - datetime.now(UTC)).total_seconds()
    if abs(skew) > _MOST_SKEW_S:
        advice = "set this machine's clock (or the coordinator's): tokens and certificates expire"
        raise _Notice("warning", f"{abs(skew):.0f} s apart: {advice}")
    return "agrees with the coordinator's"


def _token(connection: o.Connection, client: Client | None) -> str:
    _ = connection.token  # or why there is none
    if client is None:
        return _skip()
    who = client.whoami()
    require_protocol(who)
    days = (who.expires_at - datetime.now(UTC)).days
    said = f"{who.role} {who.name}, valid for {days} days; coordinator {who.server_version}"
    if who.role != "site":
        raise _Notice("warning", f"{said}: to take part, a hospital needs the token of a site")
    if days < _SOON_DAYS:
        raise _Notice("warning", f"{said}: ask its operator for a new one")
    return said


def _check_session(client: Client, session: str, known: list[Definition]) -> str:
    """Check that this site can run a session, and add its definition to ``known``."""
    info = client.session(session)
    accepted_plan(session, info)
    definition = info.definition
    known.append(definition)
    method = f"{definition.algorithm} version {definition.method_version}"
    return f"{definition.name}: {method}, {len(definition.features)} features"


def _data(source: DataSource, definition: Definition | None) -> str:
    name, columns = Path(source.data).name, source.columns()
    read_id_map(source.id_map)
    if definition is None:
        return f"{name}: {len(columns)} columns; give --session to compare them"
    lacking = definition.policy.missing == "mask"
    features, outcomes = clustered(definition.features), outcomes_of(definition.features)
    table = load(source.rows(), features, lacking=lacking, outcomes=outcomes)
    return f"{name}: {len(table.X)} rows, {len(table.features)} of the session's features"
