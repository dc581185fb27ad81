"""What a site has sent: its receipts."""

from __future__ import annotations

from fedclust.schema.model import Model
from fedclust.schema.times import Timestamp
from fedclust.wire.models import Page
from fedclust_service.domain.access import Actor, require
from fedclust_service.orchestration.access_queries import own_session
from fedclust_service.orchestration.coordinator import Coordinator
from fedclust_service.orchestration.paging import page_size, read_cursor, row_number
from fedclust_service.store import StoredReceipt, Tx


class ReceiptEntry(Model):
    """One of the site's submissions. ``scrubbed``: its contents are deleted; it may be empty."""

    round: int
    phase: str
    received_at: Timestamp
    size: int
    sha256: str
    empty: bool
    scrubbed: bool


def list_receipts(
    co: Coordinator, actor: Actor, session: str, limit: int = 50, cursor: str | None = None
) -> Page[ReceiptEntry]:
    """List the site's submissions in a session by round, without payloads (sites)."""
    require(actor, "receipt.read")
    size, after = page_size(limit), read_cursor(cursor, row_number)

    def work(tx: Tx) -> Page[ReceiptEntry]:
        found, _ = own_session(tx, actor, session)
        rows = tx.submissions.receipts(found.id, actor.name, size + 1, after)
        items = tuple(_entry(each) for each in rows[:size])
        return Page(items=items, next=str(rows[size - 1].round) if len(rows) > size else None)

    return co.store.read("receipt.list", work)


def _entry(stored: StoredReceipt) -> ReceiptEntry:
    answer = stored.answer
    return ReceiptEntry(
        round=stored.round,
        phase=answer.phase,
        received_at=answer.received_at,
        size=answer.size,
        sha256=answer.sha256,
        empty=answer.empty,
        scrubbed=not (stored.payload_kept or answer.empty),
    )
