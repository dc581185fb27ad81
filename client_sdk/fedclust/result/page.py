"""A report as one printable HTML page: see :mod:`fedclust.result.markup`."""

import functools
import re
from collections.abc import Sequence
from dataclasses import replace
from html import escape

from fedclust.result.drawing import short
from fedclust.result.facts import Facts
from fedclust.result.figures.plots import Plots
from fedclust.result.figures.profile import curves_of, mean_of
from fedclust.result.first_screen import counted_persons, fact_lines, html_first_screen
from fedclust.result.markup import (
    Section,
    html_chapters,
    html_document,
    html_facts,
    html_figure,
    html_folded,
    html_paragraphs,
    html_records,
    html_table,
)
from fedclust.result.methods_text import bibtex, methods_text
from fedclust.result.one_cloud import NOT_MEASURED, apart_text, measured_again, verdict
from fedclust.result.outcomes import html_outcomes, noise_notes
from fedclust.result.sweep import sweep_table
from fedclust.result.table_one import table_one
from fedclust.result.wording import (
    equal_text,
    from_markdown,
    isolated,
    listed,
    named_values,
    percent,
    time_text,
)
from fedclust.schema.encoding import Column

#: Cohen, "Statistical Power Analysis for the Behavioral Sciences", 1988: small, medium, large.
_PREDICTS = ((0.5, "strongly"), (0.3, "moderately"), (0.1, "weakly"), (0.0, "hardly"))


def html(facts: Facts) -> str:
    """Return the page."""
    heading = f"<h1>{escape(facts.definition.title or facts.definition.name)}</h1>"
    return html_document(f"{facts.definition.name}: clusters", heading + body(facts))


def body(facts: Facts) -> str:
    """Return all that a report says: the first screen, then chapters to unfold.

    The HTML has no styles or scripts, and no ids but those of chapters.
    """
    said = html_first_screen(facts) + html_chapters(sections(facts))
    return re.sub(r"\bp (=|&lt;) (?=\d)", "p\u00a0\\1\u00a0", said)  # no line breaks in a p-value


def sections(facts: Facts) -> tuple[Section, ...]:
    """Return the chapters in the order of a paper, without those that the result lacks."""
    plots = Plots(facts)
    found = (
        Section("participants", "Who took part", _participants(facts)),
        Section("clusters", "Each cluster in numbers", _clusters(facts, plots)),
        Section("outcomes", "Outcomes", html_outcomes(facts, plots.forest, plots.survival)),
        Section("holds", "Does it hold?", _holds(facts, plots)),
        Section("methods", "Methods", _methods(facts)),
        Section("provenance", "Provenance", _provenance(facts, plots)),
    )
    return tuple(section for section in found if section.html)


def _participants(facts: Facts) -> str:
    definition, quality = facts.definition, facts.result.quality
    answered = facts.sites
    absent = [site for site in definition.sites if site not in answered]
    persons = "" if quality is None else f"{counted_persons(quality.n_rows)} at "
    lines = [f"{persons}{len(answered)} of {len(definition.sites)} invited sites took part."]
    if absent:
        lines.append(f"No answers came from {listed(absent)}.")
    if quality is not None and quality.n_left_out:
        lines.append(
            f"{counted_persons(quality.n_left_out)} were left out, because values are missing in "
            "their groups."
        )
    if definition.policy.protection != "none":
        lines.append(
            f"Sites count persons in groups of at least {definition.policy.min_group_size} similar "
            "persons, and give a group its middle value. Persons in no group are in no cluster."
        )
    lines.append("This is a simulation." if facts.provenance is None else "Rows stayed at sites.")
    return html_paragraphs(lines)


def _clusters(facts: Facts, plots: Plots) -> str:
    """Return sizes by site, the profile, and the centroids where these differ from it."""
    whose = "your site's persons" if facts.own_site else "each site's persons"
    mix = html_figure(
        plots.mix, f"Share of each cluster among all persons and among {whose}, by its number."
    )
    no_bands = " No bands: the spread within a cluster cannot be known well from groups."
    curves = "".join(
        html_figure(
            functools.partial(plots.trajectory, each.name),
            f"{each.name} over time: for each cluster the values of the table below."
            f"{no_bands * facts.of_groups}",
        )
        for each in curves_of(facts)
    )
    parts = (_site_sizes(facts), mix, curves, _profile(facts), _centroids(facts))
    return "".join(parts) + _tree(facts)


def _tree(facts: Facts) -> str:
    """Return the paragraph about the tree; nothing for a method that builds none."""
    if facts.result.dendrogram is None:
        return ""
    said = "In Python, result.plot.tree() draws the tree; result.linkage_ is scipy's form of it."
    of = " It is of groups of persons: it cannot tell which clusters of persons join first."
    return html_paragraphs([said + of * facts.of_groups])


