"""Durable, private files: what the journal and the ledger are written with.

A file is there whole or not at all, survives a loss of power once a function here has returned,
and belongs to its owner alone (0600 and 0700 on POSIX; on Windows the directory's own access list
decides). Damage is found by a checksum, not guessed.
"""

from __future__ import annotations

import errno
import hashlib
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

_MAGIC = b"fedclust 1 "


class FileDamaged(ValueError):
    """A file's checksum does not match its contents; ``path`` names it."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(f"{path}: {what}")
        self.path = path


class LockHeld(RuntimeError):
    """Another process holds the lock."""


#: How the platforms say so.
_HELD = frozenset({errno.EACCES, errno.EAGAIN, errno.EDEADLK, errno.EWOULDBLOCK})


@contextmanager
def _naming(path: str | Path) -> Iterator[None]:
    """Let an OSError say which file it is about: that of a full disk does not."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def private_directory(path: Path) -> None:
    """Make a directory and its missing parents, readable by the owner alone."""
    with _naming(path):
        if path.exists():
            return
        for part in reversed([path, *path.parents]):
            if not part.exists():
                part.mkdir(mode=0o700, exist_ok=True)
                sync_directory(part.parent)


def sync(descriptor: int) -> None:
    """Wait until what was written is on the disk. Every durable write of the SDK ends here."""
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
    write_together({path: data})


def write_together(files: Mapping[Path, bytes]) -> None:
    """As :func:`write_atomically`, for several files: a directory is waited for once.

    Each is there whole or not at all. A crash may leave the first of them replaced and others not.
    """
    # As text: a path is put together anew each time that the system is asked about it.
    names = {os.fspath(path): data for path, data in files.items()}
    for name, data in names.items():
        with _naming(name):
            descriptor = os.open(
                f"{name}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _BINARY, 0o600
            )
            try:
                _write_all(descriptor, data)
                sync(descriptor)
            finally:
                os.close(descriptor)
    for name in names:
        with _naming(name):
            os.replace(f"{name}.new", name)  # noqa: PTH105  # as text
    for directory in {path.parent for path in files}:
        with _naming(directory):
            sync_directory(directory)


def append(path: Path, at: int, data: bytes) -> None:
    """Write ``data`` at byte ``at``, which becomes the file's end with it, durably."""
    with _naming(path):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | _BINARY, 0o600)
        try:
            os.ftruncate(descriptor, at)
            os.lseek(descriptor, at, os.SEEK_SET)
            _write_all(descriptor, data)
            sync(descriptor)
        finally:
            os.close(descriptor)
        if at == 0:
            sync_directory(path.parent)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def write_sealed(path: Path, data: bytes) -> None:
    """Write ``data`` atomically under a first line that holds its SHA-256."""
    seal_all({path: data})


def seal_all(files: Mapping[Path, bytes]) -> None:
    """As :func:`write_sealed`, for several files: see :func:`write_together`."""
    write_together({path: _sealed(data) for path, data in files.items()})


def _sealed(data: bytes) -> bytes:
    return _MAGIC + hashlib.sha256(data).hexdigest().encode() + b"\n" + data


def read_sealed(path: Path) -> bytes:
    """Read what :func:`write_sealed` wrote; FileDamaged where a byte differs."""
    head, separator, data = path.read_bytes().partition(b"\n")
    if not separator or not head.startswith(_MAGIC):
        raise FileDamaged(path, "this is not a file that fedclust wrote, or its start is lost")
    if head[len(_MAGIC) :] != hashlib.sha256(data).hexdigest().encode():
        raise FileDamaged(path, "the checksum does not match: the file was changed or cut")
    return data


class FileLock:
    """A lock on a file that ends with its process, however that ends.

    Kernel locks, not files that exist: nothing stays behind after ``kill -9``.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def acquire(self, *, wait: bool = False) -> None:
        """Take the lock; LockHeld where another holder has it and ``wait`` is false."""
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | _BINARY, 0o600)
        try:
            _lock(descriptor, wait)
        except OSError as error:
            os.close(descriptor)
            if error.errno in _HELD:
                raise LockHeld(str(self.path)) from None
            # A file system without locks, for one: two processes could not be told apart.
            error.filename = str(self.path)
            raise
        self._descriptor = descriptor

    def release(self) -> None:
        """Give the lock back; harmless where it is not held."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)

    def __enter__(self) -> FileLock:
        self.acquire(wait=True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
