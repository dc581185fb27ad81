"""SVG figures for reports, notebooks and benchmarks: no script, a title and a description each."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path

from fedclust.durable_files import write_file
from fedclust.result.wording import plain
from fedclust.wire.errors import UsageError, of_extra

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
WIDTH = 720.0
LEFT, RIGHT, TOP, BOTTOM = 78.0, 16.0, 12.0, 44.0
_LEGEND = 170.0
#: Height of the title in a file.
_HEADING = 36
#: Values whose difference is a smaller share of them differ by rounding.
ROUNDING = 1e-9
_DASHES = ("", "6 3", "2 3", "8 3 2 3")
#: A line with more points is drawn without marks.
_MOST_MARKS = 40
#: Letters that are narrower and wider than others.
_NARROW, _WIDE = "fijlrtI.,:;'|!()[] -/", "mwMW%@"
#: From here on letters are as wide as high: Chinese, Japanese, Korean.
_FULL_WIDTH = "\u2e80"
#: A renderer without a browser knows no generic names.
_FONTS = "system-ui, Arial, Helvetica, 'DejaVu Sans', 'Liberation Sans', 'Noto Sans', sans-serif"


class Figure:
    """A figure as SVG. Notebooks show it; :meth:`save` writes it.

    Parameters
    ----------
    parts : iterable of str
        SVG elements.
    height : float
        Of a drawing that is 720 wide.
    title, description : str
        What screen readers say. The description says in words what the drawing shows.

    Attributes
    ----------
    svg : str
        For a page, where a heading stands above. It has no ids, so a page may hold several.
    titled_svg : str
        For a file: the title stands above the drawing.
    """

    def __init__(
        self, parts: Iterable[str], height: float, title: str, description: str = ""
    ) -> None:
        self.title, self.size = title, (round(WIDTH), round(height))
        self.description = description or title
        self._drawing = "".join(parts)

    def __repr__(self) -> str:
        across, down = self.size
        return f"Figure({self.title!r}, {across} x {down})"

    def _repr_svg_(self) -> str:
        return self.svg

    @functools.cached_property
    def svg(self) -> str:
        return self._document(self._drawing, self.size[1])

    @functools.cached_property
    def titled_svg(self) -> str:
        heading = text(RIGHT, 24, self.title, "start", size=16, font_weight="600")
        moved = tag("g", self._drawing, transform=f"translate(0 {_HEADING})")
        return self._document(heading + moved, self.size[1] + _HEADING)

    def _document(self, drawing: str, height: float) -> str:
        # Words stay readable where a notebook's own background is dark.
        ground = tag("path", d=f"M0 0H{WIDTH:.0f}V{height:.0f}H0z", fill="#ffffff")
        return tag(
            "svg",
            tag("title", escape(self.title))
            + tag("desc", escape(self.description))
            + ground
            + drawing,
            xmlns="http://www.w3.org/2000/svg",
            viewBox=f"0 0 {WIDTH:.0f} {height:.0f}",
            role="img",
            # Not aria-labelledby: its ids would clash where a page holds two results.
            aria_label=f"{self.title}. {self.description}",
            font_family=_FONTS,
        )

    def png(self, zoom: float = 2.0) -> bytes:
        """Return the figure with its title as PNG, 720 pixels wide times ``zoom``.

        Raises
        ------
        UsageError
            The extra ``fedclust[plot]`` is not installed, or the system has no usable font.
        """
        with of_extra("plot", "use SVG, or install resvg-py for a PNG"):
            from resvg_py import svg_to_bytes
        sample = Figure([text(9, 20, "x", "start")], 40, "sample").svg
        if svg_to_bytes(svg_string=sample) == svg_to_bytes(svg_string=sample.replace(">x<", "><")):
            raise UsageError(
                "no font found on the machine that draws the PNG: install one there, such as "
                "DejaVu Sans, or use SVG"
            )
        return bytes(svg_to_bytes(svg_string=self.titled_svg, zoom=zoom))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the figure with its title to a file that ends in ``.svg`` or ``.png``.

        Raises
        ------
        UsageError
            Another ending, a file that cannot be written, or as for :meth:`png`.
        """
        target = Path(path)
        if target.suffix.lower() not in (".svg", ".png"):
            raise UsageError(f"{path}: a figure's file ends in .svg or .png")
        content = self.png() if target.suffix.lower() == ".png" else f"{self.titled_svg}\n".encode()
        write_file(path, content)


