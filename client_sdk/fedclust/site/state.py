"""A site's lasting state: one SQLite database, shared by all its coordinators and sessions.

::

    <state directory>/   FEDCLUST_STATE_DIR, or the platform's directory for a user's state
        state.sqlite3    groups, journal, ledger, data sources, the agent's list
        site.toml        the settings, which people write (site.settings)
        running/         locks of running sessions, of the agent and of making the database

What is written in one :meth:`SiteState.write` is stored whole or not at all, also after a crash or
a loss of power. Writers wait for one another. Stored documents carry a checksum, lines of the
ledger are chained: damage is found where it is read, and nothing is made in its place.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import secrets
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from fedclust.durable_files import FileLock, LockHeld, private_directory, reason, sync_directory
from fedclust.wire.errors import StateDamaged, StateError, StateLocked, UsageError

RESTORE: Final = "Restore the state from a backup (fedclust restore --from FILE)"
_NAME = "state.sqlite3"
#: The first bytes of "fedclust" mark the file as ours, the format says which tables it has.
_APPLICATION, _FORMAT = int.from_bytes(b"fedc"), 1
#: Another process may be storing the groups of a large site.
_PATIENCE_S = 600.0
_NETWORK = frozenset(
    {"afs", "beegfs", "ceph", "cifs", "davfs", "fuse.ceph", "fuse.cifs", "fuse.davfs"}
    | {"fuse.glusterfs", "fuse.rclone", "fuse.s3fs", "fuse.sshfs", "glusterfs", "gpfs", "lustre"}
    | {"ncpfs", "nfs", "nfs4", "smb2", "smb3", "smbfs", "vboxsf"}
)
T = TypeVar("T")


class _Open(threading.local):
    """This thread's connections by path of the database: that of the innermost block of its kind.

    A kept one has the identity of its file, which is replaced when a state is restored.
    """

    def __init__(self) -> None:
        self.kept: dict[Path, tuple[sqlite3.Connection, tuple[int, int]]] = {}
        self.reading: dict[Path, sqlite3.Connection] = {}
        self.writing: dict[Path, sqlite3.Connection] = {}


_OPEN = _Open()


class SiteState:
    """The database in a state directory; the first writer makes it.

    Parameters
    ----------
    directory : path, optional
        By default :func:`state_directory`.
    patience_s : float
        How long to wait for another writer.
    name : str
        Of the file.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        patience_s: float = _PATIENCE_S,
        name: str = _NAME,
    ) -> None:
        self.directory = Path(directory) if directory else state_directory()
        self.path = self.directory / name
        self._patience_s = patience_s

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection that sees the state of one moment, whatever others write meanwhile.

        A block within another one of the same thread belongs to that one. Otherwise the state would
        look damaged if another process writes between the two.

        Raises
        ------
        StateError
            The database cannot be read; StateDamaged if it is not what was written.
        """
        if found := _OPEN.writing.get(self.path) or _OPEN.reading.get(self.path):
            yield found
            return
        with self.errors(), self._opened() as connection:
            connection.execute("BEGIN")
            _OPEN.reading[self.path] = connection
            try:
                yield connection
            finally:
                del _OPEN.reading[self.path]

    def rows(self, statement: str, values: Any = ()) -> list[Any]:
        """Return the rows of a query, within a block of :meth:`read` or by itself.

        Raises
        ------
        StateError
            As :meth:`read`.
        """
        with self.read() as connection:
            return connection.execute(statement, values).fetchall()

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection; all that is written with it is stored when the block ends.

        Nothing is stored if the block raises an error. A block within another one of the same
        thread belongs to that one.

        Raises
        ------
        StateError
            As :meth:`read`; StateLocked if another process writes for too long.
        """
        if writing := _OPEN.writing.get(self.path):
            yield writing
            return
        with self.errors(), self._opened(make=True) as connection:
            connection.execute("BEGIN IMMEDIATE")
            _OPEN.writing[self.path] = connection
            try:
                yield connection
            finally:
                del _OPEN.writing[self.path]
            connection.execute("COMMIT")

    @contextmanager
    def kept_open(self) -> Iterator[None]:
        """Keep the database open, if there is one: this thread's blocks then share a connection.

        When its last connection is closed, SQLite copies the log into the database and removes it.
        """
        # Found before the file is opened. If another process replaces the file, the two differ, and
        # the connection is not used.
        identity = self._identity()
        if identity is None or self.path in _OPEN.kept:
            yield
            return
        with self.errors():
            self.refuse_unusable()
            connection = self._connect()
        with closing(connection):
            _OPEN.kept[self.path] = connection, identity
            try:
                yield
            finally:
                del _OPEN.kept[self.path]

    def lock(self, *names: str) -> FileLock:
        """Return the lock of something that runs for long, such as a session or the agent.

        Raises
        ------
        StateLocked
            Another process holds it.
        """
        digest = hashlib.sha256("\n".join(names).encode()).hexdigest()[:32]
        with self.errors():
            lock = self._file_lock(digest)
            lock.acquire()
        return lock

    def _file_lock(self, name: str) -> FileLock:
        private_directory(self.directory / "running")
        return FileLock(self.directory / "running" / f"{name}.lock")

    def secret(self) -> bytes:
        """Return the site's own secret, with which persons' ids are hashed; made once."""
        with self.read() if self.path.exists() else self.write():
            found = self.rows("SELECT content FROM documents WHERE name = 'key'")
        if not found:
            raise self.damaged("the site's key is missing")
        return self.unseal(found[0][0])

    def check(self) -> None:
        """Read the whole database once; StateDamaged if its pages do not fit together."""
        ((said,),) = self.rows("PRAGMA quick_check(1)")
        if said != "ok":
            raise self.damaged(str(said))

    def damaged(self, what: str) -> StateDamaged:
        """Return the error for contents that are not what was written."""
        return StateDamaged(f"{self.path} is damaged: {what}. {RESTORE}", what)

    def unseal(self, content: bytes) -> bytes:
        """Return what was given to :func:`seal`; StateDamaged where a byte differs."""
        digest, data = content[:32], content[32:]
        if hashlib.sha256(data).digest() != digest:
            raise self.damaged("a checksum does not match")
        return data

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turn errors of SQLite and of files in the state directory into StateError."""
        try:
            yield
        except sqlite3.Error as error:
            raise self._state_error(error) from None
        except LockHeld as error:
            raise StateLocked(f"another process holds {error}; try again") from None
        except OSError as error:
            where = Path(error.filename or "")
            if not error.filename or not (
                where.is_relative_to(self.directory) or self.directory.is_relative_to(where)
            ):
                raise  # An error of another file, or of none.
            raise StateError(f"{where}: {reason(error)}. {_AGAIN}") from None

    # --- the file ---------------------------------------------------------------------------------

    @contextmanager
    def _opened(self, *, make: bool = False) -> Iterator[sqlite3.Connection]:
        """Yield the connection that is kept open, or another one; end its transaction."""
        if kept := self._kept():
            try:
                yield kept
            finally:
                kept.rollback()
            return
        self.refuse_unusable()
        if make:
            self._make()
        with closing(self._connect() if self.path.exists() else _empty()) as connection:
            yield connection

    def _kept(self) -> sqlite3.Connection | None:
        """Return the connection that is kept open if it is idle, and its file still the state's."""
        connection, identity = _OPEN.kept.get(self.path, (None, None))
        if connection is None or connection.in_transaction or identity != self._identity():
            return None
        return connection

    def _identity(self) -> tuple[int, int] | None:
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=self._patience_s, isolation_level=None)
        try:
            connection.execute("PRAGMA synchronous = FULL")
            (application,) = connection.execute("PRAGMA application_id").fetchone()
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if application != _APPLICATION:
                raise self.damaged("its start is lost, or fedclust did not write it")
            if version != _FORMAT:
                raise StateError(
                    f"{self.path} has format {version}, which this version of fedclust does not "
                    "know: pip install --upgrade fedclust"
                )
        except BaseException:
            connection.close()
            raise
        return connection

    def _make(self) -> None:
        """Make the database with its key, unless it is there."""
        if self.path.exists():
            return
        private_directory(self.directory)
        with self.draft() as draft:
            with closing(sqlite3.connect(draft.path, isolation_level=None)) as connection:
                connection.executescript(_tables())
                connection.execute(
                    "INSERT INTO documents VALUES ('key', ?)", (seal(secrets.token_bytes(32)),)
                )
                connection.execute("PRAGMA journal_mode = WAL")
            with contextlib.suppress(StateLocked):  # Another process was first.
                draft.become(self)

    @contextmanager
    def draft(self) -> Iterator[SiteState]:
        """Yield an empty, private file in the same directory, and remove it at the end."""
        draft = SiteState(self.directory, name=f"{_NAME}.{secrets.token_hex(4)}")
        try:
            with self.errors():
                os.close(os.open(draft.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            yield draft
        finally:
            for left in draft.files:
                left.unlink(missing_ok=True)

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that SQLite may use for this database."""
        ends = ("", "-wal", "-shm", "-journal")
        return tuple(self.path.with_name(f"{self.path.name}{end}") for end in ends)

    def become(self, state: SiteState) -> None:
        """Rename this closed database to that of ``state``; StateLocked if that one exists."""
        with state.errors(), self._file_lock("make"):
            if state.path.exists():
                raise StateLocked(f"another process has made {state.path}")
            self.path.replace(state.path)
            sync_directory(state.directory)

    def refuse_unusable(self) -> None:
        """Refuse a network file system, and a log without its database."""
        if kind := network_file_system(self.directory):
            raise StateError(
                f"{self.directory} is on a network file system ({kind}), on which a crash can "
                "damage the state. Move the directory to a local disk, and name it in "
                "FEDCLUST_STATE_DIR"
            )
        _, log, _, journal = self.files
        # In this order: another process may be making the database, and then its log.
        left = next((path for path in (log, journal) if path.exists()), None)
        if left is not None and not self.path.exists():
            raise StateError(
                f"{self.path} is missing, and its log {left.name} may hold what was stored last. "
                "Put both back together. If the database is lost, move all files whose names begin "
                f"with {self.path.name} away, and restore a backup (fedclust restore --from FILE)"
            )

    def _state_error(self, error: sqlite3.Error) -> Exception:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return StateLocked(
                f"another process has been writing to {self.path} for {self._patience_s:g} s; "
                "try again when it has ended"
            )
        lost = str(error).startswith("no such table")
        if lost or code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return self.damaged(str(error))
        if code == sqlite3.SQLITE_FULL:
            return StateError(f"{self.path}: the disk is full. {_AGAIN}")
        if code in _NOT_USABLE:
            return StateError(f"{self.path} cannot be used: {error}. {_AGAIN}")
        return error  # A mistake in this program.


_AGAIN: Final = "Fix this and run the same command again: it resumes where it stopped"
_NOT_USABLE = frozenset(
    {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_PERM}
    | {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_AUTH, sqlite3.SQLITE_PROTOCOL}
)


class StateDocument(Generic[T]):
    """A value that is stored as a whole, such as the list of data sources.

    Parameters
    ----------
    state : SiteState
    name : str
    kind : type
        A model, or a mapping of models. A document that was never written counts as one with the
        default values, or an empty one.
    """

    def __init__(self, state: SiteState, name: str, kind: type[T]) -> None:
        self.state, self._name, self._kind = state, name, kind
        self._json = TypeAdapter(kind)

    def read(self) -> T:
        """Return the document.

        Raises
        ------
        StateError
        """
        found = self.state.rows("SELECT content FROM documents WHERE name = ?", (self._name,))
        if not found:
            return self._kind()
        try:
            return self._json.validate_json(self.state.unseal(found[0][0]))
        except ValidationError:
            raise self.state.damaged(f"another version of fedclust wrote {self._name!r}") from None

    def update(self, change: Callable[[T], T]) -> None:
        """Replace the document by what ``change`` makes of it; nobody else writes meanwhile.

        Raises
        ------
        StateError
        """
        with self.state.write() as connection:
            content = seal(self._json.dump_json(change(self.read())))
            connection.execute("REPLACE INTO documents VALUES (?, ?)", (self._name, content))


def state_directory() -> Path:
    """Return FEDCLUST_STATE_DIR, or fedclust's part of this platform's state directory.

    All coordinators and site names of an account share it: a person has the same group at each.
    """
    if given := os.environ.get("FEDCLUST_STATE_DIR"):
        return Path(given)
    if given := os.environ.get("LOCALAPPDATA" if sys.platform == "win32" else "XDG_STATE_HOME"):
        return Path(given) / "fedclust"
    try:
        home = Path.home()
    except RuntimeError:
        raise UsageError(
            "this user has no home directory to keep state in: name a lasting directory with "
            "FEDCLUST_STATE_DIR or state_dir="
        ) from None
    if sys.platform == "win32":
        return home / "AppData" / "Local" / "fedclust"
    if sys.platform == "darwin":
        return home / "Library" / "Application Support" / "fedclust"
    return home / ".local" / "state" / "fedclust"


def seal(data: bytes) -> bytes:
    """Return ``data`` after its SHA-256."""
    return hashlib.sha256(data).digest() + data


def _tables() -> str:
    """Return what makes the tables of an empty database."""
    marks = f"PRAGMA application_id = {_APPLICATION}; PRAGMA user_version = {_FORMAT};\n"
    return marks + files(__package__).joinpath("state.sql").read_text("utf-8")


def _empty() -> sqlite3.Connection:
    """Return what a state directory holds before anything is written there."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.executescript(_tables())
    return connection


@functools.lru_cache
def network_file_system(directory: Path) -> str | None:
    """Return the kind of a network file system that holds ``directory``; None for a local disk.

    Other platforms than Linux and Windows do not say it.
    """
    if sys.platform == "win32":
        import ctypes

        remote = 4
        found = ctypes.windll.kernel32.GetDriveTypeW(f"{directory.absolute().anchor}")
        return "a network drive" if found == remote else None
    mounts = Path("/proc/self/mounts")
    if not mounts.exists():
        return None
    place, best, kind = directory.absolute().resolve(), Path("/"), ""
    for line in mounts.read_text(errors="replace").splitlines():
        _, target, found, *_ = line.split(" ")
        mounted = Path(target.encode().decode("unicode_escape", errors="replace"))
        if place.is_relative_to(mounted) and len(mounted.parts) >= len(best.parts):
            best, kind = mounted, found
    return kind if kind in _NETWORK else None
