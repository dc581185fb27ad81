"""What a site has sent: its receipts."""

from fedclust.schema.model import Model
from fedclust.schema.times import Timestamp
from fedclust.wire.models import Page
from fedclust_service.domain.access import Actor
from fedclust_service.store import StoredReceipt, Tx
from fedclust_service.usecases.access_queries import own_session
from fedclust_service.usecases.paging import page_of, read_cursor, row_number
from fedclust_service.usecases.shown import show
from fedclust_service.usecases.unit_of_work import reads


class ReceiptEntry(Model):
    """One of the site's submissions. ``scrubbed``: its contents are deleted; it may be empty."""

    round: int
    phase: str
    received_at: Timestamp
    size: int
    sha256: str
    empty: bool
    scrubbed: bool


@reads("receipt.read", "receipt.list")
def list_receipts(
    tx: Tx, actor: Actor, session: str, limit: int = 50, cursor: str | None = None
) -> Page[ReceiptEntry]:
    """List the site's submissions in a session by round, without payloads (sites)."""
    after = read_cursor(cursor, row_number)
    found, _ = own_session(tx, actor, session)
    rows = tx.submissions.receipts(found.id, actor.name, limit + 1, after)
    return page_of(rows, limit, "round", _entry)


def _entry(stored: StoredReceipt) -> ReceiptEntry:
    scrubbed = not (stored.payload_kept or stored.answer.empty)
    return show(ReceiptEntry, stored.answer, round=stored.round, scrubbed=scrubbed)
