"""Sessions, for analysts and operators: define, start, watch, end, and take the result."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import typer

from fedclust import errors
from fedclust.algorithms.base import Bounds
from fedclust.algorithms.columns import columns_of
from fedclust.cli import options as o
from fedclust.cli.cluster_options import Clusters, OneK, read_clusters, show_bounds, show_sweep
from fedclust.cli.console import Table, err, out, print_json, show, write_out
from fedclust.cli.help_text import epilog
from fedclust.cli.output_files import check_outputs, check_report, is_document, is_report, write
from fedclust.cli.overview import SessionOverview, ago, late_first, overviews, size
from fedclust.cli.session_file import definition, read_json
from fedclust.cli.watch import Watcher
from fedclust.consent import feature_text
from fedclust.report import facts_of_document
from fedclust.results import centroid_table, document_at, write_report
from fedclust.wire import codec
from fedclust.wire.models import (
    Definition,
    ResultDocument,
    RoundInfo,
    SessionEntry,
    SessionInfo,
    SessionPatch,
    SessionState,
)

app = typer.Typer(
    help="Define sessions, watch them and take their results; for analysts and operators.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
#: What a definition holds beyond what its author wrote.
_FROZEN = frozenset({"method_version", "seed"})
_SLUG_LIST = "Comma-separated."


class State(StrEnum):
    recruiting = "recruiting"
    running = "running"
    completed = "completed"
    failed = "failed"
    cancelled = "cancelled"


class Start(StrEnum):
    when_all_joined = "when_all_joined"
    manual = "manual"


class Form(StrEnum):
    json = "json"
    csv = "csv"
    binary = "binary"


@app.command(
    "create",
    epilog=epilog(
        "fedclust session create heart-2026 --algorithm fkm --clusters 4 \\",
        "    --features age,chol,trestbps --sites cleveland,budapest,zurich \\",
        '    --purpose "Which types of coronary patients do our hospitals share?"',
        "fedclust session create heart-2026 --file heart.json",
        "fedclust session create heart-2027 --from heart-2026 --clusters 5",
    ),
)
@o.connected
def create(
    connection: o.Connection,
    session: o.Session,
    file: Annotated[
        Path | None,
        typer.Option("--file", help="Definition, JSON; - is standard input.", show_default=False),
    ] = None,
    from_session: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="Begin with the definition of this session; the seed is drawn anew.",
            show_default=False,
        ),
    ] = None,
    algorithm: Annotated[
        str | None, typer.Option("--algorithm", help="The method.", show_default=False)
    ] = None,
    clusters: Clusters = None,
    features: Annotated[
        str | None,
        typer.Option(
            "--features",
            help="Names of numeric features, comma-separated; others need --file.",
            show_default=False,
        ),
    ] = None,
    sites: Annotated[
        str | None, typer.Option("--sites", help=_SLUG_LIST, show_default=False)
    ] = None,
    title: Annotated[
        str | None, typer.Option("--title", help="What the study is called.", show_default=False)
    ] = None,
    purpose: Annotated[
        str | None,
        typer.Option(
            "--purpose",
            help="Why the sites should take part, one to five sentences. Every session needs it.",
            show_default=False,
        ),
    ] = None,
    contact: Annotated[
        str | None,
        typer.Option("--contact", help="Whom sites ask: name and address.", show_default=False),
    ] = None,
    approval: Annotated[
        str | None,
        typer.Option("--approval", help="Ethics approval or contract.", show_default=False),
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option(
            "--expires",
            help="No site joins from then on: RFC 3339 with its offset from UTC.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Drawn if left out.", min=0, show_default=False)
    ] = None,
    min_sites: Annotated[
        int | None,
        typer.Option(
            "--min-sites",
            help="Sites that every round needs, 3 by default. With 2 each of two sites learns the "
            "other's part, and has to consent to that.",
            min=2,
            show_default=False,
        ),
    ] = None,
    start: Annotated[
        Start | None, typer.Option("--start", help="When it starts.", show_default=False)
    ] = None,
    as_json: o.AsJson = False,
) -> None:
    """Create a session; the same command again returns the one that it made.

    Options win over --file, and --file over --from.
    """
    with connection.client() as client:
        body: dict[str, Any] = {}
        if from_session is not None:
            known = client.session(from_session).definition.model_dump(mode="json")
            body = {key: value for key, value in known.items() if key not in _FROZEN}
        body |= {} if file is None else _definition(file)
        body["name"] = session
        said = {"title": title, "purpose": purpose, "contact": contact, "approval": approval}
        body |= {key: value for key, value in said.items() if value is not None}
        if expires is not None:
            body["expires"] = _time(expires).isoformat()
        if algorithm is not None:
            body["algorithm"] = algorithm
        if clusters is not None:
            n_clusters = read_clusters(clusters)
            body["config"] = {**_object(body, "config"), "n_clusters": n_clusters}
        if features is not None:
            body["features"] = [{"name": name} for name in _names(features)]
        if sites is not None:
            body["sites"] = _names(sites)
        if min_sites is not None:
            body["policy"] = {**_object(body, "policy"), "min_sites": min_sites}
        if seed is not None:
            body["seed"] = seed
        if start is not None:
            body["start"] = start.value
        lacking = [
            key for key in ("purpose", "algorithm", "features", "sites") if not body.get(key)
        ]
        if lacking:
            options = ", ".join(f"--{key}" for key in lacking)
            raise errors.UsageError(f"the definition lacks {', '.join(lacking)}: give {options}")
        # Clusters may be left to a method that chooses; the coordinator says where they may not.
        body.setdefault("config", {})
        info = client.create_session(definition(body))
    _show(info, (), as_json)
    _warn_of_bounds(info.definition)
    if not as_json:
        show(err, f"next: the sites run `fedclust participate {info.name} --data FILE`;")
        show(err, f"      `fedclust session watch {info.name}` follows them")


@app.command(
    "list", epilog=epilog("fedclust session list --state running", "fedclust session list --json")
)
@o.connected
def show_all(
    connection: o.Connection,
    state: Annotated[
        State | None, typer.Option("--state", help="Only these.", show_default=False)
    ] = None,
    as_json: o.AsJson = False,
) -> None:
    """List sessions: state, round, who has answered; those with late sites first.

    Operators also read since when sites are late.
    """
    wanted: SessionState | None = None if state is None else state.value
    with connection.client() as client:
        known = overviews(client, state=wanted)
        found = late_first(list(client.sessions(wanted)), known)
    if as_json:
        print_json([{**each.model_dump(mode="json"), **_told(known, each)} for each in found])
        return
    now = datetime.now(UTC)
    grid = Table("session", "method", "state", "round", "joined", "answered", "late", "why")
    for each in found:
        told = known.get(each.name)
        grid.row(
            each.name,
            each.definition.algorithm if each.definition else "(damaged)",
            each.state,
            each.round,
            f"{_joined(each)} of {len(each.sites)}",
            sum(bool(site.answered) for site in each.sites) if each.round else None,
            told.late(now) if told else ", ".join(site.name for site in each.sites if site.late),
            each.failure or each.stopped_because,
        )
    grid.show()
    if not found:
        show(err, "none: fedclust session create NAME makes one")


@app.command("show", epilog=epilog("fedclust session show heart-2026"))
@o.connected
def show_one(connection: o.Connection, session: o.Session, as_json: o.AsJson = False) -> None:
    """Show one session: its definition's hash, its sites and its rounds.

    Operators also read of each site since when it is late, when it was last seen, its SDK, its
    refused answers and its traffic.
    """
    with connection.client() as client:
        info, rounds = client.session(session), tuple(client.rounds(session))
        known = overviews(client, session=session)
    _show(info, rounds, as_json, known)


@app.command("start", epilog=epilog("fedclust session start heart-2026"))
@o.connected
def start_now(connection: o.Connection, session: o.Session, as_json: o.AsJson = False) -> None:
    """Start with the sites that have joined; their quorum must be there."""
    with connection.client() as client:
        info = client.start_session(session)
    if as_json:
        print_json(info)
        return
    show(err, f"{session}: {info.state}, round {info.round}")
    show(err, f"next: fedclust session watch {session}")


@app.command("cancel", epilog=epilog("fedclust session cancel heart-2026"))
@o.connected
def cancel(connection: o.Connection, session: o.Session, as_json: o.AsJson = False) -> None:
    """End a session without a result. It cannot be undone."""
    with connection.client() as client:
        info = client.cancel_session(session)
    _done(info, f"{session}: {info.state}", as_json)


@app.command("close", epilog=epilog("fedclust session close heart-2026"))
@o.connected
def close(connection: o.Connection, session: o.Session, as_json: o.AsJson = False) -> None:
    """Close the open round with the answers that are there; its quorum must have answered."""
    with connection.client() as client:
        info = client.session(session)
        if info.round is None:
            raise errors.UsageError(
                f"{session} is {info.state}: it has no round to close; fedclust session show "
                f"{session} says more"
            )
        closed = client.close_round(session, info.round)
    _done(closed, f"{session}: round {closed.number} is {closed.state}", as_json)


@app.command("exclude", epilog=epilog("fedclust session exclude heart-2026 zurich"))
@o.connected
def exclude(
    connection: o.Connection,
    session: o.Session,
    site: Annotated[str, typer.Argument(help="Name of the site.", show_default=False)],
    as_json: o.AsJson = False,
) -> None:
    """Wait no longer for a site; what it answered still counts. It cannot be undone."""
    with connection.client() as client:
        client.exclude(session, site)
        info = client.session(session)
    _done(info, f"{session}: {site} is excluded", as_json)


@app.command("invite", epilog=epilog("fedclust session invite heart-2026 basel,geneva"))
@o.connected
def invite(
    connection: o.Connection,
    session: o.Session,
    sites: Annotated[str, typer.Argument(help=_SLUG_LIST, show_default=False)],
    as_json: o.AsJson = False,
) -> None:
    """Invite more sites; after the session has completed, as readers of its result."""
    names = tuple(_names(sites))
    if not names:
        raise errors.UsageError("name the sites, for example: basel,geneva")
    with connection.client() as client:
        info = client.patch_session(session, SessionPatch(invite=names))
    _done(info, f"{session}: {', '.join(names)} invited", as_json)


@app.command("deadline", epilog=epilog("fedclust session deadline heart-2026 2026-12-01T12:00Z"))
@o.connected
def deadline(
    connection: o.Connection,
    session: o.Session,
    until: Annotated[
        str, typer.Argument(help="RFC 3339 with its offset from UTC.", show_default=False)
    ],
    as_json: o.AsJson = False,
) -> None:
    """Move the open round's deadline."""
    aware = _time(until)
    with connection.client() as client:
        info = client.patch_session(session, SessionPatch(deadline=aware))
    _done(info, f"{session}: the round's deadline is {aware:%Y-%m-%dT%H:%M:%SZ}", as_json)


