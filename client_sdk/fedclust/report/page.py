"""A report as one printable HTML page: see :mod:`fedclust.report.markup`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from html import escape

from fedclust.errors import UsageError
from fedclust.report.drawing import Figure, short
from fedclust.report.facts import ClusterColumn, Facts
from fedclust.report.figures import MOST_COLUMNS, Plots, mean_of
from fedclust.report.markup import html_document, html_folded, html_table
from fedclust.report.wording import named_values, without_noise
from fedclust.wire.models import Definition

__all__ = ["html"]


def html(facts: Facts) -> str:
    """Return the page."""
    title = f"{facts.definition.name}: clusters"
    body = "".join(
        [
            f"<h1>{escape(facts.definition.name)}</h1>",
            _purpose(facts.definition),
            _summary_section(facts),
            _clusters_section(facts),
            _profile_section(facts),
            _sizes_section(facts),
            _positions_section(facts),
            _choice_section(facts),
            _bounds_section(facts),
            _quality_section(facts),
            _provenance_section(facts),
        ]
    )
    return html_document(title, body)


def _purpose(definition: Definition) -> str:
    expires = definition.expires
    content = {
        "Title": definition.title,
        "Purpose": definition.purpose,
        "Contact": definition.contact,
        "Approval": definition.approval,
        "No site joined after": "" if expires is None else f"{expires:%Y-%m-%d %H:%M} UTC",
    }
    return "".join(
        f"<p><b>{name}:</b> {escape(text)}</p>" for name, text in content.items() if text
    )


def _summary_section(facts: Facts) -> str:
    definition = facts.definition
    rows = "" if facts.result.quality is None else f" over {facts.result.quality.n_rows} rows"
    when = "" if facts.completed_at is None else f", completed {facts.completed_at:%Y-%m-%d}"
    count = len(facts.clusters)
    lead = (
        f"{count} cluster{'' if count == 1 else 's'}{rows} at {len(definition.sites)} sites, by "
        f"{escape(definition.algorithm)}{when}. "
        + ("A simulation." if facts.provenance is None else "The sites' rows never left them.")
    )
    content = "".join(f'<p class="warning">{escape(text)}</p>' for text in facts.result.warnings)
    return f"<p>{lead}</p>{content}"


def _clusters_section(facts: Facts) -> str:
    rows = []
    for cluster in facts.clusters:
        size = _persons(cluster.size)
        share = "–" if cluster.share is None else f"{100 * cluster.share:.0f} %"
        apart = _apart(cluster.sets_apart) if cluster.compared else "not known"
        rows.append([cluster.number, size, share, apart])
    table = html_table(
        "Each cluster, its persons, and what sets it apart: columns whose mean lies half a "
        "standard deviation or more from that of all persons, with the difference in standard "
        "deviations.",
        ["cluster", "persons", "share", "what sets it apart"],
        rows,
        text=(3,),
    )
    return f"<h2>Clusters</h2>{table}"


def _apart(entries: Iterable[ClusterColumn]) -> str:
    content = []
    for entry in entries:
        column = entry.column
        unit = f" {column.unit}" if column.unit and column.kind != "binary" else ""
        name = _isolated(column.name)
        content.append(f"{name} {mean_of(entry)}{_isolated(unit)} ({entry.difference:+.1f})")
    return "; ".join(content) or "close to the average of all persons"


def _isolated(text: str) -> str:
    """Isolate a name written from right to left, so that numbers after it keep their order."""
    return text if text.isascii() else f"\u2068{text}\u2069"


def _profile_section(facts: Facts) -> str:
    figure = _figure(
        Plots(facts).profile,
        "Means of each column and cluster; the colour is the difference from the mean of all rows, "
        "in standard deviations: blue below, red above. Shares in per cent.",
    )
    rows = [
        [
            column.name,
            column.unit if column.kind != "binary" else "share",
            *(_mean_and_spread(cluster.entries[j]) for cluster in facts.clusters),
        ]
        for j, column in enumerate(facts.columns)
    ]
    table = html_table(
        "Mean ± standard deviation; under a logarithm the geometric mean, with the range of one "
        "standard deviation. A dash: no value. Imputed values count.",
        ["column", "unit", *(f"cluster {cluster.number}" for cluster in facts.clusters)],
        rows,
        text=(1,),
    )
    hidden = len(facts.columns) - MOST_COLUMNS
    note = f"<p>The figure leaves out {hidden} columns that differ least.</p>" if hidden > 0 else ""
    return f"<h2>Profile</h2>{figure}{note if figure else ''}{table}"


def _mean_and_spread(entry: ClusterColumn) -> str:
    if entry.column.kind == "binary" or entry.mean is None:
        return mean_of(entry)
    if entry.deviation is not None:
        return f"{short(entry.mean)} ± {short(entry.deviation)}"
    if entry.low is not None:
        return f"{short(entry.mean)} ({short(entry.low)} to {short(entry.high)})"
    return short(entry.mean)


def _sizes_section(facts: Facts) -> str:
    sites = sorted(facts.result.site_sizes)
    rows = [
        [
            cluster.number,
            *map(_persons, [cluster.size, *(facts.result.site_sizes[s][k] for s in sites)]),
        ]
        for k, cluster in enumerate(facts.clusters)
    ]
    table = html_table("Persons in each cluster.", ["cluster", "all sites", *sites], rows)
    figure = _figure(Plots(facts).sizes, "Persons of each cluster by site. Grey: other sites.")
    return f"<h2>Sizes</h2>{figure}{table}"


def _persons(size: int | None) -> str:
    return "not measured" if size is None else str(size)


def _positions_section(facts: Facts) -> str:
    figure = _figure(
        Plots(facts).centroids,
        "Centroids in the scaled space, by principal component analysis of the centroids alone: "
        "near means similar on these axes, the area stands for the size.",
    )
    table = html_table(
        "Places in the figure.",
        ["cluster", "first axis", "second axis"],
        [
            [cluster.number, float(x), float(y)]
            for cluster, (x, y) in zip(facts.clusters, facts.axes[0], strict=True)
        ],
    )
    return f"<h2>Centroids</h2>{figure}{html_folded('The numbers', table)}" if figure else ""


def _choice_section(facts: Facts) -> str:
    reported = facts.result.n_clusters
    if not facts.result.sweep:
        return ""
    rows = [
        [
            f"{tried.n_clusters}{' (reported here)' if tried.n_clusters == reported else ''}",
            tried.inertia,
            tried.simplified_silhouette,
            tried.davies_bouldin,
            tried.stability,
        ]
        for tried in facts.result.sweep
    ]
    header = ["clusters", "inertia", "simplified silhouette", "Davies-Bouldin", "stability"]
    table = html_table("Every number of clusters that was tried.", header, rows)
    figure = _figure(
        Plots(facts).choice,
        "By number of clusters. Stability: how far random starts agree, 1 where all do.",
    )
    content = f"<p>{escape(facts.result.recommendation or '')}</p>"
    return f"<h2>Number of clusters</h2>{content}{figure}{table}"


def _bounds_section(facts: Facts) -> str:
    found = facts.result.bounds
    if found is None:
        return ""
    figure = _figure(
        Plots(facts).bounds, "The best bounds so far, by round; where they meet nothing is better."
    )
    gap = "–" if found.gap is None else f"{100 * found.gap:.3g} %"
    table = html_table(
        f"Of the inertia of any {found.n_clusters} centroids within the declared bounds, in the "
        f"scaled space, over all rows. {found.iterations} rounds proved a lower bound; in "
        f"{found.limited} of them a site's search ended at its node limit. The region was cut "
        f"{found.splits} times.",
        ["lower bound", "upper bound", "gap", "certified"],
        [[found.lower, found.upper, gap, "yes" if found.certified else "no"]],
    )
    warned = "" if found.certified else ' class="warning"'
    content = f"<p{warned}>{escape(found.statement)}</p>"
    return f"<h2>Bounds</h2>{content}{figure}{table}"


def _quality_section(facts: Facts) -> str:
    figure = _figure(
        Plots(facts).convergence, "Sum of squared distances in the scaled space, by round."
    )
    rows = [
        [
            each.round,
            each.phase,
            each.n_sites,
            each.inertia,
            None if each.centroid_shift is None else without_noise(each.centroid_shift),
        ]
        for each in facts.result.history
    ]
    table = html_table(
        f"Every round that closed. {facts.result.n_rounds} rounds of the method, which stopped "
        f"because: {facts.result.stopped_because or 'unknown'}.",
        ["round", "phase", "sites", "inertia", "shift of centroids"],
        rows,
        text=(1,),
    )
    quality = facts.result.quality
    content = "<p>Without a closing evaluation, quality and profile are not known.</p>"
    if quality is not None:
        content = html_table(
            "Of the final clusters. A simplified silhouette near 1, and a low Davies-Bouldin "
            "index, mean clusters that are well apart.",
            ["inertia", "simplified silhouette", "Davies-Bouldin", "rows"],
            [
                [
                    quality.inertia,
                    quality.simplified_silhouette,
                    quality.davies_bouldin,
                    quality.n_rows,
                ]
            ],
        )
    return f"<h2>Quality</h2>{content}{figure}{html_folded('The rounds', table)}"


def _provenance_section(facts: Facts) -> str:
    definition, provenance = facts.definition, facts.provenance
    policy = definition.policy.model_dump(mode="json")
    rows: list[list[object]] = [
        ["method", f"{definition.algorithm}, version {definition.method_version}"],
        ["options", named_values(definition.config)],
        ["policy", named_values(policy)],
        ["seed", definition.seed],
        ["sites invited", ", ".join(definition.sites)],
    ]
    if provenance is None:
        rows.append(["run", "a simulation: in one process, without a coordinator"])
        submissions = ""
    else:
        rows += [
            ["sites that answered", ", ".join(provenance.sites)],
            ["definition, SHA-256", provenance.definition_sha256],
            ["coordinator", f"fedclust {provenance.server_version}"],
            ["platform", named_values(provenance.platform)],
        ]
        hashes = html_table(
            "SHA-256 of the bytes of every submission that the reader of this report may know of; "
            "a site's ledger and receipts name its own.",
            ["round", "site", "SHA-256"],
            [[each.round, each.site, each.sha256] for each in provenance.submissions],
            text=(1, 2),
            code=(2,),
        )
        submissions = html_folded(f"{len(provenance.submissions)} submissions", hashes)
    table = html_table(
        "What the result was made from and with.", ["", ""], rows, text=(1,), head=False
    )
    return f"<h2>Provenance</h2>{table}{submissions}"


# --- pieces ---------------------------------------------------------------------------------------


def _figure(draw: Callable[[], Figure], caption: str) -> str:
    """Return a figure, or nothing where the result does not hold what it would show."""
    try:
        drawn = draw().svg
    except UsageError:
        return ""
    return f"<figure>{drawn}<figcaption>{escape(caption)}</figcaption></figure>"
