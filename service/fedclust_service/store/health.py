"""What a store knows of its database's health: damage, failed writes, the check of a whole file."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import threading
from pathlib import Path

import structlog

from fedclust_service.store.errors import DatabaseDamaged, StoreFault

log = structlog.get_logger(__name__)
# Of the format of the log: https://sqlite.org/fileformat2.html#the_write_ahead_log
_LOG_HEADER, _FRAME_HEADER = 32, 24


class Health:
    """The faults of one store's database. Safe to share between threads."""

    def __init__(self) -> None:
        self._damaged = False
        self._failed_write: StoreFault | None = None
        self._check: FileCheck | None = None

    @property
    def faults(self) -> tuple[StoreFault, ...]:
        """What keeps the database from being served, the worst first."""
        found = []
        if self._damaged:
            found.append(StoreFault.DAMAGED)
        elif self._check is not None and self._check.running:
            found.append(StoreFault.UNCHECKED)
        if self._failed_write is not None:
            found.append(self._failed_write)
        return tuple(found)

    @property
    def failed_write(self) -> StoreFault | None:
        """Why the last write failed; None once one has succeeded."""
        return self._failed_write

    def write_ended(self, fault: StoreFault | None = None) -> None:
        """Note whether a write succeeded, or why it did not."""
        if fault is not StoreFault.DAMAGED:
            self._failed_write = fault

    def damage(self, found: str) -> None:
        """Note for good that the database is damaged; ``found`` names no value of a row."""
        if not self._damaged:
            self._damaged = True
            log.error("database_damaged", found=found)

    def refuse_damaged(self) -> None:
        """Raise DatabaseDamaged if the database is known to be: nothing more is written to it."""
        if self._damaged:
            raise DatabaseDamaged

    def check(self, file: Path, wait_s: float) -> None:
        """Check a SQLite file; after ``wait_s`` the check goes on beside the service.

        DatabaseDamaged when damage was found until then.
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
        """End a check that still runs."""
        if self._check is not None:
            self._check.stop()


def commits_lost(file: Path) -> int:
    """Return how many transactions stand behind damage in an SQLite file's write-ahead log.

    SQLite reads the log up to the first frame whose checksum is wrong, and drops what follows
    without a word. One transaction behind that may be what a power cut left unfinished. Each is on
    disk before the next begins (``synchronous=FULL``), so two or more have been acknowledged.
    """
    path = file.with_name(file.name + "-wal")
    if not path.exists():
        return 0
    with contextlib.closing(sqlite3.connect(file)) as connection:
        _, readable, _ = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        (page,) = connection.execute("PRAGMA page_size").fetchone()
    lost, number, salt = 0, 0, None
    with path.open("rb") as frames:
        frames.seek(_LOG_HEADER)
        while len(head := frames.read(_FRAME_HEADER)) == _FRAME_HEADER:
            # Frames of the log's earlier use, behind those of the present one, have other salts.
            salt = salt or head[8:16]
            commits = head[4:8] != bytes(4)
            lost += commits and head[8:16] == salt and number >= readable
            number += 1
            frames.seek(page, os.SEEK_CUR)
    return lost if lost > 1 else 0


class FileCheck:
    """SQLite's integrity check in a thread: all pages, all rows, every index against its table.

    It takes up to twice as long as ``quick_check``, which leaves indices out.
    """

    def __init__(self, file: Path, health: Health) -> None:
        self._health = health
        self._stopping = threading.Event()
        self._connection = sqlite3.connect(file, check_same_thread=False)
        self._thread = threading.Thread(target=self._run, name="fedclust-check", daemon=True)

    @property
    def running(self) -> bool:
        """Whether it has not come to an end."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def join(self, timeout_s: float) -> None:
        """Wait for its end."""
        self._thread.join(timeout_s)

    def stop(self) -> None:
        """Cut it short and wait for its end."""
        self._stopping.set()
        while self._thread.is_alive():
            # Between two statements there is nothing to interrupt: told again until it has ended.
            with contextlib.suppress(sqlite3.ProgrammingError):
                self._connection.interrupt()
            self._thread.join(0.01)

    def _run(self) -> None:
        with contextlib.closing(self._connection) as connection:
            try:
                if not self._stopping.is_set():
                    (found,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
                    if found != "ok":
                        # Names of tables, numbers of pages and rows.
                        self._health.damage(found)
            except sqlite3.Error as error:
                if not self._stopping.is_set():
                    self._health.damage(f"the check ended with {type(error).__name__}")
