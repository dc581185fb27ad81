"""A report as one printable HTML page: see :mod:`fedclust.result.markup`."""

from __future__ import annotations

import itertools
from html import escape

from fedclust.engine.stability import found_again
from fedclust.methods.common.description import counted
from fedclust.result.drawing import short
from fedclust.result.facts import ClusterColumn, Facts, Mode
from fedclust.result.figures.map import cluster_places, site_places
from fedclust.result.figures.plots import Plots
from fedclust.result.figures.profile import MOST_COLUMNS, differences, mean_of
from fedclust.result.markup import (
    Section,
    html_document,
    html_figure,
    html_folded,
    html_records,
    html_sections,
    html_table,
    html_warning,
)
from fedclust.result.methods_text import bibtex, methods_text
from fedclust.result.one_cloud import apart_text, verdict
from fedclust.result.outcomes import html_outcomes, outcome_columns, outcome_summary
from fedclust.result.sweep import bic_text, sweep_table
from fedclust.result.wording import (
    equal_text,
    from_markdown,
    isolated,
    listed,
    named_values,
    percent,
    without_noise,
)
from fedclust.schema.encoding import Column
from fedclust.schema.result import ClusterProfile
from fedclust.schema.transfer import SiteTransfer
from fedclust.wire.models import Definition

_TRANSFER_TITLE = "Would each hospital have found this alone?"
#: Cohen, "Statistical Power Analysis for the Behavioral Sciences", 1988: small, medium, large.
_PREDICTS = ((0.5, "strongly"), (0.3, "moderately"), (0.1, "weakly"), (0.0, "hardly"))


def html(facts: Facts) -> str:
    """Return the page."""
    title = f"{facts.definition.name}: clusters"
    heading = f"<h1>{escape(facts.definition.name)}</h1>"
    return html_document(title, heading + html_sections(sections(facts)))


def sections(facts: Facts) -> tuple[Section, ...]:
    """Return all that a report says, in its order; parts that the result lacks are left out.

    The HTML has no ids, styles or scripts.
    """
    plots = Plots(facts)
    found = (
        Section("summary", "Summary", _summary(facts)),
        Section("clusters", "Clusters", _clusters(facts)),
        Section("profile", "Profile", _profile(facts)),
        Section("sizes", "Sizes", _sizes(facts)),
        Section("centroids", "Centroids", _centroids(facts)),
        Section("number", "Number of clusters", _choice(facts)),
        Section("stability", "Stability", _stability(facts)),
        Section("transfer", _TRANSFER_TITLE, _transfer(facts)),
        Section("outcomes", "Outcomes", html_outcomes(facts, plots.forest, plots.survival)),
        Section("bounds", "Bounds", _bounds(facts)),
        Section("likelihood", "Likelihood", _likelihood(facts)),
        Section("quality", "Quality", _quality(facts)),
        Section("methods", "Methods", _methods(facts)),
        Section("provenance", "Provenance", _provenance(facts)),
    )
    return tuple(section for section in found if section.html)


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


def _summary(facts: Facts) -> str:
    definition = facts.definition
    rows = "" if facts.result.quality is None else f" over {facts.result.quality.n_rows} rows"
    when = "" if facts.completed_at is None else f", completed {facts.completed_at:%Y-%m-%d}"
    sites = definition.sites if facts.provenance is None else facts.provenance.sites
    lead = (
        f"{counted(len(facts.clusters), 'cluster')}{rows} at {len(sites)} sites, by "
        f"{escape(definition.algorithm)}{when}. "
        + ("A simulation." if facts.provenance is None else "The sites' rows never left them.")
    )
    warnings = list(facts.result.warnings)
    if facts.result.quality is None:
        warnings.append(
            "There was no closing evaluation: "
            + ("profile" if facts.result.sizes else "sizes, profile")
            + " and quality are not known."
        )
    if facts.result.bounds is not None and not facts.result.bounds.certified:
        warnings.append(facts.result.bounds.statement)
    found = verdict(facts.result)
    finding = f"<p><b>{escape(found)}</b></p>" if found else ""
    finding += "".join(f"<p>{escape(line)}</p>" for line in outcome_summary(facts.result))
    return (
        f"{_purpose(definition)}{finding}<p>{lead}</p><p>{escape(facts.dissimilarity)}</p>"
        f"{''.join(map(html_warning, warnings))}"
    )


