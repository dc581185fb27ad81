"""The chain over the audit trail: numbering and hashing entries, and reading sealed ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
from fedclust_service.domain.chain import Head, Record, Sealed
from fedclust_service.store import tables

_ONE = 1
_PAGE = 2000
_MARK = (
    update(tables.audit)
    .where(tables.audit.c.id == bindparam("row"))
    .values(number=bindparam("n"), hash=bindparam("h"))
)


@dataclass(frozen=True)
class Look:
    """What a sealer sees before it does anything.

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

    def free(self, holder: str, now: datetime) -> bool:
        """Whether ``holder`` may seal: nobody else holds a lease that has not run out."""
        if self.lease_holder in (None, holder) or self.lease_expires_at is None:
            return True
        return self.lease_expires_at <= now


class Chain:
    """Seals entries and reads what is sealed. Rows keep what they said when they were written."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def look(self, *, lock: bool = False) -> Look:
        """Return the head, its lease, and whether there is something to do."""
        c, a = tables.audit_chain, tables.audit
        query = select(c).where(c.c.id == _ONE)
        row = self._connection.execute(query.with_for_update() if lock else query).one()
        some = select(a.c.id).where(a.c.number.is_(None)).limit(1)
        waiting = self._connection.execute(some).first() is not None
        return Look(Head(row.number, row.hash), row.lease_holder, row.lease_expires_at, waiting)

    def seal(self, holder: str, now: datetime, expires_at: datetime, limit: int) -> Head | None:
        """Number and chain at most ``limit`` committed entries; None if another has the lease.

        The chain's row is locked first, so that what follows sees all that was committed before
        and nobody else numbers at the same time. An entry that commits late, with a smaller id
        than one sealed before, is still without a number and gets the next.
        """
        look = self.look(lock=True)
        if not look.free(holder, now):
            return None
        head, marks = look.head, []
        a = tables.audit
        query = self._records().where(a.c.number.is_(None)).order_by(a.c.id).limit(limit)
        for row in self._connection.execute(query):
            head = _record(row).after(head)
            marks.append({"row": row.id, "n": head.number, "h": head.hash})
        if marks:
            self._connection.execute(_MARK, marks)
        self._connection.execute(
            update(tables.audit_chain)
            .where(tables.audit_chain.c.id == _ONE)
            .values(
                number=head.number,
                hash=head.hash,
                lease_holder=holder,
                lease_expires_at=expires_at,
            )
        )
        return head

    def release(self, holder: str) -> None:
        """Give the lease up, so that another sealer need not wait for its end."""
        c = tables.audit_chain
        mine = update(c).where(c.c.id == _ONE, c.c.lease_holder == holder)
        self._connection.execute(mine.values(lease_holder=None, lease_expires_at=None))

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
        """Return sealed entries of one subject behind number ``after``, by number."""
        a = tables.audit
        query = (
            select(a)
            .where(a.c.subject == subject, a.c.number > after)
            .order_by(a.c.number)
            .limit(limit)
        )
        return [AuditEntry(**row) for row in self._connection.execute(query).mappings()]

    def last_of(self, subject: str, actions: frozenset[str]) -> int | None:
        """Return the number of a subject's last sealed entry of one of these actions."""
        a = tables.audit
        query = select(func.max(a.c.number)).where(
            a.c.subject == subject, a.c.action.in_(sorted(actions))
        )
        found = self._connection.execute(query).scalar()
        return None if found is None else int(found)

    def sealed(self) -> Iterator[Sealed]:
        """Yield every sealed entry by number, as text, whatever a hand has put there."""
        a = tables.audit
        query = (
            self._records()
            .add_columns(a.c.number, a.c.hash)
            .where(a.c.number.is_not(None))
            .order_by(a.c.number)
            .execution_options(yield_per=_PAGE)
        )
        for row in self._connection.execute(query):
            yield Sealed(row.number, row.hash, _record(row))

    def waiting(self) -> int:
        """Return how many entries are not sealed."""
        a = tables.audit
        query = select(func.count()).select_from(a).where(a.c.number.is_(None))
        return int(self._connection.execute(query).scalar_one())

    def _records(self) -> Any:
        a = tables.audit
        # Raw text: what is hashed does not pass through a parser, and what a hand has spoilt
        # is a fault to be reported, not an error.
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


def _record(row: Any) -> Record:
    return Record(row.id, row.at, row.actor, row.action, row.subject, row.details)
