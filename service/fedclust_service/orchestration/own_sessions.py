"""What a site reads of its own part: the sessions that name it, and its receipts."""

from __future__ import annotations

from fedclust.schema.model import Model
from fedclust.wire.models import Page, ParticipationState, SessionEntry, Timestamp
from fedclust_service.domain.access import Actor, require
from fedclust_service.domain.overview import Attendance
from fedclust_service.domain.round import RoundState
from fedclust_service.domain.session import SessionState
from fedclust_service.orchestration.access_queries import own_session
from fedclust_service.orchestration.coordinator import Coordinator
from fedclust_service.orchestration.paging import page_size, read_cursor, row_number
from fedclust_service.orchestration.sessions import session_entry
from fedclust_service.store import StoredReceipt, Tx


class OwnSession(Model):
    """A session with the site's own part in it.

    ``answered`` and ``late`` are about the latest round, null if it does not ask the site.
    ``deadline`` is that of the round that collects answers now.
    """

    session: SessionEntry
    state: ParticipationState
    answered: bool | None
    late: bool | None
    deadline: Timestamp | None


class OwnReceipt(Model):
    """One of the site's submissions. ``scrubbed``: its contents are deleted; it may be empty."""

    round: int
    phase: str
    received_at: Timestamp
    size: int
    sha256: str
    empty: bool
    scrubbed: bool


def list_own_sessions(
    co: Coordinator,
    actor: Actor,
    limit: int = 50,
    cursor: str | None = None,
    *,
    state: SessionState | None = None,
) -> Page:
    """List the sessions that name the site, newest first (sites)."""
    require(actor, "own.read")
    size, after, now = page_size(limit), read_cursor(cursor, row_number), co.clock.now()

    def work(tx: Tx) -> Page:
        rows = tx.sessions.list(limit=size + 1, site=actor.name, state=state, after_id=after)
        known = tx.overview.attendance([each.id for each in rows[:size]])
        items = tuple(
            _own_session(actor.name, session_entry(each, known[each.id], now), known[each.id])
            for each in rows[:size]
        )
        return Page(items=items, next=str(rows[size - 1].id) if len(rows) > size else None)

    return co.store.read("session.list_own", work)


def _own_session(site: str, entry: SessionEntry, known: Attendance) -> OwnSession:
    own = next(each for each in entry.sites if each.name == site)
    current = known.round
    collecting = current is not None and current.state is RoundState.COLLECTING
    return OwnSession(
        session=entry,
        state=own.state,
        answered=own.answered,
        late=own.late,
        deadline=current.deadline if current is not None and collecting else None,
    )


def list_receipts(
    co: Coordinator, actor: Actor, session: str, limit: int = 50, cursor: str | None = None
) -> Page:
    """List the site's submissions in a session by round, without payloads (sites)."""
    require(actor, "own.read")
    size, after = page_size(limit), read_cursor(cursor, row_number)

    def work(tx: Tx) -> Page:
        found, _ = own_session(tx, actor, session)
        rows = tx.submissions.receipts(found.id, actor.name, size + 1, after)
        items = tuple(_own_receipt(each) for each in rows[:size])
        return Page(items=items, next=str(rows[size - 1].round) if len(rows) > size else None)

    return co.store.read("receipt.list", work)


def _own_receipt(stored: StoredReceipt) -> OwnReceipt:
    answer = stored.answer
    return OwnReceipt(
        round=stored.round,
        phase=answer.phase,
        received_at=answer.received_at,
        size=answer.size,
        sha256=answer.sha256,
        empty=answer.empty,
        scrubbed=not (stored.payload_kept or answer.empty),
    )
