"""Sessions and the sites that take part in them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Connection, Executable, and_, bindparam, func, select, update

from fedclust_service.domain.access import Role
from fedclust_service.domain.session import (
    Participation,
    ParticipationState,
    Session,
    SessionState,
)
from fedclust_service.store import tables
from fedclust_service.store._sql import Row, insert_unless_there, labelled, names, readable, split
from fedclust_service.store.errors import AlreadyExists

COLUMNS = [column for column in tables.sessions.c if column.name != "scrubbed_at"]
# These run with every request of a site. Building a statement costs more than running it.
_BY_NAME = select(*COLUMNS).where(tables.sessions.c.name == bindparam("name"))
_BY_ID = select(*COLUMNS).where(tables.sessions.c.id == bindparam("id"))
_LOCK_BY_NAME = _BY_NAME.with_for_update(key_share=True)
_LOCK_BY_ID = _BY_ID.with_for_update(key_share=True)
_TOUCH = (
    update(tables.sessions)
    .where(tables.sessions.c.id == bindparam("session_id"))
    .values(version=tables.sessions.c.version + 1)
)
_VERSION = select(tables.sessions.c.name, tables.sessions.c.version).where(
    tables.sessions.c.id == bindparam("id")
)
_FOR_SITE = (
    select(*COLUMNS, *labelled(tables.participations.c))
    .outerjoin(
        tables.participations,
        and_(
            tables.participations.c.session_id == tables.sessions.c.id,
            tables.participations.c.site == bindparam("site"),
        ),
    )
    .where(tables.sessions.c.name == bindparam("name"))
)
_SESSION_COLUMNS, _PARTICIPATION_COLUMNS = names(COLUMNS), names(tables.participations.c)
_PARTICIPATIONS = (
    select(tables.participations)
    .where(tables.participations.c.session_id == bindparam("session_id"))
    .order_by(tables.participations.c.site)
)
_PARTICIPATION = select(tables.participations).where(
    tables.participations.c.session_id == bindparam("session_id"),
    tables.participations.c.site == bindparam("site"),
)


_LOCK_SITE = (
    select(tables.principals.c.id)
    .where(
        tables.principals.c.role == Role.SITE.value,
        tables.principals.c.name == bindparam("site"),
    )
    .with_for_update(key_share=True)
)
_TABLES_OF = (
    select(tables.participations.c.table_id)
    .where(
        tables.participations.c.site == bindparam("site"),
        tables.participations.c.table_id.is_not(None),
    )
    .distinct()
)


class Sessions:
    """Sessions, by name. ``touched`` collects what `Store.on_touch` reports after the commit."""

    def __init__(self, connection: Connection, touched: dict[str, int]) -> None:
        self._connection = connection
        self._touched = touched

    def add(
        self,
        *,
        name: str,
        algorithm: str,
        method_version: int,
        definition: bytes,
        definition_sha256: str,
        request_sha256: str,
        created_by: str,
        created_at: datetime,
    ) -> Session:
        """Create a session, recruiting, version 1; AlreadyExists when the name is taken."""
        values = {
            "name": name,
            "algorithm": algorithm,
            "method_version": method_version,
            "definition": definition,
            "definition_sha256": definition_sha256,
            "request_sha256": request_sha256,
            "created_by": created_by,
            "state": SessionState.RECRUITING.value,
            "version": 1,
            "created_at": created_at,
        }
        if not insert_unless_there(self._connection, tables.sessions, values, ("name",)):
            raise AlreadyExists("a session has that name")
        added = self.get(name)
        assert added is not None  # noqa: S101  # inserted in this transaction
        return added

    def get(self, name: str) -> Session | None:
        """Return a session by name, without locking it."""
        return self._one(_BY_NAME, {"name": name})

    def get_by_id(self, session_id: int) -> Session | None:
        """Return a session by id, without locking it."""
        return self._one(_BY_ID, {"id": session_id})

    def get_for(self, name: str, site: str) -> tuple[Session, Participation | None] | None:
        """Return a session and the site's participation, read in one statement."""
        row = self._connection.execute(_FOR_SITE, {"name": name, "site": site}).one_or_none()
        if row is None:
            return None
        session, own = split(row, _SESSION_COLUMNS, _PARTICIPATION_COLUMNS)
        return to_session(session), to_participation(own) if own["site"] is not None else None

    def lock(self, name: str) -> Session | None:
        """Return a session by name and lock it until this transaction ends.

        A transaction that writes to a session, its rounds or its participations takes this lock
        first. Later reads see what the previous holder committed. On PostgreSQL the lock is FOR NO
        KEY UPDATE: inserts with a foreign key to the session do not wait for it.
        """
        return self._one(_LOCK_BY_NAME, {"name": name})

    def lock_for(self, name: str, site: str) -> tuple[Session, Participation | None] | None:
        """Return and lock a session as `lock` does, with the site's participation."""
        if self._connection.dialect.name == "sqlite":
            # A write transaction has excluded all others since it began.
            return self.get_for(name, site)
        # Two statements: rows joined to a row that had to wait for its lock may be outdated.
        session = self.lock(name)
        if session is None:
            return None
        asked = {"session_id": session.id, "site": site}
        row = self._connection.execute(_PARTICIPATION, asked).mappings().one_or_none()
        return session, to_participation(row) if row else None

    def lock_by_id(self, session_id: int) -> Session | None:
        """Return and lock a session by its id, as `lock` does."""
        return self._one(_LOCK_BY_ID, {"id": session_id})

    def update(self, session: Session) -> None:
        """Write state, times and reasons. ``version`` is not written: `touch` raises it."""
        t = tables.sessions
        self._connection.execute(
            update(t)
            .where(t.c.id == session.id)
            .values(
                state=session.state.value,
                started_at=session.started_at,
                ended_at=session.ended_at,
                stopped_because=session.stopped_because,
                failure=session.failure,
            )
        )

    def touch(self, session_id: int) -> int:
        """Increase the session's version by one and return it; waiters wake after the commit.

        KeyError if there is no such session.
        """
        self._connection.execute(_TOUCH, {"session_id": session_id})
        row = self._connection.execute(_VERSION, {"id": session_id}).one_or_none()
        if row is None:
            raise KeyError(session_id)
        self._touched[row.name] = row.version
        return int(row.version)

    def versions(self, names: Sequence[str]) -> dict[str, int]:
        """Return the versions of the sessions with these names."""
        t = tables.sessions
        query = select(t.c.name, t.c.version).where(t.c.name.in_(names))
        return {row.name: row.version for row in self._connection.execute(query)}

    def list(
        self,
        *,
        limit: int,
        created_by: str | None = None,
        site: str | None = None,
        state: SessionState | None = None,
        after_id: int | None = None,
    ) -> Sequence[Session]:
        """Return at most ``limit`` sessions, newest first, after the id ``after_id``.

        Parameters
        ----------
        created_by : str, optional
            Only sessions of this creator.
        site : str, optional
            Only sessions in which the site has a participation of any state.
        state : SessionState, optional
            Only sessions in this state.
        """
        t = tables.sessions
        query = select(*COLUMNS).order_by(t.c.id.desc()).limit(limit)
        if created_by is not None:
            query = query.where(t.c.created_by == created_by)
        if site is not None:
            p = tables.participations
            query = query.where(t.c.id.in_(select(p.c.session_id).where(p.c.site == site)))
        if state is not None:
            query = query.where(t.c.state == state.value)
        if after_id is not None:
            query = query.where(t.c.id < after_id)
        return [to_session(row) for row in self._connection.execute(query).mappings()]

    def counts(self) -> dict[SessionState, int]:
        """Return how many sessions are in each state."""
        t = tables.sessions
        query = select(t.c.state, func.count()).group_by(t.c.state)
        return {SessionState(state): n for state, n in self._connection.execute(query)}

    def going_on(self) -> Sequence[Session]:
        """Return all sessions that have not ended, oldest first, without damaged ones."""
        t = tables.sessions
        states = [state.value for state in SessionState if not state.ended]
        query = select(t.c.id).where(t.c.state.in_(states)).order_by(t.c.id)
        return readable("session", self._connection.execute(query).scalars().all(), self.get_by_id)

    def to_scrub(self, ended_before: datetime, limit: int = 100) -> Sequence[Session]:
        """Return ended sessions with payloads past their retention time, without damaged ones."""
        t = tables.sessions
        ended = [state.value for state in SessionState if state.ended]
        query = (
            select(t.c.id)
            .where(t.c.state.in_(ended), t.c.ended_at < ended_before, t.c.scrubbed_at.is_(None))
            .order_by(t.c.id)
            .limit(limit)
        )
        return readable("session", self._connection.execute(query).scalars().all(), self.get_by_id)

    def _one(self, query: Executable, asked: dict[str, object]) -> Session | None:
        row = self._connection.execute(query, asked).mappings().one_or_none()
        return to_session(row) if row else None


