"""Rounds and what sites answer in them, and the lease of the process that aggregates one.

Every change of a round's state is a compare-and-set: if several processes try the same step at
once, one gets True and the others get False. What every request of a site reads, its token, session
and round, is read in one statement.

The statements are built once: building a statement costs more than running it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Executable,
    FromClause,
    Select,
    and_,
    bindparam,
    delete,
    func,
    insert,
    literal,
    or_,
    select,
    update,
)

from fedclust.rounds.collecting import Turnout
from fedclust.wire.codec import sha256
from fedclust_service.domain.access import Principal, Token
from fedclust_service.domain.round import Addressee, Round, RoundState, Submission
from fedclust_service.domain.session import Participation, ParticipationState, Session, SessionState
from fedclust_service.store import tables
from fedclust_service.store._sql import Part, Repository, select_parts, split
from fedclust_service.store.errors import DataDamaged
from fedclust_service.store.principals import PRINCIPAL, TOKEN

_R, _A, _S = tables.rounds.c, tables.addressees.c, tables.submissions.c
_NOT_IN_SUMMARY = {"id", "payload", "payload_sha256"}
_SUMMARY = [column for column in _S if column.name not in _NOT_IN_SUMMARY]
#: The columns of an answer without its payload.
SUMMARY = [*_SUMMARY, literal(None).label("payload")]
_IN_ROUND = _S.round_id == bindparam("round_id")
_ONE = select(*SUMMARY).where(_IN_ROUND, _S.site == bindparam("site"))
_OF_ROUND = select(*_SUMMARY, _S.payload, _S.payload_sha256).where(_IN_ROUND).order_by(_S.site)
_RECEIPTS = (
    select(*SUMMARY, _S.payload.is_not(None).label("kept"), _R.number.label("round"))
    .join(tables.rounds, _R.id == _S.round_id)
    .where(_S.session_id == bindparam("session_id"), _S.site == bindparam("site"))
    .order_by(_R.number)
)


class Submissions(Repository):
    """Submissions: at most one for each round and site."""

    def insert(self, submission: Submission) -> bool:
        """Store an answer; return False and write nothing if the site has one in that round.

        StoreError if the round does not address the site.
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
        """Return the answers of a session or of a round, without payloads.

        They are sorted by round and site.
        """
        of = _S.round_id == round_id if session_id is None else _S.session_id == session_id
        query = select(*SUMMARY).where(of).order_by(_S.round_id, _S.site)
        return self._list(Submission, query)

    def receipts(
        self, session_id: int, site: str, limit: int, after: int | None = None
    ) -> Sequence[Any]:
        """Return at most ``limit`` answers of a site by round, after the round number ``after``.

        Each row has a submission's columns without the payload, the ``round``'s number, and whether
        the payload is ``kept``.
        """
        query = _RECEIPTS if after is None else _RECEIPTS.where(_R.number > after)
        return self._all(query.limit(limit), session_id=session_id, site=site).all()

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


_NO_LEASE: dict[str, Any] = {"lease_token": None, "lease_holder": None, "lease_expires_at": None}


class RoundView(NamedTuple):
    """A round as one site sees it: the site's part of the task, if any, and its answer, if any."""

    round: Round
    addressee: Addressee | None
    answer: Submission | None


class RoundCounts(NamedTuple):
    """How many rounds are in each state, are overdue, and are held under a valid lease."""

    by_state: dict[RoundState, int]
    overdue: int
    leased: int


class DueRound(NamedTuple):
    """A collecting round that is late."""

    id: int
    session_id: int
    overdue_since: datetime | None


class WaitingRound(NamedTuple):
    """A round that waits to be aggregated, and how often it was taken before."""

    id: int
    session_id: int
    phase: str
    attempts: int


