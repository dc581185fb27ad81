"""The disclosure ledger: one hash-chained JSON line for each body that left the site.

Changes of the site's groups, reviews and approvals have lines too; these have an ``event``.

A line is appended when the outcome of sending is known: a receipt, or a refusal (a refused body
has left too). Until then the body is in the session's journal, which is written and synced before
the first byte is sent, and ``fedclust ledger show`` lists it as in flight. A site that resumes
sends it again first. So every body that leaves is recorded, and has one line even if it was sent
twice because of a crash.

Every line holds the SHA-256 of the line before it (``previous``), and ``<ledger>.head`` the number
of lines and the hash of the last one. This detects lines that were changed, removed, reordered or
cut off. The chain has no key, so anyone who can write here can rewrite all of it. Such a change is
detected by the receipts at the coordinator, or by a head that was noted elsewhere
(``verify(expected_head=...)``).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedclust.durable_files import FileLock, append, private_directory, write_atomically

FIRST = "0" * 64


class LedgerDamaged(ValueError):
    """The ledger does not end as its head says; nothing may be appended to it."""


@dataclass(frozen=True)
class LedgerFault:
    """Something wrong at a line (from 1) of the ledger."""

    line: int
    message: str


@dataclass(frozen=True)
class _LastLine:
    """The last line: its number, where it starts and ends in the file, and its hash."""

    lines: int
    start: int
    size: int
    hash: str

    def after(self, line: bytes) -> _LastLine:
        return _LastLine(self.lines + 1, self.size, self.size + len(line), _hash(line))


class Ledger:
    """The ledger in ``directory``; several processes of one machine may append to it."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "ledger.jsonl"
        self._head_path = directory / "ledger.jsonl.head"
        self._lock_path = directory / "ledger.lock"

    def append(self, entry: Mapping[str, Any], *, unless: frozenset[str] = frozenset()) -> None:
        """Append one line durably.

        Parameters
        ----------
        entry : mapping
            Plain JSON values.
        unless : set of str
            If not empty, nothing is appended if some line agrees with ``entry`` in all these keys:
            after a crash it is unknown whether the line was written.
        """
        private_directory(self.path.parent)
        with FileLock(self._lock_path):
            head = self._current_head()
            if unless and any(all(e.get(k) == entry[k] for k in unless) for e in self.read()):
                return
            body = {**entry, "line": head.lines + 1, "previous": head.hash}
            line = json.dumps(body, sort_keys=True, allow_nan=False).encode() + b"\n"
            append(self.path, head.size, line)
            self._write_head(head.after(line))

    def check(self) -> None:
        """Raise LedgerDamaged if the file does not end as its head says."""
        if self.path.exists() or self._head_path.exists():
            with FileLock(self._lock_path):
                self._current_head()

    def read(self) -> Iterator[dict[str, Any]]:
        """Yield the lines, unverified; LedgerDamaged if one is not a JSON object."""
        return self._entries(b"")

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the lines with an ``event`` as :meth:`read` does, without parsing all others."""
        return (entry for entry in self._entries(b'"event": ') if "event" in entry)

    def verify(self, expected_head: str | None = None) -> list[LedgerFault]:
        """Recompute the chain and return every fault found; empty if there is none.

        Parameters
        ----------
        expected_head : str, optional
            SHA-256 of a line, noted earlier and kept elsewhere: it must still be in the chain.
        """
        faults, previous, hashes, number = [], FIRST, [], 0
        for number, line in enumerate(self._lines() if self.path.exists() else [], 1):
            entry = _parse_line(line)
            if entry is None:
                faults.append(LedgerFault(number, "not a JSON object"))
            elif entry.get("previous") != previous:
                faults.append(LedgerFault(number, "does not follow the line before it"))
            elif entry.get("line") != number:
                faults.append(LedgerFault(number, f"numbered {entry.get('line')!r}"))
            if not line.endswith(b"\n"):
                faults.append(LedgerFault(number, "is cut off"))
            previous = _hash(line)
            hashes.append(previous)
        head = self._read_head()
        if head is None:
            if number:
                faults.append(LedgerFault(number, f"{self._head_path.name} is missing or damaged"))
        elif number < head.lines:
            faults.append(
                LedgerFault(number + 1, f"{head.lines - number} lines are missing at the end")
            )
        elif head.lines and hashes[head.lines - 1] != head.hash:
            faults.append(LedgerFault(head.lines, "is not the last line that was written"))
        elif number > head.lines + 1:
            faults.append(LedgerFault(head.lines + 2, "more lines than were written"))
        if expected_head is not None and expected_head not in hashes:
            faults.append(LedgerFault(number, "no line has the hash that was noted"))
        return faults

    def head(self) -> tuple[int, str]:
        """Return the number of lines and the hash of the last one: worth noting elsewhere."""
        head = self._read_head() or _LastLine(0, 0, 0, FIRST)
        return head.lines, head.hash

    def _entries(self, containing: bytes) -> Iterator[dict[str, Any]]:
        if self.path.exists():
            for number, line in enumerate(self._lines(), 1):
                if containing in line:
                    entry = _parse_line(line)
                    if entry is None:
                        raise LedgerDamaged(f"{self.path}, line {number}: not a JSON object")
                    yield entry

    def _lines(self) -> list[bytes]:
        data, head = self.path.read_bytes(), self._read_head()
        # A crash cut this line short: its body is still in the journal.
        if head is not None and b"\n" not in data[head.size :]:
            data = data[: head.size]
        return data.splitlines(keepends=True)

    def _read_head(self) -> _LastLine | None:
        try:
            raw = json.loads(self._head_path.read_bytes())
            return _LastLine(
                int(raw["lines"]), int(raw["start"]), int(raw["size"]), str(raw["hash"])
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _write_head(self, head: _LastLine) -> None:
        write_atomically(self._head_path, json.dumps(vars(head), sort_keys=True).encode())

    def _current_head(self) -> _LastLine:
        """Return the head, brought up to date if a crash came between a line and its head."""
        head = self._read_head()
        if head is None:
            if self._head_path.exists():
                raise LedgerDamaged(f"{self._head_path} is damaged")
            head = _LastLine(0, 0, 0, FIRST)
        last, beyond = b"", b""
        if self.path.exists():
            with self.path.open("rb") as file:
                file.seek(head.start)
                last, beyond = file.read(head.size - head.start), file.read()
        if head.lines and _hash(last) != head.hash:
            raise LedgerDamaged(f"{self.path} does not end with the line that was written last")
        # A crash cut a line without its end short: the next append overwrites it.
        tail = [line for line in beyond.splitlines(keepends=True) if line.endswith(b"\n")]
        if not tail:
            return head
        entry = _parse_line(tail[0]) or {}
        follows = entry.get("previous") == head.hash and entry.get("line") == head.lines + 1
        if len(tail) > 1 or not follows:
            raise LedgerDamaged(f"{self.path} holds lines that were not written one by one")
        head = head.after(tail[0])
        self._write_head(head)
        return head


def _hash(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()


def _parse_line(line: bytes) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) else None
