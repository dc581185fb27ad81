"""The part of a report that says how often the clusters are found again in resampled data."""

from __future__ import annotations

from html import escape

from fedclust.engine.stability import found_again
from fedclust.result.facts import Facts
from fedclust.result.figures.plots import Plots
from fedclust.result.markup import html_figure, html_table
from fedclust.result.one_cloud import apart_text
from fedclust.result.wording import percent

__all__ = ["html_stability"]


def html_stability(facts: Facts) -> str:
    """Return the section's HTML; nothing where stability was not measured."""
    found = facts.result.stability
    if found is None:
        return ""
    rows = [
        [
            cluster.number,
            f"in {found_again(float(found.recovered[k]))} samples",
            apart_text(facts.result, k),
            float(found.jaccard[k]),
            percent(found.recovered[k]),
            percent(found.dissolved[k]),
        ]
        for k, cluster in enumerate(facts.clusters)
    ]
    clusters = html_table(
        f"Each cluster in {found.n_models} models of resampled sites and persons. Jaccard: how far "
        "the most similar cluster of a model holds the same persons, 1 where all are the same. "
        "Pieces of one cloud are found again too: only the next column tells whether a cluster "
        "stands apart.",
        [
            "cluster",
            "found again",
            "compared with one cloud",
            "mean Jaccard",
            "found again (.75 or more)",
            "dissolved (below .5)",
        ],
        rows,
        text=(1, 2),
    )
    bars = html_figure(
        Plots(facts).stability,
        "Mean Jaccard index of each cluster over the samples, and whether it stands apart.",
    )
    return f"{_ambiguous(found.ambiguous_share)}{bars}{clusters}"


def _ambiguous(share: float | None) -> str:
    if share is None:
        return ""
    text = (
        f"Ambiguous pairs: {percent(share)} of the pairs of persons of one site are together in "
        "more than a tenth and less than nine tenths of the models."
    )
    return f"<p>{escape(text)}</p>"
