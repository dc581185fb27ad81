"""What left this site: the disclosure ledger."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from fedclust import errors, journal
from fedclust.cli import options as o
from fedclust.cli.screen import ledger_screen, out, print_json, show
from fedclust.cli.texts import epilog
from fedclust.privacy.ledger import Ledger

app = typer.Typer(help="What left this site.", no_args_is_help=True, rich_markup_mode=None)


@app.command(
    "show",
    epilog=epilog("fedclust ledger show --session heart-2026", "fedclust ledger show --json"),
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


@app.command(
    "verify",
    epilog=epilog(
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
        print_json({"lines": lines, "head": last, "faults": faults})
    elif not faults and not ledger.path.exists():
        show(out, f"{ledger.path}: there is none, so nothing was sent with this --journal-dir")
    elif not faults:
        show(out, f"{ledger.path}: {lines} lines, none changed, removed or moved; head {last}")
    if faults:
        raise errors.JournalDamaged(f"{ledger.path}: " + "; ".join(faults))
