"""Excel workbooks by openpyxl: the stored values of sheets, a chunk of rows at a time."""

import itertools
import re
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Final

from fedclust.data.chunks import (
    FIRST_ROWS,
    SHEET_ERRORS,
    Chunk,
    Origin,
    Reader,
    batches,
    extra_missing,
    is_blank,
    reading,
    record_chunk,
)
from fedclust.data.mapping import ColumnsFile

#: The first bytes of the container of .xls files and of encrypted workbooks.
_CONTAINER: Final = b"\xd0\xcf\x11\xe0"
#: The element of a formula in a sheet, with or without a namespace's prefix.
_FORMULA: Final = re.compile(rb"<(?:\w+:)?f[\s/>]")
_PIECE, _OVERLAP = 2**20, 64
#: Spreadsheets store numbers with 15 digits: longer ones were rounded when they were typed.
_EXACT: Final = 10**15
_FAULT: Final = "spreadsheet", "this is no Excel workbook, or it is damaged"
#: A formula whose result is not in the file.
_NO_RESULT: Final = object()


def filled_sheets(book: Any) -> list[str]:
    """Return the names of a workbook's visible sheets that have rows."""
    sheets = (each for each in book.worksheets if each.sheet_state == "visible")
    return [each.title for each in sheets if _has_rows(each)]


def sheets_with_rows(path: Path) -> list[str]:
    """Return the names of a workbook's visible sheets that have rows."""
    with _open_book(path) as book:
        return filled_sheets(book)


@contextmanager
def _open_book(path: Path, *, stored: bool = True) -> Iterator[Any]:
    """Open a workbook for the stored values of its formulas, or for the formulas."""
    with reading(Origin(path.name), *extra_missing("Excel", "excel")):
        import openpyxl
    with path.open("rb") as file:
        book = openpyxl.load_workbook(file, read_only=True, data_only=stored, keep_links=False)
        with closing(book):
            yield book


