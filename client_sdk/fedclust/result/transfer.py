"""The part of a report that says whether each site would have found the clusters alone."""

from __future__ import annotations

from html import escape

from fedclust.result.drawing import short
from fedclust.result.facts import Facts
from fedclust.result.figures.plots import Plots
from fedclust.result.markup import html_figure, html_folded, html_table
from fedclust.result.wording import isolated, listed
from fedclust.schema.transfer import SiteTransfer

__all__ = ["TRANSFER_TITLE", "html_transfer", "transfer_sentences"]

TRANSFER_TITLE = "Would each hospital have found this alone?"
#: Cohen, "Statistical Power Analysis for the Behavioral Sciences", 1988: small, medium, large.
_PREDICTS = ((0.5, "strongly"), (0.3, "moderately"), (0.1, "weakly"), (0.0, "hardly"))


def html_transfer(facts: Facts) -> str:
    """Return the section's HTML; nothing in a session without transfer."""
    found = facts.result.transfer
    if found is None or not found.sites:
        return ""
    header = [
        "site",
        "persons",
        "own ARI",
        "own kappa",
        "ARI without it",
        "kappa without it",
        "found alone",
        "columns that differ",
    ]
    rows = [
        [
            facts.site_name(site),
            own.n_rows,
            own.own_ari,
            own.own_kappa,
            own.left_out_ari,
            own.left_out_kappa,
            own.found_alone or "not known",
            listed(map(isolated, own.differing_columns)) or ("none" if found.compared else "–"),
        ]
        for site, own in sorted(found.sites.items())
    ]
    table = html_table(
        "Own: the site's own k-means against the common clusters. Without it: a model of the other "
        "sites, applied to this site's persons, against the common clusters. ARI: adjusted Rand "
        "index, 1 for the same clusters and 0 for agreement by chance. Kappa: Cohen's, after "
        "matching the clusters. Found alone: yes from an own ARI of .8, partly from .65.",
        header,
        rows,
        text=(6, 7),
    )
    sentences = "".join(f"<p>{escape(line)}</p>" for line in transfer_sentences(facts))
    counts = "".join(
        _counts(facts.site_name(site), own) for site, own in sorted(found.sites.items())
    )
    figure = html_figure(
        Plots(facts).own_clusters,
        "Where the persons of each own cluster are in the common ones. Own clusters have the "
        "numbers of the common clusters that they were matched with; a gap is one that the site "
        "did not find.",
    )
    folded = html_folded("Persons by own and common clusters", counts)
    return f"{sentences}{table}{figure}{folded}"


def _counts(name: str, own: SiteTransfer) -> str:
    parts = []
    for table, what in (
        (own.own_table, "clusters of its own (lines)"),
        (own.left_out_table, "clusters of the model made without it (lines)"),
    ):
        if table is not None:
            parts.append(
                html_table(
                    f"{name}: persons by {what} and by common cluster.",
                    ["", *(f"cluster {k}" for k in range(table.shape[1]))],
                    [[k, *row] for k, row in enumerate(table.tolist())],
                )
            )
    return "".join(parts)


def transfer_sentences(facts: Facts) -> tuple[str, ...]:
    """Return what a reader has to know of the table; () in a session without transfer."""
    found = facts.result.transfer
    if found is None:
        return ()
    lines = []
    for site, own in sorted(found.sites.items()):
        if own.differing_columns:
            names = listed(map(isolated, own.differing_columns))
            lines.append(
                f"{facts.site_name(site)} seems to code {names} otherwise than the other sites. "
                "Compare units, the direction of scales, and which code means what; then run the "
                "session again."
            )
    if not lines and found.compared:
        whose = "Your site" if facts.own_site else "No site"
        seems = "does not seem" if facts.own_site else "seems"
        lines.append(f"{whose} {seems} to code a column otherwise than the other sites.")
    if not found.compared:
        least = max(facts.definition.policy.min_sites, 3) + 1
        lines.append(f"Columns were not compared: it takes at least {least} sites with persons.")
    if found.cramers_v is not None:
        degree = next(word for least, word in _PREDICTS if found.cramers_v >= least)
        lines.append(
            f"The site {degree} predicts the cluster: Cramér's V is {short(found.cramers_v)}, from "
            "0 for the same mix of clusters at all sites to 1 for clusters of one site each."
        )
    return tuple(lines)
