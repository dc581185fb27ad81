"""CSV by the standard library, a chunk of rows at a time."""

import codecs
import csv
import itertools
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TextIO

from fedclust.data.chunks import FIRST_ROWS, Chunk, Origin, Reader, batches, record_chunk
from fedclust.data.decode import place_of_header
from fedclust.data.mapping import ColumnsFile
from fedclust.schema.display import counted

_DELIMITERS: Final = (",", ";", "\t", "|")
#: Byte order marks, and the encodings that they announce.
_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
#: The first line with which some spreadsheets announce the delimiter.
_SEPARATOR: Final = re.compile(r'"?sep=(.)"?[\r\n]*', re.IGNORECASE)
#: The first bytes of gzip and zip files.
_PACKED: Final = (b"\x1f\x8b", b"PK\x03\x04")
#: What cannot be decoded is read as: half of a pair, so no file holds it, unlike U+FFFD.
_UNDECODABLE: Final = "\udcff"
_MARKED: Final = "fedclust.undecodable"


def _mark(error: UnicodeError) -> tuple[str, int]:
    """Return what stands for bytes that cannot be decoded, and where to read on."""
    assert isinstance(error, UnicodeDecodeError)  # noqa: S101  # files are only read
    return _UNDECODABLE, error.end


codecs.register_error(_MARKED, _mark)