class Rounds(Repository):
    """Rounds of sessions."""

    def add(self, new: Round, addressees: Sequence[Addressee]) -> Round:
        """Store a round for the sites it addresses; StoreError if the number is taken.

        The database gives the ids: ``id`` and ``round_id`` of the parameters are ignored. Returns
        the round with its id.
        """
        added = replace(new, id=self._added(tables.rounds, vars(new)))
        if addressees:
            self._connection.execute(
                insert(tables.addressees),
                [{**vars(addressee), "round_id": added.id} for addressee in addressees],
            )
        return added

    def get(self, session_id: int, number: int) -> Round | None:
        """Return one round of a session."""
        return self._one(Round, _NUMBERED, session_id=session_id, number=number)

    def get_by_id(self, round_id: int) -> Round | None:
        """Return a round by id."""
        return self._one(Round, _BY_ID, id=round_id)

    def latest(self, session_id: int) -> Round | None:
        """Return the session's last round."""
        return self._one(Round, _LATEST, session_id=session_id)

    def list(self, session_id: int, limit: int, after: int | None = None) -> Sequence[Round]:
        """Return at most ``limit`` rounds by number, after the number ``after``.

        ``common`` is empty in them: tasks may be long and lists do not show them.
        """
        query = LISTED.where(_R.session_id == session_id).order_by(_R.number).limit(limit)
        if after is not None:
            query = query.where(_R.number > after)
        return self._list(Round, query)

    def numbers(self, session_id: int) -> dict[int, int]:
        """Return the number of each round of a session by its id, without reading tasks."""
        query = select(_R.id, _R.number).where(_R.session_id == session_id)
        return {row.id: row.number for row in self._all(query)}

    def due(self, now: datetime) -> Sequence[DueRound]:
        """Return collecting rounds past their deadline or marked overdue, earliest first."""
        return [DueRound(*row) for row in self._all(_DUE, _now=now)]

    def counts(self, now: datetime) -> RoundCounts:
        """Count rounds by state, overdue ones and leased ones."""
        overdue = select(func.count()).where(
            _R.state == RoundState.COLLECTING, _R.overdue_since.is_not(None)
        )
        leased = select(func.count()).where(
            _R.state == RoundState.AGGREGATING, _R.lease_expires_at > now
        )
        return RoundCounts(
            self._by_state(_R.state, RoundState),
            self._all(overdue).scalar_one(),
            self._all(leased).scalar_one(),
        )

    def waiting(self, now: datetime) -> Sequence[WaitingRound]:
        """Return the rounds of running sessions that are to be aggregated and that nobody holds."""
        return [WaitingRound(*row) for row in self._all(_WAITING, _now=now)]

    def effort(self, waiting: WaitingRound) -> tuple[int, int, float | None]:
        """Return how many answers a round has, the bytes of their bodies, and a measured time.

        This is how long the session's last aggregation of the same phase took, in seconds.
        """
        count, total, seconds = self._all(_EFFORT, **waiting._asdict()).one()
        return int(count), int(total), seconds

    def set_deadline(self, round_id: int, deadline: datetime) -> bool:
        """Move the deadline of a collecting round."""
        return self._set(_IN_STATE, round_id, _state=RoundState.COLLECTING, deadline=deadline)

    def set_overdue(self, round_id: int, since: datetime | None) -> bool:
        """Mark a collecting round overdue, or remove the mark; False if nothing changed."""
        statement = _ON_TIME if since else _OVERDUE
        return self._set(statement, round_id, _state=RoundState.COLLECTING, overdue_since=since)

    def transition(
        self, round_id: int, from_state: RoundState, to_state: RoundState, reason: str | None = None
    ) -> bool:
        """Change the state if it still is ``from_state``; return whether it was. Drops any lease.

        The domain decides whether the step is allowed; this decides that only one caller wins.
        """
        closed_at = self._pending.now if to_state is RoundState.FAILED else None
        values = {"state": to_state, "close_reason": reason, "closed_at": closed_at}
        return self._set(_IN_STATE, round_id, _state=from_state, **_NO_LEASE, **values)

    def take_lease(
        self, round_id: int, now: datetime, *, token: str, holder: str, expires_at: datetime
    ) -> Round | None:
        """Take the right to aggregate and count an attempt; None if somebody holds it at ``now``.

        Returns the round as it is then.
        """
        lease = {"lease_token": token, "lease_holder": holder, "lease_expires_at": expires_at}
        state = RoundState.AGGREGATING
        return self._one(Round, _TAKE, _id=round_id, _state=state, _now=now, **lease)

    def renew_lease(self, round_id: int, token: str, expires_at: datetime) -> bool:
        """Extend a lease; False if another process has taken over."""
        return self._set(_HELD, round_id, **_by(token), lease_expires_at=expires_at)

    def release_lease(self, round_id: int, token: str) -> bool:
        """Give a lease back, so that no other process waits for it to expire."""
        return self._set(_HELD, round_id, **_by(token), **_NO_LEASE)

    def void_leases(self) -> None:
        """End all leases: those of a dead process."""
        rows = update(tables.rounds).where(_R.lease_token.is_not(None))
        self._all(rows.values(**_NO_LEASE))

    def finish(
        self, round_id: int, lease_token: str, seconds: float, metrics: Mapping[str, float]
    ) -> bool:
        """Close a round if the lease is still held; False if another process took over.

        On False the caller MUST NOT write its result. ``seconds`` is how long it took to aggregate.
        """
        values = {"state": RoundState.CLOSED, "closed_at": self._pending.now, "metrics": metrics}
        held = {**_by(lease_token), **_NO_LEASE}
        return self._set(_HELD, round_id, aggregation_s=seconds, **held, **values)

    def addressees(self, round_id: int) -> Sequence[Addressee]:
        """Return all sites that a round addresses, including released ones, sorted by site."""
        query = select(tables.addressees).where(_A.round_id == round_id).order_by(_A.site)
        return self._list(Addressee, query)

    def turnout(self, round_id: int) -> Turnout:
        """Count a round's answers and addressees, in the database: there may be a thousand."""
        return Turnout(*self._all(_TURNOUT, round_id=round_id).one())

    def release(self, round_id: int, site: str) -> bool:
        """Stop waiting for a site; False if it is not addressed or was released before."""
        held = _A.round_id == round_id, _A.site == site, _A.released.is_(False)
        return self._changed(update(tables.addressees).where(*held).values(released=True))

    def _set(self, statement: Executable, round_id: int, **values: Any) -> bool:
        return self._changed(statement, _id=round_id, **values)


