"""``fedclust predict``: the cluster of new patients, in a table or typed on the command line."""

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from fedclust.cli import options as o
from fedclust.cli.console import ProgressLine, conclude, err, print_json, show, show_facts
from fedclust.cli.output_files import check_outputs, is_labels, write_predictions
from fedclust.cli.result_output import warn_unlabelled
from fedclust.cli.session_options import OneK
from fedclust.cli.typed_patient import TypedPatient
from fedclust.data.advice import count_repeated, repeated_text
from fedclust.result.predictions import Predictions
from fedclust.result.session_result import SessionResult
from fedclust.wire.errors import UsageError

app = typer.Typer(rich_markup_mode=None)


@o.command(
    app,
    "predict",
    "fedclust predict heart.fedclust --data new.csv --id-column mrn --out labels.csv",
    "fedclust predict classes.fedclust --data new.csv --out labels.csv --probabilities",
    "fedclust predict heart.fedclust --value age=63 --value chol=233 --value sex=1",
)
# Each parameter is an option, or a group of them, of the command.
def predict(
    how: o.Reading,
    result: Annotated[Path, o.arg("File that --result-out wrote.")],
    data: Annotated[
        str | None,
        o.opt("--data", "Table of new rows, as for `fedclust participate`.", metavar="FILE"),
    ] = None,
    out_path: Annotated[
        Path | None,
        o.opt(
            "--out",
            "CSV file to write: each row's cluster, the next one, the margin, the distance, and "
            "whether and why the row lies outside what the model saw.",
        ),
    ] = None,
    id_column: o.IdColumn = None,
    value: Annotated[
        list[str] | None,
        o.opt(
            "--value",
            "FEATURE=VALUE of one patient, instead of --data; once for each feature. What is left "
            "out is missing.",
        ),
    ] = None,
    probabilities: Annotated[
        bool,
        o.opt(
            "--probabilities",
            "Write the probability of each cluster too, in columns p0, p1 and so on. Only a method "
            "with soft clusters has them, such as mixture.",
        ),
    ] = False,
    k: OneK = None,
) -> None:
    """Find the cluster of new rows, or of one patient, with a saved result; nothing is sent."""
    if value:
        if data is not None or out_path is not None or id_column is not None or probabilities:
            raise UsageError(
                "--value is for one patient: leave out --data, --out, --id-column and "
                "--probabilities"
            )
        _one_patient(_load(result, k), value)
        return
    if data is None or out_path is None:
        raise UsageError(
            "give --data and --out for a table, or --value FEATURE=VALUE for one patient"
        )
    source = how.source(data, o.WhoseRows(id_column))
    check_outputs(((out_path, is_labels),), (result, *source.files))
    loaded = _load(result, k)
    if probabilities:
        loaded.require_soft()
    with ProgressLine(at_once=False) as line:
        found = loaded.place_rows(loaded.new_rows(source.rows(line.read), source.id_column))
    soft = found.probabilities if probabilities else None
    names = loaded.cluster_names if loaded.named else ()
    write_predictions(out_path, found, source.id_column, soft, names)
    if source.id_column is None:
        show(err, "labels are named by row number only; give --id-column to name the rows")
    n_clusters = loaded.result.n_clusters
    _conclude(found, out_path, "" if n_clusters is None else f" (K = {n_clusters})")


def _conclude(found: Predictions, out_path: Path, sweep: str) -> None:
    """Warn of rows that need attention, and say how many were labelled."""
    without = warn_unlabelled(found.labels)
    _warn_outside(found)
    n_ids, n_rows = count_repeated(found.ids or ())
    if n_ids:
        show(err, f"warning: {repeated_text(n_ids, n_rows)}; each row has its own line")
    facts = {
        "rows": len(found),
        "labelled": len(found) - without,
        "close": int(found.close.sum()),
        "outside": int((found.outside > 0).sum()) if (found.outside >= 0).any() else None,
        "repeated_ids": n_ids,
        "labels": str(out_path),
    }
    conclude(f"{len(found) - without} rows labelled: {out_path}{sweep}", facts)


def _load(path: Path, k: int | None) -> SessionResult:
    loaded = SessionResult.load(path)
    return loaded if k is None else loaded.at(k)


def _warn_outside(found: Predictions) -> None:
    """Say how many rows lie outside what the model saw, and in which features most of them do."""
    count = int((found.outside > 0).sum())
    if not count:
        return
    features = Counter(name for names in found.why for name in names)
    most = sorted(features, key=lambda name: (-features[name], name))[:3]
    lie = "1 row lies" if count == 1 else f"{count} rows lie"
    shown = ", ".join(f"{name} ({features[name]})" for name in most)
    show(err, f"warning: {lie} outside what the model saw, most often in {shown}")


def _one_patient(loaded: SessionResult, values: list[str]) -> None:
    patient = TypedPatient.read(loaded, values)
    if o.wants_json():
        print_json(patient.facts())
        return
    show_facts(patient.lines())
