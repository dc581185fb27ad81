"""The methods section of a paper about a result: every choice, every figure, and what to cite.

Each function below says one thing, in whole sentences, or nothing if the result does not hold it.
"""

import functools
import math
import re
from collections.abc import Callable
from importlib.metadata import version
from importlib.resources import files

from fedclust.definition import DefinitionError, plan_of
from fedclust.result.drawing import short
from fedclust.result.facts import Facts
from fedclust.result.one_cloud import NOT_MEASURED, measured_again, n_apart, recommended
from fedclust.result.outcomes import missing_texts, outcome_sentences
from fedclust.result.privacy_loss import DELTA, epsilon
from fedclust.result.wording import and_text, in_markdown, named_values, time_text, variable_text
from fedclust.rounds import Plan
from fedclust.rounds.model_selection import CLEAR, p_text, ps_text
from fedclust.schema.display import counted
from fedclust.schema.feature import POINTS_TIMES_VARIANCE, Outcome, outcomes_of
from fedclust.schema.outcomes import Outcomes

_CITED = re.compile(r"@([a-z]+[0-9]*)")
_ENTRY = re.compile(r"^@\w+\{(\w+),\n.*?^\}$", re.MULTILINE | re.DOTALL)
#: Why the rounds of a method ended, as a paper says it.
_ENDED = {
    "converged": "it had converged",
    "finished": "its fixed number of rounds was done",
    "max_rounds": "it had reached this limit",
    "gap": "the gap between the bounds was small enough",
    "too_few_contributors": "too few sites answered the next round",
    "site_left": "a site left",
}
_MISSING = {
    "drop": "{incomplete} were left out{left_out}.",
    "impute": "{missing} were replaced by the mean over all sites, and those of categorical "
    "variables by the shares of the levels.",
    "mask": "Sites could lack variables. {missing} were replaced by the mean over all sites, and "
    "those of categorical variables by the shares of the levels.",
}
_SCALING = {
    "standard": "Each variable was standardised to mean 0 and variance 1 over all sites.",
    "bounds": "Each variable was scaled by its declared bounds, the lower to 0 and the upper to 1.",
    "none": "The variables were not scaled.",
}


def methods_text(facts: Facts) -> str:
    """Return the methods section: paragraphs of plain text with citations as Pandoc reads them.

    The same result gives the same text. What is not known is left out.
    """
    paragraphs = (
        " ".join(filter(None, (sentences(facts) for sentences in paragraph)))
        for paragraph in _PARAGRAPHS
    )
    return "\n\n".join(paragraph for paragraph in paragraphs if paragraph) + "\n"


def bibtex(facts: Facts) -> str:
    """Return the BibTeX entries of everything that the methods section cites."""
    keys = cited(methods_text(facts))
    found = [entry for key, entry in entries().items() if key in keys]
    # A coordinator names its version: characters that no version has are left out.
    plain = re.sub(r"[^\w.+!-]", "", fedclust_version(facts), flags=re.ASCII)
    return "\n\n".join(found).replace("{VERSION}", plain) + "\n"


def fedclust_version(facts: Facts) -> str:
    """Return the version of fedclust that computed the result."""
    return version("fedclust") if facts.provenance is None else facts.provenance.server_version


# --- the study ------------------------------------------------------------------------------------


def _design(facts: Facts) -> str:
    definition, sites = facts.definition, facts.sites
    count = sum(facts.result.sizes or ())
    persons = f"{count} persons" if count else "the persons"
    where = f"{counted(len(sites), 'site')} ({', '.join(sites)})"
    tool = f"fedclust {cite('fedclust')}"
    if facts.provenance is None:
        found = f"We clustered {persons} of {where} in a simulation, in one process, with {tool}."
    else:
        what = (
            "numbers computed from these rows"
            if definition.policy.protection == "none"
            else "numbers about groups of persons"
        )
        if outcomes_of(definition.features):
            what += ", and counts of outcomes,"
        found = (
            f"We clustered {persons} of {where} in a federated analysis with {tool}. The rows "
            f"stayed at the sites, which sent {what} to a coordinator."
        )
    missed = len(definition.sites) - len(sites)
    if missed > 0:
        found += (
            f" Of the {len(definition.sites)} sites invited "
            f"({', '.join(definition.sites)}), {missed} sent nothing."
        )
    return found


