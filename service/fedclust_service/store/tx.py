"""One transaction and the repositories that work in it."""

from datetime import datetime

from sqlalchemy import Connection

from fedclust_service.store._sql import Pending
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
        self.now = now
        self.pending = Pending(now)
        on = connection, self.pending
        self.principals = Principals(*on)
        self.tokens = Tokens(*on)
        self.sign_ins = SignIns(*on)
        self.studies = Studies(*on)
        self.sessions = Sessions(*on)
        self.participations = Participations(*on)
        self.site_tables = SiteTables(*on)
        self.rounds = Rounds(*on)
        self.site_views = SiteViews(*on)
        self.submissions = Submissions(*on)
        self.states = States(*on)
        self.results = Results(*on)
        self.audit = Audit(*on)
        self.chain = AuditChain(*on)
        self.overview = OverviewQueries(*on)
        self.notifications = Notifications(*on)

    def write_audit(self) -> None:
        """Write the appended entries of the audit trail in one statement, before the commit."""
        if self.pending.audit:
            self._connection.execute(APPEND, self.pending.audit)
            self.pending.audit.clear()
