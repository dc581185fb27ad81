"""Statements that the two databases spell differently."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Table
from sqlalchemy.dialects import postgresql, sqlite


def insert_unless_there(
    connection: Connection, table: Table, values: dict[str, Any], key: Sequence[str]
) -> bool:
    """Insert a row unless one with the same ``key`` columns exists; say whether it was inserted.

    A concurrent insert of the same key is waited for. The transaction stays usable either way.
    """
    build = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    statement = build(table).values(**values).on_conflict_do_nothing(index_elements=list(key))
    # SQLAlchemy keeps the count of an INSERT only when asked to.
    options = {"preserve_rowcount": True}
    return connection.execute(statement.inline(), execution_options=options).rowcount == 1