def _site_persons(facts: Facts) -> str:
    """Return how many persons the sites had, to readers who see all sites."""
    sizes = facts.result.site_sizes
    if len(sizes) < 2 or set(sizes) != set(facts.sites):
        return ""
    persons = [sum(each) for each in sizes.values()]
    if len(set(persons)) == 1:
        return f"Each site contributed {persons[0]} persons."
    return f"The sites contributed between {min(persons)} and {max(persons)} persons each."


def _completed(facts: Facts) -> str:
    if facts.completed_at is None:
        return ""
    return f"The analysis was completed on {time_text(facts.completed_at)}."


# --- variables ------------------------------------------------------------------------------------


def _variables(facts: Facts) -> str:
    features = [each for each in facts.definition.features if not isinstance(each, Outcome)]
    listed = in_markdown("; ".join(map(variable_text, features)))
    coded = ""
    if any(feature.kind == "categorical" for feature in features):
        coded = " Each level of a categorical variable became a column of 0 and 1."
    return f"The clustering used {counted(len(features), 'variable')}: {listed}.{coded}"


def _missing(facts: Facts) -> str:
    policy = facts.definition.policy
    left_out = ""
    quality = facts.result.quality
    if quality is not None and quality.n_left_out:
        total = quality.n_rows + quality.n_left_out
        left_out = f" ({quality.n_left_out:,} of {total:,} persons)"
    incomplete, missing = "Rows with a missing value in any variable", "Missing values"
    if policy.protection != "none":
        incomplete = "Groups of persons that did not release every variable"
        missing = "Values that a group of persons did not release"
    said = _MISSING[policy.missing]
    return said.format(incomplete=incomplete, missing=missing, left_out=left_out)


def _scaling(facts: Facts) -> str:
    policy = facts.definition.policy
    found = _SCALING[policy.scaling]
    if policy.dissimilarity != "euclidean":
        found = found.replace("Each variable", "Each number").replace("variables", "numbers")
    limits = facts.result.limit
    if limits is None:
        return found
    # A limit is in the scaled space, which contains the weights; yes/no columns are within it.
    deviations = {
        column.name: round(float(limit) / math.sqrt(column.weight), 6)
        for column, limit in zip(facts.columns, limits, strict=True)
        if column.kind == "numeric"
    }
    if not deviations:
        return found
    usual = max(deviations.values())
    fewer = [
        f"{in_markdown(name)} ({value:g})" for name, value in deviations.items() if value < usual
    ]
    return (
        f"{found} Values counted as at most {usual:g} standard deviations from the mean"
        + (f", fewer for {and_text(fewer)}" if fewer else "")
        + "."
    )


def _dissimilarity(facts: Facts) -> str:
    found = facts.dissimilarity.replace("(Huang 1998)", cite("huang1998"))
    found = found.replace("(1971)", cite("gower1971"))
    if facts.definition.policy.missing == "mask":
        found += " It is over the features that both sides of a comparison have."
    return found


# --- protection -----------------------------------------------------------------------------------


def _protection(facts: Facts) -> str:
    policy = facts.definition.policy
    if policy.protection == "none":
        return "The sites computed with their exact rows."
    but = ", except counts of outcomes," if outcomes_of(facts.definition.features) else ""
    return (
        f"For protection, each site put its persons into groups of at least "
        f"{policy.min_group_size} similar persons (Ward's criterion {cite('ward1963')}; in large "
        "tables within or by cuts along principal axes; where values were missing, groups were "
        "larger). Each group released one record: of each variable the rounded median of its "
        f"persons, or the commonest category. Everything that left a site{but} was computed from "
        "these records, weighted by persons."
    )


