"""What commands write, and the checks before a session takes its days."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from fedclust.errors import UsageError
from fedclust.privacy.files import write_atomically
from fedclust.report.tables import FORMATS
from fedclust.results import SiteResult

#: Whether a file's beginning is of what a command writes: that alone may be replaced.
Known = Callable[[bytes], bool]
Output = tuple[Path | None, Known]
_BEGINNING = 2**20
_TOKEN = re.compile(rb"fc[aos]_\S+\s*")


def is_labels(begin: bytes) -> bool:
    """Whether a file begins as :func:`write_labels` begins one."""
    head = next(csv.reader(begin.partition(b"\n")[0].decode(errors="replace").splitlines()), [])
    return len(head) == 2 and head[1] == "cluster"


def is_result(begin: bytes) -> bool:
    """Whether a file begins like a result that ``--result-out`` wrote."""
    return begin.startswith(b"fedclust 1 ") and b"definition" in begin and b"document" in begin


def is_document(begin: bytes) -> bool:
    """Whether a file begins like what ``session result`` writes, in any of its forms."""
    return b"centroids_original" in begin or begin.startswith(b"cluster,size,")


def is_report(begin: bytes) -> bool:
    """Whether a file begins like a report, in any of its forms."""
    page = begin.startswith(b"<!doctype html>") and b"fedclust" in begin
    return page or b'"sets_apart"' in begin or begin.startswith(b"cluster,size,column,feature,")


def is_submission(begin: bytes) -> bool:
    """Whether a file begins like a submission."""
    return b"task_digest" in begin


def is_token(begin: bytes) -> bool:
    """Whether a file is one with a token."""
    return _TOKEN.fullmatch(begin) is not None


def check_outputs(outputs: Sequence[Output], inputs: Sequence[Path]) -> None:
    """Refuse outputs that could not be written, before the hours that they take.

    Nor may one replace what the command reads, another output, or a file of another kind.

    Raises
    ------
    UsageError
    """
    taken = [path.resolve() for path in inputs]
    for path, known in outputs:
        if path is None:
            continue
        if path.exists() and not path.is_file():
            raise UsageError(f"{path} cannot be written: it is no file")
        if path.resolve() in taken:
            raise UsageError(f"{path} would be overwritten: name another file for the output")
        try:
            if path.exists():
                _refuse_stranger(path, known)
            _try_writing(path)
        except OSError as error:
            raise UsageError(f"{path} cannot be written: {error.strerror}") from None
        taken.append(path.resolve())


def check_report(path: Path | None) -> None:
    """Refuse a report's file whose ending says no form."""
    if path is not None and path.suffix.lower() not in FORMATS:
        raise UsageError(f"{path}: a report's file ends in {', '.join(FORMATS)}")


def _refuse_stranger(path: Path, known: Known) -> None:
    # For writing, too: another program may have it open (Windows), or it is there to be read only.
    with path.open("r+b") as file:
        begin = file.read(_BEGINNING)
    if begin and not known(begin):
        raise UsageError(
            f"{path} is there and holds something else: name another file, or move it away"
        )


def _try_writing(path: Path) -> None:
    """Make the file beside it that a write begins with, and remove it: what asking cannot tell."""
    beside = path.with_name(path.name + ".new")
    os.close(os.open(beside, os.O_WRONLY | os.O_CREAT, 0o600))
    beside.unlink()


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


def write_outputs(
    result: SiteResult, labels_out: Path | None, result_out: Path | None, id_column: str | None
) -> None:
    """Write what a session ended with; UsageError after all that could be written."""

    def write_result(path: Path) -> None:
        result.save(path)

    def write_own_labels(path: Path) -> None:
        if result.labels_ is not None:
            write_labels(path, result.labels_, result.ids_, id_column)

    complaints = []
    for path, known, act in (
        (result_out, is_result, write_result),
        (labels_out, is_labels, write_own_labels),
    ):
        try:
            if path is not None:
                # Once more: a session lasts for days, in which anything may come to be there.
                check_outputs(((path, known),), ())
                act(path)
        except UsageError as error:
            complaints.append(str(error))
    if complaints:
        raise UsageError("; ".join(complaints))
