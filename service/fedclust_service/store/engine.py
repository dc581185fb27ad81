"""Engines for the two databases: one for transactions that write, one for those that only read.

SQLite: Writers begin with ``BEGIN IMMEDIATE``. A transaction that reads first and upgrades later
fails under contention (203 of 360 did with six processes, none with IMMEDIATE). Readers get a
snapshot of the write-ahead log and connections that refuse to write. ``synchronous=FULL`` makes
each commit durable, ``secure_delete`` overwrites deleted payloads.

PostgreSQL: Writers run at READ COMMITTED and lock the session's row first, so that every later
statement sees what the previous holder committed. Readers run at REPEATABLE READ, read-only: all
their statements see one snapshot.

A lock that lets only one process serve an SQLite file.

The lock is on ``<database>.lock``, because SQLite locks the database itself. The operating system
drops the lock when the process ends; the file stays.
"""

import contextlib
import os
import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import ConnectionPoolEntry, NullPool, QueuePool

from fedclust.durable_files import FileLock, LockHeld, reason
from fedclust_service.store.errors import StoreLocked, Unwritable, UrlRefused

POOL_TIMEOUT_S = 30
#: Connections that stay open; under load four times as many more are made.
_POOL_SIZE = 5
_FORMS = "sqlite:///path/to/file.db or postgresql+psycopg://user@host/name"


@dataclass(frozen=True)
class Engines:
    """The engines of one database. ``file`` is the SQLite file.

    ``listen`` is for the listening connection on PostgreSQL: no pool, and each statement commits.
    """

    write: Engine
    read: Engine
    listen: Engine | None
    file: Path | None

    def dispose(self) -> None:
        """Close all pooled connections."""
        self.read.dispose()
        self.write.dispose()


