"""Sessions with what a list says of their latest round, for everybody who sees them."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from datetime import datetime

from fedclust.wire.models import SessionEntry
from fedclust_service.domain.access import Actor, Role, require
from fedclust_service.domain.round import RoundState
from fedclust_service.domain.session import Session, SessionState
from fedclust_service.orchestration.coordinator import Coordinator
from fedclust_service.orchestration.paging import page_size, read_cursor, row_number
from fedclust_service.orchestration.sessions import session_entry
from fedclust_service.store import Tx


@dataclass(frozen=True)
class ListedSession:
    """A session in a list; ``deadline`` is that of the round that collects answers now."""

    entry: SessionEntry
    deadline: datetime | None
    #: The deadline, if it has passed.
    late_since: datetime | None


@dataclass(frozen=True)
class SessionListPage:
    """A page of the list; ``next`` is the cursor of the next page."""

    rows: tuple[ListedSession, ...]
    next: str | None


def list_session_rows(
    co: Coordinator,
    actor: Actor,
    limit: int = 50,
    cursor: str | None = None,
    *,
    state: SessionState | None = None,
    study: str | None = None,
) -> SessionListPage:
    """List the sessions that the actor may see, newest first."""
    require(actor, "session.read")
    size, after, now = page_size(limit), read_cursor(cursor, row_number), co.clock.now()

    def work(tx: Tx) -> SessionListPage:
        found = tx.sessions.list(
            limit=size + 1,
            created_by=actor.key if actor.role is Role.ANALYST else None,
            site=actor.name if actor.role is Role.SITE else None,
            state=state,
            study=study,
            after_id=after,
        )
        known = tx.overview.attendance([each.id for each in found[:size]])
        rows = []
        for each in found[:size]:
            current = known[each.id].round
            collects = current is not None and current.state is RoundState.COLLECTING
            deadline = current.deadline if current is not None and collects else None
            late_since = deadline if deadline is not None and now >= deadline else None
            rows.append(
                ListedSession(session_entry(each, known[each.id], now), deadline, late_since)
            )
        more = str(found[size - 1].id) if len(found) > size else None
        return SessionListPage(tuple(rows), more)

    return co.store.read("session.rows", work)


def list_completed(co: Coordinator, actor: Actor, limit: int = 50) -> dict[str, str]:
    """Return the newest completed sessions that the actor may see: the title by the name.

    Nothing but the title is read of a definition, which is not verified: this names sessions.
    """
    require(actor, "session.read")
    size = page_size(limit)
    found = co.store.read(
        "session.completed",
        lambda tx: tx.sessions.list(
            limit=size,
            created_by=actor.key if actor.role is Role.ANALYST else None,
            site=actor.name if actor.role is Role.SITE else None,
            state=SessionState.COMPLETED,
        ),
    )
    return {each.name: _title(each) for each in found}


def _title(session: Session) -> str:
    with contextlib.suppress(ValueError):
        read = json.loads(session.definition)
        if isinstance(read, dict):
            return str(read.get("title") or "")
    return ""
