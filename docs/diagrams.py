"""Draw diagrams as SVG without any other package: boxes, arrows, sequences and graphs.

A figure is 720 wide and shown on white. Widths of words are estimated from wide letters, so that
they fit whatever font a reader has. The same input gives the same bytes on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fedclust.report.drawing import Figure, tag, text, words_width

FIGURES = Path(__file__).parent / "figures"
WIDTH = 720.0
#: Of the letters, in a figure that is 720 wide; none is below 12.
SIZE, _SMALL = 14, 13
_LEADING = 1.25
#: Bold letters are wider.
_BOLD = 1.12
INK, LINE = "#222222", "#555555"
#: Light colours on which dark letters have a contrast of at least 12.
WHITE, BLUE, AMBER, GREEN, RED, GREY = (
    "#ffffff",
    "#d9eaf5",
    "#fbe9c6",
    "#d3ede3",
    "#f8d9c8",
    "#eeeeee",
)
Point = tuple[float, float]


def wrap(words: str, width: float, size: float = SIZE, bold: bool = False) -> list[str]:
    """Return lines that fit a width; a line break in ``words`` stays one."""
    lines: list[str] = []
    size *= _BOLD if bold else 1.0
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


def height_of(words: str, width: float, size: float = SIZE, bold: bool = False) -> float:
    """Return the height of words that are wrapped to a width."""
    return len(wrap(words, width, size, bold)) * size * _LEADING


def paragraph(
    x: float,
    top: float,
    words: str,
    width: float,
    *,
    size: int = SIZE,
    anchor: str = "start",
    bold: bool = False,
) -> str:
    """Return wrapped words below ``top``; ``x`` is their start, middle or end."""
    step, style = size * _LEADING, {"font_weight": "bold"} if bold else {}
    return "".join(
        text(x, top + size * 0.95 + number * step, line, anchor, size=size, **style)
        for number, line in enumerate(wrap(words, width, size, bold))
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


def arrow(points: Sequence[Point], *, dashed: bool = False, colour: str = LINE) -> str:
    """Return a line through points that ends in a head."""
    (x0, y0), (x1, y1) = points[-2:]
    length = math.hypot(x1 - x0, y1 - y0)
    back = ((x1 - x0) / length * 6, (y1 - y0) / length * 6)
    way = "L".join(f"{x:.1f} {y:.1f}" for x, y in [*points[:-1], (x1 - back[0], y1 - back[1])])
    style = {"stroke_dasharray": "5 4"} if dashed else {}
    line = tag("path", d=f"M{way}", fill="none", stroke=colour, stroke_width="1.5", **style)
    return line + head((x0, y0), (x1, y1), colour)


def head(start: Point, end: Point, colour: str = LINE) -> str:
    """Return the head of an arrow that comes from ``start`` and ends at ``end``."""
    length = math.hypot(end[0] - start[0], end[1] - start[1])
    across, down = (end[0] - start[0]) / length, (end[1] - start[1]) / length
    corners = [
        end,
        (end[0] - 8 * across - 4 * down, end[1] - 8 * down + 4 * across),
        (end[0] - 8 * across + 4 * down, end[1] - 8 * down - 4 * across),
    ]
    return tag("polygon", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in corners), fill=colour)


def cross(x: float, y: float, arm: float = 8.0) -> str:
    """Return a mark where something breaks."""
    d = f"M{x - arm:.1f} {y - arm:.1f}l{2 * arm:.1f} {2 * arm:.1f}"
    d += f"M{x + arm:.1f} {y - arm:.1f}l{-2 * arm:.1f} {2 * arm:.1f}"
    return tag("path", d=d, stroke="#b3261e", stroke_width="3.5", fill="none")


def zone(x: float, y: float, width: float, height: float, title: str, fill: str) -> str:
    """Return a trust boundary: a dashed frame with a title."""
    style = {"stroke": INK, "stroke_dasharray": "7 5", "stroke_width": "1.5"}
    frame = box(x, y, width, height, fill, **style)
    return frame + heading(x + 12, y + 22, title, size=15)


class SequenceDiagram:
    """A sequence diagram, drawn downwards: who sends what to whom, in which order.

    Parameters
    ----------
    actors : mapping of name to colour
        From left to right.
    """

    def __init__(self, actors: Mapping[str, str]) -> None:
        self._actors, self._y = dict(actors), 62.0
        step = (WIDTH - 20) / len(actors)
        self._x = {name: 10 + step * (number + 0.5) for number, name in enumerate(actors)}
        self._step = step
        self._frames: list[str] = []
        self._parts: list[str] = []
        self._said: list[str] = []
        #: Lines of actors that are down, as (actor, start, end).
        self._down: list[tuple[str, float, float]] = []

    def message(
        self, start: str, end: str, words: str, *, reply: bool = False, lost: bool = False
    ) -> None:
        """Draw an arrow with words above it; a ``lost`` one does not arrive."""
        x1, x2 = self._x[start], self._x[end]
        goal = x1 + (x2 - x1) * (0.7 if lost else 1.0)
        width = abs(goal - x1) - 14
        height = height_of(words, width, _SMALL)
        y = self._y + height + 6
        self._parts.append(label((x1 + goal) / 2, y - 5 - height / 2, words, width, _SMALL))
        self._parts.append(arrow([(x1, y), (goal, y)], dashed=reply))
        if lost:
            self._parts.append(cross(goal + math.copysign(12, x2 - x1), y))
        self._say(f"{start} to {end}: {words}", "It is lost." if lost else "")
        self._y = y + 12

    def note(self, actor: str, words: str, fill: str = AMBER, wide: float = 1.0) -> None:
        """Draw what an actor does by itself; ``wide`` is a number of columns."""
        width = self._step * wide - 14
        height = height_of(words, width - 16, _SMALL) + 14
        x = min(max(self._x[actor] - width / 2, 6), WIDTH - 6 - width)
        inside = paragraph(
            x + width / 2, self._y + 7, words, width - 16, size=_SMALL, anchor="middle"
        )
        self._parts.append(box(x, self._y, width, height, fill) + inside)
        self._say(f"{actor}: {words}")
        self._y += height + 12

    def crash(self, actor: str, words: str, back: str) -> None:
        """Let an actor's program end, and start again."""
        start, x = self._y + 12, self._x[actor]
        width = self._step - 30
        down = max(46.0, height_of(words, width, _SMALL) + 14)
        self._parts.append(cross(x, start))
        side = -1 if x > WIDTH / 2 else 1
        anchor = "end" if side < 0 else "start"
        self._parts.append(
            paragraph(x + side * 16, start - 9, words, width, size=_SMALL, anchor=anchor)
        )
        self._down.append((actor, start, start + down))
        self._say(f"{actor}: {words}")
        self._y = start + down
        self.note(actor, back, GREY)

    @contextmanager
    def frame(self, words: str) -> Iterator[None]:
        """Draw a frame around what is drawn meanwhile: it happens several times, or perhaps."""
        top = self._y
        self._said.append(f"{words} (begin).")
        ground = {"x": 10.0, "y": top + 6, "width": words_width(words, SIZE) + 8, "height": 20.0}
        self._parts.append(tag("rect", **ground, fill=WHITE))
        self._parts.append(heading(14, top + 20, words, size=_SMALL))
        self._y += 32
        yield
        self._frames.append(box(4, top, WIDTH - 8, self._y - top, WHITE, stroke_dasharray="2 4"))
        self._said.append(f"{words} (end).")
        self._y += 12

    def figure(self, title: str) -> Figure:
        """Return the figure. Its description says every step."""
        end = self._y + 4
        lines = []
        for name, fill in self._actors.items():
            x, width = self._x[name], self._step - 14
            lines.append(word_box(x - width / 2, 10, width, 40, name, fill))
            ups = [50.0, *(y for who, *ends in self._down if who == name for y in ends), end]
            for low, high in zip(ups[::2], ups[1::2], strict=True):
                d = f"M{x:.1f} {low:.1f}V{high:.1f}"
                lines.append(tag("path", d=d, stroke=LINE, fill="none"))
        return Figure([*self._frames, *lines, *self._parts], end + 6, title, " ".join(self._said))

    def _say(self, words: str, more: str = "") -> None:
        stop = "" if words.endswith((".", "?", "!")) else "."
        self._said.append(f"{words}{stop} {more}".strip())


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


def graph(
    title: str, places: Mapping[str, Point], edges: Iterable[Edge], *, width: float = 140
) -> Figure:
    """Draw boxes around places, joined by lines with words."""
    parts, said = [], []
    for edge in edges:
        (x1, y1), (x2, y2) = places[edge.start], places[edge.end]
        way = {"x1": x1, "y1": y1, "x2": x2, "y2": y2}
        parts.append(tag("line", **way, stroke=LINE, stroke_width="1.5"))
        # On the part of the line that no box covers.
        room = abs(x2 - x1) - width - 6 if y1 == y2 else width
        parts.append(label((x1 + x2) / 2, (y1 + y2) / 2, edge.words, room, 12))
        said.append(f"{edge.start} {edge.words} {edge.end}")
    for name, (x, y) in places.items():
        parts.append(word_box(x - width / 2, y - 19, width, 38, name))
    low = max(y for _, y in places.values()) + 19
    return Figure(parts, low + 10, title, ". ".join(said) + ".")


def save(figures: Mapping[str, Callable[[], Figure]]) -> None:
    """Write figures, each under its name, to ``docs/figures``."""
    for name, draw in figures.items():
        (FIGURES / f"{name}.svg").write_text(draw().svg + "\n", "utf-8")
