"""The audit trail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from sqlalchemy import Connection, insert, select

from fedclust_service.domain.access import AuditEntry
from fedclust_service.store import tables

# Inline: SQLAlchemy does not read the new entry's key.
_APPEND = insert(tables.audit).inline()


class Audit:
    """The entries of the audit trail. They can be appended and read, never changed or removed."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def append(
        self,
        actor: str,
        action: str,
        subject: str,
        details: Mapping[str, str | int | float | bool | None],
        at: datetime,
    ) -> None:
        """Append an entry. ``details`` MUST NOT hold a payload, a token or a record."""
        entry = {
            "at": at,
            "actor": actor,
            "action": action,
            "subject": subject,
            "details": dict(details),
        }
        self._connection.execute(_APPEND, entry)

    def list(
        self,
        limit: int,
        after: int | None = None,
        *,
        subject: str | None = None,
        actor: str | None = None,
        action: str | None = None,
        since: datetime | None = None,
    ) -> Sequence[AuditEntry]:
        """Return at most ``limit`` entries, newest first, after the id ``after``."""
        t = tables.audit
        query = select(t).order_by(t.c.id.desc()).limit(limit)
        wanted = {"subject": subject, "actor": actor, "action": action}
        for column, value in wanted.items():
            if value is not None:
                query = query.where(t.c[column] == value)
        if after is not None:
            query = query.where(t.c.id < after)
        if since is not None:
            query = query.where(t.c.at >= since)
        return [AuditEntry(**row) for row in self._connection.execute(query).mappings()]