def _profile(facts: Facts) -> str:
    """Return table 1 without what other chapters say, and which traits cannot be seen."""
    profile = facts.result.profile
    if profile is None and facts.result.outcomes is None:
        return ""
    equal = "" if profile is None else equal_text(profile.all_equal)
    said = f"All records are equal in {equal}: a trait that few persons have there cannot be seen."
    table = table_one(facts)
    elsewhere = {*noise_notes(facts.result.outcomes), verdict(facts.result)}
    notes = tuple(note for note in table.footnotes if note not in elsewhere)
    return replace(table, footnotes=notes).html() + html_paragraphs([said] if equal else [])


def _unit(column: Column) -> str:
    if column.kind != "binary":
        return column.unit
    return f"share ({column.unit})" if column.unit else "share"


def _site_sizes(facts: Facts) -> str:
    """Return persons by cluster and site, with shares."""
    parts = facts.result.site_sizes
    shown = sorted(parts)
    columns = [facts.result.sizes or (None,) * len(facts.clusters), *(parts[s] for s in shown)]
    totals = [sum(size or 0 for size in sizes) for sizes in columns]
    by_groups = ", counted by groups of similar persons"
    counted = by_groups * (facts.definition.policy.protection != "none")
    return html_table(
        f"Persons in each cluster{counted}, with the share of the column's persons.",
        ["", "all sites", *map(facts.site_name, shown)],
        [
            *(
                [
                    isolated(facts.cluster_names[k]),
                    *(_part(sizes[k], n) for sizes, n in zip(columns, totals, strict=True)),
                ]
                for k in range(len(facts.clusters))
            ),
            ["all", *(total or None for total in totals)],
        ],
    )


def _part(size: int | None, total: int) -> str | None:
    if size is None or not total:
        return None if size is None else str(size)
    return f"{size} ({percent(size / total)})"


def _centroids(facts: Facts) -> str:
    """Return how centroids label; their numbers only where no profile describes the persons."""
    labels = "A person belongs to the cluster with the nearest centroid in the scaled space."
    if facts.result.prototypes is not None:
        labels = (
            f"Here {len(facts.result.prototypes)} prototypes stand for the clusters: a person "
            "belongs to the cluster of the nearest one, not of the nearest centroid."
        )
    if facts.result.profile is not None:
        return f"<p>{escape(labels)} The values above describe the persons of each cluster.</p>"
    shares = "100 % for the commonest value and 0 % for the others"
    shares = "the share" if facts.result.dissimilarity == "euclidean" else shares
    return html_table(
        "The centroids in own units: under a logarithm transformed back, so a geometric mean; of "
        f"yes/no columns and levels {shares}. A dash: unknown. {labels}",
        ["column", "unit", *map(isolated, facts.cluster_names)],
        [
            [column.name, _unit(column), *(mean_of(each[j]) for each in facts.centroids)]
            for j, column in enumerate(facts.columns)
        ],
        text=(1,),
    )


def _holds(facts: Facts, plots: Plots) -> str:
    """Return what tells whether the clusters are more than chance, each below its heading."""
    parts = {
        "Number of clusters": _choice(facts, plots),
        "Stability": _stability(facts),
        "Sites": html_paragraphs(site_sentences(facts)),
        "Bounds": _bounds(facts),
        "Likelihood": _likelihood(facts),
        "Quality": _quality(facts),
    }
    return "".join(f"<h3>{title}</h3>{part}" for title, part in parts.items() if part)


def _choice(facts: Facts, plots: Plots) -> str:
    reported, said = facts.result.n_clusters, verdict(facts.result)
    content = html_paragraphs([said] if said else [])
    if not facts.result.sweep:
        return content
    header, rows = sweep_table(facts.result.sweep)
    table = html_table(
        "Every number of clusters that was tried. The silhouette is the simplified one, over "
        f"{facts.measured_on}.",
        header,
        [[f"{k}{' (shown here)' * (k == reported)}", *measures] for k, *measures in rows],
    )
    figure = html_figure(
        plots.choice,
        "By number of clusters. Agreement of starts: 1 where all random starts agree. A triangle: "
        "the clusters are clearer than one cloud would give.",
    )
    return f"{content}{figure}{table}"


def _stability(facts: Facts) -> str:
    """Return the section's HTML; nothing where stability was not measured."""
    found, measured = facts.result.stability, measured_again(facts)
    if found is None:
        return ""
    rows = [
        {
            "cluster": isolated(facts.cluster_names[k]),
            "compared with one cloud": apart_text(facts.result, k),
            "mean Jaccard": float(found.jaccard[k]) if k in measured else "cannot tell",
            "found again (.75 or more)": percent(found.recovered[k]) if k in measured else "",
            "dissolved (below .5)": percent(found.dissolved[k]) if k in measured else "",
        }
        for k in range(len(facts.clusters))
    ]
    return html_records(
        f"Each cluster in {found.n_models} models of resampled sites and persons. Jaccard: how far "
        "the most similar cluster of a model holds the same persons, 1 where all are the same. "
        f"{NOT_MEASURED * (len(measured) < len(rows))}",
        rows,
        text=(1,),
    )


