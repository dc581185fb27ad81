"""An SQLite file with all tables and no rows: migrated once a process, and copied in a millisecond.

A new coordinator of a test starts on such a copy, since the migrations take 0.1 s of CPU.
"""

import functools
from pathlib import Path
from tempfile import TemporaryDirectory

from fedclust_service.store import migrate


@functools.cache
def _migrated() -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "template.db"
        migrate.upgrade(f"sqlite:///{path}")
        return path.read_bytes()


def create_sqlite(folder: Path) -> str:
    """Make a migrated file in a folder, which is made if missing, and return its address."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / "fedclust.db"
    path.write_bytes(_migrated())
    return f"sqlite:///{path}"
