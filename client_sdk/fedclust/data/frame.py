"""Arrays and DataFrames of NumPy, pandas and Dask; the last two are not imported."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fedclust.data.chunks import Cells, Chunk, Origin, Reader
from fedclust.wire.errors import DataError


def is_frame(source: Any) -> bool:
    """Return whether ``source`` is a pandas DataFrame."""
    kind = type(source)
    return kind.__name__ == "DataFrame" and kind.__module__.split(".")[0] == "pandas"


class FrameReader(Reader):
    """A pandas DataFrame. Its index is ignored: rows are numbered from 0."""

    def __init__(self, frame: Any) -> None:
        self._frame, self.origin = frame, Origin("the DataFrame")
        self.header: Sequence[str] = [str(name).strip() for name in frame.columns]

    @property
    def n_rows(self) -> int:
        """How many rows there are."""
        return len(self._frame)

    def chunks(self, columns: Sequence[str], text: Sequence[str], rows: int) -> Iterator[Chunk]:
        """Yield chunks of ``rows`` rows; the last may be shorter."""
        places = self.origin.columns(self.header, columns, text)
        for start in range(0, len(self._frame), rows):
            part = self._frame.iloc[start : start + rows]
            yield frame_chunk(part, places, columns, text)


def frame_chunk(
    part: Any, places: dict[str, int], columns: Sequence[str], text: Sequence[str]
) -> Chunk:
    """Return the rows of a DataFrame; ``places`` are the positions of its columns."""
    cells = {name: _cells(part.iloc[:, places[name]]) for name in columns}
    kept = {name: _text(part.iloc[:, places[name]]) for name in text}
    return Chunk(len(part), cells, kept)


def _text(column: Any) -> list[str]:
    # A missing date or duration would be the word NaT.
    missing = column.isna().tolist()
    return [
        "" if absent else str(value).strip() for value, absent in zip(column, missing, strict=True)
    ]


def _cells(column: Any) -> Cells:
    kind = getattr(column.dtype, "kind", "O")
    if kind == "f" and isinstance(column.dtype, np.dtype):
        return np.asarray(column.to_numpy())  # in its own precision: a sentinel is compared in it
    if kind in "iuf":
        return np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))
    if kind in "mM":
        # Only whether there is a date matters; with a time zone there is no array of dates.
        stamps = column.isna().to_numpy()
        return np.where(stamps, np.datetime64("NaT"), np.datetime64(0, "s"))
    missing = np.asarray(column.isna())
    if kind == "b" and not missing.any():
        return np.asarray(column.to_numpy(dtype=np.bool_))
    return [
        None if absent else value for value, absent in zip(column, missing.tolist(), strict=True)
    ]


def is_dask(source: Any) -> bool:
    """Return whether ``source`` is a Dask array or DataFrame."""
    kind = type(source)
    return kind.__name__ in ("Array", "DataFrame") and kind.__module__.split(".")[0] in (
        "dask",
        "dask_expr",
    )


class DaskFrameReader(Reader):
    """A Dask DataFrame, computed a partition at a time."""

    def __init__(self, source: Any) -> None:
        self._frame, self.origin = source, Origin("the Dask DataFrame")
        self.header: Sequence[str] = [str(name).strip() for name in source.columns]

    def chunks(self, columns: Sequence[str], text: Sequence[str], rows: int) -> Iterator[Chunk]:
        """Yield chunks of at most ``rows`` rows, shorter where a partition ends."""
        names = list(dict.fromkeys([*columns, *text]))
        places = self.origin.columns(self.header, names)
        # Other columns are not computed at all.
        wanted = self._frame[[self._frame.columns[places[name]] for name in names]]
        here = {name: place for place, name in enumerate(names)}
        for number in range(wanted.npartitions):
            part = _compute_partition(self.origin, wanted.partitions[number], number)
            for start in range(0, len(part), rows):
                yield frame_chunk(part.iloc[start : start + rows], here, columns, text)


def _compute_partition(origin: Origin, partition: Any, number: int) -> Any:
    try:
        return partition.compute()
    except DataError:
        raise
    except Exception as error:
        # Any step of the graph may fail, and its message may contain a value.
        message = f"partition {number} could not be computed ({type(error).__name__})"
        raise origin.fault("dask", message) from None


class ArrayReader(Reader):
    """An array (n, d) of numbers, NaN or masked where missing; its columns are the features."""

    named = False

    def __init__(
        self, source: Any, names: Sequence[str], text: Sequence[str], what: str = "the array"
    ) -> None:
        self.origin, self.header = Origin(what), list(names)
        if text:
            message = "an array has no column names: give a table, or the persons themselves"
            raise self.origin.fault("missing-column", message, column=text[0])
        self._rows = self._array(source)
        if self._rows.dtype.kind not in "iufb":
            message = f"it holds {self._rows.dtype.name}, not numbers; NaN is a missing number"
            raise self.origin.fault("not-a-number", message)
        if self._rows.ndim != 2 or self._rows.shape[1] != len(names):
            message = f"its shape is {self._rows.shape}; the session needs (n, {len(names)})"
            raise self.origin.fault("shape", message)

    @property
    def n_rows(self) -> int | None:
        """How many rows there are."""
        return len(self._rows)

    def chunks(self, columns: Sequence[str], text: Sequence[str], rows: int) -> Iterator[Chunk]:
        """Yield chunks of at most ``rows`` rows, shorter where a block ends."""
        places = self.origin.columns(self.header, columns, text)
        for block in self._blocks():
            for start in range(0, len(block), rows):
                part = block[start : start + rows]
                yield Chunk(len(part), {name: part[:, places[name]] for name in columns})

    def _array(self, source: Any) -> Any:
        try:
            return np.asarray(_unmasked(source))
        except ValueError:
            raise self.origin.fault("shape", "the rows are not equally long") from None

    def _blocks(self) -> Iterator[Any]:
        yield self._rows


class DaskArrayReader(ArrayReader):
    """A Dask array: one partition is in memory at a time; the number of its rows may be unknown."""

    n_rows = None

    def _array(self, source: Any) -> Any:
        return source

    def _blocks(self) -> Iterator[Any]:
        rows = self._rows.rechunk({1: -1})
        for number in range(rows.numblocks[0]):
            yield _unmasked(_compute_partition(self.origin, rows.blocks[number], number))


def _unmasked(source: Any) -> Any:
    """Return a masked array with NaN where it is masked, and anything else unchanged."""
    if isinstance(source, np.ma.MaskedArray):
        # numpy.asarray would show the numbers under the mask.
        return np.ma.filled(source.astype(np.float64), np.nan)
    return source
