"""The part of a report that says how outcomes differ between the clusters."""

from __future__ import annotations

from html import escape

from fedclust.report.drawing import short
from fedclust.report.facts import Facts
from fedclust.report.markup import html_folded, html_table
from fedclust.report.wording import isolated
from fedclust.schema.outcomes import Estimate, OutcomeInCluster, OutcomeResult, SiteEffects

__all__ = ["html_outcomes", "outcome_sentences"]


def html_outcomes(facts: Facts) -> str:
    """Return the section's HTML; nothing in a session without outcomes."""
    found = facts.result.outcomes
    if found is None or not found.results:
        return ""
    sentences = "".join(f"<p>{escape(line)}</p>" for line in outcome_sentences(facts))
    return sentences + "".join(_html_outcome(facts, each) for each in found.results)


def outcome_sentences(facts: Facts) -> tuple[str, ...]:
    """Return what a reader has to know of the comparisons; () in a session without outcomes."""
    found = facts.result.outcomes
    if found is None:
        return ()
    reference = (
        f"Every cluster is compared with cluster {found.reference}, the largest one. Intervals "
        "have a level of 95 %. The p-values are not adjusted for the number of comparisons."
    )
    crude = (
        "Crude: all persons together, as if they were of one site. Stratified: persons are "
        "compared within each site, and the sites' comparisons are combined. Where the two "
        "disagree, sites differ both in their mix of clusters and in the outcome."
    )
    lines = [reference, crude]
    if found.withheld:
        lines.append(
            f"Withheld: fewer than {facts.definition.policy.min_sites} sites have persons with a "
            "value in this cluster. Its numbers over all sites and its crude effects would show "
            "what single sites have. Where several K are compared, all clusters of this K are "
            "withheld, because another K may show their total."
        )
    if facts.definition.policy.protection != "none":
        p = facts.definition.policy.min_group_size
        effects = ", ".join(f"{each.name} {each.design_effect:.1f}" for each in found.results)
        lines.append(
            f"The numbers are those of the groups' records. A group releases an event for none or "
            f"for at least {p} of its persons, so counts differ a little from those of the rows. "
            "Persons of one group are not independent: variances are larger than those of as many "
            f"independent persons, by the design effect ({effects}). All intervals and p-values "
            "allow for it."
        )
    return tuple(lines)


def _html_outcome(facts: Facts, found: OutcomeResult) -> str:
    unit = f" [{isolated(found.unit)}]" if found.unit else ""
    binary = found.kind == "binary"
    header = ["cluster", "persons", *(["events", "share"] if binary else ["mean", "sd"])]
    clusters = html_table(
        "Persons with a value, over all sites."
        + ("" if binary else " The standard deviation includes what lies within groups."),
        header,
        [[k, *_cells(each, binary)] for k, each in enumerate(found.clusters)],
    )
    parts = [clusters, *(_events if binary else _means)(found), _html_sites(facts, found)]
    return f"<h3>{escape(isolated(found.name) + unit)}</h3>{''.join(parts)}"


def _cells(found: OutcomeInCluster, binary: bool) -> list[object]:
    if found.persons is None:
        return ["withheld", None, None]
    if binary:
        return [found.persons, found.events, _interval(found.value, percent=True)]
    return [found.persons, _interval(found.value), found.deviation]


def _events(found: OutcomeResult) -> list[str]:
    if not found.comparisons:
        return []
    crude = html_table(
        "Crude. Odds ratio: Woolf; risk ratio: Katz; difference of the shares: Newcombe.",
        ["cluster", "odds ratio", "risk ratio", "difference"],
        [
            [
                each.cluster,
                _interval(each.odds_ratio),
                _interval(each.risk_ratio),
                _interval(each.risk_difference, percent=True),
            ]
            for each in found.comparisons
        ],
    )
    rows: list[list[object]] = []
    for each in found.comparisons:
        common = each.mantel_haenszel
        if common is None:
            rows.append([each.cluster, *(4 * ["–"])])
            continue
        rows.append(
            [
                each.cluster,
                common.sites,
                _interval(common.odds_ratio),
                _p_value(common.p_value),
                _p_value(common.common_p_value),
            ]
        )
    stratified = html_table(
        "Stratified by site: the odds ratio by Mantel and Haenszel, with the interval of Robins, "
        "Breslow and Greenland. P: of an odds ratio of 1. P of equal odds ratios: of the same odds "
        "ratio at all sites (Breslow, Day, Tarone).",
        ["cluster", "sites", "odds ratio", "p", "p of equal odds ratios"],
        rows,
    )
    pooled = _html_pooled(
        [(each.cluster, each.over_sites) for each in found.comparisons],
        "The sites' odds ratios combined by inverse variance",
        "odds ratio",
    )
    return [crude, stratified, pooled]


def _means(found: OutcomeResult) -> list[str]:
    if not found.comparisons:
        return []
    crude = html_table(
        "Crude. Difference of means: Welch; standardised difference: Hedges' g.",
        ["cluster", "difference of means", "standardised difference"],
        [
            [
                each.cluster,
                _interval(each.mean_difference),
                _interval(each.standardised_difference),
            ]
            for each in found.comparisons
        ],
    )
    pooled = _html_pooled(
        [(each.cluster, each.over_sites) for each in found.comparisons],
        "Stratified: the sites' differences of means combined by inverse variance",
        "difference",
    )
    standardised = _html_pooled(
        [(each.cluster, each.standardised_over_sites) for each in found.comparisons],
        "Stratified: the sites' standardised differences combined by inverse variance",
        "standardised difference",
    )
    return [crude, pooled, standardised]


def _html_pooled(rows: list[tuple[int, SiteEffects | None]], what: str, name: str) -> str:
    shown: list[list[object]] = []
    for cluster, found in rows:
        if found is None:
            shown.append([cluster, *(5 * ["–"])])
            continue
        shown.append(
            [
                cluster,
                found.sites,
                _interval(found.fixed),
                _interval(found.random),
                _interval(found.i2, percent=True),
                _p_value(found.q_p_value),
            ]
        )
    return html_table(
        f"{what}: fixed effect, and random effects by DerSimonian and Laird. I²: the share of the "
        "variation that is between sites. P: of the same effect at all sites (Cochran's Q).",
        ["cluster", "sites", f"{name}, fixed", f"{name}, random", "I²", "p"],
        shown,
    )


def _html_sites(facts: Facts, found: OutcomeResult) -> str:
    if not found.sites:
        return ""
    binary = found.kind == "binary"
    effects = {each.cluster: each.by_site for each in found.comparisons}
    rows = [
        [
            facts.site_name(site),
            k,
            *_cells(each, binary),
            _interval(effects.get(k, {}).get(site)),
        ]
        for site, row in sorted(found.sites.items())
        for k, each in enumerate(row)
    ]
    header = ["site", "cluster", "persons", *(["events", "share"] if binary else ["mean", "sd"])]
    effect = "odds ratio" if binary else "difference of means"
    table = html_table(
        f"By site and cluster, with the {effect} at the site. A dash: the site's persons do not "
        "determine it.",
        [*header, effect],
        rows,
    )
    return html_folded(f"{found.name} by site", table)


def _interval(found: Estimate | None, *, percent: bool = False) -> str:
    if found is None:
        return "–"
    numbers = (found.value, found.lower, found.upper)
    shown = [f"{100 * each:.1f}" if percent else short(each) for each in numbers]
    return f"{shown[0]}{' %' if percent else ''} ({shown[1]} to {shown[2]})"


def _p_value(found: float | None) -> str:
    if found is None:
        return "–"
    return "< .001" if found < 0.001 else f"{found:.3f}"
