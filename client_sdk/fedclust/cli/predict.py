"""``fedclust predict``: the cluster of new patients, in a table or typed on the command line."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from fedclust.cli import options as o
from fedclust.cli.console import ProgressLine, conclude, err, print_json, show, show_facts
from fedclust.cli.output_files import check_outputs, is_labels, write_predictions
from fedclust.cli.result_output import warn_unlabelled
from fedclust.cli.session_options import OneK
from fedclust.data.advice import count_repeated, repeated_text
from fedclust.data.chunks import MISSING
from fedclust.data.row_source import matrix_of
from fedclust.result.drawing import short
from fedclust.result.facts import Cluster, ClusterColumn
from fedclust.result.figures.profile import gaps_of
from fedclust.result.first_screen import in_words
from fedclust.result.predictions import CLOSE, DETAILS, Predictions
from fedclust.result.session_result import SessionResult
from fedclust.schema.encoding import undone
from fedclust.schema.feature import Feature
from fedclust.wire.errors import UsageError

_TRUTH = {"0": 0.0, "1": 1.0, "no": 0.0, "yes": 1.0, "false": 0.0, "true": 1.0}


@dataclass(frozen=True)
class TypedPatient:
    """A patient, the result, and what the result says of the patient.

    Attributes
    ----------
    model : SessionResult
    values : dict of str to (float or None)
        By feature: a number, 0 or 1, or the place of a level; None where missing.
    found : Predictions
        Of this one row.
    """

    model: SessionResult
    values: dict[str, float | None]
    found: Predictions

    @classmethod
    def read(cls, model: SessionResult, texts: Sequence[str]) -> TypedPatient:
        """Read FEATURE=VALUE texts and place the patient; UsageError says what is wrong."""
        if model.rule == "method":
            raise UsageError(
                f"a result of {model.definition.algorithm} with these options places no single "
                "patient: its centroids alone do not tell the cluster. A site that took part "
                "labels its own rows"
            )
        values = _read_values(model.features, texts)
        row = [np.array([math.nan if value is None else value]) for value in values.values()]
        held = [name for name, value in values.items() if value is not None]
        if model.definition.policy.missing != "mask":
            held = list(values)
        elif not held:
            raise UsageError("give at least one value: --value FEATURE=VALUE")
        return cls(model, values, model.place(matrix_of(model.features, row), held))

    @property
    def cluster(self) -> Cluster | None:
        """The patient's cluster; None without a label."""
        k = int(self.found.labels[0])
        return None if k < 0 else self.model.clusters[k]

    @property
    def missing(self) -> list[str]:
        """The features without a value."""
        return [name for name, value in self.values.items() if value is None]

    def facts(self) -> dict[str, Any]:
        """Return the answer for a program."""
        (row,) = self.found.rows()
        outside = int(self.found.outside[0])
        return {
            **dict(zip(DETAILS, row, strict=True)),
            "outside": None if outside < 0 else bool(outside),
            "why": list(self.found.why[0]),
            "close": bool(self.found.close[0]),
            "missing": self.missing,
        }

    def lines(self) -> Mapping[str, str]:
        """Return the answer in words, by subject."""
        cluster = self.cluster
        if cluster is None:
            return {"cluster": "none", "missing": self._missing_text()}
        persons = "" if cluster.size is None else f" ({cluster.size} persons over all sites)"
        label, last = self.model.labels[cluster.number], len(self.model.clusters) - 1
        return {
            "cluster": f"{label} of 0 to {last}{persons}",
            "its persons": in_words(cluster),
            "typical values": ", ".join(gaps_of(cluster)) if cluster.sets_apart else "",
            "margin": self._margin_text(),
            "outside": self._outside_text(cluster),
            "missing": self._missing_text(),
        }

    def _margin_text(self) -> str:
        margin, second = float(self.found.margin[0]), int(self.found.second[0])
        if second < 0:
            return "there is no other cluster"
        label = self.model.labels[second]
        if margin < CLOSE:
            return f"{margin:.2f}: close to cluster {label}, read both"
        return f"{margin:.2f}: clear, the next is cluster {label}"

    def _outside_text(self, cluster: Cluster) -> str:
        outside = int(self.found.outside[0])
        if outside < 0:
            return "not known: the session measured no profile of this cluster"
        if not outside:
            return "no: like the persons that the model saw"
        return "yes: " + "; ".join(self._why_text(name, cluster) for name in self.found.why[0])

    def _why_text(self, name: str, cluster: Cluster) -> str:
        """Return a value that lies outside, and what the cluster has instead."""
        feature = next(each for each in self.model.features if each.name == name)
        value = self.values[name] or 0.0
        entry = next(each for each in cluster.entries if each.column.feature == name)
        if feature.kind == "categorical":
            return f"{name} {(feature.levels or ())[int(value)]}, which hardly anybody had"
        if feature.kind == "binary":
            return f"{name} {'yes' if value else 'no'}, which hardly anybody had"
        unit = f" {feature.unit}" if feature.unit else ""
        lower, upper = feature.lower, feature.upper
        if lower is not None and value < lower:
            return f"{name} {value:g}{unit} is below the bound of {lower:g}"
        if upper is not None and value > upper:
            return f"{name} {value:g}{unit} is above the bound of {upper:g}"
        usual = self._range_text(cluster.number, entry)
        return f"{name} {value:g}{unit}, far from this cluster's {entry.measure} {usual}"

    def _range_text(self, k: int, entry: ClusterColumn) -> str:
        """Return a mean; where it is not of groups also what lies within one SD of it."""
        profile, j = self.model.result.profile, self.model.columns.index(entry.column)
        usual = short(entry.mean)
        if profile is None or self.model.of_groups:
            return usual
        spread = profile.estimated_deviations[k]
        ends = undone(self.model.columns, profile.means[k] + np.array([[-1.0], [1.0]]) * spread)
        return f"{usual} (within one SD: {' to '.join(map(short, ends[:, j].tolist()))})"

    def _missing_text(self) -> str:
        if not self.missing:
            return ""
        names, rule = ", ".join(self.missing), self.model.definition.policy.missing
        if rule == "drop":
            return f"{names}: this model gives no cluster without them"
        if rule == "mask":
            return f"{names}: left out, the other features decide"
        return "; ".join(map(self._imputed_text, self.missing))

    def _imputed_text(self, name: str) -> str:
        columns, impute = self.model.columns, self.model.result.impute
        places = [j for j, column in enumerate(columns) if column.feature == name]
        known = np.zeros(len(columns)) if impute is None else impute
        value, first = float(undone(columns, known[None, :])[0, places[0]]), columns[places[0]]
        if first.block is not None:
            return f"{name}: counts as the shares of its levels in all sites' records"
        if first.kind == "binary":
            return f"{name}: counts as {100 * value:.0f} %, the share of all sites' records"
        unit = f" {first.unit}" if first.unit else ""
        return f"{name}: counts as {short(value)}{unit}, the mean of all sites' records"


