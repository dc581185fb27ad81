"""Sessions, for analysts and operators: define, start, watch and end them, get the result."""

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import typer

from fedclust.cli import options as o
from fedclust.cli.console import agreed, conclude, err, out, print_json, show, show_list, write_out
from fedclust.cli.output_files import check_outputs, is_document, is_report, is_result, is_table
from fedclust.cli.result_output import show_result
from fedclust.cli.session_file import slug
from fedclust.cli.session_options import OneK, SessionOptions, WorthOptions, read_time
from fedclust.cli.session_screen import Watcher, late_first, risk_of_exclusion, show_session
from fedclust.client.session_request import FieldNames
from fedclust.data.definition_warnings import definition_warnings
from fedclust.durable_files import write_file
from fedclust.result.ro_crate import check_license
from fedclust.result.session_result import SessionResult
from fedclust.result.tables import centroid_table
from fedclust.result.worth_asking import asked_of_sites, worth_lines
from fedclust.schema.states import SessionState
from fedclust.wire import codec, errors
from fedclust.wire.errors import problem
from fedclust.wire.models import SessionCreate, SessionPatch

app = o.group("Define sessions, watch them and get their results; for analysts and operators.")


@o.command(
    app,
    "create",
    "fedclust session create heart-2026 --algorithm fkm --clusters 4 \\",
    "    --features age,chol,trestbps --sites cleveland,budapest,zurich \\",
    '    --purpose "Which types of coronary patients do our hospitals share?"',
    "fedclust session create heart-2026 --file heart.json",
    "fedclust session create heart-2027 --from heart-2026 --clusters 5",
    "fedclust session create hearts-4 --study hearts --clusters 4",
    "fedclust session create heart-2026 --file heart.json --check --persons 4000 \\",
    "    --shares died=0.1",
)
def create(
    connection: o.Connection,
    session: o.Session,
    options: SessionOptions,
    worth: WorthOptions,
) -> None:
    """Create a session. The same command, run again, returns the same session.

    Options override --file, and --file overrides --from. --study gives what is still missing; with
    --from the session stays in the study of the other one.
    """
    with connection.client() as client, options.names.applied():
        if worth.check:
            _show_check(options.checked(session, client), worth)
            return
        info = client.create_session(options.definition(session, client))
    show_session(info, ())
    for said in definition_warnings(info.definition):
        show(err, f"warning: {said}")
    if not o.wants_json():
        show(err, f"next: the sites run `fedclust participate {info.name} --data FILE`;")
        show(err, f"      `fedclust session watch {info.name}` shows their progress")


def _show_check(found: SessionCreate, worth: WorthOptions) -> None:
    """Print a definition that is complete, what its outcomes cost, and whether to ask."""
    lines = worth_lines(found, persons=worth.persons, shares=worth.guesses())
    warnings = [*definition_warnings(found)]
    if o.wants_json():
        whole = {"definition": found.model_dump(mode="json"), "warnings": warnings}
        print_json({**whole, "worth_asking": lines})
        return
    for said in warnings:
        show(err, f"warning: {said}")
    show(out, f"{found.name}: the definition is complete; nothing was created")
    if cost := asked_of_sites(found):
        show(out, f"outcomes ask {cost}")
    for line in lines:
        show(out, line)


@o.command(
    app,
    "list",
    "fedclust session list --state running",
    "fedclust session list --study hearts",
    "fedclust session list --json",
)
def show_all(
    connection: o.Connection,
    state: Annotated[SessionState | None, o.opt("--state", "Only sessions in this state.")] = None,
    study: Annotated[
        str | None, o.opt("--study", "Only sessions of this study.", callback=o.slug_or_none)
    ] = None,
) -> None:
    """List sessions: state, round, number of answers, and which sites are late since when.

    Sessions with late sites come first.
    """
    with connection.client() as client:
        found = late_first(client.sessions(state, study))
    show_list(found, "no sessions; to create one: fedclust session create NAME")


