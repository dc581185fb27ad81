"""The audit trail's hash chain: how entries are hashed and how a trail is verified.

An entry's hash is the SHA-256 of eight lines of UTF-8, joined by a line feed with none at the
end: the previous hash (64 zeros for the first entry), its number, its row's id, the time as
``2026-01-31T12:00:00.000000Z``, actor, action, subject, and the details as stored: one line of
JSON with sorted keys. `docs/audit.md` describes this for authors of other verifiers.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

FIRST = "0" * 64
#: Longest list of faults in a report: one early change can make every later entry differ.
MAX_FAULTS = 20


@dataclass(frozen=True)
class Head:
    """The last sealed entry; number 0 before the first."""

    number: int = 0
    hash: str = FIRST

    def __str__(self) -> str:
        return f"{self.number}:{self.hash}"

    @classmethod
    def noted(cls, text: str) -> Head | str | None:
        """Read ``NUMBER:HASH``, the form in ledgers, or a hash alone; None for anything else."""
        found = re.fullmatch(r"(?:([0-9]{1,15}):)?([0-9a-f]{64})", text.strip().lower())
        if found is None:
            return None
        return found[2] if found[1] is None else cls(int(found[1]), found[2])


@dataclass(frozen=True)
class EntryText:
    """An entry as text, the way the database holds it and the chain hashes it."""

    id: int
    at: str
    actor: str
    action: str
    subject: str
    details: str

    def fields(self) -> tuple[str, ...]:
        """Return the entry's own lines, in the order that the chain hashes."""
        own = (self.id, self.at, self.actor, self.action, self.subject, self.details)
        return tuple(str(value) for value in own)

    def after(self, head: Head) -> Head:
        """Return the head once this entry follows ``head``."""
        number = head.number + 1
        lines = "\n".join((head.hash, str(number), *self.fields()))
        # A tampered value may not be valid text, so it is hashed byte by byte.
        data = lines.encode("utf-8", "surrogateescape")
        return Head(number, hashlib.sha256(data).hexdigest())


@dataclass(frozen=True)
class Sealed:
    """An entry with its stored number and hash."""

    number: int
    hash: str
    text: EntryText


class Verification:
    """Recomputes a chain of entries that come by number, from ``head`` on."""

    def __init__(self, head: Head) -> None:
        self.head = head
        self._faults: list[str] = []

    @property
    def faults(self) -> tuple[str, ...]:
        """At most :data:`MAX_FAULTS` faults."""
        return tuple(self._faults[:MAX_FAULTS])

    def follow(self, entry: Sealed) -> None:
        """Verify the next entry, which becomes the head."""
        head, faults = self.head, self._faults
        if entry.number != head.number + 1:
            faults.append(_gap(head.number + 1, entry.number))
            # Continue from here, so that one missing entry does not hide other faults.
            head = Head(entry.number - 1 if isinstance(entry.number, int) else 0, "")
        if any("\n" in line for line in entry.text.fields()):
            faults.append(f"entry {entry.number}: a field holds a line break")
        follows = entry.text.after(head)
        if head.hash and follows.hash != entry.hash:
            faults.append(f"entry {entry.number}: it or its place in the chain was changed")
        self.head = Head(follows.number, str(entry.hash))

    def end(self, recorded: Head | None, *, holds_noted: bool) -> None:
        """Compare the last entry with the head that the database stores.

        ``holds_noted``: whether an entry has the hash that was noted elsewhere.
        """
        head, faults = self.head, self._faults
        if recorded is None:
            faults.append("the recorded head is missing")
        elif recorded != head:
            if isinstance(recorded.number, int) and recorded.number > head.number:
                faults.append(_gap(head.number + 1, recorded.number + 1))
            else:
                faults.append(f"the recorded head {recorded.number} is not the last entry's")
        if not holds_noted:
            faults.append("no entry has the noted hash: the trail was cut or rewritten")


def is_start(noted: str | Head | None) -> bool:
    """Whether a noted head is the one before the first entry, which every chain holds."""
    return noted in (None, FIRST, Head())


def _gap(first: int, following: int) -> str:
    if following == first + 1:
        return f"entry {first} is missing"
    return f"entries from {first} to before {following} are missing or out of place"