def _read_values(features: Sequence[Feature], texts: Sequence[str]) -> dict[str, float | None]:
    known = {feature.name: feature for feature in features}
    values: dict[str, float | None] = dict.fromkeys(known)
    for text in texts:
        name, mark, typed = (part.strip() for part in text.partition("="))
        if not mark:
            raise UsageError(f"--value {text}: write FEATURE=VALUE, for example age=63")
        if name not in known:
            raise UsageError(f"the model has no feature {name!r}: it has {', '.join(known)}")
        if values[name] is not None:
            raise UsageError(f"--value gives {name} twice")
        # As in a table, a level may have the name of a missing value, such as "none".
        missing = typed.casefold() in MISSING and typed not in (known[name].levels or ())
        values[name] = None if missing else _value(known[name], typed)
    return values


def _value(feature: Feature, typed: str) -> float:
    """Return a typed value: a number, 0 or 1, or the place of a level."""
    if feature.kind == "categorical":
        levels = feature.levels or ()
        if typed not in levels:
            raise UsageError(f"{feature.name} is one of {', '.join(levels)}")
        return float(levels.index(typed))
    if feature.kind == "binary":
        if typed.lower() not in _TRUTH:
            raise UsageError(f"{feature.name} is 1 (yes) or 0 (no)")
        return _TRUTH[typed.lower()]
    try:
        number = float(typed)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        unit = f" in {feature.unit}" if feature.unit else ""
        raise UsageError(f"{feature.name} is a number{unit}, with a decimal point")
    return number


app = typer.Typer(rich_markup_mode=None)


class _Given(o.OptionGroup):
    """A table of new rows, or one patient."""

    data: Annotated[str | None, {"metavar": "FILE"}] = None
    """Table of new rows, as for `fedclust participate`."""
    out: Path | None = None
    """CSV file to write: each row's cluster, the next one, the margin, the distance, and whether
    and why the row lies outside what the model saw."""
    id_column: o.IdColumn = None
    value: list[str] | None = None
    """FEATURE=VALUE of one patient, instead of --data; once for each feature. What is left out is
    missing."""
    probabilities: bool = False
    """Write the probability of each cluster too, in columns p0, p1 and so on. Only a method with
    soft clusters has them, such as mixture."""


@o.command(
    app,
    "predict",
    "fedclust predict heart.fedclust --data new.csv --id-column mrn --out labels.csv",
    "fedclust predict classes.fedclust --data new.csv --out labels.csv --probabilities",
    "fedclust predict heart.fedclust --value age=63 --value chol=233 --value sex=1",
)
def predict(
    how: o.Reading,
    result: Annotated[Path, o.arg("File that --result-out wrote.")],
    given: _Given,
    k: OneK = None,
) -> None:
    """Find the cluster of new rows, or of one patient, with a saved result; nothing is sent."""
    if given.value:
        others = (given.data, given.out, given.id_column, given.probabilities or None)
        if any(each is not None for each in others):
            raise UsageError(
                "--value is for one patient: leave out --data, --out, --id-column and "
                "--probabilities"
            )
        _one_patient(_load(result, k), given.value)
        return
    if given.data is None or given.out is None:
        raise UsageError(
            "give --data and --out for a table, or --value FEATURE=VALUE for one patient"
        )
    source = how.source(given.data, o.WhoseRows(id_column=given.id_column))
    check_outputs(((given.out, is_labels),), (result, *source.files))
    loaded = _load(result, k)
    if given.probabilities:
        loaded.require_soft()
    with ProgressLine(at_once=False) as line:
        found = loaded.place_rows(loaded.new_rows(source.rows(line.read), source.id_column))
    soft = found.probabilities if given.probabilities else None
    names = loaded.cluster_names if loaded.named else ()
    write_predictions(given.out, found, source.id_column, soft, names)
    if source.id_column is None:
        show(err, "labels are named by row number only; give --id-column to name the rows")
    n_clusters = loaded.result.n_clusters
    _conclude(found, given.out, "" if n_clusters is None else f" (K = {n_clusters})")


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