def _clusters(facts: Facts) -> str:
    judged = facts.result.one_cloud is not None
    rows = []
    for cluster in facts.clusters:
        differs = "; ".join(differences(cluster)) if cluster.compared else "not known"
        verdicts = [apart_text(facts.result, cluster.number)] if judged else []
        rows.append([cluster.number, cluster.size, percent(cluster.share), *verdicts, differs])
    header = ["cluster", "persons", "share", *["compared with one cloud"] * judged, "what differs"]
    return html_table(
        f"Each cluster, its persons{_by_groups(facts)}, and what differs: columns in which its "
        "mean is half a standard deviation or more from that of all persons, with this difference."
        + " Compared with one cloud: whether the cluster is further from the other clusters than "
        "parts of patients without groups are." * judged,
        header,
        rows,
        text=(3, 4) if judged else (3,),
    )


def _by_groups(facts: Facts) -> str:
    """Return how persons of clusters are counted, unless by rows."""
    protected = facts.definition.policy.protection != "none"
    return ", counted by groups of similar persons" * protected


def _profile(facts: Facts) -> str:
    if facts.result.profile is None:
        return ""
    figure = html_figure(
        Plots(facts).profile,
        "Value of each column and cluster, shares in per cent. Colour, and the number below: the "
        "difference from all persons in standard deviations, blue below and red above. The columns "
        "with the largest gap between two clusters come first.",
    )
    rows = [
        [
            entries[0].column.name,
            entries[0].measure,
            entries[0].column.unit,
            *map(_mean_and_spread, entries),
        ]
        for entries in zip(*(cluster.entries for cluster in facts.clusters), strict=True)
    ]
    rows += _outcome_rows(facts)
    table = html_table(
        "The measure of each column over each cluster's persons, of numbers ± standard deviation; "
        "under a logarithm with the range of one. A dash: no value. Imputed values count."
        + " Outcomes are counted in rows, with 95 % intervals."
        * bool(facts.result.outcomes),
        ["column", "measure", "unit", *(f"cluster {each.number}" for each in facts.clusters)],
        rows,
        text=(1, 2),
    )
    table += _of_records(facts.result.profile) + _modes(facts)
    hidden = len(facts.columns) - MOST_COLUMNS
    left_out = f"<p>The figure leaves out {hidden} columns with the smallest gaps.</p>"
    note = left_out if figure and hidden > 0 else ""
    return f"{figure}{note}{table}{_standardised(facts)}"


def _of_records(profile: ClusterProfile) -> str:
    """Return what to know of columns of which many records hold one value."""
    said = ""
    if profile.typical:
        said = (
            "<p>Where half of a site's records or more hold one value of a column, it has a "
            "typical value or a share of groups: the mean or share of the persons can differ.</p>"
        )
    if profile.all_equal:
        said += (
            f"<p>All records are equal in {escape(equal_text(profile.all_equal))}: a trait that "
            "few persons have there cannot be seen.</p>"
        )
    return said


def _outcome_rows(facts: Facts) -> list[list[str]]:
    """Return the lines of outcomes: share, median, mean or survival with its interval."""
    by_cluster = [list(outcome_columns(facts, cluster.number)) for cluster in facts.clusters]
    return [
        [
            isolated(own[0][0]),
            "share" if own[0][1].is_share else "",
            "" if own[0][1].is_share else own[0][2].unit,
            *(line.text for _, line, _ in own),
        ]
        for own in zip(*by_cluster, strict=True)
    ]


def _standardised(facts: Facts) -> str:
    """Return the numbers that the heat map shows."""
    rows = [
        [column.name, *(_shown(cluster.entries[j].difference) for cluster in facts.clusters)]
        for j, column in enumerate(facts.columns)
    ]
    if not any(entry.difference for each in facts.clusters for entry in each.entries):
        return ""
    numbers = html_table(
        "Value of the cluster minus that of all persons, in standard deviations of all persons.",
        ["column", *(f"cluster {cluster.number}" for cluster in facts.clusters)],
        rows,
    )
    return html_folded("Standardised differences", numbers)


