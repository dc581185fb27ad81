"""Plots as SVG text: no script, no font but the reader's, a title and a description in each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from fedclust.report.facts import Entry, Facts

__all__ = [
    "bounds",
    "choice",
    "colour",
    "convergence",
    "places",
    "profile",
    "ranked",
    "short",
    "sizes",
    "strength",
    "ticks",
]

#: Okabe & Ito's colours, which colour-blind readers tell apart.
PALETTE = (
    "#0072b2",
    "#e69f00",
    "#009e73",
    "#cc79a7",
    "#56b4e9",
    "#d55e00",
    "#999999",
    "#f0e442",
)
#: Columns of a heat map; more would not be read.
MOST_COLUMNS = 40
#: Standardised differences that have the full colour.
_FULL = 2.0
_WIDTH = 720.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 78.0, 16.0, 12.0, 44.0


def convergence(facts: Facts) -> str | None:
    """Return the inertia of every round as a line; None where fewer than two rounds told one."""
    told = [(each.round, each.inertia) for each in facts.history if each.inertia is not None]
    if len(told) < 2:
        return None
    rounds, values = [float(number) for number, _ in told], [float(value) for _, value in told]
    height = 260.0
    x = _Axis(min(rounds) - 0.5, max(rounds) + 0.5, _LEFT, _WIDTH - _RIGHT)
    y = _Axis(*_padded(values), height - _BOTTOM, _TOP)
    parts = _grid(
        x, y, height, [float(number) for number in _whole(rounds)], ticks(*_padded(values))
    )
    points = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in zip(rounds, values, strict=True))
    parts.append(
        f'<polyline points="{points}" fill="none" stroke="{PALETTE[0]}" stroke-width="2"/>'
    )
    parts += [
        f'<circle cx="{x(a):.1f}" cy="{y(b):.1f}" r="3.5" fill="{PALETTE[0]}"/>'
        for a, b in zip(rounds, values, strict=True)
    ]
    parts.append(_text((x.low + x.high) / 2, height - 8, "round", "middle"))
    parts.append(_turned(14, (y.low + y.high) / 2, "inertia"))
    described = (
        f"From {short(values[0])} in round {rounds[0]:.0f} to {short(values[-1])} at the end."
    )
    return _svg(parts, height, "Inertia by round", described)


def profile(facts: Facts) -> str | None:
    """Return a heat map: a row for each column, a field for each cluster.

    The colour is the standardised difference, the number the mean. None without any difference.
    """
    shown = ranked(facts)
    if not shown:
        return None
    left, top, step, count = 210.0, 34.0, 26.0, len(facts.clusters)
    wide = min(90.0, (_WIDTH - left - _RIGHT) / max(count, 1))
    height = top + step * len(shown) + 8
    every = math.ceil(24.0 / wide)  # Numbers of three digits have room then.
    parts = [
        _text(left + wide * (k + 0.5), top - 12, f"{cluster.number}", "middle", bold=True)
        for k, cluster in enumerate(facts.clusters)
        if k % every == 0
    ]
    for i, place in enumerate(shown):
        at = top + step * i
        parts.append(_text(left - 8, at + 17, _clipped(facts.columns[place].name, 30), "end"))
        for k, cluster in enumerate(facts.clusters):
            entry = cluster.entries[place]
            fill, ink = colour(entry.difference)
            parts.append(
                f'<rect x="{left + wide * k:.1f}" y="{at:.1f}" width="{wide - 2:.1f}" '
                f'height="{step - 2:.1f}" fill="{fill}"/>'
            )
            if wide >= 34:
                middle = left + wide * (k + 0.5) - 1
                parts.append(_text(middle, at + 16, mean_of(entry), "middle", fill=ink, size=11))
    described = (
        f"{len(shown)} columns by {count} clusters; blue is below the mean of all rows, red above; "
        "the same numbers are in the table."
    )
    return _svg(parts, height, "Profile of the clusters", described)


def sizes(facts: Facts) -> str | None:
    """Return a bar for each cluster, its persons by site; None where no size is known."""
    if not any(cluster.size for cluster in facts.clusters):
        return None
    sites = sorted(facts.by_site)
    step, left = 26.0, 60.0
    top = 10.0
    bottom = top + step * len(facts.clusters)
    height = bottom + 40 + 18 * math.ceil(len(sites) / 4)
    most = max([cluster.size or 0 for cluster in facts.clusters])
    x = _Axis(0.0, most * 1.02, left, _WIDTH - _RIGHT)
    parts = []
    for mark in ticks(0.0, float(most)):
        parts.append(_line(x(mark), top, x(mark), bottom))
        parts.append(_text(x(mark), bottom + 15, short(mark), "middle", size=11))
    for k, cluster in enumerate(facts.clusters):
        at = top + step * k
        parts.append(_text(left - 8, at + 17, f"{cluster.number}", "end", bold=True))
        if cluster.size is None:
            parts.append(_text(left + 4, at + 17, "not measured", "start", size=11))
            continue
        told = [(i, facts.by_site[site][k]) for i, site in enumerate(sites)]
        begin = 0
        for i, rows in told:
            if rows:
                parts.append(_bar(x, begin, rows, at, step, PALETTE[i % len(PALETTE)], i))
                begin += rows
        if begin < cluster.size:  # sites' parts that are not told
            parts.append(_bar(x, begin, cluster.size - begin, at, step, "#d0d0d0", 0))
    for i, site in enumerate(sites):
        across, down = left + 160 * (i % 4), bottom + 32 + 18 * (i // 4)
        fill = PALETTE[i % len(PALETTE)]
        parts.append(
            f'<rect x="{across:.1f}" y="{down - 10:.1f}" width="11" height="11" fill="{fill}" '
            f'fill-opacity="{strength(i):.2f}"/>'
        )
        parts.append(_text(across + 16, down, _clipped(site, 20), "start", size=11))
    described = "Rows of each cluster, by site where sites' parts may be told; see the table."
    return _svg(parts, height, "Sizes of the clusters by site", described)


def places(facts: Facts) -> str | None:
    """Return the centroids on their first two principal axes; None without any."""
    if not facts.clusters:
        return None
    height = 360.0
    across = [float(value) for value in facts.positions[:, 0]]
    upward = [float(value) for value in facts.positions[:, 1]]
    x = _Axis(*_padded(across, 0.15), _LEFT, _WIDTH - _RIGHT)
    y = _Axis(*_padded(upward, 0.2), height - _BOTTOM, _TOP)
    parts = _grid(x, y, height, ticks(*_padded(across, 0.15)), ticks(*_padded(upward, 0.2)))
    most = max([cluster.size or 0 for cluster in facts.clusters]) or 1
    for k, cluster in enumerate(facts.clusters):
        radius = 8 + 16 * math.sqrt((cluster.size or 0) / most)
        parts.append(
            f'<circle cx="{x(across[k]):.1f}" cy="{y(upward[k]):.1f}" r="{radius:.1f}" '
            f'fill="{PALETTE[k % len(PALETTE)]}" fill-opacity="0.45" stroke="#333"/>'
        )
        parts.append(
            _text(x(across[k]), y(upward[k]) + 4, f"{cluster.number}", "middle", bold=True)
        )
    first, second = (f"{100 * share:.0f} %" for share in facts.explained)
    middle = (x.low + x.high) / 2
    parts.append(_text(middle, height - 8, f"first principal axis, {first}", "middle"))
    parts.append(_turned(14, (y.low + y.high) / 2, f"second, {second}"))
    described = (
        "Centroids in the scaled space, on the two axes along which they differ most; the area "
        "stands for the size."
    )
    return _svg(parts, height, "Centroids in two dimensions", described)


def choice(facts: Facts) -> str | None:
    """Return silhouette and stability by number of clusters; None without a sweep."""
    lines = [
        ("simplified silhouette", [each.simplified_silhouette for each in facts.sweep]),
        ("stability", [each.stability for each in facts.sweep]),
    ]
    told = [value for _, values in lines for value in values if value is not None]
    if len(facts.sweep) < 2 or not told:
        return None
    height, tried = 240.0, [float(each.n_clusters) for each in facts.sweep]
    x = _Axis(min(tried) - 0.5, max(tried) + 0.5, _LEFT, _WIDTH - _RIGHT)
    low, high = min(0.0, *told), max(1.0, *told)
    y = _Axis(low, high, height - _BOTTOM, _TOP + 8)
    parts = _grid(x, y, height, tried, ticks(low, high))
    for number, (name, values) in enumerate(lines):
        pairs = zip(tried, values, strict=True)
        known = [(k, value) for k, value in pairs if value is not None]
        fill = PALETTE[(0, 5)[number]]
        points = " ".join(f"{x(k):.1f},{y(value):.1f}" for k, value in known)
        dashes = ' stroke-dasharray="6 4"' if number else ""
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{fill}" stroke-width="2"{dashes}/>'
        )
        parts += [
            f'<circle cx="{x(k):.1f}" cy="{y(value):.1f}" r="3.5" fill="{fill}"/>'
            for k, value in known
        ]
        parts.append(_text(x.low + 10 + 180 * number, _TOP, name, "start", size=11, fill=fill))
    parts.append(_text((x.low + x.high) / 2, height - 8, "number of clusters", "middle"))
    return _svg(parts, height, "Choosing the number of clusters", facts.recommendation or "")


def bounds(facts: Facts) -> str | None:
    """Return both bounds by round; None where fewer than two rounds told one."""
    told = facts.bounds_by_round
    if len(told) < 2:
        return None
    height = 260.0
    lines = [
        (name, [(float(each[0]), each[place]) for each in told])
        for place, name in ((2, "upper bound"), (1, "lower bound"))
    ]
    known = [value for _, line in lines for _, value in line if value is not None]
    rounds = [float(each[0]) for each in told]
    x = _Axis(min(rounds) - 0.5, max(rounds) + 0.5, _LEFT, _WIDTH - _RIGHT)
    y = _Axis(*_padded(known), height - _BOTTOM, _TOP + 8)
    parts = _grid(
        x, y, height, [float(number) for number in _whole(rounds)], ticks(*_padded(known))
    )
    for number, (name, line) in enumerate(lines):
        fill = PALETTE[(5, 0)[number]]
        drawn = [(number, value) for number, value in line if value is not None]
        points = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in drawn)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{fill}" stroke-width="2"/>')
        parts += [
            f'<circle cx="{x(a):.1f}" cy="{y(b):.1f}" r="3" fill="{fill}"/>' for a, b in drawn
        ]
        parts.append(_text(x.low + 10 + 180 * number, _TOP, name, "start", size=11, fill=fill))
    parts.append(_text((x.low + x.high) / 2, height - 8, "round", "middle"))
    parts.append(_turned(14, (y.low + y.high) / 2, "inertia"))
    gap = None if facts.bounds is None else facts.bounds.gap
    left = "unknown" if gap is None else f"{100 * gap:.3g} %"
    described = f"The best bounds of the least inertia so far, by round. Gap at the end: {left}."
    return _svg(parts, height, "Lower and upper bound by round", described)


# --- what the plots share with matplotlib's and the page ------------------------------------------


def ranked(facts: Facts) -> list[int]:
    """Return the columns of a heat map in their order: all, or those that differ most."""
    widest = [
        max((abs(cluster.entries[j].difference or 0.0) for cluster in facts.clusters), default=0.0)
        for j in range(len(facts.columns))
    ]
    if not any(widest):
        return []
    order = sorted(range(len(widest)), key=lambda j: (-widest[j], j))[:MOST_COLUMNS]
    return sorted(order)


def colour(difference: float | None) -> tuple[str, str]:
    """Return the fill of a standardised difference, blue below and red above, and the ink on it."""
    if difference is None:
        return "#eeeeee", "#222222"
    share = min(abs(difference) / _FULL, 1.0)
    end = (33, 102, 172) if difference < 0 else (178, 24, 43)
    fill = "#" + "".join(f"{round(255 + (value - 255) * share):02x}" for value in end)
    return fill, "#ffffff" if share > 0.6 else "#222222"


def mean_of(entry: Entry) -> str:
    """Return a mean as it is read: a share in per cent, a number in a few digits."""
    if entry.mean is None:
        return "–"
    if entry.column.kind == "binary":
        return f"{100 * entry.mean:.0f} %"
    return short(entry.mean)


def short(value: float | None) -> str:
    """Return a number in four digits or so; a dash for none."""
    if value is None:
        return "–"
    if value != 0 and not 1e-3 <= abs(value) < 1e7:
        return f"{value:.3g}"
    digits = 0 if abs(value) >= 1000 else 1 if abs(value) >= 100 else 2 if abs(value) >= 1 else 3
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def ticks(low: float, high: float) -> list[float]:
    """Return about five round numbers between two."""
    if not high > low:
        return [low]
    raw = (high - low) / 5
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


# --- drawing --------------------------------------------------------------------------------------


class _Axis:
    """Maps numbers to places: ``low`` and ``high`` are places."""

    def __init__(self, least: float, most: float, low: float, high: float) -> None:
        self._least, self._span = least, (most - least) or 1.0
        self.low, self.high = low, high

    def __call__(self, value: float) -> float:
        return self.low + (value - self._least) / self._span * (self.high - self.low)


def _padded(values: Sequence[float], share: float = 0.06) -> tuple[float, float]:
    low, high = min(values), max(values)
    room = (high - low) * share or max(abs(high), 1.0) * 0.1
    return low - room, high + room


def _whole(rounds: Sequence[float]) -> list[int]:
    """Return at most a dozen of the rounds."""
    every = max(1, math.ceil(len(rounds) / 12))
    return [int(number) for number in rounds[::every]]


def _grid(
    x: _Axis, y: _Axis, height: float, across: Sequence[float], upward: Sequence[float]
) -> list[str]:
    parts = []
    for mark in upward:
        parts.append(_line(x.low, y(mark), x.high, y(mark)))
        parts.append(_text(x.low - 6, y(mark) + 4, short(mark), "end", size=11))
    for mark in across:
        parts.append(_line(x(mark), y.low, x(mark), y.low + 4))
        parts.append(_text(x(mark), height - _BOTTOM + 16, short(mark), "middle", size=11))
    return parts


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#dddddd"/>'


def strength(number: int) -> float:
    """Return a site's opacity: past the palette's end a pattern of them tells sites apart."""
    return 1.0 - 0.35 * (number // len(PALETTE) % 3)


def _bar(x: _Axis, begin: int, rows: int, at: float, step: float, fill: str, number: int) -> str:
    return (
        f'<rect x="{x(begin):.1f}" y="{at + 3:.1f}" width="{x(rows) - x(0):.1f}" '
        f'height="{step - 8:.1f}" fill="{fill}" fill-opacity="{strength(number):.2f}" '
        'stroke="#ffffff"/>'
    )


def _text(
    x: float,
    y: float,
    text: str,
    anchor: str,
    *,
    bold: bool = False,
    size: int = 12,
    fill: str = "#222222",
) -> str:
    weight = ' font-weight="600"' if bold else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" '
        f'fill="{fill}"{weight}>{escape(text)}</text>'
    )


def _turned(x: float, y: float, text: str) -> str:
    return (
        f'<text transform="translate({x:.1f} {y:.1f}) rotate(-90)" text-anchor="middle" '
        f'font-size="12" fill="#222222">{escape(text)}</text>'
    )


def _clipped(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _svg(parts: Sequence[str], height: float, title: str, described: str) -> str:
    name = title.lower().replace(" ", "-")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH:.0f} {height:.0f}" '
        f'role="img" aria-labelledby="{name}-title {name}-desc" '
        'font-family="system-ui, sans-serif">'
        f'<title id="{name}-title">{escape(title)}</title>'
        f'<desc id="{name}-desc">{escape(described)}</desc>' + "".join(parts) + "</svg>"
    )
