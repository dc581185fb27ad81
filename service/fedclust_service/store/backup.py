"""Back up an SQLite database while it is in use, and restore it.

SQLite copies all pages under one snapshot of the write-ahead log: the copy holds all transactions
that were committed when it began, and no writer waits for it.
"""

import contextlib
import hashlib
import os
import secrets
import shlex
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from fedclust.durable_files import reason, sync_directory
from fedclust_service.store import engine as engines
from fedclust_service.store.engine import serving_lock
from fedclust_service.store.errors import (
    SchemaProblem,
    StoreError,
    StoreFault,
    Unwritable,
    UrlRefused,
    sqlite_fault,
)

_BUSY_S = 30.0
#: Of a database's files, its own included.
_SUFFIXES = ("", "-wal", "-shm", "-journal")
_PASSWORDS = frozenset({"password", "sslpassword"})


@dataclass(frozen=True)
class Copy:
    """A copy of a database: its bytes, its hash, and the migration that it is at."""

    path: Path
    size: int
    sha256: str
    migration: str


def backup(url: str, target: Path) -> Copy:
    """Copy a database that may be in use to a new file.

    ``target`` must not exist. It appears only when it is complete; only its owner can read it. For
    PostgreSQL, UrlRefused names its own tools.
    """
    parsed = engines.parse_url(url)
    file = engines.sqlite_file(parsed)
    if file is None:
        from psycopg import ProgrammingError  # in the extra [postgres]
        from psycopg.conninfo import make_conninfo

        # It includes the address's query, such as a socket's folder or certificates.
        _, given = parsed.get_dialect()().create_connect_args(parsed)
        options = {name: value for name, value in given.items() if name not in _PASSWORDS}
        try:
            address = make_conninfo(**options)
        except ProgrammingError as error:
            raise UrlRefused(f"the address of the database: {error}") from None
        command = ["pg_dump", "--format=custom", f"--file={target}", f"--dbname={address}"]
        raise UrlRefused(
            "PostgreSQL is copied by its own tools; the password is asked for or read from "
            f"~/.pgpass: {shlex.join(command)}"
        )
    if not file.is_file():
        raise Unwritable(f"there is no database {file}")
    return _copy(file, target)


def restore(source: Path, url: str, check: Callable[[], None] | None = None) -> Copy:
    """Copy a backup to the place of a database that was moved away.

    ``check`` is called when nothing else prevents the copy; its exception does. This overwrites
    neither a database nor a write-ahead log that was left behind: SQLite would apply that log to
    the copy and damage it.
    """
    parsed = engines.parse_url(url)
    file = engines.sqlite_file(parsed)
    if file is None:
        raise UrlRefused(
            "PostgreSQL is restored by its own tools, into an empty database and from a copy that "
            f"pg_dump made: pg_restore --no-owner --dbname=NAME {source}"
        )
    if not source.is_file():
        raise Unwritable(f"there is no file {source}")
    if not file.parent.is_dir():
        raise Unwritable(f"the folder {file.parent} does not exist; make it first")
    lock = serving_lock(file)
    try:
        for suffix in _SUFFIXES:
            left = file.with_name(file.name + suffix)
            if left.exists():
                raise Unwritable(f"{left} exists: move it aside first")
        if check is not None:
            check()
        # The hash that `backup` printed: another copy of the same pages may have another header.
        return replace(_copy(source, file), sha256=_digest(source))
    finally:
        lock.release()


def _copy(source: Path, target: Path) -> Copy:
    if target.exists():
        raise Unwritable(f"{target} exists, and nothing is overwritten: name another file")
    draft = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    try:
        os.close(os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except OSError as error:
        raise Unwritable(f"cannot write in {target.parent}: {reason(error)}") from None
    try:
        migration = _fill(source, draft)
        with draft.open("rb+") as file:
            os.fsync(file.fileno())
        size, digest = draft.stat().st_size, _digest(draft)
        draft.replace(target)
    except sqlite3.Error as error:
        if sqlite_fault(error) is StoreFault.DISK_FULL:
            raise Unwritable(f"cannot write {target}: the disk is full") from None
        raise StoreError(f"{source} cannot be copied: {type(error).__name__}") from None
    except OSError as error:
        raise Unwritable(f"cannot write {target}: {reason(error)}") from None
    finally:
        for suffix in _SUFFIXES:
            draft.with_name(draft.name + suffix).unlink(missing_ok=True)
    sync_directory(target.parent)
    return Copy(target, size, digest, migration)


def _fill(source: Path, draft: Path) -> str:
    with _opened(source) as origin, _opened(draft) as copy:
        # Checked before copying: another program's database is not worth a copy.
        migration = _migration(origin, source)
        origin.backup(copy)
        # A single file without a log, which also works on a read-only medium.
        copy.execute("PRAGMA journal_mode=DELETE")
        (found,) = copy.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise StoreError(f"{source} is damaged: restore an earlier backup")
    return migration


def _opened(path: Path) -> contextlib.closing[sqlite3.Connection]:
    return contextlib.closing(sqlite3.connect(path, timeout=_BUSY_S))


def _migration(connection: sqlite3.Connection, path: Path) -> str:
    try:
        row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
        connection.execute("SELECT 1 FROM submissions").fetchone()
    except sqlite3.DatabaseError as error:
        if sqlite_fault(error) is StoreFault.DISK_FULL:
            raise Unwritable(f"cannot open {path}: its disk is full") from None
        row = None
    if row is None:
        raise SchemaProblem(f"{path} is not a database of fedclust")
    return str(row[0])


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
