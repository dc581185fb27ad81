"""Studies, their sessions, and the sites that take part in them."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import structlog
from sqlalchemy import Executable, Select, bindparam, delete, func, insert, select, update
from sqlalchemy.exc import DBAPIError

from fedclust_service.domain.access import ALL, Visible
from fedclust_service.domain.session import (
    Participation,
    ParticipationState,
    Session,
    SessionState,
    Study,
)
from fedclust_service.store import tables
from fedclust_service.store._sql import Repository
from fedclust_service.store.errors import is_unreadable

log = structlog.get_logger(__name__)
_T, _N, _S, _P = (
    each.c for each in (tables.studies, tables.study_sites, tables.sessions, tables.participations)
)


class Studies(Repository):
    """Studies, by name."""

    def add(self, new: Study, sites: Collection[str]) -> Study:
        """Store a study and return it with the database's id; StoreError for a taken name."""
        added = replace(new, id=self._added(tables.studies, vars(new)))
        rows = [{"study_id": added.id, "site": site} for site in sorted(sites)]
        self._connection.execute(insert(tables.study_sites), rows)
        return added

    def get(self, name: str, *, lock: bool = False) -> Study | None:
        """Return a study by name; ``lock`` locks it until this transaction ends.

        A transaction that creates a session of the study, or deletes the study, takes this lock
        first.
        """
        query = select(tables.studies).where(_T.name == name)
        return self._one(Study, query.with_for_update() if lock else query)

    def names(self, study_id: int, site: str) -> bool:
        """Whether a study names a site."""
        query = select(_N.site).where(_N.study_id == study_id, _N.site == site)
        return self._all(query).first() is not None

    def list(
        self, *, limit: int, seen: Visible = ALL, after_id: int | None = None
    ) -> Sequence[Study]:
        """Return at most ``limit`` of the studies ``seen``, newest first, after an id."""
        query = select(tables.studies).order_by(_T.id.desc()).limit(limit)
        if seen.created_by is not None:
            query = query.where(_T.created_by == seen.created_by)
        if seen.site is not None:
            query = query.where(_T.id.in_(select(_N.study_id).where(_N.site == seen.site)))
        if after_id is not None:
            query = query.where(_T.id < after_id)
        return self._list(Study, query)

    def session_counts(self, names: Collection[str], seen: Visible = ALL) -> dict[str, int]:
        """Return how many of the sessions ``seen`` each study has."""
        query = select(_S.study, func.count()).where(_S.study.in_(sorted(names)))
        if seen.created_by is not None:
            query = query.where(_S.created_by == seen.created_by)
        if seen.site is not None:
            query = query.where(_S.id.in_(select(_P.session_id).where(_P.site == seen.site)))
        counts = dict.fromkeys(names, 0)
        for name, n in self._all(query.group_by(_S.study)):
            counts[name] = n
        return counts

    def delete(self, study_id: int) -> None:
        """Delete a study; StoreError if a session belongs to it."""
        self._all(delete(tables.study_sites).where(_N.study_id == study_id))
        self._all(delete(tables.studies).where(_T.id == study_id))


# These run with every request of a site. Building a statement costs more than running it.
_BY_NAME = select(tables.sessions).where(_S.name == bindparam("name"))
_BY_ID = select(tables.sessions).where(_S.id == bindparam("id"))
_LOCK_BY_NAME = _BY_NAME.with_for_update(key_share=True)
_LOCK_BY_ID = _BY_ID.with_for_update(key_share=True)
_CHANGING = ("state", "started_at", "held_at", "deaths", "ended_at", "stopped_because", "failure")
_TOUCHED = update(tables.sessions).values(version=_S.version + 1).returning(_S.name, _S.version)
_TOUCH = _TOUCHED.where(_S.id == bindparam("session_id"))
_OF_SITE = select(_P.session_id).where(_P.site == bindparam("of_site"))
_TOUCH_OPEN = _TOUCHED.where(_S.ended_at.is_(None), _S.id.in_(_OF_SITE))
_OF_SESSION = select(tables.participations).where(_P.session_id == bindparam("session_id"))
_PARTICIPATIONS = _OF_SESSION.order_by(_P.site)
_PARTICIPATION = _OF_SESSION.where(_P.site == bindparam("site"))
_REFUSALS = (
    select(_P.site, _P.refused_task)
    .where(_P.session_id == bindparam("session_id"), _P.refused_task.is_not(None))
    .order_by(_P.site)
)