def _typical(facts: Facts) -> str:
    profile, said = facts.result.profile, []
    if profile is not None and profile.typical:
        said.append(
            f"Clusters are described by typical values and shares of groups in "
            f"{and_text([in_markdown(name) for name in profile.typical])}, for half of a site's "
            "records or more hold one value there."
        )
    if profile is not None and profile.uncertain is not None and profile.uncertain.any():
        entries = [e for each in facts.clusters for e in each.entries if e.column.kind == "numeric"]
        typical = sum(entry.measure == "typical value" for entry in entries)
        said.append(
            f"{typical} of {len(entries)} values that describe a cluster by a number are typical "
            "values: the mean of the persons can, by an estimate from the records, be more than "
            "0.15 standard deviations away, or the variable was transformed."
        )
    return " ".join(said)


# --- clustering -----------------------------------------------------------------------------------


def _plan(facts: Facts) -> Plan | None:
    """Return the definition as the engine reads it; None for another version of a method."""
    try:
        return plan_of(facts.definition)
    except DefinitionError:
        return None


def _algorithm(facts: Facts) -> str:
    definition, plan = facts.definition, _plan(facts)
    name, options = (
        in_markdown(each) for each in (definition.algorithm, named_values(definition.config))
    )
    named = f"{name}, version {definition.method_version}"
    if plan is None:
        return (
            f"The method was {name} of fedclust (version "
            f"{definition.method_version}), with these options: {options}."
        )
    papers = f" {cite(*plan.method.references)}" if plan.method.references else ""
    found = f"The method was {plan.method.title} ({named}){papers}."
    if plan.method.describe is None:
        return f"{found} Its options were: {options}."
    return f"{found} {plan.method.describe(plan.options)}"


def _number_of_clusters(facts: Facts) -> str:
    asked, result = facts.definition.config.get("n_clusters"), facts.result
    found = counted(len(result.centroids), "cluster")
    if isinstance(asked, list | tuple):
        tried = and_text(map(str, asked))
        compared = f"The session compared K = {tried}."
        if result.sweep is None:
            return f"{compared} The clustering described here is that of K = {result.n_clusters}."
        measures = _measures(facts)
        by = f" {measures}" if measures else ""
        return f"{compared}{by} {_chosen(facts)} The result has {found}.".replace("  ", " ")
    if asked is None:
        return f"The number of clusters was not given. The result has {found}."
    return f"The number of clusters, K = {asked}, was given. The result has {found}."


def _chosen(facts: Facts) -> str:
    """Return how the comparison came to its K; nothing of what a reader should do."""
    result = facts.result
    best = (*result.tied, result.n_clusters)[0]
    ps = ps_text(result.sweep or ())
    why = {
        "apart": f"K = {best} was the largest whose clusters were clearer than one "
        f"cloud and all stood apart ({ps}).",
        "step": f"Of the K whose clusters were clearer than one cloud, K = {best} "
        f"gained most on the next smaller ({ps}); not all of its clusters were shown to stand "
        "apart.",
        "one-cloud": f"At no K were the clusters clearer than one cloud ({ps}).",
    }
    if result.choice not in why:
        return in_markdown(result.recommendation or "")
    text = why[result.choice]
    if result.tied:
        others = and_text(map(str, result.tied[1:]))
        text += f" K = {others} had the highest simplified silhouette."
    if recommended(result) != (result.n_clusters,):
        text += f" The clusters described here are those of K = {result.n_clusters}."
    return text


def _measures(facts: Facts) -> str:
    """Return the measures by which the numbers of clusters were compared."""
    entries = facts.result.sweep or ()
    named = []
    if any(entry.simplified_silhouette is not None for entry in entries):
        named.append(f"the simplified silhouette {cite('hruschka2004', 'rousseeuw1987')}")
    if any(entry.davies_bouldin is not None for entry in entries):
        named.append(f"the Davies-Bouldin index {cite('davies1979')}")
    if any(entry.start_agreement is not None for entry in entries):
        named.append(
            f"the mean adjusted Rand index {cite('hubert1985')} of ten clusterings of the sites' "
            "cells from different random starts"
        )
    return f"The measures were {and_text(named)}." if named else ""


def _seed(facts: Facts) -> str:
    return f"All random numbers derive from the seed {facts.definition.seed}."


