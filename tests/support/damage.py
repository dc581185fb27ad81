"""Damage to what is stored: bytes changed behind the program's back."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from sqlalchemy import select, update

from fedclust_service.store import Store, tables


def change_stored(
    store: Store, table: str, column: str, change: Callable[[Any], Any], **where: Any
) -> None:
    """Put something else in the place of one row's stored value."""
    rows = tables.metadata.tables[table]
    chosen = [rows.c[name] == value for name, value in where.items()]
    with store._engines.write.begin() as connection:
        stored = connection.execute(select(rows.c[column]).where(*chosen)).scalar_one()
        changed = update(rows).where(*chosen).values({column: change(stored)})
        assert connection.execute(changed).rowcount == 1


def two_bytes_changed(stored: bytes) -> bytes:
    """Change the two in front of the last 1.0: it decodes, to another number."""
    at = bytes(stored).rindex(b"\xf0\x3f")
    damaged = bytearray(stored)
    damaged[at - 1] ^= 0xFF
    damaged[at - 2] ^= 0x10
    return bytes(damaged)


def root_page(path: Path, tree: str) -> int:
    """Return where the first page of a table or an index begins in an SQLite file, in bytes."""
    with closing(sqlite3.connect(path)) as connection:
        query = "SELECT rootpage FROM sqlite_master WHERE name = ?"
        (page,) = connection.execute(query, (tree,)).fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    return int((page - 1) * size)


def overwrite(path: Path, at: int, data: bytes) -> None:
    """Write over a file's bytes in place."""
    with path.open("rb+") as file:
        file.seek(at)
        file.write(data)
