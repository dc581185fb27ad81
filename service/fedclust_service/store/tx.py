"""One transaction and the repositories that work in it."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from sqlalchemy import Connection

from fedclust_service.store.audit import Audit
from fedclust_service.store.audit_chain import AuditChain
from fedclust_service.store.overview import OverviewQueries
from fedclust_service.store.principals import Principals, Tokens
from fedclust_service.store.results import Results, States
from fedclust_service.store.rounds import Rounds
from fedclust_service.store.sessions import Participations, Sessions
from fedclust_service.store.site_views import SiteViews
from fedclust_service.store.submissions import Submissions


class Tx:
    """The repositories of one transaction, each made when it is first used.

    MUST NOT be kept beyond the function it was given to.

    Attributes
    ----------
    now : datetime
        When this attempt began, by the store's clock. Everything it writes has this time.
    """

    def __init__(self, connection: Connection, now: datetime) -> None:
        self._connection = connection
        self._touched: dict[str, int] = {}
        self._scrubbed: list[int] = []
        self._heads: list[int] = []
        self.now = now

    @functools.cached_property
    def principals(self) -> Principals:
        return Principals(self._connection, self.now)

    @functools.cached_property
    def tokens(self) -> Tokens:
        return Tokens(self._connection)

    @functools.cached_property
    def sessions(self) -> Sessions:
        return Sessions(self._connection, self._touched)

    @functools.cached_property
    def participations(self) -> Participations:
        return Participations(self._connection)

    @functools.cached_property
    def rounds(self) -> Rounds:
        return Rounds(self._connection)

    @functools.cached_property
    def site_views(self) -> SiteViews:
        return SiteViews(self._connection)

    @functools.cached_property
    def submissions(self) -> Submissions:
        return Submissions(self._connection, self._scrubbed)

    @functools.cached_property
    def states(self) -> States:
        return States(self._connection)

    @functools.cached_property
    def results(self) -> Results:
        return Results(self._connection)

    @functools.cached_property
    def audit(self) -> Audit:
        return Audit(self._connection)

    @functools.cached_property
    def chain(self) -> AuditChain:
        return AuditChain(self._connection, self._heads)

    @functools.cached_property
    def overview(self) -> OverviewQueries:
        return OverviewQueries(self._connection)

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

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Undo the block if it raises; the error goes on to the caller.

        A caller that catches the error continues the transaction with everything before the block.
        """
        touched, scrubbed = dict(self._touched), list(self._scrubbed)
        try:
            with self._connection.begin_nested():
                yield
        except BaseException:
            self._touched.clear()
            self._touched.update(touched)
            self._scrubbed[:] = scrubbed
            raise
