"""What the methods section says of the evidence that a result holds: one function for each kind.

A kind that the session asked for and the result lacks is said to be missing.
"""

from __future__ import annotations

from collections.abc import Callable

from fedclust.engine.model_selection import CLEAR, p_text
from fedclust.result.facts import Facts
from fedclust.result.one_cloud import n_apart
from fedclust.result.outcomes import outcome_sentences
from fedclust.result.privacy_loss import DELTA, epsilon
from fedclust.result.references import cite
from fedclust.result.wording import in_markdown, variable_text
from fedclust.schema.feature import POINTS_TIMES_VARIANCE, outcomes_of
from fedclust.schema.outcomes import Outcomes

__all__ = ["EVIDENCE"]


def _one_cloud(facts: Facts) -> str:
    found = facts.result.one_cloud
    if found is None:
        if not facts.definition.config.get("evidence"):
            return ""
        return "The clusters were to be compared with one cloud; the result does not hold it."
    if found.p is None:
        return f"The clusters were not compared with one cloud. {found.not_judged or ''}"
    text = (
        f"The clusters were compared with one cloud without groups {cite('helgeson2021')}. The "
        f"coordinator drew {found.n_draws} times artificial persons with the one-peaked shape, "
        "spread and correlations of each column of the sites' cells, as a transformed normal "
        f"distribution {cite('cario1997')}, put them through the same groups and cells, and "
        "clustered these. The log of the inertia, relative to that of one cluster, was compared "
        f"with that of the draws {cite('tibshirani2001')} by a t distribution: {p_text(found.p)}."
    )
    if found.cluster_p is None:
        return text
    return (
        f"{text} The separation of each cluster from its nearest neighbour was compared with that "
        f"of the draws' clusters: p was at most {CLEAR:g} for {n_apart(facts.result)} of "
        f"{len(facts.clusters)} clusters."
    )


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
    text = (
        f"The outcomes, which were not clustered, were: {'; '.join(map(variable_text, declared))}."
    )
    found = facts.result.outcomes
    if found is None or not found.results:
        return f"{text} {' '.join(outcome_sentences(facts))}"
    return f"{text} {_counts(found)} {_estimators(found)} {_refused(found)}".rstrip()


def _counts(found: Outcomes) -> str:
    """Return how persons were counted, and what the noise promises."""
    text = (
        "Each site labelled its rows with the final clusters"
        f" (K = {found.n_clusters}) and counted its persons by cluster and cell of each outcome."
    )
    noisy = [each for each in found.results if each.sigma]
    if not noisy:
        return f"{text} The counts are exact."
    points = sum(each.points for each in noisy)
    noise = ", ".join(
        f"{in_markdown(each.name)} {each.sigma:.3g} ({each.points} points)" for each in noisy
    )
    return (
        f"{text} It added discrete Gaussian noise {cite('canonne2020')} to each count, drawn once, "
        f"with these standard deviations: {noise}. For one person with another outcome this is "
        f"zero-concentrated differential privacy {cite('bun2016')} with rho = "
        f"{points / POINTS_TIMES_VARIANCE:.3g}, and epsilon = {epsilon(points):.2f} at delta = "
        f"{DELTA:g} by the Gaussian trade-off {cite('dong2022')}."
    )


def _estimators(found: Outcomes) -> str:
    """Return how clusters were compared, with the papers of the estimators that were used."""
    used = {each.measure for outcome in found.results for each in outcome.comparisons}
    exact = not any(each.sigma for each in found.results)
    text = f"Each cluster was compared with cluster {found.reference}, the largest, within sites."
    if used:
        text += (
            f" Effects solve the estimating equation of Mantel and Haenszel {cite('mantel1959')}"
            f"{'' if exact else ', which noise does not bias'}. Intervals hold the values that its "
            f"test does not reject at 5 % {cite('fieller1954')}"
            f"{'' if exact else '; the variance is that of sample and noise, so some are open'}."
        )
    if exact and "odds_ratio" in used:
        text += (
            f" Odds ratios have intervals by Robins, Breslow and Greenland {cite('robins1986')}, "
            "and were tested for equality over sites by Breslow and Day, with Tarone's correction "
            f"{cite('breslow1980', 'tarone1985')}."
        )
    if any(each.kind == "time" for each in found.results):
        noise = "" if exact else " and that of the noise"
        text += f" Survival is actuarial, with Greenwood's variance {cite('greenwood1926')}{noise}."
    return f"{text} Intervals are 95 % intervals; p-values are not adjusted for their number."


def _refused(found: Outcomes) -> str:
    if not found.refused:
        return ""
    return f"Sites without enough points were not counted: {', '.join(found.refused)}."


EVIDENCE: tuple[Callable[[Facts], str], ...] = (_one_cloud, _stability, _transfer, _outcomes)