class Sessions(Repository):
    """Sessions, by name."""

    def add(self, new: Session) -> Session:
        """Store a session and return it with the database's id; StoreError for a taken name."""
        return replace(new, id=self._added(tables.sessions, vars(new)))

    def get(self, name: str, *, lock: bool = False) -> Session | None:
        """Return a session by name; ``lock`` locks it until this transaction ends.

        A transaction that writes to a session, its rounds or its participations takes this lock
        first. Later reads see what the previous holder committed. On PostgreSQL the lock is FOR NO
        KEY UPDATE: inserts with a foreign key to the session do not wait for it.
        """
        return self._one(Session, _LOCK_BY_NAME if lock else _BY_NAME, name=name)

    def get_by_id(self, session_id: int, *, lock: bool = False) -> Session | None:
        """Return a session by id, as `get` does."""
        return self._one(Session, _LOCK_BY_ID if lock else _BY_ID, id=session_id)

    def update(self, session: Session) -> None:
        """Write state, times and reasons, and touch the session."""
        values = {name: getattr(session, name) for name in _CHANGING}
        self._touch(_TOUCH.values(values), session_id=session.id)

    def touch(self, session_id: int) -> None:
        """Increase the session's version by one; waiters wake after the commit."""
        self._touch(_TOUCH, session_id=session_id)

    def touch_open(self, site: str) -> None:
        """Touch the sessions with a site that have not ended: its waiting requests end."""
        self._touch(_TOUCH_OPEN, of_site=site)

    def _touch(self, statement: Executable, **asked: Any) -> None:
        for row in self._all(statement, **asked).all():
            self._pending.touched[row.name] = row.version

    def delete(self, session_id: int) -> None:
        """Delete a session and its participations; waiters wake after the commit.

        StoreError if the session has rounds.
        """
        self.touch(session_id)
        self._all(delete(tables.participations).where(_P.session_id == session_id))
        self._all(delete(tables.sessions).where(_S.id == session_id))

    def versions(self, names: Sequence[str]) -> dict[str, int]:
        """Return the versions of the sessions with these names."""
        query = select(_S.name, _S.version).where(_S.name.in_(names))
        return {row.name: row.version for row in self._all(query)}

    def list(
        self,
        *,
        limit: int,
        seen: Visible = ALL,
        state: SessionState | None = None,
        study: str | None = None,
        after_id: int | None = None,
    ) -> Sequence[Session]:
        """Return at most ``limit`` sessions, newest first, after the id ``after_id``.

        Only sessions ``seen``, in the state ``state``, and of the study ``study``.
        """
        wanted = {_S.created_by: seen.created_by, _S.state: state, _S.study: study}
        query = select(tables.sessions).order_by(_S.id.desc()).limit(limit)
        query = query.where(*(column == each for column, each in wanted.items() if each))
        if seen.site is not None:
            # Not IN: SQLite would read all sessions of the site and sort them.
            asked = select(_P.session_id).where(_P.session_id == _S.id, _P.site == seen.site)
            query = query.where(asked.exists())
        if after_id is not None:
            query = query.where(_S.id < after_id)
        return self._list(Session, query)

    def counts(self) -> dict[SessionState, int]:
        """Return how many sessions are in each state."""
        return self._by_state(_S.state, SessionState)

    def not_ended(self) -> Sequence[Session]:
        """Return all sessions that have not ended, oldest first, without damaged ones."""
        states = [state for state in SessionState if not state.ended]
        query = select(_S.id).where(_S.state.in_(states)).order_by(_S.id)
        return self._whole(query)

    def answered_by_all(self, limit: int) -> Sequence[Session]:
        """Return the newest recruiting sessions that wait for no invited site, without damaged."""
        # Not "exists", for which PostgreSQL reads all participations.
        invited = (
            select(_P.site)
            .where(_P.session_id == _S.id, _P.state == ParticipationState.INVITED)
            .limit(1)
            .scalar_subquery()
        )
        query = (
            select(_S.id)
            .where(_S.state == SessionState.RECRUITING, invited.is_(None))
            .order_by(_S.id.desc())
            .limit(limit)
        )
        return self._whole(query)

    def to_scrub(self, ended_before: datetime) -> Sequence[Session]:
        """Return ended sessions with payloads past their retention time, without damaged ones."""
        query = (
            select(_S.id)
            .where(_S.ended_at < ended_before, _S.scrubbed_at.is_(None))
            .order_by(_S.ended_at, _S.id)
            .limit(100)
        )
        return self._whole(query)

    def _whole(self, ids: Select[int]) -> Sequence[Session]:
        """Read sessions one by one, without the damaged ones."""
        found = []
        for each in self._all(ids).scalars().all():
            try:
                session = self.get_by_id(each)
            except (ValueError, TypeError, DBAPIError) as error:
                if not is_unreadable(error):
                    raise
                log.error("row_unreadable", session_id=each, error=type(error).__name__)
                continue
            if session is not None:
                found.append(session)
        return found


class Participations(Repository):
    """Sites in sessions."""

    def add(self, participation: Participation) -> None:
        """Store a new participation; StoreError when the site has one in the session."""
        self._insert(tables.participations, vars(participation))

    def get(self, session_id: int, site: str) -> Participation | None:
        """Return one site's participation."""
        return self._one(Participation, _PARTICIPATION, session_id=session_id, site=site)

    def list(self, session_id: int) -> Sequence[Participation]:
        """Return all participations of a session, sorted by site."""
        return self._list(Participation, _PARTICIPATIONS, session_id=session_id)

    def completed(self, sites: Sequence[str], created_by: str | None) -> Sequence[Participation]:
        """Return those of sites that stayed in completed sessions of somebody, newest first.

        ``created_by`` None: of anybody.
        """
        stayed = (_P.site.in_(sites), _P.state == ParticipationState.JOINED)
        query = (
            select(tables.participations)
            .join(tables.sessions, _S.id == _P.session_id)
            .where(*stayed, _S.state == SessionState.COMPLETED)
            .where(*(() if created_by is None else (_S.created_by == created_by,)))
            .order_by(_P.joined_at.desc(), _P.session_id.desc())
        )
        return self._list(Participation, query)

    def refusals(self, session_id: int) -> dict[str, str]:
        """Return the sites that have refused a task, with the rule that it broke."""
        return {row.site: row.refused_task for row in self._all(_REFUSALS, session_id=session_id)}

    def update(self, participation: Participation) -> None:
        """Write all columns of a participation."""
        key = _P.session_id == participation.session_id, _P.site == participation.site
        self._all(update(tables.participations).where(*key).values(**vars(participation)))