def _shown(difference: float | None) -> str:
    return "–" if difference is None else f"{without_noise(difference):+.2f}"


def _modes(facts: Facts) -> str:
    """Return the commonest level of each categorical feature and cluster, with its share."""
    names = dict.fromkeys(column.feature for column in facts.columns if column.level is not None)
    modes = [{mode.feature: mode for mode in cluster.modes} for cluster in facts.clusters]
    rows = [[name, *(_mode_text(each.get(name)) for each in modes)] for name in names]
    if not rows:
        return ""
    return html_table(
        "Mode of each cluster: the commonest level of each categorical feature, with the share of "
        f"{'groups that hold' if _of_groups(facts) else 'persons who have'} it.",
        ["feature", *(f"cluster {cluster.number}" for cluster in facts.clusters)],
        rows,
        text=tuple(range(1, len(modes) + 1)),
    )


def _of_groups(facts: Facts) -> bool:
    """Whether shares are of groups, and not of persons."""
    entries = (entry for each in facts.clusters for entry in each.entries)
    return any(entry.measure == "share of groups" for entry in entries)


def _mode_text(mode: Mode | None) -> str:
    if mode is None:
        return "–"
    return isolated(mode.level) + ("" if mode.share is None else f" ({percent(mode.share)})")


def _unit(column: Column) -> str:
    if column.kind != "binary":
        return column.unit
    return f"share ({column.unit})" if column.unit else "share"


def _mean_and_spread(entry: ClusterColumn) -> str:
    if entry.column.kind == "binary" or entry.mean is None:
        return mean_of(entry)
    if entry.deviation is not None:
        return f"{short(entry.mean)} ± {short(entry.deviation)}"
    if entry.low is not None:
        return f"{short(entry.mean)} ({short(entry.low)} to {short(entry.high)})"
    return short(entry.mean)


def _sizes(facts: Facts) -> str:
    counts = html_site_sizes(facts)
    of = "your site; grey: the other sites" if facts.own_site else "site"
    sizes = html_figure(Plots(facts).sizes, f"Persons of each cluster by {of}.")
    if not facts.mix:
        return sizes + counts
    whose = "your site's persons" if facts.own_site else "each site's persons"
    shares = html_table(
        f"Mix: the share of each cluster among all persons and among {whose}.",
        ["persons of", *(f"cluster {cluster.number}" for cluster in facts.clusters)],
        [[name, *map(percent, parts)] for name, parts in facts.mix],
    )
    mix = html_figure(
        Plots(facts).mix,
        f"Mix of all persons and of {whose}: the clusters from left to right by number.",
    )
    return sizes + counts + mix + shares


def html_site_sizes(facts: Facts, *, clusters: int | None = None, sites: int | None = None) -> str:
    """Return persons by cluster and site; at most so many clusters and sites."""
    parts = facts.result.site_sizes
    shown = sorted(parts)[:sites]
    hidden = len(parts) - len(shown)
    more = f" {hidden} more sites: to_frame('sites')." if hidden else ""
    return html_table(
        f"Persons in each cluster{_by_groups(facts)}.{more}",
        ["cluster", "all sites", *map(facts.site_name, shown)],
        [
            [cluster.number, cluster.size, *(parts[site][k] for site in shown)]
            for k, cluster in enumerate(facts.clusters[:clusters])
        ],
    )