@app.command(
    "watch",
    epilog=epilog("fedclust session watch heart-2026", "fedclust session watch heart-2026 --json"),
)
@o.connected
def watch(
    connection: o.Connection,
    session: o.Session,
    every: Annotated[
        float,
        typer.Option(
            "--every", help="Seconds between two looks where no live events come.", min=0.2
        ),
    ] = 2.0,
    as_json: o.AsJson = False,
) -> None:
    """Follow a session until it ends; exit code 7 unless it completes."""
    # A watch of days outlives a coordinator's restart.
    with connection.client(give_up_after_s=3_600.0) as client:
        try:
            info = Watcher(client, session, every, as_json).follow()
        except KeyboardInterrupt:
            show(err, f"no longer watched; {session} goes on")
            raise
    if info.state != "completed":
        reason = info.failure or info.stopped_because or info.state
        raise errors.SessionFailed(session, f"{info.state}: {reason}", info.failure)
    if not as_json:
        show(err, f"next: fedclust session result {session}")


@app.command(
    "result",
    epilog=epilog(
        "fedclust session result heart-2026",
        "fedclust session result heart-2026 --format csv --out centroids.csv",
        "fedclust session result heart-2026 --report heart.html",
        "fedclust session result heart-2026 --k 5",
    ),
)
@o.connected
def result(
    connection: o.Connection,
    session: o.Session,
    form: Annotated[Form, typer.Option("--format", help="How it is written.")] = Form.json,
    path: Annotated[
        Path | None,
        typer.Option("--out", help="File; by default standard output.", show_default=False),
    ] = None,
    report: o.Report = None,
    k: OneK = None,
    as_json: o.AsJson = False,
) -> None:
    """Print the clusters, or write the whole result or a report of it to a file."""
    check_outputs(((path, is_document), (report, is_report)), ())
    check_report(report)
    if form is Form.binary and path is None and sys.stdout.isatty():
        raise errors.UsageError("the binary form is not for a terminal: give --out")
    with connection.client() as client:
        document = client.result(session)
        if k is not None:
            document = document_at(document, k)
        if report is not None:
            definition = client.session(session).definition
            write_report(facts_of_document(document, definition), report)
            show(err, f"report: {report}")
    if path is None and form is Form.json and not as_json:
        _show_result(document)
        return
    written = {
        Form.json: lambda: codec.to_json(codec.to_tree(document)),
        Form.csv: lambda: centroid_table(document),
        Form.binary: lambda: codec.encode_model(document),
    }
    content = written[form]()
    if path is not None:
        write(path, content)
        show(err, f"{len(content)} bytes: {path}")
        return
    write_out(content if form is Form.binary else content.rstrip(b"\n") + b"\n")


