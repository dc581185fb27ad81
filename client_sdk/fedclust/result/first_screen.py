"""The first screen of a result: the question, its answer, and a card for each cluster."""

from html import escape

from fedclust.result.drawing import short
from fedclust.result.facts import Cluster, ClusterColumn, Facts
from fedclust.result.figures.plots import Plots
from fedclust.result.figures.profile import MOST_COLUMNS, curves_of, gaps_of, mean_of, profile_rows
from fedclust.result.markup import html_figure, html_folded, html_paragraphs, html_warning
from fedclust.result.one_cloud import (
    apart_text,
    n_apart,
    recommended,
    shown_text,
    stands_apart,
    tied_text,
)
from fedclust.result.outcomes import (
    difference_text,
    event_of,
    forest_text,
    headed,
    headline,
    outcome_sentences,
    range_text,
)
from fedclust.result.sweep import bic_text
from fedclust.result.wording import and_text, isolated, percent, titled
from fedclust.rounds.model_selection import CLEAR, p_text
from fedclust.rounds.stability import NEARLY_ALL
from fedclust.schema.display import counted
from fedclust.schema.result import Likelihood, Result

#: Most cards; a table below has all clusters.
_MOST_CARDS = 12


def html_first_screen(facts: Facts) -> str:
    """Return the HTML of the first screen."""
    cards = "".join(_card(facts, cluster) for cluster in facts.clusters[:_MOST_CARDS])
    hidden = len(facts.clusters) - _MOST_CARDS
    more = f"<p>{counted(hidden, 'more cluster')}: see the tables below.</p>" if hidden > 0 else ""
    purpose = facts.definition.purpose
    question = f'<p class="lead">{escape(purpose)}</p>' if purpose else ""
    first, *others = answer(facts)
    # Where no separate clusters were found, their words are not bold.
    parts = " parts" if (facts.result.cloud_p or 0.0) > CLEAR else ""
    return (
        f'{question}<p class="lead answer"><b>{escape(first)}</b></p>{html_paragraphs(others)}'
        f'{_warnings(facts)}<div class="cards found{parts}">{cards}</div>{more}{_figures(facts)}'
    )


def answer(facts: Facts) -> list[str]:
    """Return the answer in a sentence or two, made from the numbers; then how K was chosen."""
    result, apart = facts.result, n_apart(facts.result)
    p, outcomes = result.cloud_p, result.outcomes
    persons = "" if result.quality is None else f"{counted_persons(result.quality.n_rows)} at "
    who = f"{persons}{counted(len(facts.sites), 'site')}"
    if p is not None and p > CLEAR:
        said = (
            f"No separate clusters were found among {who}: artificial patients without clusters "
            f"would give clusters as clear as these about {100 * p:.0f} times in 100 "
            f"({p_text(p)}). Report the clusters below as a description of these persons, not as "
            "types."
        )
    else:
        n = len(result.centroids)
        said = f"{counted(n, 'cluster')} among {who}, "
        if result.tied:
            said = f"{tied_text(result)} clusters among {who}: too close to call. The {n} here are "
        if p is None:
            said += "not compared with what artificial patients without clusters give."
        else:
            said += f"clearer than those of artificial patients without clusters ({p_text(p)})."
            said += {None: "", n: " Each stands apart from the others."}.get(
                apart, f" Clusters that stand apart from their neighbours: {apart} of {n}."
            )
    if outcomes is not None and outcomes.results and outcomes.results[0].clusters:
        first, names = outcomes.results[0], facts.cluster_names
        event = event_of(facts, first)
        said += f" {difference_text(first, names, outcomes.reference, event)}"
        said += f" {range_text(first, names, event)}"
    lines = [said]
    if result.sweep and recommended(result) != (result.n_clusters,):
        chosen, why = shown_text(result), " because outcomes were counted there"
        lines.append(f"{chosen[0].upper()}{chosen[1:]}{why * (outcomes is not None)}.")
    return lines if outcomes is not None else [*lines, *outcome_sentences(facts)]


def counted_persons(number: int) -> str:
    """Return a number of persons."""
    return f"{number:,} {'person' if number == 1 else 'persons'}"


def unmeasured(result: Result) -> str:
    """Return what is not known of a result without evaluation; some methods count the sizes."""
    sizes = "sizes, " if result.sizes is None else ""
    return f"no closing evaluation: {sizes}profile and quality are not known"


def fact_lines(facts: Facts) -> dict[str, str]:
    """Return one line each on rounds, quality, likelihood and bounds, by what it is about."""
    result, quality, bounds = facts.result, facts.result.quality, facts.result.bounds
    ended = result.stopped_because.replace("_", " ") or "unknown"
    lines = {"rounds": f"{result.n_rounds} of the method, stopped because: {ended}"}
    lines["quality"] = unmeasured(result)
    if quality is not None:
        of = " of the groups' records" * facts.of_groups
        lines["quality"] = (
            f"inertia {short(quality.inertia)}, simplified silhouette "
            f"{short(quality.simplified_silhouette)}, Davies-Bouldin "
            f"{short(quality.davies_bouldin)}{of}"
        )
    if result.likelihood is not None:
        lines["likelihood"] = _likelihood(result.likelihood)
    if bounds is not None:
        gap = "unknown" if bounds.gap is None else f"{100 * bounds.gap:.3g} %"
        proven = "certified" if bounds.certified else "not certified"
        lines["bounds"] = (
            f"inertia at least {short(bounds.lower)} and at most {short(bounds.upper)}, gap {gap}, "
            f"{proven}"
        )
    return lines


