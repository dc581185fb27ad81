"""pandas DataFrames, without importing pandas: whoever has one has imported it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedclust.data.raw import Origin, RawTable


def is_frame(source: Any) -> bool:
    """Tell whether ``source`` is a pandas DataFrame."""
    kind = type(source)
    return kind.__name__ == "DataFrame" and kind.__module__.split(".")[0] == "pandas"


def read_frame(
    frame: Any, names: Sequence[str], text: Sequence[str], *, lacking: bool = False
) -> RawTable:
    """Read the columns ``names`` as numbers and ``text`` as text; others are left alone.

    With ``lacking`` a column of ``names`` that is not there is one of missing values.
    """
    origin = Origin("the DataFrame")
    header = [str(name) for name in frame.columns]
    there = [name for name in names if not lacking or name in header]
    places = origin.columns(header, there, text)
    if len(frame) == 0:
        raise origin.fault("no-rows", "there are no rows")
    columns = [
        _numbers(origin, frame.iloc[:, places[name]], name)
        if name in places
        else np.full(len(frame), np.nan)
        for name in names
    ]
    kept = {name: [str(value) for value in frame.iloc[:, places[name]]] for name in text}
    return RawTable(np.column_stack(columns), origin, kept, tuple(there))


def _numbers(origin: Origin, column: Any, name: str) -> NDArray[np.float64]:
    kind = getattr(column.dtype, "kind", "O")
    if kind in "iufb":
        return np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))
    values = np.empty(len(column))
    missing = np.asarray(column.isna())
    for index, value in enumerate(column):
        if missing[index]:
            values[index] = np.nan
        elif isinstance(value, (int, float, np.number, np.bool_)):
            values[index] = float(value)
        else:
            message = f"not a number ({type(value).__name__})"
            raise origin.fault("not-a-number", message, column=name, index=index)
    return values
