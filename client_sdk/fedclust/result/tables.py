"""A report for programs: JSON, and CSV with one line for each cluster and column."""

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePath
from typing import Any

from fedclust.numeric.canonical import tolerant_argmax
from fedclust.result.facts import Cluster, ClusterColumn, Facts, as_mean, centroid_columns
from fedclust.result.outcomes import count_rows, outcome_columns
from fedclust.result.wording import plain, spreadsheet_text
from fedclust.schema.encoding import blocks_of, columns_of
from fedclust.schema.feature import clustered
from fedclust.schema.outcomes import Outcomes
from fedclust.schema.result import Likelihood, Result
from fedclust.wire.errors import UsageError
from fedclust.wire.models import ResultDocument

#: Endings of a report's file.
FORMATS = (".html", ".json", ".csv")
_COLUMNS = "cluster size column feature level kind unit measure value sd difference"
_OF_OUTCOMES = ("lower", "upper", "sigma")
_HEADER = (*_COLUMNS.split(), *_OF_OUTCOMES, "name")


#: Parts of a result that a report as JSON has as they are, and that the commands have, too.
_AS_THEY_ARE = ("quality", "history", "stability", "site_differences", "outcomes")
_COMMON = ("stopped_because", "warnings", "choice", "tied", "recommendation", "one_cloud")


def report_bytes(facts: Facts, path: str | PurePath) -> bytes:
    """Return a report in the form given by the ending of a file's name.

    Raises
    ------
    UsageError
        For another ending than ``FORMATS``.
    """
    ending = PurePath(path).suffix.lower()
    if ending == ".json":
        return json_text(facts).encode()
    if ending == ".csv":
        return csv_text(facts).encode()
    if ending == ".html":
        from fedclust.result.page import html

        return html(facts).encode()
    raise UsageError(f"{path}: a report's file ends in {', '.join(FORMATS)}")


def json_text(facts: Facts) -> str:
    """Return all facts as one JSON object; unknown values are null."""
    result = facts.result
    sweep = [
        {
            **entry.model_dump(mode="json", exclude={"result", "n_rows"}),
            "likelihood": _likelihood_fields(entry.result.likelihood),
            "one_cloud": entry.result.one_cloud,
            "shown": entry.n_clusters == result.n_clusters,
        }
        for entry in result.sweep or ()
    ]
    return json.dumps(
        {
            "session": facts.definition.name,
            "completed_at": None if facts.completed_at is None else facts.completed_at.isoformat(),
            **common_fields(result),
            "clusters": [
                _cluster(facts, cluster, name)
                for cluster, name in zip(facts.clusters, facts.cluster_names, strict=True)
            ],
            "all_equal": result.profile.all_equal if result.profile else None,
            "sizes_by_site": result.site_sizes,
            "likelihood": _likelihood_fields(result.likelihood),
            "sweep": sweep,
            **{name: getattr(result, name) for name in _AS_THEY_ARE},
            **{
                name: getattr(facts, name) for name in ("dissimilarity", "definition", "provenance")
            },
        },
        default=lambda model: model.model_dump(mode="json"),
        ensure_ascii=False,
        allow_nan=False,
        indent=1,
    )


def common_fields(result: Result) -> dict[str, Any]:
    """Return what a report as JSON and ``--json`` of the commands both say of a result."""
    bounds, found = result.bounds, {name: getattr(result, name) for name in _COMMON}
    gap = bounds and {**bounds.model_dump(mode="json"), "gap": bounds.gap}
    return {**found, "rounds": result.n_rounds, "bounds": gap}


def _likelihood_fields(found: Likelihood | None) -> dict[str, Any] | None:
    """Return a likelihood with its figures per person, for JSON."""
    if found is None:
        return None
    return {
        **found.model_dump(mode="json"),
        "log_likelihood_per_person": found.log_likelihood_per_person,
        "entropy_per_person": found.entropy_per_person,
    }


def _cluster(facts: Facts, cluster: Cluster, name: str) -> dict[str, Any]:
    return {
        "cluster": cluster.number,
        "name": name,
        "size": cluster.size,
        "share": cluster.share,
        "sets_apart": [entry.column.name for entry in cluster.sets_apart],
        "modes": [*_modes(facts, cluster.number)],
        "columns": [_column_fields(entry) for entry in cluster.entries],
    }


def _modes(facts: Facts, k: int) -> Iterator[dict[str, Any]]:
    """Yield the commonest level of each categorical feature that is known; of equal ones the first.

    The share is of the cluster's persons; None where shares are not known.
    """
    result, columns = facts.result, facts.columns
    profile = result.profile
    shares = result.centroids_original[k] if profile is None else profile.means[k]
    known = result.mask if profile is None else profile.known
    has_shares = profile is not None or result.dissimilarity == "euclidean"
    for block in blocks_of(columns):
        if known is None or known[k, block].all():
            at = int(block[int(tolerant_argmax(shares[block]))])
            share = as_mean(float(shares[at]), columns[at]) if has_shares else None
            yield {"feature": columns[at].feature, "level": columns[at].level, "share": share}


def _column_fields(entry: ClusterColumn) -> dict[str, Any]:
    column = entry.column
    numbers = (entry.mean, entry.deviation, entry.difference)
    described = (column.name, column.feature, column.level, column.kind, column.unit)
    values = [*described, entry.measure, *numbers]
    return dict(zip(_COLUMNS.split()[2:], values, strict=True))


def csv_text(facts: Facts) -> str:
    """Return the profile, and outcomes with 95 % intervals, as CSV; unknown values are empty."""
    rows = []
    for cluster in facts.clusters:
        name = facts.cluster_names[cluster.number]
        about: dict[str, Any] = {"cluster": cluster.number, "size": cluster.size, "name": name}
        rows += [{**about, **_column_fields(entry)} for entry in cluster.entries]
        for column, line, found in outcome_columns(facts, cluster.number):
            described = {"column": column, "feature": found.name, "level": line.what}
            described |= {"kind": "outcome", "unit": "" if line.is_share else found.unit}
            estimate = vars(line.estimate) if line.estimate else {}
            rows.append({**about, **described, **estimate, "sigma": found.sigma})
    return _csv(_HEADER, rows)


def counts_text(facts: Facts, outcomes: Outcomes) -> str:
    """Return the counts of outcomes as CSV: a line for each site, cluster and cell."""
    rows = list(count_rows(outcomes, facts.cluster_names if facts.named else ()))
    return _csv(rows[0] if rows else (), rows)


def _csv(header: Iterable[str], rows: Iterable[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, [*header], lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _field(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def _field(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return plain(value)
    return spreadsheet_text(str(value))


def centroid_table(document: ResultDocument) -> bytes:
    """Return a result's centroids as CSV: cluster, size (or empty), columns in own units.

    The name of each cluster is last, if somebody named them. What is unknown is empty. A level's
    column is named ``feature=level`` and holds shares. Cluster numbers are the labels, from 0.
    """
    result, columns = document.clustering(), columns_of(clustered(document.features))
    names = document.cluster_names.get(str(len(result.centroids))) or ()
    text = io.StringIO()
    writer = csv.writer(text)
    header = [column.name for column in columns] + ["name"] * any(names)
    writer.writerow(["cluster", "size", *map(spreadsheet_text, header)])
    for k, size in enumerate(result.sizes or (None,) * len(result.centroids)):
        means = [each.mean for each in centroid_columns(result, columns, k)]
        name = [spreadsheet_text(names[k])] if any(names) else []
        shown = [None if mean is None else plain(mean, 10) for mean in means]
        writer.writerow([k, size, *shown, *name])
    return text.getvalue().encode()
