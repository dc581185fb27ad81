"""What left this site: the disclosure ledger."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from fedclust.cli import options as o
from fedclust.cli.console import conclude, err, ledger_screen, out, print_json, show, write_out
from fedclust.client import Client
from fedclust.durable_files import write_file
from fedclust.site.backup import ledger_faults
from fedclust.site.charges import Charges, open_text
from fedclust.site.journal import SubmissionOutcome, recorded_answers
from fedclust.site.ledger import Ledger
from fedclust.site.state import SiteState
from fedclust.wire import errors

app = o.group("Show and verify the record of what left this site.")


@o.command(app, "show", "fedclust ledger show --session heart-2026", "fedclust ledger show --json")
def ledger_show(
    session: Annotated[str | None, o.opt("--session", "Only this session.")] = None,
) -> None:
    """Show each body that left this site, including those without an outcome yet."""
    state = SiteState()
    lines = list(Ledger(state).read(**({} if session is None else {"session": session})))
    lines += [
        answer.entry(SubmissionOutcome())
        for answer, outcome in recorded_answers(state, session)
        if outcome is None
    ]
    if o.wants_json():
        for line in lines:
            write_out(json.dumps(line, sort_keys=True) + "\n")
        return
    for line in lines:
        ledger_screen(line)
    if not lines:
        show(err, "nothing has left" + (f" for session {session}" if session else ""))


class _Wanted(o.OptionGroup):
    """What the ledger is compared with in addition to the journal."""

    head: str | None = None
    """Head noted earlier, which the ledger must contain."""
    against_coordinator: bool = False
    """Ask the coordinator whether its audit trail still has the heads noted here."""


@o.command(
    app,
    "verify",
    "fedclust ledger verify",
    "fedclust ledger verify --head 5d41...  (printed by an earlier verify)",
    "fedclust ledger verify --against-coordinator",
)
def ledger_verify(
    connection: o.Connection,
    wanted: _Wanted,
) -> None:
    """Verify the ledger's chain and compare it with the journal; exit code 8 for a fault.

    Each line carries the last known head of the coordinator's audit trail.
    --against-coordinator detects whether that trail was cut or rewritten since, and gives points
    of ended sessions back. Points that are open are named.
    """
    head, against_coordinator = wanted.head, wanted.against_coordinator
    if head is not None and not re.fullmatch("[0-9a-f]{64}", head):
        raise errors.UsageError(
            "--head: give the 64 hexadecimal digits that fedclust ledger verify printed"
        )
    state = SiteState()
    ledger, faults = Ledger(state), ledger_faults(state, head)
    charges = Charges(state)
    noted = _noted_heads(ledger) if against_coordinator and not faults else {}
    checked = 0
    if against_coordinator and not faults:
        with connection.client() as client:
            mine = noted.get(client.url, {})
            checked, faults = len(mine), _changed_heads(client, mine)
            if not faults:
                charges.look_after(client, datetime.now(UTC))
    lines, last = ledger.head()
    waiting = [] if faults else [open_text(each) for each in charges.open_charges()]
    if o.wants_json():
        facts = {"lines": lines, "head": last, "heads_checked": checked}
        print_json({**facts, "open_charges": waiting, "faults": faults})
    elif not faults and not lines:
        show(out, f"{state.path}: the ledger is empty; nothing was sent from this state directory")
    elif not faults:
        show(out, f"{state.path}: {lines} lines, none changed, removed or moved; head {last}")
        if against_coordinator and not checked:
            others = ", ".join(sorted(noted)) or "none"
            said = f"no line has a head of this coordinator; heads of others: {others}"
            show(out, f"nothing to compare: {said}")
        elif against_coordinator:
            heads = "the head" if checked == 1 else f"all {checked} heads"
            show(out, f"the coordinator's audit trail has {heads} noted here")
        for text in waiting:
            show(out, text)
    if faults:
        raise errors.StateDamaged(f"{state.path}, ledger: " + "; ".join(faults))


@o.command(app, "export", "fedclust ledger export --out ledger.jsonl")
def ledger_export(
    out_path: Annotated[Path, o.opt("--out", "File to write, one JSON line for each entry.")],
) -> None:
    """Write the ledger as text; the SHA-256 of its last line is the head that verify prints."""
    if out_path.exists():
        raise errors.UsageError(f"{out_path} exists: name a new file")
    lines = list(Ledger(SiteState()).texts())
    write_file(out_path, "".join(f"{line}\n" for line in lines).encode())
    conclude(f"{out_path}: {len(lines)} lines", {"lines": len(lines)})


def _noted_heads(ledger: Ledger) -> dict[str, dict[int, set[str]]]:
    """Return the audit heads in the ledger: by coordinator and number, the hashes."""
    found: dict[str, dict[int, set[str]]] = {}
    for entry in ledger.read():
        head = entry.get("audit_head")
        if isinstance(head, str):
            number, _, digest = head.partition(":")
            if not number.isdecimal():
                raise ledger.state.damaged(f"{head!r} in the ledger is not an audit head")
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
