"""Outcomes by cluster in words, rows and HTML: the same for page, terminal, file and notebook."""

import bisect
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, TypeAlias

from fedclust.result.drawing import Figure, short
from fedclust.result.facts import Facts
from fedclust.result.markup import html_figure, html_folded, html_paragraphs, html_table
from fedclust.result.wording import and_text, isolated
from fedclust.rounds.model_selection import p_text as named_p
from fedclust.schema.display import counted
from fedclust.schema.feature import outcomes_of
from fedclust.schema.outcomes import (
    Estimate,
    OutcomeComparison,
    OutcomeInCluster,
    OutcomeResult,
    Outcomes,
)

#: Draws a figure of the outcome of this name.
Draw: TypeAlias = Callable[[str], Figure]
ALL_SITES = "all sites"
CANNOT_TELL = "this table cannot tell"
#: Clusters are said to differ where equal ones would give such counts this rarely by the p-value.
#: With few events that is too small: at .05 single settings gave up to 7 false alarms in 100, at
#: .04 about 4, and 6 at most (60 settings of two clusters, 500 draws each).
_DIFFERENT = 0.04
_MEASURES = {
    "odds_ratio": "odds ratio",
    "risk_difference": "difference of shares in percentage points",
    "mean_difference": "difference of means",
    "superiority": "probability of a higher value",
    "rate_ratio": "rate ratio within sites and intervals",
}
_TESTS = (
    "Compared with the largest cluster, within sites. The last column tests whether the effect is "
    "the same at all sites, where there are enough events to tell."
)
_SURVIVAL = (
    "Share without {} by cluster, with 95 % intervals, and the persons still at risk, over "
    "all sites. Intervals of one time stand next to each other."
)
#: Columns of :func:`comparison_rows`.
COMPARED = ("cluster", "measure", "estimate (95 % interval)", "p", "p of equal effects at sites")


@dataclass(frozen=True)
class Line:
    """One number of an outcome in one cluster.

    Attributes
    ----------
    what : str
        The cell whose share it is, ``median``, ``mean``, ``S(30)`` or ``restricted mean``.
    estimate : Estimate or None
        None: a median in a cell that is open.
    is_share : bool
        Whether it lies from 0 to 1, and is shown in per cent.
    cell : str
        Of a median: the cell that holds it. Where in this cell is interpolated, unless it is open.
    """

    what: str
    estimate: Estimate | None
    is_share: bool
    cell: str = ""

    @property
    def text(self) -> str:
        """The number with its interval, as people read it."""
        known = self.cell and self.estimate is not None
        return f"{self.number}, within {self.cell}" if known else self.number

    @property
    def number(self) -> str:
        """The same without the cell that holds a median whose number is known."""
        if self.cell and self.estimate is None:
            return self.cell
        return estimate_text(self.estimate, percent=self.is_share, within=self.is_share)


def estimate_text(found: Estimate | None, *, percent: bool = False, within: bool = False) -> str:
    """Return a number with its interval; an open interval in words.

    Parameters
    ----------
    found : Estimate or None
        None: not computed, a dash.
    percent : bool
        Whether to show shares in per cent.
    within : bool
        Whether to show what noise takes below 0 or above 1 as 0 or 1.
    """
    if found is None:
        return "–"
    value, lower, upper = (_shown(x, percent, within) for x in vars(found).values())
    if lower is None and upper is None:
        return CANNOT_TELL
    unit = " %" if percent else ""
    if upper is None:
        return f"at least {lower}{unit}"
    if lower is None:
        return f"at most {upper}{unit}"
    interval = f"{lower} to {upper}"
    return f"{interval}{unit}" if value is None else f"{value}{unit} ({interval})"


def _shown(value: float | None, percent: bool, within: bool) -> str | None:
    if value is None:
        return None
    value = min(max(value, 0.0), 1.0) if within else value
    return f"{100 * value:.1f}" if percent else short(value)


