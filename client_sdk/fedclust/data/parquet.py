"""Parquet by pyarrow: a file, or the files of a directory in the order of their names."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from fedclust.data.chunks import Cells, Chunk, Origin, Reader, as_text, extra_missing, reading

_FAULT: Final = "parquet", "this is no Parquet file, or it is damaged"


class ParquetReader(Reader):
    """Parquet, read a batch at a time; at most one row group is decoded.

    Raises
    ------
    DataError
        pyarrow is not installed; the source is no Parquet file.
    """

    def __init__(self, path: Path) -> None:
        self.origin = Origin(path.name)
        with reading(self.origin, *extra_missing("Parquet", "data")):
            import pyarrow.parquet
        self._open: Any = pyarrow.parquet.ParquetFile
        self._paths = [path]
        if path.is_dir():
            # Other programs keep hidden files there, such as ._1.parquet.
            found = path.glob("*.parquet")
            self._paths = sorted(part for part in found if part.name[0] not in "._")
            if not self._paths:
                raise self.origin.fault("no-rows", "the directory holds no *.parquet files")
        self.header: Sequence[str] = []
        self.n_rows = 0
        # The header is that of the first file.
        for part in reversed(self._paths):
            with reading(Origin(part.name), *_FAULT), self._open(part) as file:
                self.header = [name.strip() for name in file.schema_arrow.names]
                self.n_rows += file.metadata.num_rows

    def chunks(self, columns: Sequence[str], text: Sequence[str], rows: int) -> Iterator[Chunk]:
        """Yield batches of at most ``rows`` rows, shorter where a row group ends."""
        self.origin.columns(self.header, columns, text)
        wanted = list(dict.fromkeys([*columns, *text]))
        for path in self._paths:
            origin = Origin(path.name)
            with reading(origin, *_FAULT), self._open(path) as file:
                names = list(file.schema_arrow.names)
                places = origin.columns([name.strip() for name in names], wanted)
                here = {name: names[places[name]] for name in wanted}
                start, part = 0, path.name if len(self._paths) > 1 else None
                # One row group at a time: otherwise all would stay in memory until the end.
                batches = (
                    batch
                    for group in range(file.num_row_groups)
                    for batch in file.iter_batches(
                        batch_size=rows,
                        row_groups=[group],
                        columns=list(here.values()),
                        use_threads=False,
                    )
                )
                for batch in batches:
                    if batch.num_rows:
                        cells = {name: _cells(batch.column(here[name])) for name in columns}
                        kept = {
                            name: as_text(batch.column(here[name]).to_pylist()) for name in text
                        }
                        yield Chunk(batch.num_rows, cells, kept, part=part, start=start)
                        start += batch.num_rows


def _cells(column: Any) -> Cells:
    import pyarrow

    kind = column.type
    if pyarrow.types.is_integer(kind) or pyarrow.types.is_floating(kind):
        return np.asarray(column.to_numpy(zero_copy_only=False))
    if pyarrow.types.is_temporal(kind):
        absent = np.asarray(column.is_null().to_numpy(zero_copy_only=False))
        return np.where(absent, np.datetime64("NaT"), np.datetime64(0, "s"))
    cells: list[Any] = column.to_pylist()
    return cells
