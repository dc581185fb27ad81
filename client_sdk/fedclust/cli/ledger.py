"""What left this site: the disclosure ledger."""

from __future__ import annotations

import json
import re
from typing import Annotated

import typer

from fedclust import errors
from fedclust.cli import options as o
from fedclust.cli.console import err, ledger_screen, out, print_json, show, write_out
from fedclust.client import Client
from fedclust.site import journal, paths
from fedclust.site.ledger import Ledger

app = typer.Typer(
    help="Show and verify the record of what left this site.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@o.command(app, "show", "fedclust ledger show --session heart-2026", "fedclust ledger show --json")
def ledger_show(
    session: Annotated[str | None, o.opt("--session", "Only this session.")] = None,
    journal_dir: o.JournalDir = None,
    as_json: o.AsJson = False,
) -> None:
    """Show each body that left this site, including those without an outcome yet."""
    directory = journal_dir or paths.default_directory()
    with journal.state_errors(directory):
        lines = list(Ledger(directory).read())
        lines += [
            a.entry(journal.SubmissionOutcome())
            for a, o_ in journal.recorded_answers(directory)
            if o_ is None
        ]
    lines = [line for line in lines if session in (None, line.get("session"))]
    if as_json:
        for line in lines:
            write_out(json.dumps(line, sort_keys=True) + "\n")
        return
    for line in lines:
        ledger_screen(line)
    if not lines:
        show(err, "nothing has left" + (f" for session {session}" if session else ""))


@o.command(
    app,
    "verify",
    "fedclust ledger verify",
    "fedclust ledger verify --head 5d41...  (printed by an earlier verify)",
    "fedclust ledger verify --against-coordinator",
)
def ledger_verify(
    connection: o.Connection,
    journal_dir: o.JournalDir = None,
    head: Annotated[
        str | None, o.opt("--head", "Head noted earlier, which the ledger must contain.")
    ] = None,
    against_coordinator: Annotated[
        bool,
        typer.Option(
            "--against-coordinator",
            help="Ask the coordinator whether its audit trail still has the heads noted here.",
        ),
    ] = False,
    as_json: o.AsJson = False,
) -> None:
    """Verify the ledger's chain and compare it with the journals; exit code 8 for a fault.

    Each line carries the last known head of the coordinator's audit trail.
    --against-coordinator detects whether that trail was cut or rewritten since.
    """
    if head is not None and not re.fullmatch("[0-9a-f]{64}", head):
        raise errors.UsageError(
            "--head: give the 64 hexadecimal digits that fedclust ledger verify printed"
        )
    directory = journal_dir or paths.default_directory()
    ledger = Ledger(directory)
    with journal.state_errors(directory):
        faults = [f"line {fault.line}: {fault.message}" for fault in ledger.verify(head)]
        if not faults:
            listed = {(e.get("session"), e.get("round"), e.get("sha256")) for e in ledger.read()}
            for answer, outcome in journal.recorded_answers(directory):
                if outcome and (answer.session, answer.round, answer.sha256) not in listed:
                    faults.append(f"session {answer.session}, round {answer.round}: no line")
        lines, last = ledger.head()
        noted = _noted_heads(ledger) if against_coordinator and not faults else {}
    checked = 0
    if against_coordinator and not faults:
        with connection.client() as client:
            mine = noted.get(client.url, {})
            checked, faults = len(mine), _changed_heads(client, mine)
    if as_json:
        print_json({"lines": lines, "head": last, "heads_checked": checked, "faults": faults})
    elif not faults and not ledger.path.exists():
        show(out, f"{ledger.path} does not exist: nothing was sent with this --journal-dir")
    elif not faults:
        show(out, f"{ledger.path}: {lines} lines, none changed, removed or moved; head {last}")
        if against_coordinator and not checked:
            others = ", ".join(sorted(noted)) or "none"
            said = f"no line has a head of this coordinator; heads of others: {others}"
            show(out, f"nothing to compare: {said}")
        elif against_coordinator:
            show(out, f"the coordinator's audit trail has all {checked} heads noted here")
    if faults:
        raise errors.JournalDamaged(f"{ledger.path}: " + "; ".join(faults))


def _noted_heads(ledger: Ledger) -> dict[str, dict[int, set[str]]]:
    """Return the audit heads in the ledger: by coordinator and number, the hashes."""
    found: dict[str, dict[int, set[str]]] = {}
    for entry in ledger.read():
        head = entry.get("audit_head")
        if isinstance(head, str):
            number, _, digest = head.partition(":")
            if not number.isdecimal():
                raise errors.JournalDamaged(f"{ledger.path}: {head!r} is not an audit head")
            known = found.setdefault(str(entry.get("coordinator")), {})
            known.setdefault(int(number), set()).add(digest)
    return found


def _changed_heads(client: Client, noted: dict[int, set[str]]) -> list[str]:
    """Return which of the noted heads the coordinator's audit trail has lost or changed."""
    faults = []
    for number, digests in sorted(noted.items()):
        try:
            now = client.audit_head_at(number).hash
        except errors.NotFound:
            faults.append(f"the coordinator's audit trail has no entry {number} any more")
            continue
        if digests != {now}:
            faults.append(f"entry {number} of the coordinator's audit trail has another hash now")
    return faults
