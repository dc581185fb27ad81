"""Two results side by side: which clusters return, how far apart they are, and what differs."""

import functools
import textwrap
from dataclasses import dataclass
from html import escape

import numpy as np

from fedclust.result.drawing import RIGHT, WIDTH, Figure, clipped, short, text
from fedclust.result.facts import NOTABLE, Facts
from fedclust.result.figures.profile import HeatRow, heat_cell, heat_map, mean_of, unit_of
from fedclust.result.markup import Section, html_figure, html_records, html_table
from fedclust.result.matching import (
    ClusterPair,
    ColumnDifference,
    Positions,
    distances,
    match,
    next_cluster,
    positions,
)
from fedclust.result.wording import isolated, percent
from fedclust.schema.display import COLUMNS, STYLE, cut
from fedclust.schema.encoding import Column
from fedclust.wire.errors import UsageError

#: Matching takes time with the third power of the number of clusters.
_MOST_CLUSTERS = 1_000
#: Pairs of a repr.
_MOST_LINES = 12
#: Columns named for each pair.
_MOST_NAMED = 3
#: Columns and pairs of the figure: both values of a pair need room.
_DRAWN_COLUMNS, DRAWN_PAIRS = 15, 8
_SAID = {True: "yes", False: "no", None: "cannot tell"}
LIMITS = (
    "Profiles do not say whether the same persons are together. Only the sites can find out: each "
    "runs fedclust predict with both results on its own rows and compares the two sets of "
    "labels, for example by the adjusted Rand index."
)
#: Of the distance to the next cluster. At half of it by the rows, the clusters of groups return up
#: to this share and do not from 1 on: 99 % are right (docs/results/table_one.md).
_RETURNS = 0.4
RETURNS = (
    f"A cluster returns if it and its match are at most {_RETURNS:g} times as far apart as either "
    "is from the next cluster of either result. It does not return if that one is nearer to either "
    "than they are to each other. Otherwise nobody can tell."
)


@dataclass(frozen=True, repr=False)
class Comparison:
    """How far two results agree, by what the sites released.

    Attributes
    ----------
    first, second : Facts
    columns : tuple of Column
        What is compared.
    left_out : tuple of str
        Features that are not, each with the reason.
    unit : str
        What a distance of 1 is, in words.
    pairs : tuple of ClusterPair
        The matching with the least sum of distances, in the order of the first result's clusters.
    only_first, only_second : tuple of int
        Clusters without a partner.

    Notes
    -----
    Nothing here knows which person is in which cluster: labels never leave the sites. A sweep's
    ``start_agreement`` is another quantity: it compares starts of one session on the same points.
    """

    first: Facts
    second: Facts
    columns: tuple[Column, ...]
    left_out: tuple[str, ...]
    unit: str
    pairs: tuple[ClusterPair, ...]
    only_first: tuple[int, ...]
    only_second: tuple[int, ...]

    @functools.cached_property
    def verdict(self) -> str:
        """One sentence: how many clusters return."""
        before, after = len(self.first.clusters), len(self.second.clusters)
        back = [pair for pair in self.pairs if pair.returns]
        unsure = sum(pair.returns is None for pair in self.pairs)
        found = "agree in part"
        if len(back) == before == after:
            found = "describe the same clusters"
        elif not back:
            found = "may agree" if unsure else "describe different clusters"
        apart = ""
        if back:
            apart = f", at most {short(max(pair.distance for pair in back))} {self.unit} apart"
        more = f" Of {unsure} more nobody can tell." if unsure else ""
        return (
            f"The two results {found}: {len(back)} of the first result's {before} clusters return "
            f"among the {after} of the second{apart}.{more}"
        )

    @property
    def sections(self) -> tuple[Section, ...]:
        """The parts of a page that compares the two, as `result.page.sections` has them."""
        return (
            Section("agreement", "Agreement", _agreement(self)),
            Section("matched", "Matched clusters", _matched(self)),
        )

    def figure(self) -> Figure:
        """Draw the first pairs in the columns that differ most: a cell for each pair and column.

        Raises
        ------
        UsageError
            No clusters are matched.
        """
        pairs = self.pairs[:DRAWN_PAIRS]
        if not pairs:
            raise UsageError("no clusters of the two results are matched: there is nothing to draw")
        found = [{each.column: each for each in pair.differences} for pair in pairs]
        gaps = {
            column: max(
                (abs(own[column].difference or 0.0) for own in found if column in own), default=0.0
            )
            for column in self.columns
        }

        def draw(column: Column, k: int, *area: float) -> list[str]:
            each = found[k].get(column)
            if each is None:
                return heat_cell("–", None, *area)
            return heat_cell(" / ".join(map(mean_of, each.means)), each.difference, *area)

        rows: list[HeatRow] = [
            (column.name, functools.partial(draw, column))
            for column in sorted(gaps, key=lambda column: -gaps[column])[:_DRAWN_COLUMNS]
        ]
        heads = [f"{pair.first} and {pair.second}" for pair in pairs]
        parts, high = heat_map("first and second", heads, rows, "from the first to the second")
        for pair in pairs:
            if any(not label.isdecimal() for label in pair.labels):
                parts.append(text(RIGHT, high + 8, clipped(pair.text, WIDTH - 2 * RIGHT), "start"))
                high += 18
        described = "; ".join(f"clusters {in_words(pair)}" for pair in pairs)
        return Figure(parts, high, "Matched clusters of two results", f"{described}.")

    def __repr__(self) -> str:
        lines = [*textwrap.wrap(f"Comparison: {self.verdict}", COLUMNS)]
        lines += [f"clusters {in_words(pair)}" for pair in self.pairs[:_MOST_LINES]]
        hidden = len(self.pairs) - _MOST_LINES
        lines += [f"... {hidden} more pairs: pairs"] if hidden > 0 else []
        return "\n".join(cut(each, COLUMNS) for each in [*lines, *_unmatched(self)])

    def _repr_html_(self) -> str:
        parts = (f"<p><b>{escape(s.title)}</b></p>{s.html}" for s in self.sections)
        return f'<div class="fedclust">{STYLE}{"".join(parts)}</div>'


