"""The audit trail: append entries, number and hash them, read them."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Text,
    bindparam,
    func,
    insert,
    literal,
    or_,
    select,
    type_coerce,
    update,
)

from fedclust_service.domain.access import AuditEntry, AuditSearch
from fedclust_service.domain.audit_chain import EntryText, Head, Sealed
from fedclust_service.store import tables
from fedclust_service.store._sql import Repository, unindexed
from fedclust_service.store.errors import StoreError

_A, _C = tables.audit.c, tables.audit_chain.c
_ONE = 1
_PAGE = 2000
#: Inline: SQLAlchemy does not read the new entry's key.
APPEND = insert(tables.audit).inline()
_MARK = update(tables.audit).where(_A.id == bindparam("row"))
_MARK = _MARK.values(number=bindparam("n"), hash=bindparam("h"))
# These run several times a second. Building a statement costs more than running it. An UPDATE sets
# the columns that it is executed with.
_HEAD = select(_C.number, _C.hash).where(_C.id == _ONE)
_LOCK_HEAD = _HEAD.with_for_update()
_WAITING = select(func.count()).select_from(tables.audit).where(_A.number.is_(None))
_MOVE = update(tables.audit_chain).where(_C.id == _ONE)


class Audit(Repository):
    """The entries of the audit trail. They can be appended and read, never changed or removed.

    `Tx.write_audit` writes the new ones, and until then none is read.
    """

    def append(
        self,
        actor: str,
        action: str,
        subject: str,
        details: Mapping[str, str | int | float | bool | None],
        at: datetime,
    ) -> None:
        """Append an entry. ``details`` MUST NOT hold a payload, a token or a record."""
        entry = {"at": at, "actor": actor, "action": action, "subject": subject}
        self._pending.audit.append({**entry, "details": dict(details)})

    def list(
        self, limit: int, after: int | None = None, search: AuditSearch | None = None
    ) -> Sequence[AuditEntry]:
        """Return at most ``limit`` entries, newest first, after the id ``after``."""
        query = select(tables.audit).order_by(_A.id.desc()).limit(limit)
        if after is not None:
            query = query.where(_A.id < after)
        if search is not None:
            query = query.where(*_conditions(search))
        return self._list(AuditEntry, query)

    def last(self, subject: str, action: str) -> AuditEntry | None:
        """Return the last entry about a subject with this action."""
        found = self.list(1, search=AuditSearch(subject=subject, action=action))
        return found[0] if found else None

    def count(self, subject: str) -> int:
        """Return how many entries there are about a subject."""
        query = select(func.count()).where(_A.subject == subject)
        return int(self._all(query).scalar_one())

    def began(self) -> datetime | None:
        """Return the time of the first entry, with which a coordinator begins."""
        return self._all(select(_A.at).order_by(_A.id).limit(1)).scalar()


def _has(column: ColumnElement[str], part: str) -> ColumnElement[bool]:
    # `contains` leaves it to PostgreSQL to put the pattern together, again for each row.
    for special in "/%_":
        part = part.replace(special, f"/{special}")
    return column.like(f"%{part}%", escape="/")


def _conditions(search: AuditSearch) -> Iterator[ColumnElement[bool]]:
    actor: ColumnElement[str] = _A.actor
    action: ColumnElement[str] = _A.action
    if search.subject is not None:
        yield _A.subject == search.subject
        # Few entries have one subject.
        actor, action = unindexed(actor), unindexed(action)
    if search.actor is not None:
        yield actor == search.actor
    if search.action is not None:
        yield action == search.action
    # Times have no index: after a clock has stepped back, their order is not that of the list, and
    # sorting many entries costs more than reading past all.
    if search.since is not None:
        yield _A.at >= search.since
    if search.until is not None:
        yield _A.at < search.until
    if search.text:
        # All texts are stored in lower case. A million entries are read in 0.4 s.
        yield or_(*(_has(each, search.text.lower()) for each in (_A.subject, _A.actor, _A.action)))


class AuditChain(Repository):
    """Seals entries and reads sealed ones. Sealing adds number and hash, nothing else."""

    def seal(self, limit: int) -> tuple[Head, bool]:
        """Number and chain at most ``limit`` committed entries.

        Returns the head, and whether there may be more to seal.

        This locks the chain's row first: it sees everything that was committed before, and no
        other process numbers at the same time. An entry that commits late, with a smaller id than
        a sealed one, has no number yet and gets the next.
        """
        head, marks = self.head(lock=True), []
        query = self._records().where(_A.number.is_(None)).order_by(_A.id).limit(limit)
        for row in self._raw(query):
            head = _entry_text(row).after(head)
            marks.append({"row": row.id, "n": head.number, "h": head.hash})
        if marks:
            self._connection.execute(_MARK, marks)
            self._all(_MOVE, number=head.number, hash=head.hash)
        return head, len(marks) == limit

    def rewrite(self) -> None:
        """Write the head again, unchanged."""
        self._all(_MOVE.values(number=_C.number))

    def head(self, *, lock: bool = False) -> Head:
        """Return the stored head; StoreError if it is gone."""
        found = self.recorded(lock=lock)
        if found is None:
            raise StoreError("the audit trail's head is missing: run fedclust-service audit verify")
        return found

    def recorded(self, *, lock: bool = False) -> Head | None:
        """Return the stored head, even one that somebody has tampered with; None if it is gone."""
        row = self._all(_LOCK_HEAD if lock else _HEAD).first()
        return None if row is None else Head(row.number, row.hash)

    def hash_of(self, number: int) -> str | None:
        """Return the hash of a sealed entry."""
        found = self._all(select(_A.hash).where(_A.number == number)).scalar()
        return None if found is None else str(found)

    def last_of(self, subject: str, actions: frozenset[str]) -> dict[str, int | None]:
        """Return the number of a subject's last entry with each of these actions.

        None for an entry that is not sealed; an action without an entry is left out.
        """
        # Entries of one subject are sealed in their order, so an unsealed one is the last.
        last = func.count() - func.count(_A.number), func.max(_A.number)
        query = select(_A.action, *last).group_by(_A.action)
        query = query.where(_A.subject == subject, unindexed(_A.action).in_(sorted(actions)))
        return {action: None if open_ else number for action, open_, number in self._all(query)}

    def sealed(self, after: int = 0, limit: int | None = None) -> Iterator[Sealed]:
        """Yield sealed entries by number, as raw text, even tampered ones.

        All of them, or at most ``limit`` after the number ``after``.
        """
        query = self._records().add_columns(_A.number, _A.hash).where(_A.number.is_not(None))
        if after:  # without it, entries with tampered numbers below 1 are read too
            query = query.where(_A.number > after)
        query = query.order_by(_A.number).limit(limit)
        for row in self._raw(query.execution_options(yield_per=_PAGE)):
            yield Sealed(row.number, row.hash, _entry_text(row))

    def holds(self, noted: str | Head) -> bool:
        """Whether a sealed entry has this hash, and this number if one is given."""
        query = select(_A.id).limit(1)
        if isinstance(noted, Head):
            query = query.where(_A.number == noted.number, _A.hash == noted.hash)
        else:
            query = query.where(_A.number.is_not(None), _A.hash == noted)
        return self._all(query).first() is not None

    def waiting(self) -> int:
        """Return how many entries are not sealed."""
        return int(self._all(_WAITING).scalar_one())

    def _raw(self, query: Any) -> Iterator[Any]:
        """Yield rows whose text may not be UTF-8, which SQLite does not check."""
        driver: Any = self._connection.connection.dbapi_connection
        if not self._sqlite:
            yield from self._connection.execute(query)
            return
        driver.text_factory = _any_text
        try:
            yield from self._connection.execute(query)
        finally:
            driver.text_factory = str

    def _records(self) -> Any:
        # Raw text instead of parsed values, so that a tampered entry is a fault and not an error.
        return select(
            *(_A.id, self._time().label("at"), _A.actor, _A.action, _A.subject),
            type_coerce(_A.details, Text).label("details"),
        )

    def _time(self) -> ColumnElement[str]:
        if self._sqlite:
            text = func.replace(type_coerce(_A.at, Text), literal(" "), literal("T"))
            return type_coerce(text, Text).concat("Z")
        pattern = 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'
        return type_coerce(func.to_char(func.timezone("UTC", _A.at), pattern), Text)


def _any_text(stored: bytes) -> str:
    return stored.decode("utf-8", "surrogateescape")


def _entry_text(row: Any) -> EntryText:
    return EntryText(row.id, row.at, row.actor, row.action, row.subject, row.details)