class Axis:
    """Map numbers from ``least`` to ``most`` to places from ``low`` to ``high``."""

    def __init__(self, least: float, most: float, low: float, high: float) -> None:
        self._least, self._span = least, (most - least) or 1.0
        self.least, self.most, self.low, self.high = least, most, low, high

    @classmethod
    def around(cls, values: Sequence[float], low: float, high: float, share: float = 0.06) -> Axis:
        """Return an axis with some room at both ends of ``values``."""
        least, most = min(values), max(values)
        size = max(abs(least), abs(most))
        # What differs by rounding alone is drawn as one value.
        room = (most - least) * share if most - least > ROUNDING * size else max(size, 1.0) * 0.1
        return cls(least - room, most + room, low, high)

    def __call__(self, value: float) -> float:
        return self.low + (value - self._least) / self._span * (self.high - self.low)


def colour_of(line: int) -> str:
    """Return the colour of the line with this number; neighbours differ most."""
    return PALETTE[(0, 5, 2, 3, 1, 4, 6)[line % 7]]


def line_chart(
    title: str,
    x_name: str,
    y_name: str,
    series: Mapping[str, Sequence[tuple[float, float | None]]],
    *,
    description: str = "",
    y_range: tuple[float, float] | None = None,
    marked: tuple[str, Sequence[float]] | None = None,
) -> Figure:
    """Draw named lines through points (x, y); a legend where there are several.

    Parameters
    ----------
    title, x_name, y_name : str
    series : mapping of name to sequence of (x, y)
        Points whose y is None are left out; one point at least is needed.
    description : str
    y_range : (low, high), optional
        By default the range of the points.
    marked : (name, x), optional
        Where triangles stand on the horizontal axis, and what they mean.
    """
    lines = {
        name: [(float(x), float(y)) for x, y in points if y is not None]
        for name, points in series.items()
    }
    xs = sorted({x for points in lines.values() for x, _ in points})
    ys = [y for points in lines.values() for _, y in points]
    several = len(lines) > 1
    height = max(260.0, 78.0 + 18 * len(lines))
    right = WIDTH - (_LEGEND if several else RIGHT)
    x = Axis.around(xs, LEFT, right, 0.03)
    bottom = height - BOTTOM
    y = Axis(*y_range, bottom, TOP) if y_range else Axis.around(ys, bottom, TOP)
    whole = all(value == int(value) for value in xs)
    # Rounds and numbers of clusters are whole: at most a dozen of them are named.
    across = xs[:: math.ceil(len(xs) / 12)] if whole else ticks(x.least, x.most)
    parts = frame(x, y, x_name, y_name, across)
    for number, (name, points) in enumerate(lines.items()):
        colour = colour_of(number)
        style = {"stroke": colour, "stroke_width": "2", "fill": "none"}
        if dashes := _DASHES[number % len(_DASHES)]:
            style["stroke_dasharray"] = dashes
        way = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in points)
        parts.append(tag("polyline", points=way, **style))
        if len(points) <= _MOST_MARKS:
            parts += [tag("circle", cx=x(a), cy=y(b), r="3", fill=colour) for a, b in points]
        if several:
            down = TOP + 12 + 18 * number
            parts.append(tag("path", d=f"M{right + 12:.0f} {down:.0f}h24", **style))
            parts.append(text(right + 42, down + 4, name, "start"))
    if marked is not None:
        name, places = marked
        down = TOP + 12 + 18 * len(lines)
        corners = [(x(place), bottom - 11) for place in places] + [(right + 24, down - 6)]
        parts += [tag("path", d=f"M{a:.1f} {b:.1f}l6 11h-12z", fill="#222222") for a, b in corners]
        parts.append(text(right + 42, down + 4, name, "start"))
    return Figure(parts, height, title, description)


def inertia_chart(points: Sequence[tuple[float, float]]) -> Figure:
    """Draw the inertia by round."""
    (first, begin), (last, end) = points[0], points[-1]
    described = f"From {short(begin)} in round {first} to {short(end)} in round {last}."
    return line_chart(
        "Inertia by round", "round", "inertia", {"inertia": points}, description=described
    )


