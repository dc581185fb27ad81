"""A lock that lets only one process serve an SQLite file.

The lock is on ``<database>.lock``, because SQLite locks the database itself. The operating system
drops the lock when the process ends; the file stays.
"""

from pathlib import Path

from fedclust.durable_files import FileLock, LockHeld, reason
from fedclust_service.store.errors import StoreLocked, Unwritable


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
