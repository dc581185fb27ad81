"""CSV by the standard library: UTF-8 with or without a mark, a header, commas."""

from __future__ import annotations

import csv
import math
import re
from array import array
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedclust.data.raw import MISSING, Origin, RawTable
from fedclust.errors import DataError


def read_csv(
    path: Path, names: Sequence[str], text: Sequence[str], *, lacking: bool = False
) -> RawTable:
    """Read the columns ``names`` as numbers and ``text`` as they stand; others are left alone.

    With ``lacking`` a column of ``names`` that is not there is one of missing values.
    Empty fields, NA, N/A, NaN, null and None are missing values. Raises DataError with file,
    column and line.
    """
    origin = Origin(path.name, "line")
    cells = array("d")
    kept: dict[str, list[str]] = {name: [] for name in text}
    numbers: list[int] = []
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            header = [name.strip() for name in next(filter(None, reader), [])]
            if not header:
                raise origin.fault("no-header", "the file is empty; a header is needed")
            _refuse_other_separators(origin, header)
            there = [name for name in names if not lacking or name in header]
            places = origin.columns(header, [*there, *text])
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
                    _number(path.name, fields[places[n]], n, line) if n in places else math.nan
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
    X = np.frombuffer(cells, dtype=np.float64).reshape(len(numbers), len(names))
    return RawTable(X, Origin(path.name, "line", numbers), kept, tuple(there))


def _refuse_other_separators(origin: Origin, header: Sequence[str]) -> None:
    """Say what is wrong where a program wrote semicolons or tabs for commas."""
    for mark, name in ((";", "semicolons"), ("\t", "tabs")):
        if len(header) == 1 and mark in header[0]:
            message = f"its columns are separated by {name}; save it with commas"
            raise origin.fault("separator", message)


def _first_undecodable(path: Path) -> int | None:
    """Return the line where a file stops being UTF-8; None for a file of another kind."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError:
                return None if line.startswith((b"\xff\xfe", b"\xfe\xff")) else number
    return None


def _number(source: str, field: str, column: str, line: int) -> float:
    field = field.strip()
    if field.lower() in MISSING:
        return math.nan
    try:
        # Python's own underscores and non-ASCII digits are no numbers to anybody else.
        value = float(field) if field.isascii() and "_" not in field else None
    except ValueError:
        value = None
    if value is None:
        hint = "empty or NA is a missing value"
        if re.fullmatch(r"[-+]?[\d.,' \u00a0\u202f\u2019]*\d", field):
            hint = "write decimals with a point, and no separators between thousands"
        message = f"text in a number column; {hint}"
        raise DataError(source, "not-a-number", message, column=column, row=line, unit="line")
    if math.isinf(value):
        message = "infinite, or beyond what a double holds"
        raise DataError(source, "not-finite", message, column=column, row=line, unit="line")
    return value
