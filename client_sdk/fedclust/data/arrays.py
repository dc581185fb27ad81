"""Arrays: their columns are the session's features, in the same order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fedclust.data.chunks import Chunk, Origin, Reader


class ArrayReader(Reader):
    """An array (n, d) of numbers, NaN or masked where missing."""

    named = False

    def __init__(self, source: Any, names: Sequence[str], text: Sequence[str]) -> None:
        self.origin = Origin("the array")
        self.header: Sequence[str] = list(names)
        refuse_text(self.origin, text)
        try:
            self._rows = np.asarray(unmasked(source))
        except ValueError:
            raise self.origin.fault("shape", "the rows are not equally long") from None
        refuse_shape(self.origin, self._rows, len(names))

    @property
    def n_rows(self) -> int:
        """How many rows there are."""
        return len(self._rows)

    def chunks(self, columns: Sequence[str], text: Sequence[str], rows: int) -> Iterator[Chunk]:
        """Yield chunks of ``rows`` rows; the last may be shorter."""
        places = self.origin.columns(self.header, columns, text)
        for start in range(0, len(self._rows), rows):
            part = self._rows[start : start + rows]
            yield Chunk(len(part), {name: part[:, places[name]] for name in columns})


def unmasked(source: Any) -> Any:
    """Return a masked array with NaN where it is masked, and anything else unchanged."""
    if isinstance(source, np.ma.MaskedArray):
        # numpy.asarray would show the numbers under the mask.
        return np.ma.filled(source.astype(np.float64), np.nan)
    return source


def refuse_text(origin: Origin, text: Sequence[str]) -> None:
    """Raise DataError if columns of an array are requested by name."""
    if text:
        message = "an array has no column names: give a table, or the persons themselves"
        raise origin.fault("missing-column", message, column=text[0])


def refuse_shape(origin: Origin, array: Any, d: int) -> None:
    """Raise DataError unless an array holds numbers in ``d`` columns."""
    if array.dtype.kind not in "iufb":
        raise origin.fault(
            "not-a-number", f"it holds {array.dtype.name}, not numbers; NaN is a missing number"
        )
    if array.ndim != 2 or array.shape[1] != d:
        message = f"its shape is {array.shape}; the session needs (n, {d})"
        raise origin.fault("shape", message)