def _turnout() -> Select[int, int, int, int, int]:
    a, s, p, r = tables.addressees, tables.submissions, tables.participations, tables.rounds
    unanswered = s.c.id.is_(None)
    return (
        select(
            func.count().filter(unanswered, a.c.released.is_(False)),
            func.count(s.c.id),
            func.count(s.c.id).filter(s.c.empty.is_(False)),
            func.count().filter(p.c.state == ParticipationState.JOINED),
            func.count().filter(unanswered, a.c.released.is_(True)),
        )
        .select_from(a)
        .join(r, r.c.id == a.c.round_id)
        .join(p, and_(p.c.session_id == r.c.session_id, p.c.site == a.c.site))
        .outerjoin(s, and_(s.c.round_id == a.c.round_id, s.c.site == a.c.site))
        .where(a.c.round_id == bindparam("round_id"))
    )


# These run with every request of a site. Building a statement costs more than running it.
_TURNOUT = _turnout()
_BY_ID = select(tables.rounds).where(_R.id == bindparam("id"))
_OF_SESSION = select(tables.rounds).where(_R.session_id == bindparam("session_id"))
_NUMBERED = _OF_SESSION.where(_R.number == bindparam("number"))
_LATEST = _OF_SESSION.order_by(_R.number.desc()).limit(1)

# An UPDATE sets the columns that it is executed with.
_IN_STATE = update(tables.rounds).where(_R.id == bindparam("_id"), _R.state == bindparam("_state"))
_ON_TIME = _IN_STATE.where(_R.overdue_since.is_(None))
_OVERDUE = _IN_STATE.where(_R.overdue_since.is_not(None))
_HELD = _IN_STATE.where(_R.lease_token == bindparam("_token"))
_DUE = (
    select(_R.id, _R.session_id, _R.overdue_since)
    .where(_R.state == RoundState.COLLECTING)
    .where(or_(_R.deadline <= bindparam("_now"), _R.overdue_since.is_not(None)))
    .order_by(_R.deadline, _R.id)
)
#: Rounds without the long common part of their tasks.
LISTED = select(*(column for column in _R if column.name != "common"), literal(b"").label("common"))
_FREE = or_(_R.lease_token.is_(None), _R.lease_expires_at <= bindparam("_now"))
_WAITING = (
    select(_R.id, _R.session_id, _R.phase, _R.attempts)
    .join(tables.sessions, tables.sessions.c.id == _R.session_id)
    .where(_R.state == RoundState.AGGREGATING, _FREE)
    .where(tables.sessions.c.state == SessionState.RUNNING)
    .order_by(_R.id)
)
_LAST_SECONDS = (
    select(_R.aggregation_s)
    .where(_R.session_id == bindparam("session_id"), _R.phase == bindparam("phase"))
    .where(_R.aggregation_s.is_not(None))
    .order_by(_R.number.desc())
    .limit(1)
)
_EFFORT = select(
    func.count(), func.coalesce(func.sum(_S.size), 0), _LAST_SECONDS.scalar_subquery()
).where(_S.round_id == bindparam("id"))
_TAKE = _IN_STATE.where(_FREE).values(attempts=_R.attempts + 1).returning(tables.rounds)


