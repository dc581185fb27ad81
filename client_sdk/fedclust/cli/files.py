"""What commands write, and the checks before a session takes its days."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from fedclust.errors import UsageError
from fedclust.privacy.files import write_atomically


def check_outputs(outputs: Sequence[Path | None], inputs: Sequence[Path]) -> None:
    """Refuse outputs that could not be written.

    Nor may one replace what the command reads, or another output.
    """
    taken = [path.resolve() for path in inputs]
    for path in outputs:
        if path is None:
            continue
        if path.exists() and not path.is_file():
            raise UsageError(f"{path} cannot be written: it is no file")
        if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
            raise UsageError(f"{path} cannot be written: the directory is missing or read-only")
        if path.resolve() in taken:
            raise UsageError(f"{path} would be overwritten: name another file for the output")
        taken.append(path.resolve())


def write(path: Path, data: bytes) -> None:
    """Write a file whole or not at all; UsageError where it cannot be written."""
    try:
        write_atomically(path, data)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None


def write_labels(
    path: Path, labels: NDArray[Any], ids: tuple[str, ...] | None, id_column: str | None
) -> None:
    """Write one line for each row: its id, or its number from 0, and its cluster."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([id_column or "row", "cluster"])
    names = ids or range(len(labels))
    # An empty cluster: missing values forbid a label.
    writer.writerows((name, "" if k < 0 else int(k)) for name, k in zip(names, labels, strict=True))
    write(path, text.getvalue().encode())