def _centroids(facts: Facts) -> str:
    figure = html_figure(
        Plots(facts).centroids,
        "The two axes along which all persons differ most: principal components of the sites' "
        "cells in the scaled space. A disc is a centroid, its area the size. A site, ◆, stands at "
        "the mean of its persons' centroids, as its own mean is not known. An arrow shows where a "
        "column rises; the longer, the more it counts on these axes.",
    )
    if figure:
        places = [*enumerate(cluster_places(facts)), *site_places(facts).items()]
        numbers = html_table(
            "Places in the figure.",
            ["cluster or site", "first axis", "second axis"],
            # Without rounding errors; -0.0 becomes 0.
            [[name, *(round(float(at), 3) + 0.0 for at in place)] for name, place in places],
        )
        figure += html_folded("The places", numbers)
    labels = "A person belongs to the cluster with the nearest centroid in the scaled space."
    if facts.result.prototypes is not None:
        labels = (
            f"Here {len(facts.result.prototypes)} prototypes stand for the clusters: a person "
            "belongs to the cluster of the nearest one, not of the nearest centroid."
        )
    euclidean = facts.result.dissimilarity == "euclidean"
    shares = "the share of groups" if _of_groups(facts) else "the share"
    shares = shares if euclidean else "100 % for the commonest value and 0 % for the others"
    table = html_table(
        "The centroids in own units: under a logarithm transformed back, so a geometric mean; of "
        f"yes/no columns and levels {shares}. A dash: unknown. {labels}",
        ["column", "unit", *(f"cluster {cluster.number}" for cluster in facts.clusters)],
        [
            [column.name, _unit(column), *(mean_of(each[j]) for each in facts.centroids)]
            for j, column in enumerate(facts.columns)
        ],
        text=(1,),
    )
    return figure + table


def _choice(facts: Facts) -> str:
    reported = facts.result.n_clusters
    if not facts.result.sweep:
        return ""
    header, rows = sweep_table(facts.result.sweep)
    table = html_table(
        "Every number of clusters that was tried. The silhouette is the simplified one.",
        header,
        [[f"{k}{' (shown here)' * (k == reported)}", *measures] for k, *measures in rows],
    )
    figure = html_figure(
        Plots(facts).choice,
        "By number of clusters. Agreement of starts: 1 where all random starts agree. A triangle: "
        "the clusters are clearer than one cloud would give.",
    )
    content = f"<p>{escape(facts.result.recommendation or '')}</p>"
    flow = html_figure(
        Plots(facts).flow,
        "How the persons of each cluster divide at the next number of clusters. Where each cluster "
        "comes from one, the two agree; ribbons that cross mean that they do not.",
    )
    flows = "".join(
        html_table(
            f"Persons by cluster of {before.n_clusters} (lines) and of {entry.n_clusters}.",
            ["cluster", *map(str, range(entry.flow.shape[1]))],
            [[k, *row] for k, row in enumerate(entry.flow.tolist())],
        )
        for before, entry in itertools.pairwise(facts.result.sweep)
        if entry.flow is not None
    )
    folded = html_folded("Persons by number of clusters", flows) if flow else ""
    return f"{content}{figure}{table}{flow}{folded}"