class CsvReader(Reader):
    """A CSV file with a header, or given column names, and optionally quoted fields.

    Parameters
    ----------
    path : Path
    written : ColumnsFile
        Delimiter, encoding, line of the header, and columns, if given. By default UTF-8 or the
        encoding of the byte order mark, and the delimiter with which the header has the most of
        ``wanted``, or which fits the first rows best.
    wanted : sequence of str
        Columns that will be read.

    Attributes
    ----------
    delimiter : str

    Raises
    ------
    DataError
        The message names file and line, here and in :meth:`chunks`.
    """

    textual = True

    def __init__(self, path: Path, written: ColumnsFile, wanted: Sequence[str]) -> None:
        hint = "if the header is another line, give header_row= (--header-row); without one name "
        hint += "the columns (columns=, --columns)"
        self._path, self.origin = path, Origin(path.name, "line", hint=hint)
        self._before = 0  # lines before the header
        self._encoding = self._known_encoding(written.encoding)
        self._given = tuple(name.strip() for name in written.columns)
        with self._reading():
            with self._open() as file:
                announced = _SEPARATOR.fullmatch(file.readline())
            self._before = max((written.header_row or 1) - 1, int(announced is not None))
            named = announced[1] if announced is not None else None
            self.delimiter = written.delimiter or named or self._likely_delimiter(wanted)
            first = self._first(self.delimiter)
        if not first:
            ends = "ends above this line" if written.header_row else "is empty"
            message = f"the file {ends}; a header is needed"
            raise self.origin.fault("no-header", message, index=written.header_row)
        self.header: Sequence[str] = first
        self._skips_header = bool(written.header_row) or not self._given
        if self._given:
            if first == list(self._given) and not self._skips_header:
                message = "the first line is a header: leave out the names of columns (--columns)"
                raise self.origin.fault("header-twice", message)
            self.header = self._given

    def first_records(self) -> list[tuple[int, Sequence[Any]]]:
        """Return the line and the fields of the header, and of the first rows below it."""
        return [*self._head(self.delimiter)]

    def _likely_delimiter(self, wanted: Collection[str]) -> str:
        """Return the delimiter with which the header has most of the wanted names.

        Of equal ones that which gives most of the first rows as many fields as the header.
        """
        found: dict[str, tuple[int, bool, int, int]] = {}
        for delimiter in _DELIMITERS:
            records = self._head(delimiter)
            widths = [len(record) for _, record in records]
            width = len(self._given) or (widths[place_of_header(records)] if widths else 0)
            names = {name.strip() for _, record in records[:1] for name in record}
            known = 0 if self._given else len(names.intersection(wanted))
            found[delimiter] = (known, width > 1, widths.count(width), width)
        return max(found, key=lambda delimiter: found[delimiter])

    def _head(self, delimiter: str) -> list[tuple[int, list[str]]]:
        """Return line and fields of the first rows, up to one that cannot be read."""
        found: list[tuple[int, list[str]]] = []
        with self._reading() as ended, self._open() as file, suppress(csv.Error):
            found.extend(itertools.islice(self._rows(file, delimiter, ended), FIRST_ROWS))
        return found

    def _rows(
        self, file: TextIO, delimiter: str, ended: list[int]
    ) -> Iterator[tuple[int, list[str]]]:
        """Yield each row with the number of its first line; ``ended`` gets that of its last."""
        lines = itertools.islice(file, self._before, None)
        reader = csv.reader(lines, strict=True, delimiter=delimiter)
        for record in reader:
            # A quoted field may contain line breaks.
            number, ended[0] = ended[0] + 1, self._before + reader.line_num
            if record:
                yield number, record

    def chunks(self, columns: Sequence[str], text: Sequence[str], rows: int) -> Iterator[Chunk]:
        """Yield chunks of ``rows`` rows; the last may be shorter."""
        places = self.origin.columns(self.header, columns, text)
        with self._reading() as ended, self._open() as file:
            for records, numbers in batches(self._records(file, ended), rows):
                yield record_chunk(records, places, columns, text, numbers)

    def _records(self, file: TextIO, ended: list[int]) -> Iterator[tuple[int, list[str]]]:
        """Yield the rows below the header, as :meth:`_rows` does; each is as long as the header."""
        width = len(self.header)
        rows = self._rows(file, self.delimiter, ended)
        if self._skips_header:
            next(rows, None)
        empty: list[tuple[int, list[str]]] = []
        any_row = False
        for number, record in rows:
            if len(record) == 1 < width and not record[0].strip():
                continue
            if self._skips_header and [*map(str.strip, record)] == self.header:
                continue  # the header once more, as between files that were joined
            if len(record) != width:
                what = "columns were named" if self._given else "fields in the header"
                message = f"{counted(len(record), 'field')}, and {width} {what}"
                if len(record) == 1:
                    message += "; if it is a remark and no row, delete this line"
                raise self.origin.fault("field-count", message, index=number)
            if not any(map(str.strip, record)):
                empty.append((number, record))
                continue
            yield from empty
            yield number, record
            empty, any_row = [], True
        # A spreadsheet writes lines of separators below its last row.
        yield from [] if any_row else empty

    def _known_encoding(self, given: str | None) -> str:
        with self._reading(), self._path.open("rb") as file:
            start = file.read(4)
        mark = next((name for mark, name in _MARKS if start.startswith(mark)), None)
        if start.startswith(_PACKED):
            raise self.origin.fault("unreadable", "the file is compressed: unpack it first")
        if given is None:
            if mark is None and b"\0" in start:
                likely = "utf-16-be" if start.startswith(b"\0") else "utf-16-le"
                message = f"this is not UTF-8; it looks like --encoding {likely} (encoding=)"
                raise self.origin.fault("encoding", message, index=1)
            return mark or "utf-8-sig"
        name = codecs.lookup(given).name
        # The mark is no part of the first field, however the encoding is spelled.
        same = mark is not None and (mark.startswith(name) or name.startswith(mark))
        return mark if mark is not None and same else name

    def _open(self) -> TextIO:
        return self._path.open(encoding=self._encoding, newline="")

    def _first(self, delimiter: str) -> list[str]:
        with self._open() as file:
            _, record = next(self._rows(file, delimiter, [0]), (0, []))
            return [name.strip() for name in record]

    @contextmanager
    def _reading(self) -> Iterator[list[int]]:
        """Turn read errors into DataError; the yielded list holds the last line read."""
        ended = [self._before]
        try:
            yield ended
        except UnicodeDecodeError:
            message = f"this is not {self._encoding.removesuffix('-sig').upper()}"
            if self._encoding.startswith("utf-8"):
                message += (
                    "; older Windows programs write cp1252 or cp1250 (--encoding, encoding=), and "
                    "fedclust check --ask asks which"
                )
            else:
                message += (
                    "; say how the file is written (encoding=, --encoding), utf-8 for example"
                )
            where = self._first_undecodable()
            raise self.origin.fault("encoding", message, index=where) from None
        except UnicodeError:
            message = "this is no text of the kind that its first bytes announce"
            raise self.origin.fault("encoding", message) from None
        except csv.Error as error:
            message = f"this is no CSV file ({error}); is a quotation mark never closed?"
            raise self.origin.fault("csv", message, index=ended[0] + 1) from None
        except OSError as error:
            why = error.strerror or "the file cannot be read"
            raise self.origin.fault("unreadable", why) from None

    def _first_undecodable(self) -> int | None:
        """Return the first line that cannot be decoded."""
        with self._path.open(encoding=self._encoding, errors=_MARKED) as file:
            return next((n for n, line in enumerate(file, start=1) if _UNDECODABLE in line), None)
