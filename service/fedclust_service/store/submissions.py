"""The sites' answers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Connection, bindparam, delete, func, literal, select, update

from fedclust.wire.codec import sha256
from fedclust_service.domain.submission import Submission
from fedclust_service.store import tables
from fedclust_service.store._sql import Row, insert_unless_there
from fedclust_service.store.errors import DataDamaged

_NOT_IN_SUMMARY = {"id", "payload", "payload_sha256"}
_SUMMARY = [column for column in tables.submissions.c if column.name not in _NOT_IN_SUMMARY]
_FULL = [*_SUMMARY, tables.submissions.c.payload, tables.submissions.c.payload_sha256]
#: The columns of an answer without its payload.
SUMMARY = [*_SUMMARY, literal(None).label("payload")]
# This runs with every request of a site. Building a statement costs more than running it.
_ONE = select(*SUMMARY).where(
    tables.submissions.c.round_id == bindparam("round_id"),
    tables.submissions.c.site == bindparam("site"),
)
_OF_ROUND = (
    select(*_FULL)
    .where(tables.submissions.c.round_id == bindparam("round_id"))
    .order_by(tables.submissions.c.site)
)

_SIZE = select(func.coalesce(func.sum(tables.submissions.c.size), 0)).where(
    tables.submissions.c.round_id == bindparam("round_id")
)


class Submissions:
    """Submissions: at most one for each round and site."""

    def __init__(self, connection: Connection, scrubbed: list[int]) -> None:
        self._connection = connection
        self._scrubbed = scrubbed

    def insert(self, submission: Submission) -> bool:
        """Store an answer; return False and write nothing if the site has one in that round.

        ConstraintViolated if the round does not address the site.
        """
        values = {**vars(submission), "payload_sha256": _hash_of(submission.payload)}
        key = ("round_id", "site")
        return insert_unless_there(self._connection, tables.submissions, values, key)

    def get(self, round_id: int, site: str) -> Submission | None:
        """Return one site's answer with its payload; DataDamaged if the payload's hash differs."""
        t = tables.submissions
        query = select(*_FULL).where(t.c.round_id == round_id, t.c.site == site)
        row = self._connection.execute(query).mappings().one_or_none()
        return _intact(row) if row else None

    def summary(self, round_id: int, site: str) -> Submission | None:
        """Return one site's answer, without its payload."""
        asked = {"round_id": round_id, "site": site}
        row = self._connection.execute(_ONE, asked).mappings().one_or_none()
        return Submission(**row) if row else None

    def list(self, round_id: int) -> Sequence[Submission]:
        """Return a round's answers with their payloads, sorted by site. Raises as `get`."""
        rows = self._connection.execute(_OF_ROUND, {"round_id": round_id}).mappings()
        return [_intact(row) for row in rows]

    def size(self, round_id: int) -> int:
        """Return how many bytes the bodies of a round's answers had."""
        return int(self._connection.execute(_SIZE, {"round_id": round_id}).scalar_one())

    def summaries(
        self, *, session_id: int | None = None, round_id: int | None = None
    ) -> Sequence[Submission]:
        """Return the answers of a session, of a round or of both, without payloads.

        They are sorted by round and site. ValueError if neither is given.
        """
        if session_id is None and round_id is None:
            raise ValueError("summaries are of a session or of a round")
        t = tables.submissions
        query = select(*SUMMARY).order_by(t.c.round_id, t.c.site)
        if session_id is not None:
            query = query.where(t.c.session_id == session_id)
        if round_id is not None:
            query = query.where(t.c.round_id == round_id)
        return [Submission(**row) for row in self._connection.execute(query).mappings()]

    def scrub(self, session_id: int, at: datetime) -> int:
        """Delete a session's payloads and engine states; hashes, sizes and receipts stay.

        Returns the number of deleted payloads. On SQLite the freed pages are overwritten, and the
        write-ahead log is emptied after the commit.
        """
        t = tables.submissions
        gone = self._connection.execute(
            update(t)
            .where(t.c.session_id == session_id, t.c.payload.is_not(None))
            .values(payload=None, payload_sha256=None)
        ).rowcount
        self._connection.execute(
            delete(tables.states).where(tables.states.c.session_id == session_id)
        )
        sessions = tables.sessions
        self._connection.execute(
            update(sessions).where(sessions.c.id == session_id).values(scrubbed_at=at)
        )
        self._scrubbed.append(session_id)
        return gone


def _hash_of(payload: bytes | None) -> str | None:
    return None if payload is None else sha256(payload)


def _intact(row: Row) -> Submission:
    """Return a row's answer; DataDamaged if the payload's hash differs."""
    values = dict(row)
    if values.pop("payload_sha256") != _hash_of(values["payload"]):
        raise DataDamaged("submission", values["site"])
    return Submission(**values)