def p_text(found: float | None) -> str:
    """Return a p-value."""
    if found is None:
        return "–"
    return "< .001" if found < 0.001 else f"{found:.3f}"


def measure_text(found: OutcomeComparison) -> str:
    """Return what a comparison measures, with the level that it is about."""
    return _MEASURES[found.measure] + (f", {isolated(found.level)}" if found.level else "")


def effect_text(found: OutcomeComparison, estimate: Estimate | None = None) -> str:
    """Return the estimate of a comparison, or that of one of its sites."""
    shown = found.estimate if estimate is None else estimate
    # A difference of shares is in percentage points, which its name says.
    return estimate_text(shown, percent=found.measure == "risk_difference").replace(" %", "")


def noise_text(found: OutcomeResult) -> str:
    """Return how many sites gave the counts, and what was added to them."""
    given = f"Given by {counted(found.n_sites, 'site')}"
    if not found.sigma:
        return f"{given}. The counts are exact."
    return (
        f"{given}. Each count of each site has random noise with a standard deviation of "
        f"{found.sigma:.3g}."
    )


def noise_notes(outcomes: Outcomes | None) -> list[str]:
    """Return :func:`noise_text` once for all outcomes that have the same."""
    said: dict[str, list[str]] = {}
    for found in outcomes.results if outcomes is not None else ():
        said.setdefault(noise_text(found), []).append(isolated(found.name))
    return [f"{and_text(names)}: 95 % intervals. {noise}" for noise, names in said.items()]


# --- rows -----------------------------------------------------------------------------------------


def cluster_lines(found: OutcomeResult, own: OutcomeInCluster) -> tuple[Line, ...]:
    """Return the numbers of an outcome in a cluster; for each cluster the same, in one order."""
    named = found.cells[1:2] if found.kind == "binary" else found.cells[:-1]
    lines = [Line(cell, share, True) for cell, share in zip(named, own.shares, strict=False)]
    lines += [Line(f"S({at.time:g})", at.survival, True) for at in own.survival if at.time > 0]
    if found.kind == "ordered":
        lines.append(Line("median", own.median, False, _cell_of_median(found, own)))
    if found.values is not None:
        lines.append(Line("mean", own.mean, False))
    if found.kind == "time":
        lines.append(Line("restricted mean", own.restricted_mean, False))
    return tuple(lines)


def _cell_of_median(found: OutcomeResult, own: OutcomeInCluster) -> str:
    """Return the cell that holds the median, "" or that the table cannot tell."""
    if own.median is not None and own.median.value is not None:
        return found.cells[bisect.bisect(found.edges or (), own.median.value)]
    sure = [place for place in (0, -1) if (own.shares[place].lower or 0.0) > 0.5]
    if sure:
        return found.cells[0 if sure == [0] else -2]
    return CANNOT_TELL if own.median is None else ""


def cluster_table(
    found: OutcomeResult, labels: Sequence[str]
) -> tuple[list[str], list[list[object]]]:
    """Return headings, and a row for each cluster: persons and its lines."""
    lines = [cluster_lines(found, own) for own in found.clusters]
    rows: list[list[object]] = [
        [label, max(0, round(own.persons)), *(line.text for line in row)]
        for label, own, row in zip(labels, found.clusters, lines, strict=True)
    ]
    return ["cluster", "persons", *(line.what for line in lines[0])], rows


def outcome_columns(facts: Facts, cluster: int) -> Iterator[tuple[str, Line, OutcomeResult]]:
    """Yield what a table of clusters and columns shows of outcomes, with the column's name."""
    outcomes = facts.result.outcomes
    for found in () if outcomes is None else outcomes.results:
        for line in cluster_lines(found, found.clusters[cluster]) if found.clusters else ():
            yield f"{found.name}: {line.what}", line, found


def headline(found: OutcomeResult, own: OutcomeInCluster) -> Line:
    """Return the one number that stands for an outcome: the last share, or S at the end."""
    return [line for line in cluster_lines(found, own) if line.is_share][-1]