def compare(first: Facts, second: Facts) -> Comparison:
    """Match the clusters of two results and measure how far they agree.

    Both may come from one session, such as two K of a sweep, or from sessions of other sites,
    methods and features: features with the same name, kind, unit, transform and levels count.
    Exchanging the results exchanges the sides and changes nothing else.

    Parameters
    ----------
    first, second : Facts

    Returns
    -------
    Comparison

    Raises
    ------
    UsageError
        They share no feature that varies, or one has no clusters or more than 1,000.
    """
    for facts in (first, second):
        if not 0 < len(facts.clusters) <= _MOST_CLUSTERS:
            raise UsageError(
                f"{facts.definition.name}: a comparison needs 1 to {_MOST_CLUSTERS:,} clusters in "
                f"each result, not {len(facts.clusters):,}"
            )
    places = positions(first, second)
    both, before = np.concatenate(places.values), len(first.clusters)
    apart = distances(both, both)
    matched = match(apart[:before, before:])
    pairs = []
    for i, j in matched:
        distance = float(apart[i, before + j])
        clusters = first.clusters[i], second.clusters[j]
        pairs.append(
            ClusterPair(
                first=i,
                second=j,
                labels=(first.labels[i], second.labels[j]),
                distance=distance,
                returns=_returns(distance, next_cluster(apart, i, before + j)),
                sizes=(clusters[0].size, clusters[1].size),
                shares=(clusters[0].share, clusters[1].share),
                differences=_differences(first, second, places, i, j),
            )
        )
    return Comparison(
        first=first,
        second=second,
        columns=places.columns,
        left_out=places.left_out,
        unit=places.unit,
        pairs=tuple(pairs),
        only_first=_without({i for i, _ in matched}, len(first.clusters)),
        only_second=_without({j for _, j in matched}, len(second.clusters)),
    )


def _returns(apart: float, room: float) -> bool | None:
    if apart <= _RETURNS * room:
        return True
    return False if apart >= room else None