def frame(x: Axis, y: Axis, x_name: str, y_name: str, across: Sequence[float]) -> list[str]:
    """Return grid, numbers and names of two axes; ``across`` are the marks of the first."""
    parts = []
    upward = ticks(min(y.least, y.most), max(y.least, y.most))
    for mark, label in zip(upward, labels(upward), strict=True):
        parts.append(line(x.low, y(mark), x.high, y(mark)))
        parts.append(text(x.low - 6, y(mark) + 4, label, "end"))
    for mark, label in zip(across, labels(across), strict=True):
        parts.append(line(x(mark), y.low, x(mark), y.low + 4))
        parts.append(text(x(mark), y.low + 16, label, "middle"))
    parts.append(text((x.low + x.high) / 2, y.low + BOTTOM - 8, x_name, "middle"))
    turn = f"translate(14 {(y.low + y.high) / 2:.1f}) rotate(-90)"
    return [*parts, text(0, 0, y_name, "middle", transform=turn)]


def grid(x: Axis, top: float, bottom: float) -> list[str]:
    """Return the lines of an axis from ``top`` to ``bottom``, and below them its numbers."""
    parts = []
    for mark in ticks(x.least, x.most):
        parts.append(line(x(mark), top, x(mark), bottom))
        parts.append(text(x(mark), bottom + 16, short(mark), "middle"))
    return parts


def line(x1: float, y1: float, x2: float, y2: float) -> str:
    """Return a line of the grid."""
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, stroke="#dddddd")


def text(x: float, y: float, words: str, anchor: str, *, size: int = 12, **style: str) -> str:
    """Return escaped words at a place: it is their ``start``, ``middle`` or ``end``."""
    style = {"fill": "#222222", **style}
    size_ = str(size)
    return tag("text", escape(words), x=x, y=y, text_anchor=anchor, font_size=size_, **style)


def tag(name: str, content: str = "", /, **attributes: str | float) -> str:
    """Return an element; ``content`` is markup, ``_`` in an attribute's name stands for ``-``."""
    written = "".join(
        f' {key.replace("_", "-")}="{escape(value) if isinstance(value, str) else f"{value:.1f}"}"'
        for key, value in attributes.items()
    )
    return f"<{name}{written}>{content}</{name}>" if content else f"<{name}{written}/>"


def words_width(words: str, size: float) -> float:
    """Return about how wide a line of words is, at most, whatever font the reader has."""
    share = {**dict.fromkeys(_NARROW, 0.37), **dict.fromkeys(_WIDE, 0.93)}
    return size * sum(
        share.get(c, 1.0 if c >= _FULL_WIDTH else 0.7 if c.isupper() else 0.59) for c in words
    )


def clipped(words: str, width: float, size: float = 12) -> str:
    """Return words that fit a width, with an ellipsis where they were longer."""
    if words_width(words, size) <= width:
        return words
    while words and words_width(f"{words}…", size) > width:
        words = words[:-1]
    return f"{words.rstrip()}…"


def ink_on(colour: str, opacity: float = 1.0) -> str:
    """Return black or white: the ink with more contrast on a colour (``#rrggbb``) over white.

    The better one always has a contrast of at least 4.5, as WCAG 2 asks of text.
    """
    channels = [1.0 - opacity * (1.0 - int(colour[i : i + 2], 16) / 255) for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    luminance = sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
    return "#000000" if (luminance + 0.05) ** 2 > 1.05 * 0.05 else "#ffffff"


def short(value: float | None) -> str:
    """Return a number in about four digits; a dash for none."""
    if value is None:
        return "–"
    if value != 0 and not 1e-3 <= abs(value) < 1e7:
        return plain(value, 3)
    digits = 0 if abs(value) >= 1000 else 1 if abs(value) >= 100 else 2 if abs(value) >= 1 else 3
    shown = f"{value:.{digits}f}"
    return shown.rstrip("0").rstrip(".") if "." in shown else shown


def labels(marks: Sequence[float]) -> list[str]:
    """Return the numbers of an axis, in as many digits as tell them apart."""
    shown = [short(mark) for mark in marks]
    for digits in range(5, 18):
        if len(set(shown)) == len(marks):
            break
        shown = [f"{mark:.{digits}g}" for mark in marks]
    return shown


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
