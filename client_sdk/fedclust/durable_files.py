"""Durable, private files, and locks.

A file is complete or absent, survives a loss of power once a function here has returned, and can
be read by its owner alone (0600 and 0700 on POSIX; on Windows the directory's access list decides).
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedclust.wire.errors import writing

#: Windows has no quotas with a number of their own.
_FULL = frozenset({errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)})


def is_disk_full(error: OSError) -> bool:
    """Whether there is no room left, on the disk or within this account's quota."""
    return error.errno in _FULL


def reason(error: OSError) -> str:
    """Return in words why the operating system refused."""
    return "the disk is full" if is_disk_full(error) else error.strerror or type(error).__name__


class LockHeld(RuntimeError):
    """Another process holds the lock."""


#: The error numbers with which platforms report a held lock.
_HELD = frozenset({errno.EACCES, errno.EAGAIN, errno.EDEADLK, errno.EWOULDBLOCK})


@contextmanager
def _naming(path: str | Path) -> Iterator[None]:
    """Add the file to an OSError that does not name one, such as that of a full disk."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def private_directory(path: Path) -> None:
    """Create a directory and its missing parents, readable by the owner alone."""
    with _naming(path):
        if path.exists():
            return
        for part in reversed([path, *path.parents]):
            if not part.exists():
                part.mkdir(mode=0o700, exist_ok=True)
                sync_directory(part.parent)


def sync(descriptor: int) -> None:
    """Wait until written data is on the disk. Every durable write of the SDK ends here."""
    os.fsync(descriptor)


def sync_directory(path: Path) -> None:
    """Make a rename or a new file in ``path`` durable; Windows does this by itself."""
    if sys.platform != "win32":
        descriptor = os.open(path, os.O_RDONLY)
        try:
            sync(descriptor)
        finally:
            os.close(descriptor)


def write_atomically(path: Path, data: bytes) -> None:
    """Replace ``path`` by ``data``: a reader or a crash sees the old file or the new one."""
    with _naming(path):
        draft = path.with_name(f"{path.name}.new")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _BINARY, 0o600)
        try:
            _write_all(descriptor, data)
            sync(descriptor)
        finally:
            os.close(descriptor)
        draft.replace(path)
        sync_directory(path.parent)


def write_file(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file that somebody named; UsageError where it cannot be written."""
    with writing(path):
        write_atomically(Path(path), content)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


class FileLock:
    """A kernel lock on a file: it ends with its process, also after ``kill -9``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def acquire(self, *, wait: bool = False) -> None:
        """Take the lock; LockHeld if another process has it and ``wait`` is false."""
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | _BINARY, 0o600)
        try:
            _lock(descriptor, wait)
        except OSError as error:
            os.close(descriptor)
            if error.errno in _HELD:
                raise LockHeld(str(self.path)) from None
            # Such as a file system without locks, where two processes could run at once.
            error.filename = str(self.path)
            raise
        self._descriptor = descriptor

    def release(self) -> None:
        """Release the lock, if it is held."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)

    def __enter__(self) -> FileLock:
        self.acquire(wait=True)
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


if sys.platform == "win32":
    import msvcrt

    _BINARY = os.O_BINARY

    def _lock(descriptor: int, wait: bool) -> None:
        # LK_LOCK tries ten times, a second apart: long enough for a ledger line.
        msvcrt.locking(descriptor, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)

else:
    import fcntl

    _BINARY = 0

    def _lock(descriptor: int, wait: bool) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
