"""The heat map of standardised differences, and in which order figures show the columns."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

from fedclust.result.drawing import WIDTH, Figure, clipped, ink_on, short, tag, text, words_width
from fedclust.result.facts import NOTABLE, Cluster, ClusterColumn, Facts
from fedclust.result.wording import isolated, joined, percent, titled
from fedclust.schema.encoding import Column
from fedclust.schema.feature import Trajectory, clustered, trajectories_of
from fedclust.wire.errors import UsageError

#: A row of a heat map: its name, and what draws the cell of a head.
HeatRow: TypeAlias = tuple[str, Callable[[int, float, float, float, float], list[str]]]
#: Columns of a heat map; more would not be read.
MOST_COLUMNS = 40
#: Standardised differences that have the full colour, and the step of the legend.
_FULL, _STEP = 2.0, 0.5
_LEFT, _RIGHT, _TOP = 176.0, 12.0, 46.0
#: Widest cell; the narrowest that has room for numbers; heights with numbers and with marks alone.
_WIDEST, _READABLE, _HIGH, _LOW = 90.0, 46.0, 36.0, 24.0
#: From a cluster's number to the next, so that numbers of three digits have room.
_APART = 26.0


def draw_profile(facts: Facts) -> Figure:
    """Draw a cell for each column and cluster: its colour and mark say how it differs.

    The columns of a trajectory are one row: a curve over a strip for each time.

    Raises
    ------
    UsageError
        No differences are known.
    """
    apart, names = separations(facts), _curves(facts)
    gaps = {row: max(apart[j] for j in row) for row in profile_rows(facts)}
    shown = sorted(gaps, key=lambda row: (-gaps[row], row))[:MOST_COLUMNS]
    if not any(apart):
        raise UsageError("no differences between clusters are known")
    rows: list[HeatRow] = [
        (
            names.get(row) or with_unit(facts.columns[row[0]]),
            functools.partial(_profile_cell, facts, row),
        )
        for row in shown
    ]
    heads = facts.cluster_names if facts.named else facts.labels
    parts, bottom = heat_map("cluster", heads, rows, "from all persons")
    of_curves = " (trajectories as curves)" if names.keys() & shown else ""
    described = (
        f"{len(shown)} columns{of_curves} by {len(facts.clusters)} clusters, the columns with the "
        "largest gap between two clusters first; blue is below all persons, red above. "
    ) + joined(
        f"{titled(name)}: {', '.join(gaps_of(cluster))}"
        for name, cluster in zip(facts.cluster_names, facts.clusters, strict=True)
    )
    return Figure(parts, bottom, "Profile of the clusters", described)


def heat_map(
    corner: str, heads: Sequence[str], rows: Sequence[HeatRow], differ: str
) -> tuple[list[str], float]:
    """Return a cell for each row and head, and where the drawing ends.

    Parameters
    ----------
    corner : str
        What the heads are.
    heads : sequence of str
    rows : sequence of HeatRow
        Each has a name, and what draws the cell of a head at x, y, width, height.
    differ : str
        What the differences are from, for the legend.
    """
    wide = min(_WIDEST, (WIDTH - _LEFT - _RIGHT) / len(heads))
    high = _HIGH if wide >= _READABLE else _LOW
    parts = [text(_LEFT - 8, _TOP - 10, corner, "end")]
    for k in range(0, len(heads), math.ceil(_APART / wide)):
        # A name has as much room as its cells; bold letters are wider.
        word = clipped(heads[k], max(wide, _APART) - 4, 13)
        parts.append(text(_LEFT + wide * (k + 0.5), _TOP - 10, word, "middle", font_weight="600"))
    for i, (name, draw) in enumerate(rows):
        at = _TOP + high * i
        parts.append(text(_LEFT - 8, at + high / 2 + 3, clipped(name, _LEFT - 16), "end"))
        for k in range(len(heads)):
            parts += draw(k, _LEFT + wide * k, at, wide - 2, high - 2)
    bottom = _TOP + high * len(rows)
    return [*parts, *_legend(bottom + 24, differ)], bottom + 74


def _profile_cell(facts: Facts, row: tuple[int, ...], k: int, *area: float) -> list[str]:
    entries = [facts.clusters[k].entries[j] for j in row]
    if len(row) == 1:
        return heat_cell(mean_of(entries[0]), entries[0].difference, *area)
    every = [other.entries[j].mean for other in facts.clusters for j in row]
    return _curve(entries, every, *area)


def heat_cell(
    value: str, away: float | None, x: float, y: float, wide: float, high: float
) -> list[str]:
    """Return a cell with a mark where it differs notably, and the value where it has room.

    Groups tell on which side of all persons a value is, not how far it is
    (docs/results/table_one.md).
    """
    fill, ink = difference_colour(away)
    parts = [tag("rect", x=x, y=y, width=wide, height=high, fill=fill)]
    middle, narrow = x + wide / 2, high < _HIGH - 2
    if away is not None and abs(away) >= NOTABLE:
        at = y + high / 2 if narrow else y + high - 8
        parts.append(_arrowhead(middle, at, up=away > 0, ink=ink))
    if not narrow and words_width(value, 12) <= wide + 4:
        parts.append(text(middle, y + 17, value, "middle", fill=ink, font_weight="600"))
    return parts


def profile_rows(facts: Facts) -> list[tuple[int, ...]]:
    """Return the columns of each row of the heat map: of a curve all of its trajectory."""
    curves = [*_curves(facts)]
    in_curves = {j for row in curves for j in row}
    return curves + [(j,) for j in range(len(facts.columns)) if j not in in_curves]


def _curves(facts: Facts) -> dict[tuple[int, ...], str]:
    """Return the names of the trajectories that are drawn as curves, by their columns."""
    place = {column.name: j for j, column in enumerate(facts.columns)}
    return {tuple(place[at.name] for at in of.columns): with_unit(of) for of in curves_of(facts)}


def _curve(
    entries: Sequence[ClusterColumn],
    every: Sequence[float | None],
    x: float,
    y: float,
    wide: float,
    high: float,
) -> list[str]:
    """Return a strip for each time of a trajectory, and the curve of a cluster over them.

    ``every`` are the means of all clusters, which fix the scale.
    """
    known = [mean for mean in every if mean is not None]
    low, span = min(known, default=0.0), max(known, default=0.0) - min(known, default=0.0)
    strip, parts, points = wide / len(entries), [], []
    for i, entry in enumerate(entries):
        fill, _ = difference_colour(entry.difference)
        parts.append(tag("rect", x=x + strip * i, y=y, width=strip, height=high, fill=fill))
        if entry.mean is not None:
            share = (entry.mean - low) / span if span else 0.5
            points.append(f"{x + strip * (i + 0.5):.1f},{y + high - 4 - (high - 8) * share:.1f}")
    for colour, stroke in (("#ffffff", 4), ("#222222", 1.5)):
        line = {"stroke": colour, "stroke_width": stroke, "stroke_linejoin": "round"}
        parts.append(tag("polyline", points=" ".join(points), fill="none", **line))
    return parts


def curves_of(facts: Facts) -> tuple[Trajectory, ...]:
    """Return the trajectories of the session that can be drawn as curves over time."""
    features = clustered(facts.definition.features)
    return tuple(each for each in trajectories_of(features) if len(each.grid or ()) > 1)


def _arrowhead(x: float, y: float, *, up: bool, ink: str) -> str:
    way = (
        f"M{x - 3.5:.1f} {y + 3:.1f}h7l-3.5 -6z" if up else f"M{x - 3.5:.1f} {y - 3:.1f}h7l-3.5 6z"
    )
    return tag("path", d=way, fill=ink)


def _legend(y: float, differ: str) -> list[str]:
    """Return the scale of the colours, and where cells have marks.

    It begins at the left, where a phone shows it without scrolling.
    """
    count = round(2 * _FULL / _STEP) + 1
    wide, high = 34.0, 16.0
    parts = [text(16, y, f"standard deviations {differ}", "start")]
    y += 10
    for i in range(count):
        away = -_FULL + _STEP * i
        fill, ink = difference_colour(away)
        x = 32 + wide * i
        parts.append(tag("rect", x=x, y=y, width=wide, height=high, fill=fill, stroke="#bbbbbb"))
        if abs(away) >= NOTABLE:
            parts.append(_arrowhead(x + wide / 2, y + high / 2, up=away > 0, ink=ink))
        if i % 2 == 0:
            beyond = " or less" if i == 0 else " or more" if i == count - 1 else ""
            label = f"{away:+.0f}{beyond}" if away else "0"
            parts.append(text(x + wide / 2, y + high + 16, label, "middle"))
    return parts


def mean_of(entry: ClusterColumn) -> str:
    """Return a mean as it is read: a share in per cent, a number in a few digits."""
    return percent(entry.mean) if entry.column.kind == "binary" else short(entry.mean)


def with_unit(column: Column | Trajectory) -> str:
    """Return a name with its unit, which a long name leaves its room; of a share the name alone."""
    unit = f" ({column.unit})" if column.unit and column.kind != "binary" else ""
    return clipped(column.name, max(_LEFT - 16 - words_width(unit, 12), _READABLE)) + unit


def unit_of(column: Column) -> str:
    """Return a column's unit after a space; "" for a share."""
    return isolated(f" {column.unit}") if column.unit and column.kind != "binary" else ""


def separations(facts: Facts) -> list[float]:
    """Return for each column the largest gap between two clusters, in standard deviations."""
    found = []
    for j in range(len(facts.columns)):
        known = [
            away
            for cluster in facts.clusters
            if (away := cluster.entries[j].difference) is not None
        ]
        found.append(max(known) - min(known) if known else 0.0)
    return found


def difference_colour(difference: float | None) -> tuple[str, str]:
    """Return the fill of a standardised difference, blue below and red above, and the ink on it."""
    if difference is None:
        return "#eeeeee", "#222222"
    share = min(abs(difference) / _FULL, 1.0)
    end = (33, 102, 172) if difference < 0 else (178, 24, 43)
    fill = "#" + "".join(f"{round(255 + (value - 255) * share):02x}" for value in end)
    return fill, ink_on(fill)


def gaps_of(cluster: Cluster) -> list[str]:
    """Return the columns that set a cluster apart, each with its value."""
    return [
        f"{isolated(entry.column.name)} {mean_of(entry)}{unit_of(entry.column)}"
        for entry in cluster.sets_apart
    ] or [cluster.nothing_apart]
