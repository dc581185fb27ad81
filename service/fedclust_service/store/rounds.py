"""Rounds, the sites they address, and the lease of the process that aggregates one.

Every change of a round's state is a compare-and-set: if several processes try the same step at
once, one gets True and the others get False.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypedDict, Unpack

from sqlalchemy import (
    Connection,
    Executable,
    Select,
    and_,
    bindparam,
    func,
    insert,
    literal,
    or_,
    select,
    update,
)

from fedclust_service.domain.round import Addressee, Lease, Round, RoundState, Turnout
from fedclust_service.domain.session import ParticipationState
from fedclust_service.domain.submission import Submission
from fedclust_service.store import tables
from fedclust_service.store._sql import Row, insert_unless_there, names, readable
from fedclust_service.store.errors import AlreadyExists
from fedclust_service.store.submissions import SUMMARY

_NO_LEASE: dict[str, Any] = {"lease_token": None, "lease_holder": None, "lease_expires_at": None}


class RoundChanges(TypedDict, total=False):
    """Columns that may be written along with a change of state."""

    overdue_since: datetime | None
    closed_at: datetime
    close_reason: str
    aggregation_s: float
    metrics: dict[str, float]


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


class Rounds:
    """Rounds of sessions."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def add(self, new: Round, addressees: Sequence[Addressee]) -> Round:
        """Store a round for the sites it addresses; AlreadyExists if the number is taken.

        The database gives the ids: ``id`` and ``round_id`` of the parameters are ignored. Returns
        the round as stored.
        """
        values = {
            **vars(new),
            "state": new.state.value,
            **(_lease_values(new.lease) if new.lease else _NO_LEASE),
        }
        del values["id"], values["lease"]
        key = ("session_id", "number")
        if not insert_unless_there(self._connection, tables.rounds, values, key):
            raise AlreadyExists("the session has a round of that number")
        added = self.get(new.session_id, new.number)
        assert added is not None  # noqa: S101  # inserted in this transaction
        if addressees:
            self._connection.execute(
                insert(tables.addressees),
                [{**vars(addressee), "round_id": added.id} for addressee in addressees],
            )
        return added

    def get(self, session_id: int, number: int) -> Round | None:
        """Return one round of a session."""
        return self._one(_NUMBERED, {"session_id": session_id, "number": number})

    def get_by_id(self, round_id: int) -> Round | None:
        """Return a round by id."""
        return self._one(_BY_ID, {"id": round_id})

    def latest(self, session_id: int) -> Round | None:
        """Return the round of a session with the highest number."""
        return self._one(_LATEST, {"session_id": session_id})

    def list(self, session_id: int, limit: int, after: int | None = None) -> Sequence[Round]:
        """Return at most ``limit`` rounds by number, after the number ``after``.

        ``common`` is empty in them: tasks may be long and lists do not show them.
        """
        t = tables.rounds
        columns = [column for column in t.c if column.name != "common"]
        query = select(*columns, literal(b"").label("common")).where(t.c.session_id == session_id)
        query = query.order_by(t.c.number).limit(limit)
        if after is not None:
            query = query.where(t.c.number > after)
        return self._many(query)

    def numbers(self, session_id: int) -> dict[int, int]:
        """Return the number of each round of a session by its id, without reading tasks."""
        t = tables.rounds
        query = select(t.c.id, t.c.number).where(t.c.session_id == session_id)
        return {row.id: row.number for row in self._connection.execute(query)}

    def due(self, now: datetime) -> Sequence[Round]:
        """Return collecting rounds past their deadline or marked overdue, earliest first.

        Damaged ones are not among them.
        """
        t = tables.rounds
        late = or_(t.c.deadline <= now, t.c.overdue_since.is_not(None))
        return self._readable(
            select(t.c.id)
            .where(t.c.state == RoundState.COLLECTING.value, late)
            .order_by(t.c.deadline, t.c.id)
        )

    def counts(self, now: datetime) -> RoundCounts:
        """Count rounds by state, overdue ones and leased ones."""
        c = tables.rounds.c
        states = select(c.state, func.count()).group_by(c.state)
        overdue = select(func.count()).where(
            c.state == RoundState.COLLECTING.value, c.overdue_since.is_not(None)
        )
        leased = select(func.count()).where(
            c.state == RoundState.AGGREGATING.value, c.lease_expires_at > now
        )
        return RoundCounts(
            {RoundState(state): n for state, n in self._connection.execute(states)},
            self._connection.execute(overdue).scalar_one(),
            self._connection.execute(leased).scalar_one(),
        )

    def aggregating(self) -> Sequence[Round]:
        """Return the rounds to aggregate, leased or not, oldest first, without damaged ones."""
        return self._readable(_AGGREGATING)

    def set_deadline(self, round_id: int, deadline: datetime) -> bool:
        """Move the deadline of a collecting round."""
        return self._set(_IN_STATE, round_id, _state=_COLLECTING, deadline=deadline)

    def set_overdue(self, round_id: int, since: datetime | None) -> bool:
        """Mark a collecting round overdue, or remove the mark; False if nothing changed."""
        statement = _ON_TIME if since else _OVERDUE
        return self._set(statement, round_id, _state=_COLLECTING, overdue_since=since)

    def transition(
        self,
        round_id: int,
        from_state: RoundState,
        to_state: RoundState,
        **changes: Unpack[RoundChanges],
    ) -> bool:
        """Change the state if it still is ``from_state``; return whether it was. Drops any lease.

        The domain decides whether the step is allowed; this decides that only one caller wins.
        """
        values: dict[str, Any] = {"state": to_state.value, **_NO_LEASE, **changes}
        return self._set(_IN_STATE, round_id, _state=from_state.value, **values)

    def take_lease(self, round_id: int, lease: Lease, now: datetime) -> bool:
        """Take the right to aggregate, if nobody holds it at ``now``; counts an attempt."""
        values = {"_state": _AGGREGATES, "_now": now, **_lease_values(lease)}
        return self._set(_TAKE, round_id, **values)

    def renew_lease(self, round_id: int, token: str, expires_at: datetime) -> bool:
        """Extend a lease; False if another process has taken over."""
        return self._set(_HELD, round_id, **_by(token), lease_expires_at=expires_at)

    def release_lease(self, round_id: int, token: str) -> bool:
        """Give a lease back, so that no other process waits for it to expire."""
        return self._set(_HELD, round_id, **_by(token), **_NO_LEASE)

    def finish(
        self,
        round_id: int,
        lease_token: str,
        to_state: RoundState,
        **changes: Unpack[RoundChanges],
    ) -> bool:
        """End the aggregation if the lease is still held; False if another process took over.

        On False the caller MUST NOT write its result.
        """
        values: dict[str, Any] = {"state": to_state.value, **_NO_LEASE, **changes}
        return self._set(_HELD, round_id, **_by(lease_token), **values)

    def addressees(self, round_id: int) -> Sequence[Addressee]:
        """Return all sites that a round addresses, including released ones, sorted by site."""
        t = tables.addressees
        query = select(t).where(t.c.round_id == round_id).order_by(t.c.site)
        return [Addressee(**row) for row in self._connection.execute(query).mappings()]

    def turnout(self, round_id: int) -> Turnout:
        """Count a round's answers and addressees, in the database: there may be a thousand."""
        counted = self._connection.execute(_TURNOUT, {"round_id": round_id})
        pending, answered, nonempty, joined, gone = counted.one()
        return Turnout(
            pending=pending, answered=answered, nonempty=nonempty, joined=joined, gone=gone
        )

    def release(self, round_id: int, site: str) -> bool:
        """Stop waiting for a site; False if it is not addressed or was released before."""
        t = tables.addressees
        done = self._connection.execute(
            update(t)
            .where(t.c.round_id == round_id, t.c.site == site, t.c.released.is_(False))
            .values(released=True)
        )
        return done.rowcount == 1

    def _one(self, query: Executable, asked: dict[str, Any]) -> Round | None:
        row = self._connection.execute(query, asked).mappings().one_or_none()
        return _round(row) if row else None

    def _many(self, query: Select[tuple[Any, ...]]) -> Sequence[Round]:
        return [_round(row) for row in self._connection.execute(query).mappings()]

    def _readable(self, ids: Select[int]) -> Sequence[Round]:
        found = self._connection.execute(ids).scalars().all()
        return readable("round", found, self.get_by_id)

    def _set(self, statement: Executable, round_id: int, **values: Any) -> bool:
        done = self._connection.execute(statement, {"_id": round_id, **values})
        return done.rowcount == 1


