"""The sites' answers."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import bindparam, delete, literal, select, update

from fedclust.wire.codec import sha256
from fedclust_service.domain.submission import Submission
from fedclust_service.store import tables
from fedclust_service.store._sql import Repository
from fedclust_service.store.errors import DataDamaged

_S = tables.submissions.c
_NOT_IN_SUMMARY = {"id", "payload", "payload_sha256"}
_SUMMARY = [column for column in _S if column.name not in _NOT_IN_SUMMARY]
#: The columns of an answer without its payload.
SUMMARY = [*_SUMMARY, literal(None).label("payload")]
# This runs with every request of a site. Building a statement costs more than running it.
_IN_ROUND = _S.round_id == bindparam("round_id")
_ONE = select(*SUMMARY).where(_IN_ROUND, _S.site == bindparam("site"))
_OF_ROUND = select(*_SUMMARY, _S.payload, _S.payload_sha256).where(_IN_ROUND).order_by(_S.site)
_R = tables.rounds.c
_RECEIPTS = (
    select(*SUMMARY, _S.payload.is_not(None).label("kept"), _R.number)
    .join(tables.rounds, _R.id == _S.round_id)
    .where(_S.session_id == bindparam("session_id"), _S.site == bindparam("site"))
    .order_by(_R.number)
)


class StoredReceipt(NamedTuple):
    """A site's answer without its payload, its round's number, and whether the payload is kept."""

    round: int
    answer: Submission
    payload_kept: bool


class Submissions(Repository):
    """Submissions: at most one for each round and site."""

    def insert(self, submission: Submission) -> bool:
        """Store an answer; return False and write nothing if the site has one in that round.

        ConstraintViolated if the round does not address the site.
        """
        values = {**vars(submission), "payload_sha256": _hash_of(submission.payload)}
        return self._insert_unless_there(tables.submissions, values, ("round_id", "site"))

    def get(self, round_id: int, site: str) -> Submission | None:
        """Return one site's answer with its payload; DataDamaged if the payload's hash differs."""
        return self._one(_intact, _OF_ROUND.where(_S.site == site), round_id=round_id)

    def summary(self, round_id: int, site: str) -> Submission | None:
        """Return one site's answer, without its payload."""
        return self._one(Submission, _ONE, round_id=round_id, site=site)

    def list(self, round_id: int) -> Sequence[Submission]:
        """Return a round's answers with their payloads, sorted by site. Raises as `get`."""
        return self._list(_intact, _OF_ROUND, round_id=round_id)

    def summaries(
        self, *, session_id: int | None = None, round_id: int | None = None
    ) -> Sequence[Submission]:
        """Return the answers of a session, of a round or of both, without payloads.

        They are sorted by round and site. ValueError if neither is given.
        """
        if session_id is None and round_id is None:
            raise ValueError("summaries are of a session or of a round")
        query = select(*SUMMARY).order_by(_S.round_id, _S.site)
        if session_id is not None:
            query = query.where(_S.session_id == session_id)
        if round_id is not None:
            query = query.where(_S.round_id == round_id)
        return self._list(Submission, query)

    def receipts(
        self, session_id: int, site: str, limit: int, after: int | None = None
    ) -> Sequence[StoredReceipt]:
        """Return at most ``limit`` answers of a site by round, after the round number ``after``."""
        query = _RECEIPTS if after is None else _RECEIPTS.where(_R.number > after)
        return self._list(_receipt, query.limit(limit), session_id=session_id, site=site)

    def scrub(self, session_id: int, at: datetime) -> int:
        """Delete a session's payloads and engine states; hashes, sizes and receipts stay.

        Returns the number of deleted payloads. On SQLite the freed pages are overwritten, and the
        write-ahead log is emptied after the commit.
        """
        held, sessions = _S.session_id == session_id, tables.sessions
        payloads = update(tables.submissions).where(held, _S.payload.is_not(None))
        gone = self._all(payloads.values(payload=None, payload_sha256=None)).rowcount
        self._all(delete(tables.states).where(tables.states.c.session_id == session_id))
        self._all(update(sessions).where(sessions.c.id == session_id).values(scrubbed_at=at))
        self._pending.scrubbed = True
        return gone


def _hash_of(payload: bytes | None) -> str | None:
    return None if payload is None else sha256(payload)


def _intact(*, payload_sha256: str | None, **columns: Any) -> Submission:
    """Return a row's answer; DataDamaged if the payload's hash differs."""
    if payload_sha256 != _hash_of(columns["payload"]):
        raise DataDamaged("submission", columns["site"])
    return Submission(**columns)


def _receipt(*, number: int, kept: bool, **columns: Any) -> StoredReceipt:
    return StoredReceipt(number, Submission(**columns), kept)
