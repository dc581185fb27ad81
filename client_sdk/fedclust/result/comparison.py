"""Two results side by side: which clusters return, how far apart they are, and what differs."""

import functools
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from fedclust.numeric.array_types import FloatArray
from fedclust.result.drawing import RIGHT, WIDTH, Figure, clipped, short, signed, text
from fedclust.result.facts import NOTABLE, Facts
from fedclust.result.figures.profile import (
    HeatRow,
    heat_cell,
    heat_map,
    mean_of,
    unit_of,
)
from fedclust.result.markup import Section, html_figure, html_records, html_table
from fedclust.result.matching import (
    ClusterPair,
    ColumnDifference,
    Positions,
    distances,
    match,
    nearest_mutually,
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
#: Of the distance to the next cluster. With one limit at half of it, groups were right in 92 %;
#: outside of these two they were in 97 % (docs/results/table_one.md).
_RETURNS, _DIFFERS = 0.4, 0.6
RETURNS = (
    "A cluster returns if its matched cluster is the nearest of the other result, and the reverse, "
    f"and both are at most {_RETURNS:g} times as far apart as from the next cluster of their own "
    f"result. It does not return from {_DIFFERS:g} times on; otherwise nobody can tell."
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
    mutual_share : pair of float or None
        The share of each result's persons in pairs that are mutually nearest; None: not known.
    total_variation : float or None
        Half the sum of the differences between the shares of matched clusters, from 0 (the same
        shares) to 1; a cluster without a partner counts with its share.
    by_site : dict of site to float
        The same for each site, where the reader sees the sizes of the same sites in both.

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
    mutual_share: tuple[float | None, float | None]
    total_variation: float | None
    by_site: dict[str, float]

    @functools.cached_property
    def verdict(self) -> str:
        """One sentence: how many clusters return."""
        before, after = len(self.first.clusters), len(self.second.clusters)
        back = [pair for pair in self.pairs if pair.returns]
        unsure = sum(pair.returns is None for pair in self.pairs)
        if not back and unsure:
            return (
                f"Nobody can tell whether {unsure} of the first result's {before} clusters "
                f"{'returns' if unsure == 1 else 'return'} among the {after} of the second; no "
                "other does."
            )
        if not back:
            return (
                "The two results describe different clusters: none of the first result's "
                f"{before} returns among the {after} of the second."
            )
        most = short(max(pair.distance for pair in back))
        if len(back) == before == after:
            every = "the one cluster returns" if before == 1 else f"all {before} return"
            return (
                f"The two results describe the same clusters: {every}, at most {most} "
                f"{self.unit} apart."
            )
        more = f" Of {unsure} more nobody can tell." if unsure else ""
        return (
            f"The two results agree in part: {len(back)} of the first result's {before} clusters "
            f"return among the {after} of the second, at most {most} {self.unit} apart.{more}"
        )

    @property
    def sections(self) -> tuple[Section, ...]:
        """The parts of a page that compares the two, as `result.page.sections` has them."""
        found = (
            Section("agreement", "Agreement", _agreement(self)),
            Section("matched", "Matched clusters", _matched(self)),
            Section("sites", "Sites", _sites(self)),
        )
        return tuple(section for section in found if section.html)

    def figure(self) -> Figure:
        """Draw the matched clusters: a cell for each pair and column.

        Raises
        ------
        UsageError
            No clusters are matched.
        """
        return draw_matched(self)

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
    apart = distances(*places.values)
    matched = match(apart)
    rooms = [_next_cluster(values) for values in places.values]
    pairs = []
    for i, j in matched:
        mutual = nearest_mutually(apart, i, j)
        room = min(rooms[0][i], rooms[1][j])
        clusters = first.clusters[i], second.clusters[j]
        pairs.append(
            ClusterPair(
                first=i,
                second=j,
                labels=(first.labels[i], second.labels[j]),
                distance=float(apart[i, j]),
                mutual=mutual,
                returns=_returns(mutual, float(apart[i, j]), room),
                sizes=(clusters[0].size, clusters[1].size),
                shares=(clusters[0].share, clusters[1].share),
                differences=_differences(first, second, places, i, j),
            )
        )
    sizes = first.result.sizes, second.result.sizes
    return Comparison(
        first=first,
        second=second,
        columns=places.columns,
        left_out=places.left_out,
        unit=places.unit,
        pairs=tuple(pairs),
        only_first=_without({i for i, _ in matched}, len(first.clusters)),
        only_second=_without({j for _, j in matched}, len(second.clusters)),
        mutual_share=(
            _share(sizes[0], [pair.first for pair in pairs if pair.mutual]),
            _share(sizes[1], [pair.second for pair in pairs if pair.mutual]),
        ),
        total_variation=_total_variation(sizes[0], sizes[1], matched),
        by_site=_by_site(first, second, matched),
    )


def _returns(mutual: bool, apart: float, room: float) -> bool | None:
    if apart >= _DIFFERS * room:
        return False
    return True if mutual and apart <= _RETURNS * room else None


def _next_cluster(places: FloatArray) -> FloatArray:
    """Return how far each cluster (K,) is from the next of its own result."""
    apart = distances(places, places)
    np.fill_diagonal(apart, np.inf)
    nearest: FloatArray = apart.min(axis=1)
    return np.where(np.isfinite(nearest), nearest, 2 * NOTABLE)


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


def _share(sizes: Sequence[int] | None, clusters: Sequence[int]) -> float | None:
    if not sizes or not sum(sizes):
        return None
    return sum(sizes[k] for k in clusters) / sum(sizes)


def _total_variation(
    first: Sequence[int] | None, second: Sequence[int] | None, matched: Sequence[tuple[int, int]]
) -> float | None:
    """Return the total variation distance of two mixes; None where one has no persons."""
    if not first or not second or not sum(first) or not sum(second):
        return None
    one, other = np.array(first) / sum(first), np.array(second) / sum(second)
    moved = sum(abs(one[i] - other[j]) for i, j in matched)
    alone = sum(one[k] for k in _without({i for i, _ in matched}, len(one)))
    alone += sum(other[k] for k in _without({j for _, j in matched}, len(other)))
    return float(moved + alone) / 2


def _by_site(first: Facts, second: Facts, matched: Sequence[tuple[int, int]]) -> dict[str, float]:
    one, other = first.result.site_sizes, second.result.site_sizes
    if one.keys() != other.keys():
        return {}
    found = {site: _total_variation(one[site], other[site], matched) for site in sorted(one)}
    return {site: value for site, value in found.items() if value is not None}


# --- what a page shows ----------------------------------------------------------------------------


def _agreement(comparison: Comparison) -> str:
    sides = comparison.first, comparison.second
    shares = [percent(share) for share in comparison.mutual_share]
    rows: list[list[object]] = [
        ["session", *(facts.definition.name for facts in sides)],
        ["method", *(facts.definition.algorithm for facts in sides)],
        ["clusters", *(len(facts.clusters) for facts in sides)],
        ["clusters that return", *[sum(bool(pair.returns) for pair in comparison.pairs)] * 2],
        ["persons", *(sum(facts.result.sizes or ()) or None for facts in sides)],
        ["persons in mutually nearest clusters", *shares],
    ]
    table = html_table("The two results.", ["result", "first", "second"], rows, text=(1, 2))
    said = [f"<p><strong>{escape(comparison.verdict)}</strong> {escape(RETURNS)}</p>"]
    if comparison.total_variation is not None:
        said.append(
            f"<p>The shares of matched clusters differ by {percent(comparison.total_variation)} "
            "in total (total variation distance: 0 % for the same mix, 100 % for none in common)."
            "</p>"
        )
    said.append(f"<p>{escape(LIMITS)}</p>")
    names = ", ".join(column.name for column in comparison.columns)
    compared = f"<p>Compared: {escape(names)}.</p>"
    if comparison.left_out:
        compared += f"<p>Not compared: {escape('; '.join(comparison.left_out))}.</p>"
    return "".join([*said, table, compared])


def _matched(comparison: Comparison) -> str:
    rows = [
        {
            "first and second": pair.text,
            "apart": pair.distance,
            "mutually nearest": "yes" if pair.mutual else "no",
            "returns": _SAID[pair.returns],
            "persons": " / ".join("–" if size is None else str(size) for size in pair.sizes),
            "share": " / ".join(percent(share) for share in pair.shares),
            "differ most in": "; ".join(map(changed, named(pair))),
        }
        for pair in comparison.pairs
    ]
    table = html_records(
        f"Clusters matched so that the sum of their distances is least. Apart: in {comparison.unit}"
        ", root mean square over the columns. In the last column the second minus the first.",
        rows,
        text=(6,),
    )
    alone = "".join(f"<p>{escape(each)}.</p>" for each in _unmatched(comparison))
    shown = min(len(comparison.pairs), DRAWN_PAIRS)
    figure = html_figure(
        comparison.figure,
        f"{shown} of {len(comparison.pairs)} pairs in the columns that differ most: both values, "
        f"and below them the second minus the first in {comparison.unit}, red above 0.",
    )
    return figure + table + alone


def _sites(comparison: Comparison) -> str:
    if not comparison.by_site:
        return ""
    first, second = comparison.first, comparison.second
    rows = [
        [
            first.site_name(site),
            percent(moved),
            *(
                " / ".join(
                    percent(_share(facts.result.site_sizes[site], [k]))
                    for facts, k in ((first, pair.first), (second, pair.second))
                )
                for pair in comparison.pairs
            ),
        ]
        for site, moved in comparison.by_site.items()
    ]
    names = [pair.text for pair in comparison.pairs]
    return html_table(
        "The share of each pair of clusters among a site's persons, first / second, and the total "
        "variation distance of its two mixes.",
        ["site", "differ by", *names],
        rows,
    )


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


# --- the figure, and a pair in words --------------------------------------------------------------


def draw_matched(comparison: Comparison) -> Figure:
    """Draw the first pairs in the columns that differ most: a cell for each column and pair.

    Raises
    ------
    UsageError
        There are no pairs.
    """
    pairs = comparison.pairs[:DRAWN_PAIRS]
    if not pairs:
        raise UsageError("no clusters of the two results are matched: there is nothing to draw")
    found = [{each.column: each for each in pair.differences} for pair in pairs]
    gaps = {
        column: max(
            (abs(own[column].difference or 0.0) for own in found if column in own), default=0.0
        )
        for column in comparison.columns
    }

    def draw(column: Column, k: int, *area: float) -> list[str]:
        each = found[k].get(column)
        if each is None:
            return heat_cell("–", None, *area)
        return heat_cell(" / ".join(map(mean_of, each.means)), each.difference, *area)

    rows: list[HeatRow] = [
        (column.name, f"{gaps[column]:.1f}", functools.partial(draw, column))
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


def named(pair: ClusterPair) -> list[ColumnDifference]:
    """Return the columns that differ most, without those that do not differ."""
    apart = [each for each in pair.differences if signed(each.difference or 0.0) != "0.0"]
    return apart[:_MOST_NAMED]


def changed(each: ColumnDifference) -> str:
    """Return a column with its value in both clusters, and the difference."""
    before, after = (mean_of(mean) for mean in each.means)
    name, unit = isolated(each.column.name), unit_of(each.column)
    return f"{name} {before} / {after}{unit} ({signed(each.difference or 0.0)})"


def in_words(pair: ClusterPair) -> str:
    """Return a pair: how far apart, whether mutually nearest, and what differs most."""
    most = "; ".join(map(changed, named(pair)))
    return (
        f"{pair.text}: {short(pair.distance)} apart, "
        f"{'mutually nearest' if pair.mutual else 'not mutually nearest'}"
        + (f", {most}" if most else "")
    )
