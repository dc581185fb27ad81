"""The figure of matched clusters, and how a pair of them is described."""

from __future__ import annotations

from collections.abc import Sequence

from fedclust.errors import UsageError
from fedclust.result.drawing import (
    BOTTOM,
    PALETTE,
    WIDTH,
    Axis,
    Figure,
    clipped,
    line,
    ruler,
    short,
    tag,
    text,
    ticks,
)
from fedclust.result.figures.profile import mean_of
from fedclust.result.matching import ClusterPair, ColumnDifference
from fedclust.result.wording import isolated
from fedclust.schema.encoding import Column

__all__ = ["DRAWN_PAIRS", "changed", "draw_matched", "in_words", "named"]

#: Columns named for each pair.
_MOST_NAMED = 3
#: Columns and pairs of the figure; each pair has a colour.
_DRAWN_COLUMNS, DRAWN_PAIRS = 15, len(PALETTE)
#: Height of a pair's line.
_STEP = 12.0


def draw_matched(every: Sequence[ClusterPair], columns: Sequence[Column], unit: str) -> Figure:
    """Draw the first pairs in the columns that differ most: a line for each pair and column.

    Raises
    ------
    UsageError
        There are no pairs.
    """
    pairs = every[:DRAWN_PAIRS]
    if not pairs:
        raise UsageError("no clusters of the two results are matched: there is nothing to draw")
    drawn = _drawn_columns(pairs, columns)
    left, top, height = 210.0, 10.0, _STEP * len(pairs) + 10
    bottom = top + height * len(drawn)
    spots = [place for pair in pairs for each in pair.differences for place in each.places]
    x = Axis.around([*spots, 0.0], left, WIDTH - 130)
    marks = ticks(x.least, x.most)
    parts = [line(x(mark), top, x(mark), bottom) for mark in marks]
    for row, column in enumerate(drawn):
        at = top + height * row
        parts.append(line(left, at, WIDTH - 130, at))
        parts.append(text(left - 8, at + height / 2 + 4, clipped(column.name, left - 16), "end"))
        for number, pair in enumerate(pairs):
            down = at + 5 + _STEP * (number + 0.5)
            for each in pair.differences:
                if each.column == column:
                    spot = [x(place) for place in each.places]
                    parts += _marks(spot[0], spot[1], down, PALETTE[number])
    parts += ruler(x, bottom, bottom, f"{unit}, from the middle of both", marks)
    aside = WIDTH - 114
    for number, name in enumerate(("first", "second")):
        down = top + 12 + 18 * number
        parts.append(_marks(aside, aside, down - 4, "#ffffff")[1 + number])
        parts.append(text(aside + 14, down, name, "start"))
    for number, pair in enumerate(pairs):
        down = top + 54 + 18 * number
        look = {"stroke": PALETTE[number], "stroke_width": "4"}
        parts.append(tag("path", d=f"M{aside - 6:.0f} {down - 4:.0f}h14", **look))
        parts.append(text(aside + 14, down, f"{pair.first} and {pair.second}", "start"))
    described = "; ".join(f"clusters {in_words(pair)}" for pair in pairs)
    high = max(bottom + BOTTOM, top + 60 + 18 * len(pairs))
    return Figure(parts, high, "Matched clusters of two results", f"{described}.")


def _marks(first: float, second: float, down: float, colour: str) -> list[str]:
    """Return a line between two places, a circle at the first and a diamond at the second."""
    look = {"fill": colour, "stroke": "#333333"}
    diamond = f"M{second:.1f} {down - 5:.1f}l5 5l-5 5l-5 -5z"
    return [
        tag("line", x1=first, y1=down, x2=second, y2=down, stroke="#333333"),
        tag("circle", cx=first, cy=down, r=4.0, **look),
        tag("path", d=diamond, **look),
    ]


def _drawn_columns(pairs: Sequence[ClusterPair], columns: Sequence[Column]) -> list[Column]:
    """Return the columns that differ most between the clusters of a pair, in their order."""
    widest = dict.fromkeys(columns, 0.0)
    for pair in pairs:
        for each in pair.differences:
            widest[each.column] = max(widest[each.column], abs(each.difference))
    chosen = sorted(columns, key=lambda column: -widest[column])[:_DRAWN_COLUMNS]
    return [column for column in columns if column in chosen]


def named(pair: ClusterPair) -> list[ColumnDifference]:
    """Return the columns that differ most, without those that do not differ."""
    return [
        each for each in pair.differences[:_MOST_NAMED] if f"{each.difference:+.2f}"[1:] != "0.00"
    ]


def changed(each: ColumnDifference) -> str:
    """Return a column with its value in both clusters, and the difference."""
    before, after = (mean_of(mean) for mean in each.means)
    unit = f" {each.column.unit}" if each.column.unit and each.column.kind != "binary" else ""
    name = isolated(each.column.name)
    return f"{name} {before} / {after}{isolated(unit)} ({each.difference:+.2f})"


def in_words(pair: ClusterPair) -> str:
    """Return a pair: how far apart, whether mutually nearest, and what differs most."""
    most = "; ".join(map(changed, named(pair)))
    return (
        f"{pair.first} and {pair.second}: {short(pair.distance)} apart, "
        f"{'mutually nearest' if pair.mutual else 'not mutually nearest'}"
        + (f", {most}" if most else "")
    )
