"""One transaction, as the repositories that work in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from sqlalchemy import Connection

from fedclust_service.store.audit import Audit
from fedclust_service.store.chain import Chain
from fedclust_service.store.principals import Principals, Tokens
from fedclust_service.store.results import Results, States
from fedclust_service.store.rounds import Rounds
from fedclust_service.store.sessions import Participations, Sessions
from fedclust_service.store.standing import Standings
from fedclust_service.store.submissions import Submissions


class Tx:
    """The repositories of one transaction. MUST NOT be kept beyond the function it was given to.

    Attributes
    ----------
    now : datetime
        When this attempt began, by the store's clock: one time for all that it writes.
    """

    def __init__(self, connection: Connection, now: datetime) -> None:
        self._connection = connection
        self._touched: dict[str, int] = {}
        self._scrubbed: list[int] = []
        self._heads: list[int] = []
        self.now = now
        self.principals = Principals(connection, now)
        self.tokens = Tokens(connection)
        self.sessions = Sessions(connection, self._touched)
        self.participations = Participations(connection)
        self.rounds = Rounds(connection)
        self.submissions = Submissions(connection, self._scrubbed)
        self.states = States(connection)
        self.results = Results(connection)
        self.audit = Audit(connection)
        self.chain = Chain(connection, self._heads)
        self.standings = Standings(connection)

    @property
    def touched(self) -> list[tuple[str, int]]:
        """Sessions whose version this transaction raised, each with its last one."""
        return list(self._touched.items())

    @property
    def scrubbed(self) -> bool:
        """Whether this transaction forgot payloads."""
        return bool(self._scrubbed)

    @property
    def sealed(self) -> int | None:
        """The number of the audit trail's head that this transaction wrote."""
        return self._heads[-1] if self._heads else None

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Undo only the block when it raises, and let the error go on to the caller.

        A caller that catches it goes on in the same transaction with all that came before.
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
