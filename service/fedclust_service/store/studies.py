"""Studies and the sites that they name."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from sqlalchemy import delete, func, insert, select

from fedclust_service.domain.study import Study
from fedclust_service.store import tables
from fedclust_service.store._sql import Repository

_T, _N, _S, _P = (
    each.c for each in (tables.studies, tables.study_sites, tables.sessions, tables.participations)
)


class Studies(Repository):
    """Studies, by name."""

    def add(self, new: Study, sites: Collection[str]) -> Study:
        """Store a study and return it with the database's id; AlreadyExists for a taken name."""
        added = replace(new, id=self._added(tables.studies, vars(new), ("name",)))
        rows = [{"study_id": added.id, "site": site} for site in sorted(sites)]
        self._connection.execute(insert(tables.study_sites), rows)
        return added

    def get(self, name: str) -> Study | None:
        """Return a study by name, without locking it."""
        return self._one(Study, select(tables.studies).where(_T.name == name))

    def lock(self, name: str) -> Study | None:
        """Return a study by name and lock it until this transaction ends.

        A transaction that creates a session of the study, or deletes the study, takes this lock
        first.
        """
        return self._one(Study, select(tables.studies).where(_T.name == name).with_for_update())

    def names(self, study_id: int, site: str) -> bool:
        """Whether a study names a site."""
        query = select(_N.site).where(_N.study_id == study_id, _N.site == site)
        return self._all(query).first() is not None

    def list(
        self,
        *,
        limit: int,
        created_by: str | None = None,
        site: str | None = None,
        after_id: int | None = None,
    ) -> Sequence[Study]:
        """Return at most ``limit`` studies, newest first, after the id ``after_id``.

        Only studies of the creator ``created_by``, and that name ``site``.
        """
        query = select(tables.studies).order_by(_T.id.desc()).limit(limit)
        if created_by is not None:
            query = query.where(_T.created_by == created_by)
        if site is not None:
            query = query.where(_T.id.in_(select(_N.study_id).where(_N.site == site)))
        if after_id is not None:
            query = query.where(_T.id < after_id)
        return self._list(Study, query)

    def session_counts(
        self, names: Collection[str], *, created_by: str | None = None, site: str | None = None
    ) -> dict[str, int]:
        """Return how many sessions each study has.

        Only sessions of the creator ``created_by``, and in which ``site`` has a participation.
        """
        query = select(_S.study, func.count()).where(_S.study.in_(sorted(names)))
        if created_by is not None:
            query = query.where(_S.created_by == created_by)
        if site is not None:
            query = query.where(_S.id.in_(select(_P.session_id).where(_P.site == site)))
        counts = dict.fromkeys(names, 0)
        for name, n in self._all(query.group_by(_S.study)):
            counts[name] = n
        return counts

    def delete(self, study_id: int) -> None:
        """Delete a study; ConstraintViolated if a session belongs to it."""
        self._all(delete(tables.study_sites).where(_N.study_id == study_id))
        self._all(delete(tables.studies).where(_T.id == study_id))