class ExcelReader(Reader):
    """Sheets of an Excel workbook (.xlsx, .xlsm). Rows are numbered as the spreadsheet does.

    Parameters
    ----------
    path : Path
    written : ColumnsFile
        Sheets, number of the header's row, and columns, if given. By default the only visible sheet
        with rows, and its first row that is not empty. Several sheets have the same header there.

    Raises
    ------
    DataError
        openpyxl is not installed; the file is no workbook; the sheet is not clear.
    """

    #: Numbers in cells of text are common: 12,5 in a program that has another decimal mark.
    textual = True

    def __init__(self, path: Path, written: ColumnsFile) -> None:
        self._path, self.origin = path, Origin(path.name)
        # These quote values.
        warnings.filterwarnings("ignore", module=r"openpyxl\.")
        with reading(self.origin, *_FAULT):
            self._check_beginning()
            with _open_book(path) as book:
                self._sheets = self._choose_sheets(book, written.sheet)
            self._has_formulas = _has_formulas(path)
            first, *others = self._sheets
            self._top, names = self._find_header(first, written.header_row)
            for each in others:
                if self._find_header(each, self._top)[1] != names:
                    message = f"the header of {each!r} is not that of {first!r}, row {self._top}"
                    raise self.origin.fault("sheet", message)
        self._below, self._named = self._top, bool(written.columns)
        self.header: Sequence[str] = names
        if self._named:
            self.header = tuple(name.strip() for name in written.columns)
            if names == list(self.header) and written.header_row is None:
                message = f"row {self._top} is a header: leave out the names of columns (--columns)"
                raise self.origin.fault("header-twice", message)
            if written.header_row is None:
                self._below = self._top - 1
        else:
            hint = f"row {self._top} is read as the header; name another one (header_row=, "
            hint += "--header-row)"
            self.origin = Origin(path.name, hint=hint)

    def first_records(self) -> list[tuple[int, Sequence[Any]]]:
        """Return the number and the cells of the header, and of the first rows below it."""
        with reading(self.origin, *_FAULT):
            rows = self._rows(self._sheets[0])
            rows = ((number, row) for number, row in rows if number >= self._top)
            return list(itertools.islice(rows, FIRST_ROWS))

    def chunks(self, columns: Sequence[str], text: Sequence[str], rows: int) -> Iterator[Chunk]:
        """Yield chunks of ``rows`` rows; the last may be shorter. Empty rows are skipped."""
        places = self.origin.columns(self.header, columns, text)
        unnamed = self._unnamed_neighbours(places)
        with reading(self.origin, *_FAULT):
            for records, numbers in batches(self._records(places, unnamed, text), rows):
                yield record_chunk(records, places, columns, text, numbers)

    def _records(
        self, places: dict[str, int], unnamed: dict[int, str], text: Sequence[str]
    ) -> Iterator[tuple[int, Sequence[Any]]]:
        for number, cells in itertools.chain(*map(self._rows, self._sheets)):
            again = [*map(cell_name, cells[: len(self.header)])] == [*self.header]
            if number > self._below and not again:
                # One cell more than the header: it may be an unnamed neighbour.
                record = [*cells, *[None] * (len(self.header) + 1 - len(cells))]
                self._check_record(number, record, places, unnamed)
                for name in text:
                    record[places[name]] = self._identifier(record[places[name]], name, number)
                yield number, record

    def _unnamed_neighbours(self, places: dict[str, int]) -> dict[int, str]:
        """Return the columns without a name to the right of a wanted one, with its name."""
        last = len(self.header)
        return {
            place + 1: name
            for name, place in places.items()
            if place + 1 >= last or not self.header[place + 1]
        }

    def _check_record(
        self, number: int, record: Sequence[Any], places: dict[str, int], unnamed: dict[int, str]
    ) -> None:
        for place, name in unnamed.items():
            if not is_blank(record[place]):
                message = "the column to its right has values and no name"
                if self._named:
                    message += "; name all columns"
                    raise self.origin.fault("field-count", message, column=name)
                message += ", as below a merged cell; unmerge the header, and name each column"
                raise self.origin.fault("merged-header", message, column=name)
        for name, place in places.items():
            if record[place] is _NO_RESULT:
                message = "a formula without a stored result; open the file in a spreadsheet "
                message += "program and save it"
                raise self.origin.fault("no-result", message, column=name, index=number)

    def _identifier(self, cell: Any, column: str, number: int) -> Any:
        """Return an identifier without a fraction: the number 123.0 is 123."""
        if isinstance(cell, float) and cell.is_integer():
            cell = int(cell)
        if isinstance(cell, int) and not isinstance(cell, bool) and abs(cell) >= _EXACT:
            message = "an identifier of more than 15 digits is stored as a number, and was "
            message += "rounded; store identifiers as text"
            raise self.origin.fault("rounded", message, column=column, index=number)
        if str(cell).strip().casefold() in SHEET_ERRORS:
            message = "an error of a formula; correct it in the spreadsheet"
            raise self.origin.fault("error-cell", message, column=column, index=number)
        return cell

    def _check_beginning(self) -> None:
        with self._path.open("rb") as file:
            start = file.read(4)
        if start == _CONTAINER:
            message = "it is protected by a password, or an old .xls file; save it as .xlsx "
            message += "without a password"
            raise self.origin.fault("spreadsheet", message)

    def _choose_sheets(self, book: Any, wanted: Sequence[str]) -> Sequence[str]:
        names = [sheet.title for sheet in book.worksheets]
        if not names:
            raise self.origin.fault("sheet", "it has no sheet with cells")
        for name in wanted:
            if name not in names:
                message = f"there is no sheet {name!r}; it has {_listed(names)}"
                raise self.origin.fault("sheet", message)
        if wanted:
            return wanted
        filled = filled_sheets(book)
        if len(filled) > 1:
            message = f"several sheets have rows, {_listed(filled)}; choose (sheet=, --sheet)"
            raise self.origin.fault("sheet", message)
        return [filled[0] if filled else names[0]]

    def _find_header(self, sheet: str, wanted: int | None) -> tuple[int, list[str]]:
        """Return the number of the header's row, and the names in it."""
        for number, record in self._rows(sheet):
            if number == (wanted or number):
                names = [cell_name(cell) for cell in record]
                while names and not names[-1]:
                    names.pop()
                return number, names
        if wanted is not None:
            message = (
                f"row {wanted} is empty, and header_row (--header-row) says that it is the header"
            )
            raise self.origin.fault("no-header", message)
        raise self.origin.fault("no-header", "the sheet is empty; a header is needed")

    def _rows(self, sheet: str) -> Iterator[tuple[int, Sequence[Any]]]:
        """Yield the number and the values of each row of a sheet that is not empty."""
        with ExitStack() as stack:
            found = _values(stack.enter_context(_open_book(self._path))[sheet])
            if self._has_formulas:
                results = stack.enter_context(_open_book(self._path))[sheet]
                formulas = stack.enter_context(_open_book(self._path, stored=False))[sheet]
                found = _values_with_results(results, formulas)
            for number, record in enumerate(found, start=1):
                if not all(map(is_blank, record)):
                    yield number, record


def _has_formulas(path: Path) -> bool:
    """Return whether a sheet of the workbook has a formula."""
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if "/worksheets/" not in f"/{name}" or not name.endswith(".xml"):
                continue
            with archive.open(name) as part:
                last = b""
                while piece := part.read(_PIECE):
                    if _FORMULA.search(last + piece):
                        return True
                    last = piece[-_OVERLAP:]
    return False


def _values(sheet: Any) -> Iterator[Sequence[Any]]:
    # Programs write a wrong size of the sheet; rows below and columns beyond it would be lost.
    sheet.reset_dimensions()
    found: Iterator[Sequence[Any]] = sheet.iter_rows(values_only=True)
    return found


def _values_with_results(results: Any, formulas: Any) -> Iterator[Sequence[Any]]:
    """Yield the rows of a sheet, with ``_NO_RESULT`` for formulas without a stored result."""
    results.reset_dimensions()
    formulas.reset_dimensions()
    for values, sources in zip(results.iter_rows(), formulas.iter_rows(), strict=True):
        # An empty text that a formula gave is a result, of the type "str".
        yield [
            _NO_RESULT
            if value.value is None and value.data_type == "n" and source.data_type == "f"
            else value.value
            for value, source in zip(values, sources, strict=True)
        ]


def _has_rows(sheet: Any) -> bool:
    """Return whether a sheet has a header and a row."""
    filled = (record for record in _values(sheet) if not all(map(is_blank, record)))
    return next(filled, None) is not None and next(filled, None) is not None


def cell_name(cell: Any) -> str:
    """Return a column's name in one line; "" for a cell without one."""
    return "" if cell is None or cell is _NO_RESULT else " ".join(str(cell).split())


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))
