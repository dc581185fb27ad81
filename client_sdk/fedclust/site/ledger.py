"""The disclosure ledger: one hash-chained JSON line for each body that left the site.

Changes of the site's groups, reviews and approvals have lines too; these have an ``event``.

A line is written together with the outcome of sending: a receipt, or a refusal (a refused body
has left too). Until then the body is in the session's journal, which is stored before the first
byte is sent, and ``fedclust ledger show`` lists it as in flight. A site that resumes sends it again
first. So every body that leaves is recorded, and has one line even if it was sent twice because of
a crash.

Every line holds the SHA-256 of the line before it (``previous``), and the state the number of lines
and the hash of the last one. This detects lines that were changed, removed, reordered or cut off.
The chain has no key, so anyone who can write here can rewrite all of it. Such a change is
detected by the receipts at the coordinator, or by a head that was noted elsewhere
(``verify(expected_head=...)``).
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from fedclust.schema.model import Model
from fedclust.schema.times import write_time
from fedclust.site.state import SiteState, StateDocument
from fedclust.wire.models import TableHeads

FIRST = "0" * 64
#: A coordinator refuses a table, or accepts it after that by its operator's act.
REFUSED, ACCEPTED = "table refused", "table accepted"


class LedgerHead(Model):
    """The number of lines and the hash of the last one."""

    lines: int = 0
    hash: str = FIRST


class Ledger:
    """The ledger in a site's state."""

    def __init__(self, state: SiteState) -> None:
        self.state = state
        self._head = StateDocument(state, "ledger-head", LedgerHead)

    def append(self, entry: Mapping[str, Any]) -> None:
        """Append one line of plain JSON values.

        Raises
        ------
        StateError
            StateDamaged if the ledger does not end as its head says.
        """
        with self.state.write() as connection:
            head = self._checked_head()
            body = {**entry, "line": head.lines + 1, "previous": head.hash}
            text = json.dumps(body, sort_keys=True, allow_nan=False)
            connection.execute(
                "INSERT INTO ledger (line, text) VALUES (?, ?)", (head.lines + 1, text)
            )
            self._head.update(lambda _: LedgerHead(lines=head.lines + 1, hash=_hash(text)))

    def check(self) -> None:
        """Raise StateDamaged if the ledger does not end as its head says."""
        with self.state.read():
            self._checked_head()

    def read(self, **wanted: str) -> Iterator[dict[str, Any]]:
        """Yield the lines, unverified; StateDamaged if one is not a JSON object.

        Parameters
        ----------
        **wanted : str
            ``session`` or ``table_id``: only lines with this value.
        """
        chosen = " AND ".join(f"{name} = :{name}" for name in wanted) or "TRUE"
        return self._entries(chosen, wanted)

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the lines with an ``event`` as :meth:`read` does."""
        return self._entries("event IS NOT NULL", {})

    def texts(self) -> Iterator[str]:
        """Yield each line as it was written."""
        return (text for (text,) in self.state.rows("SELECT text FROM ledger ORDER BY line"))

    def verify(self, expected_head: str | None = None) -> list[str]:
        """Recompute the chain and return every fault with its line (from 1); empty without one.

        Parameters
        ----------
        expected_head : str, optional
            SHA-256 of a line, noted earlier and kept elsewhere: it must still be in the chain.
        """
        faults, previous, hashes, number = list[str](), FIRST, list[str](), 0
        with self.state.read() as connection:
            rows = connection.execute("SELECT line, text FROM ledger ORDER BY line")
            for number, (line, text) in enumerate(rows, 1):
                entry = _parse_line(text)
                if entry is None:
                    faults.append(f"line {number}: not a JSON object")
                elif entry.get("previous") != previous:
                    faults.append(f"line {number}: does not follow the line before it")
                elif not entry.get("line") == line == number:
                    faults.append(f"line {number}: numbered {entry.get('line')!r}")
                previous = _hash(text)
                hashes.append(previous)
            head = self._head.read()
        if number < head.lines:
            missing = f"{head.lines - number} lines are missing at the end"
            faults.append(f"line {number + 1}: {missing}")
        elif head.lines and hashes[head.lines - 1] != head.hash:
            faults.append(f"line {head.lines}: is not the last line that was written")
        elif number > head.lines:
            faults.append(f"line {head.lines + 1}: more lines than were written")
        if expected_head is not None and expected_head not in hashes:
            faults.append(f"line {number}: no line has the hash that was noted")
        return faults

    def head(self) -> tuple[int, str]:
        """Return the number of lines and the hash of the last one: worth noting elsewhere."""
        head = self._head.read()
        return head.lines, head.hash

    def enter_table(
        self,
        event: str,
        table: Mapping[str, str | None],
        session: str,
        heads: TableHeads | None,
        now: datetime,
    ) -> None:
        """Enter that a coordinator refuses a table, or accepts one that it refused; once.

        Parameters
        ----------
        event : str
            :data:`REFUSED` or :data:`ACCEPTED`.
        table : dict
            ``coordinator``, ``site`` and ``table_id``: None if the site uses no table.
        session : str
        heads : TableHeads or None
            Those that were sent.
        now : datetime
        """
        # The key "table" is that of lines that are changes of a table.
        known = [line["event"] for line in self.events() if table.items() <= line.items()]
        last = [each for each in known if each in (REFUSED, ACCEPTED)][-1:]
        if heads is not None and last != [event] and (last or event == REFUSED):
            change = {"number": heads.last, "head": heads.heads[-1]}
            facts = {"event": event, "session": session, "time": write_time(now)}
            self.append({**facts, **table, **change})

    def _entries(self, chosen: str, values: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        statement = f"SELECT line, text FROM ledger WHERE {chosen} ORDER BY line"  # noqa: S608
        for line, text in self.state.rows(statement, values):
            entry = _parse_line(text)
            if entry is None:
                raise self.state.damaged(f"line {line} of the ledger is not a JSON object")
            yield entry

    def _checked_head(self) -> LedgerHead:
        head = self._head.read()
        last = self.state.rows("SELECT line, text FROM ledger ORDER BY line DESC LIMIT 1")
        found = [LedgerHead(lines=line, hash=_hash(text)) for line, text in last]
        if (found or [LedgerHead()]) != [head]:
            raise self.state.damaged(
                "the ledger does not end with the line that was written last; fedclust ledger "
                "verify says more"
            )
        return head


def _hash(text: str) -> str:
    """Return the hash of a line of the exported ledger, its end included."""
    return hashlib.sha256(f"{text}\n".encode()).hexdigest()


def _parse_line(text: str) -> dict[str, Any] | None:
    try:
        entry = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) else None