def event_of(facts: Facts, found: OutcomeResult) -> str:
    """Return the name of the event that an outcome of kind ``time`` counts."""
    declared = outcomes_of(facts.definition.features)
    return isolated(next(each.event or "" for each in declared if each.name == found.name))


def headed(found: OutcomeResult, event: str) -> str:
    """Return what :func:`headline` is of; ``event`` is :func:`event_of`."""
    line, unit = headline(found, found.clusters[0]), f" {found.unit}" if found.unit else ""
    if found.kind == "time":
        end = f"{(found.edges or (0,))[-1]:g}{unit}"
        return f"{isolated(found.name)}, without {event} at {end}"
    return isolated(found.name) + (f", {line.what}{unit}" if found.kind != "binary" else "")


def difference_text(found: OutcomeResult, names: Sequence[str], reference: int, event: str) -> str:
    """Return whether clusters differ in an outcome; "" for a single cluster.

    P-values are multiplied by the number of comparisons (Bonferroni). So where no clusters differ
    at most 5 of 100 sessions say that some do (``benchmarks/outcomes.py`` counts them).

    Parameters
    ----------
    found : OutcomeResult
    names : sequence of str, length K
    reference : int
        The cluster that the others are compared with.
    event : str
        Of a time: what it is until.
    """
    compared = [each for each in found.comparisons if each.measure == found.comparisons[0].measure]
    ps = [None if each.p_value is None else each.p_value * len(compared) for each in compared]
    name, parts = isolated(found.name), dict[str, list[str]]()
    if found.unit.startswith("1 = "):
        name += f" (yes = {isolated(found.unit.removeprefix('1 = '))})"
    what = {"ordered": "values are", "time": f"{event} is"}.get(found.kind, "yes is")
    words = ("lower", "higher") if found.kind == "ordered" else ("less frequent", "more frequent")
    for each, p in zip(compared, ps, strict=True):
        if p is not None and p <= _DIFFERENT and each.estimate.value is not None:
            null = 0.5 if each.measure == "superiority" else 1.0
            what = f"{isolated(each.level)} is" if each.level else what
            where = parts.setdefault(f"{what} {words[each.estimate.value > null]}", [])
            where.append(f"{isolated(names[each.cluster])} ({named_p(p)})")
    if parts:
        said = ", ".join(f"{side} in {and_text(where)}" for side, where in parts.items())
        than = f"than in {isolated(names[reference])}, the largest one"
        if len(compared) > 1:
            than += f" (p adjusted for {len(compared)} comparisons)"
        differ = f"The clusters differ in {name}: {said} {than}."
        varies = {
            isolated(names[each.cluster]): None
            for each in compared
            if each.homogeneity_p is not None and each.homogeneity_p * len(compared) <= _DIFFERENT
        }
        if varies:
            differ += f" How large the difference is varies between sites: {and_text(varies)}."
        return differ
    known = [p for p in ps if p is not None]
    closed = all(None not in vars(each.estimate).values() for each in compared)
    if not compared:
        return ""
    if not closed or len(known) < len(ps):
        return f"{CANNOT_TELL[0].upper()}{CANNOT_TELL[1:]} whether the clusters differ in {name}."
    least, noise = min(1.0, *known), " and noise" * bool(found.sigma)
    return (
        f"The clusters show no clear difference in {name}: chance{noise} alone can give "
        f"differences as large ({named_p(least)})."
    )


def forest_text(facts: Facts) -> str:
    """Return the caption of a forest plot."""
    found = facts.result.outcomes
    largest = "the largest cluster"
    if found is not None:
        largest = f"{isolated(facts.cluster_names[found.reference])}, {largest}"
    return (
        f"Each cluster against {largest}, with 95 % intervals. An arrow: the interval has no end "
        "there. “At least” or “at most”: only this limit is known. A site has its own line where "
        "noise does not hide its effect."
    )