@o.command(app, "show", "fedclust session show heart-2026")
def show_one(connection: o.Connection, session: o.Session) -> None:
    """Show one session: the hash of its definition, its sites and its rounds.

    For each site, operators also see since when it is late, when it was last seen, its version of
    the SDK, its refused submissions and its traffic.
    """
    with connection.client() as client:
        info, rounds = client.session(session), tuple(client.rounds(session))
    show_session(info, rounds)


@o.command(app, "start", "fedclust session start heart-2026")
def start_now(connection: o.Connection, session: o.Session) -> None:
    """Start with the sites that have joined; at least the quorum must have joined."""
    with connection.client() as client:
        info = client.start_session(session)
    said = f"{session}: {info.state}, round {info.round}"
    conclude(f"{said}\nnext: fedclust session watch {session}", info)


@o.command(app, "retry", "fedclust session retry heart-2026")
def retry(connection: o.Connection, session: o.Session) -> None:
    """Have a held session try again; only operators may.

    A session is held when the process that aggregates one of its rounds has died too often. Look
    for the cause first, for example too little memory. Nothing of the sites is lost.
    """
    with connection.client() as client:
        info = client.retry_session(session)
    conclude(f"{session}: {info.state}", info)


@o.command(app, "cancel", "fedclust session cancel heart-2026")
def cancel(connection: o.Connection, session: o.Session) -> None:
    """End a session without a result. This cannot be undone."""
    with connection.client() as client:
        info = client.cancel_session(session)
    conclude(f"{session}: {info.state}", info)


@o.command(app, "delete", "fedclust session delete heart-2026")
def delete(
    connection: o.Connection,
    session: o.Session,
    yes: Annotated[bool, o.opt("--yes", "Delete without asking.")] = False,
) -> None:
    """Delete a session that no site ever joined. Its name can be used again.

    Once a site has joined, the session stays: cancel it instead.
    """
    if not agreed(yes, f"Shall the session {session} be deleted?"):
        return
    with connection.client() as client:
        client.delete_session(session)
    conclude(f"{session} is deleted", {"session": session, "deleted": True})


@o.command(app, "close", "fedclust session close heart-2026")
def close(connection: o.Connection, session: o.Session) -> None:
    """Close the open round with the submissions so far; they must reach the quorum."""
    with connection.client() as client:
        info = client.session(session)
        if info.round is None:
            detail = f"{session} is {info.state}: it has no round to close. fedclust session show "
            raise errors.from_problem(problem("wrong-state", f"{detail}{session} says more."))
        closed = client.close_round(session, info.round)
    conclude(f"{session}: round {closed.number} is {closed.state}", closed)


@o.command(app, "exclude", "fedclust session exclude heart-2026 zurich")
def exclude(
    connection: o.Connection,
    session: o.Session,
    site: Annotated[str, o.arg("Name of the site.", callback=slug)],
    yes: Annotated[bool, o.opt("--yes", "Exclude without asking.")] = False,
) -> None:
    """Stop waiting for a site. Its earlier submissions still count. This cannot be undone.

    If too few sites would be left, the session cannot go on, and the command asks first.
    """
    with connection.client() as client:
        risk = None if yes else risk_of_exclusion(client.session(session), site)
        if risk is not None and not agreed(yes, f"{risk} Exclude {site}?"):
            return
        client.exclude(session, site)
        info = client.session(session)
    conclude(f"{session}: {site} is excluded", info)


@o.command(app, "invite", "fedclust session invite heart-2026 basel,geneva")
def invite(
    connection: o.Connection,
    session: o.Session,
    sites: Annotated[str, o.arg("Names of the sites, comma-separated.")],
) -> None:
    """Invite more sites. If the session has completed, they can read its result."""
    names = tuple(o.split_names(sites))
    if not names:
        raise errors.UsageError("name the sites, for example: basel,geneva")
    with connection.client() as client, FieldNames({"/invite": "SITES"}).applied():
        info = client.patch_session(session, SessionPatch(invite=names))
    conclude(f"{session}: {', '.join(names)} invited", info)