def _stability(facts: Facts) -> str:
    """Return the section's HTML; nothing where stability was not measured."""
    found = facts.result.stability
    if found is None:
        return ""
    rows = [
        {
            "cluster": cluster.number,
            "found again": f"in {found_again(float(found.recovered[k]))} samples",
            "compared with one cloud": apart_text(facts.result, k),
            "mean Jaccard": float(found.jaccard[k]),
            "found again (.75 or more)": percent(found.recovered[k]),
            "dissolved (below .5)": percent(found.dissolved[k]),
        }
        for k, cluster in enumerate(facts.clusters)
    ]
    clusters = html_records(
        f"Each cluster in {found.n_models} models of resampled sites and persons. Jaccard: how far "
        "the most similar cluster of a model holds the same persons, 1 where all are the same. "
        "Pieces of one cloud are found again too: only the next column tells whether a cluster "
        "stands apart.",
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


def _transfer(facts: Facts) -> str:
    """Return the section's HTML; nothing in a session without transfer."""
    found = facts.result.transfer
    if found is None or not found.sites:
        return ""
    none = "none" if found.compared else "–"
    rows = [
        {
            "site": facts.site_name(site),
            "persons": own.n_rows,
            "own ARI": own.own_ari,
            "own kappa": own.own_kappa,
            "ARI without it": own.left_out_ari,
            "kappa without it": own.left_out_kappa,
            "found alone": own.found_alone or "not known",
            "columns that differ": listed(map(isolated, own.differing_columns)) or none,
        }
        for site, own in sorted(found.sites.items())
    ]
    table = html_records(
        "Own: the site's own k-means against the common clusters. Without it: a model of the other "
        "sites, applied to this site's persons, against the common clusters. ARI: adjusted Rand "
        "index, 1 for the same clusters and 0 for agreement by chance. Kappa: Cohen's, after "
        "matching the clusters. Found alone: yes from an own ARI of .8, partly from .65.",
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


def _bounds(facts: Facts) -> str:
    found = facts.result.bounds
    if found is None:
        return ""
    gap = "–" if found.gap is None else f"{100 * found.gap:.3g} %"
    table = html_records(
        f"Of the inertia of any {found.n_clusters} centroids within the declared bounds, in the "
        f"scaled space, over all rows. {found.iterations} rounds proved a lower bound; in "
        f"{found.limited} of them a site's search ended at its node limit. The region was cut "
        f"{found.splits} times.",
        [
            {
                "lower bound": found.lower,
                "upper bound": found.upper,
                "gap": gap,
                "certified": "yes" if found.certified else "no",
            }
        ],
    )
    statement = found.statement
    content = f"<p>{escape(statement)}</p>" if found.certified else html_warning(statement)
    return f"{content}{table}"


def _likelihood(facts: Facts) -> str:
    """Return the section's HTML; nothing for a method without soft clusters."""
    found = facts.result.likelihood
    if found is None:
        return ""
    return html_records(
        "How well the classes fit, and how certain it is which class a person belongs to. The "
        "log-likelihood is in the features' own units, after transforms. Of several numbers of "
        "classes the one with the lowest BIC is the best. Entropy: 0 where every person's class is "
        "certain. Relative entropy: 1 where it is, 0 where all classes are equally probable.",
        [
            {
                "log-likelihood per person": found.log_likelihood_per_person,
                "free parameters": found.n_parameters,
                "BIC": bic_text(found),
                "entropy per person": found.entropy_per_person,
                "relative entropy": found.relative_entropy,
                "persons": found.n_rows,
            }
        ],
    )


def _quality(facts: Facts) -> str:
    figure = html_figure(
        Plots(facts).convergence, "Sum of squared distances in the scaled space, by round."
    )
    rows = [
        {
            "round": each.round,
            "phase": each.phase,
            "sites": each.n_sites,
            "inertia": each.inertia,
            "shift of centroids": each.centroid_shift and without_noise(each.centroid_shift),
        }
        for each in facts.result.history
    ]
    table = html_records(
        f"Every round that closed. {facts.result.n_rounds} rounds of the method, which stopped "
        f"because: {facts.result.stopped_because or 'unknown'}.",
        rows,
        text=(1,),
    )
    quality = facts.result.quality
    content = "<p>Without a closing evaluation, quality and profile are not known.</p>"
    if quality is not None:
        content = html_records(
            "Of the final clusters. A simplified silhouette near 1, and a low Davies-Bouldin "
            "index, mean clusters that are well apart. Within groups: the share of the persons' "
            "own inertia that lies between persons of one group, where no clustering sees it, as "
            "estimated from the records.",
            [
                {
                    "inertia": quality.inertia,
                    "within groups": percent(quality.share_within),
                    "simplified silhouette": quality.simplified_silhouette,
                    "Davies-Bouldin": quality.davies_bouldin,
                    "persons": quality.n_rows,
                }
            ],
        )
    return f"{content}{figure}{html_folded('The rounds', table)}"


def _methods(facts: Facts) -> str:
    paragraphs = methods_text(facts).rstrip().split("\n\n")
    text = "".join(f"<p>{escape(from_markdown(each))}</p>" for each in paragraphs)
    return text + html_folded("References (BibTeX)", f"<pre>{escape(bibtex(facts))}</pre>")


def _provenance(facts: Facts) -> str:
    definition, provenance = facts.definition, facts.provenance
    policy = definition.policy.model_dump(mode="json")
    rows: list[list[object]] = [
        ["method", f"{definition.algorithm}, version {definition.method_version}"],
        ["rounds that all methods share", f"version {definition.engine_version}"],
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
        if provenance.audit_head is not None:
            rows.append(["audit entry of the completion", provenance.audit_head.noted])
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
    return f"{table}{submissions}"
