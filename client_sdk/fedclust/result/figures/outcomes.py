"""Outcomes: a forest plot by cluster and site, and survival curves with numbers at risk."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fedclust.result.drawing import (
    RIGHT,
    TOP,
    WIDTH,
    Axis,
    Figure,
    clipped,
    colour_of,
    frame,
    line,
    short,
    tag,
    text,
    ticks,
)
from fedclust.result.facts import Facts
from fedclust.result.outcomes import effect_text, estimate_text, event_of, measure_text
from fedclust.result.wording import MOST_JOINED, joined
from fedclust.schema.outcomes import Estimate, OutcomeComparison, OutcomeResult, SurvivalPoint
from fedclust.wire.errors import UsageError

#: The measure that is drawn of each kind, the first that the outcome has.
_DRAWN = {
    "binary": ("odds_ratio",),
    "categorical": ("odds_ratio",),
    "ordered": ("mean_difference", "superiority"),
    "time": ("rate_ratio",),
}
#: Where the clusters are equal.
_EQUAL = {"odds_ratio": 1.0, "rate_ratio": 1.0, "superiority": 0.5}
#: Ratios beyond these are drawn at the edge.
_LEAST, _MOST, _MOST_MARKS = 1 / 64, 64.0, 7
_ROUND_RATIOS = tuple(2.0**power for power in range(-6, 7))
#: Of the forest: the height of a row, and where axis, names and numbers are.
_STEP, _AXIS, _NAMES, _NUMBERS = 22.0, 190.0, 172.0, 500.0
#: Of survival: where the axis begins, the height of a line of numbers, the width of a number.
_CURVES, _AT_RISK, _ROOM = 124.0, 17.0, 40.0


@dataclass(frozen=True)
class _Row:
    name: str
    text: str
    estimate: Estimate
    colour: str
    site: bool


def _chosen(facts: Facts, name: str | None, kinds: tuple[str, ...]) -> list[OutcomeResult]:
    """Return the outcomes to draw; UsageError where there are none."""
    found = facts.result.outcomes
    results = [
        each
        for each in (() if found is None else found.results)
        if name in (None, each.name) and each.kind in kinds and each.clusters
    ]
    if not results:
        raise UsageError("the result has no outcome to draw" + (f" named {name!r}" * bool(name)))
    return results


def draw_forest(facts: Facts, outcome: str | None = None) -> Figure:
    """Draw each cluster's effect against the largest cluster, over all sites and by site.

    Raises
    ------
    UsageError
        The result does not hold what it would show.
    """
    parts: list[str] = []
    down, described = 0.0, []
    for found in _chosen(facts, outcome, tuple(_DRAWN)):
        names = (m for m in _DRAWN[found.kind] if m in {c.measure for c in found.comparisons})
        measure = next(names, None)
        compared = [each for each in found.comparisons if each.measure == measure]
        rows = [row for each in compared for row in _rows(facts, each)]
        if not rows:
            continue
        heading = f"{found.name}: {measure_text(compared[0]).partition(',')[0]}"
        parts.append(text(RIGHT, down + 22, clipped(heading, WIDTH), "start", font_weight="600"))
        parts += _panel(rows, str(measure), down + 34)
        down += 34 + _STEP * len(rows) + 46
        every = joined(f"{row.name} {row.text}" for row in rows)
        described.append(f"{heading}. {every}")
    if not parts:
        raise UsageError("the outcomes have no comparisons: there is one cluster")
    return Figure(parts, down, "Effects on outcomes by cluster and site", " ".join(described))


def _rows(facts: Facts, found: OutcomeComparison) -> Iterator[_Row]:
    level = f", {found.level}" if found.level else ""
    colour = colour_of(found.cluster)
    name = f"{facts.cluster_names[found.cluster]}{level}"
    yield _Row(name, effect_text(found), found.estimate, colour, site=False)
    # One limit alone reads like an effect.
    sites = [
        (site, own)
        for site, own in sorted(found.by_site.items())
        if own.lower is not None and own.upper is not None
    ]
    for site, own in sites[:MOST_JOINED]:
        yield _Row(facts.site_name(site), effect_text(found, own), own, colour, site=True)


def _panel(rows: list[_Row], measure: str, top: float) -> list[str]:
    ratio = measure.endswith("ratio")
    place: Callable[[float], float] = math.log if ratio else float
    equal = _EQUAL.get(measure, 0.0)
    numbers = [x for row in rows for x in vars(row.estimate).values() if x is not None]
    drawn = [equal, *(min(max(x, _LEAST), _MOST) if ratio else x for x in numbers)]
    x = Axis.around([place(each) for each in drawn], _AXIS, _NUMBERS)
    bottom = top + _STEP * len(rows)
    known = _ROUND_RATIOS if ratio else ticks(x.least, x.most)
    marks = [mark for mark in known if x.least <= place(mark) <= x.most]
    if ratio and len(marks) > _MOST_MARKS:
        marks = [mark for mark in marks if math.log2(mark) % 2 == 0]
    parts = [line(x(place(mark)), top, x(place(mark)), bottom) for mark in marks]
    style = {"stroke": "#333333", "stroke_dasharray": "4 3"}
    at = x(place(equal))
    parts.append(tag("line", x1=at, y1=top, x2=at, y2=bottom, **style))
    parts += [text(x(place(mark)), bottom + 16, short(mark), "middle") for mark in marks]
    words = "below the largest cluster ← → above it"
    parts.append(text((x.low + x.high) / 2, bottom + 34, words, "middle"))
    for number, row in enumerate(rows):
        middle = top + _STEP * (number + 0.5)
        name = clipped(row.name, _NAMES - RIGHT, 12 if row.site else 13)
        weight = "400" if row.site else "600"
        parts.append(text(_NAMES, middle + 4, name, "end", font_weight=weight))
        parts.append(text(_NUMBERS + 14, middle + 4, row.text, "start"))
        parts += _interval(row, middle, x, place, ratio)
    return parts


def _interval(
    row: _Row, middle: float, x: Axis, place: Callable[[float], float], ratio: bool
) -> list[str]:
    """Return the interval, with an arrow where it is open or leaves the axis, and the mark."""

    def at(value: float | None, edge: float) -> tuple[float, bool]:
        inside = value is not None and not (ratio and not _LEAST <= value <= _MOST)
        return (x(place(value)), True) if inside and value is not None else (edge, False)

    value, lower, upper = row.estimate.value, row.estimate.lower, row.estimate.upper
    if lower is None and upper is None:
        return []
    (left, closed), (right, shut) = at(lower, x.low), at(upper, x.high)
    style = {"stroke": row.colour, "stroke_width": "1.5" if row.site else "3", "fill": "none"}
    parts = [tag("path", d=f"M{left:.1f} {middle:.1f}H{right:.1f}", **style)]
    for end, whole, turn in ((left, closed, 6), (right, shut, -6)):
        if not whole:
            d = f"M{end + turn:.1f} {middle - 5:.1f}L{end:.1f} {middle:.1f}l{turn} 5"
            parts.append(tag("path", d=d, **style))
    mark, known = at(value, x.low)
    if known:
        size = 3.5 if row.site else 5.0
        square = {"x": mark - size, "y": middle - size, "width": 2 * size, "height": 2 * size}
        parts.append(tag("rect", **square, fill=row.colour, stroke="#333333"))
    return parts


def draw_survival(facts: Facts, outcome: str | None = None) -> Figure:
    """Draw the share without the event by time and cluster, and the numbers at risk.

    Raises
    ------
    UsageError
        The result does not hold what it would show.
    """
    parts, down, described = [], 0.0, []
    for found in _chosen(facts, outcome, ("time",)):
        x = Axis(0.0, max(found.edges or (1.0,)), _CURVES, WIDTH - RIGHT - 14)
        top, bottom = down + TOP + 22, down + TOP + 222
        y = Axis(0.0, 1.0, bottom, top)
        unit = f" [{found.unit}]" if found.unit else ""
        event = event_of(facts, found)
        heading = f"{found.name}: share without {event}"
        parts.append(text(RIGHT, down + 22, clipped(heading, WIDTH), "start", font_weight="600"))
        times = (0.0, *(found.edges or ()))
        across = _apart(times, x)
        parts += frame(x, y, f"time until {event}{unit}", "", across)
        # Each time has a tick, also where there is no room for its number.
        parts += [
            line(x(time), bottom, x(time), bottom + 4) for time in times if time not in across
        ]
        down = bottom + 52
        parts.append(text(_CURVES - 22, down + 12, "at risk", "end", font_weight="600"))
        for k, own in enumerate(found.clusters):
            parts += _curve(k, len(found.clusters), own.survival, x, y)
            at = down + 12 + _AT_RISK * (k + 1)
            style = {"stroke": colour_of(k), "stroke_width": "3"}
            parts.append(tag("path", d=f"M{_CURVES - 112:.0f} {at - 4:.1f}h24", **style))
            name = clipped(facts.cluster_names[k], _CURVES - 60)
            parts.append(text(_CURVES - 22, at, name, "end"))
            for point in own.survival:
                number = f"{max(0, round(point.at_risk))}" if point.time in across else ""
                parts.append(text(x(point.time), at, number, "middle"))
            said = ", ".join(
                f"{estimate_text(p.survival, percent=True, within=True)} at {p.time:g}"
                for p in own.survival[1:]
            )
            described.append(f"{found.name}, {facts.cluster_names[k]}: {said}")
        down += 12 + _AT_RISK * (len(found.clusters) + 1)
    return Figure(parts, down, "Survival by cluster", joined(described))


def _apart(times: tuple[float, ...], x: Axis) -> tuple[float, ...]:
    """Return the times whose numbers have room next to each other, the last among them."""
    kept = [times[-1]]
    for time in reversed(times[:-1]):
        if x(kept[-1]) - x(time) >= _ROOM:
            kept.append(time)
    return tuple(reversed(kept))


def _curve(
    k: int, n_clusters: int, points: tuple[SurvivalPoint, ...], x: Axis, y: Axis
) -> Iterator[str]:
    """Yield a cluster's curve, with an interval at each time, next to those of others."""
    colour, aside = colour_of(k), 4.0 * (k - (n_clusters - 1) / 2)
    style = {"stroke": colour, "fill": "none"}

    def up(share: float) -> float:
        return y(min(max(share, 0.0), 1.0))

    known = [(p.time, p.survival.value) for p in points if p.survival.value is not None]
    way = " ".join(f"{x(time):.1f},{up(value):.1f}" for time, value in known)
    yield tag("polyline", points=way, stroke_width="2", **style)
    for point in points[1:]:
        across, own = x(point.time) + aside, point.survival
        if own.lower is not None or own.upper is not None:
            low = up(0.0 if own.lower is None else own.lower)
            high = up(1.0 if own.upper is None else own.upper)
            yield tag("path", d=f"M{across:.1f} {low:.1f}V{high:.1f}", stroke_width="1.5", **style)
        if own.value is not None:
            yield tag("circle", cx=x(point.time), cy=up(own.value), r="3", fill=colour)
