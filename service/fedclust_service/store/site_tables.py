"""What was accepted last of each protected table of each site."""

from collections.abc import Sequence

from sqlalchemy import bindparam, exists, select, update

from fedclust_service.domain.access import Role
from fedclust_service.domain.site_table import SiteTable
from fedclust_service.store import tables
from fedclust_service.store._sql import Repository

_T, _U = tables.site_tables.c, tables.principals.c
_LOCK = (
    select(_U.id)
    .where(_U.role == Role.SITE, _U.name == bindparam("site"))
    .with_for_update(key_share=True)
)
_OF_SITE = select(tables.site_tables).where(_T.site == bindparam("site"))
_ONE = _OF_SITE.where(_T.table_id == bindparam("table_id"))
_ANY = select(exists().where(_T.site == bindparam("site")))


class SiteTables(Repository):
    """The protected tables of sites."""

    def lock(self, site: str) -> None:
        """Let other transactions that lock the same site wait until this one ends.

        A transaction that writes the tables of a site takes this lock before it reads them.
        """
        self._all(_LOCK, site=site).all()

    def get(self, site: str, table_id: str) -> SiteTable | None:
        """Return what was accepted of a table; None if the site has not used it."""
        return self._one(SiteTable, _ONE, site=site, table_id=table_id)

    def any(self, site: str) -> bool:
        """Whether the site has used a table."""
        return bool(self._all(_ANY, site=site).scalar_one())

    def list(self, site: str, limit: int, after: str | None = None) -> Sequence[SiteTable]:
        """Return at most ``limit`` tables of a site by id, after the id ``after``."""
        query = _OF_SITE.order_by(_T.table_id).limit(limit)
        if after is not None:
            query = query.where(_T.table_id > after)
        return self._list(SiteTable, query, site=site)

    def put(self, table: SiteTable) -> None:
        """Write what was accepted of a table, in place of what was accepted before."""
        if self._insert_unless_there(tables.site_tables, vars(table), ("site", "table_id")):
            return
        one = update(tables.site_tables).where(_T.site == table.site, _T.table_id == table.table_id)
        values = {"number": table.number, "head": table.head, "accepted_at": table.accepted_at}
        self._all(one.values(**values))
