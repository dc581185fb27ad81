"""Inserts for both databases, rows joined from several tables, damaged rows."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import structlog
from sqlalchemy import Column, Connection, Executable, Label, Table
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.elements import NamedColumn

from fedclust_service.store.errors import is_unreadable

log = structlog.get_logger(__name__)
T = TypeVar("T")
#: One table's columns of a row, by name.
Row: TypeAlias = Mapping[Any, Any]


def insert_unless_there(
    connection: Connection, table: Table, values: dict[str, Any], key: Sequence[str]
) -> bool:
    """Insert a row unless one with the same ``key`` columns exists; return whether it did.

    It waits for a concurrent insert of the same key. The transaction stays usable either way.
    """
    statement = _insert(connection.dialect.name, table, tuple(key))
    return connection.execute(statement, values).rowcount == 1


@functools.cache
def _insert(dialect: str, table: Table, key: tuple[str, ...]) -> Executable:
    build = postgresql.insert if dialect == "postgresql" else sqlite.insert
    statement = build(table).on_conflict_do_nothing(index_elements=list(key)).inline()
    # SQLAlchemy keeps the row count of an INSERT only with this option.
    return statement.execution_options(preserve_rowcount=True)


def names(columns: Iterable[NamedColumn[Any]]) -> tuple[str, ...]:
    """Return the names of the columns, for `split`."""
    return tuple(column.name for column in columns)


def labelled(columns: Iterable[NamedColumn[Any]]) -> list[Label[Any]]:
    """Return the columns of a joined table under names that are unique in the query."""
    return [
        column.label(f"{column.table.name}__{column.name}")
        if isinstance(column, Column)
        else column.label(None)
        for column in columns
    ]


def split(row: Sequence[Any], *parts: tuple[str, ...]) -> list[Row]:
    """Split a joined row into the columns named in each of ``parts``, in the selected order."""
    found: list[Row] = []
    start = 0
    for part in parts:
        found.append(dict(zip(part, row[start : start + len(part)], strict=True)))
        start += len(part)
    return found


def readable(kind: str, ids: Iterable[int], get: Callable[[int], T | None]) -> list[T]:
    """Read rows one by one and leave out damaged ones, so that the other rows stay usable."""
    found: list[T] = []
    for each in ids:
        try:
            row = get(each)
        except (ValueError, TypeError, DBAPIError) as error:
            if not is_unreadable(error):
                raise
            log.error("row_unreadable", kind=kind, id=each, error=type(error).__name__)
            continue
        if row is not None:
            found.append(row)
    return found
