"""What every reader yields, before a column's rules are applied."""

from __future__ import annotations

import itertools
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from numpy.typing import NDArray

from fedclust.schema.field_names import nearest_name
from fedclust.wire.errors import DataError

#: Markers of missing values, in any case, as people, R, pandas, spreadsheets, databases, SAS and
#: Stata write them.
MISSING = frozenset({"", "na", "n/a", "#n/a", "<na>", "nan", "null", "none", "."})

#: Among so many rows at the beginning of a file, its header is looked for.
FIRST_ROWS = 20

#: Errors of formulas, as spreadsheets write them. ``#N/A`` is a missing value instead.
SHEET_ERRORS = frozenset(
    {"#div/0!", "#value!", "#ref!", "#name?", "#num!", "#null!", "#spill!", "#calc!"}
)

#: A column of a chunk: an array of numbers or dates, or a list of cells.
Cells: TypeAlias = "NDArray[Any] | list[Any]"


class DataWarning(UserWarning):
    """Something about a site's rows that is allowed but probably a mistake."""


@dataclass(frozen=True)
class Origin:
    """Where rows come from, for messages.

    ``numbers`` are the numbers of the rows, if they do not count from 0: the lines of a CSV file,
    the rows of a spreadsheet. ``hint`` says what to do if no column has a name that is looked for.
    """

    source: str
    unit: Literal["line", "row"] = "row"
    numbers: Sequence[int] | None = None
    hint: str = ""

    def fault(
        self,
        rule: str,
        message: str,
        *,
        column: str | None = None,
        index: int | None = None,
    ) -> DataError:
        """Return the error for the row at ``index``. ``message`` must not contain a value."""
        row = index if index is None or self.numbers is None else self.numbers[index]
        return DataError(self.source, rule, message, column=column, row=row, unit=self.unit)

    def columns(
        self, header: Sequence[str], features: Sequence[str], text: Sequence[str] = ()
    ) -> dict[str, int]:
        """Return the position of each column; DataError for a missing or a repeated name."""
        wanted = [*features, *text]
        places = {name: place for place, name in enumerate(header) if name}
        twice = [name for name, count in Counter(header).items() if name and count > 1]
        missing = [name for name in wanted if name not in places]
        if missing:
            others = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
            why = "the session needs" if missing[0] in features else "rows or persons are named by"
            message = f"{why} this column and the header has none of that name{others}"
            if missing[0].casefold() in map(str.casefold, places):
                message += "; upper and lower case are different"
            if missing[0] in features:
                message += (
                    "; if it has another name here, say so in a mapping file (mapping=, "
                    "--mapping), which fedclust check --ask makes"
                )
            else:
                message += "; give the name that it has here"
                # If other columns are found, the header holds names and no values.
                known = places.keys() & set(wanted)
                near = nearest_name(missing[0], places) if known else None
                message += f", such as {near!r}" if near else ""
            if self.hint and not places.keys() & set(wanted):
                message += f"; {self.hint}"
            raise self.fault("missing-column", message, column=missing[0])
        # Only now it is certain that the message repeats a header and no record.
        if twice and wanted:
            raise self.fault("duplicate-column", "the header names it twice", column=twice[0])
        return {name: places[name] for name in wanted}


@dataclass(frozen=True)
class Chunk:
    """Consecutive rows of a source, by column.

    ``text`` are the columns that are kept as text, ``numbers`` as in :class:`Origin`. If the source
    is several files, ``part`` names the file and ``start`` is the index of the first row in it.
    """

    n: int
    cells: dict[str, Cells] = field(repr=False)
    text: dict[str, list[str]] = field(default_factory=dict, repr=False)
    numbers: Sequence[int] | None = None
    part: str | None = None
    start: int = 0


class Reader:
    """An open source: its columns are known, its rows are read by :meth:`chunks`.

    Attributes
    ----------
    origin : Origin
    header : sequence of str
        Names of the columns.
    textual : bool
        Whether numbers are written as text.
    named : bool
        Whether columns have names; those of an array are identified by their order.
    n_rows : int or None
        Number of rows; None if it is not known before they are read.
    """

    origin: Origin
    header: Sequence[str]
    textual = False
    named = True
    n_rows: int | None = None

    def first_records(self) -> list[tuple[int, Sequence[Any]]]:
        """Return the number and the cells of the header, and of the first rows below it.

        Empty for a source whose columns always have their names.
        """
        return []

    def chunks(self, columns: Sequence[str], text: Sequence[str], rows: int) -> Iterator[Chunk]:
        """Yield all rows, at most about ``rows`` at a time; each call starts from the first.

        Raises
        ------
        DataError
        """
        raise NotImplementedError

    def close(self) -> None:
        """Release what is held, if the rows will not be read."""


@contextmanager
def reading(origin: Origin, rule: str, message: str) -> Iterator[None]:
    """Turn what a library raises while it reads a file into a DataError.

    Its own message is not repeated: it may quote cells. A fault of the operating system is named.
    """
    try:
        yield
    except (DataError, MemoryError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.strerror:
            raise origin.fault("unreadable", error.strerror) from None
        raise origin.fault(rule, message) from None


def is_blank(cell: Any) -> bool:
    """Return whether a cell is empty."""
    return cell is None or (isinstance(cell, str) and not cell.strip())


def batches(
    numbered: Iterable[tuple[int, Sequence[Any]]], rows: int
) -> Iterator[tuple[list[Sequence[Any]], array[int]]]:
    """Yield records and their numbers, ``rows`` at a time; the last may be fewer."""
    remaining = iter(numbered)
    while batch := list(itertools.islice(remaining, rows)):
        yield [record for _, record in batch], array("q", [number for number, _ in batch])


def record_chunk(
    records: Sequence[Sequence[Any]],
    places: Mapping[str, int],
    columns: Sequence[str],
    text: Sequence[str],
    numbers: Sequence[int] | None = None,
) -> Chunk:
    """Return records as a chunk; ``places`` are the positions of their columns."""
    cells: dict[str, Cells] = {name: [each[places[name]] for each in records] for name in columns}
    kept = {name: as_text(each[places[name]] for each in records) for name in text}
    return Chunk(len(records), cells, kept, numbers)


def as_text(values: Iterable[Any]) -> list[str]:
    """Return values as text without spaces around it; "" for None."""
    return ["" if value is None else str(value).strip() for value in values]


def extra_missing(what: str, extra: str) -> tuple[str, str]:
    """Return rule and message for :func:`reading` where libraries are not installed."""
    return "extra-missing", f'reading {what} needs more packages: pip install "fedclust[{extra}]"'
