"""``fedclust``: what a site's data manager runs."""

from __future__ import annotations

import base64
import csv
import io
import json
import os
import sys
import traceback
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from numpy.typing import NDArray

from fedclust import errors, journal
from fedclust.cli import options as o
from fedclust.cli.screen import (
    ProgressLine,
    consent_screen,
    err,
    ledger_screen,
    out,
    plain,
    preview_screen,
    show,
    table,
    tell_retries,
)
from fedclust.consent import ConsentRequest
from fedclust.privacy.files import write_atomically
from fedclust.privacy.ledger import Ledger
from fedclust.results import SiteResult
from fedclust.site import Preview
from fedclust.wire import codec

_EXIT_CODES: tuple[tuple[type[errors.FedclustError], int], ...] = (
    (errors.UsageError, 2),
    (errors.DataError, 3),
    (errors.ConsentError, 4),
    (errors.CoordinatorError, 5),
    (errors.TransportError, 6),
    (errors.SessionError, 7),
    (errors.JournalError, 8),
    (errors.DisclosureError, 9),
)
_EPILOG = (
    "Exit codes: 0 done, 1 unexpected, 2 usage, 3 data, 4 no consent, 5 refused by the "
    "coordinator, 6 unreachable or TLS, 7 session failed, cancelled or left, 8 journal or ledger, "
    "9 own disclosure check, 130 interrupted."
)


def _epilog(*lines: str) -> str:
    """Return examples and the exit codes; the mark keeps the lines apart."""
    return "\n\n".join(["\b\n" + "\n".join(["Examples:", *(f"  {t}" for t in lines)]), _EPILOG])