@o.command(app, "name", 'fedclust session name heart-2026 "Elderly,Cardiorenal,Young"')
def name_clusters(
    connection: o.Connection,
    session: o.Session,
    names: Annotated[str, o.arg("Names of the clusters in their order, comma-separated.")],
) -> None:
    """Name the clusters of a completed session's result, for all its readers.

    Of several K the clustering with so many clusters gets the names. An empty name removes one.
    Labels stay numbers.
    """
    given = [name.strip() for name in names.split(",")]
    with connection.client() as client, FieldNames({"/cluster_names": "NAMES"}).applied():
        info = client.name_clusters(session, given)
    conclude(f"{session}: {sum(map(bool, given))} of {len(given)} clusters are named", info)


@o.command(app, "deadline", "fedclust session deadline heart-2026 2026-12-01T12:00Z")
def deadline(
    connection: o.Connection,
    session: o.Session,
    until: Annotated[str, o.arg("Time in RFC 3339, with its offset from UTC.")],
    yes: Annotated[bool, o.opt("--yes", "Take a time that has passed.")] = False,
) -> None:
    """Move the open round's deadline.

    A time that has passed ends the round at once if it has its quorum. Otherwise the round is
    overdue at once, and everybody concerned gets a mail. The command asks first.
    """
    aware, now = read_time(until, "UNTIL"), datetime.now(UTC)
    question = (
        f"{until} has passed, now it is {now:%Y-%m-%dT%H:%MZ}. The round then closes with its "
        "quorum, or is overdue at once. Move the deadline there?"
    )
    if aware < now and not agreed(yes, question):
        return
    with connection.client() as client, FieldNames({"/deadline": "UNTIL"}).applied():
        info = client.patch_session(session, SessionPatch(deadline=aware))
    conclude(f"{session}: the round's deadline is {aware:%Y-%m-%dT%H:%M:%SZ}", info)


@o.command(
    app, "watch", "fedclust session watch heart-2026", "fedclust session watch heart-2026 --json"
)
def watch(
    connection: o.Connection,
    session: o.Session,
    every: Annotated[
        float,
        typer.Option("--every", help="Seconds between two looks.", min=0.2),
    ] = 2.0,
) -> None:
    """Follow a session until it ends; exit code 7 unless it completes."""
    # A watch of days outlives a coordinator's restart.
    with connection.client(give_up_after_s=3_600.0) as client:
        try:
            info = Watcher(client, session, every, o.wants_json()).follow()
        except KeyboardInterrupt:
            show(err, f"stopped watching; {session} continues")
            raise
    if info.state != "completed":
        reason = info.failure or info.stopped_because or info.state
        raise errors.SessionFailed(session, f"{info.state}: {reason}", info.failure)
    if not o.wants_json():
        show(err, f"next: fedclust session result {session}")


class _ResultOptions(o.OptionGroup):
    """What is made of a result."""

    form: Annotated[
        Literal["table", "json", "csv", "binary", "ro-crate", "methods", "bibtex"] | None,
        {"name": "--format"},
    ] = None
    """Format of the output; by default a table, or in a file CSV if its name ends in .csv, an
    RO-Crate if it ends in .zip, BibTeX if it ends in .bib, else JSON. An RO-Crate is what to
    deposit with a publication: result, report, figures, definition and provenance in one file. To
    write the publication: methods is the text of its methods section, bibtex the references of this
    text."""
    out: Path | None = None
    """File to write; by default standard output."""
    report: o.Report = None
    table_one: Path | None = None
    """Write table 1 of a manuscript to this .docx, .xlsx, .csv or .html file: features and outcomes
    by cluster."""
    result_out: o.ResultOut = None
    license: str | None = None
    """Licence of an RO-Crate: an SPDX identifier, such as CC-BY-4.0, or the address of a licence's
    text. Without it the RO-Crate says that none is stated."""
    k: OneK = None


