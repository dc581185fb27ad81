"""Draw diagrams as SVG without any other package: boxes, arrows and graphs of states.

A figure is 720 wide and shown on white. Widths of words are estimated from wide letters, so that
they fit whatever font a reader has. The same input gives the same bytes on every machine.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedclust.result.drawing import Figure, tag, text, words_width

FIGURES = Path(__file__).parent / "figures"
WIDTH = 720.0
#: Of the letters, in a figure that is 720 wide; none is below 12.
SIZE, _SMALL = 14, 13
_LEADING = 1.25
INK, LINE = "#222222", "#555555"
#: Light colours on which dark letters have a contrast of at least 12.
WHITE, BLUE, AMBER, GREEN, GREY = (
    "#ffffff",
    "#d9eaf5",
    "#fbe9c6",
    "#d3ede3",
    "#eeeeee",
)
Point = tuple[float, float]


def wrap(words: str, width: float, size: float = SIZE) -> list[str]:
    """Return lines that fit a width; a line break in ``words`` stays one."""
    lines: list[str] = []
    for paragraph in words.split("\n"):
        line = ""
        for word in paragraph.split():
            longer = f"{line} {word}".strip()
            if line and words_width(longer, size) > width:
                lines.append(line)
                longer = word
            line = longer
        lines.append(line)
    return lines


def height_of(words: str, width: float, size: float = SIZE) -> float:
    """Return the height of words that are wrapped to a width."""
    return len(wrap(words, width, size)) * size * _LEADING


def paragraph(
    x: float, top: float, words: str, width: float, *, size: int = SIZE, anchor: str = "start"
) -> str:
    """Return wrapped words below ``top``; ``x`` is their start, middle or end."""
    step = size * _LEADING
    return "".join(
        text(x, top + size * 0.95 + number * step, line, anchor, size=size)
        for number, line in enumerate(wrap(words, width, size))
        if line
    )


def heading(x: float, baseline: float, words: str, anchor: str = "start", size: int = SIZE) -> str:
    """Return one line of bold words."""
    return text(x, baseline, words, anchor, size=size, font_weight="bold")


def box(x: float, y: float, width: float, height: float, fill: str = WHITE, **style: str) -> str:
    """Return a rectangle with round corners."""
    style = {"fill": fill, "stroke": LINE, **style}
    return tag("rect", x=x, y=y, width=width, height=height, rx=5.0, **style)


def word_box(x: float, y: float, width: float, height: float, words: str, fill: str = BLUE) -> str:
    """Return a box with words in its middle."""
    top = y + (height - height_of(words, width - 16)) / 2
    inside = paragraph(x + width / 2, top, words, width - 16, anchor="middle")
    return box(x, y, width, height, fill) + inside


def label(x: float, middle: float, words: str, width: float, size: int = SIZE) -> str:
    """Return words around a place, on white, so that lines behind them end there."""
    lines = wrap(words, width, size)
    across = max(words_width(line, size) for line in lines) + 6
    height = len(lines) * size * _LEADING
    ground = {"x": x - across / 2, "y": middle - height / 2, "width": across, "height": height}
    inside = paragraph(x, middle - height / 2, words, width, size=size, anchor="middle")
    return tag("rect", **ground, fill=WHITE) + inside


def arrow(points: Sequence[Point]) -> str:
    """Return a line through points that ends in a head."""
    (x0, y0), (x1, y1) = points[-2:]
    length = math.hypot(x1 - x0, y1 - y0)
    back = ((x1 - x0) / length * 6, (y1 - y0) / length * 6)
    way = "L".join(f"{x:.1f} {y:.1f}" for x, y in [*points[:-1], (x1 - back[0], y1 - back[1])])
    line = tag("path", d=f"M{way}", fill="none", stroke=LINE, stroke_width="1.5")
    return line + head((x0, y0), (x1, y1))


def head(start: Point, end: Point) -> str:
    """Return the head of an arrow that comes from ``start`` and ends at ``end``."""
    length = math.hypot(end[0] - start[0], end[1] - start[1])
    across, down = (end[0] - start[0]) / length, (end[1] - start[1]) / length
    corners = [
        end,
        (end[0] - 8 * across - 4 * down, end[1] - 8 * down + 4 * across),
        (end[0] - 8 * across + 4 * down, end[1] - 8 * down - 4 * across),
    ]
    return tag("polygon", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in corners), fill=LINE)


def cross(x: float, y: float, arm: float = 8.0) -> str:
    """Return a mark where something breaks."""
    d = f"M{x - arm:.1f} {y - arm:.1f}l{2 * arm:.1f} {2 * arm:.1f}"
    d += f"M{x + arm:.1f} {y - arm:.1f}l{-2 * arm:.1f} {2 * arm:.1f}"
    return tag("path", d=d, stroke="#b3261e", stroke_width="3.5", fill="none")


@dataclass(frozen=True)
class Edge:
    """An arrow of a graph, with words."""

    start: str
    end: str
    words: str


def state_graph(title: str, edges: Iterable[Edge], columns: Mapping[str, int]) -> Figure:
    """Draw states from top to bottom, each below all that lead to it.

    The first edge leaves the first state. ``columns`` says which states stand left (-1) or right
    (1) of the middle. States that nothing leaves stand in the last row, in grey.
    """
    edges = tuple(edges)
    rows = _state_rows(edges)
    used = [columns.get(name, 0) for name in rows]
    middle = WIDTH / 2 - 125 * (min(used) + max(used))
    places = {
        name: (middle + 250 * column, 44.0 + 112 * row)
        for (name, row), column in zip(rows.items(), used, strict=True)
    }
    if len(set(places.values())) < len(places):
        raise ValueError("two states stand at one place")
    first = edges[0].start
    x, y = places[first]
    parts = [tag("circle", cx=x, cy=14.0, r=6.0, fill=INK), arrow([(x, 14), (x, y)])]
    parts += [_transition(edge, places, edges) for edge in edges]
    left = {edge.start for edge in edges}
    for name, (x, y) in places.items():
        parts.append(word_box(x - 75, y, 150, 42, name, BLUE if name in left else GREY))
    said = "; ".join(f"from {edge.start} to {edge.end}: {edge.words}" for edge in edges)
    ends = " or ".join(sorted(set(rows) - left))
    description = f"The first state is {first}. Arrows lead {said}. The last state is {ends}."
    return Figure(parts, max(y for _, y in places.values()) + 54, title, description)


def _state_rows(edges: tuple[Edge, ...]) -> dict[str, int]:
    rows: dict[str, int] = {}
    for edge in edges:  # The tables list what leads to a state before what leaves it.
        start = rows.setdefault(edge.start, 0)
        rows[edge.end] = max(rows.get(edge.end, 0), start + 1)
    left = {edge.start for edge in edges}
    return {name: row if name in left else max(rows.values()) for name, row in rows.items()}


def _transition(edge: Edge, places: Mapping[str, Point], edges: tuple[Edge, ...]) -> str:
    (x1, y1), (x2, y2) = places[edge.start], places[edge.end]
    if x1 == x2:
        top = (y1 + 42 + y2) / 2 - height_of(edge.words, 170, _SMALL) / 2
        words = paragraph(x1 - 10, top, edge.words, 170, size=_SMALL, anchor="end")
        return arrow([(x1, y1 + 42), (x1, y2)]) + words
    side = math.copysign(1, x2 - x1)
    # Arrows into one state run parallel; the one from further up runs outside.
    above = [other for other in edges if other.end == edge.end]
    outside = y1 == min(places[other.start][1] for other in above)
    across = x2 + side * (35 if outside and len(above) > 1 else -35)
    leave, middle = x1 + side * 75, y1 + 21
    width = abs(across - leave) - 10
    top = middle - 5 - height_of(edge.words, width, _SMALL)
    words = paragraph((leave + across) / 2, top, edge.words, width, size=_SMALL, anchor="middle")
    return arrow([(leave, middle), (across, middle), (across, y2)]) + words


def save(figures: Mapping[str, Callable[[], Figure]]) -> None:
    """Write figures, each under its name, to ``docs/figures``."""
    for name, draw in figures.items():
        (FIGURES / f"{name}.svg").write_text(draw().svg + "\n", "utf-8")
