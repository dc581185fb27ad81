"""Standardised differences of each cluster on the axes of the columns that separate most."""

from __future__ import annotations

import math

from fedclust.errors import UsageError
from fedclust.report.drawing import PALETTE, WIDTH, Figure, clipped, signed, tag, text, words_width
from fedclust.report.facts import Cluster, Facts
from fedclust.report.figures.profile import mean_of, ranked_columns
from fedclust.report.figures.words import joined, persons

__all__ = ["FEWEST_AXES", "MOST_AXES", "MOST_RADARS", "draw_radar"]

#: Axes of a radar: fewer make no shape, and more no longer have room for their names.
FEWEST_AXES, MOST_AXES = 3, 12
#: Clusters of a figure. Of more, the largest.
MOST_RADARS = 8
_RADIUS, _HIGH, _MIDDLE = 84.0, 284.0, 164.0
#: From the centre to the zero ring; beyond it only the outermost ring is drawn.
_MOST_RINGS = 4
#: Room for a name next to a radar.
_NAME = 82.0


def draw_radar(facts: Facts) -> Figure:
    """Draw a radar for each cluster; the bold ring is all persons.

    All radars have the same axes and the same scale, which begins below the least and ends above
    the greatest value: nothing is cut off. Areas are not filled, since they would depend on the
    order of the axes.

    Raises
    ------
    UsageError
        Fewer than three columns have a difference between clusters.
    """
    columns = ranked_columns(facts, MOST_AXES)
    if len(columns) < FEWEST_AXES:
        raise UsageError("a radar needs three columns in which clusters are compared")
    clusters = sorted(facts.clusters, key=lambda each: (-(each.size or 0), each.number))
    clusters = sorted(clusters[:MOST_RADARS], key=lambda each: each.number)
    values = [abs(each.entries[j].difference or 0.0) for each in clusters for j in columns]
    reach = max(1, math.ceil(max(values)))
    parts, wide = [], WIDTH / 2
    for number, cluster in enumerate(clusters):
        left, top = wide * (number % 2), _HIGH * (number // 2)
        parts += _radar(facts, cluster, columns, reach, (left + wide / 2, top + _MIDDLE))
    bottom = _HIGH * math.ceil(len(clusters) / 2)
    names = f"Rings: {-reach:+d} at the centre"
    words = f"{names}, 0 (bold, all persons) to {reach:+d} standard deviations."
    parts.append(text(WIDTH / 2, bottom + 16, words, "middle"))
    described = f"{len(columns)} axes. {words} " + joined(
        f"Cluster {cluster.number}: "
        + ", ".join(
            f"{facts.columns[j].name} {mean_of(entry)} ({signed(entry.difference)})"
            for j in columns
            if (entry := cluster.entries[j]).difference is not None
        )
        for cluster in clusters
    )
    return Figure(parts, bottom + 28, "Radars of the clusters", described)


def _radar(
    facts: Facts, cluster: Cluster, columns: list[int], reach: int, middle: tuple[float, float]
) -> list[str]:
    across, down = middle

    def place(axis: int, value: float) -> tuple[float, float]:
        turn = 2 * math.pi * axis / len(columns)
        away = _RADIUS * (value + reach) / (2 * reach)
        return across + away * math.sin(turn), down - away * math.cos(turn)

    title = f"cluster {cluster.number}: {persons(cluster.size, cluster.share)}"
    parts = [text(across - 164, down - _MIDDLE + 20, title, "start", font_weight="600")]
    for ring in range(1 - reach, reach + 1):
        if ring == 0 or reach <= _MOST_RINGS or ring == reach:
            way = _way([place(axis, ring) for axis in range(len(columns))], closed=True)
            ink, wide = ("#333333", "1.8") if ring == 0 else ("#cccccc", "1")
            parts.append(tag("path", d=way, fill="none", stroke=ink, stroke_width=wide))
    for axis, j in enumerate(columns):
        end = place(axis, reach)
        parts.append(tag("line", x1=across, y1=down, x2=end[0], y2=end[1], stroke="#dddddd"))
        parts += _axis_name(facts.columns[j].name, end, (end[0] - across, end[1] - down))
    colour = PALETTE[0]  # One for all: each has a radar of its own.
    known = [
        None if (away := cluster.entries[j].difference) is None else place(axis, away)
        for axis, j in enumerate(columns)
    ]
    style = {"stroke": colour, "stroke_width": "2.5", "fill": "none"}
    if all(point is not None for point in known):
        parts.append(tag("path", d=_way([p for p in known if p is not None], closed=True), **style))
    else:  # No line passes over an axis whose value is unknown.
        for before, point in zip([*known[-1:], *known], known, strict=False):
            if before is not None and point is not None:
                parts.append(tag("path", d=_way([before, point], closed=False), **style))
    for point in known:
        if point is not None:
            dot = {"fill": colour, "stroke": "#ffffff"}
            parts.append(tag("circle", cx=point[0], cy=point[1], r=4.0, **dot))
    for ring in (0, reach):
        x, y = place(0, ring)
        label = f"{ring:+d}" if ring else "0"
        width = words_width(label, 12) + 2
        ground = {"fill": "#ffffff", "fill_opacity": "0.8"}
        parts.append(tag("rect", x=x + 4, y=y - 2, width=width, height=13.0, **ground))
        parts.append(text(x + 5, y + 9, label, "start"))
    return parts


def _axis_name(name: str, end: tuple[float, float], way: tuple[float, float]) -> list[str]:
    """Return the name of an axis outside its end, in two lines where one is too short."""
    side = way[0] / _RADIUS
    anchor = "middle" if abs(side) < 0.2 else "start" if side > 0 else "end"
    room = 2 * _NAME if anchor == "middle" else _NAME + _RADIUS * (1 - abs(side))
    lines = _broken(name, room)
    x = end[0] + 8 * side
    y = end[1] + 4 + (12 * way[1] / _RADIUS)
    y -= 14 * (len(lines) - 1) * (1.0 if way[1] < -0.5 * _RADIUS else 0.5)
    if way[1] > 0.5 * _RADIUS:
        y += 7 * (len(lines) - 1)
    return [text(x, y + 14 * number, words, anchor) for number, words in enumerate(lines)]


def _broken(name: str, room: float) -> list[str]:
    """Return a name in one line or, where it does not fit, two."""
    if words_width(name, 12) <= room:
        return [name]
    fitting = next(n for n in range(len(name), 0, -1) if words_width(name[:n], 12) <= room)
    # After the last mark that ends a word, else in the middle of one.
    cut = max((i + 1 for i in range(fitting) if name[i] in " _-=./"), default=fitting)
    return [name[:cut].strip(), clipped(name[cut:].strip(), room)]


def _way(points: list[tuple[float, float]], *, closed: bool) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points) + ("z" if closed else "")