@o.command(
    app,
    "result",
    "fedclust session result heart-2026",
    "fedclust session result heart-2026 --format csv --out centroids.csv",
    "fedclust session result heart-2026 --report heart.html",
    "fedclust session result heart-2026 --table-one table1.docx",
    "fedclust session result heart-2026 --result-out heart.fedclust",
    "fedclust session result heart-2026 --format ro-crate --license CC-BY-4.0 --out heart.zip",
    "fedclust session result heart-2026 --format methods",
    "fedclust session result heart-2026 --k 5",
)
def result(
    connection: o.Connection,
    session: o.Session,
    wanted: _ResultOptions,
) -> None:
    """Print the clusters, or write the result or a report of it to a file.

    --result-out writes what labels new rows: fedclust predict FILE --data ROWS --out LABELS.
    """
    path, report, table, result_out = wanted.out, wanted.report, wanted.table_one, wanted.result_out
    known = ((path, is_document), (report, is_report), (table, is_table), (result_out, is_result))
    check_outputs(known, ())
    shape = _result_form(wanted.form, path)
    _check_license(wanted.license, shape)
    with connection.client() as client:
        found = client.result(session)
    if wanted.k is not None:
        found = found.at(wanted.k)
    if report is not None:
        found.save_report(report)
        show(err, f"report: {report}")
    if table is not None:
        found.save_table_one(table)
        show(err, f"table 1: {table}")
    if result_out is not None:
        found.save(result_out)
        show(err, f"next: fedclust predict {result_out} --data FILE --out LABELS")
    if shape == "ro-crate" and path is not None:
        found.save_ro_crate(path, wanted.license)
        show(err, f"RO-Crate: {path}")
    elif shape == "table":
        show_result(found)
    else:
        content = _CONTENT[shape](found)
        _output(content if shape == "binary" or path else content.rstrip(b"\n") + b"\n", path)


_CONTENT: dict[str, Callable[[SessionResult], bytes]] = {
    "csv": lambda result: centroid_table(result.document),
    "binary": lambda result: codec.encode_model(result.document),
    "json": lambda result: codec.to_json(codec.to_tree(result.document)),
    "methods": lambda result: result.methods_text().encode(),
    "bibtex": lambda result: result.bibtex().encode(),
}


def _output(content: bytes, path: Path | None) -> None:
    """Write to a file, or to standard output."""
    if path is None:
        write_out(content)
        return
    write_file(path, content)
    show(err, f"{len(content)} bytes: {path}")


def _result_form(form: str | None, path: Path | None) -> str:
    """Return the format of a result's output; UsageError for options that contradict."""
    if o.wants_json() and form not in (None, "json"):
        raise errors.UsageError(f"--json and --format {form} contradict each other: give one")
    if path is None:
        if form == "binary" and sys.stdout.isatty():
            raise errors.UsageError("the binary form is not for a terminal: give --out")
        if form == "ro-crate":
            raise errors.UsageError("an RO-Crate is a file: give its name with --out")
        return form or ("json" if o.wants_json() else "table")
    if form == "table":
        raise errors.UsageError(
            "--format table is for the screen: for a file give --format csv, json, binary, "
            "ro-crate, methods or bibtex, or --report"
        )
    if path.suffix.lower() == ".fedclust":
        raise errors.UsageError(f"--out {path}: for `fedclust predict` give --result-out {path}")
    by_ending = {} if o.wants_json() else {".csv": "csv", ".zip": "ro-crate", ".bib": "bibtex"}
    return form or by_ending.get(path.suffix.lower(), "json")


def _check_license(licence: str | None, shape: str) -> None:
    """Refuse a licence that cannot be read, or that nothing would be written with."""
    if licence is not None and shape != "ro-crate":
        raise errors.UsageError("--license is for an RO-Crate: give --format ro-crate too")
    check_license(licence)
