"""Rounds, whom they address, and the lease of the process that aggregates one.

Every change of a round's state is a compare-and-set: of any number of processes that try the same
step at once, one gets True and the others False.
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
    """What may be written along with a change of state."""

    overdue_since: datetime | None
    closed_at: datetime
    close_reason: str
    aggregation_s: float
    metrics: dict[str, float]


class AskedOf(NamedTuple):
    """A round as it concerns one site: whether it is asked, and what it answered."""

    round: Round
    addressee: Addressee | None
    answer: Submission | None


class RoundCounts(NamedTuple):
    """How many rounds there are, are overdue, and are held under a lease in force."""

    by_state: dict[RoundState, int]
    overdue: int
    leased: int


class Rounds:
    """Rounds of sessions."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def add(self, new: Round, addressees: Sequence[Addressee]) -> Round:
        """Open a round for the sites it addresses; AlreadyExists when the number is taken.

        ``id`` of the round and ``round_id`` of the addressees are given here: those passed in are
        not looked at. Returns the round as stored.
        """
        values = {
            "session_id": new.session_id,
            "number": new.number,
            "phase": new.phase,
            "state": new.state.value,
            "needs_all": new.needs_all,
            "common": new.common,
            "opened_at": new.opened_at,
            "deadline": new.deadline,
            "overdue_since": new.overdue_since,
            "closed_at": new.closed_at,
            "close_reason": new.close_reason,
            "attempts": new.attempts,
            "aggregation_s": new.aggregation_s,
            "metrics": new.metrics,
            **(_lease_values(new.lease) if new.lease else _NO_LEASE),
        }
        key = ("session_id", "number")
        if not insert_unless_there(self._connection, tables.rounds, values, key):
            raise AlreadyExists("the session has a round of that number")
        added = self.get(new.session_id, new.number)
        assert added is not None  # noqa: S101  # inserted in this transaction
        if addressees:
            self._connection.execute(
                insert(tables.addressees),
                [
                    {
                        "round_id": added.id,
                        "site": addressee.site,
                        "site_part": addressee.site_part,
                        "task_digest": addressee.task_digest,
                        "released": addressee.released,
                    }
                    for addressee in addressees
                ],
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
        """Return at most ``limit`` rounds by number, from behind the number ``after``.

        A list is for showing: ``common`` is left out of it (empty), however long the tasks are.
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

        Damaged ones are left out.
        """
        t = tables.rounds
        late = or_(t.c.deadline <= now, t.c.overdue_since.is_not(None))
        return self._readable(
            select(t.c.id)
            .where(t.c.state == RoundState.COLLECTING.value, late)
            .order_by(t.c.deadline, t.c.id)
        )

    def counts(self, now: datetime) -> RoundCounts:
        """Count all rounds; only those that are open are looked at one by one."""
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
        """Return rounds that are to be aggregated, leased or not, oldest first; no damaged ones."""
        return self._readable(_AGGREGATING)

    def set_deadline(self, round_id: int, deadline: datetime) -> bool:
        """Move the deadline of a collecting round."""
        return self._set(_IN_STATE, round_id, _state=_COLLECTING, deadline=deadline)

    def set_overdue(self, round_id: int, since: datetime | None) -> bool:
        """Mark a collecting round overdue, or take the mark away; False when nothing changed."""
        statement = _ON_TIME if since else _OVERDUE
        return self._set(statement, round_id, _state=_COLLECTING, overdue_since=since)

    def transition(
        self,
        round_id: int,
        from_state: RoundState,
        to_state: RoundState,
        **changes: Unpack[RoundChanges],
    ) -> bool:
        """Change the state if it still is ``from_state``; say whether it was. Drops any lease.

        Whether the step is allowed is the domain's to say; that only one wins is decided here.
        """
        values: dict[str, Any] = {"state": to_state.value, **_NO_LEASE, **changes}
        return self._set(_IN_STATE, round_id, _state=from_state.value, **values)

    def take_lease(
        self, round_id: int, lease: Lease, now: datetime, expected_token: str | None = None
    ) -> bool:
        """Take the right to aggregate; raises ``attempts`` by one.

        Given when the round is aggregating and its lease is free, has expired at ``now``, or is
        the one with ``expected_token``: the last lets a process that knows the holder to be dead
        take over at once.
        """
        # No token is None: that the lease is free has been asked already.
        asked = {"_now": now, "_token": expected_token}
        return self._set(_TAKE, round_id, _state=_AGGREGATES, **asked, **_lease_values(lease))

    def renew_lease(self, round_id: int, token: str, expires_at: datetime) -> bool:
        """Extend a lease that is still one's own; False when it was taken over."""
        return self._set(_HELD, round_id, **_by(token), lease_expires_at=expires_at)

    def release_lease(self, round_id: int, token: str) -> bool:
        """Give a lease back, so that another process need not wait for it to expire."""
        return self._set(_HELD, round_id, **_by(token), **_NO_LEASE)

    def finish(
        self,
        round_id: int,
        lease_token: str,
        to_state: RoundState,
        **changes: Unpack[RoundChanges],
    ) -> bool:
        """Leave aggregating if the lease is still one's own; False when it was taken over.

        On False the caller MUST write nothing of its aggregation: somebody else's counts.
        """
        values: dict[str, Any] = {"state": to_state.value, **_NO_LEASE, **changes}
        return self._set(_HELD, round_id, **_by(lease_token), **values)

    def addressees(self, round_id: int) -> Sequence[Addressee]:
        """Return all sites that a round addresses, sorted by site, released ones included."""
        t = tables.addressees
        query = select(t).where(t.c.round_id == round_id).order_by(t.c.site)
        return [Addressee(**row) for row in self._connection.execute(query).mappings()]

    def turnout(self, round_id: int) -> Turnout:
        """Count how far a round has come, in the database: it may address a thousand sites."""
        counted = self._connection.execute(_TURNOUT, {"round_id": round_id})
        pending, answered, nonempty, joined, gone = counted.one()
        return Turnout(
            pending=pending, answered=answered, nonempty=nonempty, joined=joined, gone=gone
        )

    def release(self, round_id: int, site: str) -> bool:
        """Stop waiting for a site; False when it is not addressed or was released before."""
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


# Asked with every request of a site, or several times a round: building one of these anew costs
# more than running it.
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


# What an UPDATE sets is what it is executed with.
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
        tables.rounds.c.lease_token == bindparam("_token"),
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


def asked_of(found: Row, part: Row, answer: Row) -> AskedOf:
    """Return a round with a site's part and answer from their columns."""
    return AskedOf(
        _round(found),
        Addressee(**part) if part["site"] is not None else None,
        Submission(**answer) if answer["site"] is not None else None,
    )


def _round(row: Row) -> Round:
    lease = None
    if row["lease_token"] is not None:
        lease = Lease(row["lease_token"], row["lease_holder"], row["lease_expires_at"])
    return Round(
        id=row["id"],
        session_id=row["session_id"],
        number=row["number"],
        phase=row["phase"],
        state=RoundState(row["state"]),
        needs_all=row["needs_all"],
        common=row["common"],
        opened_at=row["opened_at"],
        deadline=row["deadline"],
        overdue_since=row["overdue_since"],
        closed_at=row["closed_at"],
        close_reason=row["close_reason"],
        lease=lease,
        attempts=row["attempts"],
        aggregation_s=row["aggregation_s"],
        metrics=row["metrics"],
    )
