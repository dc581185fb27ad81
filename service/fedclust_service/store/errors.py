"""The errors of a database as types, and which of them are worth another try.

Messages hold names of constraints and files, never values of a row. A driver's text repeats the
failing row, so only its code is kept.
"""

import sqlite3
from enum import StrEnum

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

UPGRADE_COMMAND = "fedclust-service db upgrade"

_SQLITE_TRANSIENT = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


class StoreFault(StrEnum):
    """Why a database cannot be served, as readiness reports it."""

    DAMAGED = "database-damaged"
    UNCHECKED = "database-unchecked"
    READ_ONLY = "database-read-only"
    CANNOT_OPEN = "database-cannot-be-opened"
    PERMISSION = "database-permission-refused"
    DISK_FULL = "disk-full"
    IO_ERROR = "disk-error"


_SQLITE_UNWRITABLE = {
    sqlite3.SQLITE_READONLY: StoreFault.READ_ONLY,
    sqlite3.SQLITE_CANTOPEN: StoreFault.CANNOT_OPEN,
    sqlite3.SQLITE_PERM: StoreFault.PERMISSION,
    sqlite3.SQLITE_FULL: StoreFault.DISK_FULL,
    sqlite3.SQLITE_IOERR: StoreFault.IO_ERROR,
}
_SQLITE_DAMAGED = {
    sqlite3.SQLITE_NOTADB: "it is not an SQLite database",
    sqlite3.SQLITE_CORRUPT: "it is damaged",
}
_WHY = {
    StoreFault.READ_ONLY: "it is read-only",
    StoreFault.CANNOT_OPEN: "it cannot be opened",
    StoreFault.PERMISSION: "permission is refused",
    StoreFault.DISK_FULL: "the disk is full",
    StoreFault.IO_ERROR: "reading or writing it failed",
}
# serialization_failure, deadlock_detected, lock_not_available
_POSTGRES_TRANSIENT = {"40001", "40P01", "55P03"}
# admin_shutdown, crash_shutdown, cannot_connect_now, idle_in_transaction_session_timeout
_POSTGRES_LOST = {"57P01", "57P02", "57P03", "25P03"}
_POSTGRES_UNWRITABLE = {
    "25006": StoreFault.READ_ONLY,
    "53100": StoreFault.DISK_FULL,
    "42501": StoreFault.PERMISSION,
    "58030": StoreFault.IO_ERROR,
}
# data_corrupted, index_corrupted
_POSTGRES_DAMAGED = {"XX001", "XX002"}


class StoreError(Exception):
    """The database refused or failed. The message is safe to show and to log."""


class UrlRefused(StoreError):
    """The coordinator cannot serve this database address."""


class StoreLocked(StoreError):
    """Another process serves this SQLite file."""


class Unwritable(StoreError):
    """The database cannot be written: folder, permission, disk.

    ``fault`` says why, if a database in use gave the reason.
    """

    def __init__(self, message: str, fault: StoreFault | None = None) -> None:
        super().__init__(message)
        self.fault = fault


class DatabaseDamaged(Unwritable):
    """The database is damaged, until somebody replaces it."""

    def __init__(self, why: str = "it is damaged") -> None:
        super().__init__(
            f"{why}; move it aside and put a backup in its place with `fedclust-service restore`",
            StoreFault.DAMAGED,
        )


class StoreBusy(StoreError):
    """The database was busy for longer than all tries together; a later try helps."""


class StoreUnavailable(StoreError):
    """There is no connection, or it was lost; a commit may or may not have succeeded."""


class DataDamaged(StoreError):
    """Stored bytes do not have their stored hash, or cannot be read.

    ``what`` is ``submission``, ``state``, ``task``, ``definition``, ``study``, ``result`` or
    ``row``; ``site`` is the one that the data belong to, if any.
    """

    def __init__(self, what: str, site: str | None = None) -> None:
        super().__init__(f"a stored {what} is damaged: restore a backup")
        self.what = what
        self.site = site


class SchemaProblem(StoreError):
    """The tables are not those of this program."""


class SchemaMissing(SchemaProblem):
    """The database is empty."""


def sqlite_code(error: BaseException) -> int | None:
    """Return SQLite's primary result code of a driver error."""
    original = error.orig if isinstance(error, DBAPIError) else error
    code = getattr(original, "sqlite_errorcode", None)
    return code & 0xFF if isinstance(code, int) else None


def sqlite_fault(error: BaseException) -> StoreFault | None:
    """Return why a file of SQLite cannot be used, if a driver error says so."""
    original = error.orig if isinstance(error, DBAPIError) else error
    if getattr(original, "sqlite_errorcode", None) == sqlite3.SQLITE_IOERR_SHMSIZE:
        # The index of the write-ahead log did not fit.
        return StoreFault.DISK_FULL
    return _SQLITE_UNWRITABLE.get(sqlite_code(error) or 0)


def sqlstate(error: BaseException) -> str | None:
    """Return the five-letter SQLSTATE of a PostgreSQL driver error."""
    original = error.orig if isinstance(error, DBAPIError) else error
    state = getattr(original, "sqlstate", None)
    return state if isinstance(state, str) else None


def is_transient(error: BaseException) -> bool:
    """Whether the transaction may succeed when it runs again on the same connection."""
    return sqlite_code(error) in _SQLITE_TRANSIENT or sqlstate(error) in _POSTGRES_TRANSIENT


def is_unreadable(error: BaseException) -> bool:
    """Whether this program cannot have written a stored value: no time, no JSON, no UTF-8."""
    if isinstance(error, DBAPIError):
        # Every error of SQLite has a code. Without one, Python failed to decode a text.
        return isinstance(error.orig, sqlite3.OperationalError) and sqlite_code(error) is None
    return isinstance(error, ValueError | TypeError)


def is_defect(error: Exception) -> bool:
    """Whether an error is one of some rows or of the code; otherwise the database failed."""
    if isinstance(error, DBAPIError | PoolTimeout):
        return is_unreadable(error)
    return isinstance(error, DataDamaged) or not isinstance(error, StoreError)


def is_connection_lost(error: BaseException) -> bool:
    """Whether the connection was lost or could not be made."""
    if not isinstance(error, DBAPIError) or is_unreadable(error):
        return False
    if error.connection_invalidated:
        return True
    state = sqlstate(error)
    if state is not None:
        return state in _POSTGRES_LOST or state.startswith("08")
    # psycopg gives no SQLSTATE if it cannot reach the server.
    return sqlite_code(error) is None and type(error.orig).__name__ == "OperationalError"


def translate(error: Exception, name: str) -> StoreError:
    """Return the StoreError for what the driver raised in transaction ``name``."""
    if isinstance(error, PoolTimeout):
        return StoreBusy(f"{name}: no free database connection")
    code, state = sqlite_code(error), sqlstate(error)
    if is_transient(error):
        return StoreBusy(f"{name}: the database is busy; ask again")
    if code in _SQLITE_DAMAGED or state in _POSTGRES_DAMAGED:
        return DatabaseDamaged(_SQLITE_DAMAGED.get(code or 0, "it is damaged"))
    fault = sqlite_fault(error) or _POSTGRES_UNWRITABLE.get(state or "")
    if fault is not None:
        return Unwritable(f"{name}: the database cannot be used: {_WHY[fault]}", fault)
    if is_unreadable(error):
        return DataDamaged("row")
    if is_connection_lost(error):
        return StoreUnavailable(f"{name}: the database cannot be reached")
    original = getattr(error, "orig", None) or error
    return StoreError(f"{name}: {type(original).__name__} ({state or code or 'no code'})")
