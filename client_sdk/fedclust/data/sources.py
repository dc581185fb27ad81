"""Choose the reader of a source."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from fedclust.data.chunks import Origin, Reader
from fedclust.data.csvfile import CsvReader
from fedclust.data.decode import looks_like_a_value, place_of_header
from fedclust.data.frame import ArrayReader, FrameReader, is_dask, is_frame
from fedclust.data.mapping import ColumnsFile, Dataset, check_mapping
from fedclust.data.sql import SqlQuery, SqlReader

_PARQUET: Final = (".parquet", ".pq")
_EXCEL: Final = (".xlsx", ".xlsm")
#: How the name of a lock file of Excel begins; the workbook's name follows.
_LOCK: Final = "~$"
_SPREADSHEETS: Final = (".xls", ".xlsb", ".ods", ".numbers")


def describe(source: Any) -> str:
    """Return the name of a source in messages."""
    if isinstance(source, (str, os.PathLike)):
        return Path(source).name
    if isinstance(source, SqlQuery):
        return source.name
    if is_dask(source):
        return "the Dask DataFrame" if hasattr(source, "columns") else "the Dask array"
    return "the DataFrame" if is_frame(source) else "the array"


def open_reader(
    dataset: Dataset,
    written: ColumnsFile,
    names: Sequence[str] = (),
    wanted: Sequence[str] = (),
    text: Sequence[str] = (),
) -> Reader:
    """Open a source.

    Parameters
    ----------
    dataset : Dataset
    written : ColumnsFile
        How a CSV file or a workbook is written.
    names : sequence of str
        The session's features: the columns of an array.
    wanted : sequence of str
        The columns of a table that will be read.
    text : sequence of str
        Those of them that are kept as text.

    Raises
    ------
    DataError
    """
    source = dataset.source
    if isinstance(source, SqlQuery):
        return SqlReader(source)
    if is_frame(source) or is_dask(source):
        framed = hasattr(source, "columns")
        return FrameReader(source) if framed else ArrayReader(source, names, text)
    if hasattr(source, "columns") or hasattr(source, "column_names"):
        # Converted to an array, its columns would lose their names.
        message = "a table of another library; convert it with its to_pandas()"
        raise Origin(f"the {type(source).__name__}").fault("unknown-table", message)
    if not isinstance(source, (str, os.PathLike)):
        return ArrayReader(source, names, text)
    path = Path(source)
    kind = path.suffix.lower()
    if path.name.startswith(_LOCK) and kind in _EXCEL:
        message = "this is the lock file of Excel, which is there while the workbook is open; give "
        raise Origin(path.name).fault("spreadsheet", message + path.name.removeprefix(_LOCK))
    if kind in _PARQUET or any(path.glob("*.parquet")):
        from fedclust.data.parquet import ParquetReader  # most sites have none

        return ParquetReader(path)
    if path.is_dir():
        message = "this is a directory without *.parquet files: give a file"
        raise Origin(path.name).fault("unreadable", message)
    if kind == ".sql":
        return SqlReader(SqlQuery.read(path, dataset.options.sql_url_file))
    if kind in _EXCEL:
        from fedclust.data.excel import ExcelReader  # most sites have none

        return ExcelReader(path, written)
    if kind in _SPREADSHEETS:
        message = "this kind of spreadsheet is not read; save it as .xlsx, or a sheet as CSV UTF-8"
        raise Origin(path.name).fault("spreadsheet", message)
    return CsvReader(path, written, wanted)


def read_columns(dataset: Dataset, text: Sequence[str] = ()) -> list[str]:
    """Open a source, and return the names of its columns; no row is read.

    Parameters
    ----------
    dataset : Dataset
        Of a table, whose columns have names.
    text : sequence of str
        Columns that it must have.

    Raises
    ------
    DataError
        The source cannot be read, lacks one of these columns, or begins with a row, which holds
        values instead of names, or with a title.
    """
    options, file = dataset.options, dataset.options.resolved()
    check_mapping(file, (), options.mapping_name)
    rules = file.features.items()
    known = {*text, *(rule.column or name for name, rule in rules if not rule.lacking)}
    reader = open_reader(dataset, file, (), sorted(known), text)
    try:
        named = bool(file.columns) or not known.isdisjoint(reader.header)
        if not named:
            _refuse_title(reader)
        reader.origin.columns(reader.header, (), text)
        found = [name for name in reader.header if name]
        if not named and any(map(looks_like_a_value, found)):
            message = (
                "its first row holds numbers or dates; name the columns (columns=, --columns) "
            )
            message += "if it is no header, else give id_column= (--id-column) or a mapping file "
            message += "(mapping=, --mapping)"
            raise reader.origin.fault("no-header", message)
        return found
    finally:
        reader.close()


def _refuse_title(reader: Reader) -> None:
    """Refuse a header that has one name, or few, above rows of more cells."""
    rows = reader.first_records()
    if place := place_of_header(rows):
        below, unit = rows[place][0], reader.origin.unit
        message = f"it begins with a title, and {unit} {below} looks like the header; give "
        message += f"--header-row {below} (header_row={below})"
        raise reader.origin.fault("no-header", message)


def query_has_rows(dataset: Dataset) -> bool:
    """Return whether a query has a row; True for any other source. DataError as for reading."""
    if not str(dataset.source).lower().endswith(".sql"):
        return True
    chunks: Any = open_reader(dataset, dataset.options.resolved()).chunks((), (), 1)
    found = next(chunks, None) is not None
    # Ends the query, and releases the connection.
    chunks.close()
    return found