def _likelihood(found: Likelihood) -> str:
    certain = found.relative_entropy
    return (
        f"log-likelihood per person {short(found.log_likelihood_per_person)}, "
        f"{counted(found.n_parameters, 'free parameter')}, BIC "
        f"{bic_text(found)}, entropy per person {short(found.entropy_per_person)}"
        + ("" if certain is None else f", relative entropy {short(certain)}")
    )


def _warnings(facts: Facts) -> str:
    """Return the warnings; several are folded."""
    result = facts.result
    warnings = list(result.warnings)
    if result.quality is None:
        warnings.append(f"There was {unmeasured(result)}.")
    if result.bounds is not None and not result.bounds.certified:
        warnings.append(result.bounds.statement)
    shown = "".join(map(html_warning, warnings))
    return shown if len(warnings) < 2 else html_folded(f"{len(warnings)} warnings", shown)


def _card(facts: Facts, cluster: Cluster) -> str:
    k, outcomes = cluster.number, facts.result.outcomes
    size = "size not known" if cluster.size is None else counted_persons(cluster.size)
    share = "" if cluster.share is None else f", {percent(cluster.share)}"
    lines = "".join(
        f"<p>{escape(headed(found, event_of(facts, found)))}: "
        f"<b>{escape(headline(found, found.clusters[k]).text)}</b></p>"
        for found in (() if outcomes is None else outcomes.results)
        if found.clusters
    )
    sure = "; ".join(_how_sure(facts, k))
    name, apart = escape(titled(facts.cluster_names[k])), html_paragraphs([in_words(cluster)])
    if cluster.sets_apart:
        apart = html_folded(in_words(cluster), html_paragraphs(["; ".join(gaps_of(cluster))]))
    return (
        f'<div class="card"><h2>{name}</h2><p class="soft">{size}{share}</p>'
        f"{apart}{lines}"
        f'<p class="soft">{escape(sure)}</p></div>'
    )


def in_words(cluster: Cluster) -> str:
    """Return what sets a cluster apart in words, such as "older; BNP and creatinine higher"."""
    parts: dict[str, list[str]] = {}
    for entry in cluster.sets_apart:
        word, name = _side(entry)
        parts.setdefault(word, []).append(name)
    said = [f"{and_text(names)}{word}" for word, names in parts.items()]
    return "; ".join(said) or cluster.nothing_apart


def _side(entry: ClusterColumn) -> tuple[str, str]:
    """Return on which side of all persons a column is, and what to call it."""
    column, above = entry.column, (entry.difference or 0.0) > 0
    name = isolated(column.name)
    if column.kind == "binary":
        of = " of groups" if entry.measure == "share of groups" else ""
        return f" {'often' if above else 'rarely'} ({mean_of(entry)}{of})", name
    if column.name.casefold() == "age":
        return "", "older" if above else "younger"
    return (" higher" if above else " lower"), name


def _how_sure(facts: Facts, k: int) -> list[str]:
    """Return what supports a cluster: one cloud, resampled data, hospitals."""
    result, said = facts.result, []
    # Where no cluster stands apart, the answer above says so.
    if result.one_cloud is not None and n_apart(result) != 0:
        said.append(apart_text(result, k))
    # Of parts of one cloud, groups are found again more often than persons.
    again = 0.0 if result.stability is None else result.stability.recovered[k]
    if stands_apart(result, k) and again >= NEARLY_ALL:
        said.append("found again in nearly all resampled data sets")
    if len(result.site_sizes) > 1:
        there = sum(1 for sizes in result.site_sizes.values() if sizes[k])
        # A site of few groups may have persons of a cluster in a group of another one.
        more = " or more" if facts.of_groups and there < len(result.site_sizes) else ""
        said.append(f"persons at {there}{more} of {len(result.site_sizes)} sites")
    return said


def _figures(facts: Facts) -> str:
    """Return the heat map, and next to it the forest plot of the first outcome."""
    plots, outcomes, roughly = Plots(facts), facts.result.outcomes, ", roughly" * facts.of_groups
    hidden = len(profile_rows(facts)) - MOST_COLUMNS
    left_out = f" {hidden} columns with the smallest gaps are left out." if hidden > 0 else ""
    if curves_of(facts):
        left_out += " A trajectory is one row: a curve, over the colour of each time."
    heat = html_figure(
        plots.profile,
        "The value of each column in each cluster. Red is above all persons, blue below: the "
        f"stronger the colour, the farther{roughly}. A mark: half a standard deviation or more. "
        f"Grey: cannot tell.{left_out}",
    )
    forest = ""
    if outcomes is not None and outcomes.results:
        forest = html_figure(lambda: plots.forest(outcomes.results[0].name), forest_text(facts))
    return f'<div class="pair">{heat}{forest}</div>' if forest else heat