class Participations:
    """Sites in sessions."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def add(self, participation: Participation) -> None:
        """Store a new participation; AlreadyExists when the site has one in the session."""
        values = _participation_values(participation)
        if not insert_unless_there(
            self._connection, tables.participations, values, ("session_id", "site")
        ):
            raise AlreadyExists("the site has a participation in that session")

    def get(self, session_id: int, site: str) -> Participation | None:
        """Return one site's participation."""
        asked = {"session_id": session_id, "site": site}
        row = self._connection.execute(_PARTICIPATION, asked).mappings().one_or_none()
        return to_participation(row) if row else None

    def list(self, session_id: int) -> Sequence[Participation]:
        """Return all participations of a session, sorted by site."""
        rows = self._connection.execute(_PARTICIPATIONS, {"session_id": session_id}).mappings()
        return [to_participation(row) for row in rows]

    def tables_of(self, site: str) -> frozenset[str]:
        """Return the ids of the protected tables with which a site has joined sessions.

        Other transactions that ask for the same site wait until this one ends.
        """
        self._connection.execute(_LOCK_SITE, {"site": site}).all()
        return frozenset(self._connection.execute(_TABLES_OF, {"site": site}).scalars())

    def update(self, participation: Participation) -> None:
        """Write all columns of a participation."""
        t = tables.participations
        self._connection.execute(
            update(t)
            .where(t.c.session_id == participation.session_id, t.c.site == participation.site)
            .values(**_participation_values(participation))
        )


def to_session(row: Row) -> Session:
    """Return a session from its columns."""
    return Session(**{**row, "state": SessionState(row["state"])})


def to_participation(row: Row) -> Participation:
    """Return a participation from its columns."""
    state, features = ParticipationState(row["state"]), tuple(row["features"])
    return Participation(**{**row, "state": state, "features": features})


def _participation_values(participation: Participation) -> dict[str, object]:
    return {
        **vars(participation),
        "state": participation.state.value,
        "features": list(participation.features),
    }
