"""Dask arrays and DataFrames, a partition at a time, read without importing Dask."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fedclust.data.arrays import refuse_shape, refuse_text, unmasked
from fedclust.data.chunks import Chunk, Origin, Reader
from fedclust.data.frame import frame_chunk
from fedclust.errors import DataError


def is_dask(source: Any) -> bool:
    """Return whether ``source`` is a Dask array or DataFrame."""
    kind = type(source)
    return kind.__name__ in ("Array", "DataFrame") and kind.__module__.split(".")[0] in (
        "dask",
        "dask_expr",
    )


class DaskArrayReader(Reader):
    """A Dask array (n, d): its columns are the session's features, in the same order.

    One partition is in memory at a time. The number of its rows need not be known.
    """

    named = False

    def __init__(self, source: Any, names: Sequence[str], text: Sequence[str]) -> None:
        self.origin = Origin("the Dask array")
        self.header: Sequence[str] = list(names)
        refuse_text(self.origin, text)
        refuse_shape(self.origin, source, len(names))
        self._rows = source.rechunk({1: -1})

    def chunks(self, columns: Sequence[str], text: Sequence[str], rows: int) -> Iterator[Chunk]:
        """Yield chunks of at most ``rows`` rows, shorter where a partition ends."""
        places = self.origin.columns(self.header, columns, text)
        for number in range(self._rows.numblocks[0]):
            block = unmasked(_compute_partition(self.origin, self._rows.blocks[number], number))
            for start in range(0, len(block), rows):
                part = block[start : start + rows]
                yield Chunk(len(part), {name: part[:, places[name]] for name in columns})


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