def _rounds(facts: Facts) -> str:
    plan, result = _plan(facts), facts.result
    policy = facts.definition.policy
    limit = policy.max_rounds if plan is None else plan.max_rounds
    most = "" if limit is None else f" (limit: {limit})"
    ended = _ENDED.get(result.stopped_because, "")
    because = f" and ended because {ended}" if ended else ""
    quorum = (
        "the answers of all sites that took part"
        if policy.quorum is None
        else f"the answers of {counted(policy.quorum, 'site')} at its deadline"
    )
    of_k = f" at K = {result.n_clusters}" if result.sweep else ""
    return (
        f"The method took {counted(result.n_rounds, 'round')}{of_k}{most}{because}. A round needed "
        f"{quorum}, and no fewer than {counted(policy.min_sites, 'site')}."
    )


def _quality(facts: Facts) -> str:
    quality, plan = facts.result.quality, _plan(facts)
    closing = ""
    if plan is not None and not plan.options.evaluated:
        closing = "There was no closing round to measure the final clusters."
    if quality is None:
        return closing
    sizes = facts.result.sizes or ()
    found = [f"the inertia was {short(quality.inertia)}"]
    if quality.simplified_silhouette is not None:
        silhouette = f"the simplified silhouette {cite('hruschka2004', 'rousseeuw1987')}"
        found.append(f"{silhouette} {quality.simplified_silhouette:.3f}")
    if quality.davies_bouldin is not None:
        index = f"the Davies-Bouldin index {cite('davies1979')}"
        found.append(f"{index} {quality.davies_bouldin:.3f}")
    held = f" The clusters hold {and_text(map(str, sizes))} persons." if len(sizes) > 1 else ""
    over = "Over the final clusters"
    if facts.of_groups:
        over = "Over the groups' records, which lie closer to the centroids than their persons do"
    measured = f"{over}, {and_text(found)}.{held}"
    return f"{closing} {measured}".strip()


def _likelihood(facts: Facts) -> str:
    found = facts.result.likelihood
    if found is None:
        return ""
    certain = (
        ""
        if found.relative_entropy is None
        else f"; the relative entropy was {found.relative_entropy:.3f}"
    )
    return (
        f"The log-likelihood was {short(found.log_likelihood)} with {found.n_parameters} free "
        f"parameters, the Bayesian information criterion {cite('schwarz1978')} {short(found.bic)}"
        f"{certain}."
    )


def _bounds(facts: Facts) -> str:
    bounds = facts.result.bounds
    if bounds is None:
        return ""
    gap = "" if bounds.gap is None else f", a gap of {100 * bounds.gap:.3g} %"
    return (
        f"The inertia of any {bounds.n_clusters} centroids within the declared bounds was bounded "
        f"by {short(bounds.lower)} from below and {short(bounds.upper)} from above{gap}. "
        f"{in_markdown(bounds.statement)}"
    )


# --- evidence; a kind that was asked for and is lacking is said to be missing ---------------------