def range_text(found: OutcomeResult, names: Sequence[str], event: str) -> str:
    """Return the least and the greatest share of the last cell, or the survival at the end."""
    lines = [headline(found, own) for own in found.clusters]
    values = {k: x.estimate.value for k, x in enumerate(lines) if x.estimate is not None}
    known = [(value, k) for k, value in values.items() if value is not None]
    ends = dict.fromkeys([min(known), max(known)] if known else [])
    said = " to ".join(f"{lines[k].text} in {isolated(names[k])}" for _, k in ends)
    said = CANNOT_TELL if not said else f"from {said}" if len(ends) > 1 else f"{said} alone"
    if 0 < len(known) < len(lines):
        said += f"; this table cannot tell {len(lines) - len(known)} of {len(lines)} clusters"
    return f"{headed(found, event)}: {said}."


def unit_text(found: OutcomeResult) -> str:
    """Return the name of an outcome with its unit."""
    return isolated(found.name) + (f" [{isolated(found.unit)}]" if found.unit else "")


def comparison_rows(found: OutcomeResult, labels: Sequence[str]) -> list[list[object]]:
    """Return a row for each cluster and measure, with the columns of ``COMPARED``."""
    return [
        [
            labels[each.cluster],
            measure_text(each),
            effect_text(each),
            p_text(each.p_value),
            p_text(each.homogeneity_p),
        ]
        for each in found.comparisons
    ]


