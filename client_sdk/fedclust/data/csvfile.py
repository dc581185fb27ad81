"""CSV by the standard library: UTF-8 with or without a mark, a header, commas or semicolons."""

from __future__ import annotations

import csv
import math
import re
from array import array
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TextIO

import numpy as np

from fedclust.data.raw import MISSING, Origin, RawTable
from fedclust.errors import DataError


def read_csv(
    path: Path, names: Sequence[str], text: Sequence[str], *, lacking: bool = False
) -> RawTable:
    """Read the columns ``names`` as numbers and ``text`` as they stand; others are left alone.

    With ``lacking`` a column of ``names`` that is not there is one of missing values.
    Empty fields, NA, N/A, NaN, null and None are missing values. A file that is separated by
    semicolons or tabs, as spreadsheets write it where the comma is the decimal mark, may have
    decimal commas. Raises DataError with file, column and line.
    """
    origin = Origin(path.name or str(path), "line")
    cells = array("d")
    kept: dict[str, list[str]] = {name: [] for name in text}
    numbers: list[int] = []
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            mark, begin = _separator(file)
            reader = csv.reader(chain(begin, file), strict=True, delimiter=mark)
            header = [name.strip() for name in next(filter(None, reader), [])]
            if not header:
                raise origin.fault("no-header", "the file is empty; a header is needed")
            numbers_of = _Numbers(path.name, commas=mark != ",")
            there = [name for name in names if not lacking or name in header]
            places = origin.columns(header, there, text)
            end = reader.line_num
            for fields in reader:
                # A quoted field may hold line breaks: a row is where it begins.
                line, end = end + 1, reader.line_num
                blank = len(fields) == 1 < len(header) and not fields[0].strip()
                if not fields or blank:  # an empty line
                    continue
                if len(fields) != len(header):
                    message = f"{len(fields)} fields where the header has {len(header)}"
                    raise DataError(path.name, "field-count", message, row=line, unit="line")
                cells.extend(
                    numbers_of.read(fields[places[n]], n, line) if n in places else math.nan
                    for n in names
                )
                numbers.append(line)
                for name in text:
                    kept[name].append(fields[places[name]].strip())
    except UnicodeDecodeError:
        message = "this is not UTF-8; save the file as UTF-8"
        where = _first_undecodable(path)
        raise DataError(path.name, "encoding", message, row=where, unit="line") from None
    except csv.Error as error:
        message = f"this is no CSV file ({error})"
        raise DataError(path.name, "csv", message, row=reader.line_num, unit="line") from None
    except OSError as error:
        raise origin.fault("unreadable", error.strerror or "the file cannot be read") from None
    if not numbers:
        raise origin.fault("no-rows", "there are no rows below the header")
    numbers_of.refuse_thousands()
    X = np.frombuffer(cells, dtype=np.float64).reshape(len(numbers), len(names))
    return RawTable(X, Origin(path.name, "line", numbers), kept, tuple(there))


def _separator(file: TextIO) -> tuple[str, list[str]]:
    """Return what separates the columns, and the lines that it took to see it.

    A comma, unless the header has none and another mark instead.
    """
    begin = []
    for line in file:
        begin.append(line)
        if line.strip():
            break
    header = begin[-1] if begin else ""
    marks = [mark for mark in ";\t" if mark in header]
    return marks[0] if marks and len(next(csv.reader([header]))) == 1 else ",", begin


def _first_undecodable(path: Path) -> int | None:
    """Return the line where a file stops being UTF-8; None for a file of another kind."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError:
                return None if line.startswith((b"\xff\xfe", b"\xfe\xff")) else number
    return None


class _Numbers:
    """Reads the fields of number columns. ``commas``: decimals may be written with a comma."""

    def __init__(self, source: str, *, commas: bool) -> None:
        self._source, self._commas = source, commas
        #: Column and line of the first number with a comma, and with a point.
        self._first: dict[str, tuple[str, int]] = {}
        self._decimal = False

    def read(self, field: str, column: str, line: int) -> float:
        """Return a field's number, NaN for a missing one; DataError for anything else."""
        field = field.strip()
        if field.lower() in MISSING:
            return math.nan
        text = field
        if self._commas and field.isascii() and (("," in field) != ("." in field)):
            text = self._with_point(field, column, line)
        try:
            # Python's own underscores and non-ASCII digits are no numbers to anybody else.
            value = float(text) if text.isascii() and "_" not in text else None
        except ValueError:
            value = None
        if value is None:
            hint = "empty or NA is a missing value"
            if re.fullmatch(r"[-+]?[\d.,' \u00a0\u202f\u2019]*\d", field):
                hint = "write decimals with a point, and no separators between thousands"
            raise self._fault("not-a-number", f"text in a number column; {hint}", column, line)
        if math.isinf(value):
            message = "infinite, or beyond what a double holds"
            raise self._fault("not-finite", message, column, line)
        return value

    def _with_point(self, field: str, column: str, line: int) -> str:
        mark = "," if "," in field else "."
        self._first.setdefault(mark, (column, line))
        if len(self._first) == 2:
            message = "decimals with a comma and with a point in one file: write all with a point"
            raise self._fault("decimal-mark", message, column, line)
        # 1,234 may be thousands; one number that cannot be shows what all of them are.
        self._decimal |= mark == "," and not re.fullmatch(r"[-+]?[1-9]\d{0,2},\d{3}", field)
        return field.replace(",", ".") if field.count(",") == 1 else field

    def refuse_thousands(self) -> None:
        """Raise DataError where every comma that was read may be one between thousands."""
        if "," in self._first and not self._decimal:
            message = "this comma may be a decimal one or between thousands: write a point or none"
            raise self._fault("decimal-mark", message, *self._first[","])

    def _fault(self, rule: str, message: str, column: str, line: int) -> DataError:
        return DataError(self._source, rule, message, column=column, row=line, unit="line")
