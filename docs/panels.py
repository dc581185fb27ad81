"""Panels for pictures of small data: rows, what sites send, centroids and their regions.

A :class:`Sheet` holds panels side by side, each with a title and a caption. The mark and the colour
of a point say which site it belongs to; black belongs to the coordinator.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from diagrams import INK, heading, height_of, paragraph
from fedclust.result.drawing import PALETTE, WIDTH, Axis, Figure, line, short, tag, text, ticks

FloatArray = NDArray[np.float64]

SITES = ("berlin", "oslo", "porto")
COLOURS = dict(zip(SITES, (PALETTE[0], PALETTE[5], PALETTE[2]), strict=True))
GREY = "#666666"
#: Backgrounds of the clusters' regions.
_TINTS = ("#e7eff7", "#fdf1da", "#e4f3ec", "#f7e9f2", "#ececec")
_EDGE, _GAP, _TOP = 8.0, 12.0, 28.0
_SIZE = 12
#: How far a number stands from what it names, in pixels.
_NEXT_TO = (13.0, -11.0)


class Panel:
    """A drawing with a title, a frame with data, and a caption below.

    Parameters
    ----------
    place : (left, width, height)
        In pixels.
    title, caption : str
    low, high : (2,) sequence of float
        The data's lower left and upper right corner.
    """

    def __init__(
        self,
        place: tuple[float, float, float],
        title: str,
        caption: str,
        low: Sequence[float],
        high: Sequence[float],
    ) -> None:
        self.left, width, height = place
        self.right, self.bottom = self.left + width, _TOP + height
        self.x = Axis(low[0], high[0], self.left, self.right)
        self.y = Axis(low[1], high[1], self.bottom, _TOP)
        self.caption = caption
        self.height = height_of(caption, width, _SIZE)
        self._parts = [heading(self.left, 18, title, size=13)]

    @property
    def parts(self) -> list[str]:
        """The elements of the panel."""
        width = self.right - self.left
        frame = {"x": self.left, "y": _TOP, "width": width, "height": self.bottom - _TOP}
        border = tag("rect", **frame, fill="none", stroke="#bbbbbb")
        words = paragraph(self.left, self.bottom + 6, self.caption, width, size=_SIZE)
        return [*self._parts, border, words]

    def place(self, points: FloatArray) -> FloatArray:
        """Return points (n, 2) in pixels."""
        return np.array([(self.x(a), self.y(b)) for a, b in points]).reshape(-1, 2)

    def axes(self, across: str, upward: str) -> None:
        """Write the names of the two axes into the panel's corners."""
        low, high = (self.right - 5, self.bottom - 5), (self.left + 5, _TOP + 13)
        self._parts.append(text(*low, across, "end", size=_SIZE, fill=GREY))
        self._parts.append(text(*high, upward, "start", size=_SIZE, fill=GREY))

    def regions(self, centroids: FloatArray) -> None:
        """Fill the region in which each of the centroids (K, 2) is the nearest."""
        places = self.place(centroids)
        corners = [(self.left, _TOP), (self.right, _TOP)]
        corners += [(self.right, self.bottom), (self.left, self.bottom)]
        for number, place in enumerate(places):
            region = np.array(corners)
            for other in np.delete(places, number, axis=0):
                region = _nearer_part(region, place, other)
            fill = _TINTS[number % len(_TINTS)]
            self._parts.append(tag("path", d=_way(region) + "z", fill=fill, stroke="#ffffff"))

    def dots(self, points: FloatArray, colour: str, *, opacity: float = 0.4) -> None:
        """Draw rows (n, 2) as small dots."""
        way = "".join(f"M{x:.1f} {y:.1f}h0" for x, y in self.place(points))
        style = {"stroke": colour, "stroke_width": "3", "stroke_linecap": "round"}
        self._parts.append(tag("path", d=way, fill="none", opacity=f"{opacity:g}", **style))

    def rows(self, sites: Mapping[str, FloatArray]) -> None:
        """Draw the rows of all sites."""
        for site, points in sites.items():
            self.dots(points, COLOURS[site])

    def sent(self, site: str, points: FloatArray, counts: NDArray[np.int64] | None = None) -> None:
        """Draw what a site sent (n, 2) with its mark; the area grows with the counts (n,)."""
        sizes = np.full(len(points), 4.0)
        if counts is not None:
            sizes = 2.4 + 3.0 * np.sqrt(counts / counts.max())
        places = zip(self.place(points), sizes, strict=True)
        way = "".join(_mark(site, x, y, size) for (x, y), size in places)
        style = {"fill": COLOURS[site], "stroke": "#ffffff", "stroke_width": "0.7"}
        self._parts.append(tag("path", d=way, **style))

    def numbers(self, points: FloatArray, *, next_to: bool = False) -> None:
        """Draw points (K, 2) as discs with the numbers 1 to K, or the numbers next to them."""
        for number, (x, y) in enumerate(self.place(points) + (_NEXT_TO if next_to else (0, 0)), 1):
            self._parts.append(tag("circle", cx=x, cy=y, r=7.5, fill=INK, stroke="#ffffff"))
            style = {"fill": "#ffffff", "font_weight": "600"}
            self._parts.append(text(x, y + 4, str(number), "middle", size=_SIZE, **style))

    def words(self, point: Sequence[float], words: str, *, lift: float = 0.0) -> None:
        """Write words at a point (2,), moved up by some pixels."""
        ((x, y),) = self.place(np.array([point]))
        self._parts.append(text(x, y + 4 - lift, words, "middle", size=_SIZE))

    def crosses(self, points: FloatArray, colour: str = INK, *, size: float = 4.0) -> None:
        """Draw points (n, 2) as crosses."""
        cross = f"l{2 * size:.1f} {2 * size:.1f}m0 {-2 * size:.1f}l{-2 * size:.1f} {2 * size:.1f}"
        corners = self.place(points) - size
        way = "".join(f"M{x:.1f} {y:.1f}{cross}" for x, y in corners)
        self._parts.append(tag("path", d=way, fill="none", stroke=colour, stroke_width="1.7"))

    def ellipses(self, centres: FloatArray, radii: FloatArray, colour: str) -> None:
        """Draw ellipses around centres (n, 2) with radii (n, 2) along the axes."""
        corners = self.place(centres + radii)
        for (x, y), (right, top) in zip(self.place(centres), corners, strict=True):
            style = {"fill": "none", "stroke": colour, "stroke_width": "1.5"}
            self._parts.append(tag("ellipse", cx=x, cy=y, rx=right - x, ry=y - top, **style))

    def links(
        self, starts: FloatArray, ends: FloatArray, colour: str = INK, *, width: float = 1.0
    ) -> None:
        """Draw a line from each of some points (n, 2) to another (n, 2)."""
        pairs = zip(self.place(starts), self.place(ends), strict=True)
        way = "".join(_way(np.array(pair)) for pair in pairs)
        style = {"stroke": colour, "stroke_width": f"{width:g}"}
        self._parts.append(tag("path", d=way, fill="none", **style))

    def arrows(self, starts: FloatArray, ends: FloatArray) -> None:
        """Draw an arrow from each of some points (n, 2) to where it moves (n, 2)."""
        self.links(starts, ends, width=1.5)
        heads = ""
        for start, end in zip(self.place(starts), self.place(ends), strict=True):
            length = np.hypot(*(end - start))
            if length > 8:
                u, v = (end - start) / length
                back, aside = end - 7 * np.array((u, v)), 3.5 * np.array((v, -u))
                heads += _way(np.array([end, back + aside, back - aside])) + "z"
        self._parts.append(tag("path", d=heads, fill=INK))

    def chart(self, lines: Mapping[str, tuple[str, Sequence[float]]]) -> None:
        """Draw numbers by round, from round 1: named lines in a colour.

        The name stands above the last line, and below the others.
        """
        self.axes("round", "")
        for mark in ticks(self.y.least, self.y.most):
            y = self.y(mark)
            self._parts.append(line(self.left, y, self.right, y))
            self._parts.append(
                text(self.left + 3, y - 3, short(mark), "start", size=_SIZE, fill=GREY)
            )
        for number, (name, (colour, values)) in enumerate(lines.items(), 1):
            points = np.column_stack([np.arange(1, len(values) + 1), values])
            style = {"fill": "none", "stroke": colour, "stroke_width": "2"}
            self._parts.append(tag("path", d=_way(self.place(points)), **style))
            self.dots(points, colour, opacity=1.0)
            x, y = self.place(points)[len(points) // 2]
            down = -7 if number == len(lines) else 22
            self._parts.append(text(x, y + down, name, "middle", size=_SIZE, fill=colour))


class Sheet:
    """Panels side by side.

    Parameters
    ----------
    low, high : (2,) sequence of float
        The data's lower left and upper right corner in every panel that names no other.
    count : int
        How many panels there will be.
    ratio : float
        Height of a panel over its width.
    """

    def __init__(
        self, low: Sequence[float], high: Sequence[float], count: int = 4, ratio: float = 1.0
    ) -> None:
        self._low, self._high = low, high
        self._width = (WIDTH - 2 * _EDGE - (count - 1) * _GAP) / count
        self._height = ratio * self._width
        self._panels: list[Panel] = []

    def panel(
        self,
        title: str,
        caption: str,
        low: Sequence[float] | None = None,
        high: Sequence[float] | None = None,
    ) -> Panel:
        """Add a panel to the right of the others."""
        number = len(self._panels)
        place = (_EDGE + number * (self._width + _GAP), self._width, self._height)
        panel = Panel(
            place, f"{number + 1}. {title}", caption, low or self._low, high or self._high
        )
        self._panels.append(panel)
        return panel

    def figure(self, title: str, sites: Iterable[str], words: str, description: str) -> Figure:
        """Return the figure: below the panels stand the sites' marks and what others mean."""
        parts = [part for panel in self._panels for part in panel.parts]
        y = _TOP + self._height + 30 + max(panel.height for panel in self._panels)
        x = _EDGE + 6
        for site in sites:
            parts.append(tag("path", d=_mark(site, x, y - 4, 4.5), fill=COLOURS[site]))
            parts.append(text(x + 9, y, site, "start", size=_SIZE))
            x += 64
        parts.append(text(x, y, words, "start", size=_SIZE, fill=GREY))
        return Figure(parts, y + 12, title, description)


def draw_tree(
    panel: Panel,
    merges: NDArray[np.int64],
    leaves: Sequence[tuple[str, str]],
    clusters: Sequence[int],
) -> None:
    """Draw merges as a tree that grows to the right, in a panel from (0, 0) to (1, 1).

    Parameters
    ----------
    panel : Panel
    merges : (s, 2) int64
        A leaf of each of the two groups that are merged, one pair a step.
    leaves : sequence of (site, name)
    clusters : sequence of int
        The cluster, from 0, to which each leaf finally belongs.
    """
    branches = {leaf: [leaf] for leaf in range(len(leaves))}
    for a, b in merges.tolist():
        joined = branches[a] + branches[b]
        branches |= dict.fromkeys(joined, joined)
    order = [leaf for k in range(max(clusters) + 1) for leaf in branches[clusters.index(k)]]
    heights = np.empty(len(order))
    heights[order] = np.linspace(0.94, 0.06, len(order))
    # Where the branch of each leaf ends, and which leaves end there too.
    ends = {leaf: ((0.2, float(heights[leaf])), [leaf]) for leaf in order}
    for step, (a, b) in enumerate(merges.tolist(), 1):
        ((x1, y1), first), ((x2, y2), second) = ends[a], ends[b]
        x = 0.2 + 0.6 * step / len(merges)
        starts, turns = [(x1, y1), (x2, y2), (x, y1)], [(x, y1), (x, y2), (x, y2)]
        panel.links(np.array(starts), np.array(turns), width=1.5)
        ends |= dict.fromkeys(first + second, ((x, (y1 + y2) / 2), first + second))
    roots = np.array([ends[clusters.index(k)][0] for k in range(max(clusters) + 1)])
    tips = np.column_stack([np.full(len(roots), 0.92), roots[:, 1]])
    panel.links(roots, tips, width=1.5)
    panel.numbers(tips)
    for (site, name), height in zip(leaves, heights, strict=True):
        panel.sent(site, np.array([(0.05, height)]))
        panel.words((0.13, height), name)


def _nearer_part(region: FloatArray, place: FloatArray, other: FloatArray) -> FloatArray:
    """Return the part of a convex region (n, 2) that is nearer to a place than to another."""
    depths = (region - (place + other) / 2) @ (other - place)
    kept = []
    for number, depth in enumerate(depths):
        before, point = region[number - 1], region[number]
        if (depth > 0) != (depths[number - 1] > 0):
            share = depths[number - 1] / (depths[number - 1] - depth)
            kept.append(before + share * (point - before))
        if depth <= 0:
            kept.append(point)
    return np.array(kept).reshape(-1, 2)


def _way(points: FloatArray) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def _mark(site: str, x: float, y: float, size: float) -> str:
    """Return the mark of a site as a path: a circle, a square or a triangle."""
    if site == "berlin":
        arc = f"a{size:.1f} {size:.1f} 0 1 0"
        return f"M{x - size:.1f} {y:.1f}{arc} {2 * size:.1f} 0{arc} {-2 * size:.1f} 0z"
    first, n = {"oslo": (45, 4), "porto": (-90, 3)}[site]
    angles = np.radians(first + np.arange(n) * 360 / n)
    corners = np.column_stack([np.cos(angles), np.sin(angles)])
    return _way((x, y) + 1.25 * size * corners) + "z"
