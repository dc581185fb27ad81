"""The part of a report that says how stable the clusters are."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from fedclust.engine.stability import STRONG, band
from fedclust.report.facts import Facts
from fedclust.report.figures import Plots
from fedclust.report.markup import html_figure, html_table
from fedclust.schema.evidence import Stability
from fedclust.schema.result import SweepEntry

__all__ = ["html_stability", "stability_columns"]


def stability_columns(entries: Sequence[SweepEntry]) -> tuple[list[str], list[list[object]]]:
    """Return more titles for a table of numbers of clusters, and more cells for each of its lines.

    Both are empty where no number of clusters was compared with other models.
    """
    found = [entry.result.stability for entry in entries]
    if not any(found):
        return [], [[] for _ in found]
    cells: list[list[object]] = [
        [each and float(each.jaccard.min()), each and each.prediction_strength, each and each.gap]
        for each in found
    ]
    return ["least stable cluster (Jaccard)", "prediction strength", "gap"], cells


def html_stability(facts: Facts) -> str:
    """Return the section's HTML; nothing where stability was not measured."""
    found = facts.result.stability
    if found is None:
        return ""
    rows = [
        [
            cluster.number,
            float(found.jaccard[k]),
            band(float(found.jaccard[k])),
            f"{100 * found.recovered[k]:.0f} %",
            f"{100 * found.dissolved[k]:.0f} %",
        ]
        for k, cluster in enumerate(facts.clusters)
    ]
    clusters = html_table(
        f"Each cluster in {found.n_models} models of resampled sites and persons. Jaccard: how far "
        "the most similar cluster of a model holds the same persons, 1 where all are the same. "
        "Bands by Hennig: below .6 not a cluster to rely on, from .6 a pattern, from .75 stable, "
        "from .85 highly stable.",
        ["cluster", "mean Jaccard", "band", "found again (.75 or more)", "dissolved (below .5)"],
        rows,
        text=(2,),
    )
    consensus = html_table(
        "Consensus: the probability that a model puts two persons into one cluster, by their "
        "clusters here. Near 1 on the diagonal and near 0 elsewhere, the clusters keep apart.",
        ["cluster", *(f"with {cluster.number}" for cluster in facts.clusters)],
        [
            [cluster.number, *(float(value) for value in found.consensus[k])]
            for k, cluster in enumerate(facts.clusters)
        ],
    )
    sentences = "".join(f"<p>{escape(line)}</p>" for line in stability_sentences(found))
    bars = html_figure(
        Plots(facts).stability, "Mean Jaccard index of each cluster, in the bands by Hennig."
    )
    mixed = html_figure(
        Plots(facts).consensus,
        "Two clusters whose cell is dark are often one in the models: few data tell them apart.",
    )
    return f"{sentences}{bars}{clusters}{mixed}{consensus}"


def stability_sentences(found: Stability) -> tuple[str, ...]:
    """Return what the measures of all clusters together say, in sentences."""
    lines = []
    if found.ambiguous_share is not None:
        lines.append(
            f"Ambiguous pairs: {100 * found.ambiguous_share:.0f} % of the pairs of persons of one "
            "site are together in more than a tenth and less than nine tenths of the models."
        )
    if found.prediction_strength is not None:
        says = "reach" if found.prediction_strength >= STRONG else "do not reach"
        lines.append(
            f"Prediction strength {found.prediction_strength:.2f}: the clusters {says} "
            f"{STRONG}, from which on one half of the persons predicts the other's clusters."
        )
    if found.gap is not None and found.gap_error is not None and found.gap_of_one is not None:
        k = len(found.jaccard)
        favoured = found.gap_of_one < found.gap - found.gap_error
        says = f"it speaks for {k} clusters" if favoured else "it speaks for one cluster"
        lines.append(
            f"Gap statistic {found.gap:.3f} (standard error {found.gap_error:.3f}) for {k} "
            f"clusters and {found.gap_of_one:.3f} for one: of the two, {says}."
        )
    return tuple(lines)
