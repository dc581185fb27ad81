"""The audit trail's chain: number and hash entries, read sealed ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Text,
    bindparam,
    func,
    literal,
    select,
    type_coerce,
    update,
)

from fedclust_service.domain.access import AuditEntry
from fedclust_service.domain.audit_chain import Head, Record, Sealed
from fedclust_service.store import tables
from fedclust_service.store.errors import StoreError

_ONE = 1
_PAGE = 2000
_MARK = (
    update(tables.audit)
    .where(tables.audit.c.id == bindparam("row"))
    .values(number=bindparam("n"), hash=bindparam("h"))
)
# These run several times a second. Building a statement costs more than running it. An UPDATE sets
# the columns that it is executed with.
_HEAD = select(tables.audit_chain).where(tables.audit_chain.c.id == _ONE)
_LOCK_HEAD = _HEAD.with_for_update()
_WAITING = select(tables.audit.c.id).where(tables.audit.c.number.is_(None)).limit(1)
_MOVE = update(tables.audit_chain).where(tables.audit_chain.c.id == _ONE)


@dataclass(frozen=True)
class ChainState:
    """The state of the chain before a sealer starts.

    Attributes
    ----------
    head : Head
    lease_holder : str or None
    lease_expires_at : datetime or None
    waiting : bool
        Whether committed entries are not sealed yet.
    """

    head: Head
    lease_holder: str | None
    lease_expires_at: datetime | None
    waiting: bool

    def may_seal(self, holder: str, now: datetime) -> bool:
        """Whether ``holder`` may seal: no other process holds a valid lease."""
        if self.lease_holder in (None, holder) or self.lease_expires_at is None:
            return True
        return self.lease_expires_at <= now


@dataclass(frozen=True)
class Batch:
    """The entries that one transaction sealed.

    Attributes
    ----------
    after : int
        The number of the entry before.
    head : Head
        The last entry.
    subjects : mapping of str to int
        The subjects of the entries, each with its last number.
    full : bool
        Whether there may be more to seal.
    """

    after: int
    head: Head
    subjects: Mapping[str, int]
    full: bool


class AuditChain:
    """Seals entries and reads sealed ones. Sealing adds number and hash and changes nothing else.

    ``heads`` collects the numbers of the new heads, for the notification at the commit.
    """

    def __init__(self, connection: Connection, heads: list[int]) -> None:
        self._connection = connection
        self._heads = heads

    def state(self, *, lock: bool = False) -> ChainState:
        """Return the head, its lease, and whether entries wait."""
        row = self._connection.execute(_LOCK_HEAD if lock else _HEAD).first()
        if row is None:
            raise StoreError("the audit trail's head is gone: run fedclust-service audit verify")
        waiting = self._connection.execute(_WAITING).first() is not None
        return ChainState(
            Head(row.number, row.hash), row.lease_holder, row.lease_expires_at, waiting
        )

    def seal(self, holder: str, now: datetime, expires_at: datetime, limit: int) -> Batch | None:
        """Number and chain at most ``limit`` committed entries; None if another has the lease.

        This locks the chain's row first: it sees everything that was committed before, and no
        other process numbers at the same time. An entry that commits late, with a smaller id than
        a sealed one, has no number yet and gets the next.
        """
        state = self.state(lock=True)
        if not state.may_seal(holder, now):
            return None
        head, marks = state.head, []
        subjects: dict[str, int] = {}
        a = tables.audit
        query = self._records().where(a.c.number.is_(None)).order_by(a.c.id).limit(limit)
        for row in self._rows(query):
            head = _record(row).after(head)
            marks.append({"row": row.id, "n": head.number, "h": head.hash})
            subjects[row.subject] = head.number
        if marks:
            self._connection.execute(_MARK, marks)
        said = {"number": head.number, "hash": head.hash}
        lease = {"lease_holder": holder, "lease_expires_at": expires_at}
        self._connection.execute(_MOVE, {**said, **lease})
        if marks:
            self._heads.append(head.number)
        return Batch(state.head.number, head, subjects, len(marks) == limit)

    def release(self, holder: str | None = None) -> None:
        """End the lease of ``holder`` early; without ``holder``, the lease of a dead process."""
        c = tables.audit_chain
        held = update(c).where(c.c.id == _ONE)
        if holder is not None:
            held = held.where(c.c.lease_holder == holder)
        self._connection.execute(held.values(lease_holder=None, lease_expires_at=None))

    def rewrite(self) -> None:
        """Write the head again, unchanged."""
        c = tables.audit_chain
        self._connection.execute(update(c).where(c.c.id == _ONE).values(number=c.c.number))

    def recorded(self) -> Head | None:
        """Return the stored head, even one that somebody has tampered with; None if it is gone."""
        c = tables.audit_chain
        row = self._connection.execute(select(c.c.number, c.c.hash).where(c.c.id == _ONE)).first()
        return None if row is None else Head(row.number, row.hash)

    def hash_of(self, number: int) -> str | None:
        """Return the hash of a sealed entry."""
        a = tables.audit
        found = self._connection.execute(select(a.c.hash).where(a.c.number == number)).scalar()
        return None if found is None else str(found)

    def newest(self, after: int, until: int) -> Sequence[tuple[str, int]]:
        """Return the subjects of the entries in ``(after, until]``, each with its last number."""
        a = tables.audit
        query = (
            select(a.c.subject, func.max(a.c.number))
            .where(a.c.number > after, a.c.number <= until)
            .group_by(a.c.subject)
        )
        return [(subject, number) for subject, number in self._connection.execute(query)]

    def about(self, subject: str, after: int, limit: int) -> Sequence[AuditEntry]:
        """Return sealed entries of one subject after the number ``after``, by number."""
        a = tables.audit
        query = (
            select(a)
            .where(a.c.subject == subject, a.c.number > after)
            .order_by(a.c.number)
            .limit(limit)
        )
        return [AuditEntry(**row) for row in self._connection.execute(query).mappings()]

    def last_of(self, subject: str, actions: frozenset[str]) -> int | None:
        """Return the number of a subject's last sealed entry with one of these actions."""
        a = tables.audit
        query = select(func.max(a.c.number)).where(
            a.c.subject == subject, a.c.action.in_(sorted(actions))
        )
        found = self._connection.execute(query).scalar()
        return None if found is None else int(found)

    def sealed(self) -> Iterator[Sealed]:
        """Yield every sealed entry by number, as raw text, even a tampered one."""
        a = tables.audit
        query = (
            self._records()
            .add_columns(a.c.number, a.c.hash)
            .where(a.c.number.is_not(None))
            .order_by(a.c.number)
            .execution_options(yield_per=_PAGE)
        )
        for row in self._rows(query):
            yield Sealed(row.number, row.hash, _record(row))

    def waiting(self) -> int:
        """Return how many entries are not sealed."""
        a = tables.audit
        query = select(func.count()).select_from(a).where(a.c.number.is_(None))
        return int(self._connection.execute(query).scalar_one())

    def _rows(self, query: Any) -> Iterator[Any]:
        """Yield rows whose text may not be UTF-8, which SQLite does not check."""
        driver: Any = self._connection.connection.dbapi_connection
        if self._connection.dialect.name != "sqlite":
            yield from self._connection.execute(query)
            return
        driver.text_factory = _any_text
        try:
            yield from self._connection.execute(query)
        finally:
            driver.text_factory = str

    def _records(self) -> Any:
        a = tables.audit
        # Raw text instead of parsed values, so that a tampered entry is a fault and not an error.
        return select(
            a.c.id,
            self._time().label("at"),
            a.c.actor,
            a.c.action,
            a.c.subject,
            type_coerce(a.c.details, Text).label("details"),
        )

    def _time(self) -> ColumnElement[str]:
        at = tables.audit.c.at
        if self._connection.dialect.name == "sqlite":
            text = func.replace(type_coerce(at, Text), literal(" "), literal("T"))
            return type_coerce(text, Text).concat("Z")
        pattern = 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'
        return type_coerce(func.to_char(func.timezone("UTC", at), pattern), Text)


def _any_text(stored: bytes) -> str:
    return stored.decode("utf-8", "surrogateescape")


def _record(row: Any) -> Record:
    return Record(row.id, row.at, row.actor, row.action, row.subject, row.details)
