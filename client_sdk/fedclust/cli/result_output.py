"""How a result is shown: its clusters, how clear they are, several K, and bounds."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedclust.cli.console import err, out, show, show_facts, show_table
from fedclust.result.drawing import short
from fedclust.result.facts import Facts
from fedclust.result.first_screen import fact_lines
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
from fedclust.result.wording import equal_text, listed
from fedclust.schema.feature import outcomes_of
from fedclust.schema.outcomes import Outcomes
from fedclust.schema.result import Result


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
    show_facts(result_facts(shown))
    if result.sweep is not None:
        titles, rows = sweep_table(result.sweep)
        show_table(titles, [[short(x) if isinstance(x, float) else x for x in row] for row in rows])
    show_conclusions(result)
    if result.outcomes is not None:
        show_outcomes(result.outcomes, shown.labels)
    elif outcomes_of(shown.definition.features):
        counted = [each.n_clusters for each in result.sweep or () if each.result.outcomes]
        where = f": they were counted at K = {counted[0]} (--k {counted[0]})" if counted else ""
        show(out, f"no outcomes at this K{where}; a session counts them at one K at most")


def result_facts(shown: Facts) -> dict[str, object]:
    """Return how many clusters a result has, of how many persons, and how they were found."""
    quality, profile = shown.result.quality, shown.result.profile
    return {
        "clusters": _clusters_text(shown.result),
        "persons": quality and quality.n_rows,
        "persons_left_out": (quality and quality.n_left_out) or None,
        **fact_lines(shown),
        "records_all_equal": profile and equal_text(profile.all_equal),
    }


def show_conclusions(result: Result) -> None:
    """Print how clear the clusters are; warnings on standard error."""
    if said := verdict(result):
        show(out, said)
    unproven = [result.bounds.statement] if result.bounds and not result.bounds.certified else []
    for warning in (*unproven, *result.warnings):
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