def _by(token: str) -> dict[str, Any]:
    return {"_state": RoundState.AGGREGATING, "_token": token}


#: A round, a site's part of its task, and the site's answer, as joined rows have them.
ROUND_PARTS = (Part(Round, list(_R)), Part(Addressee, list(_A)), Part(Submission, SUMMARY))


class SiteView(NamedTuple):
    """A session as one site sees it: its participation and one round."""

    session: Session
    own: Participation | None
    round: RoundView | None


class TokenView(NamedTuple):
    """A token, its owner, and the session as the owner sees it."""

    token: Token
    owner: Principal
    seen: SiteView | None


_SEEN = (
    Part(Session, list(tables.sessions.c)),
    Part(Participation, list(tables.participations.c)),
    *ROUND_PARTS,
)
_OWNED = (TOKEN, PRINCIPAL, *_SEEN)


def _with_round(start: FromClause, site: ColumnElement[str], *, latest: bool) -> FromClause:
    """Join a site's participation and a round, by number or the latest."""
    s, p, r = tables.sessions, tables.participations, tables.rounds
    a, answers = tables.addressees, tables.submissions
    every = r.alias()
    newest = select(func.max(every.c.number)).where(every.c.session_id == s.c.id)
    number = newest.scalar_subquery() if latest else bindparam("number")
    return (
        start.outerjoin(p, and_(p.c.session_id == s.c.id, p.c.site == site))
        .outerjoin(r, and_(r.c.session_id == s.c.id, r.c.number == number))
        .outerjoin(a, and_(a.c.round_id == r.c.id, a.c.site == site))
        .outerjoin(answers, and_(answers.c.round_id == r.c.id, answers.c.site == site))
    )


def _by_token(*, latest: bool) -> Select[Any]:
    t, o, s = tables.tokens, tables.principals, tables.sessions
    known = t.join(o, o.c.id == t.c.principal_id).outerjoin(s, s.c.name == bindparam("session"))
    joined = _with_round(known, o.c.name, latest=latest)
    return select_parts(*_OWNED).select_from(joined).where(t.c.id == bindparam("token"))


def _by_name(*, latest: bool) -> Select[Any]:
    s = tables.sessions
    joined = _with_round(s, bindparam("site"), latest=latest)
    return select_parts(*_SEEN).select_from(joined).where(s.c.name == bindparam("session"))


_BY_TOKEN = {latest: _by_token(latest=latest) for latest in (True, False)}
_BY_NAME = {latest: _by_name(latest=latest) for latest in (True, False)}
_LOCK = select(tables.sessions.c.id).where(tables.sessions.c.name == bindparam("session"))
_LOCK = _LOCK.with_for_update(key_share=True)


class SiteViews(Repository):
    """Reads what sites ask for. ``number`` None means the latest round."""

    def by_token(self, token_id: str, name: str, number: int | None = None) -> TokenView | None:
        """Return a token with its owner, and the session as a site with the owner's name sees it.

        None if there is no such token. Revoked and expired tokens are found too.
        """
        query = _BY_TOKEN[number is None]
        row = self._all(query, token=token_id, session=name, number=number).one_or_none()
        if row is None:
            return None
        token, owner, *seen = split(row, *_OWNED)
        return TokenView(token, owner, _seen(*seen))

    def by_name(
        self, name: str, site: str, number: int | None = None, *, lock: bool = False
    ) -> SiteView | None:
        """Return a session as a site sees it; ``lock`` locks it as `Sessions.get` does."""
        if lock and not self._sqlite:
            # A separate statement: rows joined to a row that had to wait for its lock may be
            # outdated. On SQLite a write transaction has excluded all others since it began.
            self._all(_LOCK, session=name)
        query = _BY_NAME[number is None]
        row = self._all(query, session=name, site=site, number=number).one_or_none()
        return None if row is None else _seen(*split(row, *_SEEN))


def _seen(session: Any, own: Any, *in_round: Any) -> SiteView | None:
    if session is None:
        return None
    return SiteView(session, own, None if in_round[0] is None else RoundView(*in_round))