def site_sentences(facts: Facts) -> tuple[str, ...]:
    """Return how the sites differ; () where they were not compared."""
    found = facts.result.site_differences
    if found is None:
        return ()
    if found.columns is None:
        least = max(facts.definition.policy.min_sites, 3) + 1
        lines = [f"Columns were not compared: it takes at least {least} sites with persons."]
    else:
        lines = [
            f"{facts.site_name(site)} seems to code {listed(map(isolated, columns))} otherwise "
            "than the other sites. Compare units, the direction of scales, and which code means "
            "what; then run the session again."
            for site, columns in sorted(found.columns.items())
        ]
        seems = "Your site does not seem" if facts.own_site else "No site seems"
        lines = lines or [f"{seems} to code a column otherwise than the other sites."]
    if found.cramers_v is None:
        said = "Cannot tell how well the site predicts the cluster: too few groups or sites."
    else:
        degree = next(word for least, word in _PREDICTS if found.cramers_v >= least)
        said = (
            f"The site {degree} predicts the cluster: Cramér's V{' of groups' * facts.of_groups} "
            f"is {short(found.cramers_v)}, from 0 for the same mix of clusters at all sites to 1 "
            "for clusters of one site each."
        )
    return (*lines, said)


def _bounds(facts: Facts) -> str:
    found = facts.result.bounds
    if found is None:
        return ""
    said = (
        f"{_sentence(facts, 'bounds')} Of any {found.n_clusters} centroids within the declared "
        f"bounds, in the scaled space, over all rows. {found.iterations} rounds proved a lower "
        f"bound; in {found.limited} of them a site's search ended at its node limit. The region "
        f"was cut {found.splits} times."
    )
    # The first screen warns where the bounds prove nothing.
    return html_paragraphs([found.statement, said] if found.certified else [said])


def _likelihood(facts: Facts) -> str:
    """Return the section's HTML; nothing for a method without soft clusters."""
    if facts.result.likelihood is None:
        return ""
    said = (
        f"{_sentence(facts, 'likelihood')} The log-likelihood is in the features' own units, after "
        "transforms. Of several numbers of classes the one with the lowest BIC is the best. "
        "Entropy: 0 where every person's class is certain. Relative entropy: 1 where it is, 0 "
        "where all classes are equally probable."
    )
    return html_paragraphs([said])


def _quality(facts: Facts) -> str:
    """Return the figures of quality, but those of a sweep, which has a table of them."""
    if facts.result.quality is None or facts.result.sweep:
        return ""
    said = (
        f"{_sentence(facts, 'quality')} Measured over {facts.measured_on}. A simplified silhouette "
        "near 1, and a low Davies-Bouldin index, mean clusters that are well apart."
    )
    return html_paragraphs([said])


def _sentence(facts: Facts, what: str) -> str:
    line = fact_lines(facts)[what]
    return f"{line[0].upper()}{line[1:]}."


def _methods(facts: Facts) -> str:
    paragraphs = methods_text(facts).rstrip().split("\n\n")
    return html_paragraphs(map(from_markdown, paragraphs)) + html_folded(
        "References (BibTeX)", f"<pre>{escape(bibtex(facts))}</pre>"
    )


def _provenance(facts: Facts, plots: Plots) -> str:
    definition, provenance = facts.definition, facts.provenance
    policy = definition.policy.model_dump(mode="json")
    expires, options = definition.expires, definition.config
    stated = {
        "title": definition.title,
        "contact": definition.contact,
        "approval": definition.approval,
        "no site joined after": "" if expires is None else time_text(expires),
        "completed": "" if facts.completed_at is None else time_text(facts.completed_at),
    }
    rows: list[Sequence[object]] = [
        *([name, said] for name, said in stated.items() if said),
        ["method", f"{definition.algorithm}, version {definition.method_version}"],
        ["rounds that all methods share", f"version {definition.engine_version}"],
        ["options", named_values(options)],
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
    table = html_facts("What the result was made from and with.", rows)
    return f"{table}{submissions}{_rounds(facts, plots)}"


def _rounds(facts: Facts, plots: Plots) -> str:
    figure = html_figure(
        plots.convergence, "Sum of squared distances in the scaled space, by round."
    )
    rows = [
        {
            "round": each.round,
            "phase": each.phase,
            "sites": each.n_sites,
            "inertia": each.inertia,
            "shift of centroids": each.centroid_shift and round(each.centroid_shift, 3),
        }
        for each in facts.result.history
    ]
    gaps = bool(rows) and facts.result.history[-1].round > len(rows)
    said = "Rounds that closed" + ", but those of resampled data" * gaps
    table = html_records(
        f"{said}. {facts.result.n_rounds} rounds of the method, which stopped "
        f"because: {facts.result.stopped_because or 'unknown'}.",
        rows,
        text=(1,),
    )
    return figure + html_folded(f"{len(rows)} rounds", table) * bool(rows)