def outcome_rows(outcomes: Outcomes, names: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """Yield every estimate with its interval, for tables that programs read.

    ``names`` are those of the clusters; () for clusters without.
    """
    for found in outcomes.results:
        about = {"outcome": found.name, "kind": found.kind, "unit": found.unit}
        noise = {"sigma": found.sigma, "points": found.points}
        untested: dict[str, float | None] = {"p_value": None, "homogeneity_p": None}
        for k, own in enumerate(found.clusters):
            for line in cluster_lines(found, own):
                what = {"what": line.what, **_numbered(k, names), "site": ALL_SITES}
                estimate = line.estimate or Estimate(value=None, lower=None, upper=None)
                yield {**about, **what, **estimate.model_dump(), **untested, **noise}
        for each in found.comparisons:
            name = f"{each.measure} {each.level}".strip()
            for site, estimate in {ALL_SITES: each.estimate, **each.by_site}.items():
                what = {"what": name, **_numbered(each.cluster, names), "site": site}
                tests = {name: getattr(each, name) for name in untested}
                tests = tests if site == ALL_SITES else untested
                yield {**about, **what, **estimate.model_dump(), **tests, **noise}


def _numbered(cluster: int | str, names: Sequence[str]) -> dict[str, int | str]:
    """Return the fields of a cluster: its number, and its name if clusters have names."""
    if not names:
        return {"cluster": cluster}
    return {"cluster": cluster, "name": names[cluster] if isinstance(cluster, int) else ""}


def count_rows(outcomes: Outcomes, names: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """Yield every noisy count: by site, cluster and cell, as each site sent it.

    ``names`` are those of the clusters; () for clusters without.
    """
    for found in outcomes.results:
        noise = {"sigma": found.sigma, "points": found.points}
        for site, table in sorted(found.tables.items()):
            for k, row in enumerate(table.tolist()):
                cluster = k if k < outcomes.n_clusters else "none"
                about = {"outcome": found.name, "site": site, **_numbered(cluster, names)}
                for cell, count in zip(found.cells, row, strict=True):
                    yield {**about, "cell": cell, "count": count, **noise}


# --- words ----------------------------------------------------------------------------------------


def outcome_sentences(facts: Facts) -> tuple[str, ...]:
    """Return what a reader has to know of the outcomes; () in a session without them."""
    declared, found = outcomes_of(facts.definition.features), facts.result.outcomes
    if not declared:
        return ()
    if found is None:
        return (_elsewhere(facts),)
    lines = []
    if facts.result.sweep or facts.definition.outcomes_k is not None:
        lines.append(f"Outcomes were counted at K = {found.n_clusters}.")
    lines += missing_texts(found, facts.site_name)
    if not found.results:
        return (*lines, "Fewer sites could answer than the session needs: nothing was counted.")
    if facts.definition.policy.protection != "none":
        lines.append(
            "The counts come from the rows of each site. Cluster sizes come from groups of similar "
            "persons. The two differ, as a person can be nearer to another cluster than the group, "
            "and the counts of each outcome have noise of their own: two outcomes about one event "
            "can differ."
        )
    lines.append(
        f"Every cluster is compared with cluster {facts.labels[found.reference]}, the largest one, "
        "within each site. Intervals have a level of 95 % and include the noise. The p-values of "
        "tables are not adjusted for the number of comparisons; those in sentences are."
    )
    if any(each.sigma for each in found.results):
        lines.append(
            f"Where noise hides the limit of an interval, the table says “at least” or “at most”. "
            f"“{CANNOT_TELL.capitalize()}” means that it hides both. It does not mean that the "
            "clusters are equal."
        )
    return tuple(lines)


def missing_texts(found: Outcomes, site_name: Callable[[str], str] = str) -> list[str]:
    """Return which outcomes are withheld, and why some sites gave none."""
    said = []
    if found.withheld:
        said.append(f"Not shown: {and_text(found.withheld)}, given by fewer sites than needed.")
    if found.silent:
        named = and_text([*map(site_name, found.silent)])
        said.append(
            f"Not counted: the persons of {named}, without a column of an outcome or points for it."
        )
    return said


def _elsewhere(facts: Facts) -> str:
    """Return why a result has no outcomes although the session asked for them."""
    counted = [e.n_clusters for e in facts.result.sweep or () if e.result.outcomes is not None]
    wanted = facts.definition.outcomes_k
    if counted:
        return f"Outcomes were counted at K = {counted[0]}."
    if wanted is None or facts.result.sweep:
        return "Outcomes were not counted: the warnings say why."
    if wanted == "recommended":
        return "Outcomes were counted at the recommended K only, if one was recommended."
    return f"Outcomes were counted at K = {wanted}."


# --- HTML -----------------------------------------------------------------------------------------


def html_outcomes(facts: Facts, forest: Draw, survival: Draw) -> str:
    """Return the section's HTML with its figures; nothing in a session without outcomes."""
    found = facts.result.outcomes
    content = html_paragraphs([*outcome_sentences(facts), *noise_notes(found)])
    for number, each in enumerate(() if found is None else found.results):
        content += f"<h3>{escape(unit_text(each))}</h3>"
        event = event_of(facts, each)
        content += html_figure(functools.partial(survival, each.name), _SURVIVAL.format(event))
        if number and found is not None:  # The first screen has those of the first outcome.
            said = difference_text(each, facts.cluster_names, found.reference, event)
            content += html_paragraphs([said] if said else [])
            content += html_figure(functools.partial(forest, each.name), forest_text(facts))
        if each.comparisons:
            content += html_table(_TESTS, COMPARED, comparison_rows(each, facts.labels), text=(1,))
        content += _html_counts(facts, each)
    return content


def _html_counts(facts: Facts, found: OutcomeResult) -> str:
    """Return the tables that sites sent, and their sum: counts with noise may be below 0."""
    tables = {ALL_SITES: found.total}
    tables |= {facts.site_name(site): table for site, table in sorted(found.tables.items())}
    rows = [
        [name, label, *row]
        for name, table in tables.items()
        for label, row in zip((*facts.labels, "none"), table.tolist(), strict=True)
    ]
    deviation = f" (standard deviation {found.sigma:.3g})" if found.sigma else ""
    caption = (
        f"Persons by site and cluster, counted in rows{', with noise' * bool(found.sigma)}"
        f"{deviation}. None: in no cluster."
    )
    table = html_table(caption, ["site", "cluster", *found.cells], rows)
    return html_folded(f"{found.name}: counts by site", table)
