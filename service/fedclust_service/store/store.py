"""Open the database; begin, repeat and count all transactions.

A transaction is a `Tx`: its repositories work in it.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TypeVar

from prometheus_client import Counter
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from fedclust_service.clock import StoreClock
from fedclust_service.store import engine as engines
from fedclust_service.store import migrate as migrations
from fedclust_service.store._sql import Pending
from fedclust_service.store.audit import APPEND, Audit, AuditChain
from fedclust_service.store.engine import serving_lock
from fedclust_service.store.errors import (
    DatabaseDamaged,
    SchemaMissing,
    StoreError,
    StoreFault,
    StoreUnavailable,
    Unwritable,
    is_connection_lost,
    is_transient,
    translate,
)
from fedclust_service.store.health import Health
from fedclust_service.store.notifications import Notifications
from fedclust_service.store.overview import OverviewQueries
from fedclust_service.store.principals import Principals, SignIns, SiteTables, Tokens
from fedclust_service.store.results import Results, States
from fedclust_service.store.rounds import Rounds, SiteViews, Submissions
from fedclust_service.store.sessions import Participations, Sessions, Studies
from fedclust_service.store.tables import SCHEMA_REVISION


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


log = logging.getLogger(__name__)

T = TypeVar("T")
TouchCallback = Callable[[str, int], None]

MAX_ATTEMPTS = 8
# This includes waits for locks, so that no caller waits for many lock timeouts in a row.
REPEAT_WITHIN_S = 20.0
_FIRST_PAUSE_S = 0.005
_LONGEST_PAUSE_S = 0.25
#: The channel on which PostgreSQL notifies other processes.
SESSIONS = "fedclust_session"
_NOTIFY = text("SELECT pg_notify(:channel, :payload)")


#: What is counted of the transactions of each name.
_COUNTED = {
    "calls": "Transactions asked for, by name.",
    "retries": "Times that a transaction was run again: deadlocks, lost connections.",
    "failures": "Transactions that ended with an error of the database.",
    "seconds": "Seconds that transactions took, waiting for locks included.",
}


class Store:
    """A database with the coordinator's tables, made by `Store.open`. Threads may share it."""

    def __init__(
        self, made: engines.Engines, clock: StoreClock, pause: Callable[[float], None]
    ) -> None:
        self._engines = made
        #: The clock of everything on this store.
        self.clock = clock
        #: What closes the connections, and then releases the lock.
        self._opened = contextlib.ExitStack()
        self._pause = pause
        self._active = threading.local()
        self._callbacks: list[TouchCallback] = []
        #: What this process counted: `calls`, `retries`, `failures` and `seconds`.
        self.counters = {
            key: Counter(f"fedclust_store_{key}", what, ["transaction"], registry=None)
            for key, what in _COUNTED.items()
        }
        self._health = Health(made.file)

    @classmethod
    def open(
        cls,
        url: str,
        clock: StoreClock,
        *,
        serving: bool = False,
        create: bool = True,
        busy_timeout_s: float = 10.0,
        pause: Callable[[float], None] = time.sleep,
        check_wait_s: float = 10.0,
    ) -> Store:
        """Open a database and check that its tables are those of this program.

        Parameters
        ----------
        url : str
            ``sqlite:///path`` or ``postgresql+psycopg://…``.
        clock : StoreClock
            Becomes `Store.clock` and follows the clock of a PostgreSQL database.
        serving : bool
            Whether this process will serve requests; only one process may serve an SQLite file.
            Commands that run next to a server open the store without it.
        create : bool
            Whether to create the tables in an empty database.
        busy_timeout_s : float
            How long a statement waits for a lock.
        pause : callable
            Waits between two tries.
        check_wait_s : float
            How long to wait for the check of an SQLite file; a longer check continues in the
            background.

        Raises
        ------
        StoreError
            The database cannot be used, or the tables are not those of this program.
        """
        parsed = engines.parse_url(url)
        file = engines.sqlite_file(parsed)
        if file and not create and not file.exists():
            raise Unwritable(f"there is no database {file}: check --data-dir")
        made = engines.build_engines(parsed, busy_timeout_s=busy_timeout_s)
        store = cls(made, clock, pause)
        with store._opened as opened:
            if serving and file:
                opened.callback(serving_lock(file).release)
            opened.callback(made.dispose)
            store._ensure_schema(create)
            clock.follow(None if made.file else store._database_time)
            if serving and file:
                store._health.check(file, check_wait_s)
            store._opened = opened.pop_all()
        return store

    @property
    def single_process(self) -> bool:
        """Whether the database is SQLite, which only one process can serve."""
        return self._engines.file is not None

    def run_tx(self, name: str, fn: Callable[[Tx], T]) -> T:
        """Run ``fn`` in a write transaction named ``name``, commit once, and return its result.

        ``fn`` MUST be safe to run again: it runs again with a new `Tx` after a deadlock, a
        serialization failure, a busy database or a connection lost before the commit. Its own
        exceptions undo everything and reach the caller. It should not compute: on SQLite all
        writers wait for it.

        Raises
        ------
        StoreBusy
            The database was busy in all tries.
        StoreUnavailable
            The connection was lost; during the commit, it may have succeeded or not.
        Unwritable
            For instance a full disk; `faults` reports it until a write succeeds and there is room.
        DatabaseDamaged
            A damaged database is never written.
        StoreError
            Any other failure of the database.
        """
        started = time.perf_counter()
        self._health.refuse_damaged()
        with self._entered(name):
            try:
                tx, value = self._repeat(name, self._engines.write, fn, started)
            except Unwritable as error:
                self._health.write_ended(error.fault)
                raise
            self._health.write_ended()
            self._after_commit(tx)
        return value

    def try_failed_write(self) -> None:
        """Write something without effect if the last write failed. Raises as `run_tx`.

        Otherwise an idle service would never notice that writing works again.
        """
        if self._health.failed_write is not None:
            self.run_tx("probe", lambda tx: tx.chain.rewrite())

    @property
    def faults(self) -> tuple[StoreFault, ...]:
        """What keeps the database from being served, the worst first."""
        return self._health.faults

    def read(self, name: str, fn: Callable[[Tx], T]) -> T:
        """Run ``fn`` in a read-only transaction on one snapshot of the database.

        The database refuses writes in it. It repeats, counts and raises as `run_tx` does, but reads
        what can be read of a damaged database whose file is there.
        """
        self._health.refuse_absent()
        with self._entered(name):
            return self._repeat(name, self._engines.read, fn, time.perf_counter())[1]

    def on_touch(self, callback: TouchCallback) -> None:
        """Call ``callback`` after each commit with each session that it touched.

        It gets name and version in the committing thread. It must be quick and must not use the
        store. Its exceptions are only logged.
        """
        self._callbacks.append(callback)

    @property
    def listening_engine(self) -> Engine | None:
        """For `Listener`, which hears other processes' commits; None on SQLite, which has none."""
        return self._engines.listen

    def migration_head(self) -> str | None:
        """Ask the database for its migration; None if it has no tables of fedclust."""
        return self.read("migration_head", lambda tx: migrations.revision_of(tx._connection))

    def expected_migration(self) -> str:
        """Return the migration that this program needs."""
        return SCHEMA_REVISION

    def close(self) -> None:
        """Close all connections and release the lock. A second call does nothing."""
        self._health.stop()
        self._opened.close()

    def _ensure_schema(self, create: bool) -> None:
        try:
            with self._engines.read.connect() as connection:
                migrations.check(connection)
            return
        except SchemaMissing:
            if not create:
                raise
        except (DBAPIError, PoolTimeout) as error:
            if is_connection_lost(error):
                raise StoreUnavailable(
                    "no connection; check that the database runs, that it has that name, and the "
                    "user and password"
                ) from None
            raise translate(error, "open") from None
        migrations.migrate_with(self._engines.write)

    def _database_time(self) -> datetime:
        ask = text("SELECT clock_timestamp()")
        found: datetime = self.read("clock", lambda tx: tx._connection.execute(ask).scalar_one())
        return found

    def _translated(self, error: Exception, name: str) -> StoreError:
        found = translate(error, name)
        if isinstance(found, DatabaseDamaged):
            self._health.damage(f"in the transaction {name}")
        return found

    @contextlib.contextmanager
    def _entered(self, name: str) -> Iterator[None]:
        """Refuse a transaction inside another one of the same thread: it would wait for itself."""
        outer = getattr(self._active, "name", None)
        if outer is not None:
            raise RuntimeError(f"transaction {name} inside {outer}")
        self._active.name = name
        try:
            yield
        finally:
            self._active.name = None

    def _repeat(
        self, name: str, engine: Engine, fn: Callable[[Tx], T], started: float
    ) -> tuple[Tx, T]:
        attempts, failed = 0, False
        try:
            while True:
                attempts += 1
                try:
                    return self._once(name, engine, fn)
                except StoreUnavailable:
                    failed = True
                    raise
                except (DBAPIError, PoolTimeout) as error:
                    again = is_transient(error) or is_connection_lost(error)
                    late = time.perf_counter() - started >= REPEAT_WITHIN_S
                    failed = not again or late or attempts >= MAX_ATTEMPTS
                    if failed:
                        raise self._translated(error, name) from None
                self._pause(_pause_s(attempts))
        finally:
            seconds = time.perf_counter() - started
            counts = 1, attempts - 1, failed, seconds
            for counter, count in zip(self.counters.values(), counts, strict=True):
                counter.labels(name).inc(count)

    def _once(self, name: str, engine: Engine, fn: Callable[[Tx], T]) -> tuple[Tx, T]:
        # Leaving the block without a commit rolls back.
        with engine.connect() as connection:
            transaction = connection.begin()
            tx = Tx(connection, self.clock.now())
            value = fn(tx)
            tx.write_audit()
            if not engines.is_intact(connection):
                # The commit would silently do nothing.
                raise StoreError(f"{name}: the transaction hid an error of the database")
            if self._engines.listen is not None:
                _announce(connection, tx.pending)
            try:
                transaction.commit()
            except DBAPIError as error:
                if is_connection_lost(error):
                    # It may have succeeded; the caller has to ask.
                    raise StoreUnavailable(
                        f"{name}: the connection was lost during the commit"
                    ) from None
                raise
            return tx, value

    def _after_commit(self, tx: Tx) -> None:
        pending, file = tx.pending, self._engines.file
        if pending.scrubbed and file and not engines.empty_log(file):
            log.info("the write-ahead log is in use; scrubbed pages leave it later")
        for callback, touched in itertools.product(self._callbacks, pending.touched.items()):
            try:
                callback(*touched)
            except Exception as error:  # the transaction is committed
                log.error("a listener failed after a commit: %s", type(error).__name__)


def _announce(connection: Connection, pending: Pending) -> None:
    """Notify all processes of what the transaction changed, once it is committed."""
    touched = pending.touched.items()
    payloads = [{"channel": SESSIONS, "payload": f"{name} {v}"} for name, v in touched]
    if payloads:
        connection.execute(_NOTIFY, payloads)


def _pause_s(attempt: int) -> float:
    """Return the wait after a try: doubling, with jitter against repeated collisions."""
    longest = min(_FIRST_PAUSE_S * 2.0 ** (attempt - 1), _LONGEST_PAUSE_S)
    return longest * (0.5 + secrets.randbelow(1000) / 2000)
