"""The audit trail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from sqlalchemy import Connection, insert, select

from fedclust_service.domain.access import AuditEntry
from fedclust_service.store import tables

# Inline: the key that an entry gets is not asked back.
_APPEND = insert(tables.audit).inline()


class Audit:
    """Who did what. There is a way in and a way to read, and none to change or remove."""

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
        """Add an entry. ``details`` MUST NOT hold a payload, a token or a record."""
        entry = {
            "at": at,
            "actor": actor,
            "action": action,
            "subject": subject,
            "details": dict(details),
        }
        self._connection.execute(_APPEND, entry)

    def list(
        self, limit: int, after: int | None = None, subject: str | None = None
    ) -> Sequence[AuditEntry]:
        """Return at most ``limit`` entries, newest first, from behind the one with id ``after``."""
        t = tables.audit
        query = select(t).order_by(t.c.id.desc()).limit(limit)
        if after is not None:
            query = query.where(t.c.id < after)
        if subject is not None:
            query = query.where(t.c.subject == subject)
        return [AuditEntry(**row) for row in self._connection.execute(query).mappings()]
