"""A lock that lets only one process serve an SQLite file.

The lock is on ``<database>.lock``, because SQLite locks the database itself. The operating system
drops the lock when the process ends; the file stays.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from fedclust_service.store.errors import StoreLocked, Unwritable


class ServingLock:
    """An exclusive lock next to a database file, held until `release` or the process's end."""

    def __init__(self, database: Path) -> None:
        self.path = database.with_name(database.name + ".lock")
        try:
            self._descriptor: int | None = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise Unwritable(f"cannot open {self.path}: {error.strerror}") from None
        try:
            _lock(self._descriptor)
        except OSError:
            self.release()
            raise StoreLocked(
                f"another process serves {database}; stop it first, or use PostgreSQL, "
                "which several processes can serve"
            ) from None

    def release(self) -> None:
        """Release the lock; a second call does nothing."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)

else:
    import fcntl

    def _lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