def _one_cloud(facts: Facts) -> str:
    found = facts.result.one_cloud
    if found is None:
        said = "The clusters were to be compared with one cloud; the result does not hold it."
        return said if facts.definition.config.get("evidence") else ""
    if found.p is None:
        return f"The clusters were not compared with one cloud. {found.not_judged or ''}"
    text = (
        f"The clusters were compared with one cloud without clusters {cite('helgeson2021')}. The "
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
        said = f"Stability was to be measured with {asked} models of resampled data; the result "
        return f"{said}does not hold it." if asked else ""
    jaccard = ", ".join(f"{found.jaccard[k]:.2f} (cluster {k})" for k in measured_again(facts))
    if not jaccard:
        return NOT_MEASURED
    return (
        f"Stability was measured with {found.n_models} k-means models of bootstrap samples: sites "
        "drawn with replacement and, within cells of each site's records, persons drawn with "
        "replacement. The mean Jaccard index of each cluster with the most similar cluster of a "
        f"model {cite('hennig2007')} was {jaccard}."
    )


def _site_differences(facts: Facts) -> str:
    found = facts.result.site_differences
    if found is None:
        return ""
    text = ""
    if found.columns is not None:
        text = "The columns of the sites were compared."
        if facts.own_site is None:
            text += f" Sites that seemed to code a column otherwise: {len(found.columns)}."
    if found.cramers_v is not None:
        text += (
            f" Cramér's V between site and cluster {'of groups ' * facts.of_groups}"
            f"(corrected for bias {cite('bergsma2013')}) was {found.cramers_v:.2f}."
        )
    return text.strip()


def _outcomes(facts: Facts) -> str:
    declared = outcomes_of(facts.definition.features)
    if not declared:
        return ""
    text = (
        "The outcomes, which were not clustered, were: "
        f"{in_markdown('; '.join(map(variable_text, declared)))}."
    )
    found = facts.result.outcomes
    if found is None or not found.results:
        return f"{text} {' '.join(outcome_sentences(facts))}"
    return f"{text} {_counts(found)} {_estimators(facts, found)} {_not_counted(found)}".rstrip()


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


def _estimators(facts: Facts, found: Outcomes) -> str:
    """Return how clusters were compared, with the papers of the estimators that were used."""
    used = {each.measure for outcome in found.results for each in outcome.comparisons}
    exact = not any(each.sigma for each in found.results)
    largest = in_markdown(facts.labels[found.reference])
    text = f"Each cluster was compared with cluster {largest}, the largest, within sites."
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
    return (
        f"{text} Intervals are 95 % intervals. The p-values of tables are not adjusted for the "
        "number of comparisons; those of sentences are, by Bonferroni."
    )


def _not_counted(found: Outcomes) -> str:
    most = max(each.n_sites for each in found.results)
    fewer = [
        f"{in_markdown(each.name)} at {each.n_sites} of these {most} sites"
        for each in found.results
        if each.n_sites < most
    ]
    said = f"Counted at fewer sites: {'; '.join(fewer)}. " if fewer else ""
    return said + in_markdown(" ".join(missing_texts(found)))


# --- software -------------------------------------------------------------------------------------

#: Software whose version the provenance names: how it is called, and its home page.
LIBRARIES = {
    "python": ("Python", "https://www.python.org/"),
    "numpy": ("NumPy", "https://numpy.org/"),
    "scipy": ("SciPy", "https://scipy.org/"),
    "scikit-learn": ("scikit-learn", "https://scikit-learn.org/"),
}


def _software(facts: Facts) -> str:
    number = in_markdown(fedclust_version(facts))
    if facts.provenance is None:
        return f"The simulation ran with fedclust {number}."
    platform = {key: in_markdown(value) for key, value in facts.provenance.platform.items()}
    used = [f"{name} {platform[key]}" for key, (name, _) in LIBRARIES.items() if key in platform]
    under = " ".join(platform[key] for key in ("system", "machine") if key in platform)
    return (
        f"The coordinator ran fedclust {number}"
        + (f" with {and_text(used)}" if used else "")
        + (f" under {under}" if under else "")
        + "."
    )


_PARAGRAPHS: tuple[tuple[Callable[[Facts], str], ...], ...] = (
    (_design, _site_persons, _completed),
    (_variables, _missing, _scaling, _dissimilarity),
    (_protection, _typical),
    (_algorithm, _seed, _rounds),
    (_number_of_clusters, _quality, _likelihood, _bounds),
    (_one_cloud, _stability, _site_differences, _outcomes),
    (_software,),
)
#: Files for those who write a paper: what a page or an RO-Crate has under each name.
WRITE_UP: dict[str, Callable[[Facts], str]] = {
    "methods.md": methods_text,
    "references.bib": bibtex,
}


# --- the entries that a text cites, of references.bib ---------------------------------------------


@functools.cache
def entries() -> dict[str, str]:
    """Return the entries of the file by their keys, in its order."""
    text = files("fedclust.result").joinpath("references.bib").read_text("utf-8")
    return {found[1]: found[0] for found in _ENTRY.finditer(text)}


def cite(*keys: str) -> str:
    """Return citations as Pandoc reads them, such as ``[@hubert1985; @lloyd1982]``."""
    return f"[{'; '.join(f'@{key}' for key in keys)}]"


def cited(text: str) -> tuple[str, ...]:
    """Return the keys that a text cites, each once, in their order."""
    brackets = re.findall(r"\[(@[^\]]*)\]", text)
    return tuple(dict.fromkeys(key for part in brackets for key in _CITED.findall(part)))
