"""A result in a few lines, in a notebook, and as DataFrames."""

import textwrap
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, Literal, TypeAlias, get_args

from fedclust.result.drawing import short
from fedclust.result.facts import Facts
from fedclust.result.first_screen import answer, fact_lines, html_first_screen
from fedclust.result.markup import html_folded, html_paragraphs
from fedclust.result.outcomes import count_rows, outcome_rows, outcome_sentences
from fedclust.result.page import sections
from fedclust.schema.display import COLUMNS, LINES, STYLE, aligned, counted, cut
from fedclust.schema.outcomes import Outcomes
from fedclust.wire.errors import UsageError, of_extra

TableName: TypeAlias = Literal["clusters", "sites", "outcomes", "outcome_counts", "k", "history"]
#: What a reader sees is the result of a session, simulated or not.
_KIND = "SessionResult"
#: Most warnings of a repr, and lines of its answer.
_WARNINGS, _ANSWER = 3, 7
#: Widest column of a repr.
_WIDTH = 16
_MEASURES = ("inertia", "simplified_silhouette", "davies_bouldin", "start_agreement")
_CLOUD = ("p", "gap", "gap_error")
_LIKELIHOOD = ("bic", "entropy_per_person", "relative_entropy")


def text_overview(facts: Facts) -> str:
    """Return a result in at most 20 lines of 100 columns."""
    found = [f"warning: {text}" for text in facts.result.warnings]
    hidden = len(found) - _WARNINGS
    warnings = found[:_WARNINGS]
    warnings += [f"... {hidden} more warnings: warnings_"] if hidden > 0 else []
    said = [part for line in answer(facts) for part in textwrap.wrap(line, COLUMNS)]
    lines = [f"{_KIND}: {_summary(facts)}", *said[:_ANSWER], *_facts(facts)]
    lines += [*_text_table(facts, LINES - len(lines) - len(warnings) - 2), *warnings]
    return "\n".join(cut(line.rstrip(), COLUMNS) for line in lines)


def _summary(facts: Facts) -> str:
    result, definition = facts.result, facts.definition
    persons = "" if result.quality is None else f", {result.quality.n_rows} persons"
    return (
        f"{counted(len(facts.clusters), 'cluster')} by {definition.algorithm}, "
        f"{counted(len(facts.columns), 'column')}, {counted(len(definition.sites), 'site')}"
        f"{persons}"
    )


def _facts(facts: Facts) -> list[str]:
    """Return these lines, and those on tables that say more."""
    result, lines = facts.result, [f"{what}: {said}" for what, said in fact_lines(facts).items()]
    if result.sweep:
        lines.append(f"{len(result.sweep)} numbers of clusters were compared: to_frame('k')")
    if result.outcomes is not None and result.outcomes.results:
        named = ", ".join(each.name for each in result.outcomes.results)
        lines.append(f"outcomes: {named}; counted in rows, to_frame('outcomes')")
    return lines


def _text_table(facts: Facts, most: int) -> list[str]:
    """Return at most so many clusters by columns in own units, as far as these have room."""
    from rich.cells import cell_len

    shown, n_shown = facts.clusters[:most], min(len(facts.columns), COLUMNS)
    if not shown:
        return []
    table = [["cluster", "persons", *(column.name for column in facts.columns[:n_shown])]]
    for cluster in shown:
        means = (short(each.mean) for each in facts.centroids[cluster.number][:n_shown])
        size = "–" if cluster.size is None else str(cluster.size)
        table.append([facts.labels[cluster.number], size, *means])
    table = [[cut(cell, _WIDTH) for cell in row] for row in table]
    while cell_len((lines := aligned(table, right=0))[0]) > COLUMNS:
        table, n_shown = [row[:-1] for row in table], n_shown - 1
    hidden = {"cluster": len(facts.clusters) - len(shown), "column": len(facts.columns) - n_shown}
    more = [counted(n, f"more {noun}") for noun, n in hidden.items() if n > 0]
    return [*lines, f"... {' and '.join(more)}: to_frame()"] if more else lines