def parse_url(url: str) -> URL:
    """Return the parsed address; UrlRefused, without repeating it, if it cannot be served."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise UrlRefused(f"the database address is not valid; give {_FORMS}") from None
    if parsed.drivername in ("sqlite", "sqlite+pysqlite"):
        if not parsed.database or parsed.database == ":memory:" or parsed.query:
            raise UrlRefused("SQLite must be a plain file: sqlite:///path/to/file.db")
        return parsed
    if parsed.drivername == "postgresql+psycopg":
        return parsed
    raise UrlRefused(f"databases of type {parsed.drivername} are not supported; give {_FORMS}")


def sqlite_file(url: URL) -> Path | None:
    """Return the resolved path of an SQLite address, None for PostgreSQL."""
    if url.get_backend_name() != "sqlite":
        return None
    return Path(url.database or "").expanduser().resolve()


def build_engines(url: URL, *, busy_timeout_s: float) -> Engines:
    """Make the engines; for SQLite also the file, which only its owner can read."""
    path = sqlite_file(url)
    if path is None:
        return _postgres(url, busy_timeout_s)
    _make_file(path)
    return _sqlite(path, busy_timeout_s)


def _make_file(path: Path) -> None:
    if not path.parent.is_dir():
        raise Unwritable(f"the folder {path.parent} does not exist; make it first, or name another")
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as error:
        raise Unwritable(f"cannot write {path}: {reason(error)}") from None
    if not os.access(path.parent, os.W_OK):
        raise Unwritable(f"cannot write in {path.parent}: SQLite keeps its log in that folder")


def _sqlite(path: Path, busy_timeout_s: float) -> Engines:
    url = URL.create("sqlite", database=str(path))
    common: dict[str, Any] = {
        "poolclass": QueuePool,
        "pool_timeout": POOL_TIMEOUT_S,
        "hide_parameters": True,
        "connect_args": {"timeout": busy_timeout_s, "check_same_thread": False},
    }
    # SQLite allows one writer at a time.
    write = create_engine(url, pool_size=1, max_overflow=0, **common)
    # The connection that was used last has the current pages and statements in its cache.
    read = create_engine(
        url, pool_size=_POOL_SIZE, max_overflow=4 * _POOL_SIZE, pool_use_lifo=True, **common
    )

    def prepare(connection: sqlite3.Connection, _: ConnectionPoolEntry) -> None:
        # The driver must not begin transactions: the dialect does, below.
        connection.isolation_level = None
        until = time.monotonic() + busy_timeout_s
        while True:
            try:
                (mode,) = connection.execute("PRAGMA journal_mode=WAL").fetchone()
                break
            except sqlite3.OperationalError as error:
                # Of two that change an empty file at once SQLite lets neither wait.
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                    raise
                time.sleep(0.01)
        if mode != "wal":
            raise Unwritable(f"{path}: this file system cannot hold SQLite's write-ahead log")
        for setting in ("synchronous=FULL", "foreign_keys=ON", "secure_delete=ON"):
            connection.execute(f"PRAGMA {setting}")

    def forbid_writing(connection: sqlite3.Connection, _: ConnectionPoolEntry) -> None:
        connection.execute("PRAGMA query_only=ON")

    event.listen(write, "connect", prepare)
    event.listen(read, "connect", prepare)
    event.listen(read, "connect", forbid_writing)
    # Not in an event "begin": with it, each connection and statement would look for listeners.
    _begin_with(write, "BEGIN IMMEDIATE")
    _begin_with(read, "BEGIN")
    return Engines(write, read, None, path)


def _begin_with(engine: Engine, statement: str) -> None:
    def begin(dbapi_connection: Any) -> None:
        dbapi_connection.execute(statement)

    engine.dialect.do_begin = begin  # type: ignore[method-assign]


def _postgres(url: URL, busy_timeout_s: float) -> Engines:
    try:
        import psycopg  # noqa: F401  # in the extra [postgres]
    except ImportError:
        raise UrlRefused(
            "PostgreSQL needs the package psycopg: pip install 'fedclust[service,postgres]'"
        ) from None
    settings = {
        "timezone": "UTC",
        "synchronous_commit": "on",
        "lock_timeout": f"{int(busy_timeout_s * 1000)}",
        # A worker that hangs inside a transaction must not hold a session's lock for ever.
        "idle_in_transaction_session_timeout": "60000",
    }
    common: dict[str, Any] = {
        "hide_parameters": True,
        "connect_args": {
            "application_name": "fedclust",
            "connect_timeout": 10,
            # Notice a network that drops packets.
            "keepalives_idle": 30,
            "tcp_user_timeout": 20_000,
            "options": " ".join(f"-c {name}={value}" for name, value in settings.items()),
        },
    }
    write = create_engine(
        url,
        pool_size=_POOL_SIZE,
        max_overflow=4 * _POOL_SIZE,
        pool_timeout=POOL_TIMEOUT_S,
        isolation_level="READ COMMITTED",
        **common,
    )
    read = write.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
    listen = create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT", **common)
    return Engines(write, read, listen, None)


def is_intact(connection: Connection) -> bool:
    """Whether a commit of the open transaction would take effect.

    After an error PostgreSQL silently turns a commit into a rollback, and SQLite has already rolled
    back if the disk failed.
    """
    driver: Any = connection.connection.dbapi_connection
    if connection.dialect.name == "sqlite":
        return bool(driver.in_transaction)
    return driver.info.transaction_status.name in ("IDLE", "INTRANS")


def empty_log(file: Path) -> bool:
    """Move SQLite's write-ahead log into the database and truncate it.

    Returns False if a reader prevented this; SQLite overwrites the log later.
    """
    try:
        with contextlib.closing(sqlite3.connect(file, timeout=1.0)) as connection:
            busy = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
    except sqlite3.Error:
        return False
    return bool(busy == 0)


def serving_lock(database: Path) -> FileLock:
    """Return a held lock next to a database file; StoreLocked or Unwritable."""
    if database.exists() and database.stat().st_nlink > 1:
        # SQLite names its log after the file: through each name it would write another log.
        raise Unwritable(f"{database} is a hard link: copy it, then remove the other names")
    lock = FileLock(database.with_name(database.name + ".lock"))
    try:
        lock.acquire()
    except LockHeld:
        raise StoreLocked(
            f"another process serves {database}; stop it first, or use PostgreSQL, which several "
            "processes can serve"
        ) from None
    except OSError as error:
        raise Unwritable(f"cannot open {lock.path}: {reason(error)}") from None
    return lock
