"""One transaction and the repositories that work in it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from fedclust_service.store.audit import APPEND, Audit, AuditChain
from fedclust_service.store.notifications import Notifications
from fedclust_service.store.overview import OverviewQueries
from fedclust_service.store.principals import Principals, Tokens
from fedclust_service.store.results import Results, States
from fedclust_service.store.rounds import Rounds
from fedclust_service.store.sessions import Participations, Sessions
from fedclust_service.store.sign_ins import SignIns
from fedclust_service.store.site_tables import SiteTables
from fedclust_service.store.site_views import SiteViews
from fedclust_service.store.studies import Studies
from fedclust_service.store.submissions import Submissions


class Tx:
    """The repositories of one transaction. MUST NOT be kept beyond the function it was given to.

    ``now`` is when this attempt began, by the store's clock. Everything it writes has this time.
    """

    def __init__(self, connection: Connection, now: datetime) -> None:
        self._connection = connection
        self._touched: dict[str, int] = {}
        self._scrubbed: list[int] = []
        self._heads: list[int] = []
        self._entries: list[dict[str, Any]] = []
        self.now = now
        self.principals = Principals(connection, now)
        self.tokens = Tokens(connection)
        self.sign_ins = SignIns(connection)
        self.studies = Studies(connection)
        self.sessions = Sessions(connection, self._touched)
        self.participations = Participations(connection)
        self.site_tables = SiteTables(connection)
        self.rounds = Rounds(connection)
        self.site_views = SiteViews(connection)
        self.submissions = Submissions(connection, self._scrubbed)
        self.states = States(connection)
        self.results = Results(connection)
        self.audit = Audit(connection, self._entries)
        self.chain = AuditChain(connection, self._heads)
        self.overview = OverviewQueries(connection)
        self.notifications = Notifications(connection)

    def write_audit(self) -> None:
        """Write the appended entries of the audit trail in one statement, before the commit."""
        if self._entries:
            self._connection.execute(APPEND, self._entries)
            self._entries.clear()

    @property
    def touched(self) -> list[tuple[str, int]]:
        """Sessions whose version this transaction increased, each with its last version."""
        return list(self._touched.items())

    @property
    def scrubbed(self) -> bool:
        """Whether this transaction deleted payloads."""
        return bool(self._scrubbed)

    @property
    def sealed(self) -> int | None:
        """The number of the audit trail's head that this transaction wrote."""
        return self._heads[-1] if self._heads else None
