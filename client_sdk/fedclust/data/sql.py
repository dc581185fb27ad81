"""A query as a source of rows, run at the site by SQLAlchemy."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from fedclust.data.chunks import Chunk, Origin, Reader, extra_missing, reading, record_chunk
from fedclust.data.secret_files import URL_VARIABLE, read_address
from fedclust.wire.errors import DataError

#: Rows that a streaming driver may fetch ahead.
_BUFFER: Final = 10_000
#: The start of a statement that reads, after comments and brackets.
_READS: Final = re.compile(
    r"(?:\s|\(|--[^\n]*(?:\n|$)|/\*(?:(?!\*/).)*\*/)*(?:SELECT|WITH|VALUES|TABLE)\b",
    re.IGNORECASE | re.DOTALL,
)
#: What PostgreSQL and SQLite say of a table or column that is not there.
_UNKNOWN: Final = re.compile(
    r"(?:relation \"|column \"?|no such (?:table|column): )"
    r"([A-Za-z_][\w.]*)\"?(?: does not exist|$)",
    re.MULTILINE,
)
_EXAMPLE: Final = "postgresql+psycopg://reader:PASSWORD@host/database"


@dataclass(frozen=True)
class SqlQuery:
    """A query as a source of rows.

    Parameters
    ----------
    query : str
        One SELECT, with an ORDER BY without ties: a resumed session needs the same rows in the
        same order.
    url : str, optional
        The database's address as SQLAlchemy writes it; by default FEDCLUST_SQL_URL. Never shown.
    engine : sqlalchemy.Engine, optional
        Instead of an address.
    """

    query: str
    url: str | None = field(default=None, repr=False)
    engine: Any = field(default=None, repr=False)
    name: str = "the query"

    @classmethod
    def read(cls, path: Path, url_file: str | None) -> SqlQuery:
        """Read a query from a file, and the database's address from ``url_file``, if given."""
        return cls(
            _contents(path), None if url_file is None else read_address(url_file), name=path.name
        )


