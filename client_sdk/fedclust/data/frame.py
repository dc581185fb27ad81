"""Arrays and DataFrames of NumPy, pandas and Dask; the last two are not imported."""

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
    """A DataFrame of pandas, or of Dask, which is computed a partition at a time.

    The index is ignored: rows are numbered from 0.
    """

    def __init__(self, frame: Any) -> None:
        self._frame, self._lazy = frame, is_dask(frame)
        self.origin = Origin("the Dask DataFrame" if self._lazy else "the DataFrame")
        self.header: Sequence[str] = [str(name).strip() for name in frame.columns]
        self.n_rows = None if self._lazy else len(frame)

    def chunks(self, columns: Sequence[str], text: Sequence[str], rows: int) -> Iterator[Chunk]:
        """Yield chunks of at most ``rows`` rows, shorter where a partition ends."""
        places, parts = self.origin.columns(self.header, columns, text), iter([self._frame])
        if self._lazy:
            # Other columns are not computed at all.
            wanted = self._frame[[self._frame.columns[place] for place in places.values()]]
            places = {name: place for place, name in enumerate(places)}
            parts = _computed(self.origin, wanted.partitions, wanted.npartitions)
        for part in parts:
            for start in range(0, len(part), rows):
                some = part.iloc[start : start + rows]
                cells = {name: _cells(some.iloc[:, places[name]]) for name in columns}
                kept = {name: _text(some.iloc[:, places[name]]) for name in text}
                yield Chunk(len(some), cells, kept)


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


def _computed(origin: Origin, partitions: Any, count: int) -> Iterator[Any]:
    """Yield what a Dask collection holds, a partition at a time."""
    for number in range(count):
        try:
            part = partitions[number].compute()
        except DataError:
            raise
        except Exception as error:
            # Any step of the graph may fail, and its message may contain a value.
            message = f"partition {number} could not be computed ({type(error).__name__})"
            raise origin.fault("dask", message) from None
        yield part


class ArrayReader(Reader):
    """An array (n, d) of numbers, NaN or masked where missing; its columns are the features.

    One partition of a Dask array is in memory at a time; the number of its rows may be unknown.
    """

    named = False

    def __init__(self, source: Any, names: Sequence[str], text: Sequence[str]) -> None:
        self._lazy = is_dask(source)
        self.origin = Origin("the Dask array" if self._lazy else "the array")
        self.header = list(names)
        if text:
            message = "an array has no column names: give a table, or the persons themselves"
            raise self.origin.fault("missing-column", message, column=text[0])
        try:
            self._rows: Any = source if self._lazy else np.asarray(_unmasked(source))
        except ValueError:
            raise self.origin.fault("shape", "the rows are not equally long") from None
        if self._rows.dtype.kind not in "iufb":
            message = f"it holds {self._rows.dtype.name}, not numbers; NaN is a missing number"
            raise self.origin.fault("not-a-number", message)
        if self._rows.ndim != 2 or self._rows.shape[1] != len(names):
            message = f"its shape is {self._rows.shape}; the session needs (n, {len(names)})"
            raise self.origin.fault("shape", message)
        self.n_rows = None if self._lazy else len(self._rows)

    def chunks(self, columns: Sequence[str], text: Sequence[str], rows: int) -> Iterator[Chunk]:
        """Yield chunks of at most ``rows`` rows, shorter where a block ends."""
        places, blocks = self.origin.columns(self.header, columns, text), iter([self._rows])
        if self._lazy:
            whole = self._rows.rechunk({1: -1})
            blocks = map(_unmasked, _computed(self.origin, whole.blocks, whole.numblocks[0]))
        for block in blocks:
            for start in range(0, len(block), rows):
                part = block[start : start + rows]
                yield Chunk(len(part), {name: part[:, places[name]] for name in columns})


def _unmasked(source: Any) -> Any:
    """Return a masked array with NaN where it is masked, and anything else unchanged."""
    if isinstance(source, np.ma.MaskedArray):
        # numpy.asarray would show the numbers under the mask.
        return np.ma.filled(source.astype(np.float64), np.nan)
    return source
