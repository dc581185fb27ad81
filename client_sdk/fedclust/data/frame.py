"""pandas DataFrames, read without importing pandas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fedclust.data.chunks import Cells, Chunk, Origin, Reader


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