def _differences(
    first: Facts, second: Facts, places: Positions, i: int, j: int
) -> tuple[ColumnDifference, ...]:
    entries = [
        facts.clusters[k].entries if places.of_persons else facts.centroids[k]
        for facts, k in ((first, i), (second, j))
    ]
    apart = places.values[1][j] - places.values[0][i]
    of_groups = first.of_groups or second.of_groups
    found = []
    for at in np.argsort(-np.abs(apart), kind="stable"):
        a, b = (numbers[at] for numbers in places.numbers)
        if np.isfinite(apart[at]):
            few = first.few(i, a) or second.few(j, b)
            away = round(float(apart[at]), 1) + 0.0 if of_groups else float(apart[at])
            means = entries[0][a], entries[1][b]
            found.append(ColumnDifference(places.columns[at], means, None if few else away))
    return tuple(found)


def _without(matched: set[int], count: int) -> tuple[int, ...]:
    return tuple(k for k in range(count) if k not in matched)


# --- what a page shows ----------------------------------------------------------------------------


def _agreement(comparison: Comparison) -> str:
    sides = comparison.first, comparison.second
    rows: list[list[object]] = [
        ["session", *(facts.definition.name for facts in sides)],
        ["method", *(facts.definition.algorithm for facts in sides)],
        ["clusters", *(len(facts.clusters) for facts in sides)],
        ["clusters that return", *[sum(bool(pair.returns) for pair in comparison.pairs)] * 2],
        ["persons", *(sum(facts.result.sizes or ()) or None for facts in sides)],
    ]
    table = html_table("The two results.", ["result", "first", "second"], rows, text=(1, 2))
    said = f"<p><strong>{escape(comparison.verdict)}</strong> {escape(RETURNS)}</p>"
    said += f"<p>{escape(LIMITS)}</p>"
    names = ", ".join(column.name for column in comparison.columns)
    compared = f"<p>Compared: {escape(names)}.</p>"
    if comparison.left_out:
        compared += f"<p>Not compared: {escape('; '.join(comparison.left_out))}.</p>"
    return said + table + compared


def _matched(comparison: Comparison) -> str:
    rows = [
        {
            "first and second": pair.text,
            "returns": _SAID[pair.returns],
            "apart": pair.distance if pair.returns else None,
            "persons": " / ".join("–" if size is None else str(size) for size in pair.sizes),
            "share": " / ".join(percent(share) for share in pair.shares),
            "differ most in": "; ".join(map(changed, named(pair))),
        }
        for pair in comparison.pairs
    ]
    table = html_records(
        "Clusters matched so that the sum of their distances is least. Apart, of those that "
        f"return: in {comparison.unit}, root mean square over the columns. The last column names "
        f"those that differ by {NOTABLE:g} or more, with both values.",
        rows,
        text=(5,),
    )
    alone = "".join(f"<p>{escape(each)}.</p>" for each in _unmatched(comparison))
    shown = min(len(comparison.pairs), DRAWN_PAIRS)
    figure = html_figure(
        comparison.figure,
        f"{shown} of {len(comparison.pairs)} pairs in the columns that differ most: both values, "
        "red where that of the second is higher.",
    )
    return figure + table + alone


def _unmatched(comparison: Comparison) -> list[str]:
    found = (
        ("first", comparison.only_first, comparison.first.labels),
        ("second", comparison.only_second, comparison.second.labels),
    )
    return [
        f"Without a partner in the {side} result: {', '.join(labels[k] for k in clusters)}"
        for side, clusters, labels in found
        if clusters
    ]


# --- a pair in words ------------------------------------------------------------------------------


def named(pair: ClusterPair) -> list[ColumnDifference]:
    """Return the columns that differ most, of those that differ notably."""
    apart = [each for each in pair.differences if abs(each.difference or 0.0) >= NOTABLE]
    return apart[:_MOST_NAMED]


def changed(each: ColumnDifference) -> str:
    """Return a column with its value in both clusters."""
    before, after = (mean_of(mean) for mean in each.means)
    name, unit = isolated(each.column.name), unit_of(each.column)
    return f"{name} {before} / {after}{unit}"


def in_words(pair: ClusterPair) -> str:
    """Return a pair: whether it returns, how far apart it then is, and what differs most."""
    most = "; ".join(map(changed, named(pair)))
    apart = {True: f"{short(pair.distance)} apart", False: "do not return", None: _SAID[None]}
    return f"{pair.text}: {apart[pair.returns]}" + (f", {most}" if most else "")
