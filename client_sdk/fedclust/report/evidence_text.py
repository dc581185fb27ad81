"""What the methods section says of the evidence that a result holds: one function for each kind.

A kind that the session asked for and the result lacks is said to be missing.
"""

from __future__ import annotations

from collections.abc import Callable

from fedclust.report.facts import Facts
from fedclust.report.references import cite
from fedclust.report.wording import in_markdown, variable_text
from fedclust.schema.feature import outcomes_of

__all__ = ["EVIDENCE"]


def _stability(facts: Facts) -> str:
    found = facts.result.stability
    if found is None:
        asked = facts.definition.config.get("stability")
        if not asked:
            return ""
        return (
            f"Stability was to be measured with {asked} models of resampled data; the result does "
            "not hold it."
        )
    jaccard = ", ".join(
        f"{value:.2f} (cluster {cluster.number})"
        for cluster, value in zip(facts.clusters, found.jaccard.tolist(), strict=True)
    )
    text = (
        f"Stability was measured with {found.n_models} k-means models of bootstrap samples: sites "
        "drawn with replacement and, within cells of each site's records, persons drawn with "
        "replacement. The mean Jaccard index of each cluster with the most similar cluster of a "
        f"model {cite('hennig2007')} was {jaccard}."
    )
    if found.ambiguous_share is not None:
        text += (
            f" Of the pairs of persons of one site, {100 * found.ambiguous_share:.0f} % were "
            "ambiguous: together in more than a tenth and less than nine tenths of the models "
            f"{cite('senbabaoglu2014')}."
        )
    if found.prediction_strength is not None:
        text += (
            f" The prediction strength over split halves {cite('tibshirani2005')} was "
            f"{found.prediction_strength:.2f}."
        )
    if found.gap is not None and found.gap_of_one is not None:
        error = "" if found.gap_error is None else f" (standard error {found.gap_error:.3f})"
        text += (
            f" The gap statistic {cite('tibshirani2001')} was {found.gap:.3f}{error}, and "
            f"{found.gap_of_one:.3f} for a single cluster."
        )
    return text


def _transfer(facts: Facts) -> str:
    found = facts.result.transfer
    if found is None:
        if not facts.definition.config.get("transfer"):
            return ""
        return (
            "Each site was to compare the clusters with its own, and with a model made without "
            "that site; the result does not hold it."
        )
    own = [each.own_ari for each in found.sites.values() if each.own_ari is not None]
    rest = [each.left_out_ari for each in found.sites.values() if each.left_out_ari is not None]
    where = "" if facts.own_site is None else " at this site"
    text = "Each site compared the clusters with its own k-means clusters."
    if own:
        text += f" The adjusted Rand index {cite('hubert1985')} was {_range(own)}{where}."
    if rest:
        text += (
            " A k-means model of the other sites' cells, applied to each site, agreed with the "
            f"clusters with an index of {_range(rest)}{where}."
        )
    if found.cramers_v is not None:
        text += (
            f" Cramér's V between site and cluster, corrected for bias {cite('bergsma2013')}, was "
            f"{found.cramers_v:.2f}."
        )
    differing = sum(bool(each.differing_columns) for each in found.sites.values())
    if found.compared and facts.own_site is None:
        text += f" Sites that seemed to code a column otherwise than the others: {differing}."
    return text


def _range(values: list[float]) -> str:
    """Return the least and the greatest of some values, in words."""
    least, most = f"{min(values):.2f}", f"{max(values):.2f}"
    return least if least == most else f"{least} to {most}"


def _outcomes(facts: Facts) -> str:
    declared = outcomes_of(facts.definition.features)
    if not declared:
        return ""
    named = "; ".join(map(variable_text, declared))
    text = f"The outcomes, which were not clustered, were: {named}."
    found = facts.result.outcomes
    if found is None or not found.results:
        return f"{text} Too few persons had a value of them to be compared."
    kinds = {outcome.kind for outcome in found.results}
    compared = [each for outcome in found.results for each in outcome.comparisons]
    text += f" Each cluster was compared with cluster {found.reference}, the largest."
    if "binary" in kinds:
        text += (
            f" Shares have Wilson's intervals {cite('wilson1927')}; odds ratios, risk ratios and "
            "risk differences are crude."
        )
    if any(each.mantel_haenszel is not None for each in compared):
        text += (
            " Stratified by site, they are odds ratios by Mantel and Haenszel "
            f"{cite('mantel1959')}, with the interval of Robins, Breslow and Greenland "
            f"{cite('robins1986')}."
        )
    if "numeric" in kinds:
        text += (
            " Differences of means are in the outcome's unit, and standardised as Hedges' g "
            f"{cite('hedges1981')}."
        )
    if any(each.over_sites is not None for each in compared):
        text += (
            " Effects of the sites were combined by inverse variance, with fixed and with random "
            f"effects {cite('dersimonian1986')}; I2 is the share of their variation that lies "
            f"between sites {cite('higgins2002')}."
        )
    if found.withheld:
        text += (
            " Numbers over all sites and crude effects are withheld of clusters that fewer than "
            f"{facts.definition.policy.min_sites} sites have."
        )
    grouped = {o.name: o.design_effect for o in found.results if o.design_effect != 1.0}
    if grouped:
        effects = ", ".join(
            f"{effect:.2f} ({in_markdown(name)})" for name, effect in grouped.items()
        )
        text += f" Variances allow for groups of similar persons by a design effect of {effects}."
    return f"{text} Intervals are 95 % intervals; p-values are not adjusted for their number."


#: By name, as ``methods_text.SENTENCES``.
EVIDENCE: dict[str, Callable[[Facts], str]] = {
    "stability": _stability,
    "transfer": _transfer,
    "outcomes": _outcomes,
}
