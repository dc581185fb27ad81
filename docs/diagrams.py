"""Draw diagrams as SVG without any other package: boxes, arrows, sequences and graphs.

A figure is 720 wide and shown on white. Widths of words are estimated from wide letters, so that
they fit whatever font a reader has. The same input gives the same bytes on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fedclust.report.drawing import Figure, tag, text

FIGURES = Path(__file__).parent / "figures"
WIDTH = 720.0
#: Of the letters, in a figure that is 720 wide; none is below 12.
SIZE = 14
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
_NARROW, _WIDE = "fijlrtI.,:;'|!()[] -/", "mwMW%@"
Point = tuple[float, float]


def words_width(words: str, size: float = SIZE) -> float:
    """Return about how wide a line of words is, at most."""
    share = {**dict.fromkeys(_NARROW, 0.37), **dict.fromkeys(_WIDE, 0.93)}
    return size * sum(share.get(c, 0.7 if c.isupper() else 0.59) for c in words)


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


def save(figures: Mapping[str, Callable[[], Figure]]) -> None:
    """Write figures, each under its name, to ``docs/figures``."""
    for name, draw in figures.items():
        (FIGURES / f"{name}.svg").write_text(draw().svg + "\n", "utf-8")
