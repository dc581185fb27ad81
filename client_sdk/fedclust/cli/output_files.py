"""Files that commands write, and the checks made before a long session starts."""

import csv
import io
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedclust.durable_files import write_file
from fedclust.result.predictions import DETAILS, Predictions, probability_names
from fedclust.result.result_file import BEGINNING
from fedclust.result.ro_crate import METADATA
from fedclust.result.session_result import SessionResult
from fedclust.result.table_one import FORMATS as TABLE_FORMATS
from fedclust.result.tables import FORMATS
from fedclust.result.wording import spreadsheet_text
from fedclust.wire.errors import UsageError, writing

#: Says whether the beginning of a file shows that a command wrote it: only then is it replaced.
Known = Callable[[bytes], bool]
Output = tuple[Path | None, Known]
_BEGINNING = 2**20


def is_labels(begin: bytes) -> bool:
    """Whether a file begins as :func:`write_labels` or :func:`write_predictions` begins one."""
    head = next(csv.reader(begin.partition(b"\n")[0].decode(errors="replace").splitlines()), [])
    return head[1:] == ["cluster"] or tuple(head[1 : 1 + len(DETAILS)]) == DETAILS


def is_result(begin: bytes) -> bool:
    """Whether a file begins like a result that ``--result-out`` wrote."""
    return begin.startswith(BEGINNING)


def is_document(begin: bytes) -> bool:
    """Whether a file begins like what ``session result`` writes, in any of its forms."""
    crate = begin.startswith(b"PK") and METADATA.encode() in begin
    write_up = b"[@fedclust]" in begin or begin.startswith(b"@misc{fedclust,")
    table = b"centroids_original" in begin or begin.startswith(b"cluster,size,")
    return crate or write_up or (table and not is_result(begin))


def is_report(begin: bytes) -> bool:
    """Whether a file begins like a report, in any of its forms."""
    page = begin.startswith(b"<!doctype html>") and b"fedclust" in begin
    return page or b'"sets_apart"' in begin or begin.startswith(b"cluster,size,column,feature,")


def is_table(begin: bytes) -> bool:
    """Whether a file may be a table 1: an Office file, a page or CSV that fedclust wrote."""
    page = begin.startswith(b"<!doctype html>") and b"<title>Table 1." in begin
    return page or begin.startswith((b"PK\x03\x04", b",All,"))


def is_review(begin: bytes) -> bool:
    """Whether a file begins like a page that ``fedclust review`` wrote."""
    return begin.startswith(b"<!doctype html>") and b"Approval code" in begin


def is_submission(begin: bytes) -> bool:
    """Whether a file begins like a submission."""
    return b"task_digest" in begin


#: Of files whose form follows from their names: what messages call them, and how names end.
_ENDINGS: Final[dict[Known, tuple[str, Sequence[str]]]] = {
    is_report: ("a report", FORMATS),
    is_table: ("table 1", TABLE_FORMATS),
    is_review: ("a review", (".html", ".htm")),
}


def check_outputs(outputs: Sequence[Output], inputs: Sequence[Path]) -> None:
    """Refuse outputs that cannot be written, before the session starts; UsageError.

    An output must not replace an input, another output, or a file of another kind, and some have
    known endings.
    """
    taken = [path.resolve() for path in inputs]
    for path, known in outputs:
        if path is None:
            continue
        if str(path) == "-":
            raise UsageError("- is standard input or output; an output needs a file's name here")
        what, endings = _ENDINGS.get(known, ("", ()))
        if endings and path.suffix.lower() not in endings:
            raise UsageError(f"{path}: the file of {what} ends in {', '.join(endings)}")
        if path.exists() and not path.is_file():
            raise UsageError(f"{path} cannot be written: it is not a file")
        if path.resolve() in taken:
            raise UsageError(f"{path} would be overwritten: name another file for the output")
        with writing(path):
            if path.exists():
                _refuse_stranger(path, known)
            _try_writing(path)
        taken.append(path.resolve())


def _refuse_stranger(path: Path, known: Known) -> None:
    # Opened for writing too: the file may be read-only, or locked by a program on Windows.
    with path.open("r+b") as file:
        begin = file.read(_BEGINNING)
    if begin and not known(begin):
        raise UsageError(
            f"{path} exists and holds something else: name another file, or move it away"
        )


def _try_writing(path: Path) -> None:
    """Create and remove the temporary file that a write begins with; OSError if it fails."""
    temporary = path.with_name(path.name + ".new")
    os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT, 0o600))
    temporary.unlink()


def write_labels(
    path: Path, labels: NDArray[Any], ids: tuple[str, ...] | None, id_column: str | None
) -> None:
    """Write one line for each row: its id, or its number from 0, and its cluster."""
    names = ids or range(len(labels))
    # The cluster is empty where missing values forbid a label.
    rows = ((name, "" if k < 0 else int(k)) for name, k in zip(names, labels, strict=True))
    _write_rows(path, ((id_column or "row", "cluster"), *rows))


def _write_rows(path: Path, rows: Iterable[Iterable[object]]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    write_file(path, text.getvalue().encode())


def write_predictions(
    path: Path,
    found: Predictions,
    id_column: str | None,
    probabilities: NDArray[Any] | None = None,
    cluster_names: Sequence[str] = (),
) -> None:
    """Write one line for each row: its id, or its number from 0, and its prediction.

    The name of its cluster follows, if clusters have names, and then probabilities (n, K). Both are
    empty where missing values forbid a cluster.
    """
    soft = np.empty((len(found), 0)) if probabilities is None else probabilities
    named = ["name"] if cluster_names else []
    rows: list[list[object]] = [
        [id_column or "row", *DETAILS, *named, *probability_names(soft.shape[1])]
    ]
    names = found.ids or range(len(found))
    labels = found.labels.tolist()
    for name, k, row, own in zip(names, labels, found.rows(), soft.tolist(), strict=True):
        own_name = ["" if k < 0 else cluster_names[k] for _ in named]
        cells = (
            f"{value:.4g}" if isinstance(value, float) else value for value in (*row, *own_name)
        )
        fields = (spreadsheet_text(c) if isinstance(c, str) else c for c in cells)
        shares = ("" if value != value else f"{value:.4f}" for value in own)
        rows.append([name, *fields, *shares])
    _write_rows(path, rows)


def write_outputs(
    result: SessionResult, labels_out: Path | None, result_out: Path | None, id_column: str | None
) -> None:
    """Write result and labels; UsageError after everything that could be written."""
    complaints = []
    for path, known in ((result_out, is_result), (labels_out, is_labels)):
        try:
            # Checked again: during a session of days another file may have appeared there.
            check_outputs(((path, known),), ())
            if path is not None and known is is_result:
                result.save(path)
            elif path is not None and result.labels_ is not None:
                write_labels(path, result.labels_, result.ids_, id_column)
        except UsageError as error:
            complaints.append(str(error))
    if complaints:
        raise UsageError("; ".join(complaints))
