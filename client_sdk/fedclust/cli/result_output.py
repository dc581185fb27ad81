"""How a result is shown: its clusters, how clear they are, several K, and bounds."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedclust.cli.console import err, out, show, show_facts, show_table
from fedclust.result.drawing import short
from fedclust.result.facts import Facts
from fedclust.result.one_cloud import shown_text, verdict
from fedclust.result.outcomes import (
    COMPARED,
    cluster_table,
    comparison_rows,
    missing_texts,
    noise_text,
)
from fedclust.result.sweep import sweep_table
from fedclust.result.tables import common_fields
from fedclust.result.wording import equal_text, listed, plain
from fedclust.schema.feature import outcomes_of
from fedclust.schema.outcomes import Outcomes
from fedclust.schema.result import Bounds, Result, SweepEntry


def show_result(shown: Facts) -> None:
    """Print the clusters and how they were found; warnings on standard error."""
    result = shown.result
    show_table(
        ["cluster", "persons", *(column.name for column in shown.columns)],
        [
            (
                shown.cluster_names[cluster.number] if shown.named else cluster.number,
                cluster.size,
                *(None if each.mean is None else short(each.mean) for each in centroid),
            )
            for cluster, centroid in zip(shown.clusters, shown.centroids, strict=True)
        ],
    )
    facts = result_facts(result)
    quality = result.quality.model_dump() if result.quality else {}
    named = {"n_rows": "persons", "n_left_out": "persons left out"}
    facts |= {named.get(at, at): short(value) for at, value in quality.items() if value is not None}
    if quality:
        facts["measured on"] = shown.measured_on.partition(";")[0]
    if result.profile is not None and result.profile.all_equal:
        facts["records all equal"] = equal_text(result.profile.all_equal)
    show_facts(facts)
    if result.sweep is not None:
        show_sweep(result.sweep)
    show_conclusions(result)
    if result.outcomes is not None:
        show_outcomes(result.outcomes, shown.labels)
    elif outcomes_of(shown.definition.features):
        counted = [each.n_clusters for each in result.sweep or () if each.result.outcomes]
        where = f": they were counted at K = {counted[0]} (--k {counted[0]})" if counted else ""
        show(out, f"no outcomes at this K{where}; a session counts them at one K at most")


def result_facts(result: Result) -> dict[str, object]:
    """Return how many clusters a result has, and how they were found."""
    return {
        "clusters": _clusters_text(result),
        "rounds": f"{result.n_rounds} (and those of preparation and evaluation)",
        "stopped_because": result.stopped_because,
    }


def show_conclusions(result: Result) -> None:
    """Print how clear the clusters are, and bounds; warnings on standard error."""
    if said := verdict(result):
        show(out, said)
    if result.bounds is not None:
        _show_bounds(result.bounds)
    for warning in result.warnings:
        show(err, f"warning: {warning}")


def script_facts(result: Result) -> dict[str, object]:
    """Return what ``--json`` says of a result: null, or an empty list, is what it does not have."""
    return {
        "clusters": len(result.centroids),
        **common_fields(result),
        "inertia": result.quality and result.quality.inertia,
        "sizes": result.sizes,
    }


def _clusters_text(result: Result) -> str:
    """Return how many clusters a result has; of a sweep also every K that was tried."""
    count = str(len(result.centroids))
    if result.sweep is None:
        return count
    tried = listed(entry.n_clusters for entry in result.sweep)
    return f"{count} (tried K = {tried}; {shown_text(result)})"


def show_sweep(entries: Sequence[SweepEntry]) -> None:
    """Print the measures of every K of a sweep."""
    titles, rows = sweep_table(entries)
    show_table(titles, [[short(x) if isinstance(x, float) else x for x in row] for row in rows])


def show_outcomes(outcomes: Outcomes, labels: Sequence[str]) -> None:
    """Print each outcome by cluster, and compared with the reference cluster."""
    show(out, f"outcomes were counted in rows at K = {outcomes.n_clusters}")
    for found in outcomes.results:
        show(out, f"{found.name}: {noise_text(found)}")
        if found.clusters:
            show_table(*cluster_table(found, labels))
        if found.comparisons:
            show_table(COMPARED, comparison_rows(found, labels))
    for text in missing_texts(outcomes):
        show(out, text)


def _show_bounds(bounds: Bounds) -> None:
    """Print the bounds of the least inertia, and whether they are proven."""
    for name, value in (("lower bound", bounds.lower), ("upper bound", bounds.upper)):
        show(out, f"{name:<16} {'unknown' if value is None else plain(value)}")
    if bounds.gap is not None:
        proven = "certified" if bounds.certified else "not certified"
        show(out, f"{'gap':<16} {100 * bounds.gap:.3g} % ({proven})")
    if not bounds.certified:
        show(err, f"warning: {bounds.statement}")


def warn_unlabelled(labels: NDArray[np.int64]) -> int:
    """Return how many rows have no label, and say so if there are any."""
    without = int((labels < 0).sum())
    if without:
        show(
            err,
            f"warning: {without} of {len(labels)} rows have no label: values are missing, or "
            "levels are not known to the session. fedclust check SESSION --data FILE says in which "
            "columns",
        )
    return without
