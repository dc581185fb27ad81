"""What every source yields before the session's rules are applied."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

from numpy.typing import NDArray

from fedclust.errors import DataError

#: Written for a missing value, whatever the case: by people, R, pandas, spreadsheets, databases,
#: SAS and Stata.
MISSING = frozenset({"", "na", "n/a", "#n/a", "<na>", "nan", "null", "none", "."})

#: A column of a piece of a source: numbers or dates in an array, or what each cell holds.
Cells: TypeAlias = "NDArray[Any] | list[Any]"


class DataWarning(UserWarning):
    """Something about a site's rows that is allowed and rarely meant."""


@dataclass(frozen=True)
class Origin:
    """Where rows come from, for messages.

    ``numbers`` holds the line of each row where that is not its index: a CSV file's rows may span
    several lines.
    """

    source: str
    unit: Literal["line", "row"] = "row"
    numbers: Sequence[int] | None = None

    def fault(
        self,
        rule: str,
        message: str,
        *,
        column: str | None = None,
        index: int | None = None,
        count: int | None = None,
    ) -> DataError:
        """Return the error for the row at ``index``. ``message`` may not repeat a value."""
        row = index if index is None or self.numbers is None else self.numbers[index]
        return DataError(
            self.source, rule, message, column=column, row=row, count=count, unit=self.unit
        )

    def columns(
        self, header: Sequence[str], features: Sequence[str], text: Sequence[str] = ()
    ) -> dict[str, int]:
        """Return where each column stands; DataError for a missing or a repeated name."""
        wanted = [*features, *text]
        places: dict[str, int] = {}
        twice: list[str] = []
        for place, name in enumerate(header):
            if not name:  # a column without a name cannot be asked for
                continue
            if name in places:
                twice.append(name)
            places[name] = place
        missing = [name for name in wanted if name not in places]
        if missing:
            others = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
            why = "the session needs" if missing[0] in features else "rows or persons are named by"
            message = f"{why} this column and the header has none of that name{others}"
            if missing[0].casefold() in map(str.casefold, places):
                message += "; upper and lower case are told apart"
            message += "; where it has another name here, say so in a mapping file"
            if self.unit == "line" and not places.keys() & set(wanted):
                message += "; where the first line is no header, name the columns (--columns)"
            raise self.fault("missing-column", message, column=missing[0])
        # Only now is it sure to be a header, and no record, that a message repeats.
        if twice and wanted:
            raise self.fault("duplicate-column", "the header names it twice", column=twice[0])
        return {name: places[name] for name in wanted}


@dataclass(frozen=True)
class Chunk:
    """A run of rows, by column.

    ``numbers``: the line of each row, in a file of lines. ``text``: the columns that were asked for
    as they stand. ``part``: the file that they are of, where the source is several, and ``start``
    the index there of the first row.
    """

    n: int
    cells: dict[str, Cells] = field(repr=False)
    text: dict[str, list[str]] = field(default_factory=dict, repr=False)
    numbers: Sequence[int] | None = None
    part: str | None = None
    start: int = 0


class Reader(Protocol):
    """A source that is opened: its columns are known, its rows are read when asked for.

    Attributes
    ----------
    origin : Origin
    header : sequence of str
        Names of the columns, as they stand.
    textual : bool
        Whether numbers are written as text and have to be read from it.
    named : bool
        Whether columns have names of their own; those of an array are told by their order.
    n_rows : int or None
        How many rows there are, where that is known before they are read.
    """

    origin: Origin
    header: Sequence[str]
    textual: bool
    named: bool

    @property
    def n_rows(self) -> int | None: ...

    def chunks(self, columns: Sequence[str], text: Sequence[str], rows: int) -> Iterator[Chunk]:
        """Yield the rows from the first on, at most about ``rows`` at a time.

        May be called again, and then begins again. Raises DataError.
        """
        ...


def extra_missing(source: str, what: str, extra: str) -> DataError:
    """Return the error for a source whose libraries a bare install has not got."""
    message = f'reading {what} needs more packages: pip install "fedclust[{extra}]"'
    return DataError(source, "extra-missing", message)