# --- notebooks ------------------------------------------------------------------------------------


def html_overview(facts: Facts) -> str:
    """Return a result as a fragment of HTML: facts, and what a report says; all escaped."""
    parts = [f"<p><b>{_KIND}</b>: {escape(_summary(facts))}</p>", html_paragraphs(_facts(facts))]
    parts.append(html_first_screen(facts))
    parts += [html_folded(each.title, each.html) for each in sections(facts)]
    return f'<div class="fedclust">{STYLE}{"".join(parts)}</div>'


# --- DataFrames -----------------------------------------------------------------------------------


def frame(facts: Facts, table: TableName) -> Any:
    """Return a table of a result as a pandas DataFrame.

    Raises
    ------
    UsageError
        The extra ``fedclust[data]`` is not installed, there is no such table, or the result does
        not have it.
    """
    if table not in get_args(TableName):
        raise UsageError(f"there is no table {table!r}; there are {', '.join(get_args(TableName))}")
    with of_extra("data", "to_frame needs pandas"):
        import pandas as pd
    result = facts.result
    numbers = pd.RangeIndex(len(facts.clusters), name="cluster")
    given = facts.cluster_names if facts.named else ()
    if table == "clusters":
        names = [column.name for column in facts.columns]
        values = [[entry.mean for entry in row] for row in facts.centroids]
        found = pd.DataFrame(values, index=numbers, columns=names, dtype=float)
        found.insert(0, _free_name("size", names), _whole(pd, result.sizes, len(numbers)))
        return _with_names(facts, found)
    if table == "sites":
        if not result.site_sizes:
            raise UsageError("sizes by site are not known: the session had no closing evaluation")
        found = pd.DataFrame(
            {site: _whole(pd, sizes, len(numbers)) for site, sizes in result.site_sizes.items()},
            index=numbers,
        )
        return _with_names(facts, found)
    if table == "outcomes":
        return pd.DataFrame(outcome_rows(_outcomes_of(facts), given))
    if table == "outcome_counts":
        return pd.DataFrame(count_rows(_outcomes_of(facts), given))
    if table == "k":
        if not result.sweep:
            raise UsageError("one number of clusters was tried: there is nothing to compare")
        by_k = _listed(pd, result.sweep, "n_clusters", [*_MEASURES, "n_rows"])
        for part, wanted in (("likelihood", _LIKELIHOOD), ("one_cloud", _CLOUD)):
            parts = [getattr(entry.result, part) for entry in result.sweep]
            for name in wanted if any(parts) else ():
                by_k[name] = [_number(each and getattr(each, name)) for each in parts]
        return by_k
    measures = ("phase", "n_sites", "inertia", "centroid_shift", "lower_bound", "upper_bound")
    return _listed(pd, result.history, "round", measures)


def _with_names(facts: Facts, found: Any) -> Any:
    """Return a table of clusters with the column ``name`` first, if somebody named them."""
    if facts.named:
        found.insert(0, _free_name("name", found.columns), facts.cluster_names)
    return found


def _outcomes_of(facts: Facts) -> Outcomes:
    found = facts.result.outcomes
    if found is None:
        raise UsageError(" ".join(outcome_sentences(facts)) or "the session has no outcomes")
    return found


def _number(value: Any) -> Any:
    return float("nan") if value is None else value


def _free_name(name: str, taken: Iterable[str]) -> str:
    """Return the name, with underscores where a column of the data has it."""
    while name in taken:
        name += "_"
    return name


def _whole(pd: Any, values: Sequence[int | None] | None, count: int) -> Any:
    """Return counts as integers that may be missing."""
    return pd.array([None] * count if values is None else list(values), dtype="Int64")


def _listed(pd: Any, entries: Sequence[Any], index: str, names: Sequence[str]) -> Any:
    found = [[getattr(entry, name) for name in (index, *names)] for entry in entries]
    rows = [[_number(value) for value in row] for row in found]
    return pd.DataFrame(rows, columns=[index, *names]).set_index(index)