app = typer.Typer(
    help="Take part in clustering across organisations without giving rows away.",
    epilog=_EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
ledger_app = typer.Typer(help="What left this site.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(ledger_app, name="ledger")


class Ask(StrEnum):
    once = "once"
    each = "each"


@app.command(
    epilog=_epilog(
        "export FEDCLUST_COORDINATOR=https://coordinator.example",
        "fedclust participate heart-2026 --data cohort.csv --token-file token --preview",
        "fedclust participate heart-2026 --data cohort.csv --token-file token \\",
        "    --id-column mrn --labels-out labels.csv --result-out heart.fedclust",
    )
)
def participate(
    session: o.Session,
    data: o.Data,
    coordinator: o.Coordinator = None,
    token_file: o.TokenFile = None,
    id_column: o.IdColumn = None,
    person_column: o.PersonColumn = None,
    labels_out: Annotated[
        Path | None,
        typer.Option("--labels-out", help="Where this site's labels go, CSV.", show_default=False),
    ] = None,
    result_out: Annotated[
        Path | None,
        typer.Option(
            "--result-out", help="Where the result goes, for predict.", show_default=False
        ),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Consent to all that the screen says, unasked.")
    ] = False,
    ask: Annotated[
        Ask, typer.Option("--ask", help="Ask once, or before each submission.")
    ] = Ask.once,
    preview: Annotated[
        bool,
        typer.Option("--preview", help="Show the next submission's exact bytes; send nothing."),
    ] = False,
    preview_out: Annotated[
        Path | None,
        typer.Option(
            "--preview-out", help="Write them to a file; send nothing.", show_default=False
        ),
    ] = None,
    min_cluster_size: o.MinClusterSize = None,
    journal_dir: o.JournalDir = None,
    ca_bundle: o.CaBundle = None,
    client_cert: o.ClientCert = None,
    client_key: o.ClientKey = None,
    proxy: o.Proxy = None,
    give_up_after: o.GiveUpAfter = 86_400.0,
    json_bodies: Annotated[
        bool, typer.Option("--json-bodies", help="Send JSON instead of the binary form.")
    ] = False,
    as_json: o.AsJson = False,
) -> None:
    """Take part in a session, from consent to labels; the same command again resumes it."""
    o.check_outputs((labels_out, result_out, preview_out), (data,))
    columns: dict[str, Any] = {"person": person_column, "id_column": id_column}
    columns["min_cluster_size"] = min_cluster_size
    with o.open_site(
        coordinator,
        token_file,
        journal_dir,
        ca_bundle,
        client_cert,
        client_key,
        proxy,
        give_up_after,
        json_bodies,
    ) as site:
        if preview or preview_out is not None:
            _show_preview(site.preview(session, data, **columns), preview_out, as_json)
            return
        with ProgressLine() as line:

            def consent(request: ConsentRequest) -> bool:
                line.pause()
                consent_screen(request)
                return yes or _confirmed("Does this site take part?", "--yes")

            def ask_each(next_one: Preview) -> bool:
                line.pause()
                preview_screen(next_one)
                return _confirmed("Send this?", "--ask once")

            try:
                result = site.participate(
                    session,
                    data,
                    **columns,
                    consent=consent,
                    ask=ask_each if ask is Ask.each else None,
                    on_progress=line.tell,
                )
            except KeyboardInterrupt:
                line.pause()
                show(err, "interrupted; the same command again goes on where it stopped")
                raise
    if result_out is not None:
        result.save(result_out)
    if labels_out is not None and result.labels_ is not None:
        _write_labels(labels_out, result.labels_, result.ids_, id_column)
    _show_result(result, as_json)


@app.command(
    epilog=_epilog(
        "fedclust check heart-2026 --data cohort.csv --token-file token \\",
        "    --coordinator https://coordinator.example",
    )
)
def check(
    session: o.Session,
    data: o.Data,
    coordinator: o.Coordinator = None,
    token_file: o.TokenFile = None,
    id_column: o.IdColumn = None,
    person_column: o.PersonColumn = None,
    min_cluster_size: o.MinClusterSize = None,
    journal_dir: o.JournalDir = None,
    ca_bundle: o.CaBundle = None,
    client_cert: o.ClientCert = None,
    client_key: o.ClientKey = None,
    proxy: o.Proxy = None,
    as_json: o.AsJson = False,
) -> None:
    """Match a file with a session's features and show what consent would be to; send nothing."""
    with o.open_site(
        coordinator, token_file, journal_dir, ca_bundle, client_cert, client_key, proxy, 60.0
    ) as site:
        request = site.check(
            session,
            data,
            person=person_column,
            id_column=id_column,
            min_cluster_size=min_cluster_size,
        )
    if as_json:
        _print_json(
            {
                "session": session,
                "definition_sha256": request.definition_sha256,
                "features": [feature.name for feature in request.definition.features],
                "usable_rows": request.rows,
                "size_band": request.size_band,
                "min_cluster_size": request.p,
                "enough_rows": request.rows >= request.p,
            }
        )
        return
    consent_screen(request)
    show(out, f"{data.name}: all {len(request.definition.features)} features, {request.rows} rows")
    if request.rows < request.p:
        show(out, f"fewer rows than {request.p}: this site would answer every round empty")


@app.command(
    epilog=_epilog(
        "fedclust predict heart.fedclust --data new.csv --id-column mrn --out labels.csv"
    )
)
def predict(
    result: Annotated[
        Path, typer.Argument(help="File that --result-out wrote.", show_default=False)
    ],
    data: o.Data,
    out_path: Annotated[
        Path, typer.Option("--out", help="Where the labels go, CSV.", show_default=False)
    ],
    id_column: o.IdColumn = None,
) -> None:
    """Label new rows with a saved result, here and alone: nothing is sent."""
    o.check_outputs((out_path,), (data, result))
    loaded = SiteResult.load(result)
    rows = loaded.read(data, id_column)
    _write_labels(out_path, loaded.label(rows), rows.ids, id_column)
    show(err, f"{len(rows.X)} rows labelled: {out_path}")


@app.command(
    epilog=_epilog(
        "fedclust status --token-file token --coordinator https://coordinator.example",
        "fedclust status heart-2026 --token-file token --json",
    )
)
def status(
    session: Annotated[
        str | None, typer.Argument(help="One session; by default all.", show_default=False)
    ] = None,
    coordinator: o.Coordinator = None,
    token_file: o.TokenFile = None,
    journal_dir: o.JournalDir = None,
    ca_bundle: o.CaBundle = None,
    client_cert: o.ClientCert = None,
    client_key: o.ClientKey = None,
    proxy: o.Proxy = None,
    as_json: o.AsJson = False,
) -> None:
    """Show this site's sessions: state, round, and what it has answered."""
    with o.open_site(
        coordinator, token_file, journal_dir, ca_bundle, client_cert, client_key, proxy, 60.0
    ) as site:
        rows = site.status(session)
    if as_json:
        _print_json([vars(row) for row in rows])
        return
    grid, add = table("session", "state", "this site", "round", "sent", "in flight", "why")
    for row in rows:
        add(row.session, row.state, row.site_state, row.round, row.sent, row.in_flight, row.reason)
    out.print(grid)


@ledger_app.command(
    "show",
    epilog=_epilog("fedclust ledger show --session heart-2026", "fedclust ledger show --json"),
)
def ledger_show(
    session: Annotated[
        str | None, typer.Option("--session", help="One session.", show_default=False)
    ] = None,
    journal_dir: o.JournalDir = None,
    as_json: o.AsJson = False,
) -> None:
    """Show every body that left: one line each, and those whose outcome is not known yet."""
    directory = journal_dir or journal.default_directory()
    with journal.state_errors(directory):
        lines = list(Ledger(directory).read())
        lines += [a.entry(journal.Outcome()) for a, o_ in journal.recorded(directory) if o_ is None]
    lines = [line for line in lines if session in (None, line.get("session"))]
    if as_json:
        for line in lines:
            out.file.write(json.dumps(line, sort_keys=True) + "\n")
        return
    for line in lines:
        ledger_screen(line)


@ledger_app.command(
    "verify",
    epilog=_epilog(
        "fedclust ledger verify",
        "fedclust ledger verify --head 5d41...  (printed by an earlier verify)",
    ),
)
def ledger_verify(
    journal_dir: o.JournalDir = None,
    head: Annotated[
        str | None,
        typer.Option("--head", help="A head noted earlier: must be in it.", show_default=False),
    ] = None,
    as_json: o.AsJson = False,
) -> None:
    """Recompute the ledger's chain and compare it with the journals; exit code 8 for a fault."""
    directory = journal_dir or journal.default_directory()
    ledger = Ledger(directory)
    with journal.state_errors(directory):
        faults = [f"line {fault.line}: {fault.message}" for fault in ledger.verify(head)]
        if not faults:
            listed = {(e.get("session"), e.get("round"), e.get("sha256")) for e in ledger.read()}
            for answer, outcome in journal.recorded(directory):
                if outcome and (answer.session, answer.round, answer.sha256) not in listed:
                    faults.append(f"session {answer.session}, round {answer.round}: no line")
        lines, last = ledger.head()
    if as_json:
        _print_json({"lines": lines, "head": last, "faults": faults})
    elif not faults and not ledger.path.exists():
        show(out, f"{ledger.path}: there is none, so nothing was sent with this --journal-dir")
    elif not faults:
        show(out, f"{ledger.path}: {lines} lines, none changed, removed or moved; head {last}")
    if faults:
        raise errors.JournalDamaged(f"{ledger.path}: " + "; ".join(faults))


def main() -> None:
    """Run the command: an error is one line on standard error and an exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A unit with a Greek letter must not end a session on a console without one.
            stream.reconfigure(errors="backslashreplace")
    tell_retries()
    try:
        app()
    except errors.FedclustError as error:
        show(err, f"fedclust: {error}")
        sys.exit(next(code for kind, code in _EXIT_CODES if isinstance(error, kind)))
    except Exception as error:
        # The message of an unforeseen error may hold anything, a value of the data too.
        show(err, f"fedclust: unexpected {type(error).__name__}; FEDCLUST_DEBUG=1 shows where")
        if os.environ.get("FEDCLUST_DEBUG"):
            traceback.print_exc()
        sys.exit(1)


def _confirmed(question: str, instead: str) -> bool:
    if not sys.stdin.isatty():
        raise errors.ConsentNeeded(f"nobody can be asked here: give {instead}", ("consent",))
    # Not typer.confirm: it makes a failure of Ctrl-C, which is 130, and of Ctrl-D, which is a no.
    while True:
        show(err, f"{question} [y/N]")
        answer = sys.stdin.readline().strip().casefold()
        if answer in ("", "n", "no", "y", "yes"):
            return answer in ("y", "yes")


def _show_preview(preview: Preview, path: Path | None, as_json: bool) -> None:
    if path is not None and preview.body is not None:
        _write(path, preview.body)
        show(err, f"{len(preview.body)} bytes written to {path}; nothing was sent")
    elif as_json:
        body = None if preview.body is None else base64.b64encode(preview.body).decode()
        digest = None if preview.body is None else codec.sha256(preview.body)
        _print_json({**vars(preview), "body": body, "sha256": digest})
    else:
        preview_screen(preview)


def _write_labels(
    path: Path, labels: NDArray[Any], ids: tuple[str, ...] | None, id_column: str | None
) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([id_column or "row", "cluster"])
    names = ids or range(len(labels))
    # An empty cluster: missing values forbid a label.
    writer.writerows((name, "" if k < 0 else int(k)) for name, k in zip(names, labels, strict=True))
    _write(path, text.getvalue().encode())


def _write(path: Path, data: bytes) -> None:
    try:
        write_atomically(path, data)
    except OSError as error:
        raise errors.UsageError(f"{path} cannot be written: {error.strerror}") from None


def _show_result(result: SiteResult, as_json: bool) -> None:
    found = result.result_
    facts = {
        "session": result.document.session,
        "site": result.site,
        "clusters": len(found.centroids),
        "rounds": found.n_rounds,
        "stopped_because": found.stopped_because,
        "inertia": found.quality.inertia if found.quality else None,
        "sizes": list(found.sizes) if found.sizes else None,
        "own_sizes": list(result.own_sizes_) if result.own_sizes_ else None,
        "warnings": list(found.warnings),
    }
    if as_json:
        _print_json(facts)
        return
    for name, value in facts.items():
        if value not in (None, []):
            show(out, f"{name.replace('_', ' '):<16} {plain(value)}")


def _print_json(value: Any) -> None:
    out.file.write(json.dumps(value, allow_nan=False) + "\n")