def _contents(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DataError(path.name, "unreadable", error.strerror or "it cannot be read") from None
    except UnicodeDecodeError:
        raise DataError(path.name, "encoding", "a query is text in UTF-8") from None


class SqlReader(Reader):
    """The rows of a query, fetched a chunk at a time in a transaction that is rolled back.

    No message repeats the address, or the database's own message, which may contain values.

    Raises
    ------
    DataError
        SQLAlchemy or the database's driver is not installed; the database cannot be reached or
        refuses the query.
    """

    def __init__(self, source: SqlQuery) -> None:
        self.origin, self._query = Origin(source.name), source.query.strip().rstrip(";")
        with reading(self.origin, *extra_missing("a query", "sql")):
            import sqlalchemy
        self._sql: Any = sqlalchemy
        self._engine = source.engine
        if not self._query:
            raise self.origin.fault("sql", "there is no query in it")
        if _READS.match(self._query) is None:
            # A rollback is not enough: some databases commit at DROP or CREATE.
            message = "this is no query, and was not run: it has to begin with SELECT or WITH"
            if self._query.upper().startswith("SET"):
                message += ". In place of SET search_path write schema.table in the query, or add "
                message += "?options=-csearch_path%3DSCHEMA to the address"
            raise self.origin.fault("sql", message)
        if self._engine is None:
            self._engine = self._connected(source.url or os.environ.get(URL_VARIABLE))
        self._begun: ExitStack | None = ExitStack()
        self._answer = self._begun.enter_context(self._result())
        self.header: Sequence[str] = [name.strip() for name in map(str, self._answer.keys())]

    def close(self) -> None:
        """Release the connection if the rows will not be read."""
        begun, self._begun = self._begun, None
        if begun is not None:
            begun.close()

    def chunks(self, columns: Sequence[str], text: Sequence[str], rows: int) -> Iterator[Chunk]:
        """Yield chunks of ``rows`` rows; the last may be shorter."""
        places = self.origin.columns(self.header, columns, text)
        # The first pass uses the result from which the columns were read.
        begun, self._begun = self._begun, None
        with ExitStack() if begun is None else begun as stack:
            result = stack.enter_context(self._result()) if begun is None else self._answer
            for part in result.partitions(rows):
                yield record_chunk(part, places, columns, text)

    def _connected(self, url: str | None) -> Any:
        if not url:
            message = f"no database: set {URL_VARIABLE}, or give a file with its address "
            message += f"(sql_url_file=, --sql-url-file); {_EXAMPLE}"
            raise self.origin.fault("sql", message)
        try:
            engine = self._sql.create_engine(url, poolclass=self._sql.pool.NullPool)
        except ImportError as error:
            # The error names the driver that the address requires.
            message = f"the database's driver is not installed: pip install {error.name}"
            raise self.origin.fault("extra-missing", message) from None
        except (self._sql.exc.SQLAlchemyError, ValueError, TypeError):
            message = f"the database's address is none that SQLAlchemy knows; like {_EXAMPLE}"
            raise self.origin.fault("sql", message) from None
        file = engine.url.database or ":memory:"
        named = engine.dialect.name == "sqlite" and not file.startswith((":", "file:"))
        if named and not Path(file).is_file():
            # SQLite would create an empty file for a misspelt name.
            raise self.origin.fault("sql", "the address names a SQLite file that is not there")
        return engine

    @contextmanager
    def _result(self) -> Iterator[Any]:
        """Run the query; any change is rolled back when the connection ends."""
        try:
            begun = self._engine.connect()
        except Exception as error:
            # Each driver raises errors of its own.
            message = f"{self._describe_error(error, 'be reached')}; {_why_unreached(error)}"
            raise self.origin.fault("sql", message) from None
        try:
            with begun as connection, self._reading_only(connection):
                connection = connection.execution_options(
                    stream_results=True, max_row_buffer=_BUFFER, no_parameters=True
                )
                result = connection.exec_driver_sql(self._query)
                if not result.returns_rows:
                    raise self.origin.fault("sql", "this is no query: it returns no rows")
                yield result
                connection.rollback()
        except self._sql.exc.SQLAlchemyError as error:
            why = _why_not_run(error, self._query)
            message = f"{self._describe_error(error, 'run the query')}; {why}"
            raise self.origin.fault("sql", message) from None

    @contextmanager
    def _reading_only(self, connection: Any) -> Iterator[None]:
        """Make SQLite refuse writes: its driver begins no transaction for WITH ... DELETE."""
        if self._engine.dialect.name != "sqlite":
            yield
            return
        cursor = connection.connection.cursor()
        cursor.execute("PRAGMA query_only = ON")
        try:
            yield
        finally:
            cursor.execute("PRAGMA query_only = OFF")
            cursor.close()

    @staticmethod
    def _describe_error(error: Exception, what: str) -> str:
        cause = getattr(error, "orig", None) or error
        state = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
        why = type(cause).__name__ + (f", SQLSTATE {state}" if state else "")
        return f"the database could not {what}: {why}"


def _why_unreached(error: Exception) -> str:
    """Return what to do about a failed connection; nothing of the driver's text is repeated."""
    text = str(getattr(error, "orig", None) or error).casefold()
    if "authentication" in text or "role " in text:
        return (
            "it refuses user or password. In the address, write @ as %40, : as %3A, / as %2F and "
            "% as %25 within them"
        )
    return "is the server up; are host, port, user, password and database in the address right?"


def _why_not_run(error: Exception, query: str) -> str:
    """Return what to do about a refused query; of the driver's text only a name in the query."""
    text = str(getattr(error, "orig", None) or error)
    unknown = _UNKNOWN.search(text)
    if unknown is not None and re.search(rf"\b{re.escape(unknown[1])}\b", query):
        return f"it knows no table or column {unknown[1]!r} (in another schema: schema.table)"
    if "one statement" in text or "multiple commands" in text or ";" in query:
        return "a query is one statement: does a semicolon separate two?"
    return "run it in the database's own client, which says why"