def _definition(path: Path) -> dict[str, Any]:
    try:
        data = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    except OSError as error:
        raise errors.UsageError(f"{path} cannot be read: {error.strerror}") from None
    found = read_json(data, path)
    if not isinstance(found, dict):
        raise errors.UsageError(f"{path}: a definition is one JSON object, {{...}}")
    return {key: value for key, value in found.items() if key != "method_version"}


def _time(text: str) -> datetime:
    try:
        time = datetime.fromisoformat(text)
        if time.tzinfo is not None:
            return time.astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise errors.UsageError("give the time with its offset, for example 2026-12-01T12:00Z")


def _warn_of_bounds(definition: Definition) -> None:
    """Name the numbers of which a site may send any value."""
    unbounded = [
        feature.name
        for feature in definition.features
        if feature.kind == "numeric" and (feature.lower is None or feature.upper is None)
    ]
    if unbounded:
        show(
            err,
            f"warning: without both bounds: {', '.join(unbounded)}. One site's wild values can "
            "move the clusters of all: declare the least and greatest value that a person can "
            'have as "lower" and "upper" (--file).',
        )


def _object(body: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = body.get(key, {})
    if not isinstance(found, Mapping):
        raise errors.UsageError(f"the definition: /{key}: this is one JSON object, {{...}}")
    return found


def _done(told: SessionEntry | RoundInfo, said: str, as_json: bool) -> None:
    """Say what was done, or print how it stands now."""
    if as_json:
        print_json(told)
    else:
        show(err, said)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _joined(info: SessionEntry) -> int:
    return sum(site.state == "joined" for site in info.sites)


def _told(known: Mapping[str, SessionOverview], info: SessionEntry) -> dict[str, Any]:
    """Return what operators read beyond the session, for ``--json``."""
    told = known.get(info.name)
    return {} if told is None else {"standing": told.model_dump(mode="json")}


def _show(
    info: SessionInfo,
    rounds: tuple[RoundInfo, ...],
    as_json: bool,
    known: Mapping[str, SessionOverview] = MappingProxyType({}),
) -> None:
    if as_json:
        shown = {**info.model_dump(mode="json"), **_told(known, info)}
        print_json({**shown, "rounds": [each.model_dump(mode="json") for each in rounds]})
        return
    frozen = info.definition
    facts = {
        "session": info.name,
        "title": frozen.title or None,
        "purpose": frozen.purpose or None,
        "contact": frozen.contact or None,
        "approval": frozen.approval or None,
        "expires": frozen.expires and f"{frozen.expires:%Y-%m-%d %H:%M:%S} UTC",
        "state": info.state,
        "why": info.failure or info.stopped_because,
        "cannot start": info.cannot_start,
        "defined by": info.created_by,
        "definition": f"SHA-256 {info.definition_sha256}",
        "method": f"{frozen.algorithm} version {frozen.method_version}",
        "options": json.dumps(frozen.config, sort_keys=True),
        "features": ", ".join(map(feature_text, frozen.features)),
        "seed": frozen.seed,
        "started": info.started_at and f"{info.started_at:%Y-%m-%d %H:%M:%S} UTC",
        "ended": info.ended_at and f"{info.ended_at:%Y-%m-%d %H:%M:%S} UTC",
    }
    for name, value in facts.items():
        if value is not None:
            show(out, f"{name:<14}{value}")
    _show_sites(info, known.get(info.name))
    if rounds:
        grid = Table("round", "phase", "state", "answered", "opened", "closed because")
        for each in rounds:
            answered = sum(site.answered for site in each.sites)
            late = " (overdue)" if each.overdue else ""
            grid.row(
                each.number,
                each.phase,
                each.state + late,
                f"{answered} of {len(each.sites)}",
                f"{each.opened_at:%Y-%m-%d %H:%M:%S}",
                each.close_reason,
            )
        grid.show()


def _show_sites(info: SessionInfo, told: SessionOverview | None) -> None:
    if told is None:
        grid = Table("site", "takes part", "answered", "late")
        for site in info.sites:
            grid.row(site.name, site.state, _said(site.answered), _said(site.late))
        grid.show()
        return
    now = datetime.now(UTC)
    grid = Table(
        "site", "takes part", "answered", "late since", "last seen", "sdk", "refused", "in", "out"
    )
    shown = {site.name: site for site in info.sites}
    for each in sorted(told.sites, key=lambda site: site.late_since is None):
        if (known := shown.get(each.name)) is None:  # invited between the two requests
            continue
        grid.row(
            each.name,
            known.state,
            _said(known.answered),
            ago(each.late_since, now),
            f"{ago(each.last_seen_at, now)} ago" if each.last_seen_at else "never",
            each.sdk_version,
            each.refusals or None,
            size(each.bytes_in),
            size(each.bytes_out),
        )
    grid.show()


def _said(answer: bool | None) -> str:
    return "" if answer is None else "yes" if answer else "no"


def _show_result(document: ResultDocument) -> None:
    names = [column.name for column in columns_of(document.features)]
    found = document.result
    sizes = found.get("sizes")
    grid = Table("cluster", "persons", *names)
    for number, centre in enumerate(found["centroids_original"]):
        size = sizes[number] if sizes else None
        grid.row(number, size, *(f"{x:.6g}" for x in centre))
    grid.show()
    show(out, f"{'rounds':<16} {found['n_rounds']} (and those of preparation and evaluation)")
    show(out, f"{'stopped because':<16} {found['stopped_because']}")
    quality = found.get("quality")
    for name, value in (quality or {}).items():
        if value is not None:
            show(out, f"{name.replace('_', ' '):<16} {value:.6g}")
    if found.get("sweep"):
        show_sweep(found["sweep"], found["recommendation"])
    if found.get("bounds"):
        show_bounds(Bounds.model_validate(found["bounds"]))
    for warning in found.get("warnings", ()):
        show(err, f"warning: {warning}")
