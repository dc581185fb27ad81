"""Migrations: read a database's migration, and migrate it.

Alembic is imported only if there is something to migrate.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, Engine, inspect, text
from sqlalchemy.exc import DBAPIError

from fedclust_service.store import engine as engines
from fedclust_service.store import tables
from fedclust_service.store.engine import serving_lock
from fedclust_service.store.errors import UPGRADE_COMMAND, SchemaMissing, SchemaProblem, translate

if TYPE_CHECKING:
    from alembic.config import Config

#: Alembic's scripts.
FOLDER = Path(__file__).with_name("migrations")
_VERSION_TABLE = "alembic_version"
# A fixed number, so that processes migrate the same PostgreSQL database one after another.
_ADVISORY_LOCK = 0x6665_6463_6C75_7374


def current(url: str) -> str | None:
    """Return a database's migration; None if it has no tables of fedclust."""
    file = engines.sqlite_file(engines.parse_url(url))
    if file and not file.exists():
        return None
    made = _engines(url)
    try:
        with made.read.connect() as connection:
            return revision_of(connection)
    except DBAPIError as error:
        raise translate(error, "db current") from None
    finally:
        made.dispose()


def upgrade(url: str, revision: str = "head") -> None:
    """Upgrade a database to a migration, completely or not at all.

    SchemaProblem if a later version wrote it; StoreLocked while a process serves it.
    """
    _migrate(url, revision, up=True)


def downgrade(url: str, revision: str) -> None:
    """Downgrade a database to a migration; ``base`` drops every table of fedclust."""
    _migrate(url, revision, up=False)


def revision_of(connection: Connection) -> str | None:
    """Return the migration of a connection's database."""
    if not inspect(connection).has_table(_VERSION_TABLE):
        return None
    query = text(f"SELECT version_num FROM {_VERSION_TABLE}")  # noqa: S608  # a constant
    found = connection.execute(query).scalar_one_or_none()
    return None if found is None else str(found)


def check(connection: Connection) -> None:
    """Raise a SchemaProblem unless the database is at the migration of this program."""
    found = revision_of(connection)
    if found == tables.SCHEMA_REVISION:
        return
    if found is None:
        others = set(inspect(connection).get_table_names()) - {_VERSION_TABLE}
        if others:
            raise SchemaProblem(
                "the database holds tables that are not fedclust's; give one of its own"
            )
        raise SchemaMissing(f"the database is empty; run `{UPGRADE_COMMAND}`")
    _check_known(found)
    raise SchemaProblem(
        f"the database is at migration {found} and this version needs {tables.SCHEMA_REVISION}; "
        f"make a backup, then run `{UPGRADE_COMMAND}`"
    )


def _migrate(url: str, revision: str, *, up: bool) -> None:
    with contextlib.ExitStack() as opened:
        made = _engines(url)
        opened.callback(made.dispose)
        if made.file:
            opened.callback(serving_lock(made.file).release)
        migrate_with(made.write, revision, up=up)


def migrate_with(engine: Engine, revision: str = "head", *, up: bool = True) -> None:
    """Upgrade or downgrade over a write engine and without a lock. Raises as `upgrade`."""
    from alembic import command

    config = _alembic_config()
    try:
        with engine.begin() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(
                    text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK}
                )
            found = revision_of(connection)
            if found is not None:
                _check_known(found)
            config.attributes["connection"] = connection
            (command.upgrade if up else command.downgrade)(config, revision)
    except DBAPIError as error:
        raise translate(error, "migrate") from None


def _check_known(found: str) -> None:
    from alembic.script import ScriptDirectory
    from alembic.util import CommandError

    try:
        ScriptDirectory.from_config(_alembic_config()).get_revision(found)
    except CommandError:
        raise SchemaProblem(
            f"the database is at migration {found}, which a later version of fedclust made, "
            "or a pilot before the first release; install that version or restore a backup"
        ) from None


def _alembic_config() -> Config:
    from alembic.config import Config

    config = Config()
    # A percent sign means interpolation here.
    config.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    return config


def _engines(url: str) -> engines.Engines:
    return engines.build_engines(engines.parse_url(url), busy_timeout_s=10.0)
