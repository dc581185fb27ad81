"""The health of a store's database: damage, failed writes, the check of an SQLite file."""

import contextlib
import os
import shutil
import sqlite3
from pathlib import Path

import structlog

from fedclust_service.background import BackgroundThread
from fedclust_service.store.errors import DatabaseDamaged, StoreFault, sqlite_fault, translate

log = structlog.get_logger(__name__)
# Of the format of the log: https://sqlite.org/fileformat2.html#the_write_ahead_log
_LOG_HEADER, _FRAME_HEADER = 32, 24
#: A disk with fewer bytes is full: the log grows to so many before SQLite uses it again.
_LEAST_FREE = 4 * 2**20


class Health:
    """The faults of one store's database, an SQLite ``file`` or None. Threads may share it."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._identity = _identity(file)
        self._damaged = False
        #: Why the last write failed; None if it succeeded.
        self.failed_write: StoreFault | None = None
        self._check: FileCheck | None = None

    @property
    def faults(self) -> tuple[StoreFault, ...]:
        """Why the database cannot be served, the worst reason first."""
        self._is_there()
        found = []
        if self._damaged:
            found.append(StoreFault.DAMAGED)
        elif self._check is not None and self._check.is_alive():
            found.append(StoreFault.UNCHECKED)
        if self.failed_write is not None:
            found.append(self.failed_write)
        return tuple(found)

    def write_ended(self, fault: StoreFault | None = None) -> None:
        """Note that a write succeeded, or why it failed.

        On a full disk a small write may fit into the log, and the next larger one does not.
        """
        still_full = fault is None and self.failed_write is StoreFault.DISK_FULL and self._full()
        if not still_full and fault is not StoreFault.DAMAGED:
            self.failed_write = fault

    def _full(self) -> bool:
        return self._file is not None and shutil.disk_usage(self._file.parent).free < _LEAST_FREE

    def _is_there(self) -> bool:
        if there := _identity(self._file) == self._identity:
            return there
        self.damage("its file was moved, deleted or replaced")
        return False

    def damage(self, found: str) -> None:
        """Note permanently that the database is damaged; ``found`` contains no value of a row."""
        if not self._damaged:
            self._damaged = True
            log.error("database_damaged", found=found)

    def refuse_absent(self) -> None:
        """Raise DatabaseDamaged if another file, or none, is at the place of the database.

        Open connections would go on with a file that nobody finds after a restart, and a new one
        with what is there now.
        """
        if not self._is_there():
            raise DatabaseDamaged

    def refuse_damaged(self) -> None:
        """Raise DatabaseDamaged if the database is damaged: it is not written any more."""
        self.refuse_absent()
        if self._damaged:
            raise DatabaseDamaged

    def check(self, file: Path, wait_s: float) -> None:
        """Check an SQLite file; after ``wait_s`` the check continues in the background.

        DatabaseDamaged if it finds damage within that time.
        """
        kept = file.with_name(file.name + "-wal-damaged")
        if not kept.exists() and commits_lost(file):
            # SQLite removes the log with the last connection: the next start would see no fault.
            shutil.copy(file.with_name(file.name + "-wal"), kept)
        if kept.exists():
            self._damaged = True
            raise DatabaseDamaged(f"transactions in its write-ahead log, now {kept}, are lost")
        self._check = FileCheck(file, self)
        self._check.start()
        self._check.join(wait_s)
        self.refuse_damaged()

    def stop(self) -> None:
        """End a running check."""
        if self._check is not None:
            self._check.stop()


def _identity(file: Path | None) -> tuple[int, int] | None:
    """Return what tells the file at a path from another one; None if there is none."""
    if file is None:
        return None
    try:
        found = file.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def commits_lost(file: Path) -> int:
    """Return how many committed transactions follow damage in an SQLite file's write-ahead log.

    SQLite reads the log up to the first frame with a wrong checksum and silently drops the rest. A
    power cut can leave one unfinished transaction there. Two or more were acknowledged, because
    each is on disk before the next begins (``synchronous=FULL``).
    """
    path = file.with_name(file.name + "-wal")
    if not path.exists():
        return 0
    try:
        with contextlib.closing(sqlite3.connect(file)) as connection:
            _, readable, _ = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            (page,) = connection.execute("PRAGMA page_size").fetchone()
    except sqlite3.Error as error:
        raise translate(error, "check") from None
    lost, number, salt = 0, 0, None
    with path.open("rb") as frames:
        frames.seek(_LOG_HEADER)
        while len(head := frames.read(_FRAME_HEADER)) == _FRAME_HEADER:
            # Older frames at the end of the log have another salt.
            salt = salt or head[8:16]
            commits = head[4:8] != bytes(4)
            lost += commits and head[8:16] == salt and number >= readable
            number += 1
            frames.seek(page, os.SEEK_CUR)
    return lost if lost > 1 else 0


class FileCheck(BackgroundThread):
    """SQLite's integrity check in a thread: all pages, all rows, every index against its table.

    It takes up to twice as long as ``quick_check``, which leaves out the indices.
    """

    def __init__(self, file: Path, health: Health) -> None:
        super().__init__("fedclust-check")
        self._health = health
        self._connection = sqlite3.connect(file, check_same_thread=False)

    def stop(self) -> None:
        """Interrupt the check and wait for its end."""
        self.ask_to_stop()
        while self.is_alive():
            # Repeated, because between two statements there is nothing to interrupt.
            with contextlib.suppress(sqlite3.ProgrammingError):
                self._connection.interrupt()
            self.join(0.01)

    def run(self) -> None:
        """Run in the thread."""
        with contextlib.closing(self._connection) as connection:
            try:
                if not self._stopping.is_set():
                    (found,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
                    if found != "ok":
                        # SQLite names tables and gives numbers of pages and rows, no values.
                        self._health.damage(found)
            except sqlite3.Error as error:
                if sqlite_fault(error) is StoreFault.DISK_FULL:
                    self._health.write_ended(StoreFault.DISK_FULL)
                elif not self._stopping.is_set():
                    self._health.damage(f"the check ended with {type(error).__name__}")
