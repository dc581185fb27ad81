"""Lines of the ledger that say that a coordinator refuses a site's table, or accepts it after that.

It accepts a restored table, or a further one of the same persons, by its operator's act.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from fedclust.schema.times import write_time
from fedclust.site.ledger import Ledger
from fedclust.wire.models import TableHeads

_REFUSED, _ACCEPTED = "table refused", "table accepted"


@dataclass(frozen=True)
class TableEvents:
    """The lines about one table at one coordinator.

    Parameters
    ----------
    ledger : Ledger
    coordinator, site : str
    table_id : str or None
        None if the site uses no table.
    """

    ledger: Ledger
    coordinator: str
    site: str
    table_id: str | None

    def refused(self, session: str, heads: TableHeads | None, now: datetime) -> None:
        """Enter that the table was refused; once, however often the site comes back with it."""
        self._enter(_REFUSED, session, heads, now)

    def accepted(self, session: str, heads: TableHeads | None, now: datetime) -> None:
        """Enter that the table was accepted, if it was refused before."""
        if self._last() == _REFUSED:
            self._enter(_ACCEPTED, session, heads, now)

    def _enter(self, event: str, session: str, heads: TableHeads | None, now: datetime) -> None:
        if heads is not None and self._last() != event:
            change = {"number": heads.last, "head": heads.heads[-1]}
            facts = {"event": event, "session": session, "time": write_time(now)}
            self.ledger.append(facts | self._table | change)

    def _last(self) -> str | None:
        found = None
        for line in self.ledger.events():
            same = all(line.get(name) == value for name, value in self._table.items())
            if same and line["event"] in (_REFUSED, _ACCEPTED):
                found = str(line["event"])
        return found

    @property
    def _table(self) -> dict[str, str | None]:
        # The key "table" is that of lines that are changes of a table.
        return {"coordinator": self.coordinator, "site": self.site, "table_id": self.table_id}
