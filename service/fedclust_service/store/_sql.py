"""The base of all repositories: inserts for both databases, joined rows, damaged rows."""

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar, Generic, TypeVar

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    CursorResult,
    Executable,
    Insert,
    Select,
    Table,
    delete,
    func,
    insert,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql.elements import NamedColumn

S = TypeVar("S", bound=StrEnum)
T = TypeVar("T")


@dataclass
class Pending:
    """What a transaction leaves to the store, before and after its commit.

    Attributes
    ----------
    now : datetime
        When the transaction began: the time of everything that it writes.
    audit : list of dict
        The new entries of the audit trail, which are written together before the commit.
    touched : dict
        The sessions whose version was increased, each with its last version.
    scrubbed : bool
        Whether payloads were deleted.
    """

    now: datetime
    audit: list[dict[str, Any]] = field(default_factory=list)
    touched: dict[str, int] = field(default_factory=dict)
    scrubbed: bool = False


class Repository:
    """Runs statements on the connection of one transaction."""

    def __init__(self, connection: Connection, pending: Pending) -> None:
        self._connection = connection
        self._pending = pending

    @property
    def _sqlite(self) -> bool:
        return self._connection.dialect.name == "sqlite"

    def _all(self, query: Executable, **asked: Any) -> CursorResult[*tuple[Any, ...]]:
        return self._connection.execute(query, asked or None)

    def _one(self, make: Callable[..., T], query: Executable, **asked: Any) -> T | None:
        """Return what ``make`` makes of the columns of a row; None if there is none."""
        row = self._all(query, **asked).mappings().one_or_none()
        return None if row is None else make(**row)

    def _list(self, make: Callable[..., T], query: Executable, **asked: Any) -> list[T]:
        # All at once: a cursor that an error leaves half read keeps its snapshot in SQLite's pool.
        return [make(**row) for row in self._all(query, **asked).mappings().all()]

    def _changed(self, statement: Executable, **asked: Any) -> bool:
        """Run an UPDATE and return whether it changed one row."""
        return self._all(statement, **asked).rowcount == 1

    def _insert_unless_there(
        self, table: Table, values: Mapping[str, Any], key: tuple[str, ...]
    ) -> bool:
        """Insert a row unless one with the same ``key`` columns exists; return whether it did.

        It waits for a concurrent insert of the same key. The transaction stays usable either way.
        """
        statement = _insert_statement(self._connection.dialect.name, table, key)
        return self._connection.execute(statement, values).rowcount == 1

    def _insert(self, table: Table, values: Mapping[str, Any]) -> None:
        """Insert a row; StoreError if its key exists."""
        # Inline: SQLAlchemy does not read the new row's key.
        self._all(insert(table).inline(), **values)

    def _added(self, table: Table, values: Mapping[str, Any]) -> int:
        """Insert a row as `_insert` does, without the ``id`` in ``values``; return its new id."""
        given = {name: value for name, value in values.items() if name != "id"}
        return int(self._all(insert(table).returning(table.c.id), **given).scalar_one())

    def _by_state(self, state: Column[Any], kind: type[S]) -> dict[S, int]:
        """Return how many rows are in each state."""
        found = dict(self._all(select(state, func.count()).group_by(state)).all())
        return {each: found.get(each, 0) for each in kind}


class Ending(Repository):
    """Rows that are removed some time after they ended; ``ended`` is the column of that time."""

    ended: ClassVar[Column[Any]]

    def to_remove(self, before: datetime) -> bool:
        """Whether rows ended before a time."""
        return self._all(select(self.ended).where(self.ended < before).limit(1)).first() is not None

    def remove(self, before: datetime) -> None:
        """Remove the rows that ended before a time."""
        self._all(delete(self.ended.table).where(self.ended < before))


@functools.cache
def _insert_statement(dialect: str, table: Table, key: tuple[str, ...]) -> Insert:
    build = postgresql.insert if dialect == "postgresql" else sqlite.insert
    statement = build(table).on_conflict_do_nothing(index_elements=list(key)).inline()
    # SQLAlchemy keeps the row count of an INSERT only with this option.
    return statement.execution_options(preserve_rowcount=True)


def unindexed(column: ColumnElement[str]) -> ColumnElement[str]:
    """Return a column's value for a condition whose index is worse than another condition's.

    SQLite knows nothing of the rows: it would take any index that fits.
    """
    return column.concat("")


@dataclass(frozen=True)
class Part(Generic[T]):
    """A part of joined rows: the columns of one table, and what ``make`` makes of them."""

    make: Callable[..., T]
    columns: Sequence[NamedColumn[Any]]

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(column.name for column in self.columns)


def select_parts(*parts: Part[Any]) -> Select[Any]:
    """Select the columns of parts, for :func:`split`."""
    return select(*itertools.chain.from_iterable(part.columns for part in parts))


def split(row: Sequence[Any], *parts: Part[Any]) -> list[Any]:
    """Return what the parts of a joined row make, in their selected order.

    None for a part without a row: its first column, which is never null in a row, is null.
    """
    found: list[Any] = []
    values = iter(row)
    for part in parts:
        columns = dict(zip(part.names, values, strict=False))
        found.append(None if columns[part.names[0]] is None else part.make(**columns))
    return found