def _turnout() -> Select[int, int, int, int, int]:
    a, s, p, r = tables.addressees, tables.submissions, tables.participations, tables.rounds
    unanswered = s.c.id.is_(None)
    return (
        select(
            func.count().filter(unanswered, a.c.released.is_(False)),
            func.count(s.c.id),
            func.count(s.c.id).filter(s.c.empty.is_(False)),
            func.count().filter(p.c.state == ParticipationState.JOINED.value),
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
_BY_ID = select(tables.rounds).where(tables.rounds.c.id == bindparam("id"))
_OF_SESSION = select(tables.rounds).where(tables.rounds.c.session_id == bindparam("session_id"))
_NUMBERED = _OF_SESSION.where(tables.rounds.c.number == bindparam("number"))
_LATEST = _OF_SESSION.order_by(tables.rounds.c.number.desc()).limit(1)
_AGGREGATING = (
    select(tables.rounds.c.id)
    .where(tables.rounds.c.state == RoundState.AGGREGATING.value)
    .order_by(tables.rounds.c.id)
)
PARTS = (names(tables.rounds.c), names(tables.addressees.c), names(SUMMARY))


# An UPDATE sets the columns that it is executed with.
_COLLECTING, _AGGREGATES = RoundState.COLLECTING.value, RoundState.AGGREGATING.value
_IN_STATE = (
    update(tables.rounds)
    .where(tables.rounds.c.id == bindparam("_id"))
    .where(tables.rounds.c.state == bindparam("_state"))
)
_ON_TIME = _IN_STATE.where(tables.rounds.c.overdue_since.is_(None))
_OVERDUE = _IN_STATE.where(tables.rounds.c.overdue_since.is_not(None))
_HELD = _IN_STATE.where(tables.rounds.c.lease_token == bindparam("_token"))
_TAKE = _IN_STATE.where(
    or_(
        tables.rounds.c.lease_token.is_(None),
        tables.rounds.c.lease_expires_at <= bindparam("_now"),
    )
).values(attempts=tables.rounds.c.attempts + 1)


def _by(token: str) -> dict[str, Any]:
    return {"_state": _AGGREGATES, "_token": token}


def _lease_values(lease: Lease) -> dict[str, Any]:
    return {
        "lease_token": lease.token,
        "lease_holder": lease.holder,
        "lease_expires_at": lease.expires_at,
    }


def round_view(found: Row, part: Row, answer: Row) -> RoundView:
    """Return a round with a site's part and answer, from their columns."""
    return RoundView(
        _round(found),
        Addressee(**part) if part["site"] is not None else None,
        Submission(**answer) if answer["site"] is not None else None,
    )


def _round(row: Row) -> Round:
    values = {**row, "state": RoundState(row["state"])}
    token, holder, expires_at = (values.pop(name) for name in _NO_LEASE)
    return Round(**values, lease=None if token is None else Lease(token, holder, expires_at))
